//! What clients of the whole service meet: through HTTP, with a model of random weights and a data folder of its own.
//!
//! The service runs in this process, as `ragstone serve` starts it. Its clients have a thread and a runtime of their own, so
//! that no task of the service keeps them from looking at the clock.

mod clients;
pub mod engine;
pub mod groups;
mod load;
pub mod overload;
pub mod pml;
pub mod rag;
pub(super) mod random_model;
pub mod reorder;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use ragstone_kernels::files::ModelFiles;
use ragstone_models::model_source;
use ragstone_service::access;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_service::data_folder::DataFolder;
use ragstone_service::http::state::Audience;
use ragstone_service::service::Service;
use ragstone_terminal::progress::{Progress, Unit};

use self::clients::Clients;
use super::Shape;
use crate::error::{Error, ErrorKind, Result};

/// No request may end for its deadline: what is slow is to be measured.
const DEADLINE_S: u64 = 3600;

/// Which model is served, and to how many at once.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Of the random model, where the configuration names none.
    pub shape: Shape,
    /// Of weights and prompts.
    pub seed: u64,
    /// The most requests at a time.
    pub clients: usize,
}

/// Runs `work` against a service on a free port. A random model of Qwen2.5-0.5B's shape takes 1 GB of the system's temporary
/// folder for as long.
pub async fn with_service<T: Send + 'static>(
    config: &Config,
    setup: Setup,
    work: impl AsyncFnOnce(Clients) -> Result<T> + Send + 'static,
) -> Result<T> {
    let measured = async {
        let folder = tempfile::tempdir().map_err(|error| Error::internal(format!("no temporary folder: {error}")))?;
        let config = prepare(config, setup, folder.path()).await?;
        let service = start(&config).await?;
        let measured = match clients(&config, setup, &service) {
            Ok(clients) => on_own_runtime(clients, work).await,
            Err(error) => Err(error),
        };
        let closed = service.close().await;
        measured.and_then(|measured| closed.map(|()| measured))
    };
    tokio::select! {
        measured = measured => measured,
        interrupted = access::interrupted() => Err(match interrupted.kind() {
            ErrorKind::Cancelled => Error::new(ErrorKind::Cancelled, "interrupted"),
            _ => interrupted,
        }),
    }
}

/// The configuration of a service that has nothing to do with the user's own: its models and data are in `folder`, and it has
/// no bucket.
async fn prepare(config: &Config, setup: Setup, folder: &Path) -> Result<Config> {
    let mut config = config.clone();
    let (surface, settings) = (&mut config.surface, &mut config.settings);
    let data = folder.join("data");
    let model = match &surface.model {
        Some(model) => model_source::find(Some(model), surface.offline, &data.join("models")).await?.path,
        None => {
            let parent = folder.to_owned();
            let writing = Progress::new("writing a random model", Unit::Nothing);
            let written =
                tokio::task::spawn_blocking(move || random_model::write_model(&parent, setup.shape, setup.seed));
            writing.during(written).await.map_err(|error| Error::internal(error.to_string()))??
        }
    };
    if surface.embedder.is_none() {
        surface.embedder = Some(text(random_model::write_embedder(folder, setup.seed, 0)?)?);
    }
    surface.model = Some(text(model)?);
    surface.data = Some(data);
    surface.health_listen = None;
    // What is measured is how fast blending is; with random weights there is nothing to calibrate.
    (settings.blend_uncalibrated, settings.calibrate_when_idle) = (true, false);
    (settings.object_url, settings.corpus_url) = (None, None);
    settings.object_options = Default::default();
    (settings.object_ttl_s, settings.object_max_bytes) = (0, 0);
    // Abandoned requests may keep their places for a while.
    settings.max_queued = settings.max_queued.max(2 * setup.clients);
    settings.deadline_s = settings.deadline_s.max(DEADLINE_S);
    Ok(config)
}

fn text(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        Error::invalid_input(format!("the path {} is not UTF-8; set TMPDIR to another folder", path.display()))
    })
}

async fn start(config: &Config) -> Result<Service> {
    let folder = DataFolder::create(&config.data()?)?;
    let held = folder.try_hold("bench serve")?.ok_or_else(|| folder.in_use())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| Error::internal(format!("no port on the loopback interface: {error}")))?;
    let service = Service::start(config, held, listener, Audience::Public)?;
    match service.open().await {
        Ok(()) => Ok(service),
        Err(error) => {
            // The reason matters more than how the rest ends.
            let _ = service.close().await;
            Err(error)
        }
    }
}

fn clients(config: &Config, setup: Setup, service: &Service) -> Result<Clients> {
    let model = config.surface.model.as_deref().unwrap_or_default();
    let vocabulary = ModelFiles::open(Path::new(model))?.config()?.vocab_size;
    Ok(Clients::new(Client::new(&service.address, service.token())?, vocabulary, setup.seed))
}

async fn on_own_runtime<T: Send + 'static>(
    clients: Clients,
    work: impl AsyncFnOnce(Clients) -> Result<T> + Send + 'static,
) -> Result<T> {
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::internal(format!("the clients cannot start: {error}")))?;
        runtime.block_on(work(clients))
    });
    measured.await.map_err(|error| Error::internal(format!("the benchmark failed: {error}")))?
}
