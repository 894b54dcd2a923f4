//! Word documents: headings, paragraphs, lists, tables and notes. What was deleted, page headers and tables of contents are left out.

use std::collections::HashMap;

use roxmltree::Node;

use super::archive::Archive;
use super::body::Body;
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::xml::{self, attribute, below, child, name};

const DOCUMENT: &str = "word/document.xml";
/// Tables and boxes in one another.
const MAX_DEPTH: usize = 32;

/// Reads a document.
///
/// # Errors
/// Where it is none, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut archive = Archive::open(bytes, "DOCX")?;
    let document = archive.text(DOCUMENT)?.ok_or_else(|| format!("not readable as DOCX: it has no `{DOCUMENT}`"))?;
    let metadata = core_properties(&mut archive)?;
    let styles = archive.text("word/styles.xml")?.map(|text| styles(&text)).transpose()?.unwrap_or_default();
    let mut notes = HashMap::new();
    for (part, kind) in [("word/footnotes.xml", "footnote"), ("word/endnotes.xml", "endnote")] {
        if let Some(text) = archive.text(part)? {
            let parsed = xml::parse(&text, part)?;
            for note in parsed.descendants().filter(|node| name(*node) == kind && attribute(*node, "type").is_none()) {
                let id = attribute(note, "id").unwrap_or_default();
                notes.insert(format!("{kind} {id}"), super::body::one_line(&xml::text(note)));
            }
        }
    }
    let parsed = xml::parse(&document, DOCUMENT)?;
    let mut reading = Reading { styles, notes, body: Body::default(), title: None };
    let body =
        child(parsed.root_element(), "body").ok_or_else(|| format!("not readable as DOCX: no body in `{DOCUMENT}`"))?;
    reading.blocks(body, 0)?;
    let title = reading.title.take().or_else(|| xml::own_title(&metadata));
    Ok(Parsed::of(title, reading.body, metadata))
}

/// What an Office file says of itself.
///
/// # Errors
/// As [`Archive::read`].
pub fn core_properties(archive: &mut Archive<'_>) -> Result<FileMetadata, String> {
    let mut metadata = FileMetadata::default();
    if let Some(text) = archive.text("docProps/core.xml")? {
        // Without it a document is a document still.
        if let Ok(parsed) = xml::parse(&text, "docProps/core.xml") {
            xml::dublin_core(parsed.root_element(), &mut metadata);
        }
    }
    Ok(metadata)
}

/// What a paragraph of a style is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Title,
    Heading(u8),
    /// Of a table of contents.
    Contents,
    /// Of a list.
    Item,
    Code,
}

/// Styles by their ids. Word names them in its own language in ids, and in English in names.
fn styles(text: &str) -> Result<HashMap<String, Style>, String> {
    let parsed = xml::parse(text, "word/styles.xml")?;
    let mut styles = HashMap::new();
    for style in parsed.descendants().filter(|node| name(*node) == "style") {
        let called = child(style, "name").and_then(|node| attribute(node, "val")).unwrap_or_default().to_lowercase();
        let outline = below(style, "outlineLvl").and_then(|node| attribute(node, "val")?.parse::<u8>().ok());
        let kind = if called == "title" {
            Style::Title
        } else if let Some(level) = called.strip_prefix("heading ").and_then(|level| level.parse().ok()) {
            Style::Heading(level)
        } else if called.starts_with("toc ") || called == "table of figures" {
            Style::Contents
        } else if called.contains("code") || called == "html preformatted" || called == "macro" {
            Style::Code
        } else if let Some(level) = outline.filter(|level| *level < 9) {
            Style::Heading(level + 1)
        } else if below(style, "numPr").is_some() {
            Style::Item
        } else {
            continue;
        };
        styles.insert(attribute(style, "styleId").unwrap_or_default().to_owned(), kind);
    }
    Ok(styles)
}

struct Reading {
    styles: HashMap<String, Style>,
    /// Footnotes and endnotes.
    notes: HashMap<String, String>,
    body: Body,
    title: Option<String>,
}

/// A paragraph's text, and what it is.
struct Paragraph {
    text: String,
    style: Option<Style>,
    is_item: bool,
}

impl Reading {
    fn blocks(&mut self, parent: Node<'_, '_>, depth: usize) -> Result<(), String> {
        bounded(depth)?;
        for node in parent.children() {
            match name(node) {
                "p" => self.paragraph(node),
                "tbl" => {
                    let rows = self.rows(node, depth + 1)?;
                    self.body.table(&rows, true);
                }
                "sdt" if is_contents(node) => {}
                "sdt" | "sdtContent" | "ins" | "moveTo" | "smartTag" | "customXml" => self.blocks(node, depth + 1)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn paragraph(&mut self, node: Node<'_, '_>) {
        let Paragraph { text, style, is_item } = self.text(node);
        match style {
            Some(Style::Contents) => {}
            // Beside every passage already.
            Some(Style::Title) if self.title.is_none() && self.body.len() == 0 && !text.trim().is_empty() => {
                self.title = Some(super::body::one_line(&text));
            }
            Some(Style::Title) => self.body.heading(1, &text),
            Some(Style::Heading(level)) => self.body.heading(level, &text),
            Some(Style::Code) => self.body.code_line(&text),
            Some(Style::Item) => self.body.line(&text),
            None if is_item => self.body.line(&text),
            None => self.body.paragraph(&text),
        }
    }

    fn text(&self, node: Node<'_, '_>) -> Paragraph {
        let properties = child(node, "pPr");
        let style = properties.and_then(|node| attribute(child(node, "pStyle")?, "val"));
        let style = style.and_then(|id| self.styles.get(id).copied());
        let outline = properties.and_then(|node| attribute(child(node, "outlineLvl")?, "val")?.parse::<u8>().ok());
        let style = style.or_else(|| outline.filter(|level| *level < 9).map(|level| Style::Heading(level + 1)));
        let mut text = String::new();
        self.runs(node, &mut text);
        Paragraph { text, style, is_item: properties.is_some_and(|node| child(node, "numPr").is_some()) }
    }

    /// The text of a paragraph's runs, in order.
    fn runs(&self, paragraph: Node<'_, '_>, text: &mut String) {
        let mut waiting: Vec<Node<'_, '_>> = paragraph.children().rev().collect();
        while let Some(node) = waiting.pop() {
            match name(node) {
                "t" => text.push_str(&xml::text(node)),
                "tab" | "ptab" => text.push('\t'),
                "br" | "cr" => text.push('\n'),
                "noBreakHyphen" => text.push('-'),
                note @ ("footnoteReference" | "endnoteReference") => {
                    let kind = note.trim_end_matches("Reference");
                    let id = attribute(node, "id").unwrap_or_default();
                    if let Some(note) = self.notes.get(&format!("{kind} {id}")).filter(|note| !note.is_empty()) {
                        text.push_str(&format!(" ({note})"));
                    }
                }
                "p" => {
                    // Of a box that hangs on this paragraph.
                    text.push('\n');
                    waiting.extend(node.children().rev());
                }
                "" | "pPr" | "rPr" | "del" | "moveFrom" | "instrText" | "delText" | "Fallback" => {}
                _ => waiting.extend(node.children().rev()),
            }
        }
    }

    fn rows(&self, table: Node<'_, '_>, depth: usize) -> Result<Vec<Vec<String>>, String> {
        bounded(depth)?;
        let mut rows = Vec::new();
        for row in table.children().filter(|node| name(*node) == "tr") {
            let mut cells = Vec::new();
            for cell in row.children().filter(|node| name(*node) == "tc") {
                let mut text = String::new();
                self.cell(cell, depth, &mut text)?;
                cells.push(text);
            }
            rows.push(cells);
        }
        Ok(rows)
    }

    fn cell(&self, cell: Node<'_, '_>, depth: usize, text: &mut String) -> Result<(), String> {
        bounded(depth)?;
        for node in cell.children() {
            match name(node) {
                "p" => text.push_str(&self.text(node).text),
                "tbl" => {
                    let rows = self.rows(node, depth + 1)?;
                    text.push_str(&rows.iter().map(|row| row.join(" ")).collect::<Vec<_>>().join("; "));
                }
                "sdt" | "sdtContent" | "ins" => self.cell(node, depth + 1, text)?,
                _ => continue,
            }
            text.push(' ');
        }
        Ok(())
    }
}

fn bounded(depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!(
            "it nests too deep: more than {MAX_DEPTH} tables in one another; convert it to text first"
        ));
    }
    Ok(())
}

fn is_contents(node: Node<'_, '_>) -> bool {
    let gallery = child(node, "sdtPr").and_then(|node| below(node, "docPartGallery"));
    gallery.and_then(|node| attribute(node, "val")).is_some_and(|kind| kind == "Table of Contents")
}
