//! What every request can reach: the opened store and the settings, who may use them, places for work, and who is still being answered.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actix_web::{HttpMessage, HttpRequest};
use metrics_exporter_prometheus::PrometheusHandle;
use ragstone_actors::admission::turns::{Place, Places};
use ragstone_actors::{Caller, Ragstone, Settings};
use ragstone_env::{Env, Stopwatch};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::audit::AuditLog;
use super::body::Bodies;
use super::exposition::Labelled;
use super::identity::Visitor;
use super::mcp::Running;
use super::visitor::Allowed;
use crate::api::TOKEN_HEADER;
use crate::config::{Config, KeyMode, Setting};
use crate::conversations::Conversations;
use crate::error::{Error, ErrorKind, Result};
use crate::ingest::Ingestor;
use crate::lanes::{InLane, Lanes, Work};
use crate::telemetry;

/// Clients of `/v1/events`; one caller has no more than its share of them.
const MOST_WATCHERS: usize = 64;

/// Who may use a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Everybody who reaches the port.
    Public,
    /// The data folder's owner: other commands of the same user.
    Owner,
    /// The same, as long as a command's own work takes.
    Passing,
    /// Only the process that started it.
    Private,
}

impl Audience {
    /// Whether it goes on with unfinished jobs by itself. A command does so beside its own work alone.
    pub fn resumes(self) -> bool {
        matches!(self, Self::Public | Self::Owner)
    }
}

/// What every request can reach.
pub struct State {
    /// Clock and randomness.
    pub env: Env,
    /// As configured.
    pub settings: Settings,
    /// The bounds on request bodies.
    pub bodies: Arc<Bodies>,
    /// Which names and pages may reach this service.
    pub allowed: Allowed,
    /// Whether requests need a key.
    pub keys: KeyMode,
    /// With keys, whether `/metrics` needs none.
    pub metrics_open: bool,
    /// How long a client may leave unread what was sent to it.
    pub write_timeout: Duration,
    /// Processor time that parsing one file may take.
    pub file_seconds: u64,
    /// Where it is written who asked for what.
    pub audit: Option<AuditLog>,
    /// Every setting, and where it comes from.
    pub given: Vec<Setting>,
    /// Whoever copies the tiers' figures into the metrics holds its one permit.
    pub publishing: Arc<Semaphore>,
    /// Agents' requests that can be taken back over another connection.
    pub running: Running,
    /// Places of those who watch `/v1/events`.
    pub watchers: Places,
    /// Whose quotas `/metrics` tells apart.
    pub quota_labels: Arc<Labelled>,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    audience: Audience,
    token: String,
    /// The multi-thread runtime; the HTTP workers' own cannot run the corpus.
    runtime: Handle,
    opened: OnceLock<Opened>,
    closing: AtomicBool,
    in_flight: watch::Sender<usize>,
    lanes: Lanes,
}

/// The models and the store, once they are loaded.
pub struct Opened {
    pub ragstone: Ragstone,
    pub ingestor: Ingestor,
    pub conversations: Conversations,
    /// The language model's name.
    pub model_id: String,
    /// The embedding model's name.
    pub embedder_id: String,
    /// The cross-encoder's name, where there is one.
    pub reranker_id: Option<String>,
    /// Tokens that the language model takes.
    pub context: usize,
    /// What whoever asks it should know: of the demo model.
    pub note: Option<String>,
}

impl Opened {
    /// For chats that do not say how much they want: no more than a quarter of the context.
    pub fn default_max_tokens(&self) -> usize {
        256.min(self.context / 4).max(1)
    }
}

impl State {
    /// Of a service that has not loaded its models.
    ///
    /// # Errors
    /// `Internal` where this machine has no randomness, or metrics cannot be collected.
    pub fn new(config: &Config, env: Env, audience: Audience) -> Result<Self> {
        Ok(Self {
            lanes: Lanes::new(&env),
            env,
            settings: config.settings.clone(),
            bodies: Arc::new(Bodies::new(&config.surface)),
            allowed: Allowed::new(&config.surface.allowed_hosts, &config.surface.allowed_origins),
            keys: config.surface.keys,
            metrics_open: config.surface.metrics_open,
            write_timeout: Duration::from_secs(config.surface.write_timeout_s),
            file_seconds: config.surface.file_seconds,
            audit: AuditLog::of(&config.surface)?,
            given: config.listing.clone(),
            publishing: Arc::new(Semaphore::new(1)),
            running: Running::default(),
            watchers: Places::new("events", MOST_WATCHERS),
            quota_labels: Arc::default(),
            metrics: telemetry::recorder()?,
            audience,
            token: fresh_token()?,
            runtime: Handle::current(),
            opened: OnceLock::new(),
            closing: AtomicBool::new(false),
            in_flight: watch::Sender::new(0),
        })
    }

    /// The models and the store are loaded.
    ///
    /// # Errors
    /// `Internal` the second time.
    pub fn open(&self, opened: Opened) -> Result<()> {
        self.opened.set(opened).map_err(|_| Error::internal("the service was opened twice"))
    }

    /// The store and the models where they are loaded, also while the service stops.
    pub fn loaded(&self) -> Option<&Opened> {
        self.opened.get()
    }

    /// From now on requests hear that the service stops.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Requests that are being answered.
    pub fn in_flight(&self) -> watch::Receiver<usize> {
        self.in_flight.subscribe()
    }

    /// The owner's token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The store and the models.
    ///
    /// # Errors
    /// `Unavailable` while they are loading, when the service stops, and while it does not know what other nodes removed.
    pub fn opened(&self) -> Result<&Opened> {
        if self.is_closing() {
            return Err(Error::new(ErrorKind::Unavailable, "the service is stopping"));
        }
        let opened = self.opened.get().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the service is loading its model; try again in a moment (see /readyz)")
        })?;
        // What others deleted meanwhile must not be served.
        if !opened.ragstone.is_up_to_date() {
            let message = match opened.ragstone.is_lost() {
                true => {
                    "this node did not hear for seven days what others removed: ask another node, and restart this one"
                }
                false => {
                    "this node could not look at the corpus's bucket for three times `corpus_interval_ms`: ask another node, or try again"
                }
            };
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(opened)
    }

    /// Whether the service is stopping.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Whether everything is for the owner only.
    pub fn audience(&self) -> Audience {
        self.audience
    }

    /// Lets only those pass who can read the data folder.
    pub fn check_owner(&self, request: &HttpRequest) -> Result<()> {
        let sent = request.headers().get(TOKEN_HEADER).map_or(&b""[..], |value| value.as_bytes());
        // Every byte is looked at, so that the time taken tells nothing about the token.
        let same = sent.len() == self.token.len()
            && sent.iter().zip(self.token.as_bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0;
        if same {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forbidden,
            format!("only the data folder's owner may do this; send the token of its service.json as {TOKEN_HEADER}"),
        ))
    }

    /// The multi-thread runtime, for a thread that may wait for it.
    pub fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Runs `future` on the multi-thread runtime; it is aborted when the caller goes away.
    pub async fn on_runtime<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let mut task = AbortOnDrop(self.runtime.spawn(future.in_current_span()));
        (&mut task.0).await.map_err(|error| lost(&error))
    }

    /// Runs `future` on the multi-thread runtime when a place for that kind of work is free, with the configured deadline. The
    /// place is kept until the work has really ended, also where its caller went away or was told that its time is up.
    pub async fn run<T: Send + 'static>(
        &self,
        request: &HttpRequest,
        work: Work,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let watch = Stopwatch::start();
        let place = self.place(request, work).await?;
        let task = self.runtime.spawn(
            async move {
                let done = future.await;
                drop(place);
                done
            }
            .in_current_span(),
        );
        let ended = match work {
            // Their callers wait as long as it takes, and end it by leaving.
            Work::Change | Work::Remove | Work::Upkeep => task.await,
            Work::Search | Work::Look => {
                let left = self.deadline().saturating_sub(watch.elapsed());
                tokio::time::timeout(left, task).await.map_err(|_| {
                    let seconds = self.settings.deadline_s;
                    Error::new(ErrorKind::DeadlineExceeded, format!("not done within {seconds} s; try again"))
                })?
            }
        };
        ended.map_err(|error| lost(&error))
    }

    /// Waits for a place for work that its caller runs.
    pub async fn place(&self, request: &HttpRequest, work: Work) -> Result<InLane> {
        let processors = self.opened()?.ragstone.processors();
        let place = self.lanes.enter(work, caller(request), processors, self.deadline()).await?;
        Visitor::of(request)?.check_still()?;
        Ok(place)
    }

    /// Goes on beside the request.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(future.in_current_span());
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(self.settings.deadline_s)
    }

    /// Counts a request until the result is dropped.
    pub fn enter(self: &Arc<Self>) -> InFlight {
        self.in_flight.send_modify(|count| *count += 1);
        InFlight(Arc::new(Entered { state: self.clone(), charges: Mutex::default() }))
    }
}

/// Who asks, as far as fairness goes: a key, or an address.
pub fn caller(request: &HttpRequest) -> Caller {
    if let Some(caller) = Visitor::of(request).ok().and_then(|visitor| visitor.caller()) {
        return caller;
    }
    request.peer_addr().map_or_else(Caller::default, |address| Caller::of(address.ip()))
}

fn lost(error: &tokio::task::JoinError) -> Error {
    if error.is_panic() {
        Error::internal("this request met a defect in ragstone and is lost; the service goes on")
    } else {
        Error::new(ErrorKind::Cancelled, "the service is stopping")
    }
}

/// A task that ends with this.
pub struct AbortOnDrop<T>(pub JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A request that is being answered; a stream keeps a clone until its end.
#[derive(Clone)]
pub struct InFlight(Arc<Entered>);

struct Entered {
    state: Arc<State>,
    /// What the request's body takes of the budget for bodies.
    charges: Mutex<Vec<Place>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.state.in_flight.send_modify(|count| *count -= 1);
    }
}

impl InFlight {
    /// Holds a part of the budget for bodies until the request is answered, or [`release`](Self::release)d.
    pub fn charge(&self, place: Place) {
        self.0.charges.lock().unwrap_or_else(PoisonError::into_inner).push(place);
    }

    /// What the request's body became is bounded by something else from now on.
    pub fn release(&self) {
        let charges = std::mem::take(&mut *self.0.charges.lock().unwrap_or_else(PoisonError::into_inner));
        drop(charges);
    }

    /// The one that was counted for `request`.
    pub fn of(request: &HttpRequest) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }
}

/// Names the data folder's owner. Unlike everything else that is random here it must not be replayable.
fn fresh_token() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal(format!("no randomness for the owner's token: {error}")))?;
    Ok(hex::encode(bytes))
}
