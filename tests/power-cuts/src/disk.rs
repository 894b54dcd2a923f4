//! A disk that knows what was synced.

use std::collections::{BTreeMap, HashMap};
use std::io::Result;
use std::ops::Range;
use std::path::Path;

use ragstone_env::Env;

use super::recording::{Record, Recording};

const PAGE: u64 = 4096;
const SECTOR: u64 = 512;

/// What a power cut leaves of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Any part, by a seed: pages and parts of pages, lengths, names.
    Some(u64),
    /// Everything: what a kill of the process leaves.
    All,
}

/// A folder as a process sees it, and what of it is on the disk.
#[derive(Debug, Default)]
pub struct Disk {
    nodes: Vec<Node>,
    /// Which node an inode of the system is now.
    by_inode: HashMap<u64, usize>,
    /// How many changes there were.
    count: u64,
}

#[derive(Debug)]
enum Node {
    File(File),
    Folder(Folder),
}

#[derive(Debug, Default)]
struct File {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
    length: u64,
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Range<usize>),
    Length(u64),
}

#[derive(Debug, Default)]
struct Folder {
    now: BTreeMap<String, usize>,
    synced: BTreeMap<String, usize>,
    unsynced: Vec<Names>,
}

/// A change of a folder's names, one step for the disk. That of two folders has the number in both.
#[derive(Debug, Clone)]
struct Names {
    number: u64,
    removed: Option<String>,
    added: Option<(String, usize)>,
    /// The other folder of a rename.
    other: Option<usize>,
}

const ROOT: usize = 0;

impl Disk {
    /// Takes the next change.
    pub fn apply(&mut self, recording: &Recording, record: &Record) {
        self.count += 1;
        match record {
            Record::Root(inode) => {
                if self.nodes.is_empty() {
                    self.nodes.push(Node::Folder(Folder::default()));
                }
                // A later process of the same folder.
                self.by_inode.insert(*inode, ROOT);
            }
            Record::File(inode, path) => self.made(*inode, path, Node::File(File::default())),
            Record::Folder(inode, path) => self.made(*inode, path, Node::Folder(Folder::default())),
            Record::Write(inode, at, range) => {
                if let Some(file) = self.file(*inode) {
                    file.length = file.length.max(at + range.len() as u64);
                    file.unsynced.push(Change::Write(*at, range.clone()));
                }
            }
            Record::Length(inode, length) => {
                if let Some(file) = self.file(*inode) {
                    file.length = *length;
                    file.unsynced.push(Change::Length(*length));
                }
            }
            Record::Synced(inode) => self.sync(recording, *inode),
            Record::Renamed(from, to) => self.renamed(from, to),
            Record::Linked(from, to) => {
                let found = self.place(from).and_then(|(folder, name)| self.folder(folder).now.get(&name).copied());
                if let (Some(node), Some((folder, name))) = (found, self.place(to)) {
                    self.change(folder, None, Some((name, node)));
                }
            }
            Record::Removed(path) => {
                if let Some((folder, name)) = self.place(path) {
                    self.change(folder, Some(name), None);
                }
            }
        }
    }

    fn file(&mut self, inode: u64) -> Option<&mut File> {
        match self.nodes.get_mut(*self.by_inode.get(&inode)?)? {
            Node::File(file) => Some(file),
            Node::Folder(_) => None,
        }
    }

    fn folder(&self, node: usize) -> &Folder {
        match &self.nodes[node] {
            Node::Folder(folder) => folder,
            Node::File(_) => panic!("a file has no names"),
        }
    }

    fn folder_mut(&mut self, node: usize) -> &mut Folder {
        match &mut self.nodes[node] {
            Node::Folder(folder) => folder,
            Node::File(_) => panic!("a file has no names"),
        }
    }

    /// The folder of a path, and the last name.
    fn place(&self, path: &str) -> Option<(usize, String)> {
        let mut parts: Vec<&str> = path.split('/').collect();
        let name = parts.pop()?;
        let mut at = ROOT;
        for part in parts {
            at = *self.folder(at).now.get(part)?;
        }
        Some((at, name.to_owned()))
    }

    fn made(&mut self, inode: u64, path: &str, node: Node) {
        let Some((folder, name)) = self.place(path) else { return };
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.by_inode.insert(inode, node);
        self.change(folder, None, Some((name, node)));
    }

    fn change(&mut self, folder: usize, removed: Option<String>, added: Option<(String, usize)>) {
        let names = Names { number: self.count, removed, added, other: None };
        let folder = self.folder_mut(folder);
        names.apply(&mut folder.now);
        folder.unsynced.push(names);
    }

    fn renamed(&mut self, from: &str, to: &str) {
        let (Some((out_of, name)), Some((into, new_name))) = (self.place(from), self.place(to)) else { return };
        // What was made by calls that are not recorded is no concern of a replay.
        let Some(node) = self.folder(out_of).now.get(&name).copied() else { return };
        if out_of == into {
            return self.change(into, Some(name), Some((new_name, node)));
        }
        let number = self.count;
        for (folder, names) in [
            (out_of, Names { number, removed: Some(name), added: None, other: Some(into) }),
            (into, Names { number, removed: None, added: Some((new_name, node)), other: Some(out_of) }),
        ] {
            let folder = self.folder_mut(folder);
            names.apply(&mut folder.now);
            folder.unsynced.push(names);
        }
    }

    fn sync(&mut self, recording: &Recording, inode: u64) {
        let Some(&node) = self.by_inode.get(&inode) else { return };
        match &mut self.nodes[node] {
            Node::File(file) => {
                for change in std::mem::take(&mut file.unsynced) {
                    change.apply(recording, &mut file.synced);
                }
            }
            Node::Folder(folder) => {
                let mut others = Vec::new();
                for names in std::mem::take(&mut folder.unsynced) {
                    names.apply(&mut folder.synced);
                    others.extend(names.other.map(|other| (other, names.number)));
                }
                // A rename is one step: no file system leaves both names of it, or none.
                for (other, number) in others {
                    let folder = self.folder_mut(other);
                    let Some(at) = folder.unsynced.iter().position(|names| names.number == number) else { continue };
                    let names = folder.unsynced.remove(at);
                    let touched = |name: &str| names.names().any(|own| own == name);
                    // What it was told of these names before is superseded, and does not come later.
                    let (before, mut rest): (Vec<Names>, Vec<Names>) = std::mem::take(&mut folder.unsynced)
                        .into_iter()
                        .partition(|before| before.number < number && before.names().any(touched));
                    before.iter().chain([&names]).for_each(|names| names.apply(&mut folder.synced));
                    folder.unsynced.append(&mut rest);
                }
            }
        }
    }

    /// Makes `to`, an empty folder, what a power cut leaves now. Names that begin with `always` are there as the process sees them.
    ///
    /// # Errors
    /// As the disk says.
    pub fn cut(&self, recording: &Recording, left: Left, to: &Path) -> Result<()> {
        if self.nodes.is_empty() {
            return Ok(());
        }
        let names = match left {
            Left::Nothing => Kept::None,
            Left::All => Kept::UpTo(u64::MAX),
            Left::Some(seed) => {
                let random = Env::seeded(seed, 0);
                match random.random_u64() % 4 {
                    // A journal has changes of names in their order.
                    0 => Kept::UpTo(u64::MAX),
                    1 => Kept::UpTo(self.count - random.random_u64() % (self.count.min(400) + 1)),
                    _ => Kept::Each(seed, [1, 4, 8, 12, 15][random.random_u64() as usize % 5]),
                }
            }
        };
        self.write_folder(recording, ROOT, (left, names), to)
    }

    fn write_folder(&self, recording: &Recording, node: usize, how: (Left, Kept), to: &Path) -> Result<()> {
        let folder = self.folder(node);
        let mut names = folder.synced.clone();
        folder.unsynced.iter().filter(|change| how.1.keeps(change.number)).for_each(|change| change.apply(&mut names));
        for (name, node) in names {
            let path = to.join(name);
            match &self.nodes[node] {
                Node::File(file) => std::fs::write(path, file.left(recording, how.0, node as u64))?,
                Node::Folder(_) => {
                    std::fs::create_dir(&path)?;
                    self.write_folder(recording, node, how, &path)?;
                }
            }
        }
        Ok(())
    }

    /// A file of the folder as the process sees it; `None` where there is none.
    pub fn now(&self, recording: &Recording, path: &str) -> Option<Vec<u8>> {
        let (folder, name) = self.place(path)?;
        match &self.nodes[*self.folder(folder).now.get(&name)?] {
            Node::File(file) => Some(file.left(recording, Left::All, 0)),
            Node::Folder(_) => None,
        }
    }
}

/// Which changes of names are kept that were not synced.
#[derive(Debug, Clone, Copy)]
enum Kept {
    None,
    UpTo(u64),
    /// Each for itself, so many of sixteen.
    Each(u64, u64),
}

impl Kept {
    fn keeps(self, number: u64) -> bool {
        match self {
            Self::None => false,
            Self::UpTo(last) => number <= last,
            // The same for both folders of a rename.
            Self::Each(seed, of_sixteen) => {
                Env::seeded(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15), 0).random_u64() % 16 < of_sixteen
            }
        }
    }
}

impl Names {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        if let Some((name, node)) = &self.added {
            names.insert(name.clone(), *node);
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.removed.as_deref().into_iter().chain(self.added.as_ref().map(|(name, _)| name.as_str()))
    }
}

impl Change {
    fn apply(&self, recording: &Recording, content: &mut Vec<u8>) {
        match self {
            Self::Write(at, range) => put(content, *at, recording.bytes(range)),
            Self::Length(length) => content.resize(*length as usize, 0),
        }
    }
}

fn put(content: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

impl File {
    fn left(&self, recording: &Recording, left: Left, salt: u64) -> Vec<u8> {
        let mut content = self.synced.clone();
        match left {
            Left::Nothing => {}
            Left::All => self.unsynced.iter().for_each(|change| change.apply(recording, &mut content)),
            Left::Some(_) if self.unsynced.is_empty() => {}
            Left::Some(seed) => {
                let random = Env::seeded(seed ^ (salt + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93), 0);
                let of_sixteen = [0, 2, 8, 14, 16][random.random_u64() as usize % 5];
                for change in &self.unsynced {
                    match change {
                        Change::Length(length) if random.random_u64() % 16 < of_sixteen => {
                            content.resize(*length as usize, 0);
                        }
                        Change::Length(_) => {}
                        Change::Write(at, range) => {
                            for (at, piece) in pages(*at, recording.bytes(range)) {
                                if random.random_u64() % 16 < of_sixteen {
                                    put_torn(&mut content, at, piece, &random);
                                }
                            }
                        }
                    }
                }
                // The length is kept apart from what is written.
                if random.random_u64().is_multiple_of(3) {
                    content.resize(self.length as usize, 0);
                }
            }
        }
        content
    }
}

/// A piece of a page, and now and then only some of its sectors.
fn put_torn(content: &mut Vec<u8>, at: u64, piece: &[u8], random: &Env) {
    if !random.random_u64().is_multiple_of(8) {
        return put(content, at, piece);
    }
    let sectors = (at % SECTOR + piece.len() as u64).div_ceil(SECTOR);
    let (from, to) = (random.random_u64() % sectors, random.random_u64() % sectors + 1);
    let edge = |sector: u64| ((sector * SECTOR).saturating_sub(at % SECTOR) as usize).min(piece.len());
    let (from, to) = (edge(from), edge(to));
    if from < to {
        put(content, at + from as u64, &piece[from..to]);
    }
}

/// What of a write is in which page.
fn pages(at: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes.len() {
            return None;
        }
        let begin = at + done as u64;
        let length = ((PAGE - begin % PAGE) as usize).min(bytes.len() - done);
        let piece = &bytes[done..done + length];
        done += length;
        Some((begin, piece))
    })
}

#[cfg(test)]
mod tests;
