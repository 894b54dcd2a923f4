//! HTML as plain text: what a reader of the page sees, without what leads through the site. Links keep their addresses.

pub mod address;
mod attributes;
mod buttons;
mod dom;
mod hidden;
mod layout;
mod links;
mod names;
mod parts;
mod table;
mod visit;
mod words;

use self::address::Place;
use self::dom::{Data, Node, NodeId};
pub use self::hidden::is_hidden;
use self::layout::layout_tables;
pub use self::links::{Links, robots};
use self::names::{heading_level, is_block, is_item, is_unread};
use self::parts::Parts;
use self::table::Table;
use self::visit::visit;
use super::body::{Body, one_line};
use super::metadata::FileMetadata;
use super::parse::Parsed;

/// A table with a longer cell arranges a page, and is no data.
const MAX_CELL_BYTES: usize = 2000;
/// What cells that span others may add to a page: so many bytes for each of its own, and so many at the most.
const FILLED_BYTES_PER_BYTE: usize = 32;
const MAX_FILLED_BYTES: usize = 16 << 20;
/// Where a browser says from where it saved a page.
const SAVED_WITHIN: usize = 1024;
/// Around text that is struck, as Markdown has it.
const STRUCK: &str = "~~";

/// What a page says.
#[derive(Debug, Default)]
pub struct Page {
    /// The `<title>`.
    pub title: Option<String>,
    /// The first `<h1>`.
    pub heading: Option<String>,
    pub body: Body,
    /// Author, date, description and keywords.
    pub metadata: FileMetadata,
    /// Places with text that nobody sees, and with menus, banners and footers.
    pub hidden: usize,
    pub around: usize,
}

impl Page {
    /// What of it is not in the text, for people.
    pub fn left_out(&self) -> Vec<String> {
        let told = |what: &str, places: usize| match places {
            0 => None,
            1 => Some(format!("{what}: 1 place")),
            _ => Some(format!("{what}: {places} places")),
        };
        [told("hidden text", self.hidden), told("menus, banners and footers", self.around)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Reads a page.
///
/// # Errors
/// Where it nests too deep, or has more elements than a page of its length.
pub fn page(source: &str) -> Result<Page, String> {
    let mut page = Page::default();
    let nodes = parsed(source)?;
    let site = site(source, &nodes);
    read(&nodes, source.len(), &Parts::of_page(&nodes), site.as_deref(), &mut page);
    Ok(page)
}

/// A page as a document.
///
/// # Errors
/// As [`page`].
pub fn document(source: &str) -> Result<Parsed, String> {
    let page = page(source)?;
    let left_out = page.left_out();
    Ok(Parsed { left_out, ..Parsed::of(page.title, page.body, page.metadata) })
}

/// Reads a piece of HTML to the end of `page`, such as a chapter of a book.
///
/// # Errors
/// As [`page`].
pub fn append(source: &str, page: &mut Page) -> Result<(), String> {
    let nodes = parsed(source)?;
    read(&nodes, source.len(), &Parts::of_piece(&nodes), None, page);
    Ok(())
}

/// The element that a tag alone begins.
pub fn element(tag: &str) -> Option<Node> {
    let nodes = dom::parse(tag).ok()?;
    nodes.into_iter().find(|node| !matches!(node.name(), "" | "html" | "head" | "body"))
}

/// The nodes of a page, as it is to be read.
fn parsed(source: &str) -> Result<Vec<Node>, String> {
    let mut nodes = dom::parse(source)?;
    buttons::rename(&mut nodes);
    Ok(nodes)
}

fn read(nodes: &[Node], bytes: usize, parts: &Parts, site: Option<&str>, page: &mut Page) {
    page.hidden += parts.hidden;
    page.around += parts.around;
    let mut walk = Walk {
        layout: layout_tables(nodes),
        nodes,
        parts,
        page,
        line: String::new(),
        pre: 0,
        items: 0,
        table: None,
        room: bytes.saturating_mul(FILLED_BYTES_PER_BYTE).min(MAX_FILLED_BYTES),
        link: None,
        place: Place::Page(site),
        told: String::new(),
        is_heading: false,
        lists: Vec::new(),
        number: None,
    };
    walk.run();
}

/// The host that a page says it is of, or that a browser saved it from.
fn site(source: &str, nodes: &[Node]) -> Option<String> {
    let said = nodes.iter().find_map(|node| match node.name() {
        "link" => node.attribute("href").filter(|_| node.attribute("rel") == Some("canonical")),
        "meta" => node.attribute("content").filter(|_| node.attribute("property") == Some("og:url")),
        "base" => node.attribute("href"),
        _ => None,
    });
    let saved = || {
        let head = &source[..source.floor_char_boundary(SAVED_WITHIN)];
        head.split_once("<!-- saved from url=(").and_then(|(_, rest)| rest.split_once(')')).map(|(_, address)| address)
    };
    said.filter(|address| address.contains("//")).or_else(saved).and_then(address::host).map(str::to_owned)
}

struct Walk<'a> {
    nodes: &'a [Node],
    parts: &'a Parts,
    page: &'a mut Page,
    layout: Vec<NodeId>,
    /// Of the block that is being read.
    line: String,
    /// How many elements around keep their white space, and how many are items of lists.
    pre: usize,
    items: usize,
    table: Option<Table>,
    /// Bytes that cells which span others may still take.
    room: usize,
    link: Option<Link>,
    place: Place<'a>,
    /// The address that was told last.
    told: String,
    is_heading: bool,
    /// Of the lists around, the number of the next item; `None` where they have none.
    lists: Vec<Option<u64>>,
    /// That of the item that begins.
    number: Option<u64>,
}

/// A link that is being read.
struct Link {
    address: String,
    /// Where its words begin in the line.
    start: usize,
    /// Whether it is more than a picture.
    has_words: bool,
}

impl Walk<'_> {
    fn run(&mut self) {
        let nodes = self.nodes;
        visit(nodes, |id, node, is_end| {
            if is_end {
                self.leave(id, node);
                true
            } else {
                self.enter(id, node)
            }
        });
        self.flush();
        self.page.body.end_block();
    }

    /// Whether what is below counts.
    fn enter(&mut self, id: NodeId, node: &Node) -> bool {
        if self.parts.leave_out(id) {
            return false;
        }
        if let Data::Text(text) = &node.data {
            if let Some(link) = &mut self.link {
                link.has_words |= !text.trim().is_empty();
            }
            self.text(text);
            return false;
        }
        match node.name() {
            "title" => {
                let title = Some(self.text_of(node)).filter(|title| !title.is_empty());
                self.page.title = self.page.title.take().or(title);
                return false;
            }
            "meta" => self.meta(node),
            name if is_unread(name) => return false,
            "a" => {
                let address = node.attribute("href").filter(|_| self.pre == 0).map(str::to_owned);
                self.link = address.map(|address| Link { address, start: self.line.len(), has_words: false });
            }
            "br" => self.line.push('\n'),
            // Several may stand side by side.
            buttons::SAID => self.text(" "),
            "s" | "del" | "strike" if self.pre == 0 => self.line.push_str(STRUCK),
            "img" => self.text(node.attribute("alt").unwrap_or_default()),
            "pre" if self.table.is_none() => {
                self.flush();
                self.pre += 1;
            }
            "table" if self.is_data(id, node) => {
                self.flush();
                self.table = Some(Table::default());
            }
            name @ ("thead" | "tbody" | "tfoot" | "tr" | "td" | "th") if self.table.is_some() => self.enter_table(name),
            name if is_block(name) => {
                self.flush();
                self.is_heading |= heading_level(name).is_some();
                self.items += usize::from(is_item(name));
                self.begin_list(name, node);
            }
            _ => {}
        }
        true
    }

    /// Enters a part of a table of data.
    fn enter_table(&mut self, name: &str) {
        let Some(table) = &mut self.table else { return };
        match name {
            "tr" => table.begin_row(),
            "td" | "th" => self.line.clear(),
            _ => table.begin_group(),
        }
    }

    fn leave(&mut self, _: NodeId, node: &Node) {
        match node.name() {
            "a" => self.end_link(),
            buttons::SAID => self.text(" "),
            "s" | "del" | "strike" if self.pre == 0 => match self.line.strip_suffix(STRUCK) {
                Some(before) => self.line.truncate(before.len()),
                None => self.line.push_str(STRUCK),
            },
            "pre" if self.pre > 0 => {
                self.pre -= 1;
                let code = std::mem::take(&mut self.line);
                self.page.body.code(&code);
            }
            "table" => {
                if let Some(table) = self.table.take() {
                    self.line.clear();
                    self.put_table(&table);
                }
            }
            "td" | "th" if self.table.is_some() => {
                let cell = one_line(&std::mem::take(&mut self.line));
                if let Some(table) = &mut self.table {
                    table.put(node, cell);
                }
            }
            "caption" if self.pre == 0 => {
                let caption = std::mem::take(&mut self.line);
                self.page.body.paragraph(&caption);
            }
            name if self.table.is_none() && self.pre == 0 => {
                if let Some(level) = heading_level(name) {
                    let heading = std::mem::take(&mut self.line);
                    if level == 1 && self.page.heading.is_none() {
                        self.page.heading = Some(one_line(&heading)).filter(|heading| !heading.is_empty());
                    }
                    self.is_heading = false;
                    self.page.body.heading(level, &heading);
                } else if is_block(name) {
                    self.flush();
                }
                self.items = self.items.saturating_sub(usize::from(is_item(name)));
                match name {
                    "ol" | "ul" | "menu" => drop(self.lists.pop()),
                    "li" => self.number = None,
                    _ => {}
                }
            }
            name if is_block(name) => self.line.push(if self.pre > 0 { '\n' } else { ' ' }),
            _ => {}
        }
    }

    /// Puts the address behind the words. A heading keeps one only if it leads elsewhere.
    fn end_link(&mut self) {
        let Some(link) = self.link.take().filter(|link| link.has_words) else { return };
        let words = self.line.get(link.start..).unwrap_or_default();
        let is_place = |address: &String| !self.is_heading || (address.contains("//") && !address.contains('#'));
        let Some(address) = address::told(&link.address, words, self.place).filter(is_place) else { return };
        // A link that is never closed begins anew in each block.
        if address != self.told {
            let end = self.line.trim_end().len();
            let space = self.line.split_off(end);
            self.line.push_str(&format!(" ({address}){space}"));
            self.told = address;
        }
    }

    /// Rows; or its cells one below the other, where they are no data or too many to be put into columns.
    fn put_table(&mut self, table: &Table) {
        let is_data = table.cells().all(|cell| cell.len() <= MAX_CELL_BYTES);
        match is_data.then(|| table.lines(&mut self.room)).flatten() {
            Some(lines) => self.page.body.lines(&lines, table.has_header),
            None => table.cells().for_each(|cell| self.page.body.paragraph(cell)),
        }
    }

    fn text(&mut self, text: &str) {
        if self.pre > 0 {
            self.line.push_str(text);
            return;
        }
        for part in text.split_inclusive(char::is_whitespace) {
            let word = part.trim_end();
            self.line.push_str(word);
            if word.len() < part.len() && !self.line.ends_with([' ', '\n']) {
                self.line.push(' ');
            }
        }
    }

    /// Ends the block that is being read.
    fn flush(&mut self) {
        if self.table.is_some() || self.pre > 0 {
            return;
        }
        // The words of a link around several blocks are those of the first.
        if self.link.as_ref().is_some_and(|link| link.has_words) {
            self.end_link();
        }
        let text = std::mem::take(&mut self.line);
        let lines: Vec<&str> = text.trim().lines().map(str::trim).collect();
        let mut text = lines.join("\n");
        // What is struck as a whole has its marks in no line of its own.
        if text.is_empty() || text == STRUCK {
            return;
        }
        if let Some(number) = self.number.take() {
            text = format!("{number}. {text}");
        }
        if self.items > 0 {
            self.page.body.line(&text);
        } else {
            self.page.body.paragraph(&text);
            self.page.body.end_block();
        }
    }

    /// Numbers the items of a list that has numbers.
    fn begin_list(&mut self, name: &str, node: &Node) {
        let number = |name: &str| node.attribute(name).and_then(|number| number.trim().parse::<u64>().ok());
        match (name, self.lists.last_mut()) {
            ("ol", _) => self.lists.push(Some(number("start").unwrap_or(1))),
            ("ul" | "menu", _) => self.lists.push(None),
            ("li", Some(Some(next))) => {
                let own = number("value").unwrap_or(*next);
                *next = own.saturating_add(1);
                self.number = Some(own).filter(|_| self.table.is_none());
            }
            _ => {}
        }
    }

    /// Whether a table is one of data, and not a page's arrangement or a part of code.
    fn is_data(&self, id: NodeId, node: &Node) -> bool {
        let role = node.attribute("role").unwrap_or_default();
        let arranges = self.layout.binary_search(&id).is_ok() || matches!(role, "presentation" | "none");
        self.table.is_none() && self.pre == 0 && !arranges
    }

    fn text_of(&self, node: &Node) -> String {
        let mut text = String::new();
        let mut next = node.first;
        while let Some(id) = next {
            let child = &self.nodes[id as usize];
            if let Data::Text(part) = &child.data {
                text.push_str(part);
            }
            next = child.next;
        }
        one_line(&text)
    }

    fn meta(&mut self, node: &Node) {
        let name = node.attribute("name").or_else(|| node.attribute("property")).unwrap_or_default();
        let key = match name.to_ascii_lowercase().as_str() {
            "author" | "dc.creator" | "dcterms.creator" => "author",
            "date" | "dc.date" | "dcterms.date" | "article:published_time" => "date",
            "description" => "description",
            "keywords" => "keywords",
            _ => return,
        };
        self.page.metadata.add_some(key, node.attribute("content"));
    }
}

#[cfg(test)]
mod tests;
