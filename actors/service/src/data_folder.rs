//! The data folder: who holds it, and where its running service listens.
//!
//! ```text
//! DATA/lock           held by the one process that has the store open; its text names the holder
//! DATA/service.json   written by a running service: process, address, owner's token (readable by its user only)
//! DATA/embedder.json  the embedding model that the folder was last opened with
//! DATA/models/        checkpoints that ragstone wrote itself
//! DATA/{kv,catalog,corpus}/   the store
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_env::Env;
use ragstone_env::durable::sync_name;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// How a running service is reached. Whoever can read it may use the service as the folder's owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRecord {
    /// The service's process.
    pub pid: u32,
    /// `http://ADDR:PORT`, for commands on this machine.
    pub address: String,
    /// `https://ADDR:PORT`, where others reach it by TLS.
    #[serde(default)]
    pub public: Option<String>,
    /// Shows that a caller can read the data folder.
    pub token: String,
    /// `http://ADDR:PORT` where health and metrics are answered whatever else goes on.
    #[serde(default)]
    pub health: Option<String>,
    /// The folders and files of the models that it has loaded, or is loading.
    #[serde(default)]
    pub models: Vec<PathBuf>,
    /// It is a command's own, and ends with it.
    #[serde(default)]
    pub passes: bool,
}

impl ServiceRecord {
    /// Where people reach it.
    pub fn shown(&self) -> &str {
        self.public.as_ref().unwrap_or(&self.address)
    }
}

/// Who holds a data folder; the text of `DATA/lock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The holding process.
    pub pid: u32,
    /// Its command, such as `serve`.
    pub command: String,
}

/// A data folder, not yet held.
#[derive(Debug, Clone)]
pub struct DataFolder(PathBuf);

/// A data folder that no other process has open, for as long as this lives.
#[derive(Debug)]
pub struct HeldFolder {
    folder: DataFolder,
    /// The operating system lets go of the lock with the last handle, however the process ends.
    _lock: File,
}

/// A data folder that nobody opens meanwhile. Where it has no lock yet, nobody ever did.
#[derive(Debug)]
pub struct KeptFree(#[expect(dead_code, reason = "held for its drop")] Option<File>);

impl DataFolder {
    /// The folder at `path`, which must have been used before. Creates nothing.
    ///
    /// # Errors
    /// `NotFound` where nothing is there, or nothing of ragstone's.
    pub fn existing(path: &Path) -> Result<Self> {
        if Self::is_used(path) {
            return Self::create(path);
        }
        let found = if path.exists() { "there is no ragstone data in" } else { "there is no data folder" };
        Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{found} {}; `ragstone ingest` and `ragstone serve` begin one, and --data DIR or RAGSTONE_DATA names another",
                path.display()
            ),
        ))
    }

    /// Whether a command ever opened this folder.
    pub fn is_used(path: &Path) -> bool {
        ["lock", "FORMAT", "kv", "catalog", "corpus"].iter().any(|name| path.join(name).exists())
    }

    /// The folder at `path`, created where it is missing.
    pub fn create(path: &Path) -> Result<Self> {
        let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true);
        builder.create(path).map_err(|error| Error::io("cannot create the data folder", path, error))?;
        for folder in missing.into_iter().filter(|folder| !folder.as_os_str().is_empty()) {
            match sync_name(folder) {
                // Whoever may make a folder there may not always look into it.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
                synced => synced.map_err(|error| Error::io("cannot create the data folder", folder, error))?,
            }
        }
        let path = path.canonicalize().map_err(|error| Error::io("cannot open the data folder", path, error))?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn service_file(&self) -> PathBuf {
        self.0.join("service.json")
    }

    /// Takes the folder for `command`; `None` where another process has it.
    pub fn try_hold(&self, command: &str) -> Result<Option<HeldFolder>> {
        let path = self.lock_file();
        let failed = |error: std::io::Error| Error::io("cannot lock", &path, error);
        let mut lock =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let holder = Holder { pid: std::process::id(), command: command.to_owned() };
        let text = serde_json::to_string(&holder).map_err(|error| Error::internal(error.to_string()))?;
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(text.as_bytes())).map_err(failed)?;
        // A record found while nobody held the lock is what a killed service left behind.
        let held = HeldFolder { folder: self.clone(), _lock: lock };
        #[cfg(unix)]
        keep_to_oneself(self.path());
        held.remove_service_record();
        Ok(Some(held))
    }

    /// Keeps others from opening the store for as long as the result lives; `None` where a process has it open.
    pub fn keep_free(&self) -> Option<KeptFree> {
        match File::open(self.lock_file()).map(|lock| (lock.try_lock_shared(), lock)) {
            Ok((Err(TryLockError::WouldBlock), _)) => None,
            opened => Some(KeptFree(opened.ok().map(|(_, lock)| lock))),
        }
    }

    /// Who holds the folder, as far as the holder could say; only for messages.
    pub fn holder(&self) -> Option<Holder> {
        let mut text = String::new();
        File::open(self.lock_file()).ok()?.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// How long it has been held: its text is written when it is taken.
    fn held_for(&self) -> Option<Duration> {
        let written = std::fs::metadata(self.lock_file()).ok()?.modified().ok()?;
        let written = written.duration_since(std::time::UNIX_EPOCH).ok()?;
        let now = Duration::from_millis(Env::from_environment().ok()?.now_unix_ms());
        // Of the same millisecond, a file's time is the finer one.
        Some(now.saturating_sub(written))
    }

    /// The record of the running service; `None` where there is none, or a half-written or foreign one.
    pub fn service_record(&self) -> Option<ServiceRecord> {
        serde_json::from_slice(&std::fs::read(self.service_file()).ok()?).ok()
    }

    /// The error of a folder that stays held by somebody who does not answer.
    pub fn in_use(&self) -> Error {
        self.in_use_with(
            "wait until it ends or stop it, or start `ragstone serve` once, so that commands share the folder through \
             the service",
        )
    }

    /// As [`in_use`](Self::in_use), with other advice.
    pub fn in_use_with(&self, advice: &str) -> Error {
        let who = match self.holder() {
            Some(holder) => {
                let since = self.held_for().map_or_else(String::new, |held| format!(", for {}", rough(held)));
                format!("`ragstone {}` (process {}{since})", holder.command, holder.pid)
            }
            None => "another process".to_owned(),
        };
        let message = format!("the data folder {} is in use by {who}; {advice}", self.0.display());
        Error::new(ErrorKind::Incompatible, message)
    }
}

impl HeldFolder {
    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Tells other commands where this service listens. Atomic, and readable by this user only.
    pub fn write_service_record(&self, record: &ServiceRecord) -> Result<()> {
        let path = self.folder.service_file();
        let failed = |error: std::io::Error| Error::io("cannot write", &path, error);
        let text = serde_json::to_vec(record).map_err(|error| Error::internal(error.to_string()))?;
        let mut file = tempfile::NamedTempFile::new_in(self.path()).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Forgets the service; a missing record is fine.
    pub fn remove_service_record(&self) {
        let _ = std::fs::remove_file(self.folder.service_file());
    }
}

/// `42 s`, `7 min`, `3 h`
fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// The folder holds people's documents and the owner's token; earlier versions made it readable for everybody.
#[cfg(unix)]
fn keep_to_oneself(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(metadata) = path.metadata() else { return };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0
        && let Err(error) = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & !0o077))
    {
        tracing::warn!(path = %path.display(), %error, "other users of this machine can read the data folder");
    }
}

/// The platform's folder for application data, with ragstone's name.
pub fn default_path() -> Result<PathBuf> {
    dirs::data_dir().map(|path| path.join("ragstone")).ok_or_else(|| {
        Error::invalid_input(
            "cannot find this user's data folder (no HOME); say where with --data DIR or RAGSTONE_DATA",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_a_stale_record_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = DataFolder::create(&dir.path().join("new")).unwrap();
        let held = folder.try_hold("serve").unwrap().unwrap();
        let record = ServiceRecord {
            pid: 1,
            address: "http://127.0.0.1:1".into(),
            public: None,
            token: "t".into(),
            health: None,
            models: Vec::new(),
            passes: false,
        };
        held.write_service_record(&record).unwrap();
        assert_eq!(folder.service_record(), Some(record));
        assert!(folder.try_hold("ask").unwrap().is_none() && folder.keep_free().is_none());
        assert_eq!(folder.holder().unwrap().command, "serve");
        let said = folder.in_use().to_string();
        assert!(said.contains("`ragstone serve` (process ") && said.contains(", for "), "{said}");
        drop(held);
        assert!(folder.keep_free().is_some());
        let held = folder.try_hold("ask").unwrap();
        assert!(held.is_some());
        assert_eq!(folder.service_record(), None);
        assert_eq!(folder.holder().unwrap().command, "ask");
    }

    #[test]
    fn how_long_is_said_roughly() {
        let said = [0, 119, 120, 7199, 7200].map(|seconds| rough(Duration::from_secs(seconds)));
        assert_eq!(said, ["0 s", "119 s", "2 min", "119 min", "2 h"]);
    }

    #[test]
    fn a_folder_that_was_never_used_is_told_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        for path in [&missing, &dir.path().to_path_buf()] {
            let error = DataFolder::existing(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(&*path.display().to_string()), "{error}");
        }
        assert!(!missing.exists());
        drop(DataFolder::create(&missing).unwrap().try_hold("serve").unwrap());
        DataFolder::existing(&missing).unwrap();
    }

    #[test]
    fn garbage_in_the_record_reads_as_no_service() {
        let dir = tempfile::tempdir().unwrap();
        let folder = DataFolder::create(dir.path()).unwrap();
        std::fs::write(dir.path().join("service.json"), "{\"pid\":").unwrap();
        assert_eq!(folder.service_record(), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_record_is_for_its_user_only() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let held = DataFolder::create(dir.path()).unwrap().try_hold("serve").unwrap().unwrap();
        held.write_service_record(&ServiceRecord {
            pid: 1,
            address: String::new(),
            public: None,
            token: String::new(),
            health: None,
            models: Vec::new(),
            passes: false,
        })
        .unwrap();
        let mode = dir.path().join("service.json").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
}
