//! What `ragstone ingest` tells people: what it came to, what was left out, what becomes of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use ragstone_actors::upkeep::ingests::{self, CancelledBy};
use ragstone_documents::shown;
use ragstone_service::ingest::{IngestReport, KeptFolder, NewFiles, NotTaken};
use ragstone_terminal::output;
use ragstone_terminal::progress::tell;
use ragstone_terminal::table;

use crate::error::{Error, ErrorKind, Result};

/// Files that are named on a terminal; `--json` has them all.
const MAX_LISTED: usize = 200;
/// Files of which something was left out that are named.
const MAX_LEFT_OUT: usize = 5;
/// Files of other kinds that are named.
const MAX_SUCH: usize = 2;
/// Kinds of files that are named; `--json` has them all.
const MAX_KINDS: usize = 8;

/// What a bar says while another ingest has the turn.
pub fn waits(collection: &str, other: &str, far: (usize, usize)) -> String {
    format!("waiting to ingest into {collection}: first comes {}", the_other(other, far))
}

/// What a bar says while an address is fetched: `fetching https://a.example/: 12 files, 1.3 MiB, 40 pages to go`
pub fn fetching(address: &str, files: usize, bytes: u64, waiting: Option<usize>) -> String {
    let address = output::one_line(address, 80);
    let waiting = waiting.filter(|waiting| *waiting > 0);
    let waiting = waiting.map(|waiting| format!(", {} to go", output::count(waiting as u64, "page", "pages")));
    let files = output::count(files as u64, "file", "files");
    format!("fetching {address}: {files}, {}{}", table::bytes(bytes), waiting.unwrap_or_default())
}

/// Which share of the work of an ingest is done, within files, too; `None` where there are only files of which documents are stored.
pub fn share(new: NewFiles) -> Option<f64> {
    (new.bytes_total > 0).then(|| new.bytes_done as f64 / new.bytes_total as f64)
}

fn the_other(collection: &str, (files_done, files_total): (usize, usize)) -> String {
    let far = if files_total > 0 { format!(" ({files_done} of {files_total} files)") } else { String::new() };
    format!("the unfinished ingest into {}{far}", output::one_line(collection, 200))
}

pub fn waiting(collection: &str, far: (usize, usize)) -> String {
    let other = the_other(collection, far);
    format!(
        "waiting for {other}; `ragstone ingest --list` shows its number, and `ragstone ingest --cancel NUMBER` ends it"
    )
}

pub fn parked(collection: &str, paths: &[String]) -> String {
    let paths = paths.join(" ");
    format!(
        "an earlier ingest is parked, because it ended ragstone again and again; to try once more: \
         ragstone ingest --collection {collection} {paths}"
    )
}

/// `notes: 21 of 24 files taken, 1 in part, 1 without text, 1 not read; 20 documents added, …`: each file counts once.
pub fn summary(report: &IngestReport, collection: &str) -> String {
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
    let mut told = match (whole == files, report.files_unchanged) {
        // Nothing new was sent.
        (true, 1..) if files == 0 => String::new(),
        (true, _) => format!("{of} taken"),
        (false, _) => format!("{whole} of {of} taken"),
    };
    if report.files_unchanged > 0 {
        let comma = if told.is_empty() { "" } else { ", " };
        told.push_str(&format!("{comma}{} as before", output::count(report.files_unchanged as u64, "file", "files")));
    }
    for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
        told.push_str(&format!(", {count} {what}"));
    }
    told
}

/// `120 of 400 files are stored`, or without their number, where this start has not found them yet, `120 files are stored`
pub fn so_far(far: Option<(usize, usize)>) -> String {
    match far {
        Some((done, total)) if total > 0 => {
            format!("{done} of {} are stored", output::count(total as u64, "file", "files"))
        }
        Some((done @ 1.., _)) => output::count(done as u64, "file is stored", "files are stored"),
        _ => "no file is stored yet".to_owned(),
    }
}

/// What became of an ingest that somebody cancelled.
pub fn cancelled(by: CancelledBy, far: (usize, usize)) -> String {
    match by {
        CancelledBy::Deletion => ingests::cancelled(by).to_string(),
        CancelledBy::Request if far.0 == 0 => {
            "the ingest was cancelled before any file was stored; the same command begins it again".to_owned()
        }
        CancelledBy::Request => {
            format!("the ingest was cancelled; {}; the same command goes on with the others", so_far(Some(far)))
        }
    }
}

/// What becomes of an ingest that somebody interrupts: in another process's service, which may be a command's that passes.
pub fn interrupted((is_remote, passes): (bool, bool), id: Option<u64>, far: Option<(usize, usize)>) -> String {
    let number = id.map_or_else(|| "NUMBER".to_owned(), |id| id.to_string());
    let rest = if far.is_some_and(|(done, _)| done > 0) { "the others" } else { "it" };
    match (is_remote, passes) {
        (true, false) => format!(
            "interrupted; the ingest goes on in the running service, where `ragstone ingest --list` shows how far it is, and \
             `ragstone ingest --cancel {number}` ends it"
        ),
        (true, true) => "interrupted; the ingest goes on in the command that has the data folder open, and when that ends, the same \
                         command, or the next `ragstone serve`, goes on with it"
            .to_owned(),
        (false, _) => {
            format!("interrupted; {}; the same command, or the next `ragstone serve`, goes on with {rest}", so_far(far))
        }
    }
}

/// Files of named folders that are not read, as they are of no kind that is.
#[derive(Default)]
pub struct Alone {
    /// How many, by the endings of their names.
    pub kinds: BTreeMap<String, usize>,
    /// Hidden files and folders, which were not looked into.
    pub hidden: usize,
    /// The first of the files.
    pub files: Vec<String>,
}

/// `3 files of other kinds were left alone: 2 .png, 1 without an ending (such as /notes/a.png)`
pub fn others(Alone { kinds, files: paths, .. }: &Alone) -> Option<String> {
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
    let such = match &paths[..paths.len().min(MAX_SUCH)] {
        [] => String::new(),
        some => format!(" (such as {})", some.join(", ")),
    };
    (files > 0).then(|| format!("{of} left alone: {}{such}", named.join(", ")))
}

/// `menus and hidden text were left out of 3 files:`, and which.
pub fn left_out(files: &[NotTaken]) -> Option<String> {
    let line = |NotTaken { path, reason, .. }: &NotTaken| format!("\n  {path}: {reason}");
    let mut told: String = files.iter().take(MAX_LEFT_OUT).map(line).collect();
    if files.len() > MAX_LEFT_OUT {
        told.push_str(&format!("\n  and {} more; --json names them all", files.len() - MAX_LEFT_OUT));
    }
    let of = output::count(files.len() as u64, "file", "files");
    (!files.is_empty()).then(|| format!("what is no text, or not meant to be read, was left out of {of}:{told}"))
}

pub fn hidden_ones(hidden: usize) -> Option<String> {
    let of = output::count(hidden as u64, "hidden file or folder was", "hidden files or folders were");
    (hidden > 0).then(|| format!("{of} left out; one that is named itself is read"))
}

pub fn gone(report: &IngestReport) -> Option<String> {
    let of_files = |documents: usize, one: &str, many: &str| {
        let [one, many] =
            [("document", one), ("documents", many)].map(|(what, is)| format!("{what} of files that are gone {is}"));
        output::count(documents as u64, &one, &many)
    };
    let kept = report.kept.iter().map(|kept| kept.documents).sum();
    match (report.documents_gone.saturating_sub(kept), report.documents_pruned) {
        (0, _) => None,
        (left, 0) => {
            Some(of_files(left, "can still be cited; --prune removes it", "can still be cited; --prune removes them"))
        }
        (_, pruned) => Some(of_files(pruned, "was removed", "were removed")),
    }
}

/// `nothing is in /disk: its 5 documents were kept; …`, a line a folder
pub fn kept(report: &IngestReport) -> impl Iterator<Item = String> {
    report.kept.iter().map(|KeptFolder { folder, documents }| {
        let (kept, them) = match documents {
            1 => ("1 document was".to_owned(), "it"),
            many => (format!("{many} documents were"), "them"),
        };
        format!("nothing is in {folder}: its {kept} kept; `ragstone documents delete {folder}` removes {them}")
    })
}

/// What an ingest came to, and the files that were not taken whole, with why.
pub struct NotTakenFiles {
    /// What was named to it.
    pub paths: Vec<PathBuf>,
    pub report: IngestReport,
    pub files: Vec<NotTaken>,
    pub alone: Alone,
}

impl NotTakenFiles {
    /// Whether nothing at all was taken, and nothing changed.
    pub fn is_all(&self) -> bool {
        let IngestReport { files, files_skipped, files_empty, files_unchanged, documents_pruned, .. } = self.report;
        files == files_skipped + files_empty && files_unchanged + documents_pruned == 0
    }
}

/// Names the files that were not taken whole, if any.
///
/// # Errors
/// The list, where nothing was taken.
pub fn name_not_taken(not_taken: &NotTakenFiles) -> Result<()> {
    if not_taken.is_all() {
        return Err(Error::new(ErrorKind::NotFound, nothing(not_taken)));
    }
    if !not_taken.files.is_empty() {
        // Many a folder has such.
        tell(listed(not_taken));
    }
    Ok(())
}

fn nothing(not_taken: &NotTakenFiles) -> String {
    let NotTakenFiles { paths, report, files, alone } = not_taken;
    let mut told = match &files[..] {
        [] => {
            let paths: Vec<String> = paths.iter().map(|path| shown(path)).collect();
            let paths = output::one_line(&paths.join(" "), 400);
            format!("nothing was taken: no file of a kind that ragstone reads is in {paths}")
        }
        [NotTaken { path, reason, .. }] => format!("nothing was taken: {path}: {reason}"),
        _ => format!("nothing was taken of {}:{}", output::count(report.files as u64, "file", "files"), lines(files)),
    };
    for more in [others(alone), gone(report)].into_iter().flatten().chain(kept(report)) {
        told.push_str(&format!("; {more}"));
    }
    told
}

/// `2 of 9 files were not taken whole:`, and which.
fn listed(NotTakenFiles { report, files, .. }: &NotTakenFiles) -> String {
    let (count, of) = (files.len(), output::count(report.files as u64, "file", "files"));
    format!("{count} of {of} {} not taken whole:{}", if count == 1 { "was" } else { "were" }, lines(files))
}

/// A line a file.
fn lines(files: &[NotTaken]) -> String {
    let listed = files.iter().take(MAX_LISTED).map(|NotTaken { path, reason, .. }| format!("\n  {path}: {reason}"));
    let mut lines: String = listed.collect();
    if files.len() > MAX_LISTED {
        lines.push_str(&format!("\n  and {} more; --json names them all", files.len() - MAX_LISTED));
    }
    lines
}

#[cfg(test)]
mod tests {
    use ragstone_service::ingest::NotTakenKind;

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

    fn not_taken(report: IngestReport, files: Vec<NotTaken>) -> NotTakenFiles {
        NotTakenFiles { paths: vec!["/a".into()], report, files, alone: Alone::default() }
    }

    #[test]
    fn nothing_taken_is_an_error_of_one_line_and_something_taken_is_none() {
        let file = |kind| NotTaken { path: "/a".into(), reason: "why".into(), kind };
        let said = |files, skipped, empty, named: Vec<NotTaken>| {
            let report = IngestReport { files, files_skipped: skipped, files_empty: empty, ..IngestReport::default() };
            not_taken(report, named)
        };
        // One that is unreadable, or has no text.
        let one = name_not_taken(&said(1, 1, 0, vec![file(NotTakenKind::Unread)])).unwrap_err().to_string();
        assert_eq!(one, "nothing was taken: /a: why");
        name_not_taken(&said(1, 0, 1, vec![file(NotTakenKind::Empty)])).unwrap_err();
        let two = vec![file(NotTakenKind::Empty), file(NotTakenKind::Unread)];
        let two = name_not_taken(&said(2, 1, 1, two)).unwrap_err().to_string();
        assert_eq!(two, "nothing was taken of 2 files:\n  /a: why\n  /a: why");
        // Some of it was taken.
        name_not_taken(&said(2, 1, 0, vec![file(NotTakenKind::Unread)])).unwrap();
        let partly = IngestReport { files: 1, files_partly: 1, ..IngestReport::default() };
        name_not_taken(&not_taken(partly, vec![file(NotTakenKind::Partly)])).unwrap();
        // No file at all.
        let mut none = said(0, 0, 0, Vec::new());
        none.alone.kinds = BTreeMap::from([(".png".to_owned(), 2)]);
        none.alone.files = vec!["/a/b.png".to_owned()];
        let text = name_not_taken(&none).unwrap_err().to_string();
        assert_eq!(
            text,
            "nothing was taken: no file of a kind that ragstone reads is in /a; 2 files of other kinds were left alone: 2 .png (such as /a/b.png)"
        );
        none.report.documents_gone = 3;
        none.report.kept = vec![KeptFolder { folder: "/a".into(), documents: 3 }];
        let text = name_not_taken(&none).unwrap_err().to_string();
        assert!(
            text.ends_with(
                "2 .png (such as /a/b.png); nothing is in /a: its 3 documents were kept; `ragstone documents delete /a` removes them"
            ),
            "{text}"
        );
        none.report.documents_pruned = 3;
        name_not_taken(&none).unwrap();
    }

    #[test]
    fn one_document_was_and_two_were() {
        let said = |documents_gone, documents_pruned| {
            gone(&IngestReport { documents_gone, documents_pruned, ..IngestReport::default() })
        };
        assert_eq!(said(0, 0), None);
        assert_eq!(said(1, 1).unwrap(), "1 document of files that are gone was removed");
        assert_eq!(said(2, 2).unwrap(), "2 documents of files that are gone were removed");
        assert!(said(1, 0).unwrap().ends_with("can still be cited; --prune removes it"));
    }

    #[test]
    fn what_was_not_taken_is_named_within_bounds() {
        let file = NotTaken { path: "/a".into(), reason: "why".into(), kind: NotTakenKind::Unread };
        let files = vec![file; MAX_LISTED + 5];
        let report = IngestReport { files: 1000, files_skipped: files.len(), ..IngestReport::default() };
        let many = listed(&not_taken(report, files));
        assert!(many.starts_with("205 of 1000 files were") && many.contains("and 5 more"), "{many}");
        assert_eq!(many.lines().count(), MAX_LISTED + 2);
    }

    #[test]
    fn who_interrupts_hears_what_is_stored_and_what_goes_on() {
        assert!(interrupted((true, false), Some(7), Some((1, 2))).contains("`ragstone ingest --cancel 7`"));
        let alone = interrupted((false, false), None, Some((120, 400)));
        assert!(
            alone.contains("120 of 400 files are stored; the same command, or the next `ragstone serve`"),
            "{alone}"
        );
        let early = interrupted((false, false), None, None);
        assert!(early.contains("no file is stored yet") && early.ends_with("goes on with it"), "{early}");
        assert!(interrupted((true, true), None, None).contains("the command that has the data folder open"));
        let ended = cancelled(CancelledBy::Request, (3, 9));
        assert!(ended.contains("was cancelled; 3 of 9 files are stored; the same command"), "{ended}");
        let early = cancelled(CancelledBy::Request, (0, 9));
        assert!(early.contains("before any file was stored; the same command begins it again"), "{early}");
        assert!(waits("notes2", "c", (3, 9)).ends_with("first comes the unfinished ingest into c (3 of 9 files)"));
        assert!(cancelled(CancelledBy::Deletion, (3, 9)).contains("deleted meanwhile"));
    }
}
