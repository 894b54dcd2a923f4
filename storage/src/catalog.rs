//! The sled catalog: what can be rebuilt or resumed. Settings, digests of files, access times, pins, journals of ingest, warm-up, removal.
//!
//! A damaged catalog is moved aside and begun anew. What nothing else can be made of again (API keys, quotas, pins, the journals) has a second copy
//! ([`records`]) and comes back from there; the rest is found out again. Schemas stand in files beside it ([`RecordFiles`]).

mod api_keys;
mod calibration;
mod collections;
mod costs;
mod embedders;
mod flushing;
mod ingests;
mod journal;
mod objects;
mod quotas;
mod records;
mod recovery;
mod remains;
mod rows;
mod schemas;
mod uses;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use sled::Tree;

pub use self::api_keys::{ApiKeyRecord, Role};
pub use self::embedders::EmbedderRecord;
use self::flushing::Flushing;
pub use self::ingests::{FileAttempt, IngestJob, IngestOptions};
pub use self::journal::{Leaving, LeavingPassage, Reach, Removal, RemovalRow, WarmJob, WarmProgress, WarmSubject};
pub use self::quotas::{Quota, QuotaName, QuotaRecord};
use self::records::{Kept, Records, Row};
pub use self::remains::{Holder, Remains};
use self::rows::{Rows, read_all, read_json, to_json};
use self::schemas::KeptModules;
pub use self::schemas::{KeptSchemas, ModuleEntry, SchemaEntries, SchemaRecord};
pub use self::uses::LastUse;
use crate::key::Fingerprint;
use crate::record_files::RecordFiles;
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::damage::Damage;
use ragstone_env::lock::locked;

/// sled's page cache; its own default is 1 GiB.
const CACHE_BYTES: u64 = 8 << 20;

const EMBEDDING_SETTING: &str = "embedding.identity";

/// Settings, digests, access times and jobs in sled. `Send + Sync`; calls BLOCK on the disk for moments.
#[derive(Debug)]
pub struct Catalog {
    db: sled::Db,
    /// sled's own file, for its last word to be on the disk.
    file: Option<File>,
    flushing: Flushing,
    /// The record of what is acknowledged; `None` in a copy of a catalog, which is only looked into.
    records: Mutex<Option<Records>>,
    /// sled could not be written: it is as it was, until the next start.
    is_behind: AtomicBool,
    damage: Option<Damage>,
    /// Ids begin behind this one: those before were in a catalog that was damaged.
    ids_before: u64,
    /// name -> text
    settings: Rows,
    /// Fingerprint [32] -> [`ModelRecord`] as JSON
    models: Rows,
    /// [`FileStamp`] as JSON -> digest [32]
    digests: Tree,
    /// KvKey [32] -> last use, milliseconds since 1970, u64 big-endian, and the number of uses, u32 big-endian
    accesses: Tree,
    /// KvKey [32] -> nothing: pinned by an operator
    pins: Rows,
    /// id, u64 big-endian -> [`IngestJob`] as JSON
    jobs: Rows,
    /// id, u64 big-endian -> [`WarmJob`] as JSON
    warm_jobs: Rows,
    /// id, u64 big-endian -> [`RemovalRow`] as JSON
    removals: Rows,
    /// Fingerprint [32], SegmentDigest [16] and KvKey [32] -> nothing: to be removed from object storage
    object_removals: Rows,
    /// Fingerprint [32], SegmentDigest [16] and KvKey [32] -> nothing: to be uploaded to object storage
    uploads: Tree,
    /// Tenant, 0, name -> [`SchemaRecord`] as JSON, as earlier versions kept them
    schemas: Tree,
    /// The schemas.
    schema_files: RecordFiles<SchemaRecord>,
    /// Tenant, 0, name, 0, version, 0, fingerprint [32] -> [`SchemaEntries`] as JSON
    schema_entries: Rows,
    /// Name -> [`ApiKeyRecord`] as JSON
    api_keys: Rows,
    /// Tenant -> [`QuotaRecord`] as JSON
    quotas: Rows,
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
    /// Opens or creates the catalog in `dir` (`DATA/catalog`), and its second copy beside it, which is what sled's rows are made to be. A damaged one is moved aside to
    /// `catalog.damaged-<time>` and begun anew with what the second copy has, which [`damage`](Self::damage) tells. BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process holds it, or the second copy cannot be read; `Full` if the disk is.
    pub fn open(dir: &Path, env: &Env) -> Result<Self> {
        let catalog = recovery::open(dir, env)?;
        catalog.move_schemas_to_files()?;
        Ok(catalog)
    }

    /// Opens a copy of a catalog, to look into it: nothing is moved aside. BLOCKS.
    ///
    /// # Errors
    /// `Corrupt` where it is damaged; else as sled says.
    pub fn open_copy(dir: &Path) -> Result<Self> {
        open_and_read(dir)
    }

    /// What befell it when it was opened, for people.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// What befell it since, for people.
    pub fn trouble(&self) -> Option<Damage> {
        self.is_behind().then(|| Damage {
            what: "catalog".into(),
            found: "its database cannot be written any more, as after a disk that was full; what is acknowledged is kept in its second copy"
                .into(),
            advice: "look at the disk of the data folder, and start ragstone again when it suits: nothing is lost meanwhile".into(),
        })
    }

    /// A setting of the data folder.
    ///
    /// # Errors
    /// As sled says.
    pub fn setting(&self, name: &str) -> Result<Option<String>> {
        Ok(self.settings.get(name).map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    /// Sets a setting; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn set_setting(&self, name: &str, value: &str) -> Result<()> {
        self.put(Kept::Settings, name.as_bytes(), value.as_bytes().to_vec())
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
        let mut records = self.changing();
        let known = self.models.get(fingerprint.0).and_then(|value| read_json(&value));
        let is_known = known.is_some();
        let record = ModelRecord {
            fingerprint: *fingerprint,
            name: name.to_owned(),
            first_used_unix_ms: known.map_or(now_unix_ms, |known: ModelRecord| known.first_used_unix_ms),
            last_used_unix_ms: now_unix_ms,
        };
        if is_known {
            // When it was used last is nothing to be kept twice, and a start needs no room for it.
            return self.models.insert(fingerprint.0, to_json(&record)?);
        }
        self.write(&mut records, Kept::Models, vec![(fingerprint.0.to_vec(), Some(to_json(&record)?))], true)
    }

    /// The models that were in use here, the latest first.
    ///
    /// # Errors
    /// As sled says.
    pub fn models(&self) -> Result<Vec<ModelRecord>> {
        let mut models: Vec<ModelRecord> = self.models.read();
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
}

/// Changes of what has a second copy.
impl Catalog {
    /// The right to change it: who reads first what it changes, asks for it before.
    fn changing(&self) -> MutexGuard<'_, Option<Records>> {
        locked(&self.records)
    }

    /// Changes rows of a tree: on the disk on return if that `is_durable`, in the second copy, which the next start follows.
    fn write(&self, records: &mut Option<Records>, tree: Kept, rows: Vec<Row>, is_durable: bool) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let Some(records) = records else {
            self.apply(tree, &rows)?;
            return self.flush();
        };
        let sequence = records.add(tree, &rows, is_durable).map_err(|error| sled_error(error.into()))?;
        self.kept(tree).change(&rows);
        self.follow(sequence, tree, &rows);
        if records.is_worth_writing_anew()
            && !self.is_behind()
            && let Err(error) = self.write_records_anew(records)
        {
            tracing::warn!(%error, "the catalog's second copy could not be written anew; it goes on growing");
        }
        Ok(())
    }

    /// Has sled follow the second copy. Behind a write that failed it never writes again: then the next start brings it up.
    fn follow(&self, sequence: u64, tree: Kept, rows: &[Row]) {
        if !self.is_behind()
            && let Err(error) = self.kept(tree).change_sled(rows).and_then(|()| self.note_applied(sequence))
        {
            self.fall_behind(&error);
        }
    }

    fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire)
    }

    fn fall_behind(&self, error: &Error) {
        if !self.is_behind.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "the catalog's database cannot be written any more; what is acknowledged is kept in its second copy");
        }
    }

    /// One row of a tree; durable on return.
    fn put(&self, tree: Kept, key: &[u8], value: Vec<u8>) -> Result<()> {
        self.write(&mut self.changing(), tree, vec![(key.to_vec(), Some(value))], true)
    }

    /// Takes out one row of a tree; whether it was there. Durable on return.
    fn remove(&self, tree: Kept, key: &[u8]) -> Result<bool> {
        let mut records = self.changing();
        let was_there = self.kept(tree).contains_key(key);
        if was_there {
            self.write(&mut records, tree, vec![(key.to_vec(), None)], true)?;
        }
        Ok(was_there)
    }

    /// Changes rows in memory and in sled.
    fn apply(&self, tree: Kept, rows: &[Row]) -> Result<()> {
        self.kept(tree).change(rows);
        self.kept(tree).change_sled(rows)
    }

    fn kept(&self, tree: Kept) -> &Rows {
        match tree {
            Kept::ApiKeys => &self.api_keys,
            Kept::Pins => &self.pins,
            Kept::SchemaEntries => &self.schema_entries,
            Kept::Jobs => &self.jobs,
            Kept::WarmJobs => &self.warm_jobs,
            Kept::Removals => &self.removals,
            Kept::ObjectRemovals => &self.object_removals,
            Kept::Models => &self.models,
            Kept::Quotas => &self.quotas,
            Kept::Settings => &self.settings,
        }
    }
}

impl Catalog {
    /// Ids are never used twice, so that a late update of a finished job cannot hit another one.
    fn fresh_id(&self) -> Result<u64> {
        Ok(self.ids_before + self.db.generate_id().map_err(sled_error)? + 1)
    }
}

/// Opens the catalog and reads every row once: sled finds some damage only when it reads, and some by panicking.
fn open_and_read(dir: &Path) -> Result<Catalog> {
    let attempt = AssertUnwindSafe(|| {
        let catalog = open_trees(dir)?;
        for tree in [&catalog.digests, &catalog.accesses, &catalog.uploads, &catalog.schemas] {
            for row in tree {
                row.map_err(sled_error)?;
            }
        }
        Kept::ALL.iter().try_for_each(|tree| catalog.kept(*tree).load())?;
        catalog.read_kept_modules()?;
        Ok(catalog)
    });
    catch_unwind(attempt).unwrap_or_else(|_| Err(Error::corrupt(format!("{} cannot be read", dir.display()))))
}

fn open_trees(dir: &Path) -> Result<Catalog> {
    let config = sled::Config::new().path(dir).cache_capacity(CACHE_BYTES);
    let db = config.open().map_err(|error| at_open(dir, error))?;
    let tree = |name: &str| db.open_tree(name).map_err(sled_error);
    let rows = |name: &str| tree(name).map(Rows::new);
    Ok(Catalog {
        file: File::open(dir.join("db")).ok(),
        flushing: Flushing::default(),
        records: Mutex::new(None),
        is_behind: AtomicBool::new(false),
        damage: None,
        ids_before: 0,
        settings: rows("settings")?,
        models: rows("models")?,
        digests: tree("digests")?,
        accesses: tree("accesses")?,
        pins: rows("pins")?,
        jobs: rows("jobs")?,
        warm_jobs: rows("warm_jobs")?,
        removals: rows("removals")?,
        object_removals: rows("object_removals")?,
        uploads: tree("uploads")?,
        schemas: tree("pml_schemas")?,
        schema_files: RecordFiles::new(dir.with_file_name("schemas"), "schema"),
        schema_entries: rows("pml_entries")?,
        api_keys: rows("api_keys")?,
        quotas: rows("quotas")?,
        kept_modules: Mutex::default(),
        db,
    })
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

#[cfg(test)]
mod tests;
