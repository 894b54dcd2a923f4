//! What is noted of a source between two fetches, so that only what changed is sent again.

use std::collections::BTreeMap;
use std::path::Path;

use ragstone_env::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A larger one is somebody else's file.
const MOST_BYTES: u64 = 64 << 20;

/// Of one source. What is lost of it costs time alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// How the files were read: read otherwise, they are fetched again.
    pub reading: String,
    /// Of a site, its pages by their addresses.
    pub pages: BTreeMap<String, Page>,
    /// Of a repository, the commit.
    pub commit: Option<String>,
}

/// A page as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    /// What the server knows its state by.
    pub etag: Option<String>,
    pub modified: Option<String>,
    /// What tells whether another page says the same.
    pub digest: Option<String>,
    /// Where it leads.
    pub links: Vec<String>,
}

impl Memory {
    /// What the file at `path` has, of sources that were read in this way. Nothing where there is none, or none that can be read.
    pub fn read(path: &Path, reading: &str) -> Self {
        let small = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= MOST_BYTES);
        let bytes = small.then(|| std::fs::read(path).ok()).flatten().unwrap_or_default();
        let known = serde_json::from_slice::<Self>(&bytes).ok().filter(|memory| memory.reading == reading);
        known.unwrap_or_else(|| Self { reading: reading.to_owned(), ..Self::default() })
    }

    /// Writes it, in the place of what was there.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes = serde_json::to_vec(self).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        // Whole, or as it was; it need not outlive a power cut.
        let beside = path.with_extension("new");
        let written = std::fs::write(&beside, &bytes).and_then(|()| std::fs::rename(&beside, path));
        written.map_err(|error| Error::io("cannot write", path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_there_again_for_whoever_reads_alike() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let mut memory = Memory::read(&path, "one way");
        assert_eq!(memory, Memory { reading: "one way".into(), ..Memory::default() });
        let page = Page {
            etag: Some("\"x\"".into()),
            modified: None,
            digest: None,
            links: vec!["https://a.example/b".into()],
        };
        memory.pages.insert("https://a.example/a".into(), page);
        memory.write(&path).unwrap();
        assert_eq!(Memory::read(&path, "one way"), memory);
        assert!(Memory::read(&path, "another").pages.is_empty());
        std::fs::write(&path, b"{\"pages\": 3}").unwrap();
        assert!(Memory::read(&path, "one way").pages.is_empty());
    }
}
