//! How RocksDB is opened, and what its errors mean to us.

use std::path::Path;

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, LogLevel, Options,
    properties,
};

use crate::{Error, ErrorKind, Result};
use ragstone_env::durable::{create_folder, sync_name};

const FRAMES: &str = "frames";
const ENTRIES: &str = "entries";
const INDEX: &str = "index";

/// Frames from here on go to blob files, so that compaction moves references and not the data.
pub(super) const MIN_BLOB_BYTES: u64 = 4 << 10;
/// Small enough that a file of evicted entries soon holds no live blob and is dropped whole.
const BLOB_FILE_BYTES: u64 = 64 << 20;
/// Two of these are in memory at most, outside of the tiers' bounds.
const FRAMES_BUFFER_BYTES: usize = 32 << 20;
const ENTRIES_BUFFER_BYTES: usize = 4 << 20;
const BLOCK_CACHE_BYTES: usize = 16 << 20;
const LOG_BYTES: u64 = 64 << 20;
/// Share of the blob files, the oldest ones, that a compaction moves live blobs out of.
const OLDEST_BLOBS: f64 = 0.3;

/// Opens or creates the database.
pub(super) fn open(dir: &Path) -> Result<DB> {
    let created = create_folder(dir).and_then(|()| sync_name(dir));
    created.map_err(|source| Error::io("create the KV folder", dir, source))?;
    open_with(&database_options(), dir).map_err(|error| at_open(dir, error))
}

/// A database in memory, for a start without a disk.
pub(super) fn open_in_memory() -> Result<DB> {
    let failed = |failed| error("begin in memory", failed);
    let mut options = database_options();
    options.set_env(&rocksdb::Env::mem_env().map_err(failed)?);
    open_with(&options, Path::new("/kv")).map_err(failed)
}

fn open_with(options: &Options, dir: &Path) -> Result<DB, rocksdb::Error> {
    let cache = Cache::new_lru_cache(BLOCK_CACHE_BYTES);
    let families = [
        ColumnFamilyDescriptor::new(FRAMES, frames_options(&cache)),
        ColumnFamilyDescriptor::new(ENTRIES, entries_options(&cache)),
        ColumnFamilyDescriptor::new(INDEX, entries_options(&cache)),
    ];
    DB::open_cf_descriptors(options, dir, families)
}

fn database_options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    // Frames and rows reach the tables together or not at all, even if a power cut takes the end of the log.
    options.set_atomic_flush(true);
    options.set_max_total_wal_size(LOG_BYTES);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    // The frames of an entry lie behind each other and are read in that order: the system may read ahead.
    options.set_advise_random_on_open(false);
    options.set_bytes_per_sync(1 << 20);
    options.set_wal_bytes_per_sync(1 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options
}

fn frames_options(cache: &Cache) -> Options {
    let mut options = Options::default();
    options.set_block_based_table_factory(&table_options(cache));
    // KV states look like noise to a compressor.
    options.set_compression_type(DBCompressionType::None);
    options.set_enable_blob_files(true);
    options.set_min_blob_size(MIN_BLOB_BYTES);
    options.set_blob_file_size(BLOB_FILE_BYTES);
    options.set_blob_compression_type(DBCompressionType::None);
    // Switched on by [`set_blob_collection`] only while there is much garbage: when on, every compaction rewrites the
    // oldest blob files, whether they hold garbage or not.
    options.set_enable_blob_gc(false);
    options.set_blob_gc_age_cutoff(OLDEST_BLOBS);
    // Tables hold references only, so that compactions are cheap; the sooner one comes, the sooner a blob file without
    // live blobs is deleted.
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_write_buffer_size(FRAMES_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options
}

fn entries_options(cache: &Cache) -> Options {
    let mut options = Options::default();
    options.set_block_based_table_factory(&table_options(cache));
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(ENTRIES_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options
}

fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut options = BlockBasedOptions::default();
    options.set_block_cache(cache);
    options.set_cache_index_and_filter_blocks(true);
    options.set_bloom_filter(10.0, false);
    options
}

pub(super) fn frames(db: &DB) -> Result<&ColumnFamily> {
    family(db, FRAMES)
}

pub(super) fn entries(db: &DB) -> Result<&ColumnFamily> {
    family(db, ENTRIES)
}

pub(super) fn index(db: &DB) -> Result<&ColumnFamily> {
    family(db, INDEX)
}

fn family<'a>(db: &'a DB, name: &str) -> Result<&'a ColumnFamily> {
    let missing =
        || Error::new(ErrorKind::Internal, format!("the KV store was opened without its column family {name}"));
    db.cf_handle(name).ok_or_else(missing)
}

/// Whether compactions move live blobs out of the oldest blob files, so that those can be deleted.
pub(super) fn set_blob_collection(db: &DB, on: bool) -> Result<()> {
    let value = if on { "true" } else { "false" };
    let set = db.set_options_cf(frames(db)?, &[("enable_blob_garbage_collection", value)]);
    set.map_err(|failed| error("switch blob collection", failed))
}

/// Rewrites all files without what was deleted.
pub(super) fn compact(db: &DB) -> Result<()> {
    let set_cutoff = |cutoff: f64| {
        let cutoff = cutoff.to_string();
        let set = db.set_options_cf(frames(db)?, &[("blob_garbage_collection_age_cutoff", cutoff.as_str())]);
        set.map_err(|failed| error("set how much is collected", failed))
    };
    set_cutoff(1.0)?;
    let compacted = compact_families(db);
    set_cutoff(OLDEST_BLOBS)?;
    compacted
}

fn compact_families(db: &DB) -> Result<()> {
    for family in [frames(db)?, entries(db)?, index(db)?] {
        db.flush_cf(family).map_err(|failed| error("write its files", failed))?;
        let mut options = rocksdb::CompactOptions::default();
        // Tables are rewritten even where they look compact: that is what moves live blobs out of old files.
        options.set_bottommost_level_compaction(rocksdb::BottommostLevelCompaction::Force);
        db.compact_range_cf_opt(family, None::<&[u8]>, None::<&[u8]>, &options);
    }
    Ok(())
}

/// Whether tables, blob files or the log have anything that was deleted. Keys are written once, so that nothing else is superseded.
pub(super) fn has_deleted(db: &DB) -> Result<bool> {
    let tables = db.live_files().map_err(|failed| error("list its files", failed))?;
    if tables.iter().any(|table| table.num_deletions > 0) {
        return Ok(true);
    }
    for family in [frames(db)?, entries(db)?, index(db)?] {
        let named = [
            c"rocksdb.num-deletes-active-mem-table",
            c"rocksdb.num-deletes-imm-mem-tables",
            c"rocksdb.live-blob-file-garbage-size",
        ];
        for name in named {
            // What it does not tell may be anything.
            let told =
                db.property_int_value_cf(family, name).map_err(|failed| error("count what is deleted", failed))?;
            if told != Some(0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Size of table and blob files; zero for what RocksDB does not tell.
pub(super) fn file_bytes(db: &DB) -> u64 {
    let of = |family: Result<&ColumnFamily>| {
        let Ok(family) = family else { return 0 };
        let read = |name| db.property_int_value_cf(family, name).ok().flatten().unwrap_or(0);
        read(properties::TOTAL_SST_FILES_SIZE.as_c_str()) + read(c"rocksdb.total-blob-file-size")
    };
    of(frames(db)) + of(entries(db)) + of(index(db))
}

/// What a failed operation means to the caller.
pub(super) fn error(doing: &str, error: rocksdb::Error) -> Error {
    let (kind, advice) = classify(&error);
    Error::new(kind, format!("the KV store could not {doing}: {error}{advice}")).with_source(error)
}

fn classify(error: &rocksdb::Error) -> (ErrorKind, &'static str) {
    classify_text(error.as_ref())
}

/// RocksDB's C interface hands over texts only: the kind stands before the first colon, the system's reason behind it.
fn classify_text(text: &str) -> (ErrorKind, &'static str) {
    const FULL: [&str; 4] = ["No space left on device", "Disk quota exceeded", "File too large", "Space limit reached"];
    if FULL.iter().any(|phrase| text.contains(phrase)) {
        return (ErrorKind::Full, "; free space on the disk of the data folder");
    }
    let kind = match text.split(':').next().unwrap_or_default() {
        "Corruption" => ErrorKind::Corrupt,
        "NotFound" => ErrorKind::NotFound,
        "IO error" if text.contains("No such file or directory") => ErrorKind::NotFound,
        "IO error"
        | "Resource busy"
        | "Operation timed out"
        | "Operation failed. Try again."
        | "Result incomplete"
        | "Operation aborted"
        | "Shutdown in progress" => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    (kind, "")
}

fn at_open(dir: &Path, failed: rocksdb::Error) -> Error {
    if is_locked(&failed) {
        let message = format!(
            "the KV store in {} is in use by another process; stop it, or choose another data folder with --data",
            dir.display()
        );
        return Error::new(ErrorKind::Unavailable, message).with_source(failed);
    }
    error(&format!("open {}", dir.display()), failed)
}

/// Whether somebody has it open: not that its lock cannot be opened.
fn is_locked(error: &rocksdb::Error) -> bool {
    let text: &str = error.as_ref();
    text.contains("lock hold by current process") || text.contains("While lock file")
}

/// Whether an error says that somebody else has the database open.
pub(super) fn is_in_use(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<rocksdb::Error>());
    source.is_some_and(is_locked)
}

/// Names of the table files in a folder; none where it cannot be read.
pub(super) fn table_files(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".sst")).collect()
}

/// Whether it knows any of these table files.
pub(super) fn knows_any(db: &DB, files: &[String]) -> Result<bool> {
    let live = db.live_files().map_err(|failed| error("list its files", failed))?;
    Ok(live.iter().any(|file| files.iter().any(|name| name == file.name.trim_start_matches('/'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RocksDB's errors are texts; these are the ones of the pinned version.
    #[test]
    fn kinds_follow_from_rocksdb_texts() {
        let kind = |text: &str| classify_text(text).0;
        assert_eq!(
            kind("IO error: No space left on device: While appending to file: /d/000004.log: …"),
            ErrorKind::Full
        );
        assert_eq!(kind("IO error: Disk quota exceeded: While appending to file"), ErrorKind::Full);
        assert_eq!(kind("IO error: No such file or directory: While open a file for random read"), ErrorKind::NotFound);
        assert_eq!(kind("IO error: Input/output error: While pread"), ErrorKind::Unavailable);
        assert_eq!(kind("Corruption: block checksum mismatch"), ErrorKind::Corrupt);
        assert_eq!(kind("Resource busy: "), ErrorKind::Unavailable);
        assert_eq!(kind("Invalid argument: …"), ErrorKind::Internal);
    }
}
