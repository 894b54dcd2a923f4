//! Reads files as documents: text, Markdown, HTML, JSON lines and JSON arrays, PDF.
//!
//! Blocking. A file that cannot be read is one clear error and costs nothing else.

mod json;
mod markup;
mod pdf;

use std::path::{Path, PathBuf};

use ragstone_storage::corpus::Document;

use crate::error::{Error, Result};

/// Larger files are refused: a text of this size is a data set, and better ingested in pieces.
const MAX_BYTES: u64 = 64 << 20;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Markdown,
    Html,
    JsonLines,
    JsonArray,
    Pdf,
}

const SUPPORTED: &str = ".txt .md .markdown .html .htm .jsonl .ndjson .json .pdf";

impl Format {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "txt" | "text" => Self::Text,
            "md" | "markdown" => Self::Markdown,
            "html" | "htm" => Self::Html,
            "jsonl" | "ndjson" => Self::JsonLines,
            "json" => Self::JsonArray,
            "pdf" => Self::Pdf,
            _ => return None,
        })
    }
}

/// What a list of paths comes to.
#[derive(Debug, Default)]
pub struct Found {
    /// Files to read, in order.
    pub files: Vec<PathBuf>,
    /// Paths that will not be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Walks folders in sorted order, hidden entries left out. Links to folders inside a folder are not followed, so that
/// a loop cannot hang it.
pub fn find_files(paths: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for path in paths {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => walk(path, &mut found),
            Ok(metadata) => found.add(path.clone(), &metadata),
            Err(error) => found.unreadable.push((path.clone(), error.to_string())),
        }
    }
    found
}

impl Found {
    fn add(&mut self, path: PathBuf, metadata: &std::fs::Metadata) {
        match Format::of(&path) {
            // Reading a pipe or a device could wait for ever.
            Some(_) if !metadata.is_file() => self.unreadable.push((path, "not a regular file".into())),
            Some(_) => self.files.push(path),
            None => self.unreadable.push((path, format!("not a format that ragstone reads ({SUPPORTED})"))),
        }
    }
}

fn walk(folder: &Path, found: &mut Found) {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(error) => return found.unreadable.push((folder.to_owned(), error.to_string())),
    };
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&path, found),
            Ok(kind) if kind.is_symlink() && path.is_dir() => {
                found.unreadable.push((path, "a link to a folder; name the folder itself to read it".into()));
            }
            Ok(_) => match std::fs::metadata(&path) {
                Ok(metadata) => found.add(path, &metadata),
                Err(error) => found.unreadable.push((path, error.to_string())),
            },
            Err(error) => found.unreadable.push((path, error.to_string())),
        }
    }
}

/// Reads one file.
///
/// # Errors
/// One that names the path (and the line or byte, where there is one) and says what to do.
pub fn read(path: &Path) -> Result<Vec<Document>> {
    let Some(format) = Format::of(path) else {
        return Err(invalid(path, &format!("not a format that ragstone reads ({SUPPORTED})")));
    };
    let bytes = read_bytes(path)?;
    if format == Format::Pdf {
        return Ok(vec![document(path, None, pdf::text(&bytes).map_err(|why| invalid(path, &why))?)]);
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        invalid(path, &format!("not valid UTF-8 at byte {at}; convert it (for example with `iconv -t utf-8`)"))
    })?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    match format {
        Format::Text | Format::Pdf => Ok(vec![document(path, None, text)]),
        Format::Markdown => {
            let (title, text) = markup::markdown(&text);
            Ok(vec![document(path, title, text)])
        }
        Format::Html => {
            let (title, text) = markup::html(&text).map_err(|why| invalid(path, &why))?;
            Ok(vec![document(path, title, text)])
        }
        Format::JsonLines => json::lines(path, &text),
        Format::JsonArray => json::array(path, &text),
    }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::io("read", path, &error))?;
    if !metadata.is_file() {
        return Err(invalid(path, "not a regular file"));
    }
    let size = metadata.len();
    if size > MAX_BYTES {
        let why =
            format!("{} MiB is more than the {} MiB that one file may have; split it", size >> 20, MAX_BYTES >> 20);
        return Err(invalid(path, &why));
    }
    std::fs::read(path).map_err(|error| Error::io("read", path, &error))
}

/// A whole file as one document, known by its path. Without a title of its own it takes the file's name.
fn document(path: &Path, title: Option<String>, text: String) -> Document {
    let name = || path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let title = title.filter(|title| !title.trim().is_empty()).or_else(name).unwrap_or_default();
    Document { title, text, source: Some(path.display().to_string()), ..Document::default() }
}

fn invalid(path: &Path, why: &str) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
