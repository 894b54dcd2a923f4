//! Records in files of their own, `FOLDER/TENANT-ROW.json` of hashes, one each: a file that is removed is gone, while sled's log keeps what was
//! removed from it for as long as it likes.

use std::fs::{File, Metadata};
use std::io::{ErrorKind as Io, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};
use ragstone_env::durable::{create_folder, sync_folder};

const SUFFIX: &str = ".json";
/// What most file systems give a file at the least.
const BLOCK: u64 = 4096;
/// Of a file that is being written. What a kill leaves of one was told to nobody.
const UNFINISHED: &str = ".unfinished";

/// The row of a tenant's record: the tenant, 0, and the record's own name.
pub fn row(tenant: &str, name: &str) -> Vec<u8> {
    [tenant.as_bytes(), name.as_bytes()].join(&0)
}

/// A folder of records, each with a row that begins with its tenant and a zero. The folder is made with the first one. Calls BLOCK on the disk.
#[derive(Debug)]
pub struct RecordFiles<T> {
    folder: PathBuf,
    /// One of them, for errors: `schema`.
    what: &'static str,
    /// One file at a time is put in the place of another, or looked at and removed.
    replacing: Mutex<()>,
    records: PhantomData<fn() -> T>,
}

/// A file of a folder of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size on the disk, about: in whole blocks.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970.
    pub written_unix_ms: u64,
}

impl RecordFile {
    /// The same for all of a tenant's files, and for no other's.
    pub fn tenant(&self) -> &str {
        self.name.split('-').next().unwrap_or_default()
    }
}

impl<T: Serialize + DeserializeOwned> RecordFiles<T> {
    /// Those in `folder`, each of which is a `what`.
    pub fn new(folder: PathBuf, what: &'static str) -> Self {
        Self { folder, what, replacing: Mutex::default(), records: PhantomData }
    }

    fn failed(&self, doing: &str, path: &Path, error: std::io::Error) -> Error {
        // Whoever asked need not know where the data folder is.
        let folder = self.folder.file_name().unwrap_or_default();
        let path = Path::new(folder).join(path.file_name().unwrap_or_default());
        Error::io(&format!("{doing} the {}", self.what), &path, error)
    }

    fn path_of(&self, row: &[u8]) -> PathBuf {
        self.folder.join(format!("{}{}{SUFFIX}", start_of(tenant_in(row)), blake3::hash(row).to_hex()))
    }

    /// The record of a row; `None` where there is none.
    ///
    /// # Errors
    /// As the disk says; `Corrupt` where its file holds something else.
    pub fn read(&self, row: &[u8]) -> Result<Option<T>> {
        let path = self.path_of(row);
        match std::fs::read(&path) {
            Err(error) if error.kind() == Io::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", &path, error)),
            Ok(bytes) => self.parse(&path, &bytes).map(Some),
        }
    }

    /// Those of a tenant, or of all, in no order. One that cannot be read is left out with a warning, and stays where it is.
    ///
    /// # Errors
    /// As the disk says of the folder.
    pub fn read_all(&self, tenant: Option<&str>) -> Result<Vec<T>> {
        let start = tenant.map(|tenant| start_of(tenant.as_bytes())).unwrap_or_default();
        let mut all = Vec::new();
        // Others' are not even opened.
        for name in self.names()?.into_iter().filter(|name| name.starts_with(&start)) {
            let path = self.folder.join(name);
            let read = std::fs::read(&path).map_err(|error| self.failed("read", &path, error));
            match read.and_then(|bytes| self.parse(&path, &bytes)) {
                Ok(record) => all.push(record),
                Err(error) => tracing::error!(%error, "a {} is left out; its file stays", self.what),
            }
        }
        Ok(all)
    }

    fn names(&self) -> Result<Vec<String>> {
        Ok(self.entries()?.into_iter().filter(|name| name.ends_with(SUFFIX)).collect())
    }

    fn entries(&self) -> Result<Vec<String>> {
        let failed = |error| self.failed("read what there is of", &self.folder, error);
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        entries.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Removes what kills have left of records that were being written. Nobody may be writing one.
    ///
    /// # Errors
    /// As the disk says.
    pub fn clear_unfinished(&self) -> Result<()> {
        for name in self.entries()?.into_iter().filter(|name| name.ends_with(UNFINISHED)) {
            let path = self.folder.join(name);
            gone(std::fs::remove_file(&path)).map_err(|error| self.failed("remove what is left of", &path, error))?;
        }
        Ok(())
    }

    /// All files, in no order. None of them is opened.
    ///
    /// # Errors
    /// As the disk says of the folder.
    pub fn files(&self) -> Result<Vec<RecordFile>> {
        // One that is removed meanwhile is none.
        let file = |name: String| {
            let facts = std::fs::metadata(self.folder.join(&name)).ok()?;
            let written_unix_ms = written_unix_ms(&facts)?;
            Some(RecordFile { name, bytes: facts.len().next_multiple_of(BLOCK), written_unix_ms })
        };
        Ok(self.names()?.into_iter().filter_map(file).collect())
    }

    /// Removes a file that [`files`](Self::files) has named, unless it was written since; whether it was there so.
    ///
    /// # Errors
    /// As the disk says.
    pub fn remove_file(&self, file: &RecordFile) -> Result<bool> {
        let path = self.folder.join(&file.name);
        // What somebody was told is on disk since that look stays there: it was not looked at.
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        if std::fs::metadata(&path).is_ok_and(|facts| written_unix_ms(&facts) != Some(file.written_unix_ms)) {
            return Ok(false);
        }
        gone(std::fs::remove_file(&path)).map_err(|error| self.failed("remove", &path, error))
    }

    /// Writes a record in the place of what was there; on disk on return, and the older one in no file. Returns its bytes.
    ///
    /// # Errors
    /// As the disk says; then the older one is there.
    pub fn write(&self, row: &[u8], record: &T) -> Result<u64> {
        let (path, unfinished) = (self.path_of(row), self.unfinished(row));
        let bytes = serde_json::to_vec(record).map_err(|error| Error::internal(error.to_string()))?;
        let written = (|| {
            create_folder(&self.folder)?;
            let mut file = File::create(&unfinished)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            let alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
            std::fs::rename(&unfinished, &path)?;
            drop(alone);
            self.sync()
        })();
        written.map_err(|error| {
            // It is told to nobody; what cannot be removed now is overwritten by the next one.
            let _ = std::fs::remove_file(&unfinished);
            self.failed("write", &path, error)
        })?;
        Ok((bytes.len() as u64).next_multiple_of(BLOCK))
    }

    /// Removes a record; whether it was there. Gone on return.
    ///
    /// # Errors
    /// As the disk says.
    pub fn remove(&self, row: &[u8]) -> Result<bool> {
        let path = self.path_of(row);
        let failed = |error| self.failed("remove", &path, error);
        // What a kill left of writing it has its text, too.
        let left = gone(std::fs::remove_file(self.unfinished(row))).map_err(failed)?;
        let was_there = gone(std::fs::remove_file(&path)).map_err(failed)?;
        if left || was_there {
            self.sync().map_err(failed)?;
        }
        Ok(was_there)
    }

    /// Where one is while it is written.
    fn unfinished(&self, row: &[u8]) -> PathBuf {
        let mut unfinished = self.path_of(row).into_os_string();
        unfinished.push(UNFINISHED);
        unfinished.into()
    }

    /// Waits for the disk on which files there are.
    fn sync(&self) -> std::io::Result<()> {
        sync_folder(&self.folder)
    }

    fn parse(&self, path: &Path, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes).map_err(|error| {
            let message = format!(
                "{} holds no {} ({error}): add it again, or move the file away if it is not wanted",
                path.display(),
                self.what
            );
            Error::corrupt(message).with_source(error)
        })
    }
}

/// When a file was written, in milliseconds since 1970; `None` where the file system does not say.
fn written_unix_ms(facts: &Metadata) -> Option<u64> {
    let written = facts.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(written.as_millis() as u64)
}

/// Whether a file was there that is gone now.
fn gone(removed: std::io::Result<()>) -> std::io::Result<bool> {
    match removed {
        Err(error) if error.kind() == Io::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// The tenant of a row: what stands before its first zero.
fn tenant_in(row: &[u8]) -> &[u8] {
    row.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// What the names of a tenant's files begin with.
fn start_of(tenant: &[u8]) -> String {
    format!("{}-", &blake3::hash(tenant).to_hex()[..16])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_that_was_written_since_it_was_looked_at_stays() {
        let dir = tempfile::tempdir().unwrap();
        let files = RecordFiles::<String>::new(dir.path().join("records"), "record");
        for name in ["old", "changed"] {
            files.write(&row("acme", name), &"before".to_owned()).unwrap();
            let file = File::options().write(true).open(files.path_of(&row("acme", name))).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        }
        let looked_at = files.files().unwrap();
        assert!(looked_at.iter().all(|file| file.written_unix_ms == 1_000_000));
        files.write(&row("acme", "changed"), &"after".to_owned()).unwrap();
        let removed = looked_at.iter().filter(|file| files.remove_file(file).unwrap()).count();
        assert_eq!((looked_at.len(), removed), (2, 1));
        assert_eq!(files.read(&row("acme", "old")).unwrap(), None);
        assert_eq!(files.read(&row("acme", "changed")).unwrap().as_deref(), Some("after"));
        assert!(looked_at.iter().all(|file| file.name.ends_with(SUFFIX)) && files.files().unwrap().len() == 1);
    }
}
