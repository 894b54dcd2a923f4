//! The tables' folders: which there are at a start, and how those go that are of no use any more.
//!
//! A folder that cannot be read is no empty one. What a start takes away is what is proven to be of no use, and it is renamed first: a kill
//! leaves it whole, under a name that says what becomes of it.
//!
//! ```text
//! corpus/deleted/     tables that somebody deleted, that never had anything in them, or that were derived from one that is there: removed,
//!                     at the next start if need be
//! corpus/superseded/  tables whose place another took, before this start: removed once that one was opened
//! corpus/orphaned/    tables that were to take the place of one that is not there: kept for their owner
//! ```

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::checks::Checks;
use super::disk::io_failed;
use super::naming::{Stage, stage_of, table_at};
use super::unfinished::{self, Versions, is_unfinished};
use crate::{Error, Result};
use ragstone_env::damage::{ORPHANED, rename};
use ragstone_env::durable::{create_folder, sync_folder};

const SUFFIX: &str = ".lance";
const DELETED: &str = "deleted";
const SUPERSEDED: &str = "superseded";

/// Where LanceDB puts what it is about to commit: alone, it is the beginning of a table.
const TRANSACTIONS: &str = "_transactions";
const VERSIONS: &str = "_versions";
const MANIFEST: &str = ".manifest";

/// What a table's folder says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its newest version is there, as it was written.
    Whole,
    /// It was never finished: it is marked so, or has no version, and no data either.
    Unfinished,
    /// What is wrong with it, or why it cannot be read.
    Damaged(String),
}

/// The tables of a corpus.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Collections that can be opened.
    pub whole: Vec<String>,
    /// Those that cannot, and why.
    pub damaged: BTreeMap<String, String>,
}

/// The collections that have a table in `folder`. A table that has taken another's place gets its name; call it before anything of the
/// folder is open.
///
/// # Errors
/// As the disk says of the corpus as a whole, or of a name that could not be changed. What it says of one table is in the result.
pub(super) fn find(folder: &Path) -> std::io::Result<Tables> {
    let (mut found, mut serving, mut building, mut built) = (Tables::default(), Vec::new(), Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let table = file_name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        let Some((name, stage)) = table.and_then(stage_of) else { continue };
        if let Err(error) = undo_unacknowledged(folder, &entry.path()) {
            tracing::warn!(table = %entry.path().display(), %error, "what was begun in a table and not acknowledged stays");
        }
        match (state(&entry.path()), stage) {
            (State::Unfinished, _) => drop(set_aside(folder, DELETED, &entry.path())?),
            (State::Whole, Stage::Serving) => serving.push(name),
            (State::Whole, Stage::Building) => building.push(name),
            (State::Whole, Stage::Built) => built.push(name),
            // It has what was written since it took the other's place: neither is what the collection was.
            (State::Damaged(why), Stage::Serving | Stage::Built) => drop(found.damaged.insert(name, why)),
            (State::Damaged(why), Stage::Building) => {
                tracing::warn!(table = %entry.path().display(), why, "a table that is to take another's place cannot be read");
            }
        }
    }
    let mut names: HashSet<String> = serving.into_iter().collect();
    for name in built {
        if found.damaged.contains_key(&name) {
            continue;
        }
        let path = path_of(folder, &name, Stage::Serving);
        if names.contains(&name) {
            set_aside(folder, SUPERSEDED, &path)?;
        }
        rename(&path_of(folder, &name, Stage::Built), &path)?;
        names.insert(name);
    }
    for name in building.iter().filter(|name| !names.contains(*name) && !found.damaged.contains_key(*name)) {
        tracing::warn!(
            table = table_at(name, Stage::Building),
            "a table was to take the place of one that is not there; it is kept aside"
        );
        set_aside(folder, ORPHANED, &path_of(folder, name, Stage::Building))?;
    }
    if let Err(error) = clear(&folder.join(DELETED)) {
        tracing::warn!(%error, "files of deleted collections are still there; the next start tries again");
    }
    sync_folder(folder)?;
    found.whole = names.into_iter().filter(|name| !found.damaged.contains_key(name)).collect();
    found.whole.sort();
    Ok(found)
}

/// Takes away what a change that was cut off left of its versions: nobody was told of it, and a power cut may have taken a part.
fn undo_unacknowledged(folder: &Path, table: &Path) -> std::io::Result<()> {
    let Versions::Undo(later) = versions_of(table)? else { return Ok(()) };
    for manifest in later {
        tracing::warn!(manifest = %manifest.display(), "a change that was cut off before it was acknowledged is undone");
        set_aside(folder, DELETED, &manifest)?;
    }
    Ok(())
}

/// Lists the newest version of a table whose list does not tell which was acknowledged last.
pub(super) fn list_newest(table: &Path) -> std::io::Result<()> {
    if let Versions::List(newest) = versions_of(table)? { unfinished::list(table, &newest) } else { Ok(()) }
}

/// What is to become of a table's versions.
fn versions_of(table: &Path) -> std::io::Result<Versions> {
    let manifests = match manifests(table) {
        Err(error) if error.kind() == Io::NotFound => return Ok(Versions::Stay),
        found => found?,
    };
    let within: Vec<(u64, String)> =
        manifests.into_iter().map(|(version, name)| (version, format!("{VERSIONS}/{name}"))).collect();
    unfinished::versions(table, &within)
}

/// What there is of a table.
pub(super) fn state(table: &Path) -> State {
    let unreadable = |what: &str, error: std::io::Error| State::Damaged(format!("{what} cannot be read: {error}"));
    match is_unfinished(table) {
        Ok(false) => {}
        Ok(true) => return State::Unfinished,
        Err(error) => return unreadable("the list of its files", error),
    }
    let newest = match newest_version(table) {
        Ok(newest) => newest,
        Err(error) if error.kind() == Io::NotFound => None,
        Err(error) => return unreadable("the folder of its versions", error),
    };
    let Some((newest, manifest)) = newest else {
        return match has_data(table) {
            Ok(false) => State::Unfinished,
            Ok(true) => State::Damaged("it has data, and no version that says what is in it (`_versions`)".into()),
            Err(error) => unreadable("its folder", error),
        };
    };
    let checks = match Checks::read(table) {
        Ok(checks) => checks,
        Err(error) => return unreadable("the list of its files", error),
    };
    let known = checks.names().filter_map(|name| version_of(name.strip_prefix(VERSIONS)?.strip_prefix('/')?)).max();
    if let Some(known) = known.filter(|known| *known > newest) {
        return State::Damaged(format!("its newest version, {known}, is missing; the one before it is {newest}"));
    }
    match checks.compare(table, &format!("{VERSIONS}/{manifest}")) {
        Ok(None) => State::Whole,
        Ok(Some(wrong)) => State::Damaged(format!("its newest version, {newest}, {wrong}")),
        Err(error) => unreadable("its newest version", error),
    }
}

/// The number and the file of the newest version; `None` where there is none.
fn newest_version(table: &Path) -> std::io::Result<Option<(u64, String)>> {
    Ok(manifests(table)?.into_iter().max())
}

/// The versions of a table, with their files.
fn manifests(table: &Path) -> std::io::Result<Vec<(u64, String)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(table.join(VERSIONS))? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        all.extend(version_of(&name).map(|version| (version, name)));
    }
    Ok(all)
}

/// The name of a version's manifest, also of one that is not there.
pub(super) fn manifest_of(table: &Path, version: u64) -> std::io::Result<String> {
    let earlier = format!("{version}{MANIFEST}");
    let is_there = table.join(VERSIONS).join(&earlier).try_exists()?;
    Ok(if is_there { earlier } else { format!("{:020}{MANIFEST}", u64::MAX - version) })
}

/// The version of a manifest's name: LanceDB counts down from the greatest number, in 20 digits, so that the newest comes first; earlier it
/// counted up.
fn version_of(manifest: &str) -> Option<u64> {
    let digits = manifest.strip_suffix(MANIFEST)?;
    let number: u64 = digits.parse().ok()?;
    Some(if digits.len() == 20 { u64::MAX - number } else { number })
}

/// How many versions a table has on disk. 0 where that is not known: it only says when superseded ones are worth removing.
pub(super) fn versions(table: &Path) -> usize {
    std::fs::read_dir(table.join(VERSIONS)).map(Iterator::count).unwrap_or(0)
}

/// Whether a folder has files, but for those that say what was to be committed.
fn has_data(table: &Path) -> std::io::Result<bool> {
    let mut folders = vec![table.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name() == TRANSACTIONS {
                continue;
            }
            if !entry.file_type()?.is_dir() {
                return Ok(true);
            }
            folders.push(entry.path());
        }
    }
    Ok(false)
}

/// Where a collection's table is at a stage.
pub(super) fn path_of(folder: &Path, name: &str, stage: Stage) -> PathBuf {
    folder.join(table_at(name, stage) + SUFFIX)
}

/// Takes away a table that somebody deleted, or that was derived from one that is there. Once the rename is on the disk nothing finds it
/// any more, whatever becomes of its files; that they stay is a warning, and the next start tries again. One that is not there is gone.
///
/// # Errors
/// As the disk says of the rename: then the table is as it was.
pub(super) fn discard(folder: &Path, table: &Path) -> Result<()> {
    let failed = |error| io_failed("take a table out of the corpus", error);
    let aside = match set_aside(folder, DELETED, table) {
        Ok(aside) => aside,
        Err(_) if !table.try_exists().map_err(failed)? => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    // Its own files alone: others delete at the same time.
    if let Err(error) = clear(&aside) {
        tracing::warn!(%error, "files of a deleted collection are still there; the next start removes them");
    }
    Ok(())
}

/// Removes the table whose place a collection's took: call it when that one was opened.
pub(super) fn forget_superseded(folder: &Path, name: &str) {
    let superseded = folder.join(SUPERSEDED);
    let table = table_at(name, Stage::Serving) + SUFFIX;
    let Ok(entries) = std::fs::read_dir(&superseded) else { return };
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let is_its = file_name.to_str().and_then(|name| name.rsplit_once('~')).is_some_and(|(of, _)| of == table);
        if is_its && let Err(error) = discard(folder, &entry.path()) {
            tracing::warn!(%error, "files that another table took the place of stay; the next start tries again");
        }
    }
    // One that others are in stays.
    let _ = std::fs::remove_dir(&superseded);
}

/// Gives a table a name in one of the folders beside the tables, and waits for the disk; the name.
fn set_aside(folder: &Path, into: &str, table: &Path) -> std::io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let into = folder.join(into);
    if !table.try_exists()? {
        return Err(Io::NotFound.into());
    }
    create_folder(&into)?;
    let name = table.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Several of one name may be there.
    let free = loop {
        let free = into.join(format!("{name}~{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        if !free.try_exists()? {
            break free;
        }
    };
    rename(table, &free)?;
    Ok(free)
}

/// Removes what was deleted: a table, or at a start the folder of all of them.
fn clear(deleted: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(deleted) {
        Err(error) if error.kind() != Io::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The error of whoever asks for a collection that cannot be opened.
pub(super) fn damaged(name: &str, why: &str) -> Error {
    let message = format!("collection `{name}` is damaged: {why}; {}", advice(name));
    Error::new(crate::ErrorKind::Unavailable, message)
}

/// What to do about a damaged collection.
pub(super) fn advice(name: &str) -> String {
    format!(
        "nothing of it was removed, and the others are not concerned: put its files (`corpus/{}{SUFFIX}` in the data folder, or its objects \
         in the bucket of `corpus_url`) back from a backup, or delete it (`ragstone collections delete {name}`) and add its documents again",
        table_at(name, Stage::Serving)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(table: &Path, name: &str, bytes: &[u8]) {
        let path = table.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn manifest(version: u64) -> String {
        format!("{VERSIONS}/{:020}{MANIFEST}", u64::MAX - version)
    }

    #[test]
    fn only_what_has_neither_version_nor_data_was_never_finished() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("passages-c.lance");
        std::fs::create_dir(&table).unwrap();
        assert_eq!(state(&table), State::Unfinished);
        write(&table, "_transactions/0-x.txn", b"x");
        std::fs::create_dir_all(table.join("data")).unwrap();
        std::fs::create_dir_all(table.join(VERSIONS)).unwrap();
        assert_eq!(state(&table), State::Unfinished);
        write(&table, "data/x.lance", b"x");
        assert!(matches!(state(&table), State::Damaged(why) if why.contains("no version")));
        std::fs::remove_dir(table.join(VERSIONS)).unwrap();
        assert!(matches!(state(&table), State::Damaged(_)));
        // A file where the folder should be: an error, and not "there is none".
        write(&table, VERSIONS, b"x");
        assert!(matches!(state(&table), State::Damaged(why) if why.contains("cannot be read")));
    }

    #[test]
    fn the_newest_version_is_known_by_the_list_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("passages-c.lance");
        for version in [1, 2, 11] {
            write(&table, &manifest(version), b"a version");
        }
        assert_eq!(newest_version(&table).unwrap().unwrap().0, 11);
        assert_eq!(state(&table), State::Whole, "of a version that kept no list");
        let mut checks = Checks::read(&table).unwrap();
        checks.add(&table, [manifest(2), manifest(11)].into_iter()).unwrap();
        assert_eq!(state(&table), State::Whole);
        write(&table, &manifest(12), b"a commit whose list was cut off");
        assert_eq!(state(&table), State::Whole);
        std::fs::remove_file(table.join(manifest(12))).unwrap();
        write(&table, &manifest(11), b"a Version");
        assert!(matches!(state(&table), State::Damaged(why) if why.contains("11")));
        std::fs::remove_file(table.join(manifest(11))).unwrap();
        assert_eq!(state(&table), State::Damaged("its newest version, 11, is missing; the one before it is 2".into()));
        assert_eq!(version_of("7.manifest"), Some(7), "as earlier versions of LanceDB counted");
    }

    #[test]
    fn a_start_takes_nothing_away_that_may_be_somebodys() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Unfinished; damaged; whole; one that took another's place; one that is to take the place of none.
        std::fs::create_dir(at("passages-new.lance")).unwrap();
        write(&at("passages-bad.lance"), "data/x.lance", b"x");
        for table in ["passages-good.lance", "passages-moved.lance", "rebuilt--moved.lance", "building-lost.lance"] {
            write(&at(table), &manifest(1), table.as_bytes());
        }
        write(&at("deleted/passages-old.lance~0"), "data/x.lance", b"x");
        write(&at("others"), "file", b"x");
        let found = find(folder.path()).unwrap();
        assert_eq!(found.whole, ["good", "moved"]);
        assert_eq!(found.damaged.keys().collect::<Vec<_>>(), ["bad"]);
        assert!(at("passages-bad.lance/data/x.lance").exists() && at("others/file").exists());
        assert_eq!(std::fs::read(at("passages-moved.lance").join(manifest(1))).unwrap(), b"rebuilt--moved.lance");
        let within = |name: &str| {
            let entries = std::fs::read_dir(at(name)).unwrap().map(|entry| entry.unwrap().file_name().into_string());
            let mut names: Vec<String> = entries.map(|name| name.unwrap().rsplit_once('~').unwrap().0.into()).collect();
            names.sort();
            names
        };
        assert_eq!(within(ORPHANED), ["building-lost.lance"]);
        assert!(!at("passages-new.lance").exists());
        assert_eq!(within(SUPERSEDED), ["passages-moved.lance"]);
        assert!(!at(DELETED).exists());
        forget_superseded(folder.path(), "move");
        assert_eq!(within(SUPERSEDED), ["passages-moved.lance"]);
        forget_superseded(folder.path(), "moved");
        assert!(!at(SUPERSEDED).exists());
        let is_empty = || std::fs::read_dir(at(DELETED)).unwrap().next().is_none();
        assert!(is_empty());
        discard(folder.path(), &at("passages-good.lance")).unwrap();
        discard(folder.path(), &at("passages-good.lance")).unwrap();
        assert!(!at("passages-good.lance").exists() && is_empty());
        assert_eq!(find(folder.path()).unwrap().whole, ["moved"]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the threads end with the test")]
    fn tables_that_are_deleted_at_the_same_time_are_all_gone() {
        let folder = tempfile::tempdir().unwrap();
        let table = |thread: u32, number: u32| folder.path().join(format!("passages-{thread}-{number}.lance"));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in 0..50 {
                        let table = table(thread, number);
                        std::fs::create_dir(&table).unwrap();
                        discard(table.parent().unwrap(), &table).unwrap();
                        assert!(!table.exists(), "{}", table.display());
                    }
                });
            }
        });
    }
}
