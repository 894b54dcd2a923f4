//! What the hub's cache holds, whoever fetched it, and how it is removed: blobs go when no snapshot links to them any more.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::HubId;
use super::cache::{self, is_commit, is_file_name};
use crate::error::{Error, ErrorKind, Result};

/// Folders deep that a repository's files may lie.
const MOST_DEPTH: usize = 8;

/// One commit of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `owner/name`
    pub name: String,
    pub commit: String,
    /// The branches and tags that stand for it here.
    pub revisions: Vec<String>,
    /// Its folder.
    pub path: PathBuf,
    /// Its files, by their names in the repository.
    pub files: Vec<String>,
}

/// A repository in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRepository {
    /// `owner/name`
    pub name: String,
    pub folder: PathBuf,
    pub snapshots: Vec<Snapshot>,
    /// Bytes of files that are not whole yet.
    pub partial_bytes: u64,
}

/// Every repository of models in this user's cache, by name. What cannot be read is left out.
pub fn all() -> Vec<StoredRepository> {
    let Some(hub) = cache::home().map(|home| home.join("hub")) else { return Vec::new() };
    let named = |folder: PathBuf| {
        let name = folder.file_name()?.to_str()?.strip_prefix("models--")?.replacen("--", "/", 1);
        // Others are none of the hub's, and would be no names for `remove`.
        HubId::parse(&name).filter(|id| id.name == name)?;
        Some(read(name, folder))
    };
    let mut all: Vec<StoredRepository> = entries(&hub).into_iter().filter_map(named).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn read(name: String, folder: PathBuf) -> StoredRepository {
    let mut references = Vec::new();
    walk(&folder.join("refs"), "", MOST_DEPTH, &mut references);
    let references: Vec<(String, String)> = references
        .into_iter()
        .filter_map(|revision| {
            let text = cache::read(&folder.join("refs").join(&revision), 256).ok()?;
            Some((revision, String::from_utf8(text).ok()?.trim().to_owned()))
        })
        .collect();
    let snapshot = |path: PathBuf| {
        let commit = path.file_name()?.to_str().filter(|commit| is_commit(commit))?.to_owned();
        let stands = references.iter().filter(|(revision, to)| *to == commit && *revision != commit);
        let revisions = stands.map(|(revision, _)| revision.clone()).collect();
        let mut files = Vec::new();
        walk(&path, "", MOST_DEPTH, &mut files);
        Some(Snapshot { name: name.clone(), commit, revisions, path, files })
    };
    let mut snapshots: Vec<Snapshot> = entries(&folder.join("snapshots"))
        .into_iter()
        .filter_map(snapshot)
        .filter(|found| !found.files.is_empty())
        .collect();
    snapshots.sort_by(|a, b| a.commit.cmp(&b.commit));
    let partial_bytes = partial(&folder).iter().filter_map(|path| path.metadata().ok()).map(|found| found.len()).sum();
    StoredRepository { snapshots, folder, partial_bytes, name }
}

/// Files that are not whole yet.
fn partial(folder: &Path) -> Vec<PathBuf> {
    let blobs = entries(&folder.join("blobs")).into_iter();
    blobs.filter(|path| path.extension().is_some_and(|end| end == "incomplete")).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
}

/// Whether nothing but these lies in the folder of all snapshots, readable or not.
fn has_only(folder: &Path, snapshots: &[Snapshot]) -> bool {
    let is_one = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| snapshots.iter().any(|snapshot| snapshot.path == entry.path()))
    };
    fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_one))
}

/// The names of all files below a folder, as seen from it.
fn walk(folder: &Path, prefix: &str, depth: usize, into: &mut Vec<String>) {
    for path in entries(folder) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        if path.is_file() {
            into.push(name);
        } else if depth > 0 && path.is_dir() && !path.is_symlink() {
            walk(&path, &name, depth - 1, into);
        }
    }
    into.sort();
}

impl Snapshot {
    /// Its bytes, those that it shares with other commits included.
    pub fn bytes(&self) -> u64 {
        let paths = self.files.iter().map(|name| self.path.join(name)).filter_map(|path| path.canonicalize().ok());
        let paths: BTreeSet<PathBuf> = paths.collect();
        paths.iter().filter_map(|path| path.metadata().ok()).map(|found| found.len()).sum()
    }
}

/// What is to be removed of a repository.
pub struct Removal {
    repository: StoredRepository,
    /// These, with what only they need; or everything.
    snapshots: Vec<Snapshot>,
    is_whole: bool,
}

impl Removal {
    /// What `id` means: a repository, or with a revision one commit of it.
    ///
    /// # Errors
    /// `NotFound` where it is not in the cache.
    pub fn of(id: &HubId, has_revision: bool) -> Result<Self> {
        let missing = || {
            Error::new(
                ErrorKind::NotFound,
                format!("{id} is not in the hub's cache; `ragstone models list` says what is"),
            )
        };
        let repository = all().into_iter().find(|repository| repository.name == id.name).ok_or_else(missing)?;
        let is_meant = |snapshot: &&Snapshot| {
            !has_revision || snapshot.commit == id.revision || snapshot.revisions.contains(&id.revision)
        };
        let snapshots: Vec<Snapshot> = repository.snapshots.iter().filter(is_meant).cloned().collect();
        if has_revision && snapshots.is_empty() {
            return Err(missing());
        }
        // Of a revision alone: what cannot be read now may be another commit, whose blobs are elsewhere for a while.
        let is_whole = !has_revision || has_only(&repository.folder.join("snapshots"), &snapshots);
        Ok(Self { repository, snapshots, is_whole })
    }

    /// The commits that go.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Bytes that are freed.
    pub fn bytes(&self) -> u64 {
        let size = |path: &PathBuf| path.symlink_metadata().map_or(0, |found| found.len());
        if self.is_whole {
            let blobs: u64 = entries(&self.repository.folder.join("blobs")).iter().map(size).sum();
            return blobs + self.snapshots.iter().map(|snapshot| self.loose(snapshot)).sum::<u64>();
        }
        self.blobs().iter().map(size).sum::<u64>()
            + self.snapshots.iter().map(|snapshot| self.loose(snapshot)).sum::<u64>()
    }

    /// Bytes of files of a snapshot that are no links: where the file system has none, the hub's programs copy.
    fn loose(&self, snapshot: &Snapshot) -> u64 {
        let files = snapshot.files.iter().filter_map(|name| snapshot.path.join(name).symlink_metadata().ok());
        files.filter(|found| found.is_file()).map(|found| found.len()).sum()
    }

    /// The blobs that nothing links to but what goes.
    fn blobs(&self) -> BTreeSet<PathBuf> {
        let Ok(blobs) = self.repository.folder.join("blobs").canonicalize() else { return BTreeSet::new() };
        let linked = |snapshots: &mut dyn Iterator<Item = &Snapshot>| -> BTreeSet<PathBuf> {
            let paths = snapshots.flat_map(|snapshot| snapshot.files.iter().map(move |name| snapshot.path.join(name)));
            paths
                .filter_map(|path| path.canonicalize().ok())
                .filter(|path| path.parent() == Some(blobs.as_path()))
                .collect()
        };
        let goes = |snapshot: &&Snapshot| self.snapshots.contains(snapshot);
        let kept = linked(&mut self.repository.snapshots.iter().filter(|snapshot| !goes(snapshot)));
        linked(&mut self.snapshots.iter()).difference(&kept).cloned().collect()
    }

    /// What the links below a folder lead to, but for those of the commits that go. Strict: a commit that cannot be read would need nothing.
    fn needed_by_others(&self, below: &Path, into: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        let entries = match fs::read_dir(below) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if self.snapshots.iter().any(|snapshot| snapshot.path == path) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.needed_by_others(&path, into)?;
                continue;
            }
            match path.canonicalize() {
                Ok(real) => drop(into.insert(real)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes it.
    ///
    /// # Errors
    /// As the disk says, where it cannot be read what other commits need; `Incompatible` while another process fetches a file of the repository.
    pub fn run(&self) -> Result<()> {
        for part in partial(&self.repository.folder) {
            let is_held = File::open(&part).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
            if is_held {
                let message = format!("another process is fetching {}; wait until it ends", self.repository.name);
                return Err(Error::new(ErrorKind::Incompatible, message));
            }
        }
        let gone = |path: &Path, removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("cannot remove", path, error)),
            _ => Ok(()),
        };
        let folder = &self.repository.folder;
        if self.is_whole {
            // A link is removed, and not where it points to.
            return gone(
                folder,
                if folder.is_symlink() { fs::remove_file(folder) } else { fs::remove_dir_all(folder) },
            );
        }
        let unread =
            |error| Error::io("cannot tell what other commits need, and removes nothing: cannot read", folder, error);
        let mut others = BTreeSet::new();
        self.needed_by_others(&folder.join("snapshots"), &mut others).map_err(unread)?;
        let blobs: Vec<PathBuf> = self.blobs().difference(&others).cloned().collect();
        for snapshot in &self.snapshots {
            // What stands for it first: a revision stands for whole snapshots only.
            for revision in
                snapshot.revisions.iter().chain([&snapshot.commit]).filter(|name| name.split('/').all(is_file_name))
            {
                let path = folder.join("refs").join(revision);
                gone(&path, fs::remove_file(&path))?;
            }
            gone(&snapshot.path, fs::remove_dir_all(&snapshot.path))?;
        }
        blobs.iter().try_for_each(|path| gone(path, fs::remove_file(path)))
    }
}
