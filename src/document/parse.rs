//! A file's bytes as documents. Pure; runs in the process of its own that [`super::child`] is, except for plain text and
//! in tests.

use ragstone_storage::corpus::Document;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::open::MAX_BYTES;
use super::{Format, json, markup, pdf};

/// Title and source stand beside each of a document's passages: long ones would be kept as often.
const MAX_TITLE_BYTES: usize = 1000;
const MAX_SOURCE_BYTES: usize = 4000;

/// A document as its file has it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parsed {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its place in the file, such as `L12`; `None` where the whole file is one document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Takes one document after another; an error ends the file.
pub type Each<'a> = &'a mut dyn FnMut(Parsed) -> Result<(), String>;

/// Hands the documents of a file to `each`. What it returns is wrong with some of its records; the good ones were handed out.
///
/// # Errors
/// Why it is not of that format (with the line or byte, where there is one) and what to do, or what `each` said.
pub fn parse(format: Format, bytes: Vec<u8>, each: Each<'_>) -> Result<Option<String>, String> {
    let mut bounded = |parsed: Parsed| {
        check(&parsed)?;
        each(parsed)?;
        Ok(None)
    };
    if format == Format::Pdf {
        return bounded(Parsed { text: pdf::text(&bytes)?, ..Parsed::default() });
    }
    let text = text(bytes)?;
    match format {
        Format::Text | Format::Pdf => bounded(Parsed { text, ..Parsed::default() }),
        Format::Markdown => bounded(titled(markup::markdown(&text))),
        Format::Html => bounded(titled(markup::html(&text)?)),
        Format::JsonLines => json::lines(&text, each),
        Format::JsonArray => json::array(&text, each),
    }
}

/// What would stop everybody else's documents, or fill the disk.
pub(super) fn check(parsed: &Parsed) -> Result<(), String> {
    let too_long = |field: &str, text: &str, most: usize| match text.len() {
        bytes if bytes > most => Err(format!("`{field}` has {bytes} bytes, and may have {most}; shorten it")),
        _ => Ok(()),
    };
    too_long("title", parsed.title.as_deref().unwrap_or_default(), MAX_TITLE_BYTES)?;
    too_long("source", parsed.source.as_deref().unwrap_or_default(), MAX_SOURCE_BYTES)?;
    if parsed.text.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {} MiB of text, which one file may have; split it", MAX_BYTES >> 20));
    }
    let named = Document { id: parsed.id.clone(), ..Document::default() };
    named.identity().map(drop).map_err(|error| error.to_string())
}

/// A heading too long for a title is text like any other.
fn titled((title, text): (Option<String>, String)) -> Parsed {
    match title {
        Some(title) if title.len() > MAX_TITLE_BYTES => {
            Parsed { text: format!("{title}\n\n{text}"), ..Parsed::default() }
        }
        title => Parsed { title, text, ..Parsed::default() },
    }
}

/// UTF-8 without its byte order mark.
fn text(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("not UTF-8 but UTF-16; convert it (for example with `iconv -f utf-16 -t utf-8`)".into());
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(format!("not text: byte {at} is zero; if it is UTF-16, convert it (`iconv -f utf-16 -t utf-8`)"));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("not valid UTF-8 at byte {at}; convert it (for example with `iconv -t utf-8`)")
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}
