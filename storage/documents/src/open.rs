//! Opens a file so that nothing else is read in its place, and reads no more of it than one file may have.

use std::fs::{File, OpenOptions};
use std::io::{Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;

use super::find::{FoundFile, leads_out};

/// Larger files are refused: a text of this size is a data set, and better ingested in pieces.
pub const MAX_BYTES: u64 = 64 << 20;

/// A regular file, open, or one that came with a request. Gives at most [`MAX_BYTES`].
#[derive(Debug)]
pub struct Opened {
    source: Source,
    /// What it may still give.
    left: u64,
    /// When it was changed last, where the system tells.
    changed: Option<SystemTime>,
}

#[derive(Debug)]
enum Source {
    File(File),
    Bytes(Cursor<Bytes>),
}

impl Opened {
    /// What came with a request.
    pub fn of(bytes: Bytes) -> Self {
        Self { source: Source::Bytes(Cursor::new(bytes)), left: MAX_BYTES, changed: None }
    }

    /// When it was changed last; of what came with a request, and where the system does not tell, nothing.
    pub fn changed(&self) -> Option<SystemTime> {
        self.changed
    }
}

/// Opens `found` and looks at what was opened: between the walk and now, its name may have been given to something else.
///
/// # Errors
/// Why it cannot be read, and what to do.
pub fn open(found: &FoundFile) -> Result<Opened, String> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe that took the file's place is opened without waiting for its other end.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = options.open(&found.path).map_err(|error| failed(&error))?;
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err("not a regular file".into());
    }
    if let Some(within) = &found.within {
        let real = real_path(&file, &found.path).map_err(|error| failed(&error))?;
        if !real.starts_with(within) {
            return Err(leads_out(&real));
        }
    }
    if metadata.len() > MAX_BYTES {
        return Err(format!(
            "{} MiB is more than the {} MiB that one file may have; split it",
            metadata.len() >> 20,
            MAX_BYTES >> 20
        ));
    }
    Ok(Opened { source: Source::File(file), left: MAX_BYTES, changed: metadata.modified().ok() })
}

/// Where an open file lies, without links.
#[cfg(target_os = "linux")]
fn real_path(file: &File, _: &Path) -> std::io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    // The kernel's own name for it: no second look-up that could be raced.
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Where an open file lies, without links: `path`, if that is still the same file.
#[cfg(not(target_os = "linux"))]
fn real_path(file: &File, path: &Path) -> std::io::Result<PathBuf> {
    let real = path.canonicalize()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (opened, named) = (file.metadata()?, std::fs::symlink_metadata(&real)?);
        if (opened.dev(), opened.ino()) != (named.dev(), named.ino()) {
            return Err(std::io::Error::other("it was replaced while it was opened"));
        }
    }
    Ok(real)
}

/// What an error of the system means for a file.
pub fn failed(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!("{error}; check the permissions of that path"),
        _ => error.to_string(),
    }
}

impl Read for Opened {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left.saturating_add(1)).unwrap_or(usize::MAX).min(into.len());
        let read = match &mut self.source {
            Source::File(file) => file.read(&mut into[..most])?,
            Source::Bytes(bytes) => bytes.read(&mut into[..most])?,
        };
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let message =
                format!("it grew beyond the {} MiB that one file may have while it was read", MAX_BYTES >> 20);
            std::io::Error::other(message)
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &Path) -> FoundFile {
        FoundFile { path: path.to_owned(), within: None, bytes: 0, source: None }
    }

    #[test]
    fn a_file_that_grows_is_read_to_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "begun").unwrap();
        let mut opened = open(&named(&path)).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = std::io::copy(&mut opened, &mut std::io::sink()).unwrap_err().to_string();
        assert!(error.contains("grew beyond the 64 MiB"), "{error}");
        assert!(open(&named(&path)).unwrap_err().contains("split it"));
        File::options().write(true).open(&path).unwrap().set_len(MAX_BYTES).unwrap();
        assert_eq!(std::io::copy(&mut open(&named(&path)).unwrap(), &mut std::io::sink()).unwrap(), MAX_BYTES);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_took_a_files_place_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let within = folder.path().canonicalize().unwrap().join("in");
        std::fs::create_dir(&within).unwrap();
        let secret = within.with_file_name("secret.txt");
        std::fs::write(&secret, "x").unwrap();
        let path = within.join("a.txt");
        std::fs::write(&path, "x").unwrap();
        let found = FoundFile { path: path.clone(), within: Some(within.clone().into()), bytes: 0, source: None };
        open(&found).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert!(open(&found).unwrap_err().contains("out of the ingested folder"));
        // A folder on the way, too.
        std::fs::remove_dir_all(&within).unwrap();
        std::os::unix::fs::symlink(secret.parent().unwrap(), &within).unwrap();
        let found = FoundFile { path: within.join("secret.txt"), ..found };
        assert!(open(&found).unwrap_err().contains("out of the ingested folder"));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe.txt");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert_eq!(open(&named(&path)).unwrap_err(), "not a regular file");
    }
}
