//! A file's bytes as documents. Pure; runs in the process of its own that [`super::child`] is, except for plain text and
//! in tests.

use crate::{Document, Element, ElementKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::body::Body;
use super::encoding::{self, Decoded};
use super::metadata::FileMetadata;
use super::open::MAX_BYTES;
use super::{
    Format, RecordFields, columnar, delimited, docx, epub, html, invisible, json, mail, markup, mdx, notebook,
    open_text, pdf, pptx, rtf, sheet, subtitles, xml_text,
};

/// Title and source stand beside each of a document's passages: long ones would be kept as often.
const MAX_TITLE_BYTES: usize = 1000;
const MAX_SOURCE_BYTES: usize = 4000;
/// Of a title that a whole file has: its name and folders come before that.
const MAX_HEADING_BYTES: usize = 700;
/// Notes on what a document leaves out, and the bytes of one.
const MAX_LEFT_OUT: usize = 8;
const MAX_NOTE_BYTES: usize = 200;

/// What to do about a document of Word as it was before 2007.
const OLD_WORD: &str = "the form that Word wrote before 2007; save it as .docx";

/// Of formats that are bytes, where text was expected.
const NO_TEXT: &str = "it is no text";

/// How a file is to be parsed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Asked {
    pub format: Format,
    #[serde(default, skip_serializing_if = "RecordFields::is_empty")]
    pub fields: RecordFields,
}

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
    /// Where its headings, tables and code are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<Element>,
    /// Where its pages begin, as [`Document::pages`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<usize>,
    /// What of the file is not in the text, and why, as [`Document::left_out`]: at most [`MAX_LEFT_OUT`] notes of a few words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// As [`Document::share`].
    #[serde(skip)]
    pub share: f32,
}

impl Parsed {
    /// One that is a whole file. A heading too long for a title is text like any other.
    pub(super) fn of(title: Option<String>, body: Body, metadata: FileMetadata) -> Self {
        let (mut text, mut elements) = body.finish();
        let title = match title {
            Some(title) if title.len() > MAX_HEADING_BYTES => {
                text = format!("{title}\n\n{text}");
                elements.iter_mut().for_each(|element| element.at += title.len() + 2);
                None
            }
            title => title,
        };
        Self { title, text, elements, metadata: metadata.into_json(), ..Self::default() }
    }
}

/// Takes one document after another; an error ends the file.
pub type Each<'a> = &'a mut dyn FnMut(Parsed) -> Result<(), String>;

/// Hands the documents of a file to `each`. What it returns is wrong with some of its records; the good ones were handed out.
///
/// # Errors
/// Why it is not of that format (with the line or byte, where there is one) and what to do, or what `each` said.
pub fn parse(asked: &Asked, bytes: Vec<u8>, each: Each<'_>) -> Result<Option<String>, String> {
    let Asked { format, fields } = asked;
    let format = *format;
    // Code stays as it is to the letter.
    let mut each = |parsed| each(if format == Format::Code { parsed } else { invisible::without(parsed) });
    let each: Each<'_> = &mut each;
    let mut bounded = |parsed: Parsed| {
        check(&parsed)?;
        each(parsed)?;
        Ok(None)
    };
    match format {
        Format::Pdf => bounded(pdf::read(&bytes)?),
        Format::Docx => bounded(docx::read(&bytes)?),
        Format::OldWord if bytes.starts_with(b"PK") => bounded(docx::read(&bytes)?),
        Format::OldWord if !rtf::is_rtf(&bytes) => Err(OLD_WORD.into()),
        Format::Rtf | Format::OldWord => bounded(rtf::read(&bytes)?),
        Format::OpenText => bounded(open_text::read(&bytes)?),
        Format::Pptx => bounded(pptx::read(&bytes)?),
        Format::Spreadsheet => bounded(sheet::read(&bytes)?),
        Format::Epub => bounded(epub::read(&bytes)?),
        Format::Mail => mail::file(&bytes, each),
        Format::Mailbox => mail::mailbox(&bytes, each),
        Format::Parquet => columnar::parquet(bytes, fields, each),
        Format::Arrow => columnar::arrow(bytes, fields, each),
        _ => {
            let Decoded { text, encoding } = encoding::decode(bytes)?;
            let told = |mut parsed: Parsed| {
                if let Some(encoding) = encoding {
                    parsed.metadata.entry("encoding").or_insert_with(|| encoding.into());
                }
                bounded(parsed)
            };
            match format {
                Format::JsonLines => json::lines(&text, fields, each),
                Format::JsonArray if json::has_several(&text) => json::several(&text, fields, each),
                Format::Delimited if !fields.text.is_empty() => delimited::records(&text, fields, each),
                _ => textual(format, text).and_then(told),
            }
        }
    }
}

/// A text that is one document.
fn textual(format: Format, text: String) -> Result<Parsed, String> {
    match format {
        Format::Markdown => Ok(markup::document(&text)),
        Format::Html => html::document(&text),
        Format::JsonArray => Ok(json::object(text)),
        Format::Delimited => delimited::read(&text),
        Format::Mdx => {
            let read = markup::markdown(&mdx::plain(&text));
            Ok(Parsed::of(read.title, read.body, read.metadata))
        }
        Format::Notebook => notebook::read(&text),
        Format::Subtitles => Ok(subtitles::read(&text)),
        Format::Xml => xml_text::read(&text),
        Format::Unnamed if !text.starts_with("#!") => Ok(Parsed { text, ..Parsed::default() }),
        Format::Code | Format::Unnamed => {
            let elements = vec![Element { at: 0, kind: ElementKind::Code }];
            Ok(Parsed { text, elements, ..Parsed::default() })
        }
        Format::Text | Format::JsonLines => Ok(Parsed { text, ..Parsed::default() }),
        // Not decoded; named all the same, so that a new format is not read as plain text because nobody thought of it.
        Format::Parquet | Format::Arrow | Format::Pdf | Format::Docx | Format::OldWord | Format::Pptx => {
            Err(NO_TEXT.into())
        }
        Format::Spreadsheet | Format::OpenText | Format::Rtf | Format::Epub | Format::Mail | Format::Mailbox => {
            Err(NO_TEXT.into())
        }
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
    if parsed.left_out.len() > MAX_LEFT_OUT || parsed.left_out.iter().any(|note| note.len() > MAX_NOTE_BYTES) {
        return Err("its reader said too much of what it left out; convert it to text first".into());
    }
    if !parsed.pages.is_sorted() || parsed.pages.iter().any(|at| !parsed.text.is_char_boundary(*at)) {
        return Err("its pages do not lie in its text; convert it to text first".into());
    }
    let named = Document { id: parsed.id.clone(), ..Document::default() };
    named.identity().map(drop).map_err(|error| error.to_string())
}
