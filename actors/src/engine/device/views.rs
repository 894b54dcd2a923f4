//! Prompts and sequences as the scheduler sees them.

use ragstone_kernels::backend::Backend;
use ragstone_storage::block::BLOCK_TOKENS;

use crate::engine::Urgency;
use crate::engine::inbox::Waiting;
use crate::engine::schedule::{Phase, View};
use crate::engine::sequence::{Prefilling, Sequence, State, Tail, more_blocks};
use crate::engine::shares::Owner;

/// A prompt that waits as the scheduler sees it.
pub(super) fn view_of_waiting(waiting: &Waiting, owner: Owner) -> View {
    let plan = &waiting.job.plan;
    let prompt_blocks =
        (plan.total_tokens as usize).div_ceil(BLOCK_TOKENS) - plan.device_tokens() as usize / BLOCK_TOKENS;
    View {
        id: waiting.id,
        owner,
        background: waiting.urgency == Urgency::Background,
        speculative: waiting.urgency == Urgency::Speculative,
        tails: waiting.job.decode.len().max(1),
        cached: plan.exact_tokens as usize,
        to_compute: waiting.job.rows(),
        overtaken: waiting.overtaken,
        left_out: 0,
        blocks: 0,
        promised: 0,
        phase: Phase::Waiting { prompt_blocks },
    }
}

/// A sequence as the scheduler sees it, if new chunks have `rows` rows at most.
pub(super) fn view<B: Backend>(sequence: &mut Sequence<B>, owner: Owner, rows: usize) -> View {
    let blocks = sequence.blocks();
    let mut view = View {
        id: sequence.id,
        owner,
        background: sequence.urgency == Urgency::Background,
        speculative: sequence.is_speculative(),
        tails: sequence.tails(),
        cached: 0,
        to_compute: 0,
        overtaken: sequence.overtaken,
        left_out: sequence.left_out,
        blocks,
        promised: 0,
        phase: Phase::Loading,
    };
    view.phase = match &mut sequence.state {
        _ if sequence.swapped.is_some() => {
            Phase::Swapped { blocks: sequence.swapped.as_ref().map_or(0, |swapped| swapped.shape.blocks()) }
        }
        State::Prefilling(prefilling) if prefilling.held.is_some() => Phase::Loading,
        State::Prefilling(prefilling) => {
            let Prefilling { prefill, table, .. } = &mut **prefilling;
            view.to_compute = prefill.rows_left();
            view.promised = more_blocks(table, prefill.plan().total_tokens as usize);
            view.cached = (prefill.plan().total_tokens as usize).saturating_sub(view.to_compute);
            match prefill.is_ready() {
                true => Phase::Prefilling {
                    chunk: prefill.chunk(),
                    more_blocks: more_blocks(table, prefill.slots_needed(rows)),
                },
                false => Phase::Loading,
            }
        }
        State::Decoding(tails) => {
            let sum = |of: fn(&Tail) -> usize| tails.iter().map(of).sum();
            let (more_blocks, draft_blocks) = (sum(Tail::more_blocks), sum(Tail::draft_blocks));
            Phase::Decoding { rows: tails.len(), more_blocks, drafts: sum(|tail| tail.draft.len()), draft_blocks }
        }
        State::Ended => Phase::Loading,
    };
    view
}
