//! Documents as they are stored, and when one counts as changed.

use ragstone_documents::{Document, digest, element, metadata_json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chunk::Budget;
use super::{Metadata, Passage};

/// A hash of everything that makes the document's rows what they are. Equal versions need no work.
///
/// The length of passages is part of it, so that a corpus that is ingested again with another length is cut again.
pub fn version(document: &Document, length: Budget) -> String {
    let source = document.source.as_deref().unwrap_or_default();
    let metadata = metadata_json(&document.metadata);
    let (tokens, overlap) = ((length.tokens as u64).to_le_bytes(), (length.overlap as u64).to_le_bytes());
    let elements = element::version(&document.elements);
    let is_with_source = [u8::from(document.source.is_some())];
    let mut parts = vec![
        document.title.as_bytes(),
        document.text.as_bytes(),
        &is_with_source,
        source.as_bytes(),
        metadata.as_bytes(),
        &tokens,
    ];
    // Documents without these are what they were before there were any.
    parts.extend((length.overlap > 0).then_some(&overlap[..]));
    parts.extend((!document.elements.is_empty()).then_some(&elements[..]));
    let pages: Vec<u8> = document.pages.iter().flat_map(|at| (*at as u64).to_le_bytes()).collect();
    parts.extend((!pages.is_empty()).then_some(&b"pages v1"[..]));
    parts.extend((!pages.is_empty()).then_some(&pages[..]));
    digest("ragstone document version v1", &parts)
}

/// A stored document, without its text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DocumentInfo {
    pub id: String,
    pub title: String,
    pub source: Option<String>,
    pub passages: usize,
    pub metadata: Metadata,
}

/// A stored document with its passages in order.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDocument {
    pub info: DocumentInfo,
    pub passages: Vec<Passage>,
}

/// The id of a passage with this content.
pub(super) fn passage_id(title: &str, text: &str) -> String {
    digest("ragstone passage v1", &[title.as_bytes(), text.as_bytes()])
}

#[cfg(test)]
mod tests {
    use ragstone_documents::{Element, ElementKind};

    use super::*;

    fn document() -> Document {
        Document { id: Some("a".into()), source: Some("s".into()), text: "t".into(), ..Document::default() }
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(passage_id("ab", "c"), passage_id("a", "bc"));
        assert_ne!(Document::content_id("ab", "c"), passage_id("ab", "c"));
    }

    #[test]
    fn every_field_makes_a_version() {
        let base = document();
        let mut changed = vec![base.clone(); 6];
        changed[5].pages.push(0);
        changed[0].title = "x".into();
        changed[1].source = None;
        changed[2].metadata.insert("k".into(), 1.into());
        changed[3].text = "u".into();
        changed[4].elements.push(Element { at: 0, kind: ElementKind::Code });
        let length = |tokens, overlap| Budget { tokens, overlap };
        for other in &changed {
            assert_ne!(version(&base, length(254, 0)), version(other, length(254, 0)));
        }
        assert_ne!(version(&base, length(254, 0)), version(&base, length(128, 0)));
        assert_ne!(version(&base, length(254, 0)), version(&base, length(254, 8)));
        assert_eq!(version(&base, length(254, 0)), version(&base.clone(), length(254, 0)));
    }

    #[test]
    fn versions_of_stored_documents_stay() {
        // Another one here makes every corpus embed all its documents again.
        let version = super::version(&document(), Budget { tokens: 254, overlap: 0 });
        assert_eq!(version, "c2d0cf2f224651ca23c3a083ea4eeb57");
    }
}
