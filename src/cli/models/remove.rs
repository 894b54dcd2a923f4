//! `ragstone models remove`

use std::io::{BufRead, IsTerminal, Write};

use ragstone_models::hub::stored::Removal;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::table::bytes;
use serde_json::json;

use super::hub_id;
use crate::cli::models::here::{self, InUse, Own};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// As ragstone models list prints it; @REVISION removes one revision and keeps the others
    #[arg(value_name = "ID[@REVISION]")]
    id: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Say what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What goes.
enum Target {
    Hub(Removal),
    /// A model that ragstone keeps itself, and its bytes.
    Own(Own, u64),
}

impl Target {
    fn bytes(&self) -> u64 {
        match self {
            Self::Hub(removal) => removal.bytes(),
            Self::Own(_, bytes) => *bytes,
        }
    }

    fn is_used(&self, used: &InUse) -> bool {
        match self {
            Self::Hub(removal) => removal.snapshots().iter().any(|snapshot| used.has_snapshot(snapshot)),
            Self::Own(own, _) => used.has(&own.path()),
        }
    }
}

/// Removes a model, unless the service has it.
pub async fn run(config: &Config, args: &Args) -> Result<()> {
    let used = InUse::of(config).await?;
    let data = config.data()?;
    let own = here::own(&data).into_iter().find(|own| own.id == args.id && own.folder.is_dir());
    let target = match own {
        Some(own) => {
            let found = here::all(&data, &used).into_iter().find(|here| here.id == own.id);
            Target::Own(own, found.map_or(0, |here| here.bytes))
        }
        None => {
            let (id, has_revision) = hub_id(&args.id)?;
            Target::Hub(Removal::of(&id, has_revision)?)
        }
    };
    if target.is_used(&used) {
        let message = format!(
            "the running service (process {}) uses {}; stop it before its model is removed",
            used.pid.unwrap_or_default(),
            args.id
        );
        return Err(Error::new(ErrorKind::Incompatible, message));
    }
    let freed = target.bytes();
    if !args.dry_run {
        confirm(args, freed)?;
        match &target {
            Target::Hub(removal) => removal.run()?,
            Target::Own(Own { folder, .. }, _) => {
                std::fs::remove_dir_all(folder).map_err(|error| Error::io("cannot remove", folder, error))?;
            }
        }
    }
    if args.json {
        return output::json(&json!({ "id": args.id, "bytes": freed, "dry_run": args.dry_run }));
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    output::line(&format!("{verb} {} ({})", output::one_line(&args.id, 200), bytes(freed)))
}

/// Asks whoever sits before the terminal; elsewhere `--yes` is wanted.
fn confirm(args: &Args, freed: u64) -> Result<()> {
    if args.yes {
        return Ok(());
    }
    let what = format!("{} ({})", args.id, bytes(freed));
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Error::invalid_input(format!(
            "this would remove {what}: add --yes to do it, or --dry-run to look"
        )));
    }
    let mut terminal = std::io::stderr().lock();
    let mut answer = String::new();
    let asked = write!(terminal, "remove {what}? [y/N] ").and_then(|()| terminal.flush());
    asked
        .and_then(|()| std::io::stdin().lock().read_line(&mut answer))
        .map_err(|error| Error::internal(error.to_string()))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled, "nothing was removed")),
    }
}
