//! Files of what was fetched.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ragstone_env::{Error, Result};

/// Writes what was fetched to a file of its name, with the time when it was changed last.
pub async fn keep(
    folder: &Path,
    name: &Path,
    source: &str,
    bytes: &[u8],
    changed: Option<SystemTime>,
) -> Result<PathBuf> {
    let place = folder.join(name);
    let free = |path: &Path| std::fs::symlink_metadata(path).is_err();
    // A page that has pages below it: one name cannot be a file and a folder.
    let ending = name.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let other = folder.join(format!("{}.{ending}", &blake3::hash(source.as_bytes()).to_hex()[..32]));
    let made = place.parent().map(std::fs::create_dir_all).transpose();
    let path = if made.is_ok() && free(&place) { place } else { other };
    let failed = |error| Error::io("cannot write", &path, error);
    tokio::fs::write(&path, bytes).await.map_err(failed)?;
    let file = std::fs::File::options().write(true).open(&path).map_err(failed)?;
    // For filters, and so that a page whose time nobody told is the same the next time: none is left out for it.
    let _ = file.set_modified(changed.unwrap_or(SystemTime::UNIX_EPOCH));
    Ok(path)
}
