//! A sequence group: one prompt, and the answers that go on from it. It is scheduled, swapped and freed as one ("Efficient Memory
//! Management for Large Language Model Serving with PagedAttention", section 4.4).

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ragstone_env::Stopwatch;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::pool::BlockId;
use ragstone_storage::block::{BLOCK_TOKENS, BlockTable, PackedTables};
use ragstone_storage::tier::device::{DevicePath, KeptSegment};
use tokio::sync::oneshot;

use super::beams::BeamGroup;
use super::lookup::Drafter;
use super::shares::Party;
use super::text::GrowingText;
use super::{DecodeSpec, Decoded, PrefillReport, Urgency};
use crate::admission::turns::ComputeTime;
use crate::error::Error;
use crate::prefill::Interruption;
use crate::prefill::{Prefill, PrefillError};
use crate::report::FinishReason;
use crate::speculation::Hold;

/// One prompt and its answers.
pub(super) struct Sequence<B: Backend> {
    /// Greater came later.
    pub id: u64,
    pub party: Party,
    pub urgency: Urgency,
    pub overtaken: u32,
    /// Of a speculative prefill: what lets it go on.
    pub hold: Option<Hold>,
    /// Passes since it advanced last, of one that decodes.
    pub left_out: u32,
    pub state: State<B>,
    /// Spare what the tables share with the device tier: evicting it would free nothing.
    pub paths: Vec<DevicePath>,
    /// The prompt's exact path, where it was left on the device.
    pub path: Vec<KeptSegment>,
    /// Its blocks' bytes, while it is not on the device: its tables are empty then.
    pub swapped: Option<Swapped>,
    /// The search whose beams its answers are.
    pub beams: Option<BeamGroup>,
}

pub(super) enum State<B: Backend> {
    Prefilling(Box<Prefilling<B>>),
    Decoding(Vec<Tail>),
    /// It has ended, and leaves.
    Ended,
}

/// A prompt under way.
pub(super) struct Prefilling<B: Backend> {
    pub prefill: Prefill<B>,
    pub table: BlockTable,
    /// What was found on the device; `None` takes nothing from there and leaves nothing.
    pub device: Option<DevicePath>,
    /// Who answers; nobody where only KV is wanted.
    pub decode: Vec<DecodeSpec>,
    pub reply: Reply,
    pub tokens: Arc<[u32]>,
    pub queue_ms: f64,
    pub begun: Stopwatch,
    /// It is done, and is not released.
    pub held: Option<FinishedPrefill>,
    /// Where its part of each pass is counted.
    pub computed: ComputeTime,
}

/// A prefill that is done.
pub(super) struct FinishedPrefill {
    /// Behind its last token.
    pub logits: Vec<f32>,
    /// From its beginning on.
    pub took_ms: f64,
}

/// One answer behind its prompt.
pub(super) struct Tail {
    pub spec: DecodeSpec,
    pub table: BlockTable,
    /// The token generated last: its K and V are not in the blocks yet.
    pub token: u32,
    /// The position of each slot that is filled, of `token`'s, and of each of `draft`'s.
    pub key_positions: Vec<u32>,
    /// How the answer may go on behind `token`: verified in the next pass, and cut to what is right. Its K and V are in no block before,
    /// and those of what is wrong are hidden, then overwritten.
    pub draft: Vec<u32>,
    /// `None`: no drafts are wanted.
    drafter: Option<Drafter>,
    /// Its text, where that is filed.
    pub text: Option<GrowingText>,
    generated: Vec<u32>,
    /// Of a beam: the logits behind its token, until the other beams have theirs.
    heard: Option<Vec<f32>>,
}

/// The blocks of a sequence, in host memory.
pub(super) struct Swapped {
    pub shape: PackedTables,
    /// By distinct block.
    pub bytes: Vec<Vec<u8>>,
}

/// Who waits for a prefill.
#[derive(Clone)]
pub(super) struct Reply(Arc<Mutex<Option<ReplySender>>>);

type ReplySender = oneshot::Sender<Result<PrefillReport, PrefillError>>;

impl Reply {
    pub(super) fn new(sender: ReplySender) -> Self {
        Self(Arc::new(Mutex::new(Some(sender))))
    }

    /// Whether somebody waits.
    pub(super) fn is_wanted(&self) -> bool {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// A caller that went away meanwhile is no error.
    pub(super) fn send(&self, outcome: Result<PrefillReport, PrefillError>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if sender.is_none_or(|sender| sender.send(outcome).is_err()) {
            tracing::debug!("nobody waited for a prefill any more");
        }
    }
}

impl<B: Backend> Prefilling<B> {
    /// Whether a pass can take it along now.
    pub(super) fn is_ready(&mut self) -> bool {
        self.held.is_none() && self.prefill.is_ready()
    }
}

impl<B: Backend> Sequence<B> {
    /// One that begins.
    pub(super) fn new(id: u64, party: Party, urgency: Urgency, state: State<B>) -> Self {
        let (paths, path, swapped, beams) = (Vec::new(), Vec::new(), None, None);
        Self { id, party, urgency, overtaken: 0, hold: None, left_out: 0, state, paths, path, swapped, beams }
    }

    /// Whether its request may turn out not to have its prompt.
    pub(super) fn is_speculative(&self) -> bool {
        self.urgency == Urgency::Speculative
    }

    /// Lets go of what nobody waits for: answers whose readers left, and prompts with nobody left.
    pub(super) fn drop_unwanted(&mut self) {
        let is_over = match &mut self.state {
            State::Prefilling(prefilling) => {
                let left = prefilling.decode.iter().all(|spec| spec.output.is_closed());
                !prefilling.reply.is_wanted() || (left && !prefilling.decode.is_empty())
            }
            // While it is swapped out its tables are a shape, and stay together; so do the beams of one search.
            State::Decoding(tails) if self.swapped.is_some() || self.beams.is_some() => {
                tails.iter().all(|tail| tail.spec.output.is_closed())
            }
            State::Decoding(tails) => {
                tails.retain(|tail| !tail.spec.output.is_closed());
                tails.is_empty()
            }
            State::Ended => true,
        };
        if is_over {
            self.state = State::Ended;
            self.swapped = None;
        }
    }

    /// Answers that it has, or will; one at least.
    pub(super) fn tails(&self) -> usize {
        match &self.state {
            State::Prefilling(prefilling) => prefilling.decode.len().max(1),
            State::Decoding(tails) => tails.len(),
            State::Ended => 0,
        }
    }

    /// The tables of its blocks.
    pub(super) fn tables(&self) -> Vec<&BlockTable> {
        match &self.state {
            State::Prefilling(prefilling) => vec![&prefilling.table],
            State::Decoding(tails) => tails.iter().map(|tail| &tail.table).collect(),
            State::Ended => Vec::new(),
        }
    }

    /// Puts other tables in the place of its own, one for one.
    pub(super) fn set_tables(&mut self, tables: Vec<BlockTable>) {
        let own: Vec<&mut BlockTable> = match &mut self.state {
            State::Prefilling(prefilling) => vec![&mut prefilling.table],
            State::Decoding(tails) => tails.iter_mut().map(|tail| &mut tail.table).collect(),
            State::Ended => Vec::new(),
        };
        own.into_iter().zip(tables).for_each(|(own, table)| *own = table);
    }

    /// Distinct blocks that it holds.
    pub(super) fn blocks(&self) -> usize {
        let tables = self.tables();
        if let [only] = tables[..] {
            return only.blocks().len();
        }
        let mut blocks: Vec<BlockId> = tables.into_iter().flat_map(|table| table.blocks().iter().copied()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len()
    }

    /// Slots of its blocks that no token has: behind the last one of each table.
    pub(super) fn empty_slots(&self) -> usize {
        let behind = |table: &BlockTable, filled: usize| table.capacity_tokens().saturating_sub(filled);
        match &self.state {
            State::Prefilling(prefilling) => behind(&prefilling.table, prefilling.table.tokens()),
            State::Decoding(tails) => tails.iter().map(|tail| behind(&tail.table, tail.slot())).sum(),
            State::Ended => 0,
        }
    }

    /// Rows to compute if its answers were to go on without its blocks, from stored KV. `None`: it has not begun to answer, or what
    /// came of that could differ.
    pub(super) fn rows_to_resume(&self) -> Option<usize> {
        let State::Decoding(tails) = &self.state else { return None };
        let rows = |tail: &Tail| {
            let text = tail.text.as_ref().filter(|_| tail.spec.resume.is_some())?;
            Some(text.unfiled_tokens()? + 1)
        };
        tails.iter().map(rows).sum()
    }

    /// It leaves the device without its blocks. Its prompt is planned again, its answers go on from what was generated.
    pub(super) fn interrupt(&mut self, why: Interruption, error: impl Fn() -> Error) {
        match &mut self.state {
            State::Prefilling(prefilling) => prefilling.reply.send(Err(PrefillError::Interrupted(why))),
            State::Decoding(tails) => tails.iter().for_each(|tail| tail.interrupt(why, &error)),
            State::Ended => {}
        }
        self.state = State::Ended;
        self.swapped = None;
    }

    /// Tells whoever waits that it failed.
    pub(super) fn fail(&mut self, error: impl Fn() -> Error) {
        match &mut self.state {
            State::Prefilling(prefilling) => prefilling.reply.send(Err(PrefillError::Failed(error()))),
            State::Decoding(tails) => tails.iter().for_each(|tail| {
                tail.send(Decoded::Failed(error()));
            }),
            State::Ended => {}
        }
        self.state = State::Ended;
    }
}

impl Tail {
    /// Draws the first token of an answer to `prompt`. `None`: the answer is complete already, or nobody wants it.
    pub(super) fn begin(
        spec: DecodeSpec,
        prompt: &[u32],
        table: BlockTable,
        mut key_positions: Vec<u32>,
        text: Option<GrowingText>,
        logits: &[f32],
    ) -> Option<Self> {
        if spec.max_tokens == 0 {
            // Nobody may listen any more.
            drop(spec.output.try_send(Decoded::End(FinishReason::Length)));
            return None;
        }
        key_positions.push(key_positions.last().map_or(0, |last| last + 1));
        let (draft, generated) = (Vec::new(), Vec::new());
        let (drafter, heard) = (None, None);
        let mut tail = Self { spec, table, token: 0, key_positions, draft, drafter, text, generated, heard };
        if !tail.take(logits) {
            return None;
        }
        // One token needs none.
        tail.drafter = Drafter::new(&tail.spec.lookup, prompt);
        let token = tail.token;
        tail.drafter.iter_mut().for_each(|drafter| drafter.push(token));
        Some(tail)
    }

    /// A beam that goes on with `token`.
    pub(super) fn of_beam(spec: DecodeSpec, table: BlockTable, key_positions: Vec<u32>, token: u32) -> Self {
        let (draft, generated) = (Vec::new(), Vec::new());
        Self { spec, table, token, key_positions, draft, drafter: None, text: None, generated, heard: None }
    }

    /// Takes the logits behind a beam's token, whose K and V are in place now.
    pub(super) fn hear(&mut self, logits: Vec<f32>) {
        self.key_positions.push(self.key_positions.last().map_or(0, |last| last + 1));
        self.heard = Some(logits);
    }

    /// The logits behind a beam's token, once they are known.
    pub(super) fn heard(&self) -> Option<&[f32]> {
        self.heard.as_deref()
    }

    /// The slot of its last token.
    pub(super) fn slot(&self) -> usize {
        self.key_positions.len() - 1 - self.draft.len()
    }

    /// Whether its table has to grow before its token is written.
    pub(super) fn more_blocks(&self) -> usize {
        let grows = self.slot() >= self.table.capacity_tokens();
        // A last block that others hold is copied first.
        usize::from(grows || (self.slot() < self.table.capacity_tokens() && !self.table.is_writable(self.slot())))
    }

    /// Blocks that its draft needs beside those.
    pub(super) fn draft_blocks(&self) -> usize {
        let blocks = |slots| more_blocks(&self.table, slots);
        blocks(self.slot() + 1 + self.draft.len()) - blocks(self.slot() + 1)
    }

    /// Proposes a draft: how many tokens, and how likely each is right.
    pub(super) fn propose(&mut self) -> (usize, f64) {
        self.drop_draft();
        // The last token of all is nobody's draft: what is drawn behind a draft is one more.
        let left = self.spec.max_tokens.saturating_sub(self.generated.len() + 1);
        let Some(drafter) = &mut self.drafter else { return (0, 0.0) };
        let (draft, share) = drafter.propose(left);
        self.draft.extend(draft);
        let next = self.key_positions.last().map_or(0, |last| last + 1);
        self.key_positions.extend((next..).take(draft.len()));
        (self.draft.len(), share)
    }

    /// Keeps so many tokens of its draft.
    pub(super) fn keep_draft(&mut self, tokens: usize) {
        let dropped = self.draft.len().saturating_sub(tokens);
        self.draft.truncate(tokens);
        self.key_positions.truncate(self.key_positions.len() - dropped);
    }

    pub(super) fn drop_draft(&mut self) {
        self.keep_draft(0);
    }

    /// The rows `rows` of `logits` stand behind its token and each of its draft's, whose K and V are in place now. Draws a token from each
    /// in turn, as without a draft, for as long as the draft has the same; whether the answer goes on.
    pub(super) fn advance(&mut self, logits: &Matrix, rows: Range<usize>) -> bool {
        let draft = std::mem::take(&mut self.draft);
        self.key_positions.truncate(self.key_positions.len() - draft.len());
        let guess = self.drafter.as_ref().and_then(Drafter::guess);
        let (mut right, mut goes_on) = (0, true);
        for row in rows {
            self.key_positions.push(self.key_positions.last().map_or(0, |last| last + 1));
            if let Some(text) = &mut self.text {
                text.push(self.token);
            }
            goes_on = self.take(logits.row(row));
            // An end token was right where it was drafted, but is not part of the answer.
            if !goes_on || draft.get(right) != Some(&self.token) {
                break;
            }
            right += 1;
        }
        if let Some(drafter) = &mut self.drafter {
            match draft.len() {
                // The first token of what could have been verified shows what it would have been worth.
                0 => drafter.learn(usize::from(guess == Some(self.token)), guess != Some(self.token)),
                all => {
                    drafter.learn(right, right < all);
                    drafter.counts().add(all, right);
                }
            }
            let new = self.generated.len().saturating_sub(right + 1);
            self.generated[new..].iter().for_each(|token| drafter.push(*token));
        }
        goes_on
    }

    /// Draws a token from `logits` and sends it; whether the answer goes on.
    fn take(&mut self, logits: &[f32]) -> bool {
        let sampled = match self.spec.sampler.sample(logits) {
            Ok(sampled) => sampled,
            Err(error) => {
                self.send(Decoded::Failed(error));
                return false;
            }
        };
        let id = sampled.id;
        if self.spec.end_tokens.contains(&id) {
            if self.spec.sampler.params().prompt_logprobs.is_some() {
                self.send(Decoded::EndToken(sampled));
            }
            self.send(Decoded::End(FinishReason::Stop));
            return false;
        }
        self.generated.push(id);
        self.token = id;
        if !self.send(Decoded::Token(sampled)) {
            return false;
        }
        if self.spec.sampler.is_complete() {
            self.send(Decoded::End(FinishReason::Stop));
            return false;
        }
        if self.generated.len() >= self.spec.max_tokens {
            self.send(Decoded::End(FinishReason::Length));
            return false;
        }
        true
    }

    /// Hands the answer to whoever goes on with it; it fails where nobody does.
    fn interrupt(&self, why: Interruption, error: impl Fn() -> Error) {
        match &self.spec.resume {
            Some(resume) => {
                let mut spec = self.spec.clone();
                // One that is complete has ended.
                spec.max_tokens -= self.generated.len();
                spec.is_begun = true;
                resume(spec, self.generated.clone(), why);
            }
            None => {
                self.send(Decoded::Failed(error()));
            }
        }
    }

    /// Whether somebody still listens. The channel holds a whole answer, so it is never full.
    pub(super) fn send(&self, item: Decoded) -> bool {
        self.spec.output.try_send(item).is_ok()
    }
}

/// Blocks that a table needs beside its own to hold `slots` slots.
pub(super) fn more_blocks(table: &BlockTable, slots: usize) -> usize {
    slots.div_ceil(BLOCK_TOKENS).saturating_sub(table.capacity_tokens() / BLOCK_TOKENS)
}
