//! HTML as plain text: what a reader of the page sees, without what leads through the site.

mod dom;

use self::dom::{DOCUMENT, Data, Node, NodeId};
use super::body::{Body, one_line};
use super::metadata::FileMetadata;

/// A table with a longer cell arranges a page, and is no data.
const MAX_CELL_BYTES: usize = 2000;

/// What a page says.
#[derive(Debug, Default)]
pub struct Page {
    /// The `<title>`.
    pub title: Option<String>,
    pub body: Body,
    /// Author, date, description and keywords.
    pub metadata: FileMetadata,
}

/// Reads a page.
///
/// # Errors
/// Where it nests too deep.
pub fn page(source: &str) -> Result<Page, String> {
    let mut page = Page::default();
    append(source, &mut page)?;
    Ok(page)
}

/// Reads a page to the end of `page`, such as a chapter of a book.
///
/// # Errors
/// As [`page`].
pub fn append(source: &str, page: &mut Page) -> Result<(), String> {
    let nodes = dom::parse(source)?;
    let mut walk =
        Walk { layout: layout_tables(&nodes), nodes: &nodes, page, line: String::new(), pre: 0, items: 0, table: None };
    walk.run();
    Ok(())
}

/// Tables that have tables in them.
fn layout_tables(nodes: &[Node]) -> Vec<NodeId> {
    let (mut open, mut found) = (Vec::new(), Vec::new());
    visit(nodes, |id, node, is_end| {
        if node.name() == "table" {
            if is_end {
                open.pop();
            } else {
                found.extend(open.last().copied().filter(|last| found.last() != Some(last)));
                open.push(id);
            }
        }
        true
    });
    found.sort_unstable();
    found.dedup();
    found
}

/// All nodes, each when it begins, and again with its children when it ends; where `look` says no, neither its children nor its end.
fn visit(nodes: &[Node], mut look: impl FnMut(NodeId, &Node, bool) -> bool) {
    let mut at = DOCUMENT;
    let mut is_entered = look(at, &nodes[at as usize], false);
    loop {
        let node = &nodes[at as usize];
        let next = if let Some(first) = node.first.filter(|_| is_entered) {
            first
        } else {
            if is_entered {
                look(at, node, true);
            }
            match (node.next, node.parent) {
                (Some(next), _) => next,
                (None, None) => return,
                (None, Some(parent)) => match end(nodes, parent, &mut look) {
                    Some(next) => next,
                    None => return,
                },
            }
        };
        at = next;
        is_entered = look(at, &nodes[at as usize], false);
    }
}

/// Ends a node, and those around it that end with it; what comes next.
fn end(nodes: &[Node], mut at: NodeId, look: &mut impl FnMut(NodeId, &Node, bool) -> bool) -> Option<NodeId> {
    loop {
        let node = &nodes[at as usize];
        look(at, node, true);
        match node.next {
            Some(next) => return Some(next),
            None => at = node.parent?,
        }
    }
}

struct Walk<'a> {
    nodes: &'a [Node],
    page: &'a mut Page,
    layout: Vec<NodeId>,
    /// Of the block that is being read.
    line: String,
    /// How many elements around keep their white space, and how many are items of lists.
    pre: usize,
    items: usize,
    table: Option<Table>,
}

#[derive(Default)]
struct Table {
    rows: Vec<Vec<String>>,
    has_header: bool,
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
        if let Data::Text(text) = &node.data {
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
            name if is_left_out(name, node) => return false,
            "br" => self.line.push('\n'),
            "img" => self.text(node.attribute("alt").unwrap_or_default()),
            "pre" if self.table.is_none() => {
                self.flush();
                self.pre += 1;
            }
            "table" if self.is_data(id, node) => {
                self.flush();
                self.table = Some(Table::default());
            }
            "tr" => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            name @ ("td" | "th") if self.table.is_some() => {
                self.line.clear();
                if let Some(table) = &mut self.table {
                    table.has_header |= name == "th" && table.rows.len() <= 1;
                }
            }
            name if is_block(name) => {
                self.flush();
                self.items += usize::from(is_item(name));
            }
            _ => {}
        }
        true
    }

    fn leave(&mut self, _: NodeId, node: &Node) {
        match node.name() {
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
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            "caption" => {
                let caption = std::mem::take(&mut self.line);
                self.page.body.paragraph(&caption);
            }
            name if self.table.is_none() && self.pre == 0 => {
                if let Some(level) = heading_level(name) {
                    let heading = std::mem::take(&mut self.line);
                    self.page.body.heading(level, &heading);
                } else if is_block(name) {
                    self.flush();
                }
                self.items = self.items.saturating_sub(usize::from(is_item(name)));
            }
            name if is_block(name) => self.line.push(if self.pre > 0 { '\n' } else { ' ' }),
            _ => {}
        }
    }

    fn put_table(&mut self, table: &Table) {
        if table.rows.iter().flatten().any(|cell| cell.len() > MAX_CELL_BYTES) {
            table.rows.iter().flatten().for_each(|cell| self.page.body.paragraph(cell));
        } else {
            self.page.body.table(&table.rows, table.has_header);
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
        let text = std::mem::take(&mut self.line);
        let lines: Vec<&str> = text.trim().lines().map(str::trim).collect();
        let text = lines.join("\n");
        if self.items > 0 {
            self.page.body.line(&text);
        } else if !text.is_empty() {
            self.page.body.paragraph(&text);
            self.page.body.end_block();
        }
    }

    /// Whether a table is one of data, and not a page's arrangement.
    fn is_data(&self, id: NodeId, node: &Node) -> bool {
        let role = node.attribute("role").unwrap_or_default();
        self.table.is_none() && self.layout.binary_search(&id).is_err() && !matches!(role, "presentation" | "none")
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

fn heading_level(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', digit @ b'1'..=b'6'] => Some(digit - b'0'),
        _ => None,
    }
}

/// What is seen by nobody, what leads elsewhere, and what is to be clicked.
fn is_left_out(name: &str, node: &Node) -> bool {
    matches!(
        name,
        "script"
            | "style"
            | "template"
            | "nav"
            | "noscript"
            | "button"
            | "select"
            | "textarea"
            | "svg"
            | "iframe"
            | "object"
            | "audio"
            | "video"
            | "canvas"
            | "datalist"
    ) || node.attribute("hidden").is_some()
        || matches!(node.attribute("role"), Some("navigation" | "search" | "menu" | "menubar" | "toolbar"))
}

fn is_item(name: &str) -> bool {
    matches!(name, "li" | "dt" | "dd" | "summary")
}

fn is_block(name: &str) -> bool {
    is_item(name)
        || heading_level(name).is_some()
        || matches!(
            name,
            "address"
                | "article"
                | "aside"
                | "blockquote"
                | "body"
                | "caption"
                | "center"
                | "details"
                | "dialog"
                | "div"
                | "dl"
                | "fieldset"
                | "figcaption"
                | "figure"
                | "footer"
                | "form"
                | "header"
                | "hr"
                | "html"
                | "legend"
                | "main"
                | "menu"
                | "ol"
                | "p"
                | "pre"
                | "section"
                | "table"
                | "tbody"
                | "td"
                | "tfoot"
                | "th"
                | "thead"
                | "ul"
        )
}

#[cfg(test)]
mod tests {
    use crate::element::ElementKind;

    use super::*;

    fn text(source: &str) -> String {
        page(source).unwrap().body.finish().0
    }

    #[test]
    fn blocks_are_paragraphs_and_items_lines() {
        let source = "<h1>Herons</h1><p>They <b>stand</b>\n in <a href=x>reeds</a>.<p>Two<br>lines.\
                      <ul><li>one<li>two<ul><li>three</ul></ul>And <img alt='a picture'>.<pre>  a\n   b</pre><hr>End.";
        assert_eq!(
            text(source),
            "Herons\n\nThey stand in reeds.\n\nTwo\nlines.\n\none\ntwo\nthree\n\nAnd a picture.\n\n  a\n   b\n\nEnd."
        );
    }

    #[test]
    fn tables_of_data_are_rows_and_others_paragraphs() {
        let data = "<table><caption>Stones</caption><thead><tr><th>Name<th>Weight</thead><tr><td>Gra<i>nite</i><td>2|7<tr><td><p>Slate</p><td></table>";
        assert_eq!(text(data), "Stones\n\n| Name | Weight |\n| --- | --- |\n| Granite | 2\\|7 |\n| Slate |  |");
        let page = page(data).unwrap();
        assert_eq!(page.body.finish().1[0].kind, ElementKind::Table { header_lines: 2 });
        let layout = format!("<table><tr><td>Left<td><p>Right</p>{data}</table>");
        assert!(text(&layout).starts_with("Left\n\nRight\n\nStones\n\n| Name"), "{:?}", text(&layout));
    }

    #[test]
    fn navigation_and_scripts_are_left_out() {
        let source = "<title>T</title><meta name=Author content='Ada  L.'><nav>Home</nav><div role=navigation>Up</div><p hidden>x\
                      <script>a</script><style>b</style><template>c</template><button>Buy</button><noscript>d</noscript><p>Kept.";
        let page = page(source).unwrap();
        assert_eq!((page.title.as_deref(), page.metadata.get("author")), (Some("T"), Some("Ada L.")));
        assert_eq!(page.body.finish().0, "Kept.");
    }

    #[test]
    fn depth_has_an_end() {
        assert!(page(&"<div>a".repeat(100_000)).unwrap_err().contains("nests too deep"));
        assert!(text(&"<div>a".repeat(400)).starts_with("a\n\na"));
        // What stands in a table where it may not is put before it.
        assert_eq!(text(&"<table>a".repeat(50)), ["a"; 50].join("\n\n"));
    }
}
