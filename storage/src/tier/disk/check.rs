//! Whether the index rows are those of the entry rows: what format 2 of the data folder promises.

use std::path::Path;

use rocksdb::{DB, IteratorMode, Options};

use super::{index_row, rocks};
use crate::Result;
use crate::entry::EntryHeader;
use crate::key::KvKey;

/// What a comparison found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexCheck {
    /// Entry rows that can be read. (Damaged ones are put aside by the next opening.)
    pub entries: u64,
    /// Of these, without an index row, or with another one than they give.
    pub missing: u64,
    /// Index rows without an entry row.
    pub stale: u64,
}

/// Compares the rows of the store in `dir` (`DATA/kv`), and changes nothing. BLOCKS.
///
/// # Errors
/// As RocksDB says.
pub fn check_index(dir: &Path) -> Result<IndexCheck> {
    let failed = |error| rocks::error(&format!("read {}", dir.display()), error);
    let options = Options::default();
    let families = DB::list_cf(&options, dir).map_err(failed)?;
    let db = DB::open_cf_for_read_only(&options, dir, &families, false).map_err(failed)?;
    let entries = rocks::entries(&db)?;
    // A store of format 1 has no such family.
    let index = rocks::index(&db).ok();
    let mut check = IndexCheck::default();
    for row in db.iterator_cf(entries, IteratorMode::Start) {
        let (key, row) = row.map_err(failed)?;
        let Ok(key) = <[u8; 32]>::try_from(&key[..]).map(KvKey) else { continue };
        let Ok(header) = EntryHeader::decode(&row, &key) else { continue };
        let found = match index {
            Some(index) => db.get_cf(index, key.as_bytes()).map_err(failed)?,
            None => None,
        };
        check.entries += 1;
        check.missing += u64::from(found.as_deref() != Some(&index_row::encode(&header.summary())[..]));
    }
    let Some(index) = index else { return Ok(check) };
    for row in db.iterator_cf(index, IteratorMode::Start) {
        let (key, _) = row.map_err(failed)?;
        check.stale += u64::from(db.get_cf(entries, &key).map_err(failed)?.is_none());
    }
    Ok(check)
}
