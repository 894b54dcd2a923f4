//! Word documents: headings, paragraphs, lists with their numbers, tables, links and notes. What was deleted, struck or hidden, page headers
//! and tables of contents are left out.

mod numbering;
mod runs;
mod styles;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use roxmltree::Node;

use self::numbering::Numbering;
use self::runs::{Places, Runs, Said};
use self::styles::{Kind, ListPlace, Look, Styles};
use super::archive::Archive;
use super::body::{Body, one_line};
use super::left_out::LeftOut;
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::relations::{self, Relation};
use super::xml::{self, attribute, below, child, name};

/// Parts as Word calls them. Word Online numbers them (`word/document2.xml`), and says so in what refers to them.
const DOCUMENT: &str = "word/document.xml";
const STYLES: &str = "word/styles.xml";
const NUMBERING: &str = "word/numbering.xml";
const NOTES: [(&str, &str); 2] = [("word/footnotes.xml", "footnote"), ("word/endnotes.xml", "endnote")];
/// Tables and boxes in one another.
const MAX_DEPTH: usize = 32;
/// Columns of one cell: Word has no more.
const MAX_COLUMNS: usize = 63;
/// Of a cell that is said in each of its rows.
const MAX_SPANNED_BYTES: usize = 200;

/// Reads a document.
///
/// # Errors
/// Where it is none, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut archive = Archive::open(bytes, "DOCX")?;
    let main = relations::main(&mut archive, DOCUMENT);
    let document = archive.text(&main)?.ok_or_else(|| format!("not readable as DOCX: it has no `{main}`"))?;
    let metadata = core_properties(&mut archive)?;
    let relations = relations::of(&mut archive, &main)?;
    let styles = relations::part(&archive, &relations, "styles", STYLES);
    let styles = archive.text(&styles)?.map(|text| Styles::read(&text)).transpose()?.unwrap_or_default();
    let numbering = relations::part(&archive, &relations, "numbering", NUMBERING);
    let numbering = archive.text(&numbering)?.map(|text| Numbering::read(&text)).transpose()?;
    let mut places = Places::default();
    let notes = notes(&mut archive, &relations, &styles, &mut places)?;
    let parsed = xml::parse(&document, &main)?;
    let numbering = numbering.unwrap_or_default();
    let mut reading = Reading { styles, numbering, notes, relations, places, body: Body::default(), title: None };
    let body =
        child(parsed.root_element(), "body").ok_or_else(|| format!("not readable as DOCX: no body in `{main}`"))?;
    reading.blocks(body, 0)?;
    let title = reading.title.take().or_else(|| xml::own_title(&metadata));
    let mut left_out = LeftOut::default();
    left_out.places("struck text", reading.places.struck);
    left_out.places("hidden text", reading.places.hidden);
    Ok(Parsed { left_out: left_out.into_notes(), ..Parsed::of(title, reading.body, metadata) })
}

/// Footnotes and endnotes, by kind and number.
fn notes(
    archive: &mut Archive<'_>,
    of_document: &HashMap<String, Relation>,
    styles: &Styles,
    places: &mut Places,
) -> Result<HashMap<String, String>, String> {
    let mut notes = HashMap::new();
    for (usual, kind) in NOTES {
        let part = relations::part(archive, of_document, &format!("{kind}s"), usual);
        let Some(text) = archive.text(&part)? else { continue };
        let relations = relations::of(archive, &part)?;
        let runs = Runs { styles, relations: &relations, notes: &HashMap::new() };
        let parsed = xml::parse(&text, &part)?;
        for note in parsed.descendants().filter(|node| name(*node) == kind && attribute(*node, "type").is_none()) {
            let id = attribute(note, "id").unwrap_or_default();
            notes.insert(format!("{kind} {id}"), one_line(&runs.text(note, Look::default(), places).joined()));
        }
    }
    Ok(notes)
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

struct Reading {
    styles: Styles,
    numbering: Numbering,
    /// Footnotes and endnotes.
    notes: HashMap<String, String>,
    relations: HashMap<String, Relation>,
    places: Places,
    body: Body,
    title: Option<String>,
}

/// A paragraph's text, and what it is.
struct Paragraph {
    text: String,
    /// Of boxes that hang on it.
    boxes: Vec<String>,
    /// Of a list: `3.`, `-`.
    label: Option<String>,
    kind: Option<Kind>,
    is_item: bool,
}

impl Paragraph {
    /// With its number.
    fn labelled(&self) -> String {
        match &self.label {
            Some(label) if !self.text.trim().is_empty() => format!("{label} {}", self.text.trim_start()),
            _ => self.text.clone(),
        }
    }
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
        let paragraph = self.text(node);
        let text = paragraph.labelled();
        match paragraph.kind {
            Some(Kind::Contents) => {}
            // Beside every passage already.
            Some(Kind::Title) if self.title.is_none() && self.body.len() == 0 && !text.trim().is_empty() => {
                self.title = Some(one_line(&text));
            }
            Some(Kind::Title) => self.body.heading(1, &text),
            Some(Kind::Heading(level)) => self.body.heading(level, &text),
            Some(Kind::Code) => self.body.code_line(&paragraph.text),
            Some(Kind::Item) => self.body.line(&text),
            None if paragraph.is_item => self.body.line(&text),
            None => self.body.paragraph(&text),
        }
        // Within it they would be words of a heading, or of the document's title.
        for text in &paragraph.boxes {
            self.body.paragraph(text);
            self.body.end_block();
        }
    }

    fn text(&mut self, node: Node<'_, '_>) -> Paragraph {
        let properties = child(node, "pPr");
        let style = properties.and_then(|node| attribute(child(node, "pStyle")?, "val"));
        let kind = style.and_then(|id| self.styles.kind(id));
        let outline = properties.and_then(|node| attribute(child(node, "outlineLvl")?, "val")?.parse::<u8>().ok());
        let kind = kind.or_else(|| outline.filter(|level| *level < 9).map(|level| Kind::Heading(level + 1)));
        let look = style.map(|id| self.styles.look(id)).unwrap_or_default();
        let runs = Runs { styles: &self.styles, relations: &self.relations, notes: &self.notes };
        let Said { text, boxes } = runs.text(node, look, &mut self.places);
        let own = properties.and_then(ListPlace::of);
        let is_listed = own.as_ref().is_some_and(|place| place.number.as_deref() != Some("0"));
        let label = if is_uncounted(properties) { None } else { self.label(own, style) };
        Paragraph { text, boxes, is_item: is_listed || label.is_some(), label, kind }
    }

    /// The number of a paragraph, if it is one of a list.
    fn label(&mut self, own: Option<ListPlace>, style: Option<&str>) -> Option<String> {
        let of_style = style.and_then(|id| self.styles.place(id));
        let place = match (own, of_style) {
            (Some(own), Some(of_style)) => own.over(&of_style),
            (own, of_style) => own.or(of_style)?,
        };
        let number = place.number.filter(|number| number != "0")?;
        self.numbering.next(&number, place.level, style)
    }

    /// What goes down over several rows is said in each; what goes over several columns once.
    fn rows(&mut self, table: Node<'_, '_>, depth: usize) -> Result<Vec<Vec<String>>, String> {
        bounded(depth)?;
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in wrapped(table, "tr") {
            let mut cells = Vec::new();
            for cell in wrapped(row, "tc") {
                let properties = child(cell, "tcPr");
                let merge = properties.and_then(|node| child(node, "vMerge"));
                let goes_on = merge.is_some_and(|merge| attribute(merge, "val") != Some("restart"));
                let above = rows.last().and_then(|row| row.get(cells.len()));
                let above = above.filter(|above| goes_on && above.len() <= MAX_SPANNED_BYTES).cloned();
                let mut text = String::new();
                self.cell(cell, depth, &mut text)?;
                cells.push(above.filter(|_| text.trim().is_empty()).unwrap_or(text));
                let span = properties.and_then(|node| attribute(child(node, "gridSpan")?, "val")?.parse().ok());
                cells.extend((1..span.unwrap_or(1).min(MAX_COLUMNS)).map(|_| String::new()));
            }
            rows.push(cells);
        }
        Ok(rows)
    }

    fn cell(&mut self, cell: Node<'_, '_>, depth: usize, text: &mut String) -> Result<(), String> {
        bounded(depth)?;
        for node in cell.children() {
            match name(node) {
                "p" => {
                    let paragraph = self.text(node);
                    text.push_str(&paragraph.labelled());
                    for said in &paragraph.boxes {
                        text.push(' ');
                        text.push_str(said);
                    }
                }
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

/// Children of this name, also those in fields to fill in.
fn wrapped<'a, 'i>(parent: Node<'a, 'i>, wanted: &str) -> Vec<Node<'a, 'i>> {
    let (mut found, mut waiting) = (Vec::new(), parent.children().rev().collect::<Vec<_>>());
    while let Some(node) = waiting.pop() {
        match name(node) {
            own if own == wanted => found.push(node),
            "sdt" | "sdtContent" | "ins" | "customXml" => waiting.extend(node.children().rev()),
            _ => {}
        }
    }
    found
}

/// Whether its end is deleted or hidden, so that it is no item of its own.
fn is_uncounted(properties: Option<Node<'_, '_>>) -> bool {
    let mark = properties.and_then(|node| child(node, "rPr"));
    mark.is_some_and(|mark| child(mark, "del").is_some() || Look::of(mark).hidden == Some(true))
}

fn is_contents(node: Node<'_, '_>) -> bool {
    let gallery = child(node, "sdtPr").and_then(|node| below(node, "docPartGallery"));
    gallery.and_then(|node| attribute(node, "val")).is_some_and(|kind| kind == "Table of Contents")
}
