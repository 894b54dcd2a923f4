//! `ragstone migrate`

use std::fmt::Write;
use std::path::Path;

use ragstone_env::Env;
use ragstone_migrations::{Check, Status, Step, Taken};
use ragstone_service::config::Config;
use ragstone_service::data_folder::{DataFolder, HeldFolder};
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};
use serde_json::json;

use crate::error::{Error, ErrorKind, Result};

/// What is on disk has a format; a newer ragstone brings an older one up to its own.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the data folder's format, the one that this ragstone wants, and the steps between
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Take the steps; a start takes those that are quick and lose nothing by itself
    Up {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        /// Say which steps there are, and take none
        #[arg(long)]
        dry_run: bool,
    },
    /// Look whether everything that the data folder's format promises is so
    Verify {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs a subcommand. They work on the folder itself and not through a service: one that runs has brought it up already.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    let data = config.data()?;
    match command {
        Command::Status { json } | Command::Up { json, dry_run: true } => {
            let status = ragstone_migrations::status(&data)?;
            if json { output::json(&status) } else { output::text(&shown(&status, &data)) }
        }
        // Nothing to do is no reason to make a folder.
        Command::Up { json, .. } if !DataFolder::is_used(&data) => {
            if json {
                output::json(&json!({ "taken": [] }))
            } else {
                output::line(&no_data(&data))
            }
        }
        Command::Verify { json } if !DataFolder::is_used(&data) => {
            if json {
                output::json(&json!({ "ok": true, "checks": [] }))
            } else {
                output::line(&no_data(&data))
            }
        }
        Command::Up { json, dry_run: false } => {
            let env = Env::from_environment()?;
            let taken = on_folder(config, "migrate up", move |held| up(held, &env)).await?;
            if json { output::json(&json!({ "taken": taken })) } else { output::text(&told(&taken)) }
        }
        Command::Verify { json } => {
            let work = |held: &HeldFolder| ragstone_migrations::verify(held.path());
            let checks = on_folder(config, "migrate verify", work).await?;
            if json {
                output::json(&json!({ "ok": checks.iter().all(|check| check.ok), "checks": checks }))?;
            } else {
                output::text(&listed(&checks))?;
            }
            complain(&checks)
        }
    }
}

fn up(held: &HeldFolder, env: &Env) -> Result<Vec<Taken>> {
    let mut running = None;
    let mut begin = |step: &Step| {
        let bar = Progress::new(format!("format {} to {}: {}", step.from, step.to, step.what), Unit::Nothing);
        bar.tick();
        running = Some(bar);
    };
    ragstone_migrations::up(held.path(), env, &mut begin)
}

/// Works under the folder's lock, on a thread that may wait for the disk.
async fn on_folder<T: Send + 'static>(
    config: &Config,
    command: &str,
    work: impl FnOnce(&HeldFolder) -> Result<T> + Send + 'static,
) -> Result<T> {
    let folder = DataFolder::existing(&config.data()?)?;
    let advice = "stop it, or wait until it ends; a running service has brought its folder up to its own format";
    let held = folder.try_hold(command)?.ok_or_else(|| folder.in_use_with(advice))?;
    let bar = Progress::new(command.to_owned(), Unit::Nothing);
    let worked = bar.during(tokio::task::spawn_blocking(move || work(&held))).await;
    worked.map_err(|error| Error::internal(format!("the migration broke off: {error}")))?
}

fn no_data(data: &Path) -> String {
    format!("nothing to do: there is no data in {}", data.display())
}

fn shown(status: &Status, data: &Path) -> String {
    let mut out = match status.found {
        Some(found) => format!("format {found}, wanted {}\n", status.wanted),
        None => format!("no data yet in {}; the first start makes format {}\n", data.display(), status.wanted),
    };
    for Step { from, to, what, automatic, .. } in &status.steps {
        let by = if *automatic { "taken by the next start, or" } else { "to be taken" };
        let _ = writeln!(out, "  {from} -> {to}: {what} ({by} with `ragstone migrate up`)");
    }
    out
}

fn told(taken: &[Taken]) -> String {
    if taken.is_empty() {
        return "nothing to do\n".to_owned();
    }
    taken.iter().map(|Taken { to, done }| format!("format {to}: {done}\n")).collect()
}

fn listed(checks: &[Check]) -> String {
    if checks.is_empty() {
        return "nothing to verify\n".to_owned();
    }
    let line =
        |check: &Check| format!("{}: {} ({})\n", if check.ok { "true" } else { "NOT TRUE" }, check.what, check.found);
    checks.iter().map(line).collect()
}

fn complain(checks: &[Check]) -> Result<()> {
    let wrong = checks.iter().filter(|check| !check.ok).count();
    if wrong == 0 {
        return Ok(());
    }
    let message = format!(
        "{wrong} of {} promises of the data folder's format do not hold; the next start repairs what it can, and \
         everything in `kv` can be computed again",
        checks.len()
    );
    Err(Error::new(ErrorKind::Incompatible, message))
}
