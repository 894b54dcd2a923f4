//! Shared memory as a file: rows are read and written by `pread` and `pwrite`, never through a mapping.
//!
//! A file that somebody else maps can be truncated at any moment. Through a mapping that would be a SIGBUS, which ends the daemon; here it is an
//! error of one row. Copying through the kernel costs what a `memcpy` costs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use ragstone_env::{Error, ErrorKind, Result};

use crate::message::RegionSpec;

/// Rows of a region.
const MOST_ROWS: u64 = 1 << 32;

/// What is done with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// A client's shared memory. Rows are `block_bytes` long and `stride` apart.
#[derive(Debug)]
pub struct Region {
    file: File,
    path: PathBuf,
    rows: u64,
    stride: u64,
    block_bytes: u64,
}

impl Region {
    /// Opens what a client named, which must be a file of the user `owner` that is long enough.
    ///
    /// # Errors
    /// `InvalidInput` if it is not, or cannot be opened.
    pub fn open(spec: &RegionSpec, block_bytes: u64, owner: u32, access: Access) -> Result<Self> {
        let RegionSpec { path, rows, stride } = spec;
        let wrong = |what: String| Error::invalid_input(format!("region {}: {what}", path.display()));
        if !path.is_absolute() || !(1..=MOST_ROWS).contains(rows) || *stride < block_bytes {
            return Err(wrong(format!(
                "an absolute path, 1 to {MOST_ROWS} rows and a stride of at least {block_bytes} bytes are wanted; it has {rows} rows and a \
                 stride of {stride}"
            )));
        }
        let bytes = rows.checked_mul(*stride).ok_or_else(|| wrong("rows times stride is too large".into()))?;
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write);
        // No link to elsewhere, and no pipe that waits for its other end.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).map_err(|error| wrong(format!("it cannot be opened: {error}")))?;
        let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
        if !metadata.is_file() {
            return Err(wrong("it is not a file".into()));
        }
        if metadata.uid() != owner {
            return Err(wrong(format!("it belongs to user {}, not to {owner}", metadata.uid())));
        }
        if metadata.len() < bytes {
            return Err(wrong(format!("it has {} bytes, and {rows} rows of {stride} are {bytes}", metadata.len())));
        }
        Ok(Self { file, path: path.clone(), rows: *rows, stride: *stride, block_bytes })
    }

    /// Rows that there are.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The block in a row.
    ///
    /// # Errors
    /// `Unavailable` if the file became shorter; `InvalidInput` for a row beyond the last.
    pub fn read(&self, row: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes as usize];
        let read = self.file.read_exact_at(&mut bytes, self.offset(row)?);
        read.map_err(|error| self.failed("read", row, &error)).map(|()| bytes)
    }

    /// Writes a block, in two parts, of which what is beyond a block's length is left out.
    ///
    /// # Errors
    /// As [`read`](Self::read)'s.
    pub fn write(&self, row: u64, parts: [&[u8]; 2]) -> Result<()> {
        let mut at = self.offset(row)?;
        let end = at + self.block_bytes;
        let written = self.file.metadata().and_then(|metadata| {
            // Writing beyond its end would make it longer again.
            if metadata.len() < end {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            for part in parts {
                let part = &part[..part.len().min((end - at) as usize)];
                self.file.write_all_at(part, at)?;
                at += part.len() as u64;
            }
            Ok(())
        });
        written.map_err(|error| self.failed("write", row, &error))
    }

    fn offset(&self, row: u64) -> Result<u64> {
        if row < self.rows {
            return Ok(row * self.stride);
        }
        Err(Error::invalid_input(format!("row {row} of region {}, which has {}", self.path.display(), self.rows)))
    }

    fn failed(&self, doing: &str, row: u64, error: &std::io::Error) -> Error {
        let message = format!("{doing} row {row} of region {}: {error}", self.path.display());
        Error::new(ErrorKind::Unavailable, message)
    }
}
