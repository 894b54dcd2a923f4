//! XML to elements, strictly: what is not well-formed is refused with its place, entities are not expanded, and size and depth are bounded.

use std::fmt;

use roxmltree::{Document, Node as XmlNode, NodeType, ParsingOptions};

use crate::error::{Error, ErrorKind, Result};

/// The longest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Elements inside one another, at the most.
pub(super) const MAX_DEPTH: usize = 32;
/// Elements, attributes, texts and comments, at the most.
pub(super) const MAX_NODES: u32 = 100_000;

/// Where something stands in a document; both count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An element.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Element {
    pub name: String,
    pub at: Place,
    attributes: Vec<(String, String)>,
    pub children: Vec<Child>,
}

/// What an element contains.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Child {
    /// Text, as it stands; never two beside each other.
    Text(String),
    Element(Element),
}

/// Something is wrong with a document, there.
pub(super) fn wrong(at: Place, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{at}: {why}"))
}

/// Whether XML has this character (XML 1.0, `Char`).
pub(super) fn is_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{FFFD}' | '\u{10000}'..)
}

/// Reads a document: its only element.
///
/// # Errors
/// `InvalidInput` with line and column if it is not well-formed, has a document type, or exceeds a bound.
pub(crate) fn read(text: &str) -> Result<Element> {
    if text.len() > MAX_DOCUMENT_BYTES {
        let message = format!("a PML document has at most {MAX_DOCUMENT_BYTES} bytes; this one has {}", text.len());
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| {
        let at = Place { line: error.pos().row, column: error.pos().col };
        wrong(at, format!("not well-formed: {}", reason(&error)))
    })?;
    element(&document, document.root_element(), 0)
}

/// The library's reason, without the place that it ends with.
fn reason(error: &roxmltree::Error) -> String {
    let text = error.to_string();
    text.split_once(" at ").map_or(text.clone(), |(reason, place)| {
        if place.chars().all(|c| c.is_ascii_digit() || c == ':') { reason.to_owned() } else { text.clone() }
    })
}

fn element(document: &Document<'_>, node: XmlNode<'_, '_>, depth: usize) -> Result<Element> {
    let pos = document.text_pos_at(node.range().start);
    let at = Place { line: pos.row, column: pos.col };
    let name = node.tag_name().name().to_owned();
    if depth >= MAX_DEPTH {
        return Err(wrong(at, format!("<{name}> is inside {MAX_DEPTH} others; nest less")));
    }
    if node.tag_name().namespace().is_some() {
        return Err(wrong(at, format!("<{name}> is in an XML namespace; PML has none")));
    }
    let attributes = node.attributes().map(|it| (it.name().to_owned(), it.value().to_owned())).collect();
    let mut children = Vec::new();
    for child in node.children() {
        match child.node_type() {
            NodeType::Text => match children.last_mut() {
                // A comment stood between.
                Some(Child::Text(before)) => before.push_str(child.text().unwrap_or_default()),
                _ => children.push(Child::Text(child.text().unwrap_or_default().to_owned())),
            },
            NodeType::Element => children.push(Child::Element(element(document, child, depth + 1)?)),
            NodeType::Root | NodeType::Comment | NodeType::PI => {}
        }
    }
    Ok(Element { name, at, attributes, children })
}

impl Element {
    /// An attribute's value.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(its, _)| its == name).map(|(_, value)| value.as_str())
    }

    /// The attributes, in order.
    pub fn attributes(&self) -> &[(String, String)] {
        &self.attributes
    }

    /// An attribute that it must have.
    ///
    /// # Errors
    /// `InvalidInput` if it has none, or an empty one.
    pub fn required(&self, name: &str) -> Result<&str> {
        let value = self.attribute(name).map(str::trim).filter(|value| !value.is_empty());
        value.ok_or_else(|| wrong(self.at, format!("<{}> needs a `{name}`", self.name)))
    }

    /// Whether it has no other attributes than these.
    ///
    /// # Errors
    /// `InvalidInput` that names the first other one.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.attributes.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) if known.is_empty() => {
                Err(wrong(self.at, format!("<{}> has no attributes; `{name}` means nothing", self.name)))
            }
            Some((name, _)) => {
                let known = known.join("`, `");
                Err(wrong(self.at, format!("<{}> has no attribute `{name}`; it has `{known}`", self.name)))
            }
        }
    }

    /// Whether it is empty, save for white space.
    ///
    /// # Errors
    /// `InvalidInput` if it is not.
    pub fn empty(&self) -> Result<()> {
        let is_blank = |child: &Child| matches!(child, Child::Text(text) if text.trim().is_empty());
        if self.children.iter().all(is_blank) {
            return Ok(());
        }
        Err(wrong(self.at, format!("<{}> must be empty", self.name)))
    }
}
