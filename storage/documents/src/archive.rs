//! Files that are archives of others (zip): Office documents, books.

use std::io::{Cursor, Read};

use zip::ZipArchive;
use zip::result::ZipError;

use super::encoding;

/// What the parts of one file may come to, unpacked.
const MAX_UNPACKED_BYTES: u64 = 256 << 20;
const MAX_PARTS: usize = 50_000;
/// What Office's files were before they were archives, and are when they are encrypted.
const COMPOUND: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";

/// An archive that is read part by part.
pub struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// What it may still come to.
    left: u64,
}

/// What an encrypted file of Office is, where it is one, and an old one else.
///
/// # Errors
/// Where it is encrypted.
pub fn compound(bytes: &[u8]) -> Result<bool, String> {
    if !bytes.starts_with(COMPOUND) {
        return Ok(false);
    }
    let name: Vec<u8> = "EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes).collect();
    if bytes.windows(name.len()).any(|window| window == name) { Err(encrypted()) } else { Ok(true) }
}

fn encrypted() -> String {
    "it is encrypted; save it without a password first".into()
}

impl<'a> Archive<'a> {
    /// Opens what should be a file of this kind, such as `DOCX`.
    ///
    /// # Errors
    /// Where it is none, is encrypted, or comes to more than a file may.
    pub fn open(bytes: &'a [u8], kind: &str) -> Result<Self, String> {
        if compound(bytes)? {
            return Err(format!("not {kind} but the form that Office wrote before 2007; save it as {kind}"));
        }
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| format!("not readable as {kind}: {error}"))?;
        if zip.len() > MAX_PARTS {
            return Err(format!("it has more than {MAX_PARTS} parts, which one file may have; split it"));
        }
        let unpacked = zip.decompressed_size().unwrap_or(0);
        if unpacked > u128::from(4 * MAX_UNPACKED_BYTES) {
            return Err(too_much());
        }
        Ok(Self { zip, left: MAX_UNPACKED_BYTES })
    }

    /// Whether there is such a part.
    pub fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(name).is_some()
    }

    /// Whether a folder of this name, with `/` at its end, has any part.
    pub fn has_under(&self, folder: &str) -> bool {
        self.zip.file_names().flatten().any(|name| name.starts_with(folder))
    }

    /// A part's bytes, if there is such a part.
    ///
    /// # Errors
    /// Where it is damaged or encrypted, or all that was read is more than one file may have.
    pub fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let damaged = |why: String| format!("its part `{name}` is damaged: {why}");
        let part = match self.zip.by_name(name) {
            Ok(part) => part,
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) | ZipError::InvalidPassword) => {
                return Err(encrypted());
            }
            Err(error) => return Err(damaged(error.to_string())),
        };
        let mut bytes = Vec::new();
        let read = part.take(self.left + 1).read_to_end(&mut bytes).map_err(|error| damaged(error.to_string()))?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(too_much)?;
        Ok(Some(bytes))
    }

    /// A part as text, if there is such a part.
    ///
    /// # Errors
    /// As [`read`](Self::read), and where it is no text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        encoding::decode(bytes).map(|decoded| Some(decoded.text)).map_err(|why| format!("its part `{name}`: {why}"))
    }
}

fn too_much() -> String {
    let most = MAX_UNPACKED_BYTES >> 20;
    format!("it unpacks to more than the {most} MiB that one file may have; split it, or convert it to text")
}

/// The part that a link leads to from the part `from`, such as `../media/a.png`; `None` where it leads out of the archive.
pub fn resolve(from: &str, link: &str) -> Option<String> {
    let link = link.split(['#', '?']).next().unwrap_or_default();
    let link = percent_encoding::percent_decode_str(link).decode_utf8().ok()?;
    if link.is_empty() || link.contains(':') {
        return None;
    }
    let folder = if link.starts_with('/') { "" } else { from.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// A file of these parts, for tests of the formats.
#[cfg(test)]
pub fn zipped(parts: &[(&str, &str)]) -> Vec<u8> {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in parts {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).expect("begun");
        zip.write_all(text.as_bytes()).expect("written");
    }
    zip.finish().expect("finished").into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_within() {
        assert_eq!(resolve("ppt/slides/s1.xml", "../notes/n%201.xml").as_deref(), Some("ppt/notes/n 1.xml"));
        assert_eq!(resolve("OEBPS/book.opf", "a.xhtml#x").as_deref(), Some("OEBPS/a.xhtml"));
        assert_eq!(resolve("a/b.xml", "/c.xml").as_deref(), Some("c.xml"));
        assert_eq!(resolve("a.xml", "../../etc/passwd"), None);
        assert_eq!(resolve("a.xml", "http://example.org/x"), None);
    }
}
