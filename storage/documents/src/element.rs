//! What a document's text consists of: headings, paragraphs, tables, code. Text without elements is paragraphs alone.

use serde::{Deserialize, Serialize};

/// A stretch of a document's text, from `at` to where the next one begins. What stands before the first is [`ElementKind::Text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Element {
    /// In bytes from the text's start, at a character's border.
    pub at: usize,
    pub kind: ElementKind,
}

/// How an element may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementKind {
    /// Paragraphs, with blank lines between them.
    Text,
    /// The heading of a section: 1 is the highest level.
    Heading(u8),
    /// A row a line. The first `header_lines` are said again where a passage begins within the table.
    Table { header_lines: u8 },
    /// Lines whose indentation counts.
    Code,
}

/// Whether `elements` lie in order, at borders of characters of `text`.
pub fn are_valid(elements: &[Element], text: &str) -> bool {
    elements.is_sorted_by_key(|element| element.at) && elements.iter().all(|element| text.is_char_boundary(element.at))
}

/// What tells lists of elements apart, and the way passages are cut by them from later ways.
pub fn version(elements: &[Element]) -> Vec<u8> {
    let mut bytes = b"elements v1".to_vec();
    for Element { at, kind } in elements {
        bytes.extend((*at as u64).to_le_bytes());
        bytes.extend(match kind {
            ElementKind::Text => [0, 0],
            ElementKind::Heading(level) => [1, *level],
            ElementKind::Table { header_lines } => [2, *header_lines],
            ElementKind::Code => [3, 0],
        });
    }
    bytes
}
