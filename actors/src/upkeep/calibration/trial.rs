//! One prompt in one way beside its full prefill: on the model itself, with KV of its own, so that nothing of it is filed.

pub(super) mod deviation;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ragstone_env::Env;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};
use ragstone_storage::cost::CostModel;
use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::prompt::plan::{LoadPlan, PlanOptions, Ratio, ReuseMode, plan};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::prompt::residency::{Candidate, CandidateKind, Residency, SegmentResidency, prompt_keys};
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::LayerFrame;
use ragstone_storage::tier::Tier;

use super::search::Outcome;
use crate::answer::blend::Way;
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::{LayerLoads, LoadedLayer};
use crate::prefill::{PrefillError, Prefilled, Prompt, Selection, prefill};

/// Rows that go through the layers together.
const CHUNK_ROWS: usize = 512;
/// Stored KV that is kept for the next trial.
const MOST_KEPT_BYTES: usize = 256 << 20;
/// Tokens of a full prefill's distribution that are kept, the likeliest ones.
const KEPT_TOKENS: usize = 256;
/// The prompt that costs are compared on: so many passages of so many tokens behind a system prompt, and a question.
const COST_PASSAGES: (usize, usize) = (8, 512);
const COST_ROOT: usize = 32;
const COST_QUESTION: usize = 32;

/// A full prefill's answer to a prompt.
struct Reference {
    tokens: Vec<u32>,
    /// For each token of the answer, the likeliest ones in its place: `(token, natural logarithm of its probability)`.
    likely: Vec<Vec<(u32, f32)>>,
}

/// Tries a way of blending on a prompt.
pub(super) type TryWay = Box<dyn FnMut(&Way, usize) -> Result<Outcome> + Send>;

/// A model, and what was computed with it.
pub(super) struct Trials<B: Backend> {
    model: Arc<B>,
    pool: B::Pool,
    blocks: Vec<BlockId>,
    env: Env,
    end_tokens: Vec<u32>,
    most_tokens: usize,
    is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
    tie: f32,
    prompts: Vec<Vec<Segment>>,
    /// All passages that a primer can have.
    fillers: Primer,
    references: HashMap<usize, Reference>,
    stored: HashMap<KvKey, Vec<LayerFrame>>,
    stored_bytes: usize,
}

impl<B: Backend> Trials<B> {
    /// Trials of `prompts`, whose answers have at most `most_tokens` tokens. `is_wanted` is asked before each layer; where it says no, a
    /// trial ends with [`ErrorKind::Cancelled`]. Tokens that a full prefill has within `tie` nats of each other are tied.
    pub fn new(
        model: Arc<B>,
        env: Env,
        (prompts, fillers): (Vec<Vec<Segment>>, Primer),
        (end_tokens, most_tokens): (Vec<u32>, usize),
        is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
        tie: f32,
    ) -> Self {
        let prompt = prompts.iter().map(|prompt| tokens_of(prompt).len()).max().unwrap_or(0) + most_tokens;
        // A passage behind system prompt and primer may be longer than a prompt.
        let passage = prompts.iter().flatten().map(|segment| segment.tokens.len()).max().unwrap_or(0);
        let longest = prompt.max(2 * passage + fillers.tokens() + 1);
        let pool = model.new_pool(longest.div_ceil(BLOCK_TOKENS));
        let blocks = (0..longest.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let (references, stored, stored_bytes) = (HashMap::new(), HashMap::new(), 0);
        Self {
            model,
            pool,
            blocks,
            env,
            end_tokens,
            most_tokens,
            is_wanted,
            tie,
            prompts,
            fillers,
            references,
            stored,
            stored_bytes,
        }
    }

    /// [`Trials::trial`], whatever the device.
    pub fn into_trial(mut self) -> TryWay {
        Box::new(move |way, prompt| self.trial(way, prompt))
    }

    /// The prompt's answer in one way, beside its full prefill's.
    ///
    /// # Errors
    /// `Cancelled`, and those of the model.
    pub fn trial(&mut self, way: &Way, prompt: usize) -> Result<Outcome> {
        if !self.references.contains_key(&prompt) {
            let reference = self.answer_in_full(prompt)?;
            self.references.insert(prompt, reference);
        }
        let segments = self.prompts[prompt].clone();
        let primer = self.fillers.first(way.primer);
        let (plan, loads) = self.fused(&segments, way.selection, way.ratio, &primer)?;
        let done = self.prefill(&segments, plan, loads, way.selection)?;
        let mut given = self.references[&prompt].tokens.clone();
        given.pop();
        let mut logits = done.logits;
        if !given.is_empty() {
            logits.extend(self.forward(&given, tokens_of(&segments).len(), Wanted::All)?);
        }
        Ok(compare(&self.references[&prompt], &logits, self.tie))
    }

    fn answer_in_full(&mut self, prompt: usize) -> Result<Reference> {
        let segments = self.prompts[prompt].clone();
        let residency = Residency { segments: keys(&segments, &Primer::none())?, ..Residency::default() };
        let plan = plan(&residency, &PlanOptions::fixed(0.0, ReuseMode::Off), None)?;
        let done = self.prefill(&segments, plan, LayerLoads::none(), Selection::default())?;
        let mut reference = Reference { tokens: Vec::new(), likely: Vec::new() };
        let (mut logits, mut at) = (done.logits, tokens_of(&segments).len());
        loop {
            let likely = likeliest(&logits)?;
            let token = likely[0].0;
            reference.likely.push(likely);
            reference.tokens.push(token);
            if self.end_tokens.contains(&token) || reference.tokens.len() >= self.most_tokens {
                return Ok(reference);
            }
            logits = self.forward(&[token], at, Wanted::Last)?;
            at += 1;
        }
    }

    /// The plan of a prompt whose passages are stored behind system prompt and primer, and their KV.
    fn fused(
        &mut self,
        segments: &[Segment],
        selection: Selection,
        ratio: f32,
        primer: &Primer,
    ) -> Result<(LoadPlan, LayerLoads)> {
        if self.stored_bytes > MOST_KEPT_BYTES {
            (self.stored, self.stored_bytes) = (HashMap::new(), 0);
        }
        let root = segments.first().filter(|first| first.kind == SegmentKind::SystemPrompt);
        let mut found = keys(segments, primer)?;
        let root_key = root.and_then(|_| found.first()?.chain_key);
        for (at, segment) in found.iter_mut().zip(segments).filter(|(_, segment)| !segment.tokens.is_empty()) {
            let key = match segment.kind {
                // As a look-up has it: the first passage is exact.
                SegmentKind::Passage if at.parent == root_key => {
                    self.store(&Primer::none().prompt(root, segment.clone()))?
                }
                SegmentKind::Passage => self.store(&primer.prompt(root, segment.clone()))?,
                SegmentKind::SystemPrompt => self.store(std::slice::from_ref(segment))?,
                _ => continue,
            };
            let kind = if at.chain_key == Some(key) { CandidateKind::Exact } else { CandidateKind::Standalone };
            at.candidates = vec![in_memory(kind, key)];
        }
        let choosing = selection.choosing(self.model.config().layers);
        let options = PlanOptions { choosing, ..PlanOptions::fixed(ratio, ReuseMode::Auto) };
        let plan = plan(&Residency { segments: found, ..Residency::default() }, &options, None)?;
        let loads = self.loads(&plan);
        Ok((plan, loads))
    }

    /// What a plan takes of what is stored.
    fn loads(&self, plan: &LoadPlan) -> LayerLoads {
        if plan.exact_tokens + plan.blended_tokens == 0 {
            return LayerLoads::none();
        }
        let mut layers: Vec<LoadedLayer> = (0..self.model.config().layers).map(|_| LoadedLayer::default()).collect();
        for planned in &plan.segments {
            let Some(key) = planned.source.key() else { continue };
            for (layer, frame) in layers.iter_mut().zip(&self.stored[&key]) {
                layer.push(0, planned.segment, frame.clone());
            }
        }
        LayerLoads::ready(layers)
    }

    /// Computes a path that is not stored yet, segment by segment; the key of its last one.
    fn store(&mut self, path: &[Segment]) -> Result<KvKey> {
        let empty = || Error::new(ErrorKind::Internal, "an empty segment was to be stored");
        let (last, behind) = path.split_last().ok_or_else(empty)?;
        if !behind.is_empty() {
            self.store(behind)?;
        }
        let end = Segment { kind: SegmentKind::Question, tokens: last.tokens[..1].into(), place: None };
        let prompt: Vec<Segment> = path.iter().cloned().chain([end]).collect();
        let mut found = keys(&prompt, &Primer::none())?;
        let key = found[behind.len()].chain_key.ok_or_else(empty)?;
        if self.stored.contains_key(&key) {
            return Ok(key);
        }
        for at in &mut found[..behind.len()] {
            at.candidates = at.chain_key.map(|key| in_memory(CandidateKind::Exact, key)).into_iter().collect();
        }
        let residency = Residency { segments: found, ..Residency::default() };
        let plan = plan(&residency, &PlanOptions::fixed(0.0, ReuseMode::ExactOnly), None)?;
        let loads = self.loads(&plan);
        let done = self.prefill(&prompt, plan, loads, Selection::default())?;
        let dtype = self.model.kv_layout().dtype;
        for fresh in done.fresh {
            let frame = |(k, v): (Vec<u8>, Vec<u8>)| {
                let bytes = (k.len() + v.len()) as u64;
                LayerFrame { k: k.into(), v: v.into(), dtype, tier: Tier::Host, bytes, elapsed: Duration::ZERO }
            };
            let frames: Vec<LayerFrame> = fresh.layers.into_iter().map(frame).collect();
            self.stored_bytes += frames.iter().map(|frame| frame.bytes as usize).sum::<usize>();
            self.stored.insert(fresh.key, frames);
        }
        match self.stored.contains_key(&key) {
            true => Ok(key),
            false => Err(Error::new(ErrorKind::Internal, "the model's keys and values are not finite")),
        }
    }

    fn prefill(
        &mut self,
        segments: &[Segment],
        plan: LoadPlan,
        loads: LayerLoads,
        selection: Selection,
    ) -> Result<Prefilled> {
        let prompt = Prompt {
            tokens: tokens_of(segments).into(),
            plan,
            loads,
            selection,
            env: self.env.clone(),
            files_answer: false,
            is_wanted: self.is_wanted.clone(),
            scores: None,
        };
        prefill(&*self.model, &mut self.pool, prompt, &self.blocks, CHUNK_ROWS).map_err(|error| match error {
            PrefillError::Failed(error) => error,
            other => Error::new(ErrorKind::Internal, format!("a trial of the calibration broke off: {other:?}")),
        })
    }

    /// Logits behind tokens that follow `at` others.
    fn forward(&mut self, tokens: &[u32], at: usize, wanted: Wanted) -> Result<Vec<f32>> {
        if !(self.is_wanted)() {
            return Err(Error::new(ErrorKind::Cancelled, "the calibration was interrupted"));
        }
        let key_positions: Vec<u32> = (0..(at + tokens.len()) as u32).collect();
        let places = Places::of(at as u32..(at + tokens.len()) as u32, &key_positions);
        let mut forward = Forward::new(&*self.model, &mut self.pool);
        Ok(forward.logits(tokens, places, wanted, &self.blocks, &key_positions)?.as_slice().to_vec())
    }
}

/// Whether passages of the prompt stand elsewhere than where they were computed: only such a prompt tells ways apart.
pub(super) fn blends(prompt: &[Segment]) -> bool {
    prompt.iter().filter(|segment| segment.kind == SegmentKind::Passage && !segment.tokens.is_empty()).count() > 1
}

/// What a prompt over stored passages is predicted to take, of what its full prefill takes.
pub(super) fn cost(costs: &CostModel, layers: usize, selection: Selection, ratio: f32) -> Result<f64> {
    let segment = |kind, tokens: usize, content: u32| Segment {
        kind,
        tokens: (0..tokens as u32).map(|at| content << 16 | at).collect(),
        place: None,
    };
    let (passages, tokens) = COST_PASSAGES;
    let mut segments = vec![segment(SegmentKind::SystemPrompt, COST_ROOT, 0)];
    segments.extend((1..).take(passages).map(|content| segment(SegmentKind::Passage, tokens, content)));
    segments.push(segment(SegmentKind::Question, COST_QUESTION, 99));
    let mut found = keys(&segments, &Primer::none())?;
    for at in &mut found {
        let bytes = u64::from(at.tokens) * costs.prefill.grid.kv_bytes_per_token();
        let candidate =
            |key| Candidate { kind: CandidateKind::Standalone, key, tier: Tier::Host, tiers: vec![Tier::Host], bytes };
        at.candidates = at.standalone_key.map(candidate).into_iter().collect();
    }
    let residency = Residency { segments: found, ..Residency::default() };
    let total_ms = |ratio, reuse| {
        let choosing = selection.choosing(layers);
        let options = PlanOptions { ratio: Ratio::Fixed(ratio), choosing, reuse, declines: false };
        let predicted = plan(&residency, &options, Some(costs))?.prediction;
        Ok::<_, Error>(predicted.map_or(0.0, |prediction| prediction.total_ms))
    };
    Ok(total_ms(ratio, ReuseMode::Auto)? / total_ms(ratio, ReuseMode::Off)?.max(1e-9))
}

/// Keys of what nobody else sees.
fn keys(segments: &[Segment], primer: &Primer) -> Result<Vec<SegmentResidency>> {
    prompt_keys(&Fingerprint([0; 32]), "", primer, segments)
}

/// What this module keeps of an entry.
fn in_memory(kind: CandidateKind, key: KvKey) -> Candidate {
    Candidate { kind, key, tier: Tier::Host, tiers: vec![Tier::Host], bytes: 1 }
}

fn tokens_of(segments: &[Segment]) -> Vec<u32> {
    segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect()
}

/// The likeliest tokens, likeliest first; of equals the first.
fn likeliest(logits: &[f32]) -> Result<Vec<(u32, f32)>> {
    let normalizer = log_sum_exp(logits);
    let mut likely: Vec<(u32, f32)> =
        logits.iter().enumerate().map(|(token, logit)| (token as u32, logit - normalizer)).collect();
    if !normalizer.is_finite() {
        return Err(Error::new(ErrorKind::Internal, "the model's logits are not finite"));
    }
    let by_probability = |left: &(u32, f32), right: &(u32, f32)| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0));
    if likely.len() > KEPT_TOKENS {
        likely.select_nth_unstable_by(KEPT_TOKENS, by_probability);
        likely.truncate(KEPT_TOKENS);
        // What is kept is kept for every token of every prompt.
        likely.shrink_to_fit();
    }
    likely.sort_by(by_probability);
    Ok(likely)
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    greatest + logits.iter().map(|logit| (logit - greatest).exp()).sum::<f32>().ln()
}

/// The answer that `logits`, a row a token, would give beside a full prefill's.
fn compare(reference: &Reference, logits: &[f32], tie: f32) -> Outcome {
    let vocabulary = logits.len() / reference.tokens.len().max(1);
    let (mut differs, mut divergences) = (false, Vec::with_capacity(reference.likely.len()));
    for (likely, logits) in reference.likely.iter().zip(logits.chunks_exact(vocabulary.max(1))) {
        let normalizer = log_sum_exp(logits);
        let own = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a))).unwrap_or(0) as u32;
        let least = likely.last().map_or(0.0, |(_, probability)| *probability);
        let of_own = likely.iter().find(|(token, _)| *token == own).map_or(least, |(_, probability)| *probability);
        differs |= likely[0].1 - of_own > tie || !normalizer.is_finite();
        // What is not kept of the full prefill's distribution weighs next to nothing.
        let nats =
            likely.iter().map(|(token, full)| f64::from(full.exp() * (full - (logits[*token as usize] - normalizer))));
        let nats = nats.sum::<f64>().max(0.0) as f32;
        divergences.push(if normalizer.is_finite() { nats } else { f32::MAX });
    }
    Outcome { differs, divergences }
}

#[cfg(test)]
mod tests;
