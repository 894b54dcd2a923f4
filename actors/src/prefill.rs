//! A prompt's prefill as a state machine: runs a load plan chunk by chunk and layer by layer over a sequence's blocks, and never
//! waits.
//!
//! Selective recompute after CacheBlend (section 4): the first layers run over every token of the blended passages; at the
//! choosing layer the fresh K and V are compared with the stored ones, and only the tokens that deviate most go on. (The first layer's K
//! and V come from the embeddings alone, so they never deviate. Those of the choosing layer stay: they have been computed.) The question and whatever is not
//! stored are computed on every layer and do not compete for that budget. What the device has already is in its blocks: nothing
//! is done about it.
//!
//! ```text
//! rows of the plan -chunk-> [embed .. last layer]                      nothing to choose, or the choice is known
//! rows of the plan -chunk-> [embed .. choosing layer], parked there
//!                  -all parked: choose, join the rows that go on, cut-> [choosing layer .. last layer]
//! rows not stored  -chunk-> [embed .. probed layer], dropped
//!                  -all seen: choose-> [embed .. last layer] over those and what was chosen
//! ```
//!
//! Chunks go in the order of their slots, and a row sees no later one, so it does not matter where they are cut: a row's bits
//! are those of an uncut prefill. A chunk whose layer has not been loaded stops before it and goes on in a later pass.
//!
//! Where it is asked what the model thought of the prompt's tokens, every row is computed and has its logits, and chunks are shorter.

mod choice;
mod mend;
mod scores;
mod selector;
mod walk;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ragstone_env::Env;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::forward::{Chunk, Forward, Outcome, Places, Rider, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::pool::BlockId;
use ragstone_kernels::sampling::Scored;
use ragstone_storage::key::KvKey;
use ragstone_storage::prompt::plan::LoadPlan;

use self::mend::CatchUp;
use self::scores::Scores;
pub(crate) use self::selector::splitmix64;
pub use self::selector::{DEFAULT_SELECTION_LAYER, Rule, Schedule, Selection};
use self::walk::Walk;
use crate::error::{Error, ErrorKind};
use crate::fusion::{FailedLoad, LayerLoads, Waker};
use crate::report::{TierLoad, TokenAccount};

/// How long a driver that has a thread to spare waits for a layer.
const PATIENCE: Duration = Duration::from_secs(60);

/// One prompt to prefill.
pub struct Prompt {
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// Where each segment's KV comes from.
    pub plan: LoadPlan,
    /// The reused layers, as they arrive.
    pub loads: LayerLoads,
    /// Which tokens of blended passages are recomputed.
    pub selection: Selection,
    /// The clock that measures what the KV costs.
    pub env: Env,
    /// Whether the K and V of the question are wanted: an answer is to be filed behind it.
    pub files_answer: bool,
    /// Asked before each layer: a prompt that nobody waits for any more is left there.
    pub is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether it is asked what the model thought of each token but the first, and how many alternatives are to stand beside that. Such a
    /// prompt's plan reuses nothing: what is stored has no logits.
    pub scores: Option<u8>,
}

/// A prefilled prompt.
pub struct Prefilled {
    /// Logits behind the last token, `[vocab]`.
    pub logits: Vec<f32>,
    /// What the model thought of each token but the first, where that was asked.
    pub scores: Vec<Scored>,
    /// KV that was computed exactly and may be kept.
    pub fresh: Vec<FreshSegment>,
    /// The text that the answer goes on with, where that is to be filed.
    pub question: Option<OpenText>,
    /// Whether all KV that was to be kept is finite; if not, nothing of the prompt may be kept anywhere.
    pub is_finite: bool,
    /// Where each token's KV came from.
    pub account: TokenAccount,
    /// What was done in the end: what could not be loaded was computed.
    pub plan: LoadPlan,
    /// What could not be loaded, to be dropped.
    pub late_misses: Vec<FailedLoad>,
    /// What was loaded.
    pub loads: Vec<TierLoad>,
    /// Time spent waiting for a layer, in milliseconds.
    pub load_wait_ms: f64,
    /// Time that passes spent on it, in milliseconds.
    pub computing_ms: f64,
}

/// One layer's K (before rotary embedding) and V: row-major `[tokens, kv_dim]`, little endian, in the KV dtype.
pub type LayerBytes = (Vec<u8>, Vec<u8>);

/// The KV of one segment as it was computed, in the store's form.
#[derive(Clone)]
pub struct FreshSegment {
    /// Its entry's key.
    pub key: KvKey,
    /// What stood before it.
    pub parent: Option<KvKey>,
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// First layer first.
    pub layers: Vec<LayerBytes>,
    /// Its share of the computation, in microseconds.
    pub compute_us: u64,
}

/// Text that is not long enough for a segment yet, and its K and V, in the store's form.
#[derive(Debug, Clone)]
pub struct OpenText {
    /// What stands before it.
    pub parent: Option<KvKey>,
    /// Its token ids.
    pub tokens: Vec<u32>,
    /// First layer first.
    pub layers: Vec<LayerBytes>,
}

/// Why an answer was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// The engine broke, or the device was lost: how often that may be has a bound.
    Broken,
    /// Others need its blocks, and computing it again costs less than keeping them.
    Preempted,
}

/// Why a prefill did not finish.
#[derive(Debug)]
pub enum PrefillError {
    /// A load failed after it was planned: drop that entry and plan again.
    LateMiss(FailedLoad),
    /// What the device had when it was planned was needed for another prompt: plan again without it.
    DeviceMiss,
    /// A load did not come in time: plan again without loads, as what hangs may hang again. `None`: it had not even begun.
    Overdue(Option<FailedLoad>),
    /// It shared a pass with something that broke, or lost what it had on the device: plan again.
    Interrupted(Interruption),
    /// Everything else.
    Failed(Error),
}

impl From<Error> for PrefillError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A prompt between two passes.
pub struct Prefill<B: Backend> {
    walk: Walk,
    key_positions: Vec<u32>,
    /// Slots that the first layer computes, ascending; while a probe runs, those of the probe.
    rows: Vec<u32>,
    /// How many of them a chunk was made of.
    embedded: usize,
    /// The chunk that goes on next; `None` while it is in a pass, or before the next one is embedded.
    chunk: Option<Chunk<B>>,
    /// Chunks before the choosing layer, whose rows wait for the choice.
    parked: Vec<Chunk<B>>,
    /// Chunks that go on behind `chunk`: of chosen rows, or of those that it waited for.
    following: VecDeque<Chunk<B>>,
    /// Rows that are computed instead of a load that failed.
    catch_up: Option<CatchUp<B>>,
    /// The longest new chunk that was asked for: rows that go on together are cut by it.
    chunk_rows: usize,
    /// What the model thinks of the prompt's tokens, where that is asked.
    scores: Option<Scores>,
    computing_ms: f64,
}

impl<B: Backend> Prefill<B> {
    /// A prompt before its first pass.
    pub fn new(backend: &B, prompt: Prompt) -> Self {
        let key_positions = prompt.plan.key_positions();
        let config = backend.config();
        let scores = prompt.scores.map(|alternatives| Scores::new(alternatives, config.vocab_size));
        let mut walk = Walk::new(prompt, config.layers);
        if scores.is_some() && walk.plan.computed_tokens != walk.plan.total_tokens {
            let error = Error::new(ErrorKind::Internal, "a prompt whose tokens are to be described reuses stored KV");
            walk.failure.get_or_insert(PrefillError::Failed(error));
        }
        Self {
            rows: walk.active().to_vec(),
            walk,
            key_positions,
            embedded: 0,
            chunk: None,
            parked: Vec::new(),
            following: VecDeque::new(),
            catch_up: None,
            chunk_rows: 1,
            scores,
            computing_ms: 0.0,
        }
    }

    /// Whether a pass can take it along now, or its failure be told; if not, the layer that it waits for has not been loaded.
    pub fn is_ready(&mut self) -> bool {
        let layer = self.chunk.as_ref().map_or(0, Chunk::layer);
        let is_ready = self.walk.can_enter(layer);
        self.mend();
        is_ready
    }

    /// Whether its walk has met a device that is lost.
    pub fn has_met_loss(&self) -> bool {
        matches!(&self.walk.failure, Some(PrefillError::Failed(error)) if error.kind() == ErrorKind::DeviceLost)
    }

    /// How long it has been waiting for a layer.
    pub fn waits(&self) -> Option<Duration> {
        self.walk.waits()
    }

    /// Gives up the load that it waits for: its entry is a late miss.
    pub fn give_up_load(&mut self, after: Duration) {
        self.walk.give_up_load(after);
    }

    /// Calls `waker` whenever a layer has come.
    pub fn wake(&self, waker: Waker) {
        self.walk.loads.wake(waker);
    }

    /// Rows of the chunk under way, which goes on as it is.
    pub fn chunk(&self) -> Option<usize> {
        self.chunk.as_ref().map(|chunk| chunk.places().len())
    }

    /// Rows that the next pass takes along, if new chunks have `budget` at most.
    pub fn next_rows(&self, budget: usize) -> usize {
        match &self.chunk {
            Some(chunk) => chunk.places().len(),
            None => budget.min(self.most_rows()).min(self.to_embed().len()),
        }
    }

    /// Rows of a new chunk at most.
    pub fn most_rows(&self) -> usize {
        self.scores.as_ref().map_or(usize::MAX, Scores::most_rows)
    }

    /// Slots that chunks are still to be made of, ascending: of those that catch up first.
    fn to_embed(&self) -> &[u32] {
        match &self.catch_up {
            Some(catch_up) => &catch_up.rows[catch_up.embedded..],
            None => &self.rows[self.embedded..],
        }
    }

    /// Rows that are still to be embedded or on their way, with the share that will be chosen of those that are parked; while a probe
    /// runs, the probe's alone, as no pass takes more.
    pub fn rows_left(&self) -> usize {
        let under_way = self.chunk.as_ref().map_or(0, |chunk| chunk.places().len());
        let following = self.following.iter().map(|chunk| chunk.places().len()).sum::<usize>();
        let parked = self.parked.iter().map(|chunk| chunk.places().len()).sum::<usize>();
        let chosen = (parked as f32 * self.walk.plan.ratio).ceil() as usize;
        let behind = self.catch_up.as_ref().map_or(0, CatchUp::rows_left);
        self.rows.len() - self.embedded + behind + under_way + following + chosen
    }

    /// Slots that must have blocks before a pass takes such rows along.
    pub fn slots_needed(&self, rows: usize) -> usize {
        let end = match &self.chunk {
            Some(chunk) => chunk.places().slots.last().copied(),
            None => self.to_embed()[..self.next_rows(rows)].last().copied(),
        };
        self.walk.stored_end().max(end.map_or(0, |slot| slot as usize + 1))
    }

    /// The prompt's plan.
    pub fn plan(&self) -> &LoadPlan {
        &self.walk.plan
    }

    /// What the next pass takes along: the chunk under way, or a new one of at most `rows` rows.
    ///
    /// # Errors
    /// Where the prompt names a token that the model does not have.
    pub fn rider<'a>(
        &'a mut self,
        backend: &B,
        rows: usize,
        blocks: &'a [BlockId],
    ) -> Result<Rider<'a, B>, PrefillError> {
        let chunk = match self.chunk.take() {
            // As long as it is, whatever was asked for.
            Some(chunk) => chunk,
            None => {
                self.chunk_rows = self.chunk_rows.max(rows);
                self.embed(backend, rows.max(1))?
            }
        };
        let end = chunk.places().slots.last().map_or(0, |slot| *slot as usize + 1);
        Ok(Rider { chunk, blocks, key_positions: &self.key_positions[..end], selector: Some(&mut self.walk) })
    }

    fn embed(&mut self, backend: &B, rows: usize) -> Result<Chunk<B>, PrefillError> {
        let rows = &self.to_embed()[..self.next_rows(rows)];
        let tokens: Vec<u32> = rows.iter().map(|row| self.walk.tokens[*row as usize]).collect();
        let (count, places) = (rows.len(), Places::of(rows.iter().copied(), &self.key_positions));
        let embedded = match &mut self.catch_up {
            Some(catch_up) => &mut catch_up.embedded,
            None => &mut self.embedded,
        };
        *embedded += count;
        let is_last = self.catch_up.is_none() && self.embedded == self.rows.len() && !self.walk.is_probing();
        let wanted = match &self.scores {
            Some(_) => Wanted::All,
            None if is_last => Wanted::Last,
            None => Wanted::Nothing,
        };
        Ok(Chunk::embed(backend, &tokens, places, wanted)?)
    }

    /// Takes back what a pass made of its chunk: the logits behind the last token, once they are there.
    ///
    /// # Errors
    /// Whatever ended it: a late miss, a caller that left, a write that was refused.
    pub fn passed(
        &mut self,
        backend: &B,
        outcome: Outcome<B>,
        logits: &Matrix,
    ) -> Result<Option<Vec<f32>>, PrefillError> {
        if let Some(failure) = self.walk.failure.take() {
            return Err(failure);
        }
        match outcome {
            Outcome::Failed(error) => return Err(error.into()),
            Outcome::Stopped(chunk) if self.walk.takes_stop() => match self.walk.is_probing() {
                true => self.end_probe(),
                false => {
                    self.parked.push(chunk);
                    self.chunk = self.following.pop_front();
                    if self.chunk.is_none() && self.embedded == self.rows.len() {
                        self.choose(backend);
                    }
                }
            },
            Outcome::Stopped(chunk) if self.catch_up.is_some() => self.caught_up(backend, chunk),
            Outcome::Stopped(chunk) => {
                self.chunk = Some(chunk);
                self.mend();
            }
            Outcome::Done(_) if self.walk.is_probing() => self.end_probe(),
            Outcome::Done(rows) => {
                if let Some(scores) = &mut self.scores {
                    scores.take(logits, rows.clone(), &self.walk.tokens);
                }
                self.chunk = self.following.pop_front();
                if self.chunk.is_none() && self.embedded == self.rows.len() {
                    return Ok(Some(logits.row(rows.end - 1).to_vec()));
                }
            }
        }
        Ok(None)
    }

    /// A chunk of the probe has seen what it was to see. Behind the last one what was chosen is computed, from the first layer on.
    fn end_probe(&mut self) {
        if self.embedded == self.rows.len() {
            self.rows = self.walk.choose().to_vec();
            self.embedded = 0;
        }
    }

    /// All rows have reached the choosing layer: those that go on become chunks again.
    fn choose(&mut self, backend: &B) {
        let kept = self.walk.choose();
        let is_kept = |slot: &u32| kept.binary_search(slot).is_ok();
        let parked = std::mem::take(&mut self.parked);
        let places: Vec<(usize, usize)> = parked
            .iter()
            .enumerate()
            .flat_map(|(chunk, parked)| {
                let rows = parked.places().slots.iter().enumerate().filter(|(_, slot)| is_kept(slot));
                rows.map(move |(row, _)| (chunk, row))
            })
            .collect();
        let chunk_rows = if self.walk.chooses_on_every_layer() { places.len() } else { self.chunk_rows };
        let last = places.len().div_ceil(chunk_rows.max(1)) - 1;
        for (index, part) in places.chunks(chunk_rows.max(1)).enumerate() {
            let of = |chunk| part.iter().filter(|(of, _)| *of == chunk).map(|(_, row)| *row).collect::<Vec<_>>();
            let parts = parked.iter().enumerate().map(|(chunk, parked)| (parked, of(chunk)));
            let parts: Vec<_> = parts.filter(|(_, rows)| !rows.is_empty()).collect();
            let wanted = if index == last { Wanted::Last } else { Wanted::Nothing };
            self.following.push_back(Chunk::join(backend, &parts, wanted));
        }
        self.chunk = self.following.pop_front();
        self.walk.mending.is_too_late = !self.following.is_empty() || self.walk.chooses_on_every_layer();
    }

    /// Counts time that passes spent on it.
    pub fn spend_ms(&mut self, ms: f64) {
        self.computing_ms += ms;
    }

    /// What it came to, once [`Prefill::passed`] gave the logits.
    pub fn finish(self, logits: Vec<f32>) -> Prefilled {
        let scores = self.scores.map(Scores::into_found).unwrap_or_default();
        Prefilled { scores, ..self.walk.finish(logits, self.computing_ms) }
    }
}

/// Runs a prompt to its end on this thread, which may wait for loads: after it, every slot of `blocks` that has a token holds its
/// K and V at its true position. Chunks have at most `chunk_rows` rows.
///
/// # Errors
/// Whatever ends it.
pub fn prefill<B: Backend>(
    backend: &B,
    pool: &mut B::Pool,
    prompt: Prompt,
    blocks: &[BlockId],
    chunk_rows: usize,
) -> Result<Prefilled, PrefillError> {
    let mut prefill = Prefill::new(backend, prompt);
    loop {
        if !prefill.is_ready() {
            if !prefill.walk.wait(PATIENCE) {
                prefill.give_up_load(PATIENCE);
            }
            prefill.mend();
        }
        let started = prefill.walk.env.stopwatch();
        let rider = prefill.rider(backend, chunk_rows, blocks)?;
        let mut passed = Forward::new(backend, &mut *pool).pass(vec![rider]);
        let outcome = passed.outcomes.pop().unwrap_or(Outcome::Done(0..0));
        prefill.spend_ms(started.elapsed_ms());
        if let Some(logits) = prefill.passed(backend, outcome, &passed.logits)? {
            return Ok(prefill.finish(logits));
        }
    }
}

#[cfg(test)]
mod tests;
