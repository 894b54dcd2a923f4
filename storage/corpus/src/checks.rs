//! Checksums of a table's files: LanceDB has none, and the corpus is the only data that nothing can compute again.
//!
//! LanceDB writes a file once and never changes it, so that one line a file is enough. It is written when the file is known to be on the
//! disk, so that what is listed was there.
//!
//! ```text
//! TABLE.lance/ragstone.checks: lines of
//!     CHECK of the rest (8 hex digits)  HASH of the file (32)  its bytes  its name below TABLE.lance
//! ```
//! Both are the first digits of BLAKE3. A line that is damaged or cut is none: its file is not compared.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as Io, Read, Result, Write};
use std::path::Path;

use super::unfinished::MARK;

const FILE: &str = "ragstone.checks";
const NEW_FILE: &str = "ragstone.checks.new";
const CHUNK_BYTES: usize = 1 << 20;
const HASH_DIGITS: usize = 32;
const CHECK_DIGITS: usize = 8;

/// What a file was when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    hash: String,
    bytes: u64,
}

impl Listed {
    /// A file as it is now; `read` hears of every piece that was read, and says whether to go on: `Interrupted` where not.
    pub fn of(path: &Path, read: &mut dyn FnMut(usize) -> bool) -> Result<Self> {
        let (hash, bytes) = hash_of(path, read)?;
        Ok(Self { hash, bytes })
    }
}

/// The files of a table that are listed, by their names below it.
#[derive(Debug, Default)]
pub(super) struct Checks {
    listed: BTreeMap<String, Listed>,
    /// The last line may be cut: the next one begins anew.
    is_torn: bool,
    /// A line before the last is none: what it listed is not known any more.
    is_damaged: bool,
}

impl Checks {
    /// Those of a table; none where there is no list.
    pub fn read(table: &Path) -> Result<Self> {
        let text = match std::fs::read(table.join(FILE)) {
            Err(error) if error.kind() == Io::NotFound => return Ok(Self::default()),
            read => read?,
        };
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<Option<(String, Listed)>> = text.lines().map(parse).collect();
        // The next one begins with an empty line behind one that was cut.
        let whole = lines.len().saturating_sub(1);
        let is_damaged = text.lines().zip(&lines).take(whole).any(|(line, read)| read.is_none() && !line.is_empty());
        let is_torn = !text.is_empty() && !text.ends_with('\n');
        Ok(Self { listed: lines.into_iter().flatten().collect(), is_torn, is_damaged })
    }

    /// The files that are listed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.listed.keys().map(String::as_str)
    }

    /// Whether it may have listed more: then a file that is not listed may have been, too.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Whether a file is listed.
    pub fn has(&self, name: &str) -> bool {
        self.listed.contains_key(name)
    }

    /// Lists those of `names` that are not listed yet, as they are now, and waits for the disk.
    pub fn add(&mut self, table: &Path, names: impl Iterator<Item = String>) -> Result<()> {
        let new = names.filter(|name| !self.has(name) && !is_own(name));
        let listed = |name: String| Ok((name.clone(), Listed::of(&table.join(&name), &mut |_| true)?));
        let added: Vec<_> = new.map(listed).collect::<Result<_>>()?;
        self.add_read(table, added).map(drop)
    }

    /// Lists files that were read already, and waits for the disk; how many. Those that are listed stay as they are.
    pub fn add_read(&mut self, table: &Path, mut added: Vec<(String, Listed)>) -> Result<usize> {
        added.retain(|(name, _)| !self.has(name) && !is_own(name));
        if added.is_empty() {
            return Ok(0);
        }
        let is_new = self.listed.is_empty();
        let mut text = String::from(if self.is_torn { "\n" } else { "" });
        added.iter().for_each(|(name, listed)| text.push_str(&line(name, listed)));
        let mut file = OpenOptions::new().create(true).append(true).open(table.join(FILE))?;
        self.is_torn = true;
        file.write_all(text.as_bytes())?;
        self.is_torn = false;
        file.sync_data()?;
        if is_new {
            File::open(table)?.sync_all()?;
        }
        let count = added.len();
        self.listed.extend(added);
        Ok(count)
    }

    /// Forgets files that are not there any more.
    pub fn retain_present(&mut self, table: &Path, present: &HashSet<String>) -> Result<()> {
        let before = self.listed.len();
        self.listed.retain(|name, _| present.contains(name));
        if self.listed.len() == before {
            return Ok(());
        }
        self.write_anew(table)
    }

    /// Takes a file for what it should be, and writes the list anew without lines that are none. What the newest listed version needs is known
    /// to be on the disk by then.
    pub fn accept(&mut self, table: &Path, name: &str) -> Result<()> {
        if !self.has(name) {
            self.listed.insert(name.to_owned(), Listed::of(&table.join(name), &mut |_| true)?);
        }
        self.write_anew(table)
    }

    /// A kill leaves the old list or the new one.
    fn write_anew(&mut self, table: &Path) -> Result<()> {
        let (path, new) = (table.join(FILE), table.join(NEW_FILE));
        let mut file = File::create(&new)?;
        let lines: String = self.listed.iter().map(|(name, listed)| line(name, listed)).collect();
        file.write_all(lines.as_bytes())?;
        file.sync_all()?;
        ragstone_env::damage::rename(&new, &path)?;
        (self.is_torn, self.is_damaged) = (false, false);
        Ok(())
    }

    /// What is wrong with a file that is there; `None` where it is as it was written, or is not listed.
    pub fn compare(&self, table: &Path, name: &str) -> Result<Option<String>> {
        self.compare_telling(table, name, &mut |_| true)
    }

    /// As [`compare`](Self::compare); `read` hears of every piece that was read, and says whether to go on: `Interrupted` where not.
    pub fn compare_telling(
        &self,
        table: &Path,
        name: &str,
        read: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<String>> {
        let Some(listed) = self.listed.get(name) else { return Ok(None) };
        let Listed { hash, bytes } = Listed::of(&table.join(name), read)?;
        Ok(match (bytes == listed.bytes, hash == listed.hash) {
            (false, _) => Some(format!("has {bytes} bytes, and was written with {}", listed.bytes)),
            (true, false) => Some("has other bytes than were written".to_owned()),
            (true, true) => None,
        })
    }
}

/// Whether a file of a table is ours, such as the list itself.
pub(super) fn is_own(name: &str) -> bool {
    name == FILE || name == NEW_FILE || name == MARK
}

fn line(name: &str, Listed { hash, bytes }: &Listed) -> String {
    let rest = format!("{hash} {bytes} {name}");
    format!("{} {rest}\n", digits(&blake3::hash(rest.as_bytes()), CHECK_DIGITS))
}

fn parse(line: &str) -> Option<(String, Listed)> {
    let (check, rest) = line.split_once(' ')?;
    if digits(&blake3::hash(rest.as_bytes()), CHECK_DIGITS) != check {
        return None;
    }
    let mut parts = rest.splitn(3, ' ');
    let (hash, bytes) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
    Some((parts.next()?.to_owned(), Listed { hash, bytes }))
}

fn digits(hash: &blake3::Hash, count: usize) -> String {
    hash.to_hex()[..count].to_owned()
}

fn hash_of(path: &Path, read: &mut dyn FnMut(usize) -> bool) -> Result<(String, u64)> {
    let (mut file, mut hasher, mut bytes) = (File::open(path)?, blake3::Hasher::new(), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok((digits(&hasher.finalize(), HASH_DIGITS), bytes)),
            Ok(count) => {
                hasher.update(&chunk[..count]);
                bytes += count as u64;
                if !read(count) {
                    return Err(Io::Interrupted.into());
                }
            }
            Err(error) if error.kind() == Io::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> std::vec::IntoIter<String> {
        names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_changed_file_is_told_and_a_damaged_line_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a", "b and c", "d"] {
            std::fs::write(at(name), name).unwrap();
        }
        let mut checks = Checks::read(folder.path()).unwrap();
        checks.add(folder.path(), names(&["a", "b and c", FILE])).unwrap();
        let mut checks = Checks::read(folder.path()).unwrap();
        assert_eq!(checks.names().collect::<Vec<_>>(), ["a", "b and c"]);
        // Golden: released lists must stay readable.
        let text = std::fs::read_to_string(at(FILE)).unwrap();
        assert!(text.starts_with("8736dbc1 17762fddd969a453925d65717ac3eea2 1 a\n"), "{text}");
        std::fs::write(at("b and c"), "b and C").unwrap();
        std::fs::write(at("a"), "aa").unwrap();
        let wrong = |checks: &Checks, name: &str| checks.compare(folder.path(), name).unwrap();
        assert_eq!(wrong(&checks, "b and c").unwrap(), "has other bytes than were written");
        assert_eq!(wrong(&checks, "a").unwrap(), "has 2 bytes, and was written with 1");
        assert_eq!(wrong(&checks, "d"), None, "not listed");
        // What is listed is not listed again as it is now.
        checks.add(folder.path(), names(&["a", "d"])).unwrap();
        assert!(wrong(&checks, "a").is_some() && wrong(&checks, "d").is_none());
        // A kill in the middle of a line, and a flipped digit.
        let mut text = std::fs::read(at(FILE)).unwrap();
        text[3] ^= 1;
        text.truncate(text.len() - 3);
        std::fs::write(at(FILE), text).unwrap();
        let mut checks = Checks::read(folder.path()).unwrap();
        assert_eq!(checks.names().collect::<Vec<_>>(), ["b and c"]);
        checks.add(folder.path(), names(&["d"])).unwrap();
        assert_eq!(Checks::read(folder.path()).unwrap().names().collect::<Vec<_>>(), ["b and c", "d"]);
        checks.retain_present(folder.path(), &names(&["d"]).collect()).unwrap();
        let again = Checks::read(folder.path()).unwrap();
        assert_eq!((again.names().collect::<Vec<_>>(), again.is_torn), (vec!["d"], false));
    }
}
