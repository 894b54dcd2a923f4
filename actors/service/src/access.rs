//! How a command reaches the store: through the running service of its data folder, or, where none runs, by opening the
//! folder itself for as long as the command takes.

mod model;

use std::cell::Cell;
use std::future::Future;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ragstone_env::Stopwatch;
use ragstone_terminal::progress::{Progress, Unit};
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::api::models::Ready;
use crate::client::Client;
use crate::config::Config;
use crate::data_folder::{DataFolder, HeldFolder, ServiceRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::http::state::Audience;
use crate::service::Service;

/// How long a holder that does not answer may keep a command waiting.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// What is said where a job goes on that another command's service had begun.
pub const ENDED: &str = "the command that had the data folder open has ended; going on without it";

/// The way to the store.
pub enum Access {
    /// A running service.
    Remote(Client),
    /// A service of this process's own, which only it may use.
    Local { client: Client, service: Box<Service> },
}

/// A command, as messages name it.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    name: &'a str,
    /// Its user hears what the language model says, or what is computed for it: it has to be the one that he means. To all others it is
    /// the same which one a running service has.
    asks_the_model: bool,
}

impl<'a> From<&'a str> for Command<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, asks_the_model: false }
    }
}

/// A command that wants something of the language model.
pub fn asking(name: &str) -> Command<'_> {
    Command { name, asks_the_model: true }
}

/// What a command needs of its data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Data: on a folder without any it makes no sense, and must not leave a new one behind.
    Data,
    /// Nothing: it begins a new one.
    Nothing,
    /// Nothing, and it has the folder open for long: other commands reach it meanwhile.
    Long,
    /// As `Data`, and its own work takes long: other commands reach the folder through it as long as that goes on.
    DataForAJob,
    /// As `Nothing`, with such work.
    NothingForAJob,
}

impl Needs {
    fn audience(self) -> Audience {
        match self {
            Self::Data | Self::Nothing => Audience::Private,
            Self::Long => Audience::Owner,
            Self::DataForAJob | Self::NothingForAJob => Audience::Passing,
        }
    }
}

impl Access {
    /// Finds the way for `command`.
    async fn open(config: &Config, command: Command<'_>, needs: Needs) -> Result<Self> {
        let path = config.data()?;
        let folder = match needs {
            Needs::Data | Needs::DataForAJob => DataFolder::existing(&path)?,
            Needs::Nothing | Needs::Long | Needs::NothingForAJob => DataFolder::create(&path)?,
        };
        let begun = Stopwatch::start();
        let waiting = Progress::new("waiting for the data folder, which another command has open", Unit::Nothing);
        let mut refused = None;
        loop {
            if let Some(held) = folder.try_hold(command.name)? {
                return Self::local(config, held, needs.audience()).await;
            }
            if let Some(record) = folder.service_record() {
                let client = Client::of(&record)?;
                if client.is_process(record.pid).await {
                    match answers(config, command, &client, &record).await {
                        Ok(()) => return Ok(Self::Remote(client)),
                        // A command that ends soon leaves the folder to this one, with its own settings.
                        Err(error) if record.passes => refused = Some(error),
                        Err(error) => return Err(error),
                    }
                }
            }
            if begun.elapsed() > PATIENCE {
                return Err(refused.unwrap_or_else(|| folder.in_use()));
            }
            waiting.tick();
            tokio::time::sleep(POLL).await;
        }
    }

    async fn local(config: &Config, held: HeldFolder, audience: Audience) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|error| Error::internal(format!("no port on the loopback interface: {error}")))?;
        let service = Box::new(Service::start(config, held, listener, audience)?);
        let client = Client::new(&service.address, service.token())?;
        match service.open().await {
            Ok(()) => Ok(Self::Local { client, service }),
            Err(error) => {
                // The reason matters more than how the rest ends.
                let _ = service.close().await;
                Err(error)
            }
        }
    }

    /// Whether a service goes on when this command ends.
    fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// The client to use.
    pub fn client(&self) -> &Client {
        match self {
            Self::Remote(client) | Self::Local { client, .. } => client,
        }
    }

    /// Makes everything durable and lets the folder go.
    pub async fn close(self) -> Result<()> {
        match self {
            Self::Remote(_) => Ok(()),
            Self::Local { service, .. } => service.close().await,
        }
    }
}

/// Runs `work` against a store that is there; Ctrl-C ends it, and the store is closed in every case. Where another command had the folder
/// open, and ends meanwhile, all of it is done again.
///
/// # Errors
/// `NotFound`, and nothing is created, where the data folder is missing or empty.
pub async fn with<T>(
    config: &Config,
    command: impl Into<Command<'_>>,
    work: impl AsyncFn(&Client) -> Result<T>,
) -> Result<T> {
    let command = command.into();
    loop {
        let has_ended = Cell::new(false);
        let once = async |client: &Client| {
            let done = work(client).await;
            has_ended.set(done.is_err() && client.is_ending().await);
            done
        };
        match run(config, (command, Needs::Data), once, Interrupted::default()).await {
            Err(error) if has_ended.get() && error.kind() != ErrorKind::Cancelled => {}
            done => return done,
        }
    }
}

/// As [`with`], for work that cannot be done again, as it has been seen in part.
pub async fn with_once<T>(
    config: &Config,
    command: impl Into<Command<'_>>,
    work: impl AsyncFnOnce(&Client) -> Result<T>,
) -> Result<T> {
    once(config, (command.into(), Needs::Data), work).await
}

/// As [`with_once`]; the data folder is created where it is missing.
pub async fn creating<T>(
    config: &Config,
    command: impl Into<Command<'_>>,
    work: impl AsyncFnOnce(&Client) -> Result<T>,
) -> Result<T> {
    once(config, (command.into(), Needs::Nothing), work).await
}

/// Where a command had the folder open and ends, its user is told so: the service that answered is nothing that he knows of.
async fn once<T>(config: &Config, by: (Command<'_>, Needs), work: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
    let work = async |client: &Client| match work(client).await {
        Err(error) if client.is_ending().await => {
            let message =
                format!("the command that had the data folder open has ended meanwhile; run this one again ({error})");
            Err(Error::new(ErrorKind::Unavailable, message))
        }
        done => done,
    };
    run(config, by, work, Interrupted::default()).await
}

/// As [`creating`], for a job, through which other commands of the same user reach the store meanwhile. After Ctrl-C it is told to end,
/// and what it tells then is heard; `told` says what became of it. It hears whether a service goes on.
pub async fn creating_job<T>(
    config: &Config,
    command: impl Into<Command<'_>>,
    work: impl AsyncFnOnce(&Client) -> Result<T>,
    told: &dyn Fn(bool) -> Option<String>,
) -> Result<T> {
    run(config, (command.into(), Needs::NothingForAJob), work, Interrupted { told, hears_the_end: true }).await
}

/// As [`creating`], for a command that goes on for long: while it has the folder open itself, other commands of the same user reach
/// the store through it.
pub async fn sharing<T>(
    config: &Config,
    command: impl Into<Command<'_>>,
    work: impl AsyncFnOnce(&Client) -> Result<T>,
) -> Result<T> {
    run(config, (command.into(), Needs::Long), work, Interrupted::default()).await
}

/// As [`with`], for work through which other commands of the same user reach the store meanwhile. After Ctrl-C, `told` says what becomes
/// of it. It hears whether a service goes on.
pub async fn with_told<T>(
    config: &Config,
    command: impl Into<Command<'_>>,
    work: impl AsyncFnOnce(&Client) -> Result<T>,
    told: &dyn Fn(bool) -> Option<String>,
) -> Result<T> {
    run(config, (command.into(), Needs::DataForAJob), work, Interrupted { told, hears_the_end: false }).await
}

/// What Ctrl-C does to a command's work.
struct Interrupted<'a> {
    /// What becomes of it, for people; it hears whether a service goes on.
    told: &'a dyn Fn(bool) -> Option<String>,
    /// Whether it is a job, which ends by itself when this process's own service stops, and says how far it came.
    hears_the_end: bool,
}

impl Default for Interrupted<'_> {
    fn default() -> Self {
        Self { told: &|_| None, hears_the_end: false }
    }
}

async fn run<T>(
    config: &Config,
    (command, needs): (Command<'_>, Needs),
    work: impl AsyncFnOnce(&Client) -> Result<T>,
    on_interrupt: Interrupted<'_>,
) -> Result<T> {
    let access = tokio::select! {
        access = Access::open(config, command, needs) => access?,
        interrupted = interrupted() => return Err(interrupted),
    };
    let Interrupted { told, hears_the_end } = on_interrupt;
    let mut came_too_late = false;
    let done = {
        let mut work = std::pin::pin!(work(access.client()));
        let interrupted = tokio::select! {
            done = &mut work => Ok(done),
            interrupted = interrupted() => Err(interrupted),
        };
        match (interrupted, &access) {
            (Ok(done), _) => done,
            (Err(interrupted), _) if interrupted.kind() != ErrorKind::Cancelled => Err(interrupted),
            (Err(_), Access::Local { service, .. }) if hears_the_end => {
                service.end_jobs();
                let ended = stopping(work).await?;
                // It may have been done, or have failed, at that moment.
                came_too_late = ended.is_ok();
                ended.map_err(|error| match (error.kind(), told(false)) {
                    (ErrorKind::Cancelled | ErrorKind::Unavailable, Some(told)) => {
                        Error::new(ErrorKind::Cancelled, told)
                    }
                    _ => error,
                })
            }
            (Err(interrupted), access) => Err(match told(access.is_remote()) {
                Some(told) => Error::new(ErrorKind::Cancelled, told),
                None => interrupted,
            }),
        }
    };
    let is_interrupted = done.as_ref().err().is_some_and(|error| error.kind() == ErrorKind::Cancelled);
    let is_remote = access.is_remote();
    let closed = if is_interrupted && !is_remote {
        stopping(access.close()).await.unwrap_or_else(Err)
    } else {
        tokio::select! {
            closed = access.close() => closed,
            interrupted = interrupted() => Err(interrupted),
        }
    };
    if came_too_late {
        // For this work: what comes after it hears the same.
        HEARD.fetch_sub(1, Ordering::Relaxed);
    }
    done.and_then(|value| closed.map(|()| value))
}

/// Waits for what ends after Ctrl-C; `Err` after another one.
async fn stopping<T>(ending: impl Future<Output = T>) -> Result<T> {
    let told = "stopping: what is ready is being written; Ctrl-C once more ends at once";
    let bar = Progress::new(told, Unit::Nothing);
    tokio::select! {
        ended = bar.during(ending) => Ok(ended),
        interrupted = interrupted() => Err(interrupted),
    }
}

/// The running service of the data folder, whether its model is loaded or not. Opens nothing itself.
///
/// # Errors
/// `NotFound` without a data folder, `Unavailable` where no service runs on it.
pub async fn running(config: &Config) -> Result<(ServiceRecord, Client)> {
    let path = config.data()?;
    if let Some(record) = DataFolder::existing(&path)?.service_record() {
        let client = Client::of(&record)?;
        if client.is_process(record.pid).await {
            check_settings(config, record.pid)?;
            return Ok((record, client));
        }
    }
    let message = format!("no service runs on {}; start one with `ragstone serve`", path.display());
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// How often somebody pressed Ctrl-C, once somebody has waited for it.
static INTERRUPTS: OnceLock<std::result::Result<watch::Receiver<u64>, String>> = OnceLock::new();
/// Of these, those that somebody heard.
static HEARD: AtomicU64 = AtomicU64::new(0);

/// Waits for Ctrl-C; the error that a command then ends with. One that came while nobody waited is heard by who waits next.
pub async fn interrupted() -> Error {
    let cannot = |why: &dyn std::fmt::Display| Error::internal(format!("signals cannot be received: {why}"));
    let mut count = match INTERRUPTS.get_or_init(|| count_interrupts().map_err(|error| error.to_string())) {
        Ok(count) => count.clone(),
        Err(why) => return cannot(why),
    };
    match count.wait_for(|count| *count > HEARD.load(Ordering::Relaxed)).await {
        Ok(count) => {
            HEARD.store(*count, Ordering::Relaxed);
            Error::new(ErrorKind::Cancelled, "interrupted; what was stored is kept")
        }
        Err(ended) => cannot(&ended),
    }
}

fn count_interrupts() -> std::io::Result<watch::Receiver<u64>> {
    let (count, counted) = watch::channel(0);
    #[cfg(unix)]
    let mut signals = signal(SignalKind::interrupt())?;
    #[cfg(windows)]
    let mut signals = tokio::signal::windows::ctrl_c()?;
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

async fn wait_until_ready(client: &Client) -> Result<()> {
    let waiting = Progress::new("waiting for the service to load its model", Unit::Nothing);
    loop {
        match client.get::<Ready>(&["readyz"]).await {
            Ok(_) => return Ok(()),
            // It answered: 503, not yet.
            Err(error) if error.kind() == ErrorKind::Unavailable && client.is_alive().await => {
                waiting.tick();
                tokio::time::sleep(POLL).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a running service takes questions; fails where it would not do what is asked for.
async fn answers(config: &Config, command: Command<'_>, client: &Client, record: &ServiceRecord) -> Result<()> {
    wait_until_ready(client).await?;
    if let Some(wanted) = config.surface.model.as_deref().filter(|_| command.asks_the_model) {
        model::check(wanted, client, record).await?;
    }
    check_settings(config, record.pid)
}

/// A running service was given its settings when it started. Silence would look like obedience.
fn check_settings(config: &Config, service: u32) -> Result<()> {
    let given = config.given_to_store.join(", ");
    if given.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{given} would have no effect: the data folder's running service (process {service}) does the work, with the \
         settings that it was started with; leave that out, or stop the service and start it with it"
    );
    Err(Error::new(ErrorKind::Incompatible, message))
}

#[cfg(all(test, unix))]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn a_ctrl_c_that_comes_while_nobody_waits_is_heard_by_who_waits_next() {
        assert!(poll!(pin!(interrupted())).is_pending());
        for _ in 0..2 {
            // SAFETY: it takes a number; the signal has a handler.
            assert_eq!(unsafe { libc::raise(libc::SIGINT) }, 0);
            let heard = tokio::time::timeout(Duration::from_secs(60), interrupted()).await.unwrap();
            assert_eq!(heard.kind(), ErrorKind::Cancelled);
            assert!(poll!(pin!(interrupted())).is_pending(), "one is heard once");
        }
        HEARD.fetch_sub(1, Ordering::Relaxed);
        assert!(poll!(pin!(interrupted())).is_ready(), "and again where it came too late for who heard it");
    }
}
