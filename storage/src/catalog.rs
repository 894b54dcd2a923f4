//! The sled catalog: what can be rebuilt or resumed. Settings, digests of files, access times, pins, and the journals of
//! ingest, warm-up and removal.
//!
//! Nothing here but API keys, which are made anew, is the only copy of user data, so that a damaged catalog is moved aside and begun anew:
//! without keys, nobody but the owner is let in. Schemas stand in files beside it ([`SchemaFiles`]).

mod api_keys;
mod calibration;
mod costs;
mod embedders;
mod ingests;
mod journal;
mod objects;
mod remains;
mod schema_files;
mod schemas;
mod uses;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sled::Tree;

pub use self::api_keys::{ApiKeyRecord, Role};
pub use self::embedders::EmbedderRecord;
pub use self::ingests::{FileAttempt, IngestJob};
pub use self::journal::{Leaving, LeavingPassage, Reach, Removal, RemovalRow, WarmJob, WarmProgress, WarmSubject};
pub use self::remains::{Holder, Remains};
use self::schema_files::SchemaFiles;
use self::schemas::KeptModules;
pub use self::schemas::{KeptSchemas, ModuleEntry, SchemaEntries, SchemaRecord};
pub use self::uses::LastUse;
use crate::env::{Env, Stopwatch};
use crate::key::Fingerprint;
use crate::{Error, ErrorKind, Result};

/// sled's page cache; its own default is 1 GiB.
const CACHE_BYTES: u64 = 8 << 20;

const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(5);

const EMBEDDING_SETTING: &str = "embedding.identity";

/// Settings, digests, access times and jobs in sled. `Send + Sync`; calls BLOCK on the disk for moments.
#[derive(Debug)]
pub struct Catalog {
    db: sled::Db,
    /// name -> text
    settings: Tree,
    /// Fingerprint [32] -> [`ModelRecord`] as JSON
    models: Tree,
    /// [`FileStamp`] as JSON -> digest [32]
    digests: Tree,
    /// KvKey [32] -> last use, milliseconds since 1970, u64 big-endian, and the number of uses, u32 big-endian
    accesses: Tree,
    /// KvKey [32] -> nothing: pinned by an operator
    pins: Tree,
    /// id, u64 big-endian -> [`IngestJob`] as JSON
    jobs: Tree,
    /// id, u64 big-endian -> [`WarmJob`] as JSON
    warm_jobs: Tree,
    /// id, u64 big-endian -> [`RemovalRow`] as JSON
    removals: Tree,
    /// Fingerprint [32], SegmentDigest [16] and KvKey [32] -> nothing: to be removed from object storage
    object_removals: Tree,
    /// Tenant, 0, name -> [`SchemaRecord`] as JSON, as earlier versions kept them
    schemas: Tree,
    /// The schemas.
    schema_files: SchemaFiles,
    /// Tenant, 0, name, 0, version, 0, fingerprint [32] -> [`SchemaEntries`] as JSON
    schema_entries: Tree,
    /// Name -> [`ApiKeyRecord`] as JSON
    api_keys: Tree,
    /// What of the two is asked for again and again.
    kept_modules: Mutex<KeptModules>,
}

/// A model that this data folder has entries of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// What the user called it: a folder or a hub id.
    pub name: String,
    /// Milliseconds since 1970.
    pub first_used_unix_ms: u64,
    /// Milliseconds since 1970.
    pub last_used_unix_ms: u64,
}

/// A state of a file, by which its digest is remembered: a file that was written to has another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// Canonical path.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
    /// Last change of content, nanoseconds since 1970.
    pub modified_unix_ns: u128,
    /// Last change of content or metadata, nanoseconds since 1970: cannot be set back, as copies that keep times do with
    /// the other. Zero where the system has none.
    pub changed_unix_ns: i128,
}

impl Catalog {
    /// Opens or creates the catalog in `dir` (`DATA/catalog`). A damaged one is moved aside to
    /// `catalog.damaged-<time>` with a warning, and begun anew. BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process holds it; `Full` if the disk is.
    pub fn open(dir: &Path, env: &Env) -> Result<Self> {
        let catalog = Self::open_sled(dir, env)?;
        catalog.move_schemas_to_files()?;
        Ok(catalog)
    }

    fn open_sled(dir: &Path, env: &Env) -> Result<Self> {
        match open_when_free(dir) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let mut aside = dir.as_os_str().to_owned();
                aside.push(format!(".damaged-{}", env.now_unix_ms()));
                tracing::warn!(
                    %error,
                    moved_to = %Path::new(&aside).display(),
                    "the catalog is damaged and was begun anew; ingest again what had not finished"
                );
                std::fs::rename(dir, &aside).map_err(|source| Error::io("move aside", dir, source))?;
                open_and_read(dir)
            }
            opened => opened,
        }
    }

    /// Opens a copy of a catalog, to look into it: nothing is moved aside. BLOCKS.
    ///
    /// # Errors
    /// `Corrupt` where it is damaged; else as sled says.
    pub fn open_copy(dir: &Path) -> Result<Self> {
        open_and_read(dir)
    }

    /// A setting of the data folder.
    ///
    /// # Errors
    /// As sled says.
    pub fn setting(&self, name: &str) -> Result<Option<String>> {
        let value = self.settings.get(name).map_err(sled_error)?;
        Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    /// Sets a setting; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn set_setting(&self, name: &str, value: &str) -> Result<()> {
        self.settings.insert(name, value).map_err(sled_error)?;
        self.flush()
    }

    /// Identity of the embedding model that the corpus was built with.
    ///
    /// # Errors
    /// As sled says.
    pub fn embedding_identity(&self) -> Result<Option<String>> {
        self.setting(EMBEDDING_SETTING)
    }

    /// Sets the identity of the embedding model; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn set_embedding_identity(&self, identity: &str) -> Result<()> {
        self.set_setting(EMBEDDING_SETTING, identity)
    }

    /// Notes that a model is in use.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_model(&self, fingerprint: &Fingerprint, name: &str, now_unix_ms: u64) -> Result<()> {
        let known = self.models.get(fingerprint.0).map_err(sled_error)?.and_then(|value| read_json(&value));
        let record = ModelRecord {
            fingerprint: *fingerprint,
            name: name.to_owned(),
            first_used_unix_ms: known.map_or(now_unix_ms, |known: ModelRecord| known.first_used_unix_ms),
            last_used_unix_ms: now_unix_ms,
        };
        self.models.insert(fingerprint.0, to_json(&record)?).map(drop).map_err(sled_error)
    }

    /// The models that were in use here, the latest first.
    ///
    /// # Errors
    /// As sled says.
    pub fn models(&self) -> Result<Vec<ModelRecord>> {
        let mut models: Vec<ModelRecord> = read_all(&self.models)?;
        models.sort_by_key(|model| std::cmp::Reverse(model.last_used_unix_ms));
        Ok(models)
    }

    /// The digest of a file in this state, if it was computed before.
    ///
    /// # Errors
    /// As sled says.
    pub fn digest(&self, stamp: &FileStamp) -> Result<Option<[u8; 32]>> {
        let value = self.digests.get(to_json(stamp)?).map_err(sled_error)?;
        Ok(value.and_then(|digest| <[u8; 32]>::try_from(&digest[..]).ok()))
    }

    /// Remembers the digest of a file in this state.
    ///
    /// # Errors
    /// `InvalidInput` if the path is not UTF-8; else as sled says.
    pub fn remember_digest(&self, stamp: &FileStamp, digest: &[u8; 32]) -> Result<()> {
        self.digests.insert(to_json(stamp)?, digest).map(drop).map_err(sled_error)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// As sled says.
    pub fn flush(&self) -> Result<()> {
        self.db.flush().map(drop).map_err(sled_error)
    }
}

impl Catalog {
    fn trees(&self) -> [&Tree; 12] {
        let Self {
            db: _,
            settings,
            models,
            digests,
            accesses,
            jobs,
            warm_jobs,
            removals,
            object_removals,
            pins,
            schemas,
            schema_files: _,
            schema_entries,
            api_keys,
            kept_modules: _,
        } = self;
        [
            settings,
            models,
            digests,
            accesses,
            jobs,
            warm_jobs,
            removals,
            object_removals,
            pins,
            schemas,
            schema_entries,
            api_keys,
        ]
    }

    /// Ids are never used twice, so that a late update of a finished job cannot hit another one.
    fn fresh_id(&self) -> Result<u64> {
        Ok(self.db.generate_id().map_err(sled_error)? + 1)
    }
}

/// Opens the catalog and reads every row once: sled finds some damage only when it reads, and some by panicking.
fn open_and_read(dir: &Path) -> Result<Catalog> {
    let attempt = AssertUnwindSafe(|| {
        let catalog = open_trees(dir)?;
        for tree in catalog.trees() {
            for row in tree {
                row.map_err(sled_error)?;
            }
        }
        catalog.read_kept_modules()?;
        Ok(catalog)
    });
    catch_unwind(attempt).unwrap_or_else(|_| Err(Error::corrupt(format!("{} cannot be read", dir.display()))))
}

fn open_trees(dir: &Path) -> Result<Catalog> {
    let config = sled::Config::new().path(dir).cache_capacity(CACHE_BYTES);
    let db = config.open().map_err(|error| at_open(dir, error))?;
    let tree = |name: &str| db.open_tree(name).map_err(sled_error);
    Ok(Catalog {
        settings: tree("settings")?,
        models: tree("models")?,
        digests: tree("digests")?,
        accesses: tree("accesses")?,
        pins: tree("pins")?,
        jobs: tree("jobs")?,
        warm_jobs: tree("warm_jobs")?,
        removals: tree("removals")?,
        object_removals: tree("object_removals")?,
        schemas: tree("pml_schemas")?,
        schema_files: SchemaFiles::beside(dir),
        schema_entries: tree("pml_entries")?,
        api_keys: tree("api_keys")?,
        kept_modules: Mutex::default(),
        db,
    })
}

/// sled's threads may hold the lock of a catalog that this process closed a moment longer than the last handle: it is tried
/// again for a while. That no other process has it, the data folder's own lock sees to.
fn open_when_free(dir: &Path) -> Result<Catalog> {
    let begun = Stopwatch::start();
    loop {
        match open_and_read(dir) {
            Err(error) if error.kind() == ErrorKind::Unavailable && begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_POLL);
            }
            opened => return opened,
        }
    }
}

fn at_open(dir: &Path, failed: sled::Error) -> Error {
    match &failed {
        sled::Error::Io(io) if io.to_string().contains("could not acquire lock") => {
            let message = format!(
                "the catalog in {} is in use by another process; stop it, or choose another data folder with --data",
                dir.display()
            );
            Error::new(ErrorKind::Unavailable, message).with_source(failed)
        }
        _ => sled_error(failed),
    }
}

fn sled_error(failed: sled::Error) -> Error {
    use std::io::ErrorKind as Io;
    let (kind, advice) = match &failed {
        sled::Error::Corruption { .. } => (ErrorKind::Corrupt, ""),
        // sled says so of files that are not its own, or of another version of it.
        sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) | sled::Error::CollectionNotFound(_) => {
            (ErrorKind::Corrupt, "")
        }
        sled::Error::Io(io) => match io.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Full, "; free space on the disk of the data folder"),
            Io::InvalidData | Io::UnexpectedEof => (ErrorKind::Corrupt, ""),
            _ => (ErrorKind::Unavailable, ""),
        },
    };
    Error::new(kind, format!("the catalog failed: {failed}{advice}")).with_source(failed)
}

fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let unwritable = |error| Error::invalid_input("a path is not valid UTF-8; rename it").with_source(error);
    serde_json::to_vec(value).map_err(unwritable)
}

/// A row that is not ours counts as none.
fn read_json<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value)
        .inspect_err(|error| tracing::warn!(%error, "skipping a catalog row that cannot be read"))
        .ok()
}

fn read_all<T: DeserializeOwned>(tree: &Tree) -> Result<Vec<T>> {
    read_rows(tree.iter())
}

fn read_rows<T: DeserializeOwned>(rows: sled::Iter) -> Result<Vec<T>> {
    let mut read = Vec::new();
    for row in rows {
        let (_, value) = row.map_err(sled_error)?;
        read.extend(read_json(&value));
    }
    Ok(read)
}

#[cfg(test)]
mod tests;
