//! What is noted of a source between two fetches, so that only what changed is sent again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use ragstone_env::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A larger one is somebody else's file.
const MOST_BYTES: u64 = 64 << 20;

/// Of one source. What is lost of it costs time alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// How the files were read: read otherwise, they are fetched again.
    pub reading: String,
    /// Of a site, its pages by their addresses; of a bucket, its objects; of a repository, the files that the commit has.
    pub pages: BTreeMap<String, Page>,
    /// Of a repository, the commit.
    pub commit: Option<String>,
}

/// A page as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// What the server knows its state by.
    pub etag: Option<String>,
    pub modified: Option<String>,
    /// What tells whether another page says the same.
    pub digest: Option<String>,
    /// Where it leads.
    pub links: Vec<Arc<str>>,
    /// It leads to more than that: it is to be read anew, so that these are found.
    pub are_links_cut: bool,
}

/// As the file has it. Pages of a site lead to the same ones: each address is written once, and links are places in that list.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Written {
    reading: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
    pages: BTreeMap<String, WrittenPage>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct WrittenPage {
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    are_links_cut: bool,
}

impl Memory {
    /// What the file at `path` has, of sources that were read in this way. Nothing where there is none, or none that can be read.
    pub fn read(path: &Path, reading: &str) -> Self {
        let small = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= MOST_BYTES);
        let bytes = small.then(|| std::fs::read(path).ok()).flatten().unwrap_or_default();
        let known = serde_json::from_slice::<Written>(&bytes).ok().filter(|written| written.reading == reading);
        known.map_or_else(|| Self { reading: reading.to_owned(), ..Self::default() }, Written::memory)
    }

    /// Writes it, in the place of what was there. Where there is no room for the links of pages, without them.
    ///
    /// # Errors
    /// Those of the disk, and where it is larger than is read: then there is none.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.write_up_to(path, MOST_BYTES)
    }

    fn write_up_to(&self, path: &Path, most: u64) -> Result<()> {
        let is_small = |bytes: &Vec<u8>| bytes.len() as u64 <= most;
        let mut bytes = Some(Written::of(self, true).bytes()?).filter(is_small);
        if bytes.is_none() {
            bytes = Some(Written::of(self, false).bytes()?).filter(is_small);
        }
        let Some(bytes) = bytes else {
            // What was noted before is not so any more.
            let _ = std::fs::remove_file(path);
            let why =
                format!("what is noted of the source would have more than {most} bytes; name its parts one by one");
            return Err(Error::new(ErrorKind::Internal, why));
        };
        // Whole, or as it was; it need not outlive a power cut.
        let beside = path.with_extension("new");
        let written = std::fs::write(&beside, &bytes).and_then(|()| std::fs::rename(&beside, path));
        written.map_err(|error| Error::io("cannot write", path, error))
    }

    /// Forgets these sources, so that they are fetched again. A commit is known only where all of its files are.
    pub fn forget(&mut self, sources: &HashSet<String>) {
        let before = self.pages.len();
        self.pages.retain(|source, _| !sources.contains(source));
        if self.pages.len() < before {
            self.commit = None;
        }
    }
}

impl Written {
    fn of(memory: &Memory, has_links: bool) -> Self {
        let (mut addresses, mut places) = (Vec::new(), HashMap::new());
        let mut place = |link: &Arc<str>| {
            *places.entry(link.clone()).or_insert_with(|| {
                addresses.push(link.to_string());
                addresses.len() - 1
            })
        };
        let mut page = |page: &Page| WrittenPage {
            etag: page.etag.clone(),
            modified: page.modified.clone(),
            digest: page.digest.clone(),
            links: if has_links { page.links.iter().map(&mut place).collect() } else { Vec::new() },
            are_links_cut: page.are_links_cut || (!has_links && !page.links.is_empty()),
        };
        let pages = memory.pages.iter().map(|(address, known)| (address.clone(), page(known))).collect();
        Self { reading: memory.reading.clone(), commit: memory.commit.clone(), addresses, pages }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    fn memory(self) -> Memory {
        let addresses: Vec<Arc<str>> = self.addresses.into_iter().map(Arc::from).collect();
        let page = |page: WrittenPage| Page {
            links: page.links.iter().filter_map(|place| addresses.get(*place).cloned()).collect(),
            etag: page.etag,
            modified: page.modified,
            digest: page.digest,
            are_links_cut: page.are_links_cut,
        };
        let pages = self.pages.into_iter().map(|(address, written)| (address, page(written))).collect();
        Memory { reading: self.reading, commit: self.commit, pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of which each leads to all others.
    fn site(pages: usize) -> Memory {
        let address = |n: usize| format!("https://a.example/{n}");
        let links: Vec<Arc<str>> = (0..pages).map(|n| address(n).into()).collect();
        let page = Page { etag: Some("\"x\"".into()), links, ..Page::default() };
        let pages = (0..pages).map(|n| (address(n), page.clone())).collect();
        Memory { reading: "one way".into(), pages, commit: None }
    }

    #[test]
    fn what_is_noted_is_there_again_for_whoever_reads_alike() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let mut memory = Memory::read(&path, "one way");
        assert_eq!(memory, Memory { reading: "one way".into(), ..Memory::default() });
        memory = site(3);
        memory.pages.insert("https://a.example/b".into(), Page { are_links_cut: true, ..Page::default() });
        memory.write(&path).unwrap();
        assert_eq!(Memory::read(&path, "one way"), memory);
        assert!(Memory::read(&path, "another").pages.is_empty());
        std::fs::write(&path, b"{\"pages\": 3}").unwrap();
        assert!(Memory::read(&path, "one way").pages.is_empty());
    }

    #[test]
    fn a_large_site_is_noted_without_its_links_rather_than_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let memory = site(100);
        memory.write(&path).unwrap();
        let whole = std::fs::metadata(&path).unwrap().len();
        assert!(whole < 100 * 100 * 5, "each address stands there once: {whole}");
        memory.write_up_to(&path, whole - 1).unwrap();
        let read = Memory::read(&path, "one way");
        assert_eq!(read.pages.len(), 100);
        assert!(read.pages.values().all(|page| page.links.is_empty() && page.are_links_cut && page.etag.is_some()));
        // What is not noted is not taken for what was noted before.
        assert!(memory.write_up_to(&path, 100).is_err() && !path.exists());
    }

    #[test]
    fn a_commit_is_not_known_where_one_of_its_files_is_not() {
        let mut memory = site(2);
        memory.commit = Some("c".into());
        memory.forget(&HashSet::from(["https://a.example/other".to_owned()]));
        assert_eq!((memory.pages.len(), memory.commit.as_deref()), (2, Some("c")));
        memory.forget(&HashSet::from(["https://a.example/1".to_owned()]));
        assert_eq!((memory.pages.len(), memory.commit), (1, None));
    }
}
