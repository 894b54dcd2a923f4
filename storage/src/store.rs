//! The KV store: host memory in front of disk, behind one handle that any thread may use.
//!
//! A cache of derived data: a miss is always legal, a wrong byte never. Token ids are compared on every hit, and every
//! frame is verified each time it leaves a tier.

mod reader;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

pub use self::reader::{EntryReader, LayerFrame};
use crate::catalog::Catalog;
use crate::entry::{Entry, EntryHeader};
use crate::env::Env;
use crate::key::{Fingerprint, KvKey};
use crate::tier::disk::{DiskPin, DiskTier};
use crate::tier::host::HostTier;
use crate::tier::{Tier, TierStatus};
pub use crate::tier::{disk::DiskOutcome, host::HostOutcome};
use crate::{Error, ErrorKind, Result};

/// Access times held in memory until they are written to the catalog at the latest.
const ACCESSES_IN_MEMORY: usize = 4096;

/// Bounds of the store's tiers. Zero switches a tier off.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Entries in host memory, in bytes.
    pub host_bytes: u64,
    /// Entries on disk, in bytes. RocksDB's files take more, by what was evicted and not collected yet, and by its log:
    /// up to a third and 350 MiB, as measured.
    pub disk_bytes: u64,
}

/// Host memory in front of RocksDB. Cheap to clone; clones share the store. `Send + Sync`.
///
/// [`look_up`](Self::look_up), [`open_entry`](Self::open_entry), [`EntryReader::layer`], [`persist`](Self::persist),
/// [`late_miss`](Self::late_miss) and [`flush`](Self::flush) BLOCK on the disk; no lock is held meanwhile.
#[derive(Clone)]
pub struct KvStore(Arc<Inner>);

struct Inner {
    fingerprint: Fingerprint,
    env: Env,
    catalog: Arc<Catalog>,
    host: HostTier,
    disk: DiskTier,
    counts: Counts,
    /// Last uses that the catalog does not know yet, in milliseconds since 1970.
    accesses: Mutex<HashMap<KvKey, u64>>,
}

#[derive(Debug, Default)]
struct Counts {
    host: TierCounts,
    disk: TierCounts,
    late_misses: AtomicU64,
    token_mismatches: AtomicU64,
    promoted: AtomicU64,
}

#[derive(Debug, Default)]
struct TierCounts {
    hits: AtomicU64,
    misses: AtomicU64,
    corrupt: AtomicU64,
    failed: AtomicU64,
}

/// What [`KvStore::insert`] did.
#[derive(Debug)]
pub struct Inserted {
    /// The entry, to be handed to whoever calls [`KvStore::persist_entry`]: held, it is pinned in host memory.
    pub entry: Arc<Entry>,
    /// Whether host memory took it.
    pub host: HostOutcome,
    /// What left host memory for it; lost if it was never persisted, which is legal.
    pub evicted: Vec<Arc<Entry>>,
}

/// A hit; its token ids were compared.
#[derive(Debug, Clone)]
pub struct Found {
    /// What the entry is.
    pub header: Arc<EntryHeader>,
    /// The fastest tier that has it.
    pub tier: Tier,
    /// Keeps it there.
    pub pin: Pin,
}

/// Keeps an entry from being evicted while it lives. [`KvStore::late_miss`] removes it all the same.
#[derive(Debug, Clone)]
pub struct Pin(Pinned);

#[derive(Debug, Clone)]
enum Pinned {
    Host(Arc<Entry>),
    Disk(DiskPin),
}

/// What the store holds and did since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Host memory.
    pub host: TierStatus,
    /// RocksDB.
    pub disk: TierStatus,
    /// Size of RocksDB's table and blob files.
    pub disk_file_bytes: u64,
    /// Entries that were found and then could not be read.
    pub late_misses: u64,
    /// Keys found with other token ids: a collision, or a bug. Never a hit.
    pub token_mismatches: u64,
    /// Entries copied from disk to host memory after they were read.
    pub promoted: u64,
}

impl KvStore {
    /// Opens or creates the store of one model in `dir` (`DATA/kv`). BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process holds the folder; `Full` if the disk is. A RocksDB that is damaged as a whole
    /// is emptied with a warning.
    pub fn open(
        dir: &Path,
        options: StoreOptions,
        fingerprint: Fingerprint,
        env: Env,
        catalog: Arc<Catalog>,
    ) -> Result<Self> {
        let last_uses = catalog.accesses().unwrap_or_else(|error| {
            tracing::warn!(%error, "the order of use is lost; entries count from their creation");
            HashMap::new()
        });
        let disk = DiskTier::open(dir, options.disk_bytes, env.clone(), &last_uses)?;
        let gone: Vec<KvKey> = last_uses.into_keys().filter(|key| !disk.contains(key)).collect();
        if let Err(error) = catalog.forget_accesses(&gone) {
            tracing::warn!(%error, "access times of entries that are gone stay in the catalog");
        }
        Ok(Self(Arc::new(Inner {
            fingerprint,
            env,
            catalog,
            host: HostTier::new(options.host_bytes),
            disk,
            counts: Counts::default(),
            accesses: Mutex::new(HashMap::new()),
        })))
    }

    /// The model that this store keeps entries of.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.0.fingerprint
    }

    /// The clock, randomness and failpoints it was opened with.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    /// Puts an entry into host memory; no disk. A refusal is no error: [`Inserted::host`] tells.
    ///
    /// # Errors
    /// `Incompatible` if another model computed it.
    pub fn insert(&self, entry: Entry) -> Result<Inserted> {
        let header = entry.header();
        if header.fingerprint != self.0.fingerprint {
            let message = format!(
                "entry {} was computed by model {}, but the store was opened for {}",
                header.key, header.fingerprint, self.0.fingerprint
            );
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        let entry = Arc::new(entry);
        let (host, evicted) = self.0.host.insert(entry.clone());
        Ok(Inserted { entry, host, evicted })
    }

    /// Writes an entry of host memory to disk, as write-behind. BLOCKS.
    ///
    /// # Errors
    /// `NotFound` if it left host memory; else as [`KvStore::persist_entry`].
    pub fn persist(&self, key: &KvKey) -> Result<DiskOutcome> {
        let entry = self.0.host.get(key);
        let gone = || Error::not_found(format!("entry {key} left host memory before it was written to disk"));
        self.persist_entry(&*entry.ok_or_else(gone)?)
    }

    /// Writes an entry to disk as one batch. BLOCKS.
    ///
    /// # Errors
    /// `Full` if the disk is full; `Unavailable` or `Internal` as RocksDB says. Counted; nothing is lost, and the
    /// entry stays usable in host memory.
    pub fn persist_entry(&self, entry: &Entry) -> Result<DiskOutcome> {
        let outcome = self.0.disk.put(entry);
        match &outcome {
            Ok(_) => self.0.record_access(&entry.header().key),
            Err(error) => {
                self.0.counts.disk.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(key = %entry.header().key, %error, "an entry was not written to disk");
            }
        }
        self.0.write_accesses(ACCESSES_IN_MEMORY);
        outcome
    }

    /// The fastest tier that has the key. Memory only: no token ids are compared, nothing is counted.
    pub fn contains(&self, key: &KvKey) -> Option<Tier> {
        if self.0.host.contains(key) {
            return Some(Tier::Host);
        }
        self.0.disk.contains(key).then_some(Tier::Disk)
    }

    /// Finds and pins an entry, compares its token ids, and counts a hit or a miss in every tier asked. BLOCKS if the
    /// entry is on disk only: its row is read. What cannot be read is a miss, and what is damaged is removed.
    pub fn look_up(&self, key: &KvKey, tokens: &[u32]) -> Option<Found> {
        let found = self.find(key, tokens);
        let counts = &self.0.counts;
        let (host, disk) = match found.as_ref().map(|found| found.tier) {
            Some(Tier::Host) => (&counts.host.hits, None),
            Some(_) => (&counts.host.misses, Some(&counts.disk.hits)),
            None => (&counts.host.misses, Some(&counts.disk.misses)),
        };
        host.fetch_add(1, Ordering::Relaxed);
        if let Some(disk) = disk {
            disk.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Finds an entry and opens it for reading; `None` if it is gone. Counts neither hit nor miss. BLOCKS like
    /// [`KvStore::look_up`].
    pub fn open_entry(&self, key: &KvKey, tokens: &[u32]) -> Option<EntryReader> {
        self.find(key, tokens).map(|found| self.open_found(&found))
    }

    /// Opens what [`KvStore::look_up`] found; no second look-up.
    pub fn open_found(&self, found: &Found) -> EntryReader {
        EntryReader::new(self.clone(), found)
    }

    fn find(&self, key: &KvKey, tokens: &[u32]) -> Option<Found> {
        let found = self.find_in_host(key).or_else(|| self.find_on_disk(key))?;
        if *found.header.tokens != *tokens || found.header.key != *key {
            self.0.counts.token_mismatches.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%key, "an entry has other token ids than its key was asked for; not used");
            return None;
        }
        self.0.record_access(key);
        Some(found)
    }

    fn find_in_host(&self, key: &KvKey) -> Option<Found> {
        let entry = self.0.host.get(key)?;
        // What is hot in host memory must not grow old on disk.
        self.0.disk.touch(key);
        Some(Found { header: entry.header().clone(), tier: Tier::Host, pin: Pin(Pinned::Host(entry)) })
    }

    fn find_on_disk(&self, key: &KvKey) -> Option<Found> {
        let pin = self.0.disk.find(key)?;
        match self.0.disk.header(key) {
            Ok(header) => Some(Found { header: Arc::new(header), tier: Tier::Disk, pin: Pin(Pinned::Disk(pin)) }),
            Err(error) => {
                self.0.count_failed_read(Tier::Disk, &error);
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) {
                    self.late_miss(key);
                }
                None
            }
        }
    }

    /// Removes an entry from every tier and counts: call it when [`EntryReader::layer`] failed. From then on nobody
    /// finds the entry, pinned or not. BLOCKS.
    pub fn late_miss(&self, key: &KvKey) {
        self.0.counts.late_misses.fetch_add(1, Ordering::Relaxed);
        self.0.host.remove(key);
        self.0.accesses().remove(key);
        if let Err(error) = self.0.disk.remove(key) {
            self.0.counts.disk.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%key, %error, "a bad entry is hidden, but could not be deleted from disk yet");
        }
    }

    /// Syncs RocksDB's log and writes access times to the catalog: what came before survives a power cut. BLOCKS.
    ///
    /// # Errors
    /// As the disk says.
    pub fn flush(&self) -> Result<()> {
        self.0.write_accesses(0);
        self.0.catalog.flush()?;
        self.0.disk.flush()
    }

    /// What the store holds and did.
    pub fn status(&self) -> StoreStatus {
        let (host, disk, counts) = (self.0.host.usage(), self.0.disk.usage(), &self.0.counts);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let with = |counts: &TierCounts, tier: TierStatus| TierStatus {
            hits: read(&counts.hits),
            misses: read(&counts.misses),
            corrupt: read(&counts.corrupt),
            failed: read(&counts.failed),
            ..tier
        };
        let host = TierStatus {
            entries: host.entries,
            bytes: host.bytes,
            capacity_bytes: host.capacity_bytes,
            evicted: host.evicted,
            refused: host.refused,
            ..TierStatus::default()
        };
        let disk_file_bytes = disk.file_bytes;
        let disk = TierStatus {
            entries: disk.entries,
            bytes: disk.bytes,
            capacity_bytes: disk.capacity_bytes,
            evicted: disk.evicted,
            refused: disk.refused,
            ..TierStatus::default()
        };
        StoreStatus {
            host: with(&counts.host, host),
            disk: with(&counts.disk, disk),
            disk_file_bytes,
            late_misses: read(&counts.late_misses),
            token_mismatches: read(&counts.token_mismatches),
            promoted: read(&counts.promoted),
        }
    }
}

impl Inner {
    fn count_failed_read(&self, tier: Tier, error: &Error) {
        let counts = match tier {
            Tier::Host => &self.counts.host,
            _ => &self.counts.disk,
        };
        let damaged = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound);
        let count = if damaged { &counts.corrupt } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%tier, %error, "an entry could not be read");
    }

    fn record_access(&self, key: &KvKey) {
        self.accesses().insert(*key, self.env.now_unix_ms());
    }

    /// Hands access times to the catalog if there are more than `beyond`. They only order evictions after a restart,
    /// so that a failure is worth a warning and no more.
    fn write_accesses(&self, beyond: usize) {
        let batch = {
            let mut accesses = self.accesses();
            if accesses.len() <= beyond {
                return;
            }
            std::mem::take(&mut *accesses)
        };
        if let Err(error) = self.catalog.note_accesses(&batch) {
            tracing::warn!(%error, "access times were not written");
        }
    }

    fn accesses(&self) -> MutexGuard<'_, HashMap<KvKey, u64>> {
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.write_accesses(0);
    }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod kill_tests;
