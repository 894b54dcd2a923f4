//! Prefill with fusion: runs a load plan layer by layer over a sequence's blocks.
//!
//! Selective recompute after CacheBlend (section 4): the first layer runs over every token of the blended passages; at
//! the second one the fresh K and V are compared with the stored ones, and only the tokens that deviate most go on.
//! (The first layer's K and V come from the embeddings alone, so they never deviate.) The question and whatever is not
//! stored are computed on every layer and do not compete for that budget. What the device has already is in its blocks: nothing
//! is done about it.

mod selection;

use std::sync::Arc;

use ragstone_kernels::attention::{RowGroup, SequenceView};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::{LayerKv, Model};
use ragstone_kernels::pool::{BlockId, KvData, KvPool};
use ragstone_storage::env::Env;
use ragstone_storage::key::KvKey;
use ragstone_storage::plan::{LoadPlan, SegmentPlan, Source};
use ragstone_storage::tier::Tier;

use self::selection::rows_to_keep;
pub use self::selection::{By, DEFAULT_SELECTION_LAYER, FIRST_SELECTION_LAYER, Schedule, Selection};
use crate::error::{Error, ErrorKind};
use crate::fusion::{FailedLoad, LayerLoads, LoadedLayer};
use crate::report::{TierLoad, TokenAccount};

/// One prompt to prefill.
pub struct Prompt<'a> {
    /// Its token ids.
    pub tokens: &'a [u32],
    /// Where each segment's KV comes from.
    pub plan: &'a LoadPlan,
    /// The reused layers, as they arrive.
    pub loads: &'a LayerLoads,
    /// Blocks with room for at least the prompt, the KV of what the plan takes from the device in them.
    pub blocks: &'a [BlockId],
    /// The clock that measures what the KV costs.
    pub env: &'a Env,
    /// Asked before each layer: a prompt that nobody waits for any more is left there.
    pub is_wanted: &'a dyn Fn() -> bool,
}

/// A prefilled prompt.
pub struct Prefilled {
    /// Logits behind the last token, `[vocab]`.
    pub logits: Vec<f32>,
    /// KV that was computed exactly and may be kept.
    pub fresh: Vec<FreshSegment>,
    /// Whether all KV that was to be kept is finite; if not, nothing of the prompt may be kept anywhere.
    pub is_finite: bool,
    /// Where each token's KV came from.
    pub account: TokenAccount,
    /// What was loaded.
    pub loads: Vec<TierLoad>,
    /// Time spent waiting for a layer, in milliseconds.
    pub load_wait_ms: f64,
}

/// One layer's K (before rotary embedding) and V: row-major `[tokens, kv_dim]`, little endian, in the KV dtype.
pub type LayerBytes = (Vec<u8>, Vec<u8>);

/// The KV of one segment as it was computed, in the store's form.
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

/// Why a prefill did not finish.
#[derive(Debug)]
pub enum PrefillError {
    /// A load failed after it was planned: drop that entry and plan again.
    LateMiss(FailedLoad),
    /// What the device had when it was planned was needed for another prompt: plan again without it.
    DeviceMiss,
    /// Everything else.
    Failed(Error),
}

impl From<ragstone_kernels::Error> for PrefillError {
    fn from(error: ragstone_kernels::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs the plan: after it, every slot `0..tokens` of `blocks` holds K and V of its token at its true position.
pub fn prefill(model: &Model, pool: &mut KvPool, prompt: &Prompt<'_>) -> Result<Prefilled, PrefillError> {
    prefill_selecting(model, pool, prompt, Selection::default())
}

/// As [`prefill`], with the recomputed tokens chosen by `selection`.
pub fn prefill_selecting(
    model: &Model,
    pool: &mut KvPool,
    prompt: &Prompt<'_>,
    selection: Selection,
) -> Result<Prefilled, PrefillError> {
    let started = prompt.env.stopwatch();
    let layers = model.config().layers;
    let key_positions: Vec<u32> = (0..prompt.plan.total_tokens).collect();
    let sequence = SequenceView { blocks: prompt.blocks, key_positions: &key_positions };
    let mut rows = active_rows(prompt.plan);
    let mut hidden = model.embed(&rows.iter().map(|row| prompt.tokens[*row as usize]).collect::<Vec<_>>())?;
    let mut fresh = Kept::new(prompt.plan, layers);
    let (mut tally, mut rows_computed) = (Tally::default(), Vec::new());
    for layer in 0..layers {
        if !(prompt.is_wanted)() {
            return Err(PrefillError::Failed(Error::new(ErrorKind::Cancelled, "nobody waits for the prompt any more")));
        }
        let loaded = tally.next_layer(prompt)?;
        let mut kv = model.project_kv(layer, &hidden);
        if let Some(keep) = rows_to_keep(prompt.plan, (layer, layers), &rows, &kv, &loaded, selection)? {
            rows = keep.iter().map(|index| rows[*index]).collect();
            hidden = hidden.select_rows(&keep);
            kv = LayerKv { k: kv.k.select_rows(&keep), v: kv.v.select_rows(&keep) };
        }
        place_loaded(model, pool, layer, prompt, &rows, &loaded)?;
        let (k, v) = (KvData::F32(kv.k.as_slice()), KvData::F32(kv.v.as_slice()));
        pool.write(layer, model.rope(), prompt.blocks, &rows, &rows, k, v)?;
        fresh.take(model, &rows, &kv);
        if layer >= selection.first_layer(layers).min(layers - 1) {
            rows_computed.push(rows.len());
        }
        if layer + 1 == layers {
            // Only the last row's logits are wanted; its K and V, like all others', are in place already.
            hidden = hidden.select_rows(&[hidden.rows() - 1]);
            rows.drain(..rows.len() - 1);
        }
        let group = RowGroup { rows: 0..hidden.rows(), positions: &rows, sequence };
        model.finish_layer(layer, &mut hidden, &[group], pool);
    }
    let logits = model.logits(&hidden).row(0).to_vec();
    let compute_ms = started.elapsed_ms() - tally.load_wait_ms;
    let rows_mean = rows_computed.iter().sum::<usize>().div_ceil(rows_computed.len().max(1));
    Ok(Prefilled {
        logits,
        account: account(prompt.plan, rows_mean),
        is_finite: !fresh.not_finite,
        fresh: fresh.finish(prompt, compute_ms, rows_mean),
        loads: tally.loads,
        load_wait_ms: tally.load_wait_ms,
    })
}

/// Whether every token of a blended segment starts out as a candidate for recomputation.
fn blends_recompute(plan: &LoadPlan) -> bool {
    plan.ratio > 0.0
}

/// Positions that the first layer computes, ascending.
fn active_rows(plan: &LoadPlan) -> Vec<u32> {
    let active = |segment: &&SegmentPlan| match segment.source {
        Source::Compute => true,
        Source::Blend { .. } => blends_recompute(plan),
        Source::Load { .. } => false,
    };
    plan.segments.iter().filter(active).flat_map(|segment| segment.range.clone()).collect()
}

fn segment_of(plan: &LoadPlan, index: usize) -> &SegmentPlan {
    &plan.segments[index]
}

/// Writes a loaded layer into the blocks, each segment rotated to its place. Segments whose tokens are all being
/// computed on this layer are left out: fresh rows would overwrite them at once.
fn place_loaded(
    model: &Model,
    pool: &mut KvPool,
    layer: usize,
    prompt: &Prompt<'_>,
    rows: &[u32],
    loaded: &LoadedLayer,
) -> Result<(), ragstone_kernels::Error> {
    for (segment, frame) in &loaded.frames {
        let range = segment_of(prompt.plan, *segment).range.clone();
        let active = rows.partition_point(|row| *row < range.end) - rows.partition_point(|row| *row < range.start);
        if active == range.len() {
            continue;
        }
        let slots: Vec<u32> = range.collect();
        let (k, v) = (KvData::Bytes(frame.dtype, &frame.k), KvData::Bytes(frame.dtype, &frame.v));
        pool.write(layer, model.rope(), prompt.blocks, &slots, &slots, k, v)?;
    }
    Ok(())
}

/// Fresh KV of the segments that may be kept, gathered layer by layer.
struct Kept {
    segments: Vec<(usize, Vec<LayerBytes>)>,
    plan: Vec<SegmentPlan>,
    /// What is not a number spreads through a prompt in ways that no key names: then nothing of it is kept.
    not_finite: bool,
}

impl Kept {
    fn new(plan: &LoadPlan, layers: usize) -> Self {
        let keep = |segment: &SegmentPlan| segment.file_under.is_some() && !segment.range.is_empty();
        let segments = plan
            .segments
            .iter()
            .enumerate()
            .filter(|(_, segment)| keep(segment))
            .map(|(index, _)| (index, Vec::with_capacity(layers)))
            .collect();
        Self { segments, plan: plan.segments.clone(), not_finite: false }
    }

    fn take(&mut self, model: &Model, rows: &[u32], kv: &LayerKv) {
        let dtype = model.kv_layout().dtype;
        for (segment, layers) in &mut self.segments {
            let range = &self.plan[*segment].range;
            let first = rows.partition_point(|row| *row < range.start);
            let part = |matrix: &Matrix| {
                let cols = matrix.cols();
                let values = &matrix.as_slice()[first * cols..(first + range.len()) * cols];
                (dtype.encode(values), values.iter().all(|value| value.is_finite()))
            };
            let ((k, k_is_finite), (v, v_is_finite)) = (part(&kv.k), part(&kv.v));
            layers.push((k, v));
            self.not_finite |= !(k_is_finite && v_is_finite);
        }
    }

    fn finish(self, prompt: &Prompt<'_>, compute_ms: f64, rows_mean: usize) -> Vec<FreshSegment> {
        if self.not_finite {
            tracing::warn!("the model computed keys or values that are not finite: they are not kept");
            return Vec::new();
        }
        let computed = rows_mean.max(1) as f64;
        let plan = self.plan;
        let finished = self.segments.into_iter().filter_map(|(index, layers)| {
            let segment = &plan[index];
            let range = segment.range.start as usize..segment.range.end as usize;
            let share = range.len() as f64 / computed;
            Some(FreshSegment {
                key: segment.file_under?,
                parent: segment.parent,
                tokens: prompt.tokens[range].into(),
                layers,
                compute_us: (compute_ms * share * 1e3) as u64,
            })
        });
        finished.collect()
    }
}

/// Splits the prompt's tokens by where their KV came from. `computed_rows` is what a mean layer
/// computed, of those that choose.
fn account(plan: &LoadPlan, computed_rows: usize) -> TokenAccount {
    let recomputed = (computed_rows as u32).saturating_sub(plan.computed_tokens);
    TokenAccount {
        exact: plan.exact_tokens,
        blended: plan.blended_tokens - recomputed,
        recomputed,
        computed: plan.computed_tokens,
    }
}

/// Bytes and times of the loads so far.
#[derive(Default)]
struct Tally {
    loads: Vec<TierLoad>,
    load_wait_ms: f64,
}

impl Tally {
    fn next_layer(&mut self, prompt: &Prompt<'_>) -> Result<LoadedLayer, PrefillError> {
        if prompt.loads.is_none() {
            return Ok(LoadedLayer { frames: Vec::new() });
        }
        let waited = prompt.env.stopwatch();
        let loaded = prompt.loads.next().ok_or_else(|| {
            PrefillError::Failed(Error::new(ErrorKind::Internal, "the loader stopped before the last layer"))
        })?;
        self.load_wait_ms += waited.elapsed_ms();
        let loaded = loaded.map_err(PrefillError::LateMiss)?;
        for (_, frame) in &loaded.frames {
            self.add(frame.tier, frame.bytes, frame.elapsed.as_secs_f64() * 1e3);
        }
        Ok(loaded)
    }

    fn add(&mut self, tier: Tier, bytes: u64, ms: f64) {
        match self.loads.iter_mut().find(|load| load.tier == tier) {
            Some(load) => {
                load.bytes += bytes;
                load.ms += ms;
            }
            None => self.loads.push(TierLoad { tier, bytes, ms }),
        }
    }
}

#[cfg(test)]
mod tests;
