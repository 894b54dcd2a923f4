//! Presentations: slide by slide in their order, each with its title, its text, its tables and the speaker's notes.

use std::collections::HashMap;

use roxmltree::Node;

use super::archive::{Archive, resolve};
use super::body::{Body, one_line};
use super::docx::core_properties;
use super::parse::Parsed;
use super::xml::{self, attribute, below, name};

const PRESENTATION: &str = "ppt/presentation.xml";

/// Reads a presentation.
///
/// # Errors
/// Where it is none, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut archive = Archive::open(bytes, "PPTX")?;
    let text =
        archive.text(PRESENTATION)?.ok_or_else(|| format!("not readable as PPTX: it has no `{PRESENTATION}`"))?;
    let metadata = core_properties(&mut archive)?;
    let links = links(&mut archive, PRESENTATION)?;
    let presentation = xml::parse(&text, PRESENTATION)?;
    let slides = presentation.descendants().filter(|node| name(*node) == "sldId");
    let slides: Vec<String> = slides
        .filter_map(|node| {
            // `id` is the slide's number, `r:id` its link.
            let link =
                node.attributes().find(|attribute| attribute.name() == "id" && attribute.namespace().is_some())?;
            Some(links.get(link.value())?.path.clone())
        })
        .collect();
    let (mut body, mut first) = (Body::default(), None);
    for (index, part) in slides.iter().enumerate() {
        let Some(text) = archive.text(part)? else { continue };
        let slide = xml::parse(&text, part)?;
        let (title, blocks) = shapes(slide.root_element());
        if index == 0 {
            first.clone_from(&title);
        }
        body.heading(1, &title.unwrap_or_else(|| format!("Slide {}", index + 1)));
        put(&blocks, &mut body);
        let notes = self::links(&mut archive, part)?.into_values().find(|link| link.kind == "notesSlide");
        if let Some(notes) = notes
            && let Some(text) = archive.text(&notes.path)?
        {
            let parsed = xml::parse(&text, &notes.path)?;
            let (_, blocks) = shapes(parsed.root_element());
            if blocks.iter().any(|block| !block.is_empty()) {
                body.heading(2, "Speaker notes");
                put(&blocks, &mut body);
            }
        }
    }
    Ok(Parsed::of(xml::own_title(&metadata).or(first), body, metadata))
}

/// What a part refers to.
struct Link {
    /// The last word of its type.
    kind: String,
    path: String,
}

fn links(archive: &mut Archive<'_>, part: &str) -> Result<HashMap<String, Link>, String> {
    let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
    let place = format!("{folder}/_rels/{file}.rels");
    let Some(text) = archive.text(&place)? else { return Ok(HashMap::new()) };
    let parsed = xml::parse(&text, &place)?;
    let link = |node: Node<'_, '_>| {
        let kind = attribute(node, "Type")?.rsplit('/').next()?.to_owned();
        Some((attribute(node, "Id")?.to_owned(), Link { kind, path: resolve(part, attribute(node, "Target")?)? }))
    };
    Ok(parsed.descendants().filter(|node| name(*node) == "Relationship").filter_map(link).collect())
}

/// What a shape says.
enum Block {
    /// Paragraphs, one a line.
    Text(Vec<String>),
    Table(Vec<Vec<String>>),
}

impl Block {
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(lines) => lines.iter().all(|line| line.trim().is_empty()),
            Self::Table(rows) => rows.iter().flatten().all(|cell| cell.trim().is_empty()),
        }
    }
}

/// The title of a slide, and everything else on it but its number, date and footer.
fn shapes(slide: Node<'_, '_>) -> (Option<String>, Vec<Block>) {
    let (mut title, mut blocks) = (None, Vec::new());
    for shape in slide.descendants() {
        match name(shape) {
            "sp" => {
                let Some(body) = xml::child(shape, "txBody") else { continue };
                let holder = below(shape, "ph").map(|node| attribute(node, "type").unwrap_or_default());
                let lines = paragraphs(body);
                match holder {
                    Some("sldNum" | "dt" | "ftr" | "hdr" | "sldImg") => {}
                    Some("title" | "ctrTitle") if title.is_none() => {
                        title = Some(one_line(&lines.join(" "))).filter(|title| !title.is_empty());
                    }
                    _ => blocks.push(Block::Text(lines)),
                }
            }
            "tbl" => {
                let rows = shape.children().filter(|node| name(*node) == "tr");
                let cells = |row: Node<'_, '_>| {
                    let cells = row.children().filter(|node| name(*node) == "tc");
                    cells.map(|cell| one_line(&xml::text(cell))).collect()
                };
                blocks.push(Block::Table(rows.map(cells).collect()));
            }
            _ => {}
        }
    }
    (title, blocks)
}

fn paragraphs(body: Node<'_, '_>) -> Vec<String> {
    let paragraph = |node: Node<'_, '_>| {
        let mut text = String::new();
        for part in node.descendants() {
            match name(part) {
                "t" => text.push_str(&xml::text(part)),
                "br" => text.push('\n'),
                "tab" => text.push('\t'),
                _ => {}
            }
        }
        text
    };
    body.children().filter(|node| name(*node) == "p").map(paragraph).collect()
}

fn put(blocks: &[Block], body: &mut Body) {
    for block in blocks {
        match block {
            Block::Text(lines) => {
                body.end_block();
                lines.iter().for_each(|line| body.line(line));
            }
            Block::Table(rows) => body.table(rows, true),
        }
    }
}
