//! The record of what nothing else can be made of again: API keys, quotas, pins, settings, and the journals of ingests, warm-ups and removals.
//!
//! Each change is written and synced here before it is acknowledged. sled's own file follows, and after a power cut may lack the last half
//! second, or have it in part. The next start makes sled's rows those that are here, unless this file is damaged; where sled's is damaged as a
//! whole, everything comes from here.
//!
//! ```text
//! DATA/catalog.records: frames of
//!     "RSR1"   bytes of the body u32   first 8 bytes of BLAKE3 of the body   body
//! body: sequence u64   tree u8   rows
//! row:  bytes of the key u32   key   bytes of the value u32, or u32::MAX where the row is removed   value
//! ```
//! Numbers are little-endian. The first frame has the sequence that sled had reached when the file was written anew: a catalog that has not
//! reached it has lost something. Its row's key is the trees that the file has, a byte each, and the value how many frames of that sequence follow,
//! u64. A frame that is damaged or cut is none; at the end of the file it is a change that was not acknowledged.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as Io, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"RSR1";
const HEAD_BYTES: usize = 16;
/// The tree of the first frame.
const NONE: u8 = u8::MAX;
const REMOVED: u32 = u32::MAX;
/// From this size on the file is written anew where it is so many times larger than it was then.
const MUCH_BYTES: u64 = 8 << 20;
const MUCH_TIMES: u64 = 4;

/// Trees that have a second copy. The numbers are on disk; 2 was that of schemas, which stand in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kept {
    ApiKeys = 0,
    Pins = 1,
    SchemaEntries = 3,
    Jobs = 4,
    WarmJobs = 5,
    Removals = 6,
    ObjectRemovals = 7,
    Models = 8,
    Quotas = 9,
    Settings = 10,
}

impl Kept {
    pub const ALL: [Self; 10] = [
        Self::ApiKeys,
        Self::Pins,
        Self::SchemaEntries,
        Self::Jobs,
        Self::WarmJobs,
        Self::Removals,
        Self::ObjectRemovals,
        Self::Models,
        Self::Quotas,
        Self::Settings,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tree| *tree as u8 == number)
    }
}

/// A key, and its value; `None`: the row is removed.
pub(super) type Row = (Vec<u8>, Option<Vec<u8>>);

/// A change of one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub sequence: u64,
    pub tree: Kept,
    pub rows: Vec<Row>,
}

/// What the file has.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What sled had reached when the file was written anew; 0 where there is no file.
    pub base: u64,
    pub last: u64,
    pub changes: Vec<Change>,
    /// The trees of which it has all rows.
    holds: Vec<u8>,
    /// There are bytes between frames that are none.
    pub is_damaged: bool,
    /// There are bytes behind the last frame that are none.
    pub is_cut: bool,
}

/// The open file.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_anew: u64,
    last: u64,
}

/// Beside the catalog's folder.
pub(super) fn path_of(catalog: &Path) -> PathBuf {
    let mut path = catalog.as_os_str().to_owned();
    path.push(".records");
    path.into()
}

/// Reads a file; nothing where there is none.
pub(super) fn read(path: &Path) -> Result<Found> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == Io::NotFound => return Ok(Found::default()),
        read => read?,
    };
    let (mut found, mut at, mut of_base) = (Found::default(), 0, 0);
    while at < bytes.len() {
        let Some((sequence, tree, rows, end)) = frame(&bytes, at) else {
            found.is_cut = true;
            let next = bytes[at + 1..].windows(MAGIC.len()).position(|window| window == MAGIC);
            at = next.map_or(bytes.len(), |next| at + 1 + next);
            continue;
        };
        found.is_damaged |= std::mem::take(&mut found.is_cut);
        if tree == NONE {
            found.base = sequence;
            // Files of earlier versions do not say so.
            if let Some((trees, count)) = rows.first() {
                found.holds.clone_from(trees);
                of_base = count.as_deref().and_then(|count| count.try_into().ok()).map_or(0, u64::from_le_bytes);
            }
        } else if sequence == found.base {
            of_base = of_base.saturating_sub(1);
        }
        found.last = found.last.max(sequence);
        // That of a later version is not ours to apply.
        found.changes.extend(Kept::of(tree).map(|tree| Change { sequence, tree, rows }));
        at = end;
    }
    // These were there when the file was, and are no change that was cut off.
    found.is_damaged |= of_base > 0;
    Ok(found)
}

impl Found {
    /// Whether it has all rows of a tree: a version that did not keep it here may have written the file.
    pub fn holds(&self, tree: Kept) -> bool {
        self.holds.contains(&(tree as u8))
    }
}

impl Records {
    /// Writes a file anew that has these rows, in the place of the one that is there: a kill leaves one of them. sled has reached `sequence`,
    /// on the disk.
    pub fn anew(path: &Path, sequence: u64, rows: impl Iterator<Item = (Kept, Row)>) -> Result<Self> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let (trees, mut count, mut frames) = (Kept::ALL.map(|tree| tree as u8).to_vec(), 0_u64, Vec::new());
        rows.for_each(|(tree, row)| {
            frames.extend(encode(sequence, tree as u8, &[row]));
            count += 1;
        });
        let mut bytes = encode(sequence, NONE, &[(trees, Some(count.to_le_bytes().to_vec()))]);
        bytes.append(&mut frames);
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        if let Err(error) = ragstone_env::damage::rename(&new, path) {
            if new.try_exists()? {
                return Err(error);
            }
            // It has its place, if only until a power cut: what is written from now on belongs into this file.
            tracing::warn!(%error, path = %path.display(), "the disk does not say that the catalog's second copy is there");
        }
        let bytes = bytes.len() as u64;
        Ok(Self { path: path.to_owned(), file, bytes, bytes_anew: bytes, last: sequence })
    }

    /// Opens the file that was [read](read) and is whole.
    pub fn open(path: &Path, found: &Found) -> Result<Self> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        let bytes = file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.to_owned(), file, bytes, bytes_anew: bytes, last: found.last })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sequence of the last change.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds a change, on the disk on return if it `is_durable`; its sequence. After an error it is not there.
    pub fn add(&mut self, tree: Kept, rows: &[Row], is_durable: bool) -> Result<u64> {
        let (sequence, before) = (self.last + 1, self.bytes);
        let bytes = encode(sequence, tree as u8, rows);
        // What an earlier error left behind goes, too.
        let mut write = || {
            self.file.set_len(before)?;
            self.file.seek(SeekFrom::Start(before))?;
            self.file.write_all(&bytes)?;
            if is_durable { self.file.sync_data() } else { Ok(()) }
        };
        if let Err(error) = write() {
            // The next one cuts it off where this fails.
            let _ = self.file.set_len(before);
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        self.last = sequence;
        Ok(sequence)
    }

    /// Whether most of it is superseded.
    pub fn is_worth_writing_anew(&self) -> bool {
        self.bytes > MUCH_BYTES && self.bytes > self.bytes_anew.saturating_mul(MUCH_TIMES)
    }
}

fn encode(sequence: u64, tree: u8, rows: &[Row]) -> Vec<u8> {
    let mut body = sequence.to_le_bytes().to_vec();
    body.push(tree);
    for (key, value) in rows {
        body.extend((key.len() as u32).to_le_bytes());
        body.extend(key);
        match value {
            Some(value) => {
                body.extend((value.len() as u32).to_le_bytes());
                body.extend(value);
            }
            None => body.extend(REMOVED.to_le_bytes()),
        }
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(&blake3::hash(&body).as_bytes()[..8]);
    bytes.extend(body);
    bytes
}

/// The frame that begins at `at`, and where it ends.
fn frame(bytes: &[u8], at: usize) -> Option<(u64, u8, Vec<Row>, usize)> {
    let head = bytes.get(at..at.checked_add(HEAD_BYTES)?)?;
    let length = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
    let end = at.checked_add(HEAD_BYTES)?.checked_add(length)?;
    let body = bytes.get(at + HEAD_BYTES..end)?;
    if &head[..4] != MAGIC || blake3::hash(body).as_bytes()[..8] != head[8..] {
        return None;
    }
    let (sequence, rest) = body.split_first_chunk::<8>()?;
    let (tree, mut rest) = rest.split_first()?;
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let key = take(&mut rest)??;
        rows.push((key, take(&mut rest)?));
    }
    Some((u64::from_le_bytes(*sequence), *tree, rows, end))
}

/// The next bytes with their length before them; `Some(None)`: removed.
fn take(rest: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    if length == REMOVED {
        *rest = after;
        return Some(None);
    }
    let (value, after) = after.split_at_checked(length as usize)?;
    *rest = after;
    Some(Some(value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, value: Option<&str>) -> Row {
        (key.into(), value.map(Into::into))
    }

    fn filled(path: &Path) -> Records {
        let rows = [(Kept::Pins, row("k", Some(""))), (Kept::Jobs, row("a", Some("1")))];
        let mut records = Records::anew(path, 7, rows.into_iter()).unwrap();
        assert_eq!(records.add(Kept::Jobs, &[row("a", None), row("b", Some("2"))], true).unwrap(), 8);
        assert_eq!(records.add(Kept::ApiKeys, &[row("RSR1", Some("RSR1"))], false).unwrap(), 9);
        records
    }

    #[test]
    fn what_is_written_is_read_also_after_a_cut_and_beside_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        assert_eq!(read(&path).unwrap().last, 0);
        drop(filled(&path));
        let whole = std::fs::read(&path).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((found.base, found.last, found.changes.len()), (7, 9, 4));
        assert!(!found.is_damaged && !found.is_cut && Kept::ALL.iter().all(|tree| found.holds(*tree)));
        assert_eq!(found.changes[2].rows, [row("a", None), row("b", Some("2"))]);
        assert_eq!(Records::open(&path, &found).unwrap().last(), 9);
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let cut = read(&path).unwrap();
            assert_eq!(cut.changes, found.changes[..cut.changes.len()], "cut at {end}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, bytes).unwrap();
            let damaged = read(&path).unwrap();
            assert!(damaged.is_damaged || damaged.is_cut, "at {at}");
            // One frame is lost, and nothing else.
            assert!(damaged.changes.len() >= 3, "at {at}");
            assert!(damaged.changes.iter().all(|change| found.changes.contains(change)), "at {at}");
        }
    }

    #[test]
    fn golden_bytes_of_a_frame() {
        let bytes = encode(258, Kept::Jobs as u8, &[row("k", Some("v")), row("l", None)]);
        assert_eq!(&bytes[..8], b"RSR1\x1c\0\0\0");
        assert_eq!(&bytes[16..], b"\x02\x01\0\0\0\0\0\0\x04\x01\0\0\0k\x01\0\0\0v\x01\0\0\0l\xff\xff\xff\xff");
    }
}
