//! The prefill worker: puts a prompt into the engine's queue and waits for its prefill.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{DecodeSpec, Engine, Job, PrefillReport, Urgency};
use crate::admission::caller::Caller;
use crate::admission::turns::ComputeTime;
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::LayerLoads;
use crate::prefill::{PrefillError, Selection};
use crate::speculation::Hold;
use crate::worker::Service;
use ragstone_env::Stopwatch;
use ragstone_storage::prompt::plan::LoadPlan;
use ragstone_storage::tier::device::DevicePath;

/// The worker between the pipeline and the engine thread.
pub struct Prefiller {
    /// The engine.
    pub engine: Engine,
}

/// One planned prompt.
pub struct PrefillRequest {
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// Where each segment's KV comes from.
    pub plan: LoadPlan,
    /// The reused layers.
    pub loads: LayerLoads,
    /// What is on the device already; `None` takes nothing from there and leaves nothing.
    pub device: Option<DevicePath>,
    /// Which tokens of blended passages are recomputed.
    pub selection: Selection,
    /// The answers that go on behind the prompt.
    pub decode: Vec<DecodeSpec>,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Who asks.
    pub caller: Caller,
    /// Who goes first.
    pub urgency: Urgency,
    /// How long somebody waits for it.
    pub within: Duration,
    /// Of a speculative prefill: what lets it go on.
    pub hold: Option<Hold>,
    /// Where its part of each pass is counted, whatever comes of it.
    pub computed: ComputeTime,
}

impl Service for Prefiller {
    const NAME: &'static str = "prefill";
    const ENDS_WITH_CALLER: bool = true;
    type Request = PrefillRequest;
    type Reply = Result<PrefillReport, PrefillError>;

    async fn handle(self: Arc<Self>, request: PrefillRequest) -> Result<Self::Reply> {
        let (reply, prefilled) = oneshot::channel();
        let PrefillRequest {
            tokens,
            plan,
            loads,
            device,
            selection,
            decode,
            tenant,
            caller,
            urgency,
            within,
            hold,
            computed,
        } = request;
        let queued = Stopwatch::start();
        self.engine.submit(
            Job {
                tokens,
                plan,
                loads,
                device,
                selection,
                decode,
                tenant,
                caller,
                reply,
                queued,
                within,
                hold,
                computed,
            },
            urgency,
        )?;
        prefilled.await.map_err(|_| Error::new(ErrorKind::Cancelled, "the service stopped while it was answering"))
    }
}
