//! `ragstone top`: what the running service of the data folder does now.

mod figures;
mod screen;
mod view;

use std::collections::VecDeque;
use std::io::{IsTerminal, Read};
use std::time::Duration;

use ragstone_env::{Env, Stopwatch};
use ragstone_service::access;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_service::data_folder::ServiceRecord;
use ragstone_service::telemetry::samples::Samples;
use ragstone_terminal::output;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::figures::{Figures, Look, figures};
use self::screen::Screen;
use crate::error::{Error, ErrorKind, Result};

/// How often the screen is drawn, and how far apart the two looks of `--once` are.
const EVERY: Duration = Duration::from_secs(1);
/// The screen's rates are of so many seconds.
const WINDOW_S: f64 = 10.0;
/// How long a look may take. Health and metrics are answered whatever else goes on; the status is not.
const PATIENCE: Duration = Duration::from_secs(5);
const STATUS_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the figures of one second and end, as where standard output is no terminal
    #[arg(long)]
    once: bool,
    /// As --once, as one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows it until `q` or Ctrl-C, or once.
pub async fn run(config: &Config, Args { once, json }: Args) -> Result<()> {
    let mut found = Found::of(config).await?;
    let has_screen = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    if json || once || !has_screen {
        return self::once(&found, json).await;
    }
    let mut leave = Leave::new()?;
    let (screen, mut history) = (Screen::enter().map_err(|error| no_screen(&error))?, History::default());
    if screen.has_keys() {
        leave.heed_keys()?;
    }
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = leave.wanted() => return Ok(()),
        }
        let text = tokio::select! {
            text = look_again(config, &mut found, &mut history) => text,
            () = leave.wanted() => return Ok(()),
        };
        screen.draw(&view::fitted(&text, screen.size())).map_err(|error| no_screen(&error))?;
    }
}

fn no_screen(error: &std::io::Error) -> Error {
    Error::internal(format!("the terminal cannot be written to: {error}; `ragstone top --once` needs none"))
}

/// The figures of a second.
async fn once(found: &Found, json: bool) -> Result<()> {
    let clock = Stopwatch::start();
    let before = found.look(&clock).await?.0;
    let now = tokio::select! {
        () = tokio::time::sleep(EVERY) => found.look(&clock).await?,
        interrupted = access::interrupted() => return Err(interrupted),
    };
    let (look, unknown) = now;
    let figures = figures(Some(&before), &look);
    if !json {
        let notes: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        return output::text(&view::text(&found.title(&figures), &figures, &notes));
    }
    let mut value = json!(figures);
    value["address"] = found.record.address.clone().into();
    value["pid"] = found.record.pid.into();
    output::json(&value)
}

/// The looks of the last seconds.
#[derive(Default)]
struct History {
    clock: Option<Stopwatch>,
    looks: VecDeque<Look>,
}

impl History {
    fn clock(&mut self) -> Stopwatch {
        self.clock.get_or_insert_with(Stopwatch::start).clone()
    }

    /// What was before belongs to another process.
    fn begin_anew(&mut self) {
        self.looks.clear();
    }

    /// Adds a look. One that is older than the window, or as old, stays: rates are of the time since.
    fn add(&mut self, look: Look) -> Figures {
        while self.looks.get(1).is_some_and(|second| look.at_s - second.at_s >= WINDOW_S) {
            self.looks.pop_front();
        }
        let figures = figures(self.looks.front(), &look);
        self.looks.push_back(look);
        figures
    }
}

/// Looks, and where nothing answers any more looks for another service of the folder; what is to be shown.
async fn look_again(config: &Config, found: &mut Found, history: &mut History) -> String {
    match found.look(&history.clock()).await {
        Ok((look, unknown)) => {
            let figures = history.add(look);
            let notes: Vec<String> = unknown.iter().map(ToString::to_string).collect();
            view::text(&found.title(&figures), &figures, &notes)
        }
        Err(error) => {
            let (title, error) = (found.heading(), output::one_line(&error.to_string(), 200));
            match Found::of(config).await {
                Ok(other) => {
                    *found = other;
                    history.begin_anew();
                    format!("{title}\n\nit did not answer: {error}\n")
                }
                Err(gone) => {
                    format!("{title}\n\n{}\nlooking again each second\n", output::one_line(&gone.to_string(), 200))
                }
            }
        }
    }
}

/// A running service.
struct Found {
    record: ServiceRecord,
    client: Client,
    /// Where metrics are answered whatever else goes on.
    health: Client,
}

impl Found {
    async fn of(config: &Config) -> Result<Self> {
        let (record, client) = access::running(config).await?;
        let health = match &record.health {
            Some(address) => Client::new(address, &record.token)?,
            // A command that has the folder open itself.
            None => client.clone(),
        };
        Ok(Self { record, client, health })
    }

    /// Its figures now, and why its status is unknown, where it is.
    async fn look(&self, clock: &Stopwatch) -> Result<(Look, Option<Error>)> {
        let text = timeout(PATIENCE, self.health.text(&["metrics"])).await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, format!("{} does not answer within 5 s", self.record.address))
        })??;
        let samples = Samples::read(&text)?;
        let at_s = clock.elapsed_s();
        // With its queues full, a service still has metrics.
        let (status, unknown) = match timeout(STATUS_PATIENCE, self.client.get(&["v1", "cache", "status"])).await {
            Ok(Ok(status)) => (status, None),
            Ok(Err(error)) => (Value::Null, Some(error)),
            Err(_) => {
                let message = "the service has no time to list its jobs now";
                (Value::Null, Some(Error::new(ErrorKind::Unavailable, message)))
            }
        };
        Ok((Look { at_s, samples, status }, unknown))
    }

    fn heading(&self) -> String {
        let ServiceRecord { address, pid, .. } = &self.record;
        format!("ragstone {}, {address}, process {pid}", env!("CARGO_PKG_VERSION"))
    }

    fn title(&self, figures: &Figures) -> String {
        let model = figures.model.as_deref().unwrap_or_default();
        let separator = if model.is_empty() { "" } else { ", " };
        format!("{}{separator}{}", self.heading(), output::one_line(model, 40))
    }
}

/// What ends the screen: `q`, Ctrl-C, a signal.
struct Leave {
    keys: Option<mpsc::Receiver<()>>,
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 3],
}

impl Leave {
    /// From here on signals end nothing else: the terminal is to be put right first.
    fn new() -> Result<Self> {
        #[cfg(unix)]
        let signals = {
            use tokio::signal::unix::{SignalKind, signal};
            let failed = |error| Error::internal(format!("signals cannot be received: {error}"));
            let of = |kind| signal(kind).map_err(failed);
            [of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]
        };
        Ok(Self {
            keys: None,
            #[cfg(unix)]
            signals,
        })
    }

    /// Reads keys, too. The thread that does ends with the process, or with its input.
    fn heed_keys(&mut self) -> Result<()> {
        let (sender, keys) = mpsc::channel(1);
        Env::spawn("top-keys", move || {
            let is_quit = |key: &std::io::Result<u8>| matches!(key, Ok(b'q' | b'Q') | Err(_));
            if std::io::stdin().lock().bytes().any(|key| is_quit(&key)) {
                // Nobody listens any more where the screen is gone.
                let _ = sender.blocking_send(());
            }
        })?;
        self.keys = Some(keys);
        Ok(())
    }

    /// Returns when somebody wants to leave.
    async fn wanted(&mut self) {
        let keys = &mut self.keys;
        let key = async {
            let pressed = match keys {
                Some(keys) => keys.recv().await.is_some(),
                None => false,
            };
            if !pressed {
                // An input that has ended says nothing; signals still do.
                std::future::pending().await
            }
        };
        #[cfg(unix)]
        {
            let [interrupt, terminate, hangup] = &mut self.signals;
            tokio::select! {
                () = key => {}
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        }
        #[cfg(not(unix))]
        tokio::select! {
            () = key => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_ten_seconds() {
        let mut history = History::default();
        let mut look = |second: u32| {
            let samples = Samples::read(&format!("ragstone_generated_tokens_total {}\n", second * second)).unwrap();
            history.add(Look { at_s: second.into(), samples, status: Value::Null })
        };
        assert_eq!((look(0).window_s, look(1).window_s), (0.0, 1.0));
        let last = (2..=30).map(&mut look).last().unwrap();
        assert_eq!((last.window_s, last.generated_tokens.per_s), (10.0, 50.0));
        // One that came late: the window is longer rather than empty.
        assert_eq!(look(55).window_s, 25.0);
        history.begin_anew();
        assert!(history.looks.is_empty());
    }
}
