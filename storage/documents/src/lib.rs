//! Reads files as documents: text and source code, Markdown, HTML, JSON, CSV, Parquet, Arrow, XML, PDF, Word, RTF, PowerPoint, Excel, OpenDocument,
//! EPUB, e-mail, subtitles, notebooks.
//!
//! Blocking. A file that cannot be read is one clear error and costs nothing else: whatever has a parser is parsed by a
//! process of its own ([`child`]), with limits on its memory and time. Plain text has none.

mod address;
mod archive;
mod body;
#[cfg(unix)]
pub mod child;
mod columnar;
mod counting;
mod delimited;
mod document;
mod docx;
pub mod element;
mod encoding;
mod epub;
mod find;
mod format;
#[cfg(test)]
#[path = "../../../tests/fuzz/driver.rs"]
mod fuzz;
mod given;
mod header;
mod html;
mod invisible;
mod json;
mod known;
mod left_out;
#[cfg(unix)]
mod limits;
mod mail;
mod markup;
mod mdx;
mod metadata;
mod name;
mod notebook;
mod open;
mod open_text;
mod parse;
mod pdf;
mod pptx;
#[cfg(unix)]
mod process;
mod relations;
mod rtf;
mod sheet;
mod sniff;
mod subtitles;
mod title;
mod xml;
mod xml_text;

use std::io::Read;
use std::path::Path;

use bytes::Bytes;

use self::document::MAX_TITLE_BYTES;
pub use self::document::{Document, digest, metadata_json, most_beside};
pub use self::element::{Element, ElementKind};
pub use self::find::{FoundFile, find_files};
use self::format::Format;
pub use self::format::{SUPPORTED, ending_of};
pub use self::given::{check_given, timestamp, with_given};
pub use self::html::{Links, robots};
pub use self::invisible::visible;
pub use self::json::RecordFields;
use self::known::KnownIds;
pub use self::name::shown;
use self::open::Opened;
use self::parse::{Asked, Each, Parsed};
#[cfg(unix)]
pub use self::process::Process;
use ragstone_env::Error;

/// Of why a file was not read.
const MAX_REASON_CHARS: usize = 300;

/// Whether files of this name are read, by its ending.
pub fn is_read(name: &Path) -> bool {
    Format::of(name).is_some()
}

/// The most bytes that a file may have.
pub const MAX_FILE_BYTES: u64 = open::MAX_BYTES;

/// Why a file's documents did not come, or not all of them.
#[derive(Debug)]
pub enum Unread {
    /// It cannot be read, or some of its records cannot; what is wrong with it and what to do, without its name.
    Skipped(String),
    /// Whoever takes the documents wants no more.
    Stopped,
    /// Nothing about the file: none can be read now.
    Failed(Error),
}

/// Makes documents of formats that need a parser.
pub trait Parser {
    /// Hands the documents of a file to `each`.
    fn parse(&mut self, asked: &Asked, file: &mut Opened, each: Each<'_>) -> Result<(), Unread>;
}

/// Parses where it is called: tests of the formats, and systems without the means for a process with limits.
#[cfg(any(test, not(unix)))]
pub struct Here;

#[cfg(any(test, not(unix)))]
impl Parser for Here {
    fn parse(&mut self, asked: &Asked, file: &mut Opened, each: Each<'_>) -> Result<(), Unread> {
        parse_here(asked, file, each)
    }
}

/// Reads one file after another.
pub struct Reader<P> {
    parser: P,
    fields: RecordFields,
    known: KnownIds,
}

impl<P: Parser> Reader<P> {
    /// What needs a parser goes to `parser`.
    pub fn new(parser: P) -> Self {
        Self { parser, fields: RecordFields::default(), known: KnownIds::default() }
    }

    /// Reads records as `fields` says.
    #[must_use]
    pub fn with_fields(self, fields: RecordFields) -> Self {
        Self { fields, ..self }
    }

    /// Hands the documents of a file to `each`, until it wants no more.
    ///
    /// # Errors
    /// Why not all of them came. Of a file with bad records those came that are good; nothing of others that are at fault themselves. All came of
    /// a file whose records have ids of another one that was read before: one of the two is lost where documents are known by their ids.
    pub fn read(&mut self, found: &FoundFile, each: &mut dyn FnMut(Document) -> bool) -> Result<(), Unread> {
        let format = Format::of(&found.path).ok_or_else(|| unsupported(&found.path))?;
        let file = open::open(found).map_err(Unread::Skipped)?;
        // The folder is canonical; the file may have been found by a link to it.
        let within = found.within.as_deref().and_then(|folder| {
            let below = |path: &Path| path.strip_prefix(folder).map(Path::to_owned).ok();
            below(&found.path).or_else(|| below(&found.path.canonicalize().ok()?))
        });
        let within = within.as_deref();
        // The first moment of all is what copies have of which nobody told the time.
        let changed = file.changed().filter(|changed| *changed != std::time::UNIX_EPOCH).and_then(given::timestamp);
        self.take(format, Place { path: &found.path, within, changed, source: found.source.as_deref() }, file, each)
    }

    /// As [`read`](Self::read), of a file called `name` that came with a request, with the time when it was changed last, if that is known.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_bytes(
        &mut self,
        name: &Path,
        (bytes, changed): (Bytes, Option<String>),
        each: &mut dyn FnMut(Document) -> bool,
    ) -> Result<(), Unread> {
        let format = Format::of(name).ok_or_else(|| unsupported(name))?;
        self.take(format, Place { path: name, within: None, changed, source: None }, Opened::of(bytes), each)
    }

    fn take(
        &mut self,
        format: Format,
        place: Place<'_>,
        mut file: Opened,
        each: &mut dyn FnMut(Document) -> bool,
    ) -> Result<(), Unread> {
        let mut is_stopped = false;
        let known = &mut self.known;
        known.begin(shown(place.path));
        // Whoever names a field knows what its values are.
        let is_named = self.fields.id.is_some();
        let mut pass_on = |parsed| {
            let document = document(format, &place, parsed);
            if let Some(id) = document.id.as_deref().filter(|_| !is_named) {
                known.take(id);
            }
            is_stopped = !each(document);
            if is_stopped { Err(String::new()) } else { Ok(()) }
        };
        let asked = Asked { format, fields: self.fields.clone() };
        let read = if format.is_plain() {
            parse_here(&asked, &mut file, &mut pass_on)
        } else {
            self.parser.parse(&asked, &mut file, &mut pass_on)
        };
        if is_stopped {
            return Err(Unread::Stopped);
        }
        match (read, self.known.told()) {
            (Ok(()), Some(shared)) => Err(Unread::Skipped(name::clean(&shared, MAX_REASON_CHARS))),
            (Err(Unread::Skipped(why)), Some(shared)) => {
                Err(Unread::Skipped(name::clean(&format!("{why}; {shared}"), 2 * MAX_REASON_CHARS)))
            }
            (read, _) => read,
        }
    }
}

fn unsupported(path: &Path) -> Unread {
    let why = Format::refusal(path).map(str::to_owned);
    Unread::Skipped(why.unwrap_or_else(|| format!("not a format that ragstone reads ({SUPPORTED})")))
}

fn parse_here(asked: &Asked, file: &mut Opened, each: Each<'_>) -> Result<(), Unread> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| Unread::Skipped(open::failed(&error)))?;
    match parse::parse(asked, bytes, each) {
        Ok(None) => Ok(()),
        Ok(Some(why)) | Err(why) => Err(Unread::Skipped(name::clean(&why, MAX_REASON_CHARS))),
    }
}

/// Where a file is.
struct Place<'a> {
    path: &'a Path,
    /// From the folder on that is ingested.
    within: Option<&'a Path>,
    /// When it was changed last.
    changed: Option<String>,
    /// Where it was fetched from; else it is known by its path.
    source: Option<&'a str>,
}

/// A document of a file. One that is the whole file is called by its title and name ([`title::of_file`]), and known by its path; one of several
/// has its own title, and is known by its place, too.
fn document(format: Format, place: &Place<'_>, parsed: Parsed) -> Document {
    let parsed = if let Some(file) = place.source { foreign(parsed, file) } else { parsed };
    let Parsed { id, title, text, source, anchor, metadata, elements, pages, left_out, share } = parsed;
    let path = place.path;
    let is_part = anchor.is_some();
    let title = match (is_part, format) {
        // Rows of a file are the file's, whatever else is in it.
        (true, _) if anchor.as_deref() == Some(json::ROWS) => {
            title.unwrap_or_else(|| title::of_file(None, path, place.within))
        }
        (true, _) => title.unwrap_or_default(),
        // Its name says little, the way to it much.
        (false, Format::Code) => {
            let way = place.within.or_else(|| path.file_name().map(Path::new)).map(title::of_code).unwrap_or_default();
            title.filter(|title| !title.trim().is_empty()).unwrap_or(way)
        }
        (false, _) => title::of_file(title, path, place.within),
    };
    let mut metadata = metadata;
    if let Some(within) = place.within {
        // For filters; what a file says of itself goes first.
        let folder = within.parent().map(shown).unwrap_or_default();
        metadata.entry("path").or_insert_with(|| shown(within).into());
        metadata.entry("folder").or_insert_with(|| folder.into());
    }
    // What the system says, and not the file: filters compare it with dates.
    metadata.extend(place.changed.iter().map(|changed| ("changed".to_owned(), changed.as_str().into())));
    let name = path.file_name().map(|name| shown(Path::new(name)));
    metadata.extend(name.map(|name| ("file".to_owned(), name.into())));
    let source = source.unwrap_or_else(|| {
        let file = place.source.map_or_else(|| shown(path), str::to_owned);
        match &anchor {
            Some(anchor) => format!("{file}#{anchor}"),
            None => file,
        }
    });
    fitted(Document { id, title, text, source: Some(source), metadata, elements, pages, left_out, share })
}

/// A document of a file that was fetched. Its site may name any id and any source, also those of other documents of the collection: what it says
/// is kept as metadata, its source is the file, and its id can be that of no document of another file.
fn foreign(parsed: Parsed, file: &str) -> Parsed {
    let Parsed { id, source, mut metadata, .. } = parsed;
    let own = id.as_ref().map(|id| digest("ragstone fetched record v1", &[file.as_bytes(), id.as_bytes()]));
    for (key, said) in [("id", id), ("source", source)] {
        if let Some(said) = said {
            metadata.entry(key).or_insert_with(|| said.into());
        }
    }
    Parsed { id: own, source: None, metadata, ..parsed }
}

/// A document of a file, with no more beside its text than the corpus takes: a file is not refused for what it says of itself.
fn fitted(document: Document) -> Document {
    fitted_but_for(document, |_| false)
}

/// As [`fitted`], but for what is to be kept. Metadata goes first, then the end of the title. A source is never cut: it leads to the file.
fn fitted_but_for(mut document: Document, is_kept: impl Fn(&str) -> bool) -> Document {
    document.title = title::cut(document.title, MAX_TITLE_BYTES);
    let Document { title, text, source, metadata, .. } = &mut document;
    let source_bytes = source.as_ref().map_or(0, String::len);
    let beside = title.len() + source_bytes;
    let most = most_beside(text.len()).saturating_sub(beside);
    // The longest first, so that few go.
    while serde_json::to_string(metadata).map_or(0, |json| json.len()) > most {
        let others = metadata.iter().filter(|(key, _)| !is_kept(key));
        let longest = others.max_by_key(|(key, value)| key.len() + value.to_string().len());
        let Some(longest) = longest.map(|(key, _)| key.clone()) else { break };
        metadata.remove(&longest);
    }
    // Beside a long path there may be no room for all of a title, and there is none where the path alone is too long.
    let left = most_beside(text.len()).checked_sub(source_bytes + metadata_json(metadata).len());
    if let Some(left) = left.filter(|left| *left < title.len()) {
        *title = title::cut(std::mem::take(title), left);
    }
    document
}

/// The file of one of its several documents, by the source of that: `notes.jsonl#L2`.
pub fn file_of(source: &str) -> &str {
    source.rsplit_once('#').map_or(source, |(file, _)| file)
}

/// Whether a file of this name may have several documents, each with its place after a `#` in its source.
pub fn may_have_several(file: &Path) -> bool {
    let format = Format::of(file);
    let is_of_records = matches!(
        format,
        Some(Format::JsonLines | Format::JsonArray | Format::Delimited | Format::Parquet | Format::Arrow)
    );
    is_of_records || matches!(format, Some(Format::Mail | Format::Mailbox))
}

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
