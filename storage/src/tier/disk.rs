//! RocksDB on the local disk: entries that outlive the process, bounded by bytes.
//!
//! ```text
//! column family   key                                 value
//! frames          KvKey [32] | layer u32 big-endian   one encoded frame (blob file from 4 KiB on)
//! entries         KvKey [32]                          the entry row
//! ```
//! An entry is one `WriteBatch`: deletions of the entries it replaces, its frames, its row last. So a kill at any
//! instant leaves whole entries only. Writes are not synced one by one: a power cut may lose the newest entries, and
//! the column families are flushed together, so that it loses them whole.

mod index;
mod rocks;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rocksdb::{DB, IteratorMode, ReadOptions, WriteBatch};

pub use self::index::DiskPin;
use self::index::{DiskIndex, Extent, Reservation};
use crate::entry::{Entry, EntryHeader};
use crate::env::Env;
use crate::key::KvKey;
use crate::{Error, ErrorKind, Result};

/// Garbage that is not worth collecting: what lies in blob files until RocksDB's next compaction in any case.
const GARBAGE_SLACK_BYTES: u64 = 96 << 20;

/// What became of an entry that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOutcome {
    /// It is on disk.
    Written {
        /// Frames and row.
        bytes: u64,
    },
    /// It was there, or another thread is writing it.
    AlreadyThere,
    /// It is larger than the tier, or everything that would have to go is pinned. Counted.
    Refused,
}

/// Sizes and counts of the disk tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    /// Entries that can be found.
    pub entries: u64,
    /// Their bytes, and those of entries that are being written or removed.
    pub bytes: u64,
    /// The bound on `bytes`.
    pub capacity_bytes: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Entries not taken.
    pub refused: u64,
    /// Size of RocksDB's table and blob files: more than `bytes` by what was deleted and not yet compacted away.
    pub file_bytes: u64,
}

/// Entries in RocksDB. Reads and writes BLOCK on the disk: call them from a thread that may. No lock is held meanwhile.
pub struct DiskTier {
    db: DB,
    env: Env,
    index: Mutex<DiskIndex>,
    /// Whether RocksDB was told to collect garbage from blob files.
    is_collecting: AtomicBool,
}

/// Room for one entry that gives itself back, and revives the entries it was to replace, unless the write came through.
struct Reserved<'a> {
    tier: &'a DiskTier,
    key: KvKey,
    victims: Vec<Extent>,
    pending: bool,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.pending {
            self.tier.index().abort(&self.key, &self.victims);
        }
    }
}

impl DiskTier {
    /// Opens or creates the tier in `dir` and rebuilds its index from the entry rows; `last_use_unix_ms` gives their
    /// order, an entry without one counts from its creation. Damaged rows are removed. BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process holds the folder; `Full` if the disk is. A RocksDB that is damaged as a whole
    /// is emptied with a warning: it holds derived data only.
    pub fn open(dir: &Path, capacity_bytes: u64, env: Env, last_use_unix_ms: &HashMap<KvKey, u64>) -> Result<Self> {
        let db = rocks::open(dir)?;
        let tier =
            Self { db, env, index: Mutex::new(DiskIndex::new(capacity_bytes)), is_collecting: AtomicBool::new(false) };
        tier.rebuild_index(last_use_unix_ms)?;
        Ok(tier)
    }

    fn rebuild_index(&self, last_use_unix_ms: &HashMap<KvKey, u64>) -> Result<()> {
        let mut found = Vec::new();
        let mut damaged = Vec::new();
        for row in self.db.iterator_cf(rocks::entries(&self.db)?, IteratorMode::Start) {
            let (key, row) = row.map_err(|error| rocks::error("list the entries", error))?;
            let header = <[u8; 32]>::try_from(&key[..]).ok().map(KvKey).map(|key| EntryHeader::decode(&row, &key));
            match header {
                Some(Ok(header)) => {
                    let used = last_use_unix_ms.get(&header.key).copied().unwrap_or(0).max(header.created_unix_ms);
                    found.push((used, Extent::of(&header)));
                }
                Some(Err(_)) | None => damaged.push(key),
            }
        }
        for key in &damaged {
            tracing::warn!(key = %String::from_utf8_lossy(key).escape_debug(), "removing a damaged entry row");
            self.delete_raw(key)?;
        }
        // The sort is stable and RocksDB lists by key, so that the order is the same at every start.
        found.sort_by_key(|(used, _)| *used);
        let excess = {
            let mut index = self.index();
            found.into_iter().for_each(|(_, extent)| index.add_existing(extent));
            index.take_excess()
        };
        for extent in excess {
            self.delete(&extent)?;
        }
        Ok(())
    }

    /// Writes an entry as one batch, evicting what was not used for longest. BLOCKS.
    ///
    /// # Errors
    /// `Full` if the disk is full, `Unavailable` or `Internal` as RocksDB says. Then nothing has changed: no room is
    /// taken, and what was to be evicted is still there.
    pub fn put(&self, entry: &Entry) -> Result<DiskOutcome> {
        let extent = Extent::of(entry.header());
        let reservation = self.index().reserve(extent);
        let victims = match reservation {
            Reservation::Granted { victims } => victims,
            Reservation::AlreadyThere => return Ok(DiskOutcome::AlreadyThere),
            Reservation::Refused => return Ok(DiskOutcome::Refused),
            Reservation::Busy => {
                let message = format!("entry {} is being removed from the disk tier just now", extent.key);
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        };
        let mut reserved = Reserved { tier: self, key: extent.key, victims, pending: true };
        self.write(entry, &reserved.victims)?;
        reserved.pending = false;
        let visible = self.index().commit(&extent.key, &reserved.victims);
        if !visible {
            self.delete(&extent)?;
        }
        self.steer_collection()?;
        Ok(DiskOutcome::Written { bytes: extent.bytes })
    }

    fn write(&self, entry: &Entry, victims: &[Extent]) -> Result<()> {
        let header = entry.header();
        let (frames, entries) = (rocks::frames(&self.db)?, rocks::entries(&self.db)?);
        let mut batch = WriteBatch::with_capacity_bytes(usize::try_from(header.total_bytes()).unwrap_or(0));
        for victim in victims {
            self.add_deletion(&mut batch, victim)?;
        }
        for (layer, frame) in (0..).zip(entry.frames()) {
            batch.put_cf(frames, frame_key(&header.key, layer), frame);
        }
        batch.put_cf(entries, header.key.as_bytes(), header.encode());
        self.env.fail_point("disk.before_write")?;
        self.db.write(batch).map_err(|error| rocks::error("write an entry", error))?;
        self.env.fail_point("disk.after_write")
    }

    /// Has RocksDB collect garbage while there is more of it than a quarter of the bound, until an eighth is left. Blob
    /// files that hold nothing live are deleted in any case.
    fn steer_collection(&self) -> Result<()> {
        let file_bytes = rocks::file_bytes(&self.db);
        let (live_bytes, capacity_bytes) = {
            let index = self.index();
            (index.bytes(), index.capacity_bytes())
        };
        let garbage_bytes = file_bytes.saturating_sub(live_bytes);
        let is_on = self.is_collecting.load(Ordering::Relaxed);
        let wanted = garbage_bytes > GARBAGE_SLACK_BYTES + capacity_bytes / if is_on { 8 } else { 4 };
        if wanted != is_on {
            rocks::set_blob_collection(&self.db, wanted)?;
            self.is_collecting.store(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Pins an entry and marks it as used; memory only.
    pub fn find(&self, key: &KvKey) -> Option<DiskPin> {
        self.index().find(key)
    }

    /// Whether the key can be found; memory only, not a use.
    pub fn contains(&self, key: &KvKey) -> bool {
        self.index().contains(key)
    }

    /// Marks an entry and its ancestors as used; memory only.
    pub fn touch(&self, key: &KvKey) {
        self.index().touch(key);
    }

    /// Readable entries, least recently used first; memory only.
    pub fn keys(&self) -> Vec<KvKey> {
        self.index().ready_keys()
    }

    /// Reads and verifies an entry's row. BLOCKS.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, or as RocksDB says.
    pub fn header(&self, key: &KvKey) -> Result<EntryHeader> {
        self.env.fail_point("disk.read_row")?;
        let row = self.db.get_pinned_cf(rocks::entries(&self.db)?, key.as_bytes());
        let row = row.map_err(|error| rocks::error("read an entry row", error))?;
        EntryHeader::decode(&row.ok_or_else(|| Error::not_found(format!("entry {key} has no row on disk")))?, key)
    }

    /// Reads one encoded frame, unverified: [`crate::frame::decode`] does that. BLOCKS.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, or as RocksDB says.
    pub fn frame(&self, key: &KvKey, layer: u32) -> Result<Bytes> {
        self.env.fail_point("disk.read_frame")?;
        let mut options = ReadOptions::default();
        // The frame's own checksum covers more than RocksDB's, and is verified by the caller in any case.
        options.set_verify_checksums(false);
        options.fill_cache(false);
        let frame = self.db.get_cf_opt(rocks::frames(&self.db)?, frame_key(key, layer), &options);
        let frame = frame.map_err(|error| rocks::error("read a frame", error))?;
        frame.map(Bytes::from).ok_or_else(|| Error::not_found(format!("layer {layer} of entry {key} is not on disk")))
    }

    /// Removes an entry, pinned or not: from now on nobody finds it, even if the deletion itself fails. BLOCKS.
    ///
    /// # Errors
    /// As RocksDB says; the entry stays hidden until a restart, and is the next to be evicted.
    pub fn remove(&self, key: &KvKey) -> Result<()> {
        let extent = self.index().begin_removal(key);
        extent.map_or(Ok(()), |extent| self.delete(&extent))
    }

    /// Deletes the bytes of a `Leaving` slot and ends the removal.
    fn delete(&self, extent: &Extent) -> Result<()> {
        let deleted = self.env.fail_point("disk.delete").and_then(|()| {
            let mut batch = WriteBatch::default();
            self.add_deletion(&mut batch, extent)?;
            self.db.write(batch).map_err(|error| rocks::error("delete an entry", error))
        });
        self.index().end_removal(&extent.key, deleted.is_ok());
        deleted
    }

    fn add_deletion(&self, batch: &mut WriteBatch, extent: &Extent) -> Result<()> {
        batch.delete_cf(rocks::entries(&self.db)?, extent.key.as_bytes());
        let frames = rocks::frames(&self.db)?;
        (0..extent.layers).for_each(|layer| batch.delete_cf(frames, frame_key(&extent.key, layer)));
        Ok(())
    }

    /// Deletes a row whose content cannot be trusted, and every frame that could belong to it.
    fn delete_raw(&self, key: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_cf(rocks::entries(&self.db)?, key);
        if let Ok(key) = <[u8; 32]>::try_from(key) {
            let frames = rocks::frames(&self.db)?;
            batch.delete_range_cf(frames, frame_key(&KvKey(key), 0), frame_key(&KvKey(key), u32::MAX));
        }
        self.db.write(batch).map_err(|error| rocks::error("delete a damaged entry", error))
    }

    /// Syncs the write-ahead log: what was written before survives a power cut. BLOCKS.
    ///
    /// # Errors
    /// As RocksDB says.
    pub fn flush(&self) -> Result<()> {
        self.env.fail_point("disk.flush")?;
        self.db.flush_wal(true).map_err(|error| rocks::error("sync the log", error))
    }

    /// Sizes and counts.
    pub fn usage(&self) -> DiskUse {
        let file_bytes = rocks::file_bytes(&self.db);
        let index = self.index();
        DiskUse {
            entries: index.ready_entries(),
            bytes: index.bytes(),
            capacity_bytes: index.capacity_bytes(),
            evicted: index.evicted,
            refused: index.refused,
            file_bytes,
        }
    }

    fn index(&self) -> MutexGuard<'_, DiskIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Extent {
    fn of(header: &EntryHeader) -> Self {
        Self { key: header.key, parent: header.parent, bytes: header.total_bytes(), layers: header.layers }
    }
}

fn frame_key(key: &KvKey, layer: u32) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..32].copy_from_slice(key.as_bytes());
    bytes[32..].copy_from_slice(&layer.to_be_bytes());
    bytes
}

#[cfg(test)]
pub(crate) mod tests;
