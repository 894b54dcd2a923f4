//! XML files as text: records by the names of their elements, feeds and books by their titles and paragraphs. Nothing outside is followed.

use roxmltree::Node;

use super::address;
use super::body::{Body, one_line};
use super::html;
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::xml::{self, attribute, child, name};

/// What nests deeper is said as one paragraph.
const MAX_DEPTH: usize = 60;
/// Of the attributes of one element.
const MAX_ATTRIBUTES_BYTES: usize = 500;
/// Elements whose names say nothing that their texts do not.
const PROSE: &[&str] =
    &["p", "para", "simpara", "text", "paragraph", "line", "body", "content", "entry", "item", "li", "encoded"];
/// Elements that name what they stand in.
const TITLES: &[&str] = &["title", "heading", "headline"];
/// Elements whose lines count.
const CODE: &[&str] = &["programlisting", "screen", "literallayout", "pre", "synopsis"];

/// Reads a file.
///
/// # Errors
/// Where it is no XML, or declares entities.
pub fn read(text: &str) -> Result<Parsed, String> {
    let parsed = xml::parse_file(text)?;
    let mut reading = Reading { body: Body::default(), title: None };
    reading.element(parsed.root_element(), 0, 1);
    Ok(Parsed::of(reading.title, reading.body, FileMetadata::default()))
}

struct Reading {
    body: Body,
    title: Option<String>,
}

impl Reading {
    fn element(&mut self, node: Node<'_, '_>, depth: usize, level: u8) {
        let called = name(node);
        if CODE.contains(&called) {
            return self.body.code(&xml::text(node));
        }
        if is_mixed(node) || depth > MAX_DEPTH {
            return self.prose(node);
        }
        if !node.children().any(|child| child.is_element()) {
            return self.leaf(node);
        }
        if matches!(called, "table" | "informaltable") && self.table(node) {
            return;
        }
        if matches!(called, "itemizedlist" | "orderedlist" | "ul" | "ol") {
            return self.list(node);
        }
        let title = TITLES
            .iter()
            .find_map(|title| child(node, title))
            .filter(|title| !title.children().any(|node| node.is_element()));
        let level = self.heading(node, title, depth, level);
        let attributes = attributes(node);
        if !attributes.is_empty() {
            self.body.line(&attributes);
        }
        for node in node.children().filter(|child| child.is_element() && Some(*child) != title) {
            self.element(node, depth + 1, level);
        }
        self.body.end_block();
    }

    /// Says what comes: by its title, or by its name where no other element beside it has that. The level of headings in it.
    fn heading(&mut self, node: Node<'_, '_>, title: Option<Node<'_, '_>>, depth: usize, level: u8) -> u8 {
        self.body.end_block();
        let text = title.map(|title| one_line(&xml::text(title))).filter(|text| !text.is_empty());
        match text {
            Some(text) if self.title.is_none() && self.body.len() == 0 => {
                self.title = Some(text);
                level
            }
            Some(text) => {
                self.body.heading(level, &text);
                level.saturating_add(1).min(6)
            }
            None => {
                let is_same = |other: Option<Node<'_, '_>>| other.is_some_and(|other| name(other) == name(node));
                let is_alone = !is_same(node.prev_sibling_element()) && !is_same(node.next_sibling_element());
                if depth > 1 && is_alone {
                    self.body.line(&format!("{}:", name(node)));
                }
                level
            }
        }
    }

    /// A text among whose words are elements.
    fn prose(&mut self, node: Node<'_, '_>) {
        let text = one_line(&inline(node));
        self.body.paragraph(&labelled(node, &text));
    }

    fn leaf(&mut self, node: Node<'_, '_>) {
        let text = xml::text(node);
        // Feeds have pages in their texts.
        if ["</", "<p>", "<br"].iter().any(|tag| text.contains(tag))
            && let Ok(page) = html::page(&text)
        {
            return self.body.paragraph(&page.body.finish().0);
        }
        let (text, attributes) = (one_line(&text), attributes(node));
        let text = match (text.is_empty(), attributes.is_empty()) {
            (_, true) => text,
            (true, false) => attributes,
            (false, false) => format!("{text} ({attributes})"),
        };
        if text.is_empty() {
            return;
        }
        let text = labelled(node, &text);
        if PROSE.contains(&name(node)) { self.body.paragraph(&text) } else { self.body.line(&text) }
    }

    fn list(&mut self, node: Node<'_, '_>) {
        let is_ordered = matches!(name(node), "orderedlist" | "ol");
        self.body.end_block();
        for (index, item) in node.children().filter(|child| child.is_element()).enumerate() {
            let label = if is_ordered { format!("{}.", index + 1) } else { "-".to_owned() };
            let text = one_line(&inline(item));
            if !text.is_empty() {
                self.body.line(&format!("{label} {text}"));
            }
        }
        self.body.end_block();
    }

    /// Whether it was one of rows.
    fn table(&mut self, node: Node<'_, '_>) -> bool {
        let rows = node.descendants().filter(|node| matches!(name(*node), "row" | "tr"));
        let cells = |row: Node<'_, '_>| {
            let cells = row.children().filter(|node| matches!(name(*node), "entry" | "td" | "th"));
            cells.map(|cell| one_line(&inline(cell))).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<String>> = rows.map(cells).collect();
        if rows.iter().all(Vec::is_empty) {
            return false;
        }
        if let Some(title) = child(node, "title").or_else(|| child(node, "caption")) {
            self.body.paragraph(&one_line(&inline(title)));
        }
        self.body.table(&rows, true);
        true
    }
}

/// Whether words stand beside its elements.
fn is_mixed(node: Node<'_, '_>) -> bool {
    let has_text = |node: Node<'_, '_>| node.is_text() && node.text().is_some_and(|text| !text.trim().is_empty());
    node.children().any(has_text) && node.children().any(|child| child.is_element())
}

/// All text below an element, with the addresses of links.
fn inline(node: Node<'_, '_>) -> String {
    let (mut text, mut ends) = (String::new(), Vec::<(usize, usize, &str)>::new());
    for part in node.descendants() {
        while let Some((_, start, address)) = ends.pop_if(|(end, ..)| part.range().start >= *end) {
            address::put(&mut text, start, address);
        }
        if part.is_text() {
            text.push_str(part.text().unwrap_or_default());
        } else if matches!(name(part), "ulink" | "link" | "a") {
            let address = attribute(part, "url").or_else(|| attribute(part, "href"));
            ends.extend(address.map(|address| (part.range().end, text.len(), address)));
        } else if !text.ends_with(char::is_whitespace) && (PROSE.contains(&name(part)) || name(part) == "listitem") {
            text.push(' ');
        }
    }
    while let Some((_, start, address)) = ends.pop() {
        address::put(&mut text, start, address);
    }
    text
}

/// `maker: Harlow`.
fn labelled(node: Node<'_, '_>, text: &str) -> String {
    let called = name(node);
    let says_nothing = PROSE.contains(&called) || TITLES.contains(&called) || text.is_empty() || is_mixed(node);
    if says_nothing { text.to_owned() } else { format!("{called}: {text}") }
}

/// `id: 7, unit: kg`, without what is for programs.
fn attributes(node: Node<'_, '_>) -> String {
    let is_told = |attribute: &roxmltree::Attribute<'_, '_>| {
        let is_marked =
            attribute.namespace().is_some_and(|space| space.contains("www.w3.org/") && !space.ends_with("xlink"));
        let is_technical = matches!(attribute.name(), "version" | "class" | "style" | "encoding" | "isPermaLink");
        !is_marked && !is_technical && !attribute.value().trim().is_empty()
    };
    let each = node.attributes().filter(is_told).map(|one| format!("{}: {}", one.name(), one_line(one.value())));
    let text = each.collect::<Vec<_>>().join(", ");
    if text.len() > MAX_ATTRIBUTES_BYTES { String::new() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str) -> (Option<String>, String) {
        let parsed = read(source).unwrap();
        (parsed.title, parsed.text)
    }

    #[test]
    fn records_are_said_by_their_elements() {
        let source = "<?xml version=\"1.0\"?><parts xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:x=\"y\">\
                      <part id=\"7\"><name>Crank pin</name><size unit=\"mm\">12</size><maker><name>Harlow</name></maker></part>\
                      <part><name>Nut</name><note/></part></parts>";
        assert_eq!(
            text(source),
            (None, "id: 7\nname: Crank pin\nsize: 12 (unit: mm)\n\nmaker:\nname: Harlow\n\nname: Nut".into())
        );
    }

    #[test]
    fn books_and_feeds_have_titles_and_paragraphs() {
        let source = "<!DOCTYPE book PUBLIC \"-//OASIS//DTD DocBook XML V4.5//EN\" \"docbookx.dtd\"><book><title>Mill</title><chapter>\
                      <title>Grinding</title><para>Take <emphasis>rye</emphasis>, see <ulink url=\"https://a.example\">here</ulink>.</para>\
                      <orderedlist><listitem><para>Stop.</para></listitem><listitem><para>Go.</para></listitem></orderedlist>\
                      <screen>mill\n  --now</screen></chapter></book>";
        assert_eq!(
            text(source),
            (
                Some("Mill".into()),
                "Grinding\n\nTake rye, see here (https://a.example).\n\n1. Stop.\n2. Go.\n\nmill\n  --now".into()
            )
        );
        let feed = "<rss version=\"2.0\"><channel><title>News</title><link>https://a.example</link><item><title>Weir</title>\
                    <description>&lt;p&gt;Built of &lt;b&gt;larch&lt;/b&gt;.&lt;/p&gt;</description><pubDate>1 May</pubDate></item></channel></rss>";
        assert_eq!(
            text(feed),
            (Some("News".into()), "link: https://a.example\n\nWeir\n\nBuilt of larch.\npubDate: 1 May".into())
        );
    }

    #[test]
    fn entities_and_other_texts_are_refused() {
        assert!(
            read("<!DOCTYPE a [<!ENTITY b SYSTEM \"file:///etc/passwd\">]><a>&b;</a>")
                .unwrap_err()
                .contains("declares entities")
        );
        assert!(read("<a>").unwrap_err().contains("not readable as XML"));
        let deep = format!("{}x{}", "<a>".repeat(500), "</a>".repeat(500));
        assert!(text(&deep).1.ends_with('x'));
    }
}
