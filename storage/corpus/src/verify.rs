//! Compares the corpus's files with their checksums: all that is primary, and the indexes.

use std::collections::BTreeSet;
use std::io::ErrorKind as Io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lancedb::Table;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::{Checks, Listed};
use super::disk::{failed, files, sync_named};
use super::folders::manifest_of;
use super::table::Collection;
use super::{Corpus, blocking, io_failed};
use crate::Result;
use ragstone_env::Stopwatch;

const INDEXES: &str = "_indices/";
/// Files whose checksums are noted in one turn to write.
const LISTED_AT_ONCE: usize = 64;

/// What a comparison of the corpus with its checksums found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CorpusCheck {
    /// Files that were compared.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that had no checksum yet, and have one now: those of earlier versions of ragstone.
    pub listed: u64,
    /// Files that are not what was written, or not there. Those of indexes are not among them: indexes are built anew.
    pub damaged: Vec<DamagedFile>,
}

/// A file of the corpus that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DamagedFile {
    pub collection: String,
    /// Below the collection's table.
    pub file: String,
    /// What is wrong with it.
    pub error: String,
}

/// How much of the disk a comparison takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As much as there is: somebody waits for it.
    Fast,
    /// Half of the time: nobody does.
    Slow,
}

/// The files of a table that are to be compared, and those that have no checksum.
#[derive(Default)]
struct Looked {
    listed: Vec<String>,
    unlisted: Vec<String>,
    missing: Vec<String>,
}

impl Corpus {
    /// Compares every file of every collection with its checksum, and lists those that have none. What it finds is told from then on
    /// ([`damages`](Self::damages)), and indexes that are damaged are built anew. `progress` hears of every file, and says whether to go on.
    ///
    /// # Errors
    /// As the disk says when a collection's files are listed.
    pub async fn verify(&self, pace: Pace, progress: &mut (dyn FnMut(u64) -> bool + Send)) -> Result<CorpusCheck> {
        let tables = self.inner.collections.lock().await;
        // What is in object storage, that looks after.
        let tables: Vec<Arc<Collection>> = tables.values().filter(|table| table.folder().is_some()).cloned().collect();
        let mut sum = CorpusCheck::default();
        for table in tables {
            let before = sum.files;
            let mut go_on = true;
            let mut told = |files| {
                go_on = progress(before + files);
                go_on
            };
            let (mut found, unlisted) = match table.compare(pace, &mut told).await {
                Ok(found) => found,
                // It was dropped meanwhile, or another took its place.
                Err(_) if self.served(&table.name).await.is_none_or(|now| !Arc::ptr_eq(&now, &table)) => continue,
                Err(error) => return Err(error),
            };
            if go_on {
                self.inner.damaged.set_files(&table.name, &found.damaged);
                self.mend(&table, table.broken.times_mended()).await;
                found.listed = table.list(unlisted, pace).await?;
            }
            sum.files += found.files;
            sum.bytes += found.bytes;
            sum.listed += found.listed;
            sum.damaged.append(&mut found.damaged);
            if !go_on {
                break;
            }
        }
        Ok(sum)
    }
}

impl Collection {
    /// Compares its files with their checksums; what was found, and the files that have none. Changes nothing.
    pub(super) async fn compare(
        &self,
        pace: Pace,
        progress: &mut (dyn FnMut(u64) -> bool + Send),
    ) -> Result<(CorpusCheck, Vec<String>)> {
        let (Some(folder), Some(needed)) = (self.folder(), self.needed_files().await?) else {
            return Ok(Default::default());
        };
        let folder = folder.to_owned();
        let unread = |error| io_failed("look at the files of a collection", error);
        let within = (folder.clone(), needed.clone());
        let looked = blocking("looking at files", move || {
            let (folder, needed) = within;
            let checks = Checks::read(&folder).map_err(unread)?;
            let looked = look(&checks, &needed, &files(&folder).map_err(unread)?.into_iter().collect());
            Ok((Arc::new(checks), looked))
        });
        let (checks, Looked { listed, unlisted, missing }) = looked.await?;
        let (mut check, mut wrong) = (CorpusCheck::default(), Vec::new());
        let left = Left::default();
        wrong.extend(missing.into_iter().map(|name| (name, "is missing".to_owned())));
        for name in listed {
            let (folder, checks, read) = (folder.clone(), Arc::clone(&checks), Stopwatch::start());
            let is_left = Arc::clone(&left.0);
            let compared = blocking("comparing a file", move || {
                let mut bytes = 0;
                let found = checks.compare_telling(&folder, &name, &mut |read| {
                    bytes += read as u64;
                    !is_left.load(Ordering::Relaxed)
                });
                let found = found.unwrap_or_else(|error| Some(format!("cannot be read: {error}")));
                Ok((found.map(|wrong| (name, wrong)), bytes))
            });
            let (found, bytes) = compared.await?;
            wrong.extend(found);
            (check.files, check.bytes) = (check.files + 1, check.bytes + bytes);
            if !progress(check.files) {
                return Ok((check, Vec::new()));
            }
            pause(pace, &read).await;
        }
        check.damaged = self.confirmed(wrong).await?;
        Ok((check, unlisted))
    }

    /// Those that are still needed: files of versions before go while others look. Indexes are flagged: they can be built anew.
    async fn confirmed(&self, wrong: Vec<(String, String)>) -> Result<Vec<DamagedFile>> {
        if wrong.is_empty() {
            return Ok(Vec::new());
        }
        let needed = self.needed_files().await?.unwrap_or_default();
        let mut damaged = Vec::new();
        for (file, error) in wrong {
            if file.starts_with(INDEXES) && self.folder().is_some_and(|folder| folder.join(&file).exists()) {
                // Which of them it is, its name does not say.
                self.broken.words.store(true, Ordering::Release);
                self.broken.vectors.store(true, Ordering::Release);
                tracing::warn!(collection = self.name, file, error, "a file of an index is damaged");
            } else if needed.contains(&file) {
                tracing::error!(collection = self.name, file, error, "a file of the corpus is damaged");
                damaged.push(DamagedFile { collection: self.name.clone(), file, error });
            }
        }
        Ok(damaged)
    }

    /// Notes the checksums of files that have none, as they are now, if they are still needed; how many. They are read while others write:
    /// no file is ever changed.
    async fn list(&self, unlisted: Vec<String>, pace: Pace) -> Result<u64> {
        let (left, mut count) = (Left::default(), 0);
        let Some(folder) = self.folder() else { return Ok(count) };
        for some in unlisted.chunks(LISTED_AT_ONCE) {
            let mut added = Vec::new();
            for name in some {
                let (path, is_left, reading) = (folder.join(name), Arc::clone(&left.0), Stopwatch::start());
                let read = blocking("reading a file", move || {
                    Ok(Listed::of(&path, &mut |_| !is_left.load(Ordering::Relaxed)))
                });
                match read.await? {
                    Ok(listed) => added.push((name.clone(), listed)),
                    // A writer superseded it meanwhile.
                    Err(error) if error.kind() == Io::NotFound => {}
                    Err(error) => return Err(io_failed("look at the files of a collection", error)),
                }
                pause(pace, &reading).await;
            }
            let Some(_writing) = self.write().await else { return Ok(count) };
            let needed = self.needed_files().await?.unwrap_or_default();
            added.retain(|(name, _)| needed.contains(name));
            let listing = move |folder: &Path, checks: &mut Checks| {
                // What is listed is known to be on the disk.
                sync_named(folder, added.iter().map(|(name, _)| name.as_str()))?;
                checks.add_read(folder, added)
            };
            count += self.with_checks(listing).await? as u64;
        }
        Ok(count)
    }

    /// The files that hold its rows as they are now; `None` where LanceDB does not tell.
    async fn needed_files(&self) -> Result<Option<BTreeSet<String>>> {
        let Some(folder) = self.folder() else { return Ok(None) };
        let Some((version, mut needed)) = files_of(&self.table).await? else { return Ok(None) };
        let folder = folder.to_owned();
        let manifest = blocking("looking at a version", move || {
            manifest_of(&folder, version).map_err(|error| io_failed("look at the versions of a collection", error))
        });
        needed.insert(format!("_versions/{}", manifest.await?));
        Ok(Some(needed))
    }
}

/// Leaves the disk to others for as long as it was `read`, where nobody waits.
async fn pause(pace: Pace, read: &Stopwatch) {
    if pace == Pace::Slow {
        tokio::time::sleep(read.elapsed()).await;
    }
}

/// What is to be compared of a table that needs `needed` and has `present`.
fn look(checks: &Checks, needed: &BTreeSet<String>, present: &BTreeSet<String>) -> Looked {
    let mut looked = Looked::default();
    for name in needed {
        match (present.contains(name), checks.has(name)) {
            (false, _) => looked.missing.push(name.clone()),
            (true, true) => looked.listed.push(name.clone()),
            (true, false) => looked.unlisted.push(name.clone()),
        }
    }
    let indexes = present.iter().filter(|name| name.starts_with(INDEXES) && checks.has(name));
    looked.listed.extend(indexes.cloned());
    looked
}

/// Nobody waits for a comparison any more once this is dropped: the thread that reads ends with its piece, and holds up no end of the process.
#[derive(Default)]
struct Left(Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The number of a table's version, its data files, and those that say which of their rows are deleted.
async fn files_of(table: &Table) -> Result<Option<(u64, BTreeSet<String>)>> {
    let Some(native) = table.as_native() else { return Ok(None) };
    let manifest = native.manifest().await.map_err(failed("look at the files of a collection".to_owned()))?;
    let mut needed = BTreeSet::new();
    for fragment in manifest.fragments.iter() {
        needed.extend(fragment.files.iter().map(|file| format!("data/{}", file.path)));
        if let Some(deleted) = &fragment.deletion_file {
            let (version, id, suffix) = (deleted.read_version, deleted.id, deleted.file_type.suffix());
            needed.insert(format!("_deletions/{}-{version}-{id}.{suffix}", fragment.id));
        }
    }
    Ok(Some((manifest.version, needed)))
}
