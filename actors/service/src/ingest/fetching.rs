//! What a job's addresses come to: copies in the data folder, for as long as the job reads them.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ragstone_documents::{FoundFile, file_of};
use ragstone_sources::{Address, Bounds, Memory, Progress, Source, Wanted};
use ragstone_storage::catalog::{IngestJob, IngestOptions};
use ragstone_storage::tier::object::ConnectionOptions;
use tokio::sync::mpsc;

use super::{IngestEvent, Ingestor, blocking};
use crate::error::{Error, ErrorKind, Result};

/// Below the data folder.
const FOLDER: &str = "sources";
/// Below that: what the job that has the turn has fetched.
const COPIES: &str = "fetched";
/// Hex digits of the names of what is noted.
const NAME_CHARS: usize = 24;

/// What is fetched is removed when the job is done with it, or by the next job.
pub struct Copies {
    folder: PathBuf,
    pub files: Vec<FoundFile>,
    /// As they were when they were fetched last.
    pub unchanged: usize,
    /// Sources of which nothing is there any more.
    pub gone: HashSet<String>,
    pub left_out: Vec<(String, String)>,
    pub left_alone: BTreeMap<String, usize>,
    /// What is noted of each source once its files are in the corpus.
    noted: Vec<(PathBuf, Memory)>,
}

/// The addresses among what somebody named, and the paths.
///
/// # Errors
/// `InvalidInput` for an address that is none.
pub fn told_apart(named: &[PathBuf]) -> Result<(Vec<Address>, Vec<PathBuf>)> {
    let (mut addresses, mut paths) = (Vec::new(), Vec::new());
    for path in named {
        match path.to_str().and_then(Address::of) {
            Some(address) => addresses.push(address?),
            None => paths.push(path.clone()),
        }
    }
    Ok((addresses, paths))
}

/// How much of its addresses a job wants.
fn bounds(options: &IngestOptions) -> Bounds {
    let usual = Bounds::default();
    Bounds { pages: options.pages.unwrap_or(usual.pages), depth: options.depth.or(usual.depth) }
}

/// Removes what a process that was killed had fetched.
pub(super) fn clear(data: &Path) {
    if let Err(error) = remove(&data.join(FOLDER).join(COPIES)) {
        tracing::warn!(%error, "what an ingest had fetched is still there; the next one tries again");
    }
}

impl Ingestor {
    /// Fetches what a job's addresses name. The folder for it is that of the job which has the turn.
    pub(super) async fn fetch(
        &self,
        job: &IngestJob,
        addresses: Vec<Address>,
        events: &mpsc::Sender<Result<IngestEvent>>,
    ) -> Result<Copies> {
        let folder = self.data.join(FOLDER);
        let mut copies = Copies::empty(folder.join(COPIES));
        if addresses.is_empty() {
            return Ok(copies);
        }
        let (emptied, collections) = (copies.folder.clone(), self.library.collections().await);
        let kept: HashSet<String> = collections.iter().map(|name| digest(&[name])).collect();
        let notes = folder.clone();
        blocking(move || {
            remove(&emptied)?;
            std::fs::create_dir_all(&emptied).map_err(|error| Error::io("cannot create", &emptied, error))?;
            forget(&notes, &kept);
            Ok(())
        })
        .await?;
        // Files that are read otherwise are fetched again.
        let IngestOptions { metadata, fields, .. } = &job.options;
        let reading = serde_json::json!([env!("CARGO_PKG_VERSION"), metadata, fields]).to_string();
        let is_alone = job.paths.len() == 1;
        for (number, address) in addresses.into_iter().enumerate() {
            let name = format!("{}-{}.json", digest(&[&job.collection]), digest(&[&address.to_string()]));
            let noted = folder.join(name);
            let mut memory = Memory::read(&noted, &reading);
            let into = copies.folder.join(number.to_string());
            std::fs::create_dir(&into).map_err(|error| Error::io("cannot create", &into, error))?;
            let told = |Progress { files, bytes, waiting }| {
                let address = address.to_string();
                // Nobody has to see every step.
                let _ = events.try_send(Ok(IngestEvent::Fetching { address, files, bytes, waiting }));
            };
            let before = copies.files.len();
            match self.fetch_one(job, &address, (&into, &mut memory), told, &mut copies).await {
                Ok(()) => {
                    forget_fetched(&noted, &memory, &copies.files[before..]);
                    copies.noted.push((noted, memory));
                }
                Err(error) if !is_alone && is_of_source(&error) => {
                    copies.left_out.push((address.to_string(), error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        // What one address no longer has, another may have.
        let there: HashSet<&str> = copies.files.iter().filter_map(|file| file.source.as_deref()).collect();
        copies.gone.retain(|source| !there.contains(source.as_str()));
        Ok(copies)
    }

    /// How a bucket of documents is reached: as that of KV, where it is of the same cloud.
    fn connection(&self, address: &Address) -> ConnectionOptions {
        let cloud = |url: &str| url.split_once("://").map(|(scheme, _)| scheme.to_owned());
        let own = self.bucket.as_ref().filter(|own| cloud(&own.url) == cloud(&address.to_string()));
        own.map(|own| own.options.clone()).unwrap_or_default()
    }

    async fn fetch_one(
        &self,
        job: &IngestJob,
        address: &Address,
        (into, memory): (&Path, &mut Memory),
        told: impl Fn(Progress) + Sync,
        copies: &mut Copies,
    ) -> Result<()> {
        told(Progress::default());
        let source = Source::open(address, &self.connection(address)).await?;
        let covered = source.covered();
        let stored = self.library.pick_documents(&job.collection, move |_, source| {
            let file = file_of(source);
            covered.has(file).then(|| file.to_owned())
        });
        let stored: HashSet<String> = stored.await?.into_iter().collect();
        let wanted = Wanted { folder: into, bounds: bounds(&job.options), stored, memory };
        let fetched = source.fetch(wanted, &told).await?;
        let within: Arc<Path> = into.canonicalize().map_err(|error| Error::io("cannot read", into, error))?.into();
        copies.files.extend(fetched.files.into_iter().map(|file| FoundFile {
            bytes: std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len()),
            path: file.path,
            within: Some(within.clone()),
            source: Some(file.source.into()),
        }));
        copies.unchanged += fetched.unchanged;
        copies.gone.extend(fetched.gone);
        copies.left_out.extend(fetched.left_out);
        for (kind, count) in fetched.left_alone {
            *copies.left_alone.entry(kind).or_default() += count;
        }
        Ok(())
    }
}

impl Copies {
    fn empty(folder: PathBuf) -> Self {
        Self {
            folder,
            files: Vec::new(),
            unchanged: 0,
            gone: HashSet::new(),
            left_out: Vec::new(),
            left_alone: BTreeMap::new(),
            noted: Vec::new(),
        }
    }

    /// Notes what is stored now, so that the next fetch asks for what changed alone. What `failed` is none of it: its documents are the old
    /// ones, if any, and its state is the new one.
    pub fn note(&mut self, failed: &HashSet<String>) {
        for (path, memory) in &mut self.noted {
            memory.forget(failed);
            write(memory, path);
        }
    }
}

/// Has what is noted of a source say nothing of files that were fetched and are not stored yet: of an ingest that ends on the way some are,
/// and none is any more as it was noted.
fn forget_fetched(path: &Path, memory: &Memory, fetched: &[FoundFile]) {
    if !fetched.is_empty() {
        let mut sure = memory.clone();
        sure.forget(&fetched.iter().map(FoundFile::name).collect());
        write(&sure, path);
    }
}

fn write(memory: &Memory, path: &Path) {
    if let Err(error) = memory.write(path) {
        tracing::warn!(%error, "what was fetched is not noted; the next ingest of it fetches all of it again");
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // The next job tries again.
        let _ = remove(&self.folder);
    }
}

/// Whether the source is at fault, and others may be read all the same.
fn is_of_source(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unavailable)
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("cannot remove", folder, error)),
        _ => Ok(()),
    }
}

/// Removes what is noted of sources of collections that are not there any more.
fn forget(folder: &Path, kept: &HashSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| name.strip_suffix(".json")?.split_once('-'));
        if of.is_some_and(|(collection, _)| !kept.contains(collection)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn digest(parts: &[&str]) -> String {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    ragstone_documents::digest("ragstone source v1", &parts)[..NAME_CHARS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_goes_with_its_collection() {
        let folder = tempfile::tempdir().unwrap();
        let name = |collection: &str| format!("{}-{}.json", digest(&[collection]), digest(&["https://a.example/"]));
        for file in [&name("kept"), &name("deleted"), "other.txt"] {
            std::fs::write(folder.path().join(file), "{}").unwrap();
        }
        forget(folder.path(), &HashSet::from([digest(&["kept"])]));
        let is_there = |file: &str| folder.path().join(file).exists();
        assert!(is_there(&name("kept")) && is_there("other.txt") && !is_there(&name("deleted")));
        forget(&folder.path().join("none"), &HashSet::new());
    }

    #[test]
    fn of_an_ingest_that_ends_on_the_way_nothing_is_known_that_was_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let mut memory = Memory { commit: Some("c".into()), ..Memory::read(&path, "one way") };
        for page in ["https://a.example/as-before", "https://a.example/new"] {
            memory.pages.insert(page.to_owned(), Default::default());
        }
        let source = Some("https://a.example/new".into());
        forget_fetched(&path, &memory, &[]);
        assert!(!path.exists(), "nothing is fetched");
        forget_fetched(&path, &memory, &[FoundFile { path: "x".into(), within: None, bytes: 1, source }]);
        let known = Memory::read(&path, "one way");
        assert_eq!(known.pages.keys().collect::<Vec<_>>(), ["https://a.example/as-before"]);
        assert_eq!(known.commit, None);
        // At the end all of it is, but for what could not be read.
        let mut copies = Copies::empty(folder.path().join("copies"));
        copies.noted.push((path.clone(), memory));
        copies.note(&HashSet::from(["https://a.example/as-before".to_owned()]));
        assert_eq!(Memory::read(&path, "one way").pages.keys().collect::<Vec<_>>(), ["https://a.example/new"]);
    }

    #[test]
    fn addresses_are_told_from_paths() {
        let named = ["/notes", "https://a.example/x", "git@a.example:o/n.git"].map(PathBuf::from);
        let (addresses, paths) = told_apart(&named).unwrap();
        assert_eq!((addresses.len(), paths), (2, vec![PathBuf::from("/notes")]));
        assert!(told_apart(&["https://".into()]).is_err());
    }
}
