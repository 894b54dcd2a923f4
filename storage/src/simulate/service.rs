//! One workload through all tiers of a node, as the store and the engine run them: a tree for each tier, entries written through to the
//! slower tiers when they are computed, loads that take time and are declined where computing is faster, and blending.
//!
//! Look-up, plan and bookkeeping are the service's own functions ([`crate::prompt::plan::plan`], [`crate::tier::resident`]); a prompt takes what its plan predicts
//! (`plan/predict.rs`), on an engine that does nothing else. What follows a prompt is done before the next one comes: entries are
//! on disk, and passages that can be blended next time have their standalone entry, whose computation is counted apart.

mod report;
mod tiers;

use std::sync::Arc;

use serde::Serialize;

pub use self::report::{ServiceAtCapacity, ServiceComparison, ServiceReport, ServiceRow, compare_service};
use self::tiers::PinnedEntries;
pub(super) use self::tiers::{Objects, Tiers};
use super::workload::key_of;
use super::{Request, Workload};
use crate::Result;
use crate::cost::CostModel;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::policy::PolicyKind;
use crate::prompt::plan::{LoadPlan, PlanOptions, Ratio, Recurring, ReuseMode, SegmentPlan, Source, Why, plan};
use crate::prompt::residency::{CandidateKind, Residency, SegmentResidency};
use crate::prompt::uses_of;
use crate::segment::SegmentKind;
use crate::store::AdmissionRule;
use crate::tier::{EntrySummary, Tier};

/// Requests between two reports of progress.
const REPORT_EVERY: usize = 256;

/// The tiers of a node. A size of zero: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ServiceTiers {
    /// Blocks on the device, those of the prompt that runs among them, in bytes.
    pub device_bytes: u64,
    /// Host memory, in bytes.
    pub host_bytes: u64,
    /// The disk, in bytes.
    pub disk_bytes: u64,
    /// Whether there is object storage, which keeps everything.
    pub has_bucket: bool,
}

/// What to replay.
#[derive(Debug)]
pub struct ServiceReplay<'a> {
    /// The requests.
    pub workload: &'a Workload,
    /// What prefills and reads take, taken for measured.
    pub costs: &'a CostModel,
    /// The tiers.
    pub tiers: ServiceTiers,
    /// Who leaves device, host and disk first.
    pub policy: PolicyKind,
    /// What the disk and the bucket keep, and whether slow loads are declined.
    pub admission: AdmissionRule,
    /// How prompts are planned; `declines` follows from `admission`.
    pub options: PlanOptions,
    /// Tokens of the primer that standalone entries are computed behind; its own entry is not counted. 0: there is none.
    pub primer_tokens: u32,
}

/// Bytes by tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BytesIn {
    /// Host memory.
    pub host: u64,
    /// The disk.
    pub disk: u64,
    /// Object storage.
    pub object: u64,
}

/// What came of it. Shares are 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ServiceOutcome {
    /// Of the full prefills' time, what was saved: 1 - sum of predicted times / sum of full prefills' times.
    pub saved: f64,
    /// Time to first token, predicted: median and 95th percentile, in milliseconds.
    pub ttft_ms_p50: f64,
    /// The 95th percentile of it.
    pub ttft_ms_p95: f64,
    /// Of these times, what was waited for loads.
    pub waited: f64,
    /// Of the prompts' tokens, those that were loaded as they are, or were on the device.
    pub exact_tokens: f64,
    /// Of the prompts' tokens, those of blended passages.
    pub blended_tokens: f64,
    /// Of the prompts' tokens, those that were computed, the recomputed share of blended passages among them.
    pub computed_tokens: f64,
    /// Loads declined because computing is faster.
    pub declined: u64,
    /// Read by prompts.
    pub read_bytes: BytesIn,
    /// Written, promotions to a faster tier among it.
    pub written_bytes: BytesIn,
    /// Time spent on standalone entries, beside that of the prompts: a share of the latter.
    pub background: f64,
}

/// What is summed up of a request.
#[derive(Debug, Clone, Copy)]
struct Planned {
    exact_tokens: f64,
    blended_tokens: f64,
    computed_tokens: f64,
    declined: u64,
    total_ms: f64,
    wait_ms: f64,
    full_ms: f64,
}

impl Planned {
    fn of(plan: &LoadPlan, full_ms: f64) -> Self {
        let prediction = plan.prediction.unwrap_or_default();
        let blended_tokens = f64::from(plan.blended_tokens);
        Self {
            exact_tokens: f64::from(plan.exact_tokens),
            blended_tokens,
            computed_tokens: f64::from(plan.computed_tokens) + blended_tokens * f64::from(plan.ratio),
            declined: plan.segments.iter().filter(|segment| segment.why == Why::SlowToLoad).count() as u64,
            total_ms: prediction.total_ms,
            wait_ms: prediction.wait_ms,
            full_ms,
        }
    }
}

/// Runs the workload. `progress` is told how many requests are done.
///
/// # Errors
/// `InvalidInput` if the ratio is not within 0 to 1.
pub fn replay_service(run: &ServiceReplay<'_>, progress: &dyn Fn(usize)) -> Result<ServiceOutcome> {
    let mut service = Service::new(run.costs, &run.node(), Tiers::new(run.tiers, run.policy));
    let mut planned = Vec::with_capacity(run.workload.requests.len());
    for (index, request) in run.workload.requests.iter().enumerate() {
        let (plan, full_ms) = service.answer(run.workload, request)?;
        planned.push(Planned::of(&plan, full_ms));
        if index.is_multiple_of(REPORT_EVERY) {
            progress(index);
        }
    }
    Ok(service.outcome(run.workload, &planned))
}

impl ServiceReplay<'_> {
    fn node(&self) -> NodeOptions {
        let Self { admission, options, primer_tokens, .. } = *self;
        NodeOptions { admission, options, primer_tokens }
    }
}

/// How a node plans and keeps: see [`ServiceReplay`].
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeOptions {
    pub admission: AdmissionRule,
    pub options: PlanOptions,
    pub primer_tokens: u32,
}

/// The service between two requests.
pub(super) struct Service {
    node: NodeOptions,
    pub costs: CostModel,
    pub tiers: Tiers,
    tenant: Arc<str>,
    recurring: Recurring,
    background_us: f64,
}

/// A request between its look-up and what is kept of it.
pub(super) struct Begun {
    pub plan: LoadPlan,
    residency: Residency,
    held: PinnedEntries,
}

/// A read, and the entry that was read.
struct Load {
    tier: Tier,
    bytes: u64,
    entry: EntrySummary,
    /// Whether others may leave a faster tier for it.
    makes_room: bool,
}

/// A segment of a path, to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fresh {
    pub key: KvKey,
    parent: Option<KvKey>,
    tokens: u32,
    /// Tokens before it.
    before: u32,
}

impl Service {
    pub fn new(costs: &CostModel, node: &NodeOptions, tiers: Tiers) -> Self {
        let mut costs = costs.clone();
        costs.prefill.is_measured = true;
        costs.reads.iter_mut().for_each(|(_, was_seen)| *was_seen = true);
        let options = PlanOptions { declines: node.admission == AdmissionRule::Cost, ..node.options };
        Self {
            node: NodeOptions { options, ..*node },
            costs,
            tiers,
            tenant: "".into(),
            recurring: Recurring::default(),
            background_us: 0.0,
        }
    }

    /// What happens to a request, from its look-up to what is kept of it: its plan, and what computing all of it takes, in milliseconds.
    fn answer(&mut self, workload: &Workload, request: &Request) -> Result<(LoadPlan, f64)> {
        let begun = self.begin(workload, request)?;
        let full_ms = self.full_ms(&begun.residency)?;
        let (plan, beside) = self.end(begun);
        for fresh in beside {
            self.background_us += self.compute_beside(fresh);
        }
        Ok((plan, full_ms))
    }

    /// Looks up and plans a request, and loads what it has; what it found stays where it is until [`end`](Self::end).
    pub fn begin(&mut self, workload: &Workload, request: &Request) -> Result<Begun> {
        let residency = self.look_up(workload, request);
        let plan = plan(&residency, &self.node.options, Some(&self.costs))?;
        let held = self.tiers.hold(&residency);
        for load in self.loads(&residency, &plan) {
            self.tiers.load(&load);
        }
        self.tiers.record(&uses_of(&plan, &self.costs.prefill));
        Ok(Begun { plan, residency, held })
    }

    /// Lets a request go that comes to nothing.
    pub fn break_off(&mut self, begun: Begun) {
        self.tiers.let_go(begun.held);
    }

    /// Keeps what a prefill computed. What is worth computing beside it, when nobody waits, is given back.
    pub fn end(&mut self, begun: Begun) -> (LoadPlan, Vec<Fresh>) {
        let Begun { plan, residency, held } = begun;
        self.tiers.let_go(held);
        self.tiers.keep_on_device(&plan, &self.costs);
        for segment in &plan.segments {
            if let Some(key) = segment.store_as {
                let tokens = segment.range.len() as u32;
                self.keep(Fresh { key, parent: segment.parent, tokens, before: segment.position });
            }
        }
        let mut beside = self.precompute(&residency, &plan);
        beside.extend(self.make_exact(&residency, &plan));
        (plan, beside)
    }

    /// Computes and keeps an entry when nobody waits: what that takes, in microseconds; 0 where it is there.
    pub fn compute_beside(&mut self, fresh: Fresh) -> f64 {
        let us = self.beside_us(fresh);
        if us > 0.0 {
            self.keep(fresh);
        }
        us
    }

    /// What computing it takes, in microseconds; 0 where it is there.
    pub fn beside_us(&self, fresh: Fresh) -> f64 {
        let computes = !self.tiers.has(&fresh.key);
        if computes { self.costs.prefill.prefill_us(f64::from(fresh.before), f64::from(fresh.tokens)) } else { 0.0 }
    }

    /// What computing all of the prompt takes, in milliseconds.
    fn full_ms(&self, residency: &Residency) -> Result<f64> {
        let nothing = |at: &SegmentResidency| SegmentResidency { candidates: Vec::new(), ..at.clone() };
        let nothing = Residency { segments: residency.segments.iter().map(nothing).collect(), ..Residency::default() };
        let options = PlanOptions::fixed(0.0, ReuseMode::Off);
        Ok(plan(&nothing, &options, Some(&self.costs))?.prediction.unwrap_or_default().total_ms)
    }

    /// As [`crate::prompt::residency::look_up_prompt`] does it.
    fn look_up(&self, workload: &Workload, request: &Request) -> Residency {
        let keys: Vec<KvKey> = request.path.iter().map(|node| key_of(*node)).collect();
        let on_device = self.tiers.on_device(&keys);
        let mut segments = Vec::with_capacity(keys.len() + 1);
        for (index, (key, node)) in keys.iter().zip(&request.path).enumerate() {
            let is_root = index == 0 && workload.has_system_prompt;
            let kind = if is_root { SegmentKind::SystemPrompt } else { workload.kind };
            let tokens = workload.tokens(*node);
            let standalone = (kind == SegmentKind::Passage)
                .then(|| workload.standalone_key(&request.path, *node, self.node.primer_tokens > 0));
            let (mut candidates, standalone_tier) =
                self.tiers.candidates(*key, standalone, index < on_device, self.bytes(tokens));
            if self.node.primer_tokens > 0 && index == usize::from(workload.has_system_prompt) {
                candidates.retain(|candidate| candidate.kind != CandidateKind::Standalone);
            }
            segments.push(SegmentResidency {
                kind,
                tokens,
                parent: index.checked_sub(1).map(|before| keys[before]),
                chain_key: Some(*key),
                standalone_key: standalone,
                standalone_tier,
                candidates,
                position: None,
                device_key: None,
            });
        }
        segments.push(SegmentResidency {
            kind: SegmentKind::Question,
            tokens: request.question_tokens,
            parent: keys.last().copied(),
            chain_key: None,
            standalone_key: None,
            standalone_tier: None,
            candidates: Vec::new(),
            position: None,
            device_key: None,
        });
        Residency { segments, ..Residency::default() }
    }

    /// What the plan reads.
    fn loads(&self, residency: &Residency, plan: &LoadPlan) -> Vec<Load> {
        let primed = root_tokens(residency) + self.node.primer_tokens;
        let load = |segment: &SegmentPlan| {
            let (key, tier, is_exact) = match segment.source {
                Source::Load { key, tier } => (key, tier, true),
                Source::Blend { key, tier } => (key, tier, false),
                Source::Compute => return None,
            };
            if tier == Tier::Device {
                return None;
            }
            // A blend does not read the layers that it computes anyway, unless the entry is to move to a faster tier.
            let layers = self.costs.prefill.layers.max(1);
            let from = if is_exact { 0 } else { plan.choosing.reads_from(plan.ratio, layers) };
            if from >= layers {
                return None;
            }
            let read = match tier {
                Tier::Host => segment.bytes * u64::from(layers - from) / u64::from(layers),
                _ => segment.bytes,
            };
            let (parent, before) = if is_exact { (segment.parent, segment.position) } else { (plan.root_key, primed) };
            let entry = self.summary(Fresh { key, parent, tokens: segment.range.len() as u32, before });
            Some(Load { tier, bytes: read, entry, makes_room: !plan.is_well_kept_in(tier) })
        };
        plan.segments.iter().filter_map(load).collect()
    }

    /// Standalone entries of passages that could have been blended with them.
    fn precompute(&self, residency: &Residency, plan: &LoadPlan) -> Vec<Fresh> {
        let before = root_tokens(residency) + self.node.primer_tokens;
        let missing = plan.missing_standalone.iter().map(|index| &residency.segments[*index]);
        let fresh = |at: &SegmentResidency| {
            Some(Fresh { key: at.standalone_key?, parent: plan.root_key, tokens: at.tokens, before })
        };
        missing.filter_map(fresh).collect()
    }

    /// The exact chain of a prompt that was blended before.
    fn make_exact(&mut self, residency: &Residency, plan: &LoadPlan) -> Vec<Fresh> {
        let wanted = self.recurring.note(&residency.segments, plan);
        let chain = residency.segments[..wanted].iter().zip(&plan.segments);
        let fresh = |(at, planned): (&SegmentResidency, &SegmentPlan)| {
            Some(Fresh { key: at.chain_key?, parent: at.parent, tokens: at.tokens, before: planned.position })
        };
        chain.filter_map(fresh).collect()
    }

    fn keep(&mut self, fresh: Fresh) {
        let entry = self.summary(fresh);
        self.tiers.keep(&entry, self.node.admission, &self.costs);
    }

    /// An entry as the tiers' trees see it.
    fn summary(&self, fresh: Fresh) -> EntrySummary {
        let compute_us = self.costs.prefill.prefill_us(f64::from(fresh.before), f64::from(fresh.tokens));
        EntrySummary {
            key: fresh.key,
            parent: fresh.parent,
            segment: SegmentDigest([0; 16]),
            fingerprint: Fingerprint([0; 32]),
            tenant: self.tenant.clone(),
            tokens: fresh.tokens,
            layers: self.costs.prefill.layers,
            bytes: self.bytes(fresh.tokens),
            // Of one prefill.
            compute_us: compute_us as u64,
            created_unix_ms: 0,
        }
    }

    fn bytes(&self, tokens: u32) -> u64 {
        u64::from(tokens) * self.costs.prefill.grid.kv_bytes_per_token()
    }

    fn outcome(&self, workload: &Workload, planned: &[Planned]) -> ServiceOutcome {
        let sum = |of: fn(&Planned) -> f64| planned.iter().map(of).sum::<f64>();
        let prompts = workload.requests.iter().map(|request| workload.prompt_tokens(request));
        let tokens: f64 = prompts.map(f64::from).sum();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let mut times: Vec<f64> = planned.iter().map(|at| at.total_ms).collect();
        times.sort_by(f64::total_cmp);
        let percentile = |of: usize| times.get((times.len() * of).div_ceil(100).saturating_sub(1)).copied();
        let spent = sum(|at| at.total_ms);
        ServiceOutcome {
            saved: 1.0 - share(spent, sum(|at| at.full_ms)),
            ttft_ms_p50: percentile(50).unwrap_or(0.0),
            ttft_ms_p95: percentile(95).unwrap_or(0.0),
            waited: share(sum(|at| at.wait_ms), spent),
            exact_tokens: share(sum(|at| at.exact_tokens), tokens),
            blended_tokens: share(sum(|at| at.blended_tokens), tokens),
            computed_tokens: share(sum(|at| at.computed_tokens), tokens),
            declined: planned.iter().map(|at| at.declined).sum(),
            read_bytes: self.tiers.read,
            written_bytes: self.tiers.written,
            background: share(self.background_us / 1e3, spent),
        }
    }
}

/// How prompts are planned where nothing is blended, and where `ratio` of it is recomputed at least, the first `layer` layers as a whole.
pub fn reuse_options(blend: Option<(f32, u32)>) -> PlanOptions {
    let (ratio, layer) = blend.unwrap_or((0.0, 0));
    let reuse = if blend.is_some() { ReuseMode::Auto } else { ReuseMode::ExactOnly };
    let mut options = PlanOptions::fixed(ratio, reuse);
    options.ratio = Ratio::AtLeast(ratio);
    options.choosing.layer = layer;
    options
}

fn root_tokens(residency: &Residency) -> u32 {
    residency.segments.first().filter(|at| at.kind == SegmentKind::SystemPrompt).map_or(0, |at| at.tokens)
}

#[cfg(test)]
mod tests;
