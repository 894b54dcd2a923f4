//! PDF as plain text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Dictionary, Document, PlainTextOutput, decode_text_string, output_doc};

use super::metadata::FileMetadata;

/// What of a document's own information is kept, and by which name.
const FIELDS: [(&[u8], &str); 6] = [
    (b"Title", "title"),
    (b"Author", "author"),
    (b"Subject", "subject"),
    (b"Keywords", "keywords"),
    (b"CreationDate", "date"),
    (b"ModDate", "modified"),
];

/// The text of all pages, and what the file says of itself. The library panics on some damaged files, which costs that file only.
pub fn read(bytes: &[u8]) -> Result<(String, FileMetadata), String> {
    match catch_unwind(|| extract(bytes)) {
        Ok(Ok((text, _))) if text.trim().is_empty() => {
            Err("this PDF holds no text (scanned pages?); run it through OCR first".into())
        }
        Ok(read) => read,
        Err(_) => {
            Err("this PDF is damaged, or uses what the PDF library does not know; convert it to text first".into())
        }
    }
}

fn extract(bytes: &[u8]) -> Result<(String, FileMetadata), String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("not readable as PDF: {error}");
    let mut document = Document::load_mem(bytes).map_err(|error| unreadable(&error))?;
    if document.is_encrypted() {
        document.decrypt("").map_err(|_| "it is encrypted; save it without a password first".to_owned())?;
    }
    let mut text = String::new();
    output_doc(&document, &mut PlainTextOutput::new(&mut text)).map_err(|error| unreadable(&error))?;
    // Without it a document is a document still.
    let metadata = catch_unwind(AssertUnwindSafe(|| information(&document))).unwrap_or_default();
    Ok((text, metadata))
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
mod tests {
    use super::*;

    #[test]
    fn dates_are_iso_dates() {
        assert_eq!(date("D:20260303091500+01'00'").as_deref(), Some("2026-03-03T09:15:00+01:00"));
        assert_eq!(date("D:20260303091500Z00'00'").as_deref(), Some("2026-03-03T09:15:00Z"));
        assert_eq!(date("D:202603").as_deref(), Some("2026-03"));
        assert_eq!(date("D:2026030309").as_deref(), Some("2026-03-03T09"));
        assert_eq!(date("3 March"), None);
    }
}
