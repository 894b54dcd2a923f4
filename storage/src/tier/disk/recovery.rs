//! Opening: the index is rebuilt from what is on disk, and what is damaged is repaired or put aside.

use std::path::Path;

use rocksdb::{DB, IteratorMode, WriteBatch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::index::{DiskIndex, Extent};
use super::{Remembered, frame_key, index_row, quarantine, rocks};
use crate::catalog::LastUse;
use crate::entry::EntryHeader;
use crate::key::KvKey;
use crate::tier::EntrySummary;
use crate::{Error, Result};
use ragstone_env::Env;
use ragstone_env::damage::Damage;

/// Index rows in one write.
const ROWS_A_WRITE: usize = 1024;

/// What opening the disk tier found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Recovery {
    /// Entries that can be found.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Index rows that were damaged or missing, and were made again from entry rows.
    pub repaired: u64,
    /// Entries whose rows were damaged: removed, a copy in the quarantine.
    pub damaged: u64,
    /// Entries removed because the bound was lowered.
    pub evicted: u64,
    /// Bytes of pinned entries beyond the bound: they are kept, and nothing else is until they are unpinned.
    pub over_bound_bytes: u64,
    /// Time it took, in milliseconds.
    pub ms: f64,
}

/// What befell a tier as a whole at its opening, for people.
pub(super) fn damage(found: impl Into<String>, advice: impl Into<String>) -> Damage {
    Damage { what: "stored KV".into(), found: found.into(), advice: advice.into() }
}

/// Fills `index` from the index rows. The extents are of entries that have no room; they are to be deleted.
pub(super) fn read_index(
    db: &DB,
    dir: &Path,
    env: &Env,
    index: &mut DiskIndex,
    remembered: &Remembered,
) -> Result<(Recovery, Vec<Extent>)> {
    let started = env.stopwatch();
    env.fail_point("disk.open")?;
    let mut recovery = Recovery::default();
    if db.iterator_cf(rocks::index(db)?, IteratorMode::Start).next().is_none() {
        // In one write: the next opening would take a part of an index for the whole.
        recovery.repaired += fill_index(db, usize::MAX)?;
    }
    let mut found = Vec::new();
    let mut damaged = Vec::new();
    for row in db.iterator_cf(rocks::index(db)?, IteratorMode::Start) {
        let (key, row) = row.map_err(|error| rocks::error("list the entries", error))?;
        match <[u8; 32]>::try_from(&key[..]).ok().map(KvKey).map(|key| index_row::decode(&row, &key)) {
            Some(Ok(summary)) => found.push(summary),
            Some(Err(_)) | None => damaged.push(key),
        }
    }
    for key in &damaged {
        match repair(db, dir, key)? {
            Some(summary) => {
                recovery.repaired += 1;
                found.push(summary);
            }
            None => recovery.damaged += 1,
        }
    }
    // By key among equals, so that the order is the same at every start.
    found.sort_by_key(|summary| (last_use(summary, remembered).unix_ms, summary.key));
    index.begin_opening(&remembered.pins, &found);
    let mut excess = Vec::new();
    for summary in found {
        let uses = last_use(&summary, remembered).uses;
        excess.extend(index.add_existing(summary, uses));
    }
    index.end_opening(&remembered.pins);
    recovery.entries = index.ready_entries();
    recovery.bytes = index.bytes() - excess.iter().map(|extent| extent.bytes).sum::<u64>();
    recovery.evicted = excess.len() as u64;
    recovery.over_bound_bytes = index.over_bound_bytes();
    recovery.ms = started.elapsed_ms();
    Ok((recovery, excess))
}

fn last_use(summary: &EntrySummary, remembered: &Remembered) -> LastUse {
    let known = remembered.last_uses.get(&summary.key).copied().unwrap_or_default();
    LastUse { unix_ms: known.unix_ms.max(summary.created_unix_ms), uses: known.uses.max(1) }
}

/// Makes a damaged index row again from the entry row; removes the entry if that is damaged too.
fn repair(db: &DB, dir: &Path, key: &[u8]) -> Result<Option<EntrySummary>> {
    let known = <[u8; 32]>::try_from(key).ok().map(KvKey);
    if let Some(key) = known {
        let row = db.get_cf(rocks::entries(db)?, key.as_bytes());
        let row = row.map_err(|error| rocks::error("read an entry row", error))?;
        if let Some(Ok(header)) = row.map(|row| EntryHeader::decode(&row, &key)) {
            let summary = header.summary();
            let put = db.put_cf(rocks::index(db)?, key.as_bytes(), index_row::encode(&summary));
            put.map_err(|error| rocks::error("repair an index row", error))?;
            return Ok(Some(summary));
        }
        // How many layers it had is not known any more; no model has more.
        quarantine::keep_aside(db, dir, &key, 256);
    }
    delete_raw(db, key)?;
    Ok(None)
}

/// Deletes rows whose content cannot be trusted, and every frame that could belong to them.
fn delete_raw(db: &DB, key: &[u8]) -> Result<()> {
    let mut batch = WriteBatch::default();
    batch.delete_cf(rocks::index(db)?, key);
    batch.delete_cf(rocks::entries(db)?, key);
    if let Ok(key) = <[u8; 32]>::try_from(key) {
        let frames = rocks::frames(db)?;
        batch.delete_range_cf(frames, frame_key(&KvKey(key), 0), frame_key(&KvKey(key), u32::MAX));
    }
    db.write(batch).map_err(|error| rocks::error("delete a damaged entry", error))
}

/// Writes the index rows of a store that has none: the step from format 1 of the data folder to format 2. `dir` is
/// `DATA/kv`. May be repeated, and goes on where it was cut off. Gives the number of entries. BLOCKS.
///
/// # Errors
/// `Unavailable` if another process holds the folder; else as RocksDB says.
pub fn add_index(dir: &Path) -> Result<u64> {
    fill_index(&rocks::open(dir)?, ROWS_A_WRITE)
}

fn fill_index(db: &DB, rows_a_write: usize) -> Result<u64> {
    let (entries, index) = (rocks::entries(db)?, rocks::index(db)?);
    let write = |batch: &mut WriteBatch| {
        db.write(std::mem::take(batch)).map_err(|error| rocks::error("write index rows", error))
    };
    let mut batch = WriteBatch::default();
    let mut written = 0;
    for row in db.iterator_cf(entries, IteratorMode::Start) {
        let (key, row) = row.map_err(|error| rocks::error("list the entries", error))?;
        let key_bytes: &[u8] = &key;
        let decoded = <[u8; 32]>::try_from(key_bytes)
            .map_err(|_| Error::corrupt("an entry row has no key"))
            .and_then(|key| EntryHeader::decode(&row, &KvKey(key)));
        match decoded {
            Ok(header) => {
                batch.put_cf(index, key_bytes, index_row::encode(&header.summary()));
                written += 1;
            }
            // An index row that cannot be read: opening sees it, and puts the entry aside.
            Err(_) => batch.put_cf(index, key_bytes, b"damaged"),
        }
        if batch.len() >= rows_a_write {
            write(&mut batch)?;
        }
    }
    write(&mut batch)?;
    db.flush_wal(true).map_err(|error| rocks::error("sync the log", error))?;
    Ok(written)
}
