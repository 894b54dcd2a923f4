//! `ragstone serve`

use std::net::{SocketAddr, TcpListener};

use ragstone_env::Env;
use ragstone_models::{embedder_source, model_source};
use ragstone_service::config::{Config, KeyMode, Surface};
use ragstone_service::data_folder::{DataFolder, HeldFolder};
use ragstone_service::http::state::Audience;
use ragstone_service::service::Service;
use ragstone_service::telemetry;
use ragstone_service::telemetry::otlp::Otlp;
use ragstone_storage::key::Fingerprint;
use ragstone_storage::tier::object::ObjectTier;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};

use crate::cli::page::reached_at;
use crate::error::{Error, ErrorKind, Result};

/// Files that RocksDB, LanceDB and sled may have open at once.
#[cfg(unix)]
const FILES_OF_THE_STORE: u64 = 2048;

/// All of these are settings, which the table describes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    #[arg(long)]
    pub allow_anyone: bool,
    #[arg(long, value_enum, value_name = "required|off")]
    pub keys: Option<KeyMode>,
}

/// Serves until Ctrl-C or SIGTERM.
pub async fn run(config: &Config, _: Args, otlp: Option<&Otlp>) -> Result<()> {
    let bucket = bucket(config)?;
    check_models(&config.surface).await?;
    let held = hold(config)?;
    if let Some(bucket) = bucket {
        warn_if_unreachable(bucket).await?;
    }
    let listener = bind(&config.surface.listen)?;
    refuse_if_open(&listener, &config.surface)?;
    raise_file_limit(&config.surface);
    let mut stop = Stop::new()?;
    let service = Service::start(config, held, listener, Audience::Public)?;
    // Programs read the address from the first line.
    output::line(&format!("listening on {}", service.address))?;
    output::line("loading the model; questions get 503 until it is ready")?;
    let opened = tokio::select! {
        opened = service.open() => opened,
        () = stop.wanted() => return service.close().await,
    };
    if let Err(error) = opened {
        let _ = service.close().await;
        return Err(error);
    }
    output::line(&ready(&service.address, service.model_id().unwrap_or_default()))?;
    let exporting = async {
        if let Some(otlp) = otlp {
            otlp.send_metrics(|| service.exposition()).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = exporting => {}
        () = stop.wanted() => {}
    }
    tracing::info!("stopping; once more ends at once");
    tokio::select! {
        closed = close(service, otlp) => closed,
        () = stop.wanted() => Err(Error::new(ErrorKind::Cancelled, "ended at once; what was not written yet is computed again")),
    }
}

/// A model that cannot be found without a network is refused before anything is touched, and before anybody hears that the service listens.
async fn check_models(surface: &Surface) -> Result<()> {
    model_source::check(surface.model.as_deref(), surface.offline)?;
    model_source::adapter::check(surface.adapter.as_deref())?;
    embedder_source::check("embedding model", surface.embedder.as_deref(), surface.offline).await?;
    embedder_source::check("cross-encoder", surface.reranker.as_deref(), surface.offline).await
}

/// The line that says that questions are answered now, by what, and where people look.
fn ready(address: &str, model: &str) -> String {
    let page = reached_at(address);
    format!("ready: {model} answers; the page is at {page} (`ragstone page` prints a link that opens it as its owner)")
}

/// Ends a service; then the collector hears of its last requests.
async fn close(service: Service, otlp: Option<&Otlp>) -> Result<()> {
    if otlp.is_some() {
        // What tiers and workers hold can be told only while they are there.
        service.exposition().await;
    }
    let closed = service.close().await;
    if let Some(otlp) = otlp {
        let exposition = telemetry::recorder()?.render();
        tokio::join!(otlp.send_last_metrics(&exposition), otlp.close());
    }
    closed
}

/// The bucket of the settings; one that cannot be used as it is written is refused before anything is touched.
pub fn bucket(config: &Config) -> Result<Option<ObjectTier>> {
    config.settings.check_bucket()?;
    check_keys(config)?;
    let open = |options| {
        // It is asked whether it is there, and that is the same for every model.
        let tier = ObjectTier::open(&options, Fingerprint([0; 32]), Env::from_environment()?);
        tier.map_err(|error| Error::invalid_input(format!("setting `object_url`: {error}")))
    };
    config.settings.object().map(open).transpose()
}

/// The keys of the bucket are there, and are keys: without them nothing of it could be used.
pub fn check_keys(config: &Config) -> Result<()> {
    let checked = config.settings.object_keys.check();
    checked.map_err(|error| Error::invalid_input(format!("setting `object_keys`: {error}")))
}

/// A node starts without its bucket, and takes it up when it comes back; whoever starts it should know.
async fn warn_if_unreachable(bucket: ObjectTier) -> Result<()> {
    let bar = Progress::new("asking the bucket", Unit::Nothing);
    let probed = bar.during(tokio::task::spawn_blocking(move || bucket.probe())).await;
    match probed.map_err(|error| Error::internal(format!("asking the bucket broke off: {error}")))? {
        Ok(()) => {}
        Err(error) => tracing::warn!(
            %error,
            "the bucket of `object_url` cannot be used now; the service starts without it, computes what only the bucket \
             has, and tries again as it goes"
        ),
    }
    Ok(())
}

fn hold(config: &Config) -> Result<HeldFolder> {
    let folder = DataFolder::create(&config.data()?)?;
    match folder.try_hold("serve")? {
        Some(held) => Ok(held),
        None => match folder.service_record() {
            Some(record) if !record.passes => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "a service already runs on {} at {} (process {}); use it, or stop it first",
                    folder.path().display(),
                    record.shown(),
                    record.pid
                ),
            )),
            _ => Err(folder.in_use_with("wait until it ends or stop it; what it has begun, the service goes on with")),
        },
    }
}

/// Listens at `ADDR:PORT`.
pub fn bind(listen: &str) -> Result<TcpListener> {
    TcpListener::bind(listen).map_err(|error| {
        use std::io::ErrorKind as Io;
        let advice = match error.kind() {
            Io::AddrInUse => "another program listens there; take another port, or 0 for a free one",
            Io::PermissionDenied => "this user may not listen there; take a port above 1023",
            Io::AddrNotAvailable => "this machine does not have that address",
            _ => "write it as ADDR:PORT, such as 127.0.0.1:7411",
        };
        Error::new(ErrorKind::Unavailable, format!("cannot listen on {listen}: {error}; {advice}"))
    })
}

fn refuse_if_open(listener: &TcpListener, surface: &Surface) -> Result<()> {
    let Ok(address) = listener.local_addr() else { return Ok(()) };
    if let Some(word) = exposure(address, surface)? {
        tracing::warn!(%address, "{word}");
    }
    Ok(())
}

/// What whoever opens this address to others should know. Without keys, whoever reaches the port reads and changes the corpus: that must be
/// somebody's wish.
pub fn exposure(address: SocketAddr, surface: &Surface) -> Result<Option<&'static str>> {
    if address.ip().is_loopback() {
        return Ok(None);
    }
    if surface.keys == KeyMode::Required {
        let word = "reachable from other machines, and keys and answers are sent as they are: set `tls_certificate` and `tls_key`, or put a \
                    proxy with TLS in front";
        return Ok(surface.tls_certificate.is_none().then_some(word));
    }
    if surface.allow_anyone {
        return Ok(Some("reachable from other machines, and without a login"));
    }
    Err(Error::invalid_input(format!(
        "{address} can be reached from other machines, and nobody has to log in here: say --keys required (and make keys by \
         `ragstone keys add`), listen on 127.0.0.1 behind a proxy that asks who it is, or say --allow-anyone (setting \
         `allow_anyone`) if everybody there may read and change the corpus"
    )))
}

/// Every connection is an open file, and the store needs some hundred, too; many systems begin with 1,024.
#[cfg(unix)]
pub fn files_wanted(surface: &Surface) -> u64 {
    surface.max_connections as u64 + FILES_OF_THE_STORE
}

fn raise_file_limit(surface: &Surface) {
    #[cfg(unix)]
    {
        let wanted = files_wanted(surface);
        match ragstone_service::file_limit::raise(wanted) {
            Ok(have) if have < wanted => tracing::warn!(
                have,
                wanted,
                "too few open files are allowed for `max_connections`; raise `ulimit -n`, or lower the setting"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the limit of open files is unknown"),
        }
    }
}

/// The signals that end the service.
pub struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    /// Of a terminal that was closed; `None` under `nohup`, which has it ignored.
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
}

impl Stop {
    pub fn new() -> Result<Self> {
        #[cfg(unix)]
        let signal = |kind| {
            tokio::signal::unix::signal(kind)
                .map_err(|error| Error::internal(format!("signals cannot be received: {error}")))
        };
        Ok(Self {
            #[cfg(unix)]
            terminate: signal(tokio::signal::unix::SignalKind::terminate())?,
            #[cfg(unix)]
            hangup: (!ignores_hangup()).then(|| signal(tokio::signal::unix::SignalKind::hangup())).transpose()?,
        })
    }

    /// Returns at the next one.
    pub async fn wanted(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = self.terminate.recv() => {}
            _ = hung_up(&mut self.hangup) => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}

#[cfg(unix)]
async fn hung_up(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process had it ignore SIGHUP.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only reads what the signal does now, into a struct of its own; all zeros is one.
    unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
