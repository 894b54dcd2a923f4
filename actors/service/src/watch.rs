//! Which files of folders changed, seen by looking at them again: it works where the system tells nothing of changes (network file
//! systems, folders of containers), needs no bound raised, and what an ingest would read is decided by the same walk.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::error::Result;

/// Tells a file's states apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
    change: Change,
}

/// Another file of the same name, however old, and another owner or mode: one that could not be read may be readable now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Change {
    inode: u64,
    seconds: i64,
    nanos: i64,
}

type Stamps = BTreeMap<PathBuf, Stamp>;

/// What is known of the files of some folders.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<PathBuf>,
    /// As they were ingested.
    ingested: Stamps,
    /// As they were at the last look.
    seen: Stamps,
}

/// What is not ingested as it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    changed: Stamps,
    gone: Vec<PathBuf>,
}

impl Changes {
    /// Whether all is as it was.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.gone.is_empty()
    }

    /// The files to read again; those that are gone are not among them.
    pub fn files(&self) -> Vec<PathBuf> {
        self.changed.keys().cloned().collect()
    }
}

impl Watch {
    /// Looks at files and folders, which are about to be ingested as they are.
    ///
    /// # Errors
    /// `InvalidInput` where there are more files than one ingest takes.
    pub fn begin(paths: Vec<PathBuf>) -> Result<Self> {
        let seen = stamps(&paths)?;
        Ok(Self { paths, ingested: seen.clone(), seen })
    }

    /// What is to be ingested by now. A file that is still being written comes later.
    ///
    /// # Errors
    /// As [`begin`](Self::begin)'s.
    pub fn look(&mut self) -> Result<Changes> {
        let now = stamps(&self.paths)?;
        let changes = changes(&self.ingested, &self.seen, &now);
        self.seen = now;
        Ok(changes)
    }

    /// They were ingested; without this they are changes at the next look, too.
    pub fn ingested(&mut self, changes: Changes) {
        self.ingested.extend(changes.changed);
        for path in changes.gone {
            self.ingested.remove(&path);
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Result<Stamps> {
    let stamped = |file: ragstone_documents::FoundFile| {
        // What goes after the walk is not there.
        let metadata = std::fs::metadata(&file.path).ok()?;
        Some((file.path, stamp(&metadata)))
    };
    Ok(ragstone_documents::find_files(paths)?.files.into_iter().filter_map(stamped).collect())
}

#[cfg(unix)]
fn change(metadata: &Metadata) -> Change {
    use std::os::unix::fs::MetadataExt as _;
    Change { inode: metadata.ino(), seconds: metadata.ctime(), nanos: metadata.ctime_nsec() }
}

#[cfg(not(unix))]
fn change(_: &Metadata) -> Change {
    Change::default()
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp { bytes: metadata.len(), modified: metadata.modified().ok(), change: change(metadata) }
}

/// What differs from what was `ingested`, and was the same at the last look and is `now`.
fn changes(ingested: &Stamps, before: &Stamps, now: &Stamps) -> Changes {
    let rests = |(path, stamp): &(&PathBuf, &Stamp)| before.get(*path) == Some(*stamp);
    let differs = |(path, stamp): &(&PathBuf, &Stamp)| ingested.get(*path) != Some(*stamp);
    let changed = now.iter().filter(differs).filter(rests).map(|(path, stamp)| (path.clone(), *stamp)).collect();
    // Editors put a new file in the place of the old one: for a moment there is none.
    let is_gone = |path: &&PathBuf| !before.contains_key(*path) && !now.contains_key(*path);
    Changes { changed, gone: ingested.keys().filter(is_gone).cloned().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(files: &[(&str, u64)]) -> Stamps {
        let stamp = |bytes| Stamp { bytes, modified: None, change: Change::default() };
        files.iter().map(|(path, bytes)| (PathBuf::from(path), stamp(*bytes))).collect()
    }

    #[test]
    fn what_rests_between_two_looks_is_ingested_once_and_what_is_missed_twice_is_gone() {
        let ingested = at(&[("same", 1), ("grown", 1), ("growing", 1), ("replaced", 1), ("gone", 1)]);
        let before = at(&[("same", 1), ("grown", 2), ("growing", 2), ("new", 1)]);
        let now = at(&[("same", 1), ("grown", 2), ("growing", 3), ("new", 1), ("replaced", 1), ("newer", 1)]);
        let found = changes(&ingested, &before, &now);
        assert_eq!(found.files(), ["grown", "new"].map(PathBuf::from));
        assert_eq!(found.gone, [PathBuf::from("gone")]);
        let mut watch = Watch { paths: Vec::new(), ingested, seen: now.clone() };
        watch.ingested(found);
        assert_eq!(changes(&watch.ingested, &now, &now).files(), ["growing", "newer"].map(PathBuf::from));
    }

    #[test]
    fn it_sees_what_an_ingest_would_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.md"), "one").unwrap();
        let mut watch = Watch::begin(vec![folder.path().to_owned()]).unwrap();
        assert!(watch.look().unwrap().is_empty());
        for name in ["b.md", ".hidden.md", "picture.png"] {
            std::fs::write(path(name), "two").unwrap();
        }
        std::fs::remove_file(path("a.md")).unwrap();
        assert!(watch.look().unwrap().is_empty(), "they may not be whole yet");
        for _ in 0..2 {
            let changes = watch.look().unwrap();
            assert_eq!((changes.files(), &changes.gone), (vec![path("b.md")], &vec![path("a.md")]));
        }
        let changes = watch.look().unwrap();
        watch.ingested(changes);
        assert!(watch.look().unwrap().is_empty());
    }
}
