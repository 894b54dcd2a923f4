//! PDF: text by where it stands on its pages.

mod columns;
mod content;
mod fonts;
mod form;
mod glyphs;
mod heads;
mod inline;
mod join;
mod layout;
mod letters;
mod matrix;
mod operations;
mod rows;
mod tables;
mod units;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Dictionary, Document, OutputError, decode_text_string, output_doc_page};

use self::content::{Opened, Pages, TooMuch};
use self::glyphs::{Glyphs, Piece};
use super::metadata::FileMetadata;
use super::parse::Parsed;

/// What of a document's own information is kept, and by which name.
const FIELDS: [(&[u8], &str); 6] = [
    (b"Title", "title"),
    (b"Author", "author"),
    (b"Subject", "subject"),
    (b"Keywords", "keywords"),
    (b"CreationDate", "date"),
    (b"ModDate", "modified"),
];

/// Letters and words of a file: those of some two thousand pages.
const MAX_GLYPHS: usize = 6_000_000;
const MAX_PIECES: usize = 1_500_000;

/// The text of all pages, and what the file says of itself. The library panics on some damaged files, which costs that page only.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let damaged = "this PDF is damaged, or uses what the PDF library does not know; convert it to text first";
    match catch_unwind(|| extract(bytes)) {
        Ok(Ok((parsed, taken))) if parsed.text.trim().is_empty() => Err(match (taken.damaged, taken.unknown) {
            (0, 0) => "this PDF holds no text (scanned pages?); run it through OCR first".into(),
            (0, _) => "the fonts of this PDF do not say which letters they draw; run it through OCR first".into(),
            _ => damaged.into(),
        }),
        Ok(read) => read.map(|(parsed, _)| parsed),
        Err(_) => Err(damaged.into()),
    }
}

/// The document, and what came of its pages.
fn extract(bytes: &[u8]) -> Result<(Parsed, Taken), String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("not readable as PDF: {error}");
    let mut document = Document::load_mem(bytes).map_err(|error| unreadable(&error))?;
    if document.is_encrypted() {
        document.decrypt("").map_err(|_| "it is encrypted; save it without a password first".to_owned())?;
    }
    // Without it a document is a document still.
    let metadata = catch_unwind(AssertUnwindSafe(|| information(&document))).unwrap_or_default();
    let mut pages = Pages::of(document).ok_or_else(|| unreadable(&"it has no pages"))?;
    let filled = form::filled(&pages.document, &pages.ids);
    let mut taken = Taken::default();
    let all = (0..pages.ids.len()).map(|page| taken.page(&mut pages, page, &filled)).collect();
    let mut read = layout::read(all);
    let apart: Vec<&form::Filled> = filled.iter().filter(|filled| filled.place.is_none()).collect();
    if !apart.is_empty() {
        read.body.end_block();
        apart.iter().for_each(|filled| read.body.line(&format!("{}: {}", filled.name, filled.value)));
    }
    let mut parsed = Parsed::of(None, read.body, metadata);
    let end = parsed.text.len();
    parsed.pages = read.pages.into_iter().map(|at| at.min(end)).collect();
    parsed.left_out = taken.left_out(read.heads);
    Ok((parsed, taken))
}

/// What came of pages so far.
#[derive(Default)]
struct Taken {
    glyphs: usize,
    pieces: usize,
    damaged: usize,
    /// Pages with letters whose font does not say what they are.
    unknown: usize,
    drawn: usize,
    cut: usize,
}

impl Taken {
    /// The pieces of a page, as far as it can be read.
    fn page(&mut self, pages: &mut Pages, page: usize, filled: &[form::Filled]) -> Vec<Piece> {
        let Some(id) = pages.ids.get(page).copied() else { return Vec::new() };
        let (glyphs_left, pieces_left) = (MAX_GLYPHS - self.glyphs, MAX_PIECES.saturating_sub(self.pieces));
        let open = |pages: &mut Pages| catch_unwind(AssertUnwindSafe(|| pages.open(id)));
        let mut opened = match open(pages) {
            Ok(Ok(opened)) => opened,
            Ok(Err(TooMuch)) => {
                self.drawn += 1;
                return Vec::new();
            }
            Err(_) => {
                self.damaged += 1;
                return Vec::new();
            }
        };
        let mut shown = Shown::of(pages, &opened, glyphs_left, pieces_left);
        // A font that the library does not know costs no more than itself.
        if shown.end == End::Broken
            && catch_unwind(AssertUnwindSafe(|| pages.mend_fonts())).unwrap_or(false)
            && let Ok(Ok(again)) = open(pages)
        {
            opened = again;
            shown = Shown::of(pages, &opened, glyphs_left, pieces_left);
        }
        self.cut += usize::from(shown.end == End::Full);
        self.damaged += usize::from(shown.end == End::Broken || !opened.is_whole);
        self.unknown += usize::from(shown.unknown > 0);
        self.glyphs += glyphs_left - shown.glyphs_left;
        let mut pieces = shown.pieces;
        self.pieces += pieces.len();
        let angle = layout::main_angle(&pieces);
        form::annotate(&pages.document, id, angle, &mut pieces);
        form::print(filled, page, angle, &mut pieces);
        pieces
    }

    fn left_out(&self, heads: usize) -> Vec<String> {
        let pages = |count: usize| if count == 1 { "1 page".to_owned() } else { format!("{count} pages") };
        let notes = [
            (heads, format!("heads and feet of {}", pages(heads))),
            (self.damaged, format!("{} that could not be read to the end", pages(self.damaged))),
            (self.unknown, format!("letters whose font does not say what they are, on {}", pages(self.unknown))),
            (self.drawn, format!("{} that draw too much", pages(self.drawn))),
            (self.cut, format!("what comes after {MAX_GLYPHS} letters, on {}", pages(self.cut))),
        ];
        notes.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note).collect()
    }
}

/// How the reading of a page ended.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Whole,
    /// There were too many letters.
    Full,
    Broken,
}

/// What a page shows.
struct Shown {
    pieces: Vec<Piece>,
    glyphs_left: usize,
    unknown: usize,
    end: End,
}

impl Shown {
    /// Of the page that is open.
    fn of(pages: &Pages, opened: &Opened, glyphs_left: usize, pieces_left: usize) -> Self {
        let mut glyphs = Glyphs::new(&opened.shows, glyphs_left, pieces_left);
        let end = match catch_unwind(AssertUnwindSafe(|| output_doc_page(&pages.document, &mut glyphs, 1))) {
            Ok(Ok(())) => End::Whole,
            Ok(Err(OutputError::FormatError(_))) if glyphs.is_full() => End::Full,
            _ => End::Broken,
        };
        Self { glyphs_left: glyphs.glyphs_left(), unknown: glyphs.unknown, pieces: glyphs.pieces, end }
    }
}

fn information(document: &Document) -> FileMetadata {
    let mut metadata = FileMetadata::default();
    let information = document.trailer.get(b"Info").and_then(|object| document.dereference(object));
    let Some(fields) = information.ok().and_then(|(_, object)| object.as_dict().ok()) else { return metadata };
    for (field, key) in FIELDS {
        if let Some(value) = text_of(document, fields, field) {
            let is_date = matches!(key, "date" | "modified");
            metadata.add(key, &if is_date { date(&value).unwrap_or(value) } else { value });
        }
    }
    metadata
}

fn text_of(document: &Document, fields: &Dictionary, field: &[u8]) -> Option<String> {
    let (_, object) = document.dereference(fields.get(field).ok()?).ok()?;
    decode_text_string(object).ok()
}

/// `D:20260303091500+01'00'` as `2026-03-03T09:15:00+01:00`, as far as it goes.
fn date(value: &str) -> Option<String> {
    let value = value.trim().trim_start_matches("D:");
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let part = |range: std::ops::Range<usize>| value.get(range.clone()).filter(|_| range.end <= digits);
    let mut date = part(0..4)?.to_owned();
    for (range, before) in [(4..6, '-'), (6..8, '-'), (8..10, 'T'), (10..12, ':'), (12..14, ':')] {
        let Some(digits) = part(range) else { return Some(date) };
        date.push(before);
        date.push_str(digits);
    }
    let zone: String = value[14..].chars().filter(|c| !matches!(c, '\'')).collect();
    match zone.as_bytes() {
        [b'+' | b'-', rest @ ..] if rest.len() == 4 && rest.iter().all(u8::is_ascii_digit) => {
            date.push_str(&format!("{}:{}", &zone[..3], &zone[3..]));
        }
        [b'Z', ..] => date.push('Z'),
        _ => {}
    }
    Some(date)
}

#[cfg(test)]
mod tests;
