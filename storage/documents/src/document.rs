//! Documents: what a caller gives, who it is, and when it counts as changed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::element::Element;
use ragstone_env::{Error, ErrorKind, Result};

/// Longer ids are refused: an id is a name, and it stands in every row of the document.
const MAX_ID_BYTES: usize = 1024;

/// A title stands in every row, and is embedded and put into prompts with every passage.
pub const MAX_TITLE_BYTES: usize = 1 << 10;
/// Of where a document came from: the longest path, and a place in it.
const MAX_SOURCE_BYTES: usize = 8 << 10;
/// Of a document, as JSON: it stands in every row, too.
const MAX_METADATA_BYTES: usize = 64 << 10;
/// Title, source and metadata of this many bytes may stand beside any text: no more than the vectors of its passages take.
const LEAST_BESIDE: usize = 4 << 10;
/// What these come to in all passages together, at the most: so many bytes, and so many for each byte of the text.
const BESIDE_BYTES: usize = 4 << 20;
const BESIDE_BYTES_PER_BYTE: usize = 16;
/// Bytes of a passage of a text that has many tokens for its length.
const DENSE_PASSAGE_BYTES: usize = 256;

/// How many bytes of title, source and metadata may stand beside a text of `bytes` bytes. They are stored with each of its passages, so that a
/// long text may have less of them: 64 KiB up to 16 KiB of text, 8 KiB up to 256 KiB, and always 4 KiB.
pub fn most_beside(bytes: usize) -> usize {
    let in_all = BESIDE_BYTES + bytes.saturating_mul(BESIDE_BYTES_PER_BYTE);
    let passages = bytes.div_ceil(DENSE_PASSAGE_BYTES).max(1);
    (in_all / passages).clamp(LEAST_BESIDE, MAX_METADATA_BYTES)
}

/// A document as a caller gives it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Who it is. Without one, the document is known by its source, or by its title and text where it has no source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default)]
    pub title: String,
    pub text: String,
    /// Where it came from: a path or an address, for citations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What else is known of it, at most 64 KiB of JSON, and less beside a long text, as it is stored with each of its passages. A filter asks about its entries that are texts, numbers, true or
    /// false, or lists of these.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Where its headings, tables and code are, if that is known: it is cut by them. Of files that ragstone read; no field of a request.
    #[serde(skip)]
    pub elements: Vec<Element>,
    /// Where its pages begin, if it has any: byte `pages[i]` of the text is the first of page `i + 1`. Of files that ragstone read.
    #[serde(skip)]
    pub pages: Vec<usize>,
    /// What of its file is not in the text, and why, for people: "2 hidden paragraphs". Of files that ragstone read.
    #[serde(skip)]
    pub left_out: Vec<String>,
    /// How much of its file came up to its end, from 0 to 1; 0 where that is not known. Of files that ragstone read.
    #[serde(skip)]
    pub share: f32,
}

impl Document {
    /// The id that the corpus files this document under: 32 hex digits where none was given.
    ///
    /// # Errors
    /// `InvalidInput` for a given id that is empty, `.` or `..`, longer than 1 KiB, or has control characters.
    pub fn identity(&self) -> Result<String> {
        match (&self.id, &self.source) {
            (Some(id), _) => {
                let fault = if id.is_empty() {
                    "is empty"
                } else if id.len() > MAX_ID_BYTES {
                    "is longer than 1024 bytes"
                } else if id.chars().any(char::is_control) {
                    "has control characters"
                } else if matches!(id.as_str(), "." | "..") {
                    "is one that no URL can carry"
                } else {
                    return Ok(id.clone());
                };
                let message = format!("a document's id {fault}: give it another one, or none to have it named");
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
            (None, Some(source)) => Ok(digest("ragstone document source v1", &[source.as_bytes()])),
            (None, None) => Ok(Self::content_id(&self.title, &self.text)),
        }
    }

    /// Checks what can be wrong with a document.
    ///
    /// # Errors
    /// As [`identity`](Self::identity)'s, and `InvalidInput` for too long a title or source, too much metadata, or too much of these beside a
    /// text of this length ([`most_beside`]).
    pub fn check(&self) -> Result<()> {
        let id = self.identity()?;
        let (title, source) = (self.title.len(), self.source.as_ref().map_or(0, String::len));
        let metadata = metadata_json(&self.metadata).len();
        let refused = |what: &str, bytes: usize, most: usize, then: &str| {
            let message = format!("{what} of document `{id}` comes to {bytes} bytes, and may have {most}: {then}");
            Err(Error::new(ErrorKind::InvalidInput, message))
        };
        if title > MAX_TITLE_BYTES {
            return refused("the title", title, MAX_TITLE_BYTES, "shorten it, or put it into the text");
        }
        if source > MAX_SOURCE_BYTES {
            return refused("the source", source, MAX_SOURCE_BYTES, "shorten it");
        }
        if metadata > MAX_METADATA_BYTES {
            return refused("the metadata", metadata, MAX_METADATA_BYTES, "leave some out");
        }
        let (beside, most) = (title + source + metadata, most_beside(self.text.len()));
        if beside > most {
            let then = "they are stored with each passage of its text: leave some out, or divide the text";
            return refused("title, source and metadata", beside, most, then);
        }
        Ok(())
    }

    /// The id of a document that is known by nothing but its content.
    pub fn content_id(title: &str, text: &str) -> String {
        digest("ragstone document content v1", &[title.as_bytes(), text.as_bytes()])
    }
}

/// Metadata as it is stored: an object in JSON.
pub fn metadata_json(metadata: &serde_json::Map<String, serde_json::Value>) -> String {
    // A map with text for keys is always JSON.
    serde_json::to_string(metadata).unwrap_or_default()
}

/// 128 bits of BLAKE3 as hex. Parts carry their lengths, so that no two lists of parts read the same.
pub fn digest(domain: &str, parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(domain);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: Option<&str>, source: Option<&str>, text: &str) -> Document {
        Document {
            id: id.map(str::to_owned),
            source: source.map(str::to_owned),
            text: text.to_owned(),
            ..Document::default()
        }
    }

    #[test]
    fn identity_is_the_id_then_the_source_then_the_content() {
        assert_eq!(document(Some("a"), Some("s"), "t").identity().unwrap(), "a");
        let by_source = document(None, Some("s"), "t").identity().unwrap();
        assert_eq!(by_source, document(None, Some("s"), "changed").identity().unwrap());
        assert_ne!(by_source, document(None, Some("s2"), "t").identity().unwrap());
        let by_content = document(None, None, "t").identity().unwrap();
        assert_eq!(by_content, Document::content_id("", "t"));
        assert_ne!(by_content, document(None, None, "u").identity().unwrap());
    }

    #[test]
    fn an_id_must_be_a_name() {
        for bad in ["", ".", "..", "a\nb", &"x".repeat(1025)] {
            let error = document(Some(bad), None, "t").identity().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert!(document(Some("it's; DROP TABLE \"x\""), None, "t").identity().is_ok());
    }

    #[test]
    fn what_stands_beside_each_passage_is_bounded() {
        let refused = |document: &Document, words: &str| {
            let error = document.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("`a`") && error.to_string().contains(words), "{error}");
        };
        let mut with = document(Some("a"), None, "t");
        with.metadata.insert("k".into(), "x".repeat(60 << 10).into());
        with.check().unwrap();
        refused(&Document { text: "x".repeat(1 << 20), ..with.clone() }, "stored with each passage");
        with.metadata.insert("l".into(), "x".repeat(5 << 10).into());
        refused(&with, "the metadata");
        let titled = |bytes| Document { title: "x".repeat(bytes), ..document(Some("a"), Some("s"), "t") };
        titled(MAX_TITLE_BYTES).check().unwrap();
        refused(&titled(MAX_TITLE_BYTES + 1), "the title");
        refused(&document(Some("a"), Some(&"x".repeat(MAX_SOURCE_BYTES + 1)), "t"), "the source");
    }

    #[test]
    fn less_stands_beside_a_longer_text_and_all_of_it_grows_with_the_text() {
        assert!(most_beside(0) >= MAX_METADATA_BYTES && most_beside(16 << 10) >= MAX_METADATA_BYTES);
        assert!(most_beside(256 << 10) >= 8 << 10 && most_beside(1 << 30) >= LEAST_BESIDE);
        for bytes in (0..30).map(|shift| 1 << shift) {
            let passages = bytes / DENSE_PASSAGE_BYTES + 1;
            assert!(most_beside(bytes) * passages <= 2 * BESIDE_BYTES + 2 * BESIDE_BYTES_PER_BYTE * bytes, "{bytes}");
        }
    }
}
