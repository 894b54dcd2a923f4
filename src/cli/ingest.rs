//! `ragstone ingest`

use std::path::{Path, PathBuf};

use futures::StreamExt;
use serde_json::json;

use crate::access;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::document::shown;
use crate::error::{Error, ErrorKind, Result};
use crate::ingest::{IngestEvent, IngestReport};
use crate::progress::{Progress, Unit, beside_bars};

/// Files that are named on a terminal; `--json` has them all.
const MAX_LISTED: usize = 200;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and folders; what is already there unchanged is left alone
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The collection to add to; created where it is missing
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Ingests, after what earlier commands left unfinished. Files that cannot be read are named, and make the exit status 1.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let paths = args.paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>()?;
    let (report, skipped) = access::creating(config, "ingest", async |client: &Client| {
        let path = ["v1", "collections", &args.collection, "ingest"];
        let mut events = std::pin::pin!(client.events(&path, &json!({ "paths": paths })).await?);
        let bar = Progress::new(format!("ingesting into {}", args.collection), Unit::Items);
        let mut skipped = Vec::new();
        while let Some(event) = events.next().await.transpose()? {
            let event = serde_json::from_value(event)
                .map_err(|error| Error::internal(format!("the service sent something unexpected: {error}")))?;
            match event {
                IngestEvent::Progress { files_done, files_total, .. } => bar.set(files_done as u64, files_total as u64),
                IngestEvent::Skipped { path, reason } => skipped.push((path, reason)),
                IngestEvent::Parked { collection, paths } => {
                    beside_bars(|| eprintln!("ragstone: {}", parked(&collection, &paths)));
                }
                IngestEvent::Finished(report) => return Ok((report, skipped)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the ingest broke off; run the command again, it goes on where it was"))
    })
    .await?;
    if args.json {
        let mut value = json!(report);
        value["skipped"] = skipped.iter().map(|(path, reason)| json!({ "path": path, "reason": reason })).collect();
        output::json(&value)?;
    } else {
        output::line(&summary(&report, &args.collection))?;
    }
    complain(&skipped)
}

/// Where a path leads to. It is journaled and sent as JSON, which has no other bytes than UTF-8.
fn absolute(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(|error| Error::io("cannot ingest", path, &error))?;
    if path.to_str().is_none() {
        let message =
            format!("cannot ingest {}: its name is not valid UTF-8; rename it, or name its folder", shown(&path));
        return Err(Error::invalid(message));
    }
    Ok(path)
}

fn parked(collection: &str, paths: &[String]) -> String {
    let paths = paths.join(" ");
    format!(
        "an earlier ingest is parked, because it ended ragstone again and again; to try once more: \
         ragstone ingest --collection {collection} {paths}"
    )
}

fn summary(report: &IngestReport, collection: &str) -> String {
    let changes = &report.changes;
    format!(
        "{collection}: {} added, {} replaced, {} unchanged; {} added, {} removed ({})",
        output::count(changes.documents_added as u64, "document", "documents"),
        changes.documents_replaced,
        changes.documents_unchanged,
        output::count(changes.passages_added as u64, "passage", "passages"),
        changes.passages_removed,
        output::count(report.files as u64, "file", "files"),
    )
}

fn complain(skipped: &[(String, String)]) -> Result<()> {
    if skipped.is_empty() {
        return Ok(());
    }
    let mut lines: String =
        skipped.iter().take(MAX_LISTED).map(|(path, reason)| format!("\n  {path}: {reason}")).collect();
    if skipped.len() > MAX_LISTED {
        lines.push_str(&format!("\n  and {} more; --json names them all", skipped.len() - MAX_LISTED));
    }
    let files = output::count(skipped.len() as u64, "file was", "files were");
    let message = format!("{files} not ingested (the others were):{lines}");
    Err(Error::new(ErrorKind::NotFound, message))
}
