//! What a prompt decides while its rows pass the layers: whether a layer's stored KV is there, which rows go on, what is kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::backend::{Backend, KvBytes, StoredKv};
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::forward::{Keep, Next, Placed, Places, Seen, Selector};
use ragstone_storage::prompt::plan::{Choosing, LoadPlan, SegmentPlan, Source};
use ragstone_storage::store::LayerFrame;
use ragstone_storage::tier::Tier;

use super::choice::{Choice, Looked, is_blended, rows};
use super::mend::Mending;
use super::{FreshSegment, LayerBytes, OpenText, PrefillError, Prefilled, Prompt};
use crate::error::{Error, ErrorKind};
use crate::fusion::{Arrived, LayerLoads, LoadedLayer, Read};
use crate::report::{TierLoad, TokenAccount};

/// One prompt on its way through the layers.
pub(super) struct Walk {
    pub tokens: Arc<[u32]>,
    pub plan: LoadPlan,
    pub loads: LayerLoads,
    pub env: Env,
    /// What ended it.
    pub failure: Option<PrefillError>,
    is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
    pub layers: usize,
    /// Layers that were loaded.
    received: usize,
    /// The layer that was loaded last, until nobody looks at it any more.
    loaded: Option<(usize, LoadedLayer)>,
    /// Layers whose stored KV is in the blocks.
    placed: usize,
    /// Started when a layer was wanted that is not there.
    waits: Option<Stopwatch>,
    /// Slots that are computed from here on, ascending.
    pub active: Vec<u32>,
    pub choice: Choice,
    pub kept: Kept,
    /// What failed on the way, and is computed instead.
    pub mending: Mending,
    /// Rows that each layer computed.
    rows_by_layer: Vec<usize>,
    tally: Tally,
}

impl Walk {
    pub fn new(prompt: Prompt, layers: usize) -> Self {
        let Prompt { tokens, plan, loads, selection, env, files_answer, is_wanted, .. } = prompt;
        let (choice, active) = Choice::new(&plan, selection, layers);
        let reads_from = |choosing: Choosing| choosing.reads_from(plan.ratio, layers as u32);
        let failure = (plan.blended_tokens > 0 && reads_from(plan.choosing) > reads_from(selection.choosing(layers)))
            .then(|| {
                let message = "a plan does not read layers that its selection looks at";
                PrefillError::Failed(Error::new(ErrorKind::Internal, message))
            });
        Self {
            kept: Kept::new(&plan, layers, files_answer),
            tokens,
            plan,
            loads,
            env,
            failure,
            is_wanted,
            layers,
            received: 0,
            loaded: None,
            placed: 0,
            waits: None,
            active,
            choice,
            mending: Mending::default(),
            rows_by_layer: vec![0; layers],
            tally: Tally::default(),
        }
    }

    /// Whether rows may enter `layer`, or the failure that keeps them from it be told. Takes a layer that has come.
    pub fn can_enter(&mut self, layer: usize) -> bool {
        if self.failure.is_some() || self.loads.is_none() || layer < self.received {
            return true;
        }
        let arrived = self.loads.poll();
        self.take_arrived(arrived)
    }

    /// Waits for the layer that is wanted next; whether it came, or the failure of it.
    pub fn wait(&mut self, patience: Duration) -> bool {
        let arrived = self.loads.wait(patience);
        self.take_arrived(arrived)
    }

    fn take_arrived(&mut self, arrived: Arrived) -> bool {
        match arrived {
            Arrived::NotYet => {
                self.waits.get_or_insert_with(|| self.env.stopwatch());
                return false;
            }
            Arrived::Nothing => {
                let error = Error::new(ErrorKind::Internal, "the loader stopped before the last layer");
                self.failure = Some(PrefillError::Failed(error));
            }
            Arrived::Layer(loaded) => self.take_layer(loaded),
        }
        self.tally.load_wait_ms += self.waits.take().map_or(0.0, |waits| waits.elapsed_ms());
        true
    }

    pub fn waits(&self) -> Option<Duration> {
        self.waits.as_ref().map(Stopwatch::elapsed)
    }

    /// Gives up what has not come of the layer that is waited for.
    pub fn give_up_load(&mut self, after: Duration) {
        let mut layer = self.loads.give_up(after);
        if self.may_mend() {
            self.take_arrived(Arrived::Layer(layer));
        } else {
            self.failure = Some(PrefillError::Overdue(layer.lost.drain(..).find_map(|lost| lost.failed)));
        }
    }

    /// A layer has come, of everything but what is lost.
    fn take_layer(&mut self, mut loaded: LoadedLayer) {
        self.tally.add(&loaded);
        let lost = std::mem::take(&mut loaded.lost);
        self.loaded = Some((self.received, loaded));
        self.received += 1;
        if self.received == self.layers {
            // Others may read ahead where it did, long before it is done.
            self.loads = LayerLoads::none();
        }
        if lost.is_empty() {
            return;
        }
        if self.may_mend() {
            self.give_up_segments(lost);
        } else {
            let failed = lost.into_iter().find_map(|lost| lost.failed);
            self.failure = Some(failed.map_or(PrefillError::Overdue(None), PrefillError::LateMiss));
        }
    }

    /// The end of the last segment that is loaded: all of it is written at once.
    pub fn stored_end(&self) -> usize {
        let is_loaded = |segment: &&SegmentPlan| match segment.source {
            Source::Load { tier, .. } | Source::Blend { tier, .. } => tier != Tier::Device,
            Source::Compute => false,
        };
        self.plan.segments.iter().filter(is_loaded).map(|segment| segment.range.end as usize).max().unwrap_or(0)
    }

    /// Slots that are computed from here on, ascending.
    pub fn active(&self) -> &[u32] {
        &self.active
    }

    /// Whether what is not stored runs ahead, to see what it looks at.
    pub fn is_probing(&self) -> bool {
        self.choice.is_probing()
    }

    /// Whether the chunk that stopped did so to wait for the choice, or because its probe has ended; once a stop.
    pub fn takes_stop(&mut self) -> bool {
        self.choice.takes_stop()
    }

    pub fn chooses_on_every_layer(&self) -> bool {
        self.choice.is_gradual()
    }

    /// Makes the choice among the rows that were seen: the slots that go on, ascending. After a probe what was chosen is computed
    /// from the first layer on.
    pub fn choose(&mut self) -> &[u32] {
        let computed;
        let active = match self.is_probing() {
            true => {
                computed = rows(&self.plan, true);
                &computed
            }
            false => &self.active,
        };
        self.active = self.choice.make(active);
        &self.active
    }

    /// Looks at the rows of blended passages: how far their fresh K and V are from the stored ones, where that is `compared`.
    fn look<B: Backend>(&self, seen: &Seen<'_, B>, compared: Option<Compared>) -> Result<Looked, PrefillError> {
        let (mut looked, slots) = (Looked::default(), &seen.places.slots);
        let Some(compared) = compared else {
            self.choice.blended(slots).for_each(|rows| looked.extend(&slots[rows.clone()], &vec![0.0; rows.len()]));
            return Ok(looked);
        };
        let Some((_, loaded)) = &self.loaded else { return Ok(looked) };
        for (segment, frame) in &loaded.frames {
            let segment = &self.plan.segments[*segment];
            if !is_blended(segment) {
                continue;
            }
            let rows = slots.partition_point(|slot| *slot < segment.range.start)
                ..slots.partition_point(|slot| *slot < segment.range.end);
            let pairs = rows.clone().map(|row| (row, (slots[row] - segment.range.start) as usize));
            let deviations = seen.deviation(stored(frame), pairs, compared)?;
            looked.extend(&slots[rows], &deviations);
        }
        Ok(looked)
    }

    fn select_rows<B: Backend>(&mut self, seen: &Seen<'_, B>) -> Result<Keep, PrefillError> {
        let Some(compared) = self.choice.looks_on(seen.layer) else { return Ok(Keep::All) };
        let looked = self.look(seen, compared)?;
        if seen.layer == self.choice.first_layer() {
            // Once their K and V are in place they wait for the choice.
            self.choice.note(&looked);
            return Ok(Keep::All);
        }
        self.active = self.choice.among(seen.layer, &self.active, &looked);
        let slots = seen.places.slots.iter().enumerate();
        let goes_on = |slot: &u32| self.active.binary_search(slot).is_ok();
        Ok(Keep::Rows(slots.filter(|(_, slot)| goes_on(slot)).map(|(row, _)| row).collect()))
    }

    /// Writes the loaded layer into the blocks, each segment rotated to its place. Segments whose tokens are all being
    /// computed on this layer are left out: fresh rows overwrite them at once, or before anybody sees them.
    fn place_loaded<B: Backend>(&mut self, seen: &Seen<'_, B>, pool: &mut B::Pool) -> Result<(), PrefillError> {
        let Some((_, loaded)) = self.loaded.as_ref().filter(|(layer, _)| *layer == seen.layer) else { return Ok(()) };
        let mut parts = Vec::with_capacity(loaded.frames.len());
        for (segment, frame) in loaded.frames.iter().filter(|_| seen.layer >= self.placed) {
            let segment = &self.plan.segments[*segment];
            let range = segment.range.clone();
            let active = self.active.partition_point(|slot| *slot < range.end)
                - self.active.partition_point(|slot| *slot < range.start);
            if active == range.len() {
                continue;
            }
            let positions = (segment.position..).take(range.len()).collect();
            parts.push((Places { slots: range.collect(), positions }, stored(frame)));
        }
        seen.place_all_stored(pool, &parts)?;
        self.placed = self.placed.max(seen.layer + 1);
        if !self.choice.comes_again(seen.layer) {
            self.loaded = None;
        }
        Ok(())
    }

    pub fn finish(mut self, logits: Vec<f32>, computing_ms: f64) -> Prefilled {
        let first = self.choice.first_layer().min(self.layers - 1);
        let counted = &self.rows_by_layer[first..];
        let rows_mean = counted.iter().sum::<usize>().div_ceil(counted.len().max(1));
        let question = self.kept.question(&self.plan, &self.tokens);
        Prefilled {
            logits,
            scores: Vec::new(),
            account: account(&self.plan, rows_mean),
            question,
            is_finite: self.kept.is_finite,
            fresh: self.kept.finish(&self.plan, &self.tokens, computing_ms, rows_mean),
            late_misses: self.mending.late_misses,
            plan: self.plan,
            loads: self.tally.loads(),
            load_wait_ms: self.tally.load_wait_ms,
            computing_ms,
        }
    }
}

impl<B: Backend> Selector<B> for Walk {
    fn before_layer(&mut self, layer: usize) -> Next {
        if !(self.is_wanted)() {
            let error = Error::new(ErrorKind::Cancelled, "nobody waits for the prompt any more");
            self.failure.get_or_insert(PrefillError::Failed(error));
        }
        let goes_on = !self.choice.ends_before(layer)
            && self.can_enter(layer)
            && self.failure.is_none()
            && !self.mending.holds_before(layer);
        if goes_on { Next::Go } else { Next::Stop }
    }

    fn select(&mut self, seen: &Seen<'_, B>) -> Keep {
        self.select_rows(seen).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            Keep::Stop
        })
    }

    fn take(&mut self, seen: &Seen<'_, B>, pool: &mut B::Pool) -> Next {
        if let Err(failure) = self.place_loaded(seen, pool) {
            self.failure = Some(failure);
            return Next::Stop;
        }
        if !self.choice.comes_again(seen.layer) {
            self.kept.take(&self.plan, seen);
            self.rows_by_layer[seen.layer] += seen.places.len();
        }
        Next::Go
    }

    fn select_by_attention(&mut self, seen: &Placed<'_, B>) -> Keep {
        if self.choice.watch(seen) { Keep::Stop } else { Keep::All }
    }
}

fn stored(frame: &LayerFrame) -> StoredKv<'_> {
    StoredKv { dtype: frame.dtype, k: &frame.k, v: &frame.v }
}

/// Fresh KV of the segments that may be kept, gathered chunk by chunk and layer by layer.
pub(super) struct Kept {
    /// By segment, by layer.
    segments: Vec<(usize, Vec<LayerBytes>)>,
    /// The question, where an answer is to be filed behind it.
    question: Option<(usize, Vec<LayerBytes>)>,
    /// What is not a number spreads through a prompt in ways that no key names: then nothing of it is kept.
    is_finite: bool,
}

impl Kept {
    fn new(plan: &LoadPlan, layers: usize, files_answer: bool) -> Self {
        let keep = |segment: &SegmentPlan| segment.store_as.is_some() && !segment.range.is_empty();
        let nothing = || vec![LayerBytes::default(); layers];
        let kept = plan.segments.iter().enumerate().filter(|(_, segment)| keep(segment));
        let segments = kept.map(|(index, _)| (index, nothing())).collect();
        let question = plan.question().filter(|_| files_answer && plan.files_answer);
        Self { segments, question: question.map(|question| (question.segment, nothing())), is_finite: true }
    }

    /// Keeps another segment, of which no layer was computed yet.
    pub fn add(&mut self, segment: usize, layers: usize) {
        self.segments.push((segment, vec![LayerBytes::default(); layers]));
    }

    /// Takes what the chunk has of each segment. Chunks come in the order of their slots, and once a layer.
    fn take<B: Backend>(&mut self, plan: &LoadPlan, seen: &Seen<'_, B>) {
        for (segment, layers) in self.segments.iter_mut().chain(&mut self.question) {
            let (range, slots) = (&plan.segments[*segment].range, &seen.places.slots);
            let rows =
                slots.partition_point(|slot| *slot < range.start)..slots.partition_point(|slot| *slot < range.end);
            if rows.is_empty() {
                continue;
            }
            let KvBytes { k, v, is_finite } = seen.export(rows);
            let (all_k, all_v) = &mut layers[seen.layer];
            all_k.extend(k);
            all_v.extend(v);
            self.is_finite &= is_finite;
        }
    }

    /// What was taken of the question; nothing where values are not finite.
    fn question(&mut self, plan: &LoadPlan, tokens: &[u32]) -> Option<OpenText> {
        let (index, layers) = self.question.take().filter(|_| self.is_finite)?;
        let SegmentPlan { range, parent, .. } = &plan.segments[index];
        let tokens = tokens[range.start as usize..range.end as usize].to_vec();
        Some(OpenText { parent: *parent, tokens, layers })
    }

    fn finish(mut self, plan: &LoadPlan, tokens: &[u32], compute_ms: f64, rows_mean: usize) -> Vec<FreshSegment> {
        // Parents first: what was added on the way stands before others.
        self.segments.sort_by_key(|(index, _)| *index);
        if !self.is_finite {
            tracing::warn!("the model computed keys or values that are not finite: they are not kept");
            return Vec::new();
        }
        let computed = rows_mean.max(1) as f64;
        let finished = self.segments.into_iter().filter_map(|(index, layers)| {
            let segment = &plan.segments[index];
            let range = segment.range.start as usize..segment.range.end as usize;
            let share = range.len() as f64 / computed;
            Some(FreshSegment {
                key: segment.store_as?,
                parent: segment.parent,
                tokens: tokens[range].into(),
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
    reads: BTreeMap<(Tier, usize), Read>,
    load_wait_ms: f64,
}

impl Tally {
    fn add(&mut self, loaded: &LoadedLayer) {
        for (&lane, more) in &loaded.reads {
            let read = self.reads.entry(lane).or_default();
            read.bytes += more.bytes;
            read.elapsed += more.elapsed;
        }
    }

    /// By tier: its lanes' bytes, and the time of the one that took longest.
    fn loads(&self) -> Vec<TierLoad> {
        let mut loads: Vec<TierLoad> = Vec::new();
        for (&(tier, _), &Read { bytes, elapsed }) in &self.reads {
            let ms = elapsed.as_secs_f64() * 1e3;
            match loads.last_mut().filter(|load| load.tier == tier) {
                Some(load) => {
                    load.bytes += bytes;
                    load.ms = load.ms.max(ms);
                }
                None => loads.push(TierLoad { tier, bytes, ms }),
            }
        }
        loads
    }
}
