//! The hub's cache folder, in the form that all of the hub's programs write.
//!
//! ```text
//! HF_HOME/hub/models--OWNER--NAME/refs/REVISION             the commit that the revision stands for
//!                                /blobs/ETAG                 a file's bytes
//!                                /snapshots/COMMIT/FILE      a link to them
//! ```
//! Every part in capitals comes from elsewhere. Only what [`is_file_name`], [`is_commit`] and [`is_etag`] let pass becomes part of
//! a path, so that no answer leaves the folder.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::HubId;
use crate::error::{Error, Result};

/// The name of one file or folder: no separator, not hidden, of letters that every file system has.
pub fn is_file_name(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 200 && !text.starts_with('.') && text.bytes().all(is_good)
}

/// The name of a file in a repository, which may lie in a folder there.
pub fn is_path(text: &str) -> bool {
    text.split('/').all(is_file_name)
}

/// A commit, in hexadecimal digits.
pub fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A commit in full: as a revision, it stands for itself.
pub fn is_full_commit(text: &str) -> bool {
    is_commit(text) && matches!(text.len(), 40 | 64)
}

/// What names a file's bytes: a hash, on the hub. Without dots, which [`Repository::part`] adds.
pub fn is_etag(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.len() <= 128 && text.bytes().all(is_good)
}

/// The folder of the user's hub files. `None` where there is no home.
pub fn home() -> Option<PathBuf> {
    match std::env::var_os("HF_HOME").filter(|home| !home.is_empty()) {
        Some(home) => Some(home.into()),
        None => Some(dirs::home_dir()?.join(".cache").join("huggingface")),
    }
}

/// The token that `hf auth login` left, for repositories that are not for everybody.
pub fn token() -> Option<String> {
    let text = String::from_utf8(read(&home()?.join("token"), 4096).ok()?).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

/// A file of at most `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(io::Error::other("it is too long"));
    }
    Ok(bytes)
}

/// The SHA-256 of a file's bytes, in hexadecimal digits.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 256 << 10]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// A repository's folder in the cache. Names that its methods take were checked.
pub struct Repository {
    folder: PathBuf,
}

impl Repository {
    /// `None` where there is no home. An id's name is checked where it is read ([`HubId::parse`]).
    pub fn of(id: &HubId) -> Option<Self> {
        let folder = format!("models--{}", id.name.replace('/', "--"));
        Some(Self { folder: home()?.join("hub").join(folder) })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit that a revision stands for here.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let noted = || String::from_utf8(read(&self.reference(revision), 256).ok()?).ok();
        // The hub's own programs note none for a commit.
        let text = noted().or_else(|| is_full_commit(revision).then(|| revision.to_owned()))?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Notes what a revision stands for, whole or not at all.
    pub fn note_commit(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.reference(revision);
        let write = || -> io::Result<()> {
            let parent = path.parent().unwrap_or(&self.folder);
            fs::create_dir_all(parent)?;
            let mut file = tempfile::NamedTempFile::new_in(parent)?;
            file.write_all(commit.as_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(|error| Error::io("cannot write", &path, error))
    }

    /// A file of a commit, if it is there.
    pub fn file(&self, commit: &str, name: &str) -> Option<PathBuf> {
        Some(self.snapshot(commit).join(name)).filter(|path| path.is_file())
    }

    /// The folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Where the bytes of this ETag lie.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Where they are gathered until they are whole.
    pub fn part(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Links a commit's file to the bytes of `etag`, which are there.
    pub fn link(&self, commit: &str, name: &str, etag: &str) -> Result<()> {
        let path = self.snapshot(commit).join(name);
        let link = || -> io::Result<()> {
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let up = "../".repeat(name.split('/').count() + 1);
            std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(etag), &path)
        };
        link().map_err(|error| Error::io("cannot write", &path, error))
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_a_folder_is_no_name() {
        let hash = "a".repeat(64);
        for text in ["..", "../x", "a/../b", "/a", "a/", "a//b", "a/.b", ""] {
            assert!(!is_path(text), "{text:?}");
        }
        assert!(is_path("config.json") && is_path("1_Pooling/config.json"));
        for text in ["..", ".", "", "/", "a/b", "../x", "/etc/passwd", "a\0b", "a\\b", "a b", ".hidden", "é", "~"] {
            assert!(!is_file_name(text) && !is_commit(text) && !is_etag(text), "{text:?}");
        }
        assert!(is_file_name("model-00001-of-00002.safetensors") && is_commit(&hash) && is_etag(&hash));
        assert!(!is_etag("../../../../tmp/x") && !is_etag("x.lock") && !is_etag(&"a".repeat(1000)));
        assert!(!is_commit("main") && !is_commit(&"a".repeat(65)) && !is_file_name(&"a".repeat(201)));
    }
}
