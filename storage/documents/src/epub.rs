//! Books: the chapters in the order in which they are read, as one document, then what only links lead to, such as notes. The table of
//! contents is left out.

use std::collections::{HashMap, HashSet};

use roxmltree::Document;

use super::archive::{Archive, resolve};
use super::html::{self, Page};
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::xml::{self, attribute, name};

const CONTAINER: &str = "META-INF/container.xml";

/// A chapter as the package lists it.
struct Item {
    path: String,
    /// Whether it is text, and none that leads through the book.
    is_chapter: bool,
}

/// Reads a book.
///
/// # Errors
/// Where it is none, its chapters are encrypted, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut archive = Archive::open(bytes, "EPUB")?;
    let no_book = || "not readable as EPUB: it names no book".to_owned();
    let container = archive.text(CONTAINER)?.ok_or_else(no_book)?;
    let place = {
        let parsed = part(&container, CONTAINER)?;
        let file =
            parsed.descendants().find(|node| name(*node) == "rootfile").and_then(|node| attribute(node, "full-path"));
        file.ok_or_else(no_book)?.to_owned()
    };
    let package = archive.text(&place)?.ok_or_else(no_book)?;
    let package = part(&package, &place)?;
    let mut metadata = FileMetadata::default();
    if let Some(about) = xml::below(package.root_element(), "metadata") {
        xml::dublin_core(about, &mut metadata);
    }
    let mut items = HashMap::new();
    for node in package.descendants().filter(|node| name(*node) == "item") {
        let (Some(id), Some(link)) = (attribute(node, "id"), attribute(node, "href")) else { continue };
        let kind = attribute(node, "media-type").unwrap_or_default();
        let leads = attribute(node, "properties").unwrap_or_default().split(' ').any(|word| word == "nav");
        let is_chapter = !leads && matches!(kind, "application/xhtml+xml" | "text/html" | "");
        if let Some(path) = resolve(&place, link) {
            items.insert(id, Item { path, is_chapter });
        }
    }
    // Fonts may be encrypted, too, in a book that can be read.
    let is_protected = archive.has("META-INF/encryption.xml");
    let mut page = Page::default();
    let spine = package.descendants().filter(|node| name(*node) == "itemref");
    let (asides, chapters): (Vec<_>, Vec<_>) = spine.partition(|node| attribute(*node, "linear") == Some("no"));
    let listed = |chapter| attribute(chapter, "idref").and_then(|id| items.get(id)).filter(|item| item.is_chapter);
    // Books before EPUB 3 say in another place what their table of contents is.
    let contents: HashSet<String> = package
        .descendants()
        .filter(|node| name(*node) == "reference" && attribute(*node, "type") == Some("toc"))
        .filter_map(|node| resolve(&place, attribute(node, "href")?))
        .collect();
    let asides = asides.into_iter().filter_map(listed).filter(|item| !contents.contains(&item.path));
    for item in chapters.into_iter().filter_map(listed).chain(asides) {
        let source = archive.text(&item.path).map_err(|why| {
            if is_protected {
                "its chapters are encrypted (copy protection), and cannot be read".to_owned()
            } else {
                why
            }
        })?;
        if let Some(source) = source {
            html::append(&closed(&source), &mut page)?;
        }
    }
    let left_out = page.left_out();
    Ok(Parsed { left_out, ..Parsed::of(metadata.get("title").map(str::to_owned), page.body, metadata) })
}

/// A part of XML, which may name a DTD: old books do.
fn part<'a>(text: &'a str, name: &str) -> Result<Document<'a>, String> {
    xml::parse_file(text).map_err(|why| format!("its part `{name}`: {why}"))
}

/// XHTML as HTML: there `<title/>` and `<a id="x"/>` would stay open.
fn closed(source: &str) -> String {
    let mut html = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(end) = rest.find("/>") {
        let (before, after) = (&rest[..end], &rest[end + 2..]);
        let tag = before.rfind('<').map(|at| &before[at + 1..]).unwrap_or_default();
        let called: &str = tag.split(|c: char| c.is_whitespace()).next().unwrap_or_default();
        html.push_str(before);
        let is_name = !called.is_empty() && called.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | ':'));
        if is_name && !is_void(called) {
            html.push_str(&format!("></{called}>"));
        } else {
            html.push_str("/>");
        }
        rest = after;
    }
    html.push_str(rest);
    html
}

/// Elements of HTML that never have an end.
fn is_void(name: &str) -> bool {
    matches!(
        name,
        "area"
            | "base"
            | "br"
            | "col"
            | "embed"
            | "hr"
            | "img"
            | "input"
            | "link"
            | "meta"
            | "source"
            | "track"
            | "wbr"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::zipped;

    #[test]
    fn elements_without_content_are_closed() {
        assert_eq!(closed("<title/><br/><a id=\"x\"/>1 /> 2<p >"), "<title></title><br/><a id=\"x\"></a>1 /> 2<p >");
    }

    const CHAPTERS: [&str; 4] = ["one", "notes", "contents", "two"];

    /// A book whose notes and contents are not read in its order, with what its package begins with.
    fn book(head: &str, guide: &str) -> Result<Parsed, String> {
        let items: String = CHAPTERS
            .into_iter()
            .map(|id| format!("<item id=\"{id}\" href=\"{id}.html\" media-type=\"application/xhtml+xml\"/>"))
            .collect();
        let linear = |id: &str| if matches!(id, "notes" | "contents") { " linear=\"no\"" } else { "" };
        let spine: String = CHAPTERS.into_iter().map(|id| format!("<itemref idref=\"{id}\"{}/>", linear(id))).collect();
        let parts = format!("<manifest>{items}</manifest><spine>{spine}</spine><guide>{guide}</guide>");
        let package = format!("{head}<package>{parts}</package>");
        let pages = CHAPTERS.map(|id| (format!("b/{id}.html"), format!("<p>This is {id}.</p>")));
        let container = "<container><rootfile full-path=\"b/book.opf\"/></container>";
        let mut parts = vec![(CONTAINER, container), ("b/book.opf", package.as_str())];
        parts.extend(pages.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        read(&zipped(&parts))
    }

    #[test]
    fn what_only_links_lead_to_stands_behind_the_chapters() {
        let parsed = book("", "<reference type=\"toc\" href=\"contents.html#x\"/>").unwrap();
        assert_eq!(parsed.text, "This is one.\n\nThis is two.\n\nThis is notes.");
        let parsed = book("", "").unwrap();
        assert!(parsed.text.ends_with("This is notes.\n\nThis is contents."), "{}", parsed.text);
    }

    #[test]
    fn a_package_may_name_a_dtd_and_declare_no_entities() {
        let dtd = "PUBLIC \"+//ISBN 0-9673008-1-9//DTD OEB 1.2 Package//EN\" \"http://openebook.org/dtds/oeb-1.2/oebpkg12.dtd\"";
        let parsed = book(&format!("<!DOCTYPE package {dtd}>"), "").unwrap();
        assert!(parsed.text.starts_with("This is one."), "{}", parsed.text);
        let why = book("<!DOCTYPE package [<!ENTITY a \"b\">]>", "").unwrap_err();
        assert!(why.contains("`b/book.opf`") && why.contains("entities"), "{why}");
    }
}
