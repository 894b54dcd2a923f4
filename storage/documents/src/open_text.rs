//! Texts and presentations of OpenDocument: headings, lists with their numbers, tables, links, notes and comments. What is deleted, struck or
//! hidden, and indexes, are left out.

mod styles;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;

use roxmltree::Node;

use self::styles::{Levels, Styles, label};
use self::words::{Places, Words};
use super::archive::Archive;
use super::body::{Body, one_line};
use super::left_out::LeftOut;
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::xml::{self, attribute, below, child, name};

const CONTENT: &str = "content.xml";
/// Lists, tables and sections in one another.
const MAX_DEPTH: usize = 32;
/// Of a cell that is said in each of its rows.
const MAX_SPANNED_BYTES: usize = 200;

/// Reads a text or a presentation.
///
/// # Errors
/// Where it is none, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut archive = Archive::open(bytes, "OpenDocument")?;
    if archive.text("META-INF/manifest.xml")?.is_some_and(|text| text.contains("encryption-data")) {
        return Err("it is encrypted; save it without a password first".into());
    }
    let content =
        archive.text(CONTENT)?.ok_or_else(|| format!("not readable as OpenDocument: it has no `{CONTENT}`"))?;
    let mut styles = Styles::default();
    if let Some(text) = archive.text("styles.xml")? {
        styles.add(xml::parse(&text, "styles.xml")?.root_element());
    }
    let mut metadata = FileMetadata::default();
    if let Some(text) = archive.text("meta.xml")?
        && let Ok(parsed) = xml::parse(&text, "meta.xml")
    {
        xml::dublin_core(parsed.root_element(), &mut metadata);
    }
    let parsed = xml::parse(&content, CONTENT)?;
    styles.add(parsed.root_element());
    let body = child(parsed.root_element(), "body").and_then(|body| body.children().find(|node| node.is_element()));
    let body = body.ok_or_else(|| format!("not readable as OpenDocument: no body in `{CONTENT}`"))?;
    let mut reading = Reading {
        styles,
        places: Places::default(),
        body: Body::default(),
        title: None,
        counts: HashMap::new(),
        headings: Vec::new(),
        pages: 0,
    };
    match name(body) {
        "text" => reading.blocks(body, 0)?,
        "presentation" => reading.slides(body)?,
        _ => return Err("neither a text nor a presentation of OpenDocument; export it as .pdf".into()),
    }
    let title = reading.title.take().or_else(|| xml::own_title(&metadata));
    let mut left_out = LeftOut::default();
    left_out.places("struck text", reading.places.struck);
    left_out.places("hidden text", reading.places.hidden);
    left_out.count("hidden slide", "hidden slides", reading.pages);
    Ok(Parsed { left_out: left_out.into_notes(), ..Parsed::of(title, reading.body, metadata) })
}

struct Reading {
    styles: Styles,
    places: Places,
    body: Body,
    title: Option<String>,
    /// How far lists are counted, by their styles or names.
    counts: HashMap<String, Vec<u32>>,
    /// How far headings are.
    headings: Vec<u32>,
    /// Slides that are hidden.
    pages: usize,
}

/// A list that is being read.
struct List<'a> {
    /// Its style, or its name where it has one.
    key: &'a str,
    style: &'a str,
    level: usize,
}

impl Reading {
    fn blocks(&mut self, parent: Node<'_, '_>, depth: usize) -> Result<(), String> {
        bounded(depth)?;
        for node in parent.children() {
            match name(node) {
                "h" => self.heading(node),
                "p" => self.paragraph(node),
                "list" => self.list(node, None, depth + 1)?,
                "table" => {
                    let rows = self.rows(node, depth + 1)?;
                    self.body.table(&rows, true);
                }
                "section" if attribute(node, "display") == Some("none") => self.places.hidden += 1,
                "section" | "numbered-paragraph" | "frame" | "text-box" | "g" | "custom-shape" => {
                    self.blocks(node, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn words(&mut self, node: Node<'_, '_>) -> String {
        Words::of(node, &self.styles, &mut self.places)
    }

    fn paragraph(&mut self, node: Node<'_, '_>) {
        let text = self.words(node);
        let style = attribute(node, "style-name").unwrap_or_default();
        if self.styles.is(style, "Title") && !text.trim().is_empty() {
            if self.title.is_none() && self.body.len() == 0 {
                self.title = Some(one_line(&text));
            } else {
                self.body.heading(1, &text);
            }
        } else if ["Preformatted_20_Text", "Source_20_Code"].iter().any(|code| self.styles.is(style, code)) {
            self.body.code_line(&text);
        } else {
            self.body.paragraph(&text);
        }
    }

    fn heading(&mut self, node: Node<'_, '_>) {
        let level = attribute(node, "outline-level").and_then(|level| level.parse().ok()).unwrap_or(1).clamp(1, 10);
        let text = self.words(node);
        if text.trim().is_empty() {
            return;
        }
        if attribute(node, "is-list-header") != Some("true") {
            count(&mut self.headings, level as usize, &self.styles.outline, None);
        }
        let number = label(&self.styles.outline, &self.headings).filter(|_| self.headings.len() == level as usize);
        let text = number.map_or_else(|| text.clone(), |number| format!("{number} {text}"));
        self.body.heading(level, &text);
    }

    fn list(&mut self, node: Node<'_, '_>, outer: Option<&List<'_>>, depth: usize) -> Result<(), String> {
        bounded(depth)?;
        let own = attribute(node, "style-name").or_else(|| outer.map(|outer| outer.style));
        let of_paragraph = || {
            let style = attribute(below(node, "p")?, "style-name")?;
            self.styles.list_of(style).map(str::to_owned)
        };
        let of_paragraph = own.is_none().then(of_paragraph).flatten();
        let style = own.or(of_paragraph.as_deref()).unwrap_or_default();
        let key = outer.map_or(style, |outer| outer.key);
        let list = List { key, style, level: outer.map_or(1, |outer| outer.level + 1) };
        let goes_on =
            attribute(node, "continue-numbering") == Some("true") || attribute(node, "continue-list").is_some();
        if outer.is_none() && !goes_on {
            self.counts.remove(key);
        }
        if outer.is_none() {
            self.body.end_block();
        }
        for item in node.children() {
            match name(item) {
                "list-item" => self.item(item, &list, depth)?,
                "list-header" => self.blocks(item, depth + 1)?,
                _ => {}
            }
        }
        if outer.is_none() {
            self.body.end_block();
        }
        Ok(())
    }

    fn item(&mut self, item: Node<'_, '_>, list: &List<'_>, depth: usize) -> Result<(), String> {
        let start = attribute(item, "start-value").and_then(|start| start.parse().ok());
        let says = item.children().any(|part| matches!(name(part), "p" | "h"));
        let mut number = None;
        if says && let Some(levels) = self.styles.levels(list.style) {
            let counts = self.counts.entry(list.key.to_owned()).or_default();
            count(counts, list.level, levels, start);
            number = label(levels, counts);
        }
        let mut label = Some(number.unwrap_or_else(|| "-".into())).filter(|label| !label.is_empty());
        for part in item.children() {
            match name(part) {
                "p" | "h" => {
                    let text = self.words(part);
                    let is_said = !text.trim().is_empty();
                    let label = label.take_if(|_| is_said).map(|label| format!("{label} ")).unwrap_or_default();
                    self.body.line(&format!("{label}{}", if is_said { text.trim_start() } else { "" }));
                }
                "list" => self.list(part, Some(list), depth + 1)?,
                "table" => {
                    let rows = self.rows(part, depth + 1)?;
                    self.body.table(&rows, true);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What goes down over several rows is said in each.
    fn rows(&mut self, table: Node<'_, '_>, depth: usize) -> Result<Vec<Vec<String>>, String> {
        bounded(depth)?;
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut waiting: Vec<Node<'_, '_>> = table.children().rev().collect();
        // Columns whose cell above goes on, and for how many rows.
        let mut spans: Vec<usize> = Vec::new();
        while let Some(node) = waiting.pop() {
            match name(node) {
                "table-header-rows" | "table-rows" | "table-row-group" => waiting.extend(node.children().rev()),
                "table-row" => {
                    let row = self.row(node, rows.last(), &mut spans, depth)?;
                    rows.push(row);
                }
                _ => {}
            }
        }
        Ok(rows)
    }

    fn row(
        &mut self,
        row: Node<'_, '_>,
        above: Option<&Vec<String>>,
        spans: &mut Vec<usize>,
        depth: usize,
    ) -> Result<Vec<String>, String> {
        let mut cells = Vec::new();
        for cell in row.children().filter(|cell| matches!(name(*cell), "table-cell" | "covered-table-cell")) {
            let column = cells.len();
            if spans.len() <= column {
                spans.resize(column + 1, 0);
            }
            let span = spans.get_mut(column);
            cells.push(if name(cell) == "covered-table-cell" {
                let goes_on = span.is_some_and(|span| std::mem::replace(span, span.saturating_sub(1)) > 0);
                let above = above.and_then(|above| above.get(column)).filter(|text| text.len() <= MAX_SPANNED_BYTES);
                above.filter(|_| goes_on).cloned().unwrap_or_default()
            } else {
                let rows = attribute(cell, "number-rows-spanned").and_then(|rows| rows.parse::<usize>().ok());
                span.into_iter().for_each(|span| *span = rows.unwrap_or(1).saturating_sub(1));
                let mut text = String::new();
                self.cell(cell, depth, &mut text)?;
                one_line(&text)
            });
        }
        Ok(cells)
    }

    fn cell(&mut self, cell: Node<'_, '_>, depth: usize, text: &mut String) -> Result<(), String> {
        bounded(depth)?;
        for node in cell.children() {
            match name(node) {
                "p" | "h" => text.push_str(&self.words(node)),
                "list" | "list-item" | "list-header" | "section" => self.cell(node, depth + 1, text)?,
                "table" => {
                    let rows = self.rows(node, depth + 1)?;
                    text.push_str(&rows.iter().map(|row| row.join(" ")).collect::<Vec<_>>().join("; "));
                }
                _ => continue,
            }
            text.push(' ');
        }
        Ok(())
    }

    /// Slide by slide: its title, what is on it, and the speaker's notes.
    fn slides(&mut self, presentation: Node<'_, '_>) -> Result<(), String> {
        for (index, page) in presentation.children().filter(|node| name(*node) == "page").enumerate() {
            if self.styles.is_hidden_page(attribute(page, "style-name").unwrap_or_default()) {
                self.pages += 1;
                continue;
            }
            let is_title = |frame: &Node<'_, '_>| attribute(*frame, "class") == Some("title");
            let frame = page.children().find(is_title);
            let text = match frame.and_then(|frame| child(frame, "text-box")) {
                Some(text) => {
                    let mut title = String::new();
                    self.cell(text, 0, &mut title)?;
                    one_line(&title)
                }
                None => String::new(),
            };
            if index == 0 && !text.is_empty() {
                self.title = Some(text.clone());
            }
            self.body.heading(1, &if text.is_empty() { format!("Slide {}", index + 1) } else { text });
            for shape in page.children().filter(|node| Some(*node) != frame && node.is_element()) {
                let is_aside =
                    matches!(attribute(shape, "class"), Some("page-number" | "date-time" | "footer" | "header"));
                match name(shape) {
                    "notes" => self.notes(shape)?,
                    "frame" | "g" if !is_aside => self.blocks(shape, 0)?,
                    "custom-shape" | "rect" | "ellipse" if !is_aside => self.blocks(shape, 0)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn notes(&mut self, notes: Node<'_, '_>) -> Result<(), String> {
        let is_notes = |node: &Node<'_, '_>| attribute(*node, "class") == Some("notes");
        let Some(text) = notes.children().find(is_notes).and_then(|frame| child(frame, "text-box")) else {
            return Ok(());
        };
        if !xml::text(text).trim().is_empty() {
            self.body.heading(2, "Speaker notes");
            self.blocks(text, 0)?;
        }
        Ok(())
    }
}

/// Counts an item of a level, from 1 on.
fn count(counts: &mut Vec<u32>, level: usize, levels: &Levels, start: Option<u32>) {
    let first = |level: usize| levels.get(&level).map_or(1, |level| level.start);
    let is_new = counts.len() < level;
    while counts.len() < level {
        let next = counts.len() + 1;
        counts.push(first(next));
    }
    counts.truncate(level);
    if let Some(last) = counts.last_mut() {
        *last = start.unwrap_or(if is_new { *last } else { last.saturating_add(1) });
    }
}

fn bounded(depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!(
            "it nests too deep: more than {MAX_DEPTH} lists and tables in one another; convert it to text first"
        ));
    }
    Ok(())
}
