//! Records the changes of a folder that a process makes.

use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEAD_BYTES: usize = 28;

/// The library that records, compiled.
#[derive(Debug, Clone)]
pub struct Recorder(PathBuf);

/// What a process did to a folder, in order.
#[derive(Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    /// The records, in order.
    pub records: Vec<Record>,
    /// Where each ends in the file.
    ends: Vec<usize>,
}

/// One change. Inodes are the system's, and come again once a file is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The folder itself.
    Root(u64),
    File(u64, String),
    Folder(u64, String),
    /// Bytes of the recording that an inode gets at a place.
    Write(u64, u64, Range<usize>),
    Length(u64, u64),
    Synced(u64),
    Renamed(String, String),
    Linked(String, String),
    /// A file, or an empty folder.
    Removed(String),
}

impl Recorder {
    /// Compiles the library into `folder`; `None` where there is no C compiler, or this is not Linux.
    ///
    /// # Errors
    /// As the compiler says.
    pub fn compile(folder: &Path) -> Result<Option<Self>> {
        if !cfg!(target_os = "linux") {
            return Ok(None);
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/record_calls.c");
        let library = folder.join("record_calls.so");
        let compiled =
            Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
        match compiled {
            Ok(status) if status.success() => Ok(Some(Self(library))),
            Ok(status) => Err(Error::other(format!("record_calls.c does not compile: {status}"))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has a process record what it does below `folder`, which is there, in the file `to`.
    ///
    /// # Errors
    /// As the disk says.
    pub fn watch(&self, command: &mut Command, folder: &Path, to: &Path) -> Result<()> {
        command.env("LD_PRELOAD", &self.0).env("RECORD_BELOW", folder.canonicalize()?).env("RECORD_TO", to);
        Ok(())
    }
}

impl Recording {
    /// Reads a recording. One that a kill cut off ends with its last whole record.
    ///
    /// # Errors
    /// As the disk says; `Unsupported` where the process did something that has no record.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)?;
        let (mut records, mut ends, mut at) = (Vec::new(), Vec::new(), 0);
        while let Some((record, end)) = next(&bytes, at)? {
            records.push(record);
            ends.push(end);
            at = end;
        }
        Ok(Self { bytes, records, ends })
    }

    /// How many records were whole when the file had so many bytes.
    pub fn records_in(&self, bytes: u64) -> usize {
        self.ends.partition_point(|end| *end as u64 <= bytes)
    }

    /// The bytes of a [`Record::Write`].
    pub fn bytes(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
}

fn next(bytes: &[u8], at: usize) -> Result<Option<(Record, usize)>> {
    let Some(head) = bytes.get(at..at + HEAD_BYTES) else { return Ok(None) };
    let number = |at: usize, length: usize| {
        let mut number = [0; 8];
        number[..length].copy_from_slice(&head[at..at + length]);
        u64::from_le_bytes(number)
    };
    let one = at + HEAD_BYTES..at + HEAD_BYTES + number(4, 4) as usize;
    let two = one.end..one.end + number(8, 4) as usize;
    if two.end > bytes.len() {
        return Ok(None);
    }
    let (a, b) = (number(12, 8), number(20, 8));
    let text = |range: &Range<usize>| String::from_utf8_lossy(&bytes[range.clone()]).into_owned();
    let record = match head[0] {
        b'R' => Record::Root(a),
        b'C' => Record::File(a, text(&one)),
        b'D' => Record::Folder(a, text(&one)),
        b'W' => Record::Write(a, b, one),
        b'T' => Record::Length(a, b),
        b'S' => Record::Synced(a),
        b'N' => Record::Renamed(text(&one), text(&two)),
        b'L' => Record::Linked(text(&one), text(&two)),
        b'U' => Record::Removed(text(&one)),
        b'?' => return Err(Error::new(ErrorKind::Unsupported, text(&one))),
        other => return Err(Error::new(ErrorKind::InvalidData, format!("a record of kind {other}"))),
    };
    Ok(Some((record, two.end)))
}
