//! What is damaged or cannot be read, as people are told of it, and where it is put.
//!
//! Nothing of the owner's is removed because it could not be read: it gets another name beside its own, and whoever owns it decides.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::durable::sync_name;
use crate::{Error, Result};

/// Below the corpus: tables that belong to no collection that is there.
pub const ORPHANED: &str = "orphaned";
/// Between the name of what was moved aside and the time at which it was, in milliseconds since 1970.
const DAMAGED: &str = ".damaged-";

/// Something that is damaged or cannot be read, for the log, `doctor` and the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Damage {
    /// Such as ``collection `notes` ``, `catalog` or `stored KV`.
    pub what: String,
    /// What was found, and what was lost.
    pub found: String,
    /// What to do about it.
    pub advice: String,
}

/// Gives a folder another name beside its own, which is free then, and waits for the disk.
///
/// # Errors
/// As the disk says; then it is where it was.
pub fn move_aside(path: &Path, now_unix_ms: u64) -> Result<PathBuf> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!("{DAMAGED}{now_unix_ms}"));
    let aside = PathBuf::from(aside);
    let moved = rename(path, &aside);
    moved.map(|()| aside).map_err(|source| Error::io("move aside", path, source))
}

/// Renames, and waits for the disk.
pub fn rename(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::rename(from, to)?;
    sync_name(to)?;
    if from.parent() != to.parent() {
        sync_name(from)?;
    }
    Ok(())
}

/// What was moved aside in a data folder, and is still there, by name: for `doctor`.
///
/// # Errors
/// As the disk says.
pub fn moved_aside(data: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in list(data)? {
        if entry.to_string_lossy().contains(DAMAGED) {
            found.push(data.join(entry));
        }
    }
    let orphaned = data.join("corpus").join(ORPHANED);
    found.extend(list(&orphaned)?.into_iter().map(|table| orphaned.join(table)));
    found.sort();
    Ok(found)
}

/// The names in a folder; none where it is not there.
fn list(folder: &Path) -> std::io::Result<Vec<std::ffi::OsString>> {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.file_name())).collect(),
    }
}
