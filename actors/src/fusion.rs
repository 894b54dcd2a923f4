//! The fusion worker: finds stored KV for a prompt, plans, and loads layer by layer ahead of the computation.

mod loads;

use std::sync::Arc;

use ragstone_storage::cost::CostModel;
use ragstone_storage::prompt::plan::{LoadPlan, PlanOptions, ReuseMode, Source, plan, predict_without};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::prompt::residency::{Residency, SegmentResidency, look_up_prompt};
use ragstone_storage::segment::Segment;
use ragstone_storage::store::KvStore;
use ragstone_storage::tier::device::{DevicePath, DeviceTier};
use ragstone_storage::tier::{Precision, Tier};
use tokio::runtime::Handle;

pub use self::loads::{Arrived, FailedLoad, LayerLoads, LoadedLayer, Lost, Read, ReadAhead, Waker};
pub(crate) use self::loads::{WantedEntry, layer_loads};
use crate::error::{Error, ErrorKind, Result};
use crate::report::Without;
use crate::worker::Service;

/// Plans prompts and starts their loads.
pub struct Fusor {
    store: KvStore,
    /// What the engine's pool keeps, asked before the store.
    device: DeviceTier,
    /// Blocking threads for look-ups and loads.
    runtime: Handle,
    /// Memory for what is read ahead of its use.
    ahead: ReadAhead,
}

/// One prompt to fuse.
pub struct Fuse {
    /// The prompt.
    pub segments: Arc<[Segment]>,
    /// Part of every key: separates tenants.
    pub tenant: String,
    /// What standalone entries were computed behind.
    pub primer: Primer,
    /// What may be reused, and the recompute ratio.
    pub options: PlanOptions,
    /// Whether blocks on the device may be taken, and this prompt's left there.
    pub on_device: bool,
    /// Whether to say what would happen without each tier.
    pub explain: bool,
    /// Whether the request may turn out not to have this prompt: nothing that it reads moves to a faster tier.
    pub speculative: bool,
}

/// A planned prompt whose loads are under way.
pub struct Fused {
    /// What comes from where.
    pub plan: LoadPlan,
    /// The layers as they arrive, in order.
    pub loads: LayerLoads,
    /// What is on the device already, for the engine; `None` where nothing may be taken or left there.
    pub device: Option<DevicePath>,
    /// Time spent looking for stored KV.
    pub look_up_ms: f64,
    /// Time spent deciding.
    pub plan_ms: f64,
    /// What is predicted if a tier had nothing, where that was asked.
    pub without: Vec<Without>,
}

impl Service for Fusor {
    const NAME: &'static str = "fusion";
    const ENDS_WITH_CALLER: bool = false;
    type Request = Fuse;
    type Reply = Fused;

    async fn handle(self: Arc<Self>, fuse: Fuse) -> Result<Fused> {
        let (runtime, span) = (self.runtime.clone(), tracing::Span::current());
        let planned = runtime.spawn_blocking(move || span.in_scope(|| self.fuse(&fuse))).await;
        match planned {
            Ok(fused) => fused,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
        }
    }
}

impl Fusor {
    /// Over a store, what the engine's pool keeps, blocking threads for look-ups and loads, and memory for what is read ahead.
    pub fn new(store: KvStore, device: DeviceTier, runtime: Handle, ahead: ReadAhead) -> Self {
        Self { store, device, runtime, ahead }
    }

    fn fuse(&self, fuse: &Fuse) -> Result<Fused> {
        // On this thread, which may wait for a disk; the request's own may not.
        self.store.write_uses();
        let started = self.store.env().stopwatch();
        let mut residency = tracing::info_span!("look_up").in_scope(|| self.look_up(fuse))?;
        let look_up_ms = started.elapsed_ms();
        let started = self.store.env().stopwatch();
        let costs = self.store.costs().model();
        let options = PlanOptions { declines: fuse.options.declines && self.store.may_decline(), ..fuse.options };
        let plan = tracing::info_span!("plan").in_scope(|| plan(&residency, &options, Some(&costs)))?;
        let plan_ms = started.elapsed_ms();
        let without = if fuse.explain { without(&residency, &plan, &options, &costs)? } else { Vec::new() };
        let device = residency.device.take();
        let loads = self.start_loads(&plan, &residency, fuse.speculative)?;
        Ok(Fused { plan, loads, device, look_up_ms, plan_ms, without })
    }

    /// Without reuse nothing is looked up: the tiers' counters stay what users of the cache made them.
    fn look_up(&self, fuse: &Fuse) -> Result<Residency> {
        if fuse.options.reuse == ReuseMode::Off {
            return Ok(nothing_resident(&fuse.segments));
        }
        let device = Some(&self.device).filter(|_| fuse.on_device);
        let precision = if fuse.options.reuse == ReuseMode::Auto { Precision::Lossy } else { Precision::Exact };
        look_up_prompt(&self.store, device, precision, &fuse.tenant, &fuse.primer, &fuse.segments)
    }

    /// Reads what the plan reuses on blocking threads; the readers pin it until then. What is on the device is not read, nor layers that a
    /// blend computes as a whole.
    fn start_loads(&self, plan: &LoadPlan, residency: &Residency, speculative: bool) -> Result<LayerLoads> {
        let (mut wanted, mut layers) = (Vec::new(), 0);
        for planned in &plan.segments {
            let key = match planned.source {
                Source::Load { tier: Tier::Device, .. }
                | Source::Blend { tier: Tier::Device, .. }
                | Source::Compute => {
                    continue;
                }
                Source::Load { key, .. } | Source::Blend { key, .. } => key,
            };
            let found = residency.found.get(&key).ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("entry {key} was planned without having been found"))
            })?;
            if matches!(planned.source, Source::Load { .. }) && !found.entry.is_exact() {
                let message = format!("entry {key} is only close to what was computed, and was planned as exact");
                return Err(Error::new(ErrorKind::Internal, message));
            }
            layers = found.header.layers;
            let from = match planned.source {
                Source::Blend { .. } => plan.choosing.reads_from(plan.ratio, layers),
                Source::Load { .. } | Source::Compute => 0,
            };
            if from < layers {
                let reader = match plan.is_well_kept_in(found.tier) {
                    _ if speculative => self.store.open_in_place(found),
                    true => self.store.open_sparing(found),
                    false => self.store.open_found(found),
                };
                wanted.push(WantedEntry { segment: planned.segment, reader, from });
            }
        }
        if wanted.is_empty() {
            return Ok(LayerLoads::none());
        }
        let (loads, lanes) = layer_loads(wanted, layers, &self.ahead);
        for lane in lanes {
            self.runtime.spawn_blocking(lane);
        }
        Ok(loads)
    }
}

/// What is predicted if each tier in turn had nothing of the prompt, of those that the plan takes something from.
fn without(residency: &Residency, plan: &LoadPlan, options: &PlanOptions, costs: &CostModel) -> Result<Vec<Without>> {
    let mut without = Vec::new();
    for tier in Tier::ALL {
        if let Some(predicted) = predict_without(residency, plan, options, costs, tier)? {
            without.push(Without { tier, predicted });
        }
    }
    Ok(without)
}

/// The residency of a prompt that may reuse nothing and keep nothing: it has no keys.
fn nothing_resident(segments: &[Segment]) -> Residency {
    let segment = |segment: &Segment| SegmentResidency {
        kind: segment.kind,
        tokens: segment.tokens.len() as u32,
        parent: None,
        chain_key: None,
        standalone_key: None,
        standalone_tier: None,
        device_key: None,
        candidates: Vec::new(),
        position: segment.place.as_ref().map(|place| place.start),
    };
    Residency { segments: segments.iter().map(segment).collect(), ..Residency::default() }
}
