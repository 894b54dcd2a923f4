//! Presentations: slide by slide in their order, each with its title, its text, its links, its tables and the speaker's notes. Hidden slides
//! are left out.

use std::collections::HashMap;

use roxmltree::Node;

use super::address;
use super::archive::Archive;
use super::body::{Body, one_line};
use super::docx::core_properties;
use super::left_out::LeftOut;
use super::parse::Parsed;
use super::relations::{self, Relation};
use super::xml::{self, attribute, below, child, name};

const PRESENTATION: &str = "ppt/presentation.xml";
/// Of a cell that is said in each of its rows.
const MAX_SPANNED_BYTES: usize = 200;

/// Reads a presentation.
///
/// # Errors
/// Where it is none, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut archive = Archive::open(bytes, "PPTX")?;
    let main = relations::main(&mut archive, PRESENTATION);
    let text = archive.text(&main)?.ok_or_else(|| format!("not readable as PPTX: it has no `{main}`"))?;
    let metadata = core_properties(&mut archive)?;
    let parts = relations::of(&mut archive, &main)?;
    let presentation = xml::parse(&text, &main)?;
    // A document of Word is none without slides.
    if name(presentation.root_element()) != "presentation" {
        return Err(format!("not readable as PPTX: `{main}` is no presentation"));
    }
    let slides = presentation.descendants().filter(|node| name(*node) == "sldId");
    let slides: Vec<String> = slides.filter_map(|node| parts.get(relation(node)?)?.path.clone()).collect();
    let (mut body, mut first, mut hidden) = (Body::default(), None, 0);
    for (index, part) in slides.iter().enumerate() {
        let Some(text) = archive.text(part)? else { continue };
        let slide = xml::parse(&text, part)?;
        if matches!(attribute(slide.root_element(), "show"), Some("0" | "false")) {
            hidden += 1;
            continue;
        }
        let links = relations::of(&mut archive, part)?;
        let (title, blocks) = shapes(slide.root_element(), &links);
        if index == 0 {
            first.clone_from(&title);
        }
        body.heading(1, &title.unwrap_or_else(|| format!("Slide {}", index + 1)));
        put(&blocks, &mut body);
        let notes = links.into_values().find(|link| link.kind == "notesSlide").and_then(|link| link.path);
        if let Some(notes) = notes
            && let Some(text) = archive.text(&notes)?
        {
            let links = relations::of(&mut archive, &notes)?;
            let parsed = xml::parse(&text, &notes)?;
            let (_, blocks) = shapes(parsed.root_element(), &links);
            if blocks.iter().any(|block| !block.is_empty()) {
                body.heading(2, "Speaker notes");
                put(&blocks, &mut body);
            }
        }
    }
    let mut left_out = LeftOut::default();
    left_out.count("hidden slide", "hidden slides", hidden);
    Ok(Parsed { left_out: left_out.into_notes(), ..Parsed::of(xml::own_title(&metadata).or(first), body, metadata) })
}

/// The relation that a node names: `id` may be a number of its own, `r:id` never is.
fn relation<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    let id = node.attributes().find(|attribute| attribute.name() == "id" && attribute.namespace().is_some())?;
    Some(id.value())
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
fn shapes(slide: Node<'_, '_>, links: &HashMap<String, Relation>) -> (Option<String>, Vec<Block>) {
    let (mut title, mut blocks) = (None, Vec::new());
    for shape in slide.descendants() {
        match name(shape) {
            "sp" => {
                let Some(body) = child(shape, "txBody") else { continue };
                let holder = below(shape, "ph").map(|node| attribute(node, "type").unwrap_or_default());
                let lines = paragraphs(body, links);
                match holder {
                    Some("sldNum" | "dt" | "ftr" | "hdr" | "sldImg") => {}
                    Some("title" | "ctrTitle") if title.is_none() => {
                        title = Some(one_line(&lines.join(" "))).filter(|title| !title.is_empty());
                    }
                    _ => blocks.push(Block::Text(lines)),
                }
            }
            "tbl" => blocks.push(Block::Table(rows(shape, links))),
            _ => {}
        }
    }
    (title, blocks)
}

/// A cell that goes on downwards is said in each of its rows.
fn rows(table: Node<'_, '_>, links: &HashMap<String, Relation>) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in table.children().filter(|node| name(*node) == "tr") {
        let mut cells = Vec::new();
        let said = |above: &&String| above.len() <= MAX_SPANNED_BYTES;
        for (column, cell) in row.children().filter(|node| name(*node) == "tc").enumerate() {
            let above = rows.last().and_then(|row| row.get(column)).filter(said);
            cells.push(match (attribute(cell, "vMerge"), above) {
                (Some("1" | "true"), Some(above)) => above.clone(),
                _ => child(cell, "txBody").map(|body| one_line(&paragraphs(body, links).join(" "))).unwrap_or_default(),
            });
        }
        rows.push(cells);
    }
    rows
}

fn paragraphs(body: Node<'_, '_>, links: &HashMap<String, Relation>) -> Vec<String> {
    body.children().filter(|node| name(*node) == "p").map(|node| paragraph(node, links)).collect()
}

fn paragraph(node: Node<'_, '_>, links: &HashMap<String, Relation>) -> String {
    let (mut text, mut link) = (String::new(), None::<(usize, &str)>);
    for part in node.children() {
        // A link is a run, or several in a row.
        let address = child(part, "rPr").and_then(|look| links.get(relation(child(look, "hlinkClick")?)?));
        let address = address.filter(|link| link.kind == "hyperlink").map(|link| link.target.as_str());
        if let Some((start, before)) = link
            && address != Some(before)
        {
            address::put(&mut text, start, before);
            link = None;
        }
        link = link.or_else(|| address.map(|address| (text.len(), address)));
        for part in part.descendants() {
            match name(part) {
                "t" => text.push_str(&xml::text(part)),
                "br" => text.push('\n'),
                "tab" => text.push('\t'),
                _ => {}
            }
        }
    }
    if let Some((start, address)) = link {
        address::put(&mut text, start, address);
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::zipped;

    const HEAD: &str = r#"xmlns:p="p" xmlns:a="a" xmlns:r="r""#;

    fn shape(paragraphs: &str) -> String {
        format!("<p:sp><p:txBody>{paragraphs}</p:txBody></p:sp>")
    }

    #[test]
    fn links_hidden_slides_and_merged_cells() {
        let run = |text: &str, look: &str| format!("<a:r><a:rPr>{look}</a:rPr><a:t>{text}</a:t></a:r>");
        let link = r#"<a:hlinkClick r:id="x"/>"#;
        let linked = shape(&format!("<a:p>{}{}{}.</a:p>", run("Order ", ""), run("the", link), run(" pass", link)));
        let cell = |more: &str, text: &str| {
            format!("<a:tc{more}><a:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p><a:p/></a:txBody></a:tc>")
        };
        let table = format!(
            "<a:tbl><a:tr>{}{}</a:tr><a:tr>{}{}</a:tr></a:tbl>",
            cell(r#" rowSpan="2""#, "Hall"),
            cell("", "Ladder"),
            cell(r#" vMerge="1""#, ""),
            cell("", "Winch")
        );
        let slide = |more: &str, shapes: &str| format!("<p:sld {HEAD}{more}>{shapes}</p:sld>");
        let relation = |id: &str, kind: &str, target: &str| {
            format!(r#"<Relationship Id="{id}" Type="x/{kind}" Target="{target}"/>"#)
        };
        let relations = |each: String| format!("<Relationships>{each}</Relationships>");
        let file = zipped(&[
            (
                PRESENTATION,
                &format!(
                    r#"<p:presentation {HEAD}><p:sldId id="256" r:id="a"/><p:sldId id="257" r:id="b"/></p:presentation>"#
                ),
            ),
            (
                "ppt/_rels/presentation.xml.rels",
                &relations(relation("a", "slide", "s1.xml") + &relation("b", "slide", "s2.xml")),
            ),
            ("ppt/s1.xml", &slide("", &(linked + &table))),
            ("ppt/_rels/s1.xml.rels", &relations(relation("x", "hyperlink", "https://a.example/7"))),
            ("ppt/s2.xml", &slide(r#" show="0""#, &shape("<a:p><a:r><a:t>Secret</a:t></a:r></a:p>"))),
        ]);
        let parsed = read(&file).unwrap();
        assert_eq!(
            parsed.text,
            "Slide 1\n\nOrder the pass (https://a.example/7)\n\n| Hall | Ladder |\n| --- | --- |\n| Hall | Winch |"
        );
        assert_eq!(parsed.left_out, ["1 hidden slide"]);
    }

    #[test]
    fn the_presentation_is_what_the_archive_names() {
        let named = r#"<Relationships><Relationship Id="a" Type="x/officeDocument" Target="/ppt/presentation2.xml"/></Relationships>"#;
        let with = |root: &str| {
            let main = format!(r#"<p:{root} {HEAD}><p:sldId id="256" r:id="a"/></p:{root}>"#);
            let slides = r#"<Relationships><Relationship Id="a" Type="x/slide" Target="s1.xml"/></Relationships>"#;
            let slide = format!("<p:sld {HEAD}>{}</p:sld>", shape("<a:p><a:r><a:t>Seven herons.</a:t></a:r></a:p>"));
            read(&zipped(&[
                ("_rels/.rels", named),
                ("ppt/presentation2.xml", &main),
                ("ppt/_rels/presentation2.xml.rels", slides),
                ("ppt/s1.xml", &slide),
            ]))
        };
        assert_eq!(with("presentation").unwrap().text, "Slide 1\n\nSeven herons.");
        assert!(with("document").unwrap_err().contains("no presentation"));
    }
}
