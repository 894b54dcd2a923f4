//! `ragstone ingest`

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use ragstone_storage::env::Stopwatch;
use serde::Serialize;

use crate::access::{self, interrupted};
use crate::api::collections::Ingest;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::document::shown;
use crate::error::{Error, ErrorKind, Result};
use crate::ingest::{IngestEvent, IngestReport};
use crate::progress::{Progress, Unit, beside_bars};
use crate::watch::Watch;

/// Between two looks at folders that are watched, at the least.
const LOOK: Duration = Duration::from_secs(1);
/// Where a look takes long, this many times as long: a twentieth of a processor is enough for it.
const IDLE_SHARE: u32 = 20;
/// Changed files that are named in one request.
const MOST_NAMED: usize = 1000;
/// Files that are named on a terminal; `--json` has them all.
const MAX_LISTED: usize = 200;
/// Kinds of files that are named; `--json` has them all.
const MAX_KINDS: usize = 8;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and folders: text in any encoding, Markdown, HTML, source code, JSON and JSON lines, CSV, PDF, Word (.docx), PowerPoint
    /// (.pptx), Excel and OpenDocument sheets, EPUB, e-mail (.eml, .mbox); what is already there unchanged is left alone
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The collection to add to; created where it is missing
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// Remove documents, and their KV, of files that were in these folders and are gone
    #[arg(long)]
    prune: bool,
    /// Go on, and follow changes and deletions (as --prune does) until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print one JSON object; with --watch, one for each change
    #[arg(long)]
    json: bool,
}

/// What an ingest came to, for programs.
#[derive(Serialize)]
struct Ingested<'a> {
    #[serde(flatten)]
    report: IngestReport,
    skipped: Vec<Skipped<'a>>,
    /// Files of other kinds, by the endings of their names.
    left_alone: &'a BTreeMap<String, usize>,
    /// Hidden files and folders, which were not looked into.
    hidden: usize,
}

/// A file that was not ingested.
#[derive(Serialize)]
struct Skipped<'a> {
    path: &'a str,
    reason: &'a str,
}

/// Ingests, after what earlier commands left unfinished. Files that cannot be read are named, and make the exit status 1.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let paths = args.paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>()?;
    if args.watch {
        return follow(config, &args, paths).await;
    }
    complain(&ingest(config, &args, &Ingest { paths, prune: args.prune, only: None }).await?)
}

/// Ingests, and then whatever changes, until somebody ends it.
async fn follow(config: &Config, args: &Args, paths: Vec<PathBuf>) -> Result<()> {
    let mut watch = Watch::begin(paths.clone())?;
    let mut wanted = Ingest { paths, prune: true, only: None };
    report(ingest(config, args, &wanted).await?);
    beside_bars(|| eprintln!("watching; Ctrl-C ends it"));
    let mut last_failure = String::new();
    // One for all looks: a signal between two of them is heard by the next.
    let mut ended = std::pin::pin!(interrupted());
    loop {
        let looked = Stopwatch::start();
        let looking = tokio::task::spawn_blocking(move || {
            let changes = watch.look();
            (watch, changes)
        });
        let changes;
        (watch, changes) = tokio::select! {
            looked = looking => looked.map_err(|error| Error::internal(format!("a look at the files broke off: {error}")))?,
            _ = &mut ended => return Ok(()),
        };
        let changes = changes?;
        let pause = LOOK.max(looked.elapsed() * IDLE_SHARE);
        if !changes.is_empty() {
            // So many are read with all others: a request has a bound.
            wanted.only = Some(changes.files()).filter(|files| files.len() <= MOST_NAMED);
            match ingest(config, args, &wanted).await {
                Ok(skipped) => {
                    watch.ingested(changes);
                    last_failure.clear();
                    report(skipped);
                }
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                // A service that restarts, a store that another command has open: it is tried again, and told once.
                Err(error) => {
                    let failure = format!("ragstone: {error}; trying again");
                    if failure != last_failure {
                        beside_bars(|| eprintln!("{failure}"));
                        last_failure = failure;
                    }
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = &mut ended => return Ok(()),
        }
    }
}

/// Names the files that were not ingested, and goes on.
fn report(skipped: Skips) {
    if let Err(error) = complain(&skipped) {
        beside_bars(|| eprintln!("ragstone: {error}"));
    }
}

/// Ingests once, and prints what it came to; which files were skipped, and why.
async fn ingest(config: &Config, args: &Args, wanted: &Ingest) -> Result<Skips> {
    let work = async |client: &Client| {
        let path = ["v1", "collections", &args.collection, "ingest"];
        let mut events = std::pin::pin!(client.events(&path, wanted).await?);
        let bar = Progress::new(format!("ingesting into {}", args.collection), Unit::Items);
        let (mut skipped, mut left_alone) = (Vec::new(), (BTreeMap::new(), 0));
        while let Some(event) = bar.during(events.next()).await.transpose()? {
            match event {
                IngestEvent::Progress { files_done, files_total, .. } => bar.set(files_done as u64, files_total as u64),
                IngestEvent::Skipped { path, reason } => skipped.push((path, reason)),
                IngestEvent::Parked { collection, paths } => {
                    beside_bars(|| eprintln!("ragstone: {}", parked(&collection, &paths)));
                }
                IngestEvent::LeftAlone { kinds, hidden } => left_alone = (kinds, hidden),
                IngestEvent::Finished(report) => return Ok((report, skipped, left_alone)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the ingest broke off; run the command again, it goes on where it was"))
    };
    let told = |is_remote: bool| Some(interrupted_ingest(is_remote).to_owned());
    let (report, skipped, (kinds, hidden)) = access::creating_told(config, "ingest", work, &told).await?;
    let has_others = report.files > skipped.len();
    if args.json {
        let skipped = skipped.iter().map(|(path, reason)| Skipped { path, reason }).collect();
        output::json(&Ingested { report, skipped, left_alone: &kinds, hidden })?;
    } else {
        output::line(&summary(&report, &args.collection))?;
        for line in [others(&kinds), hidden_ones(hidden), gone(&report)].into_iter().flatten() {
            output::line(&line)?;
        }
    }
    Ok(Skips { files: skipped, has_others })
}

/// Where a path leads to. It is journaled and sent as JSON, which has no other bytes than UTF-8.
fn absolute(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(|error| Error::io("cannot ingest", path, error))?;
    if path.to_str().is_none() {
        let message =
            format!("cannot ingest {}: its name is not valid UTF-8; rename it, or name its folder", shown(&path));
        return Err(Error::invalid_input(message));
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
    let empty = match changes.documents_empty {
        0 => String::new(),
        empty => format!(", {empty} without text"),
    };
    format!(
        "{collection}: {} added, {} replaced, {} unchanged{empty}; {} added, {} removed ({})",
        output::count(changes.documents_added as u64, "document", "documents"),
        changes.documents_replaced,
        changes.documents_unchanged,
        output::count(changes.passages_added as u64, "passage", "passages"),
        changes.passages_removed,
        files(report),
    )
}

/// As many as the bar counted: `4 files, 1 not read in full`
fn files(report: &IngestReport) -> String {
    let files = output::count(report.files as u64, "file", "files");
    match report.files_skipped {
        0 => files,
        skipped => format!("{files}, {skipped} not read in full"),
    }
}

/// What becomes of an ingest that somebody interrupts.
fn interrupted_ingest(is_remote: bool) -> &'static str {
    if is_remote {
        "interrupted; the ingest goes on in the running service, where `ragstone top` shows it"
    } else {
        "interrupted; documents that were stored stay, and the same command or the next `ragstone serve` goes on with the others"
    }
}

/// `3 files of other kinds were left alone: 2 .png, 1 without an ending`
fn others(kinds: &BTreeMap<String, usize>) -> Option<String> {
    let files = kinds.values().sum::<usize>() as u64;
    let mut by_number: Vec<_> = kinds.iter().collect();
    by_number.sort_by_key(|(_, number)| Reverse(**number));
    let name = |(kind, number): &(&String, &usize)| match kind.as_str() {
        "" => format!("{number} without an ending"),
        kind => format!("{number} {kind}"),
    };
    let mut named: Vec<String> = by_number.iter().take(MAX_KINDS).map(name).collect();
    if by_number.len() > MAX_KINDS {
        named.push("…".to_owned());
    }
    let of = output::count(files, "file of another kind was", "files of other kinds were");
    (files > 0).then(|| format!("{of} left alone: {}", named.join(", ")))
}

fn hidden_ones(hidden: usize) -> Option<String> {
    let of = output::count(hidden as u64, "hidden file or folder was", "hidden files or folders were");
    (hidden > 0).then(|| format!("{of} left out; one that is named itself is read"))
}

fn gone(report: &IngestReport) -> Option<String> {
    let documents = output::count(report.documents_gone as u64, "document", "documents");
    match (report.documents_gone, report.documents_pruned) {
        (0, _) => None,
        (_, 0) => Some(format!("{documents} of files that are gone can still be cited; --prune removes them")),
        _ => Some(format!("{documents} of files that are gone were removed")),
    }
}

/// Files that were not ingested, with why, and whether others were.
struct Skips {
    files: Vec<(String, String)>,
    has_others: bool,
}

/// Names the files that were not ingested, if any.
fn complain(Skips { files: skipped, has_others }: &Skips) -> Result<()> {
    let others = if *has_others { " (the others were)" } else { "" };
    if skipped.is_empty() {
        return Ok(());
    }
    let mut lines: String =
        skipped.iter().take(MAX_LISTED).map(|(path, reason)| format!("\n  {path}: {reason}")).collect();
    if skipped.len() > MAX_LISTED {
        lines.push_str(&format!("\n  and {} more; --json names them all", skipped.len() - MAX_LISTED));
    }
    let files = output::count(skipped.len() as u64, "file was", "files were");
    let message = format!("{files} not ingested{others}:{lines}");
    Err(Error::new(ErrorKind::NotFound, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_and_not_read_is_counted() {
        let report = IngestReport { files: 4, files_skipped: 1, ..IngestReport::default() };
        assert!(summary(&report, "c").ends_with("(4 files, 1 not read in full)"), "{}", summary(&report, "c"));
        assert!(summary(&IngestReport { files: 1, ..IngestReport::default() }, "c").ends_with("(1 file)"));
        assert_eq!(hidden_ones(0), None);
        assert!(hidden_ones(1).unwrap().starts_with("1 hidden file or folder was left out"));
    }

    #[test]
    fn who_interrupts_hears_what_goes_on() {
        assert!(interrupted_ingest(true).contains("goes on in the running service"));
        assert!(interrupted_ingest(false).contains("the same command or the next `ragstone serve` goes on"));
    }
}
