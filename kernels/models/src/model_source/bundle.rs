//! Folders that this program carries, and writes into a data folder when they are wanted.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The files of a folder of this repository, by their names.
macro_rules! files {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../../ops/", $folder, "/", $name)))),*]
    };
}
pub(super) use files;

/// A folder inside this program.
pub struct Bundle {
    /// What its folder's name begins with.
    pub name: &'static str,
    /// In words, for errors.
    pub what: &'static str,
    /// The last one is written last.
    pub files: &'static [(&'static str, &'static [u8])],
}

impl Bundle {
    /// Writes it once. The folder's name holds its hash and it appears whole by a rename, so a folder that is there is complete; the bytes are
    /// compared all the same, in case somebody or a disk changed them. BLOCKS.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn unpack(&self, models: &Path) -> Result<PathBuf> {
        let folder = self.folder(models);
        if self.is_whole(&folder) {
            return Ok(folder);
        }
        let failed =
            |path: &Path, error: std::io::Error| Error::io(&format!("cannot write {} to", self.what), path, error);
        std::fs::create_dir_all(models).map_err(|error| failed(models, error))?;
        let fresh =
            tempfile::Builder::new().prefix("unpacking-").tempdir_in(models).map_err(|error| failed(models, error))?;
        for (name, bytes) in self.files {
            let path = fresh.path().join(name);
            std::fs::write(&path, bytes).map_err(|error| failed(&path, error))?;
        }
        if folder.exists() {
            if self.is_whole(&folder) {
                // Another process was faster.
                return Ok(folder);
            }
            std::fs::remove_dir_all(&folder).map_err(|error| failed(&folder, error))?;
        }
        std::fs::rename(fresh.keep(), &folder).map_err(|error| failed(&folder, error))?;
        Ok(folder)
    }

    fn is_whole(&self, folder: &Path) -> bool {
        let whole = |(name, bytes): &(&str, &[u8])| std::fs::read(folder.join(name)).is_ok_and(|found| found == *bytes);
        self.files.iter().all(whole)
    }

    /// Where that of this version is, or will be.
    pub fn folder(&self, models: &Path) -> PathBuf {
        models.join(format!("{}-{}", self.name, self.hash()))
    }

    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for (name, bytes) in self.files {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        hex::encode(&hash.finalize()[..6])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_once_and_repaired() {
        const BUNDLE: Bundle =
            Bundle { name: "a", what: "a folder", files: &[("config.json", b"{}"), ("weights", b"0123")] };
        let dir = tempfile::tempdir().unwrap();
        let first = BUNDLE.unpack(dir.path()).unwrap();
        let config = first.join("config.json");
        let written = config.metadata().unwrap().modified().unwrap();
        assert_eq!(BUNDLE.unpack(dir.path()).unwrap(), first);
        assert_eq!(config.metadata().unwrap().modified().unwrap(), written, "not written again");
        std::fs::write(&config, "{").unwrap();
        BUNDLE.unpack(dir.path()).unwrap();
        assert_eq!(std::fs::read(&config).unwrap(), b"{}", "repaired");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
    }
}
