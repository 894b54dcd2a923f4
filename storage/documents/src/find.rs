//! Finds the files of an ingest: walks folders within bounds, and never out of them.

use std::collections::BTreeMap;
use std::fs::{DirEntry, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Format, SUPPORTED, sniff};
use ragstone_env::{Error, Result};

/// What one ingest may find, read or not.
const MAX_ENTRIES: usize = 250_000;
/// Folders in one another.
const MAX_DEPTH: usize = 64;

/// Files that are left alone and named.
const MAX_NAMED: usize = 8;

/// A file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFile {
    /// Where it is.
    pub path: PathBuf,
    /// The folder, canonical, that it must be in when it is opened; `None` for a file that was named itself.
    pub within: Option<Arc<Path>>,
    /// How large it was when it was found.
    pub bytes: u64,
    /// Where it was fetched from, if it is a copy: its documents are known by that.
    pub source: Option<Arc<str>>,
}

impl FoundFile {
    /// What it is known by, for people and in the source of its documents.
    pub fn name(&self) -> String {
        self.source.as_deref().map_or_else(|| super::shown(&self.path), str::to_owned)
    }
}

/// What a list of paths comes to.
#[derive(Debug, Default)]
pub struct Found {
    /// Files to read, in order.
    pub files: Vec<FoundFile>,
    /// Paths that will not be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
    /// How many files of named folders are of no kind that is read, by the endings of their names; `""`: they have none.
    pub left_alone: BTreeMap<String, usize>,
    /// The first few of these files.
    pub left_alone_files: Vec<PathBuf>,
    /// Hidden files and folders of named folders, which are not looked into: their names begin with a full stop, or they are ragstone's own data.
    pub hidden: usize,
    /// Folders that were walked, as they were named, and what was named and is not there any more.
    pub folders: Vec<PathBuf>,
    /// Those of them in which there is no file at all: a disk that is not mounted looks like that.
    pub empty: Vec<PathBuf>,
}

/// Walks folders in sorted order, hidden entries left out. A named path may be a link; inside a named folder, only links to
/// files of that folder are read.
///
/// # Errors
/// `InvalidInput` where there is more than one ingest takes.
pub fn find_files(paths: &[PathBuf]) -> Result<Found> {
    Walk { found: Found::default(), most: MAX_ENTRIES }.run(paths)
}

/// Whether ragstone keeps its own data there: logs and journals that change while they are read, of what was read before.
fn is_data_folder(path: &Path) -> bool {
    path.join("FORMAT").is_file() && ["catalog", "corpus", "kv"].iter().all(|name| path.join(name).is_dir())
}

/// Whether it alone is gone, and not what it stood in: a disk that is not mounted says nothing of its files.
fn is_removed(path: &Path) -> bool {
    let is_missing = path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    is_missing && path.parent().is_some_and(Path::is_dir)
}

struct Walk {
    found: Found,
    most: usize,
}

/// A folder that is still to be walked.
struct Folder {
    path: PathBuf,
    depth: usize,
    within: Arc<Path>,
}

impl Walk {
    fn run(mut self, paths: &[PathBuf]) -> Result<Found> {
        for path in paths {
            match path.canonicalize().and_then(|real| Ok((std::fs::metadata(path)?, real))) {
                Ok((metadata, real)) if metadata.is_dir() => {
                    let before = self.files();
                    self.walk(path, real.into())?;
                    self.found.folders.push(path.clone());
                    if self.files() == before {
                        self.found.empty.push(path.clone());
                    }
                }
                Ok((metadata, _)) => self.add(path.clone(), &metadata, None),
                Err(error) => {
                    if is_removed(path) {
                        self.found.folders.push(path.clone());
                        self.found.empty.push(path.clone());
                    }
                    self.refuse(path.clone(), error.to_string());
                }
            }
        }
        Ok(self.found)
    }

    fn walk(&mut self, root: &Path, within: Arc<Path>) -> Result<()> {
        // What is to be done next stands last. One list for files and folders keeps them in the order of their names.
        let mut waiting = vec![Waiting::Folder(Folder { path: root.to_owned(), depth: 0, within })];
        while let Some(next) = waiting.pop() {
            match next {
                Waiting::File(path, metadata, within) => self.add(path, &metadata, Some(within)),
                Waiting::Refused(path, why) => self.refuse(path, why),
                Waiting::Folder(folder) if folder.depth > MAX_DEPTH => {
                    self.refuse(folder.path, format!("more than {MAX_DEPTH} folders deep; name it itself to read it"));
                }
                Waiting::Folder(folder) if is_data_folder(&folder.path) => self.found.hidden += 1,
                Waiting::Folder(folder) => {
                    let most = self.most.saturating_sub(self.entries() + waiting.len());
                    match list(&folder.path, most) {
                        Ok(Some((entries, hidden))) => {
                            self.found.hidden += hidden;
                            waiting.extend(entries.into_iter().rev().map(|entry| look(&entry, &folder)));
                        }
                        Ok(None) => return Err(self.too_many(root)),
                        Err(error) => self.refuse(folder.path, error.to_string()),
                    }
                }
            }
        }
        Ok(())
    }

    fn entries(&self) -> usize {
        self.files() + self.found.unreadable.len()
    }

    /// Whether ragstone reads them or not.
    fn files(&self) -> usize {
        self.found.files.len() + self.found.left_alone.values().sum::<usize>()
    }

    fn too_many(&self, root: &Path) -> Error {
        let (root, most) = (super::shown(root), self.most);
        Error::invalid_input(format!(
            "{root}: more than {most} files, which one ingest takes; ingest its folders one by one"
        ))
    }

    fn add(&mut self, path: PathBuf, metadata: &Metadata, within: Option<Arc<Path>>) {
        let is_of_folder = within.is_some();
        let found = FoundFile { path, within, bytes: metadata.len(), source: None };
        let format = Format::of(&found.path);
        // Whoever names a folder means what can be read of it.
        if is_of_folder && format == Some(Format::Unnamed) && !(metadata.is_file() && sniff::is_text(&found)) {
            return self.leave(found.path);
        }
        match (format, Format::refusal(&found.path)) {
            // Reading a pipe or a device could wait for ever.
            (Some(_), _) if !metadata.is_file() => self.refuse(found.path, "not a regular file".into()),
            (Some(_), _) => self.found.files.push(found),
            // Keys of other programs have that ending, too.
            (None, Some(why)) if metadata.is_file() && sniff::is_binary(&found) => {
                self.refuse(found.path, why.into());
            }
            (None, _) if is_of_folder => self.leave(found.path),
            (None, _) => self.refuse(found.path, format!("not a format that ragstone reads ({SUPPORTED})")),
        }
    }

    fn leave(&mut self, path: PathBuf) {
        *self.found.left_alone.entry(ending(&path)).or_default() += 1;
        if self.found.left_alone_files.len() < MAX_NAMED {
            self.found.left_alone_files.push(path);
        }
    }

    fn refuse(&mut self, path: PathBuf, why: String) {
        self.found.unreadable.push((path, why));
    }
}

/// The ending of a file's name, for people.
fn ending(path: &Path) -> String {
    let ending = path.extension().map(|ending| super::shown(Path::new(ending)));
    // No ending is longer; what looks like one is a name with a full stop in it.
    ending.filter(|ending| ending.len() <= 12).map(|ending| format!(".{ending}")).unwrap_or_default()
}

enum Waiting {
    Folder(Folder),
    File(PathBuf, Metadata, Arc<Path>),
    Refused(PathBuf, String),
}

/// A folder's entries in order, and how many hidden ones were left out; none where there are more than `most`.
fn list(folder: &Path, most: usize) -> std::io::Result<Option<(Vec<DirEntry>, usize)>> {
    let (mut entries, mut hidden) = (Vec::new(), 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            hidden += 1;
            continue;
        }
        if entries.len() >= most {
            return Ok(None);
        }
        entries.push(entry);
    }
    entries.sort_by_key(DirEntry::file_name);
    Ok(Some((entries, hidden)))
}

fn look(entry: &DirEntry, folder: &Folder) -> Waiting {
    let path = entry.path();
    let looked = entry.file_type().and_then(|kind| {
        if kind.is_symlink() { follow(&path, &folder.within) } else { Ok(Ok(std::fs::metadata(&path)?)) }
    });
    match looked {
        Ok(Ok(metadata)) if metadata.is_dir() => {
            Waiting::Folder(Folder { path, depth: folder.depth + 1, within: folder.within.clone() })
        }
        Ok(Ok(metadata)) => Waiting::File(path, metadata, folder.within.clone()),
        Ok(Err(why)) => Waiting::Refused(path, why),
        Err(error) => Waiting::Refused(path, error.to_string()),
    }
}

/// What a link leads to, or why it is not followed.
fn follow(link: &Path, within: &Path) -> std::io::Result<Result<Metadata, String>> {
    let real = link.canonicalize()?;
    let metadata = std::fs::metadata(&real)?;
    Ok(if !real.starts_with(within) {
        Err(leads_out(&real))
    } else if metadata.is_dir() {
        // Its files are found under their own names; following could also go round for ever.
        Err("a link to a folder, whose files are read under their own names".into())
    } else {
        Ok(metadata)
    })
}

/// Why a link to `real` is not followed.
pub(super) fn leads_out(real: &Path) -> String {
    format!("a link out of the ingested folder, to {}; name that itself to read it", super::shown(real))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(found: &Found, root: &Path) -> Vec<String> {
        found.files.iter().map(|file| super::super::shown(file.path.strip_prefix(root).unwrap())).collect()
    }

    #[test]
    fn folders_are_walked_in_order_and_nothing_is_dropped_in_silence() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        for name in ["b/2.txt", "a.txt", "c.bin", ".hidden.txt", "d.txt"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let missing = folder.path().join("missing");
        let found = find_files(&[folder.path().to_owned(), missing.clone()]).unwrap();
        assert_eq!(names(&found, folder.path()), ["a.txt", "b/2.txt", "d.txt"]);
        let unreadable: Vec<_> = found.unreadable.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(unreadable, std::slice::from_ref(&missing));
        assert_eq!((found.left_alone, found.hidden), (BTreeMap::from([(".bin".to_owned(), 1)]), 1));
        assert_eq!(found.left_alone_files, [folder.path().join("c.bin")]);
        assert_eq!(found.folders, [folder.path(), &missing]);
        assert_eq!(found.empty, std::slice::from_ref(&missing));
        let (bare, other) = (folder.path().join("bare"), folder.path().join("other"));
        fs::create_dir_all(bare.join("deep")).unwrap();
        fs::write(bare.join(".keep"), "x").unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("c.bin"), "x").unwrap();
        assert_eq!(find_files(&[folder.path().to_owned(), bare.clone(), other]).unwrap().empty, [bare]);
        // One that was named itself is meant.
        let named = find_files(&[folder.path().join("c.bin")]).unwrap();
        assert!(named.unreadable[0].1.contains("not a format"), "{named:?}");
    }

    #[test]
    fn names_without_an_ending_are_read_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n";
        for (name, content) in [
            ("LICENSE", &b"\x00"[..]),
            ("letter", b"Dear Ada, the mill is dry."),
            ("tool", b"#!/bin/sh\necho done\n"),
            ("program", b"\x7fELF\x02\x01\x01\x00 and text"),
            ("empty", b""),
            ("id_rsa", key.as_bytes()),
            ("server.key", key.as_bytes()),
            ("talk.key", b"PK\x03\x04\x00\x00"),
            ("talk.ppt", b"\xd0\xcf\x11\xe0\x00"),
        ] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let found = find_files(&[folder.path().to_owned()]).unwrap();
        assert_eq!(names(&found, folder.path()), ["LICENSE", "letter", "tool"]);
        let refused: Vec<_> = found
            .unreadable
            .iter()
            .map(|(path, why)| (path.file_name().unwrap().to_str().unwrap(), why.as_str()))
            .collect();
        assert_eq!(
            refused,
            [
                ("talk.key", "a presentation of Keynote; export it as .pptx or .pdf"),
                ("talk.ppt", "the form that PowerPoint wrote before 2007; save it as .pptx"),
            ]
        );
        let left: Vec<_> = found.left_alone_files.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(left, ["empty", "id_rsa", "program", "server.key"]);
        // One that was named itself is meant.
        assert_eq!(find_files(&[folder.path().join("id_rsa")]).unwrap().files.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_inside_the_folder_only() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        for path in [&inside, &outside] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("a.txt"), "x").unwrap();
        }
        symlink("a.txt", inside.join("b.txt")).unwrap();
        symlink(outside.join("a.txt"), inside.join("c.txt")).unwrap();
        symlink("/", inside.join("d")).unwrap();
        symlink(".", inside.join("e")).unwrap();
        symlink("f.txt", inside.join("f.txt")).unwrap();
        symlink("nowhere", inside.join("g.txt")).unwrap();
        let found = find_files(std::slice::from_ref(&inside)).unwrap();
        assert_eq!(names(&found, &inside), ["a.txt", "b.txt"]);
        let why = |name: &str| {
            let at = found.unreadable.iter().find(|(path, _)| path.ends_with(name)).unwrap();
            at.1.clone()
        };
        assert!(why("c.txt").contains("out of the ingested folder") && why("c.txt").contains("out/a.txt"));
        assert!(why("d").contains("out of the ingested folder"), "{}", why("d"));
        assert!(why("e").contains("own names"), "{}", why("e"));
        assert_eq!(found.unreadable.len(), 5);
        // A named path may be a link, of a file or a folder.
        let link = folder.path().join("link");
        symlink(&inside, &link).unwrap();
        let found = find_files(&[link.clone(), inside.join("c.txt")]).unwrap();
        assert_eq!(names(&Found { files: found.files[..2].to_vec(), ..Found::default() }, &link), ["a.txt", "b.txt"]);
        assert_eq!(found.files[2], FoundFile { path: inside.join("c.txt"), within: None, bytes: 1, source: None });
    }

    #[test]
    fn too_many_and_too_deep_are_told() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.txt", "b.txt", "c.txt"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let walk = |most| Walk { found: Found::default(), most }.run(&[folder.path().to_owned()]);
        assert_eq!(walk(3).unwrap().files.len(), 3);
        let error = walk(2).unwrap_err().to_string();
        assert!(error.contains("more than 2 files") && error.contains("one by one"), "{error}");
        let deep = (0..=MAX_DEPTH).fold(folder.path().to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x.txt"), "x").unwrap();
        let found = walk(100).unwrap();
        assert_eq!((found.files.len(), found.unreadable.len()), (3, 1));
        assert!(found.unreadable[0].1.contains("64 folders deep"));
    }
}
