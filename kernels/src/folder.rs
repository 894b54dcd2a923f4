//! Reading files of a model folder. They come from elsewhere: none is believed to be as small as it should be, or a file at all.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Configurations: a few kilobytes each, a megabyte where a tokenizer lists its added tokens.
pub(crate) const CONFIG_BYTES: u64 = 16 << 20;
/// Names of the tensors of a sharded checkpoint, or a tokenizer: the greatest that are published have some 35 MB.
pub(crate) const TABLE_BYTES: u64 = 256 << 20;

/// A file of at most `most_bytes`; never more is read or held.
pub(crate) fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(io::Error::other(format!("it has more than {} MiB, as no such file should", most_bytes >> 20)));
    }
    Ok(bytes)
}

/// As [`read`], for UTF-8.
pub(crate) fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    String::from_utf8(read(path, most_bytes)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_no_file_is_refused_without_being_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, [b'x'; 11]).unwrap();
        assert_eq!(read(&path, 11).unwrap().len(), 11);
        assert!(read(&path, 10).unwrap_err().to_string().contains("more than"));
        // Terabytes that take no room; not every file system has files that long.
        File::options().write(true).open(&path).unwrap().set_len(1 << 43).unwrap_or_default();
        assert!(read_text(&path, 10).is_err());
        assert!(read(dir.path(), 10).unwrap_err().to_string().contains("no regular file"));
        #[cfg(target_os = "linux")]
        assert!(read(Path::new("/dev/zero"), 10).unwrap_err().to_string().contains("no regular file"));
        assert_eq!(read(&dir.path().join("nothing"), 10).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
