//! Upgrades what is on disk. One step a file; so far there is one format, and nothing to upgrade from.
//!
//! `DATA/FORMAT` holds `{"format":1}`. It is written before anything else, so that a folder with data and without it is
//! not ours, or damaged.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ragstone_storage::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The format of data folders that this version reads and writes.
pub const FORMAT_VERSION: u32 = 1;

const FILE: &str = "FORMAT";
/// What ragstone keeps in a data folder. Models may be put there before the first start.
const OWN_FOLDERS: [&str; 3] = ["kv", "catalog", "corpus"];

/// What [`check`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There was nothing; the folder is stamped with the current format now.
    Fresh,
    /// The data is of the current format.
    Current,
}

#[derive(Serialize, Deserialize)]
struct Stamp {
    format: u32,
}

/// Says whether this version can use the data folder `data`, and stamps a fresh one. Call it first, under the folder's
/// lock.
///
/// # Errors
/// `Incompatible` if a newer version wrote the folder, or its stamp is missing or unreadable; `Full`, `InvalidInput` or
/// `Unavailable` if the file system refuses.
pub fn check(data: &Path) -> Result<State> {
    let path = data.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => check_stamp(&path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some(found) = OWN_FOLDERS.iter().map(|name| data.join(name)).find(|folder| folder.exists()) {
                return Err(incompatible(format!(
                    "{} is there, but {} is not: choose another data folder with --data, or, if you are sure that \
                     this one is of format {FORMAT_VERSION}, write {{\"format\":{FORMAT_VERSION}}} to that file",
                    found.display(),
                    path.display()
                )));
            }
            stamp(data, &path)?;
            Ok(State::Fresh)
        }
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

fn check_stamp(path: &Path, text: &str) -> Result<State> {
    let Ok(Stamp { format }) = serde_json::from_str(text) else {
        return Err(incompatible(format!(
            "{} cannot be read as {{\"format\":N}}: restore it, or choose another data folder with --data",
            path.display()
        )));
    };
    match format {
        FORMAT_VERSION => Ok(State::Current),
        newer if newer > FORMAT_VERSION => Err(incompatible(format!(
            "{} says format {newer}, but this version of ragstone reads up to format {FORMAT_VERSION}: upgrade ragstone, \
             or choose another data folder with --data",
            path.display()
        ))),
        other => Err(incompatible(format!("{} says format {other}, which never was", path.display()))),
    }
}

/// Written aside, synced and renamed: a kill leaves a whole stamp or none.
fn stamp(data: &Path, path: &Path) -> Result<()> {
    let aside: PathBuf = data.join("FORMAT.new");
    let write = || {
        std::fs::create_dir_all(data)?;
        let mut file = File::create(&aside)?;
        serde_json::to_writer(&mut file, &Stamp { format: FORMAT_VERSION })?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&aside, path)?;
        sync_folder(data)
    };
    write().map_err(|error| Error::io("write", path, error))
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn incompatible(message: String) -> Error {
    Error::new(ErrorKind::Incompatible, message)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn refusal(data: &Path) -> String {
        let error = check(data).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        error.to_string()
    }

    #[test]
    fn a_fresh_folder_is_stamped_once() {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("new/data");
        assert_eq!(check(&data).unwrap(), State::Fresh);
        // Golden bytes of the stamp.
        assert_eq!(std::fs::read_to_string(data.join("FORMAT")).unwrap(), "{\"format\":1}\n");
        assert_eq!(check(&data).unwrap(), State::Current);
        std::fs::create_dir(data.join("kv")).unwrap();
        assert_eq!(check(&data).unwrap(), State::Current);
    }

    #[test]
    fn models_may_be_there_first_and_a_kill_while_stamping_is_fine() {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("models")).unwrap();
        std::fs::write(dir.path().join("FORMAT.new"), "{\"for").unwrap();
        assert_eq!(check(dir.path()).unwrap(), State::Fresh);
    }

    #[test]
    fn other_formats_are_refused_with_advice() {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("corpus")).unwrap();
        assert!(refusal(dir.path()).contains("is not: choose another data folder"));
        let stamp = dir.path().join("FORMAT");
        for (text, advice) in
            [("{\"format\":2}", "upgrade ragstone"), ("{\"format\":0}", "never was"), ("x", "restore")]
        {
            std::fs::write(&stamp, text).unwrap();
            assert!(refusal(dir.path()).contains(advice), "{text}");
        }
        // A later version may add to the stamp.
        std::fs::write(&stamp, "{\"format\":1,\"more\":true}").unwrap();
        assert_eq!(check(dir.path()).unwrap(), State::Current);
    }
}
