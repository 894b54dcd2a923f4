//! Documents: what a caller gives, who it is, and when it counts as changed.

use serde::{Deserialize, Serialize};

use super::Passage;
use crate::{Error, ErrorKind, Result};

/// Longer ids are refused: an id is a name, and it stands in every row of the document.
const MAX_ID_BYTES: usize = 1024;

/// Of a document, as JSON: it stands in every row, too.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// A document as a caller gives it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// What else is known of it, at most 64 KiB of JSON. A [`Filter`](super::Filter) asks about its entries that are texts, numbers, true or
    /// false, or lists of these.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

impl Document {
    /// The id that the corpus files this document under: 32 hex digits where none was given.
    ///
    /// # Errors
    /// `InvalidInput` for a given id that is empty, longer than 1 KiB, or has control characters.
    pub fn identity(&self) -> Result<String> {
        match (&self.id, &self.source) {
            (Some(id), _) => {
                let fault = if id.is_empty() {
                    "is empty"
                } else if id.len() > MAX_ID_BYTES {
                    "is longer than 1024 bytes"
                } else if id.chars().any(char::is_control) {
                    "has control characters"
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
    /// As [`identity`](Self::identity)'s, and `InvalidInput` for more than 64 KiB of metadata.
    pub(super) fn check(&self) -> Result<()> {
        let id = self.identity()?;
        let bytes = metadata_json(&self.metadata).len();
        if bytes > MAX_METADATA_BYTES {
            let message = format!(
                "the metadata of document `{id}` comes to {bytes} bytes of JSON, and may have {MAX_METADATA_BYTES}: leave some out"
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok(())
    }

    /// The id of a document that is known by nothing but its content.
    pub fn content_id(title: &str, text: &str) -> String {
        digest("ragstone document content v1", &[title.as_bytes(), text.as_bytes()])
    }

    /// A hash of everything that makes the document's rows what they are. Equal versions need no work.
    ///
    /// The length of passages is part of it, so that a corpus that is ingested again with another length is cut again.
    pub(super) fn version(&self, chunk_tokens: usize) -> String {
        let source = self.source.as_deref().unwrap_or_default();
        let metadata = metadata_json(&self.metadata);
        digest(
            "ragstone document version v1",
            &[
                self.title.as_bytes(),
                self.text.as_bytes(),
                &[u8::from(self.source.is_some())],
                source.as_bytes(),
                metadata.as_bytes(),
                &(chunk_tokens as u64).to_le_bytes(),
            ],
        )
    }
}

/// A stored document, without its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DocumentInfo {
    pub id: String,
    pub title: String,
    pub source: Option<String>,
    pub passages: usize,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// A stored document with its passages in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredDocument {
    #[serde(flatten)]
    pub info: DocumentInfo,
    pub passages: Vec<Passage>,
}

/// The id of a passage with this content.
pub(super) fn passage_id(title: &str, text: &str) -> String {
    digest("ragstone passage v1", &[title.as_bytes(), text.as_bytes()])
}

/// Metadata as it is stored: an object in JSON.
pub(super) fn metadata_json(metadata: &serde_json::Map<String, serde_json::Value>) -> String {
    serde_json::Value::Object(metadata.clone()).to_string()
}

/// 128 bits of BLAKE3 as hex. Parts carry their lengths, so that no two lists of parts read the same.
fn digest(domain: &str, parts: &[&[u8]]) -> String {
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
        for bad in ["", "a\nb", &"x".repeat(1025)] {
            let error = document(Some(bad), None, "t").identity().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert!(document(Some("it's; DROP TABLE \"x\""), None, "t").identity().is_ok());
    }

    #[test]
    fn metadata_is_bounded() {
        let mut document = document(Some("a"), None, "t");
        document.metadata.insert("k".into(), "x".repeat(60 << 10).into());
        document.check().unwrap();
        document.metadata.insert("l".into(), "x".repeat(5 << 10).into());
        let error = document.check().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("`a`"), "{error}");
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(passage_id("ab", "c"), passage_id("a", "bc"));
        assert_ne!(Document::content_id("ab", "c"), passage_id("ab", "c"));
    }

    #[test]
    fn every_field_makes_a_version() {
        let base = document(Some("a"), Some("s"), "t");
        let mut changed = vec![base.clone(); 4];
        changed[0].title = "x".into();
        changed[1].source = None;
        changed[2].metadata.insert("k".into(), 1.into());
        changed[3].text = "u".into();
        for other in &changed {
            assert_ne!(base.version(254), other.version(254));
        }
        assert_ne!(base.version(254), base.version(128));
        assert_eq!(base.version(254), base.clone().version(254));
    }
}
