//! `ragstone ingest`

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use ragstone_actors::ingests::cancelled;
use ragstone_storage::env::Stopwatch;
use serde::Serialize;

use crate::access::{self, interrupted};
use crate::api::collections::Ingest;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::document::shown;
use crate::error::{Error, ErrorKind, Result};
use crate::ingest::{IngestEvent, IngestReport, NotTaken, NotTakenKind};
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
    /// Files that were not taken whole.
    skipped: &'a [NotTaken],
    /// Files of other kinds, by the endings of their names.
    left_alone: &'a BTreeMap<String, usize>,
    /// Hidden files and folders, which were not looked into.
    hidden: usize,
}

/// How far an ingest is: files that are done, and all of them.
type Progressed = Cell<Option<(usize, usize)>>;

/// Ingests, after what earlier commands left unfinished. Files that are not taken whole are named; those that cannot be read make the exit
/// status 1.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let paths = args.paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>()?;
    if args.watch {
        return follow(config, &args, paths).await;
    }
    name_not_taken(&ingest(config, &args, &Ingest { paths, prune: args.prune, only: None }).await?)
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
                Err(error) if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::NotFound) => return Err(error),
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

/// Names the files that were not taken whole, and goes on.
fn report(not_taken: NotTakenFiles) {
    if let Err(error) = name_not_taken(&not_taken) {
        beside_bars(|| eprintln!("ragstone: {error}"));
    }
}

/// Ingests once, and prints what it came to; which files were not taken whole, and why.
async fn ingest(config: &Config, args: &Args, wanted: &Ingest) -> Result<NotTakenFiles> {
    let far = Progressed::default();
    let work = async |client: &Client| {
        let path = ["v1", "collections", &args.collection, "ingest"];
        let mut events = std::pin::pin!(client.events(&path, wanted).await?);
        let bar = Progress::new(format!("ingesting into {}", args.collection), Unit::Items);
        let (mut skipped, mut left_alone, mut waits_for) = (Vec::new(), (BTreeMap::new(), 0), String::new());
        while let Some(event) = bar.during(events.next()).await.transpose()? {
            match event {
                IngestEvent::Progress { files_done, files_total, .. } => {
                    far.set(Some((files_done, files_total)));
                    bar.set(files_done as u64, files_total as u64);
                }
                IngestEvent::Skipped(file) => skipped.push(file),
                IngestEvent::Parked { collection, paths } => {
                    beside_bars(|| eprintln!("ragstone: {}", parked(&collection, &paths)));
                }
                IngestEvent::LeftAlone { kinds, hidden } => left_alone = (kinds, hidden),
                IngestEvent::Waiting { collection, files_done, files_total } if collection != waits_for => {
                    beside_bars(|| eprintln!("{}", waiting(&collection, files_done, files_total)));
                    waits_for = collection;
                }
                IngestEvent::Waiting { .. } => {}
                // Not to be tried again.
                IngestEvent::Cancelled => return Err(Error::new(ErrorKind::NotFound, cancelled().to_string())),
                IngestEvent::Stopped { files_done, files_total } => {
                    far.set(Some((files_done, files_total)));
                    let done = so_far(far.get());
                    let message = format!("the service stops; {done}, and it goes on when it starts again");
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
                IngestEvent::Finished(report) => return Ok((report, skipped, left_alone)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the ingest broke off; run the command again, it goes on where it was"))
    };
    let told = |is_remote: bool| Some(interrupted_ingest(is_remote, far.get()));
    let (report, skipped, (kinds, hidden)) = access::creating_job(config, "ingest", work, &told).await?;
    if args.json {
        output::json(&Ingested { report, skipped: &skipped, left_alone: &kinds, hidden })?;
    } else {
        output::line(&summary(&report, &args.collection))?;
        for line in [others(&kinds), hidden_ones(hidden), gone(&report)].into_iter().flatten() {
            output::line(&line)?;
        }
    }
    Ok(NotTakenFiles { files: skipped, of: report.files })
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

fn waiting(collection: &str, files_done: usize, files_total: usize) -> String {
    let far = if files_total > 0 { format!(" ({files_done} of {files_total} files)") } else { String::new() };
    let collection = output::one_line(collection, 200);
    format!(
        "waiting for the unfinished ingest into {collection}{far}; `ragstone collections delete {collection}` removes that collection and ends it"
    )
}

fn parked(collection: &str, paths: &[String]) -> String {
    let paths = paths.join(" ");
    format!(
        "an earlier ingest is parked, because it ended ragstone again and again; to try once more: \
         ragstone ingest --collection {collection} {paths}"
    )
}

/// `notes: 21 of 24 files taken, 1 in part, 1 without text, 1 not read; 20 documents added, …`: each file counts once.
fn summary(report: &IngestReport, collection: &str) -> String {
    let changes = &report.changes;
    // Of files that have others: those that are empty themselves are counted as files.
    let empty = match changes.documents_empty.saturating_sub(report.files_empty) {
        0 => String::new(),
        empty => format!(", {empty} without text"),
    };
    format!(
        "{collection}: {}; {} added, {} replaced, {} unchanged{empty}; {} added, {} removed",
        files(report),
        output::count(changes.documents_added as u64, "document", "documents"),
        changes.documents_replaced,
        changes.documents_unchanged,
        output::count(changes.passages_added as u64, "passage", "passages"),
        changes.passages_removed,
    )
}

/// As many as the bar counted: `4 files`, or `2 of 4 files taken, 1 in part, 1 not read`
fn files(report: &IngestReport) -> String {
    let IngestReport { files, files_skipped, files_partly, files_empty, .. } = *report;
    let others = [(files_partly, "in part"), (files_empty, "without text"), (files_skipped, "not read")];
    let whole = files.saturating_sub(files_partly + files_empty + files_skipped);
    let of = output::count(files as u64, "file", "files");
    let mut told = if whole == files { format!("{of} taken") } else { format!("{whole} of {of} taken") };
    for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
        told.push_str(&format!(", {count} {what}"));
    }
    told
}

/// `120 of 400 files are stored`
fn so_far(far: Option<(usize, usize)>) -> String {
    match far {
        Some((done, total)) if total > 0 => {
            format!("{done} of {} are stored", output::count(total as u64, "file", "files"))
        }
        _ => "no file is stored yet".to_owned(),
    }
}

/// What becomes of an ingest that somebody interrupts.
fn interrupted_ingest(is_remote: bool, far: Option<(usize, usize)>) -> String {
    if is_remote {
        "interrupted; the ingest goes on in the running service, where `ragstone top` shows it".to_owned()
    } else {
        format!("interrupted; {}; the same command, or the next `ragstone serve`, goes on with the others", so_far(far))
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

/// Files that were not taken whole, with why, of so many.
struct NotTakenFiles {
    files: Vec<NotTaken>,
    of: usize,
}

/// Names the files that were not taken whole, if any.
///
/// # Errors
/// The list, where it has others than empty ones.
fn name_not_taken(NotTakenFiles { files, of }: &NotTakenFiles) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let listed = files.iter().take(MAX_LISTED).map(|NotTaken { path, reason, .. }| format!("\n  {path}: {reason}"));
    let mut lines: String = listed.collect();
    if files.len() > MAX_LISTED {
        lines.push_str(&format!("\n  and {} more; --json names them all", files.len() - MAX_LISTED));
    }
    let (count, of) = (files.len(), output::count(*of as u64, "file", "files"));
    let message = format!("{count} of {of} {} not taken whole:{lines}", if count == 1 { "was" } else { "were" });
    if files.iter().all(|file| file.kind == NotTakenKind::Empty) {
        // Many a folder has such, and nothing is wrong with it.
        beside_bars(|| eprintln!("{message}"));
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotFound, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_counts_once() {
        let report =
            IngestReport { files: 24, files_skipped: 2, files_partly: 1, files_empty: 3, ..IngestReport::default() };
        let told = summary(&report, "c");
        assert!(
            told.starts_with("c: 18 of 24 files taken, 1 in part, 3 without text, 2 not read; 0 documents"),
            "{told}"
        );
        let told = summary(&IngestReport { files: 1, ..IngestReport::default() }, "c");
        assert!(told.starts_with("c: 1 file taken; "), "{told}");
        let mut empty = IngestReport { files: 2, files_empty: 1, ..IngestReport::default() };
        // One is a file of its own, the other a record among others.
        empty.changes.documents_empty = 2;
        let told = summary(&empty, "c");
        assert!(
            told.starts_with("c: 1 of 2 files taken, 1 without text; ") && told.contains("unchanged, 1 without text"),
            "{told}"
        );
        assert_eq!(hidden_ones(0), None);
        assert!(hidden_ones(1).unwrap().starts_with("1 hidden file or folder was left out"));
    }

    #[test]
    fn what_was_not_taken_is_named_within_bounds_and_fails_where_it_is_not_just_empty() {
        let file = |kind| NotTaken { path: "/a".into(), reason: "why".into(), kind };
        let files = |count, kind| NotTakenFiles { files: vec![file(kind); count], of: 1000 };
        name_not_taken(&files(0, NotTakenKind::Unread)).unwrap();
        name_not_taken(&files(3, NotTakenKind::Empty)).unwrap();
        let one = name_not_taken(&files(1, NotTakenKind::Partly)).unwrap_err().to_string();
        assert_eq!(one, "1 of 1000 files was not taken whole:\n  /a: why");
        let many = name_not_taken(&files(MAX_LISTED + 5, NotTakenKind::Unread)).unwrap_err().to_string();
        assert!(many.starts_with("205 of 1000 files were") && many.contains("and 5 more"), "{many}");
        assert_eq!(many.lines().count(), MAX_LISTED + 2);
    }

    #[test]
    fn who_interrupts_hears_what_is_stored_and_what_goes_on() {
        assert!(interrupted_ingest(true, Some((1, 2))).contains("goes on in the running service"));
        let alone = interrupted_ingest(false, Some((120, 400)));
        assert!(
            alone.contains("120 of 400 files are stored; the same command, or the next `ragstone serve`"),
            "{alone}"
        );
        assert!(interrupted_ingest(false, None).contains("no file is stored yet"));
    }
}
