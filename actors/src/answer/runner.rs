//! A prompt from its segments to its first token: look up, plan, load, prefill; and again without what failed on the way.

use std::sync::Arc;
use std::time::Duration;

use ragstone_storage::prompt::plan::{LoadPlan, PlanOptions, Ratio, ReuseMode};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::segment::Segment;
use ragstone_storage::store::KvStore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument;

use crate::admission::caller::Caller;
use crate::admission::deadline::remaining;
use crate::admission::turns::ComputeTime;
use crate::engine::{DecodeSpec, PrefillReport, PrefillRequest, Prefiller, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::{FailedLoad, Fuse, Fused, Fusor};
use crate::prefill::Interruption;
use crate::prefill::{PrefillError, Selection};
use crate::report::Without;
use crate::speculation::Hold;
use crate::upstream::Upstream;
use crate::worker::Supervised;

/// How often a prompt is planned again because another one broke a pass that they shared.
const MOST_DISTURBANCES: usize = 3;

/// How long whoever is to find them no more waits until entries that could not be loaded are dropped: long for a disk that works.
const DROP_PATIENCE: Duration = Duration::from_millis(500);

/// Runs prompts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runner {
    pub fusor: Supervised<Fusor>,
    pub prefiller: Supervised<Prefiller>,
    pub store: KvStore,
    /// The engine that answers in the place of this one: then nothing runs here.
    pub upstream: Option<Arc<Upstream>>,
}

/// A prompt to run.
#[derive(Clone)]
pub(crate) struct Run {
    pub segments: Arc<[Segment]>,
    pub caller: Caller,
    pub tenant: Arc<str>,
    /// What standalone entries are computed behind.
    pub primer: Primer,
    pub options: PlanOptions,
    pub selection: Selection,
    /// What is invalidated after this epoch is not left on the device.
    pub found_in: u64,
    pub urgency: Urgency,
    pub deadline: Instant,
    /// Whether to say what would happen without each tier.
    pub explain: bool,
    /// Of a speculative prompt: what lets it go on. One that is not released ends at whatever would have it begin again.
    pub hold: Option<Hold>,
    /// Where what it takes of the engine's time is counted, whatever comes of it.
    pub computed: ComputeTime,
}

impl Run {
    fn fuse(&self, options: PlanOptions, on_device: bool) -> Fuse {
        Fuse {
            segments: self.segments.clone(),
            tenant: self.tenant.to_string(),
            primer: self.primer.clone(),
            options,
            on_device,
            explain: self.explain,
            speculative: self.is_speculative(),
        }
    }

    /// Whether the device is asked, and keeps what is computed: of prompts with modules only where those are taken as they are, as the
    /// keys there say.
    fn goes_on_device(&self) -> bool {
        let takes_modules = self.options.reuse == ReuseMode::Auto && self.options.ratio == Ratio::Fixed(0.0);
        takes_modules || self.segments.iter().all(|segment| segment.place.is_none())
    }

    /// Whether the request may still turn out not to have this prompt.
    fn is_speculative(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| !hold.is_released())
    }
}

/// A prefilled prompt.
pub(crate) struct Ran<T> {
    pub prefill: PrefillReport,
    /// Where its answers come out.
    pub outputs: T,
    pub look_up_ms: f64,
    pub plan_ms: f64,
    pub late_misses: u32,
    /// What was computed in the place of entries that are being dropped is filed behind that.
    pub dropping: Option<Dropping>,
    /// What is predicted if a tier had nothing, where that was asked.
    pub without: Vec<Without>,
}

impl Runner {
    /// Looks up, plans, loads and prefills. An entry that turns out bad while it loads is dropped, and computed or, where it is too late
    /// for that, planned around.
    /// `decode` makes the answers that are to follow, anew for each attempt.
    pub(crate) async fn run<T>(
        &self,
        run: &Run,
        decode: impl Fn(&LoadPlan, &[u32]) -> (Vec<DecodeSpec>, T),
    ) -> Result<Ran<T>> {
        if let Some(upstream) = &self.upstream {
            return Err(upstream.not_here());
        }
        let Run { segments, caller, tenant, selection, urgency, deadline, .. } = run;
        let tokens: Arc<[u32]> = segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        let (mut options, mut on_device) = (run.options, run.goes_on_device());
        let (mut late_misses, mut disturbances) = (0, 0);
        // Every late miss hides an entry in one of three tiers, and a segment has at most two entries.
        while late_misses <= 6 * segments.len() as u32 + 2 {
            let Fused { plan, loads, device, look_up_ms, plan_ms, without } =
                self.fusor.ask(run.fuse(options, on_device), remaining(*deadline)?).await?;
            if device.is_some() && self.store.epoch() != run.found_in {
                // A passage may have gone since it was found; the device would not know that this prompt still has it.
                on_device = false;
                continue;
            }
            let (decode, outputs) = decode(&plan, &tokens);
            let request = PrefillRequest {
                tokens: tokens.clone(),
                plan,
                loads,
                device,
                selection: *selection,
                decode,
                caller: *caller,
                tenant: tenant.clone(),
                urgency: if run.is_speculative() { Urgency::Speculative } else { *urgency },
                within: remaining(*deadline)?,
                hold: run.hold.clone(),
                computed: run.computed.clone(),
            };
            let prefill = tracing::info_span!("prefill", tokens = tokens.len() as i64);
            match self.prefiller.ask(request, remaining(*deadline)?).instrument(prefill).await? {
                Ok(mut prefill) => {
                    let failed = std::mem::take(&mut prefill.late_misses);
                    late_misses += failed.len() as u32;
                    // The answer goes on meanwhile.
                    let dropping = self.drop_failed(failed);
                    return Ok(Ran { prefill, outputs, look_up_ms, plan_ms, late_misses, dropping, without });
                }
                Err(PrefillError::Failed(error)) => return Err(error),
                Err(PrefillError::DeviceMiss) => on_device = false,
                Err(PrefillError::Interrupted(_)) if run.is_speculative() => {
                    return Err(Error::new(ErrorKind::Cancelled, "others needed the blocks of a speculative prefill"));
                }
                // Others needed its blocks: until its time is up it is tried again.
                Err(PrefillError::Interrupted(Interruption::Preempted)) => {}
                Err(PrefillError::Interrupted(Interruption::Broken)) if disturbances < MOST_DISTURBANCES => {
                    disturbances += 1;
                }
                Err(PrefillError::Interrupted(Interruption::Broken)) => {
                    let message = "the engine failed on this request or on one beside it; the service goes on";
                    return Err(Error::new(ErrorKind::Internal, message));
                }
                Err(PrefillError::LateMiss(failed)) => {
                    late_misses += 1;
                    Dropping::end(self.drop_failed(vec![failed])).await;
                }
                Err(PrefillError::Overdue(failed)) => {
                    late_misses += 1;
                    options.reuse = ReuseMode::Off;
                    Dropping::end(self.drop_failed(failed.into_iter().collect())).await;
                }
            }
        }
        Err(Error::new(ErrorKind::Internal, "stored KV kept failing while it was loaded; run `ragstone cache status`"))
    }

    /// Begins to drop entries that could not be loaded.
    fn drop_failed(&self, failed: Vec<FailedLoad>) -> Option<Dropping> {
        if failed.is_empty() {
            return None;
        }
        let store = self.store.clone();
        Some(Dropping(tokio::task::spawn_blocking(move || {
            for FailedLoad { id, tier, precision, error } in failed {
                tracing::warn!(key = %id.key, %tier, %error, "stored KV could not be loaded; it is dropped and recomputed");
                store.late_miss_of(&id, tier, precision, error.kind());
            }
        })))
    }
}

/// Entries that are being dropped; they are, whoever waits for it.
pub(crate) struct Dropping(JoinHandle<()>);

impl Dropping {
    /// Waits until they are. A tier that hangs must not hang others: they are removed all the same once it goes on.
    pub(crate) async fn end(dropping: Option<Self>) {
        let Some(Self(dropped)) = dropping else { return };
        match tokio::time::timeout(DROP_PATIENCE, dropped).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "dropping bad entries failed"),
            Err(_) => tracing::warn!("a tier does not answer; what follows does not wait for it"),
        }
    }

    /// Whether they are.
    #[cfg(test)]
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}
