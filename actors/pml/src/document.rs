//! XML to elements, strictly: what is not well-formed is refused with its place, entities are not expanded, and size and depth are bounded.

use std::fmt;

use roxmltree::{Document, Node as XmlNode, NodeType, ParsingOptions};

use ragstone_env::{Error, ErrorKind, Result};

/// The longest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Elements inside one another, at the most.
pub(super) const MAX_DEPTH: usize = 32;
/// Elements, texts and comments, at the most.
pub(super) const MAX_NODES: u32 = 20_000;
/// Attributes of an element: each is compared with all others.
const MAX_ATTRIBUTES: usize = 1000;
/// Namespaces that are declared: each element has a list of those that hold for it. PML has none.
const MAX_NAMESPACES: usize = 100;
/// Of an element's name, and of a `name`: paths are made of them.
pub(super) const MAX_NAME_BYTES: usize = 128;

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
    check(text)?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| {
        let at = Place { line: error.pos().row, column: error.pos().col };
        wrong(at, format!("not well-formed: {}", reason(&error)))
    })?;
    element(&mut Cursor::new(text), document.root_element(), 0)
}

/// Refuses what takes the parser the square of its size. What is looked at is no more than where tags may begin, so that all that counts is
/// counted, and some of what does not.
fn check(text: &str) -> Result<()> {
    let refused = |what: &str, most: usize| {
        let message = format!("a PML document has at most {most} {what}; this one has more");
        Err(Error::new(ErrorKind::InvalidInput, message))
    };
    if text.matches("xmlns").count() > MAX_NAMESPACES {
        return refused("namespaces (`xmlns`)", MAX_NAMESPACES);
    }
    let tags = text.split('<').skip(1).filter(|tag| !tag.starts_with(['!', '?', '/']));
    match tags.map(signs).max() {
        Some(most) if most > MAX_ATTRIBUTES => refused("attributes in an element", MAX_ATTRIBUTES),
        _ => Ok(()),
    }
}

/// Equals signs of a tag, which begins here: as many as it has attributes, at least.
fn signs(tag: &str) -> usize {
    let (mut quote, mut signs) = (None, 0);
    for byte in tag.bytes() {
        match (quote, byte) {
            (None, b'>') => break,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            (None, b'=') => signs += 1,
            _ => {}
        }
    }
    signs
}

/// Finds lines and columns of places that come one after the other: the library counts from the start for each.
struct Cursor<'a> {
    text: &'a str,
    offset: usize,
    at: Place,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, offset: 0, at: Place { line: 1, column: 1 } }
    }

    /// The place of a byte that is not before the last one.
    fn to(&mut self, offset: usize) -> Place {
        for character in self.text[self.offset..offset].chars() {
            if character == '\n' {
                self.at = Place { line: self.at.line + 1, column: 1 };
            } else {
                self.at.column += 1;
            }
        }
        self.offset = offset;
        self.at
    }
}

/// The library's reason, without the place that it ends with.
fn reason(error: &roxmltree::Error) -> String {
    let text = error.to_string();
    text.split_once(" at ").map_or(text.clone(), |(reason, place)| {
        if place.chars().all(|c| c.is_ascii_digit() || c == ':') { reason.to_owned() } else { text.clone() }
    })
}

fn element(cursor: &mut Cursor<'_>, node: XmlNode<'_, '_>, depth: usize) -> Result<Element> {
    let at = cursor.to(node.range().start);
    let name = node.tag_name().name().to_owned();
    let named = node.attribute("name").map_or(0, str::len).max(name.len());
    if named > MAX_NAME_BYTES {
        return Err(wrong(at, format!("a name has {named} bytes; use at most {MAX_NAME_BYTES}")));
    }
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
            NodeType::Element => children.push(Child::Element(element(cursor, child, depth + 1)?)),
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
