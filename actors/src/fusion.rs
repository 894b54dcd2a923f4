//! The fusion worker: finds stored KV for a prompt, plans, and loads layer by layer ahead of the computation.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ragstone_storage::plan::{LoadPlan, PlanOptions, ReuseMode, Source, plan};
use ragstone_storage::residency::{Residency, Segment, SegmentResidency, SegmentState, look_up_prompt};
use ragstone_storage::store::{EntryReader, KvStore, LayerFrame};
use ragstone_storage::tier::device::{DevicePath, DeviceTier};
use ragstone_storage::tier::{EntryId, Precision, Tier};
use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind, Result};
use crate::worker::Service;

/// How many layers are loaded ahead of the one that computes. One waits in the channel while the next is being read,
/// so that the load of layer `l + 1` hides behind the computation of layer `l`; more would only hold memory.
const LAYERS_AHEAD: usize = 1;

/// Plans prompts and starts their loads.
pub struct Fusor {
    /// Where KV is kept.
    pub store: KvStore,
    /// What the engine's pool keeps, asked before the store.
    pub device: DeviceTier,
    /// Blocking threads for look-ups and loads.
    pub runtime: Handle,
}

/// One prompt to fuse.
pub struct Fuse {
    /// The prompt.
    pub segments: Arc<[Segment]>,
    /// Part of every key: separates tenants.
    pub tenant: String,
    /// What may be reused, and the recompute ratio.
    pub options: PlanOptions,
    /// Whether blocks on the device may be taken, and this prompt's left there.
    pub on_device: bool,
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
}

/// The layers of a prompt's reused segments, first layer first.
pub struct LayerLoads {
    receiver: Option<Receiver<Result<LoadedLayer, FailedLoad>>>,
}

/// One layer of every reused segment.
pub struct LoadedLayer {
    /// `(index of the segment in the plan, its frame)`.
    pub frames: Vec<(usize, LayerFrame)>,
}

/// A load that failed after look-up had found it: a late miss.
#[derive(Debug)]
pub struct FailedLoad {
    /// The entry that could not be read.
    pub id: EntryId,
    /// Where it was found.
    pub tier: Tier,
    /// How close it was to what was computed.
    pub precision: Precision,
    /// Why.
    pub error: ragstone_storage::Error,
}

impl LayerLoads {
    /// A plan without loads.
    pub fn none() -> Self {
        Self { receiver: None }
    }

    /// Waits for the next layer. `None` where the plan loads nothing, or the loader is gone.
    pub fn next(&self) -> Option<Result<LoadedLayer, FailedLoad>> {
        self.receiver.as_ref()?.recv().ok()
    }

    /// Whether there is something to wait for.
    pub fn is_none(&self) -> bool {
        self.receiver.is_none()
    }
}

impl Service for Fusor {
    const NAME: &'static str = "fusion";
    const ENDS_WITH_CALLER: bool = false;
    type Request = Fuse;
    type Reply = Fused;

    async fn handle(self: Arc<Self>, fuse: Fuse) -> Result<Fused> {
        let runtime = self.runtime.clone();
        let planned = runtime.spawn_blocking(move || self.fuse(&fuse)).await;
        match planned {
            Ok(fused) => fused,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
        }
    }
}

impl Fusor {
    fn fuse(&self, fuse: &Fuse) -> Result<Fused> {
        // On this thread, which may wait for a disk; the request's own may not.
        self.store.write_uses();
        let started = self.store.env().stopwatch();
        let mut residency = tracing::info_span!("look_up").in_scope(|| self.look_up(fuse))?;
        let look_up_ms = started.elapsed_ms();
        let started = self.store.env().stopwatch();
        let plan = tracing::info_span!("plan").in_scope(|| plan(&residency, &fuse.options))?;
        let plan_ms = started.elapsed_ms();
        let device = residency.device.take();
        let loads = self.start_loads(&plan, &residency)?;
        Ok(Fused { plan, loads, device, look_up_ms, plan_ms })
    }

    /// Without reuse nothing is looked up: the tiers' counters stay what users of the cache made them.
    fn look_up(&self, fuse: &Fuse) -> Result<Residency> {
        if fuse.options.reuse == ReuseMode::Off {
            return Ok(nothing_resident(&fuse.segments));
        }
        let device = Some(&self.device).filter(|_| fuse.on_device);
        let precision = if fuse.options.reuse == ReuseMode::Auto { Precision::Lossy } else { Precision::Exact };
        Ok(look_up_prompt(&self.store, device, precision, &fuse.tenant, &fuse.segments)?)
    }

    /// Reads what the plan reuses on a blocking thread; the readers pin it until then. What is on the device is not read.
    fn start_loads(&self, plan: &LoadPlan, residency: &Residency) -> Result<LayerLoads> {
        let mut readers = Vec::new();
        for planned in &plan.segments {
            let key = match planned.source {
                Source::Load { tier: Tier::Device, .. } | Source::Compute => continue,
                Source::Load { key, .. } | Source::Blend { key, .. } => key,
            };
            let found = residency.found.get(&key).ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("entry {key} was planned without having been found"))
            })?;
            if matches!(planned.source, Source::Load { .. }) && !found.entry.is_exact() {
                let message = format!("entry {key} is only close to what was computed, and was planned as exact");
                return Err(Error::new(ErrorKind::Internal, message));
            }
            readers.push((planned.segment, self.store.open_found(found)));
        }
        if readers.is_empty() {
            return Ok(LayerLoads::none());
        }
        let (sender, receiver) = sync_channel(LAYERS_AHEAD);
        self.runtime.spawn_blocking(move || load(&readers, &sender));
        Ok(LayerLoads { receiver: Some(receiver) })
    }
}

/// The residency of a prompt that may reuse nothing and keep nothing: it has no keys.
fn nothing_resident(segments: &[Segment]) -> Residency {
    let segment = |segment: &Segment| SegmentResidency {
        kind: segment.kind,
        tokens: segment.tokens.len() as u32,
        parent: None,
        chain_key: None,
        behind_root_key: None,
        behind_root: None,
        state: SegmentState::Missing,
    };
    Residency { segments: segments.iter().map(segment).collect(), ..Residency::default() }
}

/// Reads layer after layer and hands each on; ends early when the receiver is gone or a read fails.
fn load(readers: &[(usize, EntryReader)], sender: &SyncSender<Result<LoadedLayer, FailedLoad>>) {
    let layers = readers.iter().map(|(_, reader)| reader.header().layers).max().unwrap_or(0);
    for layer in 0..layers {
        let loaded = load_layer(readers, layer);
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
    }
}

fn load_layer(readers: &[(usize, EntryReader)], layer: u32) -> Result<LoadedLayer, FailedLoad> {
    let mut frames = Vec::with_capacity(readers.len());
    for (segment, reader) in readers {
        let frame = reader.layer(layer);
        let frame = frame.map_err(|error| FailedLoad {
            id: reader.id(),
            tier: reader.tier(),
            precision: reader.precision(),
            error,
        })?;
        frames.push((*segment, frame));
    }
    Ok(LoadedLayer { frames })
}
