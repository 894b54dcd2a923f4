//! One opened data folder behind HTTP: what `ragstone serve` runs, and what a command runs for itself on a port that only
//! it may use when no service is up. So every command speaks to the store in one way.

use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actix_web::{HttpMessage, HttpRequest};
use metrics_exporter_prometheus::PrometheusHandle;
use ragstone_actors::turns::Places;
use ragstone_actors::{Caller, Folders, Progress as Loading, Ragstone, Settings};
use ragstone_storage::env::{Env, Stopwatch};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::config::{Config, KeyMode, Setting};
use crate::data_folder::{HeldFolder, ServiceRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::http::body::Bodies;
use crate::http::identity::Visitor;
use crate::http::mcp::Running;
use crate::http::visitor::Allowed;
use crate::ingest::Ingestor;
use crate::lanes::{InLane, Lanes, Work};
use crate::progress::{Progress, Unit};
use crate::server::Servers;
use crate::{embedder_source, model_source, telemetry};

/// The header that carries the owner's token.
pub const TOKEN_HEADER: &str = "x-ragstone-token";
/// Clients of `/v1/events`; one caller has no more than its share of them.
const MOST_WATCHERS: usize = 64;
/// How long running answers may take to end when the service stops.
const GRACE: Duration = Duration::from_secs(10);

/// Who may use a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Everybody who reaches the port.
    Public,
    /// The data folder's owner: other commands of the same user.
    Owner,
    /// Only the process that started it.
    Private,
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
    /// Every setting, and where it comes from.
    pub given: Vec<Setting>,
    /// Whoever copies the tiers' figures into the metrics holds its one permit.
    pub publishing: Arc<Semaphore>,
    /// Agents' requests that can be taken back over another connection.
    pub running: Running,
    /// Places of those who watch `/v1/events`.
    pub watchers: Places,
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
    /// The language model's name.
    pub model_id: String,
    /// The embedding model's name.
    pub embedder_id: String,
    /// The cross-encoder's name, where there is one.
    pub reranker_id: Option<String>,
    context: usize,
}

impl Opened {
    /// For chats that do not say how much they want: no more than a quarter of the context.
    pub fn default_max_tokens(&self) -> usize {
        256.min(self.context / 4).max(1)
    }
}

impl State {
    /// The store and the models.
    ///
    /// # Errors
    /// `Unavailable` while they are loading, and when the service stops.
    pub fn opened(&self) -> Result<&Opened> {
        if self.is_closing() {
            return Err(Error::new(ErrorKind::Unavailable, "the service is stopping"));
        }
        self.opened.get().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the service is loading its model; try again in a moment (see /readyz)")
        })
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
            Work::Change | Work::Upkeep => task.await,
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

struct AbortOnDrop<T>(JoinHandle<T>);

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
    charges: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.state.in_flight.send_modify(|count| *count -= 1);
    }
}

impl InFlight {
    /// Holds `permit` until the request is answered.
    pub fn charge(&self, permit: OwnedSemaphorePermit) {
        let mut charges = self.0.charges.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *charges {
            Some(charged) => charged.merge(permit),
            None => *charges = Some(permit),
        }
    }

    /// The one that was counted for `request`.
    pub fn of(request: &HttpRequest) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }
}

/// A running service.
pub struct Service {
    /// `http://ADDR:PORT`
    pub address: String,
    state: Arc<State>,
    config: Config,
    held: HeldFolder,
    servers: Servers,
    _upkeep: AbortOnDrop<()>,
}

impl Service {
    /// Answers on `listener` from now on, with 503 until [`open`](Self::open) has loaded the models.
    pub fn start(config: &Config, held: HeldFolder, listener: TcpListener, audience: Audience) -> Result<Self> {
        let env = Env::from_environment()?;
        ragstone_migrations::prepare(held.path(), &env)?;
        let failed = |error: std::io::Error| Error::internal(format!("the service cannot start: {error}"));
        let address = format!("http://{}", listener.local_addr().map_err(failed)?);
        let state = Arc::new(State {
            lanes: Lanes::new(&env),
            env,
            settings: config.settings.clone(),
            bodies: Arc::new(Bodies::new(&config.surface)),
            allowed: Allowed::new(&config.surface.allowed_hosts, &config.surface.allowed_origins),
            keys: config.surface.keys,
            metrics_open: config.surface.metrics_open,
            write_timeout: Duration::from_secs(config.surface.write_timeout_s),
            file_seconds: config.surface.file_seconds,
            given: config.listing.clone(),
            publishing: Arc::new(Semaphore::new(1)),
            running: Running::default(),
            watchers: Places::new("events", MOST_WATCHERS),
            metrics: telemetry::recorder()?,
            audience,
            token: fresh_token()?,
            runtime: Handle::current(),
            opened: OnceLock::new(),
            closing: AtomicBool::new(false),
            in_flight: watch::Sender::new(0),
        });
        let servers = Servers::start(&state, &config.surface, listener, audience)?;
        let upkeep = AbortOnDrop(tokio::spawn(telemetry::metrics_upkeep(state.metrics.clone())));
        let service = Self { address, state, config: config.clone(), held, servers, _upkeep: upkeep };
        service.tell(Vec::new())?;
        Ok(service)
    }

    /// Tells other commands where this service is, and which models it has.
    fn tell(&self, models: Vec<PathBuf>) -> Result<()> {
        if self.state.audience == Audience::Private {
            return Ok(());
        }
        let (address, token) = (self.address.clone(), self.state.token.clone());
        let health = self.servers.health_address.clone();
        let record = ServiceRecord { pid: std::process::id(), address, token, health, models };
        self.held.write_service_record(&record)
    }

    /// The owner's token.
    pub fn token(&self) -> &str {
        &self.state.token
    }

    /// Finds and loads the models, opens the store. A service that others reach then goes on with unfinished ingests and warm-ups.
    pub async fn open(&self) -> Result<()> {
        let surface = &self.config.surface;
        let models = self.held.path().join("models");
        let model = model_source::find(surface.model.as_deref(), surface.offline, &models).await?;
        let embedder = embedder_source::find(surface.embedder.as_deref(), surface.offline).await?;
        let reranker = embedder_source::find_reranker(surface.reranker.as_deref(), surface.offline).await?;
        let models = [Some(&model.path), Some(&embedder.path), reranker.as_ref().map(|folder| &folder.path)];
        self.tell(models.into_iter().flatten().cloned().collect())?;
        let (reranker, reranker_id) = reranker.map(|folder| (folder.path, folder.id)).unzip();
        tracing::info!(model = model.id, embedder = embedder.id, reranker = reranker_id, data = %self.held.path().display(), "loading");
        let folders = Folders {
            data: self.held.path().to_owned(),
            model: model.path,
            model_id: model.id.clone(),
            embedder: embedder.path,
            reranker,
        };
        let bars = std::sync::Mutex::new(None);
        let show = move |progress| show_loading(&bars, progress);
        let env = self.state.env.clone();
        let ragstone = Ragstone::open(self.config.settings.clone(), &folders, env.clone(), show).await?;
        let context = ragstone.status().model.context;
        let ingestor = Ingestor::new(&ragstone, env, surface.file_seconds);
        let resume = (self.state.audience != Audience::Private)
            .then(|| (ingestor.clone(), ragstone.warmer().clone(), ragstone.renewer().clone()));
        let opened = Opened { ragstone, ingestor, model_id: model.id, embedder_id: embedder.id, reranker_id, context };
        if self.state.keys == KeyMode::Required && opened.ragstone.api_keys().is_empty() {
            tracing::warn!("there are no API keys yet: make one by `ragstone keys add`");
        }
        if self.state.keys == KeyMode::Off
            && self.state.audience == Audience::Public
            && opened.ragstone.corpus().has_tenants().await
        {
            tracing::warn!(
                "collections of tenants are here, and keys are off: whoever reaches the port reads and changes all of them"
            );
        }
        if self.state.opened.set(opened).is_err() {
            return Err(Error::internal("the service was opened twice"));
        }
        if let Some((ingestor, warmer, renewer)) = resume {
            renewer.resume().await?;
            ingestor.resume(None).await?;
            warmer.resume(None).await?;
        }
        Ok(())
    }

    /// The name of the loaded model.
    pub fn model_id(&self) -> Option<&str> {
        self.state.opened.get().map(|opened| opened.model_id.as_str())
    }

    /// Takes no more requests, lets running ones end for a while, and makes everything durable.
    pub async fn close(self) -> Result<()> {
        self.state.closing.store(true, Ordering::Relaxed);
        let opened = self.state.opened.get();
        if let Some(opened) = opened {
            opened.ragstone.jobs().stop();
        }
        let mut in_flight = self.state.in_flight.subscribe();
        if tokio::time::timeout(GRACE, in_flight.wait_for(|count| *count == 0)).await.is_err() {
            tracing::warn!(requests = *in_flight.borrow(), "requests were cut short");
        }
        self.servers.stop().await;
        let closed = match opened {
            Some(opened) => {
                opened.ragstone.jobs().stopped().await;
                opened.ragstone.close().await
            }
            None => Ok(()),
        };
        self.held.remove_service_record();
        Ok(closed?)
    }
}

/// Names the data folder's owner. Unlike everything else that is random here it must not be replayable.
fn fresh_token() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal(format!("no randomness for the owner's token: {error}")))?;
    Ok(model_source::hex(&bytes))
}

/// One bar after another: loading the model, checking its weights, measuring.
pub fn show_loading(bars: &std::sync::Mutex<Option<(&'static str, Progress)>>, progress: Loading) {
    let (what, unit, done, total) = match progress {
        Loading::Loading { what, done, total } => (what, Unit::Bytes, done, total),
        Loading::Measuring { done, total } => ("measuring this machine, once", Unit::Items, done, total),
    };
    let mut bar = bars.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if bar.as_ref().is_none_or(|(shown, _)| *shown != what) {
        *bar = Some((what, Progress::new(what, unit)));
    }
    if let Some((_, progress)) = &*bar {
        progress.set(done, total);
    }
    if done >= total {
        *bar = None;
    }
}
