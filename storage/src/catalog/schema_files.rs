//! Schemas in files of their own, `DATA/schemas/TENANT-ROW.json` of hashes, one each: a file that is removed is gone, while sled's log keeps what was
//! removed from it for as long as it likes.

use std::fs::File;
use std::io::{ErrorKind as Io, Write};
use std::path::{Path, PathBuf};

use super::SchemaRecord;
use crate::{Error, Result};

/// The folder, beside the catalog's.
const FOLDER: &str = "schemas";
const SUFFIX: &str = ".json";
/// Of a file that is being written. What a kill leaves of one was told to nobody.
const UNFINISHED: &str = ".unfinished";

/// The folder of schemas. It is made with the first one.
#[derive(Debug)]
pub(super) struct SchemaFiles(PathBuf);

impl SchemaFiles {
    /// Those that belong to the catalog in `dir`.
    pub fn beside(dir: &Path) -> Self {
        Self(dir.with_file_name(FOLDER))
    }

    fn path_of(&self, row: &[u8]) -> PathBuf {
        self.0.join(format!("{}{}{SUFFIX}", start_of(tenant_in(row)), blake3::hash(row).to_hex()))
    }

    /// The schema of a row; `None` where there is none.
    ///
    /// # Errors
    /// As the disk says; `Corrupt` where its file holds another's, or something else.
    pub fn read(&self, row: &[u8]) -> Result<Option<SchemaRecord>> {
        let path = self.path_of(row);
        match std::fs::read(&path) {
            Err(error) if error.kind() == Io::NotFound => Ok(None),
            Err(error) => Err(Error::io("read the schema", &path, error)),
            Ok(bytes) => parse(&path, &bytes).map(Some),
        }
    }

    /// Those of a tenant, or of all, in no order. One that cannot be read is left out with a warning, and stays where it is.
    ///
    /// # Errors
    /// As the disk says of the folder.
    pub fn read_all(&self, tenant: Option<&str>) -> Result<Vec<SchemaRecord>> {
        let start = tenant.map(|tenant| start_of(tenant.as_bytes())).unwrap_or_default();
        let failed = |error| Error::io("read the schemas in", &self.0, error);
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            // Others' are not even opened.
            if !name.ends_with(SUFFIX) || !name.starts_with(&start) {
                continue;
            }
            let read = std::fs::read(&path).map_err(|error| Error::io("read the schema", &path, error));
            match read.and_then(|bytes| parse(&path, &bytes)) {
                Ok(record) => all.push(record),
                Err(error) => tracing::error!(%error, "a schema is left out; its file stays"),
            }
        }
        Ok(all)
    }

    /// Writes a schema in the place of what was there; on disk on return, and the older one in no file.
    ///
    /// # Errors
    /// As the disk says; then the older one is there.
    pub fn write(&self, row: &[u8], record: &SchemaRecord) -> Result<()> {
        let (path, unfinished) = (self.path_of(row), self.unfinished(row));
        let bytes = super::to_json(record)?;
        let written = (|| {
            std::fs::create_dir_all(&self.0)?;
            let mut file = File::create(&unfinished)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            self.sync()
        })();
        written.map_err(|error| {
            // It is told to nobody; what cannot be removed now is overwritten by the next one.
            let _ = std::fs::remove_file(&unfinished);
            Error::io("write the schema", &path, error)
        })
    }

    /// Removes a schema; whether it was there. Gone on return.
    ///
    /// # Errors
    /// As the disk says.
    pub fn remove(&self, row: &[u8]) -> Result<bool> {
        let path = self.path_of(row);
        let failed = |error| Error::io("remove the schema", &path, error);
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
        File::open(&self.0)?.sync_all()
    }
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

fn parse(path: &Path, bytes: &[u8]) -> Result<SchemaRecord> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!(
            "{} holds no schema ({error}): add the schema again, or move the file away if it is not wanted",
            path.display()
        );
        Error::corrupt(message).with_source(error)
    })
}
