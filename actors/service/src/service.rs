//! One opened data folder behind HTTP: what `ragstone serve` runs, and what a command runs for itself on a port that only
//! it may use when no service is up. So every command speaks to the store in one way.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ragstone_actors::models::language_model::Device;
use ragstone_actors::{Folders, Progress as Loading, Ragstone};
use ragstone_env::Env;
use ragstone_models::embedder_source::{self, EmbedderFolder};
use ragstone_models::model_source::{self, ModelFolder};
use ragstone_terminal::progress::{Progress, Unit};

use crate::config::{Config, KeyMode};
use crate::conversations::Conversations;
use crate::data_folder::{HeldFolder, ServiceRecord};
use crate::error::{Error, Result};
use crate::http::exposition;
use crate::http::state::{AbortOnDrop, Audience, Opened, State};
use crate::ingest::Ingestor;
use crate::server::Servers;
use crate::telemetry;

/// How long requests may take to end where a command ends whose data folder others reached through it: they did not begin them at a service that may stop.
const PASSING_GRACE: Duration = Duration::from_secs(300);
/// How long a start waits until it knows what other nodes removed, and how often it looks whether it does.
const FIRST_LOOK: Duration = Duration::from_secs(10);
const LOOKED_AGAIN: Duration = Duration::from_millis(10);

/// A running service.
pub struct Service {
    /// `http://ADDR:PORT`, or `https` with TLS.
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
        let address = listener.local_addr().map_err(failed)?;
        let state = Arc::new(State::new(config, env, audience)?);
        let servers = Servers::start(&state, &config.surface, listener, audience)?;
        let scheme = if servers.local_address.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{address}");
        let upkeep = AbortOnDrop(tokio::spawn(telemetry::metrics_upkeep(state.metrics.clone())));
        let service = Self { address, state, config: config.clone(), held, servers, _upkeep: upkeep };
        service.tell(Vec::new())?;
        Ok(service)
    }

    /// Tells other commands where this service is, and which models it has.
    fn tell(&self, models: Vec<PathBuf>) -> Result<()> {
        if self.state.audience() == Audience::Private {
            return Ok(());
        }
        let (address, public) = match &self.servers.local_address {
            Some(local) => (local.clone(), Some(self.address.clone())),
            None => (self.address.clone(), None),
        };
        let token = self.state.token().to_owned();
        let health = self.servers.health_address.clone();
        let passes = self.state.audience() == Audience::Passing;
        let record = ServiceRecord { pid: std::process::id(), address, public, token, health, models, passes };
        self.held.write_service_record(&record)
    }

    /// The owner's token.
    pub fn token(&self) -> &str {
        self.state.token()
    }

    /// Finds and loads the models, opens the store. A service that others reach then goes on with unfinished ingests and warm-ups.
    pub async fn open(&self) -> Result<()> {
        let surface = &self.config.surface;
        let models = self.held.path().join("models");
        let model = self.find_model(&models).await?;
        let data = self.held.path();
        let adapter = model_source::adapter::find(
            surface.adapter.as_deref(),
            &model,
            self.config.settings.device == Device::Cpu,
            &models,
        )?;
        let embedder = embedder_source::find_for(data, surface.embedder.as_deref(), surface.offline).await?;
        let reranker = embedder_source::find_reranker(surface.reranker.as_deref(), surface.offline).await?;
        let models = [Some(&model.path), Some(&embedder.path), reranker.as_ref().map(|folder| &folder.path)];
        self.tell(models.into_iter().flatten().cloned().collect())?;
        let (reranker, reranker_id) = reranker.map(|folder| (folder.path, folder.id)).unzip();
        tracing::debug!(model = model.id, embedder = embedder.id, reranker = reranker_id, data = %self.held.path().display(), "loading");
        let folders = Folders {
            data: self.held.path().to_owned(),
            model: model.path,
            adapter,
            model_id: model.id.clone(),
            embedder: embedder.path,
            reranker,
        };
        let bars = std::sync::Mutex::new(None);
        let show = move |progress| show_loading(&bars, progress);
        let env = self.state.env.clone();
        let embedder = EmbedderFolder { path: folders.embedder.clone(), id: embedder.id };
        // Before it is loaded, which may be interrupted: every later command would look for one on the network, and wait.
        let is_first = embedder_source::remembered(data).is_none();
        if is_first {
            embedder_source::remember(data, &embedder);
        }
        let opened = Ragstone::open(self.config.settings.clone(), &folders, env.clone(), show).await;
        let ragstone = opened.inspect_err(|_| {
            if is_first {
                embedder_source::forget(data);
            }
        })?;
        embedder_source::remember(data, &embedder);
        let (context, note) = (ragstone.status().model.context, model.note);
        let ingestor = Ingestor::new(&ragstone, data.to_owned(), env, surface.file_seconds);
        let resume = self.state.audience().resumes().then(|| (ingestor.clone(), ragstone.clone()));
        let (days, most_bytes) = (surface.responses_days, surface.responses_bytes);
        let conversations = Conversations::new(data, days, most_bytes, self.state.env.clone());
        let opened = Opened {
            model_id: ragstone.model().id.clone(),
            ragstone,
            ingestor,
            conversations: conversations.clone(),
            embedder_id: embedder.id,
            reranker_id,
            context,
            note,
        };
        self.warn_of_keys(&opened.ragstone).await;
        // A node answers once it knows what others removed meanwhile: a command that has come for one thing would be refused.
        let looked = async {
            while !opened.ragstone.is_up_to_date() {
                tokio::time::sleep(LOOKED_AGAIN).await;
            }
        };
        if tokio::time::timeout(FIRST_LOOK, looked).await.is_err() {
            tracing::warn!("the bucket of `corpus_url` does not answer; requests get 503 until it does");
        }
        self.state.open(opened)?;
        if let Some((ingestor, ragstone)) = resume {
            tokio::spawn(conversations.follow());
            ragstone.renewer().resume().await?;
            ingestor.resume(None).await?;
            ragstone.warmer().resume(None).await?;
            ragstone.verify_in_background();
            let corpus = ragstone.corpus().clone();
            tokio::spawn(async move { corpus.renew_word_indexes().await });
        }
        Ok(())
    }

    /// The language model's folder. Where an engine elsewhere answers, that of the smallest one: nobody asks it.
    async fn find_model(&self, models: &Path) -> Result<ModelFolder> {
        let surface = &self.config.surface;
        if !self.config.settings.upstream().is_set() {
            return model_source::find(surface.model.as_deref(), surface.offline, models).await;
        }
        let demo = model_source::find(Some(model_source::DEMO_ID), true, models).await?;
        Ok(ModelFolder { note: None, ..demo })
    }

    async fn warn_of_keys(&self, ragstone: &Ragstone) {
        if self.state.keys == KeyMode::Required && ragstone.api_keys().is_empty() {
            tracing::warn!("there are no API keys yet: make one by `ragstone keys add`");
        }
        if self.state.keys == KeyMode::Off
            && self.state.audience() == Audience::Public
            && ragstone.corpus().has_tenants().await
        {
            tracing::warn!(
                "collections of tenants are here, and keys are off: whoever reaches the port reads and changes all of them"
            );
        }
    }

    /// What `/metrics` shows.
    pub async fn exposition(&self) -> String {
        exposition::of(&self.state).await
    }

    /// The name of the loaded model.
    pub fn model_id(&self) -> Option<&str> {
        self.state.loaded().map(|opened| opened.model_id.as_str())
    }

    /// Tells every job to end at its next commit; requests that hear of one hear how it ended.
    pub fn end_jobs(&self) {
        if let Some(opened) = self.state.loaded() {
            opened.ragstone.jobs().stop();
        }
    }

    /// Takes no more requests, lets running ones end for a while, and makes everything durable.
    pub async fn close(self) -> Result<()> {
        self.state.begin_closing();
        self.end_jobs();
        let opened = self.state.loaded();
        let jobs = opened.map(|opened| opened.ragstone.jobs());
        let mut in_flight = self.state.in_flight();
        let ended = async {
            let answered = in_flight.wait_for(|count| *count == 0);
            match jobs {
                Some(jobs) => drop(tokio::join!(answered, jobs.stopped())),
                None => drop(answered.await),
            }
        };
        let have_ended = match self.state.audience() {
            Audience::Passing => {
                let told = "answering what other commands asked for; Ctrl-C ends at once";
                let waiting = Progress::new(told, Unit::Nothing);
                tokio::time::timeout(PASSING_GRACE, waiting.during(ended)).await.is_ok()
            }
            _ => tokio::time::timeout(Duration::from_secs(self.config.surface.grace_s), ended).await.is_ok(),
        };
        if !have_ended {
            // A piece of work that takes long, such as the cutting of a long text, is left as a kill would leave it: what it had done is
            // whole, and a start goes on from there.
            let jobs = jobs.map(|jobs| jobs.status()).unwrap_or_default();
            tracing::warn!(requests = *self.state.in_flight().borrow(), ?jobs, "requests and jobs were cut short");
        }
        self.servers.stop().await;
        let closed = match opened {
            Some(opened) => opened.ragstone.close().await,
            None => Ok(()),
        };
        self.held.remove_service_record();
        closed
    }
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
