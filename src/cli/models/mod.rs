//! `ragstone models`: which models are here, what one needs, fetching and removing them.

mod fetch;
mod here;
mod list;
mod remove;
mod show;

use ragstone_models::hub::{self, HubId};
use ragstone_models::model_source;
use ragstone_service::config::Config;

use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the models on this machine: the hub's cache, and ragstone's own
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Fetch models from the Hugging Face hub, and print where they lie; goes on where an earlier attempt broke off
    Fetch(fetch::Args),
    /// Remove a model from the hub's cache; wants --yes where nobody can be asked
    Remove(remove::Args),
    /// Show what a model needs of disk and memory, whether it is here or not
    Show(show::Args),
}

/// Runs a subcommand of `models`.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    match command {
        Command::List { json } => list::run(config, json).await,
        Command::Fetch(args) => fetch::run(config, args).await,
        Command::Remove(args) => remove::run(config, &args).await,
        Command::Show(args) => show::run(config, args).await,
    }
}

/// A hub id, and whether it names a revision.
fn hub_id(text: &str) -> Result<(HubId, bool)> {
    let id = HubId::parse(text).ok_or_else(|| Error::new(ErrorKind::NotFound, model_source::no_such_model(text)))?;
    Ok((id, text.contains('@')))
}

/// Refuses what needs the hub where it is switched off.
fn check_online(config: &Config, id: &HubId) -> Result<()> {
    if !hub::is_offline(config.surface.offline) {
        return Ok(());
    }
    let message =
        format!("{id} is to be asked for on the hub, and the network is switched off (--offline or HF_HUB_OFFLINE)");
    Err(Error::new(ErrorKind::Unavailable, message))
}
