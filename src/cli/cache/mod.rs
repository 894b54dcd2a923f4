//! `ragstone cache`

mod entries;
mod filter;
mod invalidate;
mod status;
mod transfer;
mod upkeep;
mod warm;

pub use self::invalidate::{How, remove_collection, remove_document};
pub use self::warm::{Wanted as WarmUp, jobs_table};
use ragstone_service::config::Config;

use crate::error::Result;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show what every tier holds, what the start found, and what is on its way
    Status(status::Args),
    /// List entries, last used first
    List(entries::ListArgs),
    /// Compute a collection's entries before anybody asks
    ///
    /// The job is durable: after Ctrl-C or a kill, the running service or the next one goes on with it, and so does the same
    /// command. What is there already is skipped. Answers go first.
    Warm(warm::Args),
    /// Take entries out of the tiers; they are computed again when they are needed
    Evict(entries::EvictArgs),
    /// Keep entries from being evicted
    Pin(entries::ChangeArgs),
    /// Let pinned entries be evicted again
    Unpin(entries::ChangeArgs),
    /// Remove a document, or a collection, from the corpus and from every tier
    ///
    /// Nothing of it can be found, cited or loaded any more, also after a restart. Passages that another document has, too,
    /// stay. To free room and keep the documents, use ragstone cache evict.
    Invalidate(invalidate::Args),
    /// Read every frame and compare it with its checksum; remove what is damaged
    ///
    /// Damaged entries are removed (a copy of what the disk had goes into quarantine) and computed again when they are
    /// needed. The exit status is 1 if there are any.
    Verify(upkeep::VerifyArgs),
    /// Copy entries into a folder or bucket
    ///
    /// Entries of the model in use are copied, with what stands before them. What is there already is skipped, so that a copy
    /// that broke off is finished by the same command.
    Export(transfer::Args),
    /// Copy entries from a folder or bucket to this machine's disk
    ///
    /// Entries of the model in use are copied, with what stands before them. What is there already is skipped, so that a copy
    /// that broke off is finished by the same command. Every frame is verified.
    Import(transfer::Args),
    /// Free what deleted entries still take on disk, and clear the bucket of what is old, broken or lost
    Gc(upkeep::GcArgs),
}

/// Runs a subcommand.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    match command {
        Command::Status(args) => status::run(config, args).await,
        Command::List(args) => entries::list(config, args).await,
        Command::Warm(args) => warm::run(config, args).await,
        Command::Evict(args) => entries::evict(config, args).await,
        Command::Pin(args) => entries::pin(config, args).await,
        Command::Unpin(args) => entries::unpin(config, args).await,
        Command::Invalidate(args) => invalidate::run(config, args).await,
        Command::Verify(args) => upkeep::verify(config, args).await,
        Command::Export(args) => transfer::export(config, args).await,
        Command::Import(args) => transfer::import(config, args).await,
        Command::Gc(args) => upkeep::gc(config, args).await,
    }
}
