//! Prompts and sequences as the scheduler sees them.

use ragstone_kernels::backend::Backend;
use ragstone_storage::block::BLOCK_TOKENS;

use crate::engine::Urgency;
use crate::engine::inbox::Waiting;
use crate::engine::schedule::{Phase, Step, View};
use crate::engine::sequence::{Prefilling, Sequence, State, Tail, more_blocks};
use crate::engine::shares::Owner;
use crate::engine::status::SequencesStatus;

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
        most_rows: usize::MAX,
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
        most_rows: usize::MAX,
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
            view.most_rows = prefill.most_rows();
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

/// Who is under way during `step`, with those that begin in it and without those that go on waiting.
pub(super) fn begun(views: &[View], step: &Step) -> SequencesStatus {
    let mut begun = SequencesStatus::default();
    for view in views {
        let is_waiting = matches!(view.phase, Phase::Waiting { .. });
        if is_waiting && !step.rows.iter().any(|(id, _)| *id == view.id) {
            continue;
        }
        let counted = match view.phase {
            _ if view.background => &mut begun.background,
            Phase::Waiting { .. } | Phase::Prefilling { .. } => &mut begun.prefilling,
            Phase::Loading => &mut begun.loading,
            Phase::Decoding { .. } => &mut begun.decoding,
            Phase::Swapped { .. } => &mut begun.swapped,
        };
        *counted += 1;
    }
    begun
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_counted_by_what_it_does_in_the_step_and_background_work_apart() {
        let view = |id, background, phase| View {
            id,
            owner: Owner::default(),
            background,
            speculative: false,
            tails: 3,
            cached: 0,
            to_compute: 40,
            most_rows: usize::MAX,
            overtaken: 0,
            left_out: 0,
            blocks: 4,
            promised: 0,
            phase,
        };
        let waiting = Phase::Waiting { prompt_blocks: 3 };
        let decoding = Phase::Decoding { rows: 3, more_blocks: 0, drafts: 0, draft_blocks: 0 };
        let views = [
            view(0, false, decoding),
            view(1, true, Phase::Prefilling { chunk: None, more_blocks: 1 }),
            view(2, false, Phase::Swapped { blocks: 4 }),
            view(3, false, Phase::Loading),
            view(4, false, waiting),
            view(5, false, waiting),
            view(6, true, waiting),
        ];
        let step = Step { rows: vec![(0, 3), (4, 40)], ..Step::default() };
        let expected =
            SequencesStatus { prefilling: 1, decoding: 1, swapped: 1, loading: 1, background: 1, waiting: 0 };
        assert_eq!(begun(&views, &step), expected);
    }
}
