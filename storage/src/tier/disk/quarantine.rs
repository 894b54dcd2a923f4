//! What is left of damaged entries, kept aside for whoever wants to know how it came to that.
//!
//! `DATA/kv-quarantine/<key>/{row,frame-0000,…}`: derived data, may be deleted at any time.

use std::path::{Path, PathBuf};

use rocksdb::DB;

use super::{frame_key, rocks};
use crate::key::KvKey;

/// Entries kept; further ones are only logged.
const MOST_ENTRIES: usize = 16;

/// The folder of a tier's quarantine.
pub(super) fn folder(dir: &Path) -> PathBuf {
    let mut folder = dir.as_os_str().to_owned();
    folder.push("-quarantine");
    folder.into()
}

/// Removes what was moved aside of this store before: each may be as large as the disk's bound, and holds derived data only.
pub(super) fn forget_earlier_stores(dir: &Path) {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name().and_then(|name| name.to_str())) else { return };
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let prefix = format!("{name}.damaged-");
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        match std::fs::remove_dir_all(entry.path()) {
            Ok(()) => {
                tracing::warn!(folder = %entry.path().display(), "an earlier damaged KV store was removed: another takes its place")
            }
            Err(error) => tracing::warn!(folder = %entry.path().display(), %error, "an earlier damaged KV store stays"),
        }
    }
}

/// Copies what can be read of an entry; trouble is a warning, since nothing depends on the copy.
pub(super) fn keep_aside(db: &DB, dir: &Path, key: &KvKey, layers: u32) {
    let folder = folder(dir);
    let kept = std::fs::read_dir(&folder).map_or(0, Iterator::count);
    if kept >= MOST_ENTRIES {
        tracing::warn!(%key, folder = %folder.display(), "a damaged entry was removed; the quarantine is full, so that no copy is kept");
        return;
    }
    let folder = folder.join(key.to_string());
    match copy(db, &folder, key, layers) {
        Ok(()) => tracing::warn!(%key, kept_in = %folder.display(), "a damaged entry was removed"),
        Err(error) => tracing::warn!(%key, %error, "a damaged entry was removed; its copy could not be written"),
    }
}

fn copy(db: &DB, folder: &Path, key: &KvKey, layers: u32) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    if let Ok(Ok(Some(row))) = rocks::entries(db).map(|entries| db.get_cf(entries, key.as_bytes())) {
        std::fs::write(folder.join("row"), row)?;
    }
    for layer in 0..layers {
        if let Ok(Ok(Some(frame))) = rocks::frames(db).map(|frames| db.get_cf(frames, frame_key(key, layer))) {
            std::fs::write(folder.join(format!("frame-{layer:04}")), frame)?;
        }
    }
    Ok(())
}
