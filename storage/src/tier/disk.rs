//! RocksDB on the local disk: entries that outlive the process, bounded by bytes.
//!
//! ```text
//! column family   key                                 value
//! frames          KvKey [32] | layer u32 big-endian   one encoded frame (blob file from 4 KiB on)
//! entries         KvKey [32]                          the entry row
//! index           KvKey [32]                          the index row: all that opening has to read
//! ```
//! An entry is one `WriteBatch`: deletions of the entries it replaces, its frames, its rows last. So a kill at any
//! instant leaves whole entries only. Writes are not synced one by one: a power cut may lose the newest entries, and
//! the column families are flushed together, so that it loses them whole.

mod check;
mod index;
pub(crate) mod index_row;
mod opening;
mod pinned;
mod quarantine;
mod recovery;
mod rocks;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use rocksdb::{DB, ReadOptions, WriteBatch};

pub use self::check::{IndexCheck, check_index};
pub(crate) use self::index::DiskIndex;
use self::index::{DiskPin, Extent, Reservation};
pub use self::recovery::{Recovery, add_index};
use crate::catalog::LastUse;
use crate::entry::{Entry, EntryHeader};
use crate::key::KvKey;
use crate::policy::shares::Terms;
use crate::tier::resident::{Pin, Use};
use crate::tier::{EntryId, EntrySummary, EntryTier, Put, Tier, TierEntry, TierUsage};
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::damage::Damage;
use ragstone_env::lock::locked;

/// Garbage that is not worth collecting: what lies in blob files until RocksDB's next compaction in any case.
const GARBAGE_SLACK_BYTES: u64 = 96 << 20;

/// What is known of a disk tier's entries beside what is on the disk.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// They give the entries' order; an entry without one counts from its creation.
    pub last_uses: HashMap<KvKey, LastUse>,
    /// What an operator pinned. It stays, with what stands before it, even where the bound was lowered below it. Who opens
    /// the tier pins it for good.
    pub pins: Vec<KvKey>,
}

/// Entries in RocksDB. Cheap to clone; clones share it. Reads and writes BLOCK on the disk: call them from a thread that
/// may. No lock is held meanwhile.
#[derive(Clone)]
pub struct DiskTier(Arc<Inner>);

struct Inner {
    db: DB,
    dir: PathBuf,
    env: Env,
    index: Arc<Mutex<DiskIndex>>,
    /// Whether RocksDB was told to collect garbage from blob files.
    is_collecting: AtomicBool,
    recovery: Recovery,
    /// What befell it as a whole.
    damage: Option<Damage>,
    /// Whether it keeps anything beyond this process.
    is_on_disk: bool,
}

/// Room for one entry that gives itself back, and revives the entries it was to replace, unless the write came through.
struct Reserved<'a> {
    tier: &'a DiskTier,
    key: KvKey,
    victims: Vec<Extent>,
    pending: bool,
}

/// An entry that stays on disk while this lives.
struct PinnedDiskEntry {
    tier: DiskTier,
    header: Arc<EntryHeader>,
    _pin: DiskPin,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.pending {
            self.tier.index().abort(&self.key, &self.victims);
        }
    }
}

impl DiskTier {
    /// What befell it as a whole when it was opened, for people.
    pub fn damage(&self) -> Option<&Damage> {
        self.0.damage.as_ref()
    }

    /// Whether it keeps anything beyond this process.
    pub fn is_on_disk(&self) -> bool {
        self.0.is_on_disk
    }

    /// What opening found.
    pub fn recovery(&self) -> &Recovery {
        &self.0.recovery
    }

    /// Writes an entry as one batch, evicting what the policy values least. BLOCKS.
    ///
    /// # Errors
    /// `Full` if the disk is full, `Unavailable` or `Internal` as RocksDB says. Then nothing has changed: no room is
    /// taken, and what was to be evicted is still there. Where RocksDB wrote it all the same, it is found no more than what was evicted, and
    /// leaves with its removal or the next write.
    pub fn write(&self, entry: &Entry) -> Result<Put> {
        let summary = entry.header().summary();
        let extent = Extent::of(&summary);
        let reservation = self.index().reserve(summary.clone());
        let victims = match reservation {
            Reservation::Granted { victims } => victims,
            Reservation::AlreadyThere => return Ok(Put::AlreadyThere),
            Reservation::Refused => return Ok(Put::Refused),
            Reservation::Busy => {
                let message = format!("entry {} is being removed from the disk tier just now", extent.key);
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        };
        let mut reserved = Reserved { tier: self, key: extent.key, victims, pending: true };
        if let Err(error) = self.write_batch(entry, &summary, &reserved.victims) {
            if self.may_have_row(&extent.key) {
                reserved.pending = false;
                self.index().doubt(&extent.key, &reserved.victims);
            }
            return Err(error);
        }
        reserved.pending = false;
        let visible = self.index().commit(&extent.key, &reserved.victims);
        if !visible {
            self.delete(&extent)?;
        }
        if let Err(error) = self.steer_collection() {
            tracing::warn!(%error, "garbage on disk is not collected for now");
        }
        Ok(Put::Stored { bytes: extent.bytes })
    }

    /// Whether a batch that failed may be on disk all the same: its error does not say, and it is there as a whole or not at all.
    fn may_have_row(&self, key: &KvKey) -> bool {
        let row = rocks::index(&self.0.db).and_then(|rows| {
            self.0.db.get_pinned_cf(rows, key.as_bytes()).map_err(|error| rocks::error("look", error))
        });
        !matches!(row, Ok(None))
    }

    fn write_batch(&self, entry: &Entry, summary: &EntrySummary, victims: &[Extent]) -> Result<()> {
        let (db, key) = (&self.0.db, &summary.key);
        let frames = rocks::frames(db)?;
        let mut batch = WriteBatch::with_capacity_bytes(usize::try_from(summary.bytes).unwrap_or(0));
        for victim in victims {
            add_deletion(db, &mut batch, victim)?;
        }
        for (layer, frame) in (0..).zip(entry.frames()) {
            batch.put_cf(frames, frame_key(key, layer), frame);
        }
        batch.put_cf(rocks::entries(db)?, key.as_bytes(), entry.header().encode());
        batch.put_cf(rocks::index(db)?, key.as_bytes(), index_row::encode(summary));
        self.0.env.fail_point("disk.before_write")?;
        db.write(batch).map_err(|error| rocks::error("write an entry", error))?;
        self.0.env.fail_point("disk.after_write")
    }

    /// Has RocksDB collect garbage while there is more of it than a quarter of the bound, until an eighth is left. Blob
    /// files that hold nothing live are deleted in any case.
    fn steer_collection(&self) -> Result<()> {
        let file_bytes = self.file_bytes();
        let (live_bytes, capacity_bytes) = {
            let index = self.index();
            (index.bytes(), index.capacity_bytes())
        };
        let garbage_bytes = file_bytes.saturating_sub(live_bytes);
        let is_on = self.0.is_collecting.load(Ordering::Relaxed);
        let wanted = garbage_bytes > GARBAGE_SLACK_BYTES + capacity_bytes / if is_on { 8 } else { 4 };
        if wanted != is_on {
            rocks::set_blob_collection(&self.0.db, wanted)?;
            self.0.is_collecting.store(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has RocksDB rewrite its files without what was deleted; the bytes that became free. BLOCKS, for as long as copying
    /// the tier takes.
    ///
    /// # Errors
    /// As RocksDB says.
    pub fn compact(&self) -> Result<u64> {
        let before = self.file_bytes();
        rocks::set_blob_collection(&self.0.db, true)?;
        let compacted = rocks::compact(&self.0.db);
        rocks::set_blob_collection(&self.0.db, self.0.is_collecting.load(Ordering::Relaxed))?;
        compacted?;
        Ok(before.saturating_sub(self.file_bytes()))
    }

    /// Whether files have anything that was deleted.
    ///
    /// # Errors
    /// As RocksDB says.
    pub fn has_deleted(&self) -> Result<bool> {
        rocks::has_deleted(&self.0.db)
    }

    /// Whether the key can be found; memory only.
    pub fn contains(&self, key: &KvKey) -> bool {
        self.index().contains(key)
    }

    /// Agrees with a tenant on what it may hold here, from the next entry on that comes; memory only.
    pub fn set_terms(&self, tenant: &str, terms: Option<Terms>) {
        self.index().set_terms(tenant, terms);
    }

    /// Agrees with all tenants but the default one, with whom nothing else was agreed; memory only.
    pub fn set_default_terms(&self, terms: Terms) {
        self.index().set_default_terms(terms);
    }

    /// Bytes of a tenant's entries; memory only.
    pub fn held_by(&self, tenant: &str) -> u64 {
        self.index().held_by(tenant)
    }

    /// Counts one request, by the paths that it used; memory only.
    pub fn record(&self, uses: &[Use]) {
        self.index().record(uses);
    }

    /// Keys of entries here that stand behind `key`, the farthest first; memory only.
    pub fn behind(&self, key: &KvKey) -> Vec<KvKey> {
        self.index().behind(key)
    }

    /// Keeps a key in this tier while the result lives, if it is or comes there.
    pub(crate) fn pin(&self, key: &KvKey) -> DiskPin {
        Pin::new(&self.0.index, &mut self.index(), key)
    }

    /// What is known of an entry that can be found; memory only.
    pub fn summary(&self, key: &KvKey) -> Option<EntrySummary> {
        self.index().summary(key)
    }

    /// What can be found, by key; memory only.
    pub fn summaries(&self) -> Vec<EntrySummary> {
        let mut summaries = self.index().summaries();
        // Outside of the lock, which look-ups take.
        summaries.sort_unstable_by_key(|summary| summary.key);
        summaries
    }

    /// Reads and verifies an entry's row. BLOCKS.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, or as RocksDB says.
    pub fn header(&self, key: &KvKey) -> Result<EntryHeader> {
        self.0.env.fail_point("disk.read_row")?;
        let row = self.0.db.get_pinned_cf(rocks::entries(&self.0.db)?, key.as_bytes());
        let row = row.map_err(|error| rocks::error("read an entry row", error))?;
        EntryHeader::decode(&row.ok_or_else(|| Error::not_found(format!("entry {key} has no row on disk")))?, key)
    }

    /// Reads one encoded frame, unverified: [`crate::frame::decode`] does that. BLOCKS.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, or as RocksDB says.
    pub fn frame(&self, key: &KvKey, layer: u32) -> Result<Bytes> {
        self.0.env.fail_point("disk.read_frame")?;
        let mut options = ReadOptions::default();
        // The frame's own checksum covers more than RocksDB's, and is verified by the caller in any case.
        options.set_verify_checksums(false);
        options.fill_cache(false);
        let frame = self.0.db.get_pinned_cf_opt(rocks::frames(&self.0.db)?, frame_key(key, layer), &options);
        let frame = frame.map_err(|error| rocks::error("read a frame", error))?;
        let gone = || Error::not_found(format!("layer {layer} of entry {key} is not on disk"));
        frame.map(|frame| pinned::bytes(self, frame)).ok_or_else(gone)
    }

    /// Removes an entry, pinned or not: from now on nobody finds it, even if the deletion itself fails. Whether there was
    /// one. BLOCKS.
    ///
    /// # Errors
    /// As RocksDB says; the entry stays hidden until a restart, and is deleted with the next write or flush.
    pub fn delete_entry(&self, key: &KvKey) -> Result<bool> {
        let Some(extent) = self.index().begin_removal(key) else { return Ok(false) };
        self.delete(&extent).map(|()| true)
    }

    /// As [`delete_entry`](Self::delete_entry), for a damaged entry: what is left of it is kept aside for a look.
    ///
    /// # Errors
    /// As RocksDB says; a copy that cannot be written is a warning.
    pub fn quarantine(&self, key: &KvKey) -> Result<bool> {
        let Some(extent) = self.index().begin_removal(key) else { return Ok(false) };
        quarantine::keep_aside(&self.0.db, &self.0.dir, key, extent.layers);
        self.delete(&extent).map(|()| true)
    }

    /// Deletes the bytes of a `Leaving` slot and ends the removal.
    fn delete(&self, extent: &Extent) -> Result<()> {
        let deleted = self.0.env.fail_point("disk.delete").and_then(|()| {
            let mut batch = WriteBatch::default();
            add_deletion(&self.0.db, &mut batch, extent)?;
            self.0.db.write(batch).map_err(|error| rocks::error("delete an entry", error))
        });
        self.index().end_removal(&extent.key, deleted.is_ok());
        deleted
    }

    /// Size of RocksDB's table and blob files: more than the entries' bytes by what was deleted and not yet compacted away.
    pub fn file_bytes(&self) -> u64 {
        rocks::file_bytes(&self.0.db)
    }

    fn index(&self) -> MutexGuard<'_, DiskIndex> {
        locked(&self.0.index)
    }
}

impl EntryTier for DiskTier {
    fn tier(&self) -> Tier {
        Tier::Disk
    }

    fn put(&self, entry: &Arc<Entry>) -> Result<Put> {
        self.write(entry)
    }

    fn open(&self, id: &EntryId) -> Result<Option<Arc<dyn TierEntry>>> {
        let pin = self.index().find(&self.0.index, &id.key);
        let Some(pin) = pin else { return Ok(None) };
        let header = Arc::new(self.header(&id.key)?);
        Ok(Some(Arc::new(PinnedDiskEntry { tier: self.clone(), header, _pin: pin })))
    }

    fn remove(&self, id: &EntryId) -> Result<bool> {
        self.delete_entry(&id.key)
    }

    fn list(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        self.summaries().into_iter().for_each(each);
        Ok(0)
    }

    fn usage(&self) -> TierUsage {
        let index = self.index();
        TierUsage {
            entries: index.ready_entries(),
            bytes: index.bytes(),
            capacity_bytes: index.capacity_bytes(),
            evicted: index.evicted(),
            refused: index.refused(),
            forged: 0,
        }
    }

    /// Deletes what earlier could not be deleted, so that no restart brings it back, and syncs the write-ahead log.
    fn flush(&self) -> Result<()> {
        let dead = self.index().dead().to_vec();
        dead.iter().try_for_each(|key| self.delete_entry(key).map(drop))?;
        self.0.env.fail_point("disk.flush")?;
        if !self.0.is_on_disk {
            return Ok(());
        }
        self.0.db.flush_wal(true).map_err(|error| rocks::error("sync the log", error))
    }
}

impl TierEntry for PinnedDiskEntry {
    fn header(&self) -> &Arc<EntryHeader> {
        &self.header
    }

    fn frame(&self, layer: u32) -> Result<Bytes> {
        self.tier.frame(&self.header.key, layer)
    }
}

fn add_deletion(db: &DB, batch: &mut WriteBatch, extent: &Extent) -> Result<()> {
    batch.delete_cf(rocks::index(db)?, extent.key.as_bytes());
    batch.delete_cf(rocks::entries(db)?, extent.key.as_bytes());
    let frames = rocks::frames(db)?;
    (0..extent.layers).for_each(|layer| batch.delete_cf(frames, frame_key(&extent.key, layer)));
    Ok(())
}

fn frame_key(key: &KvKey, layer: u32) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..32].copy_from_slice(key.as_bytes());
    bytes[32..].copy_from_slice(&layer.to_be_bytes());
    bytes
}

#[cfg(test)]
pub(crate) mod tests;
