//! Which parts of a page are its text: not what nobody sees, and not what stands around the text of each page of a site (menus, banners,
//! footers), unless little would be left then. After the idea of Kohlschütter et al., "Boilerplate Detection using Shallow Text Features"
//! (2010): how much of a block is links says most; here elements, roles and class names count before it.

use super::dom::{DOCUMENT, Data, Node, NodeId};
use super::hidden::Hidden;
use super::names::is_unread;
use super::visit::visit;
use super::words::{self, Around};

/// Of what is displayed, one part in so many is left at least.
const LEAST_SHARE: usize = 5;
/// Letters of a short text, which has to be a third of what is displayed.
const SHORT: usize = 200;
/// A block of this many links, before any text begins, leads through the site.
const MENU_LINKS: u32 = 3;
/// Letters without links in one piece: a text has begun.
const PARAGRAPH: usize = 80;

/// What of a page is not read.
#[derive(Debug, Default)]
pub struct Parts {
    /// In order, so that one is found fast.
    left_out: Vec<NodeId>,
    /// Places with hidden text.
    pub hidden: usize,
    /// Places with menus, banners, footers.
    pub around: usize,
}

impl Parts {
    /// Of a whole page.
    pub fn of_page(nodes: &[Node]) -> Self {
        let measured = Measured::of(nodes, Hidden::of(nodes));
        let menus = measured.without(Rule::Menus);
        let around = measured.without(Rule::Around(None));
        let is_enough = |left: usize, all: usize| left * LEAST_SHARE >= all && (left >= SHORT || left * 3 >= all);
        let main = measured.main().map(|main| measured.without(Rule::Around(Some(main))));
        let main = main.filter(|main| {
            let share = if measured.mains.is_empty() { 2 } else { LEAST_SHARE };
            main.left * share >= around.left && is_enough(main.left, menus.left)
        });
        let chosen = main.or_else(|| Some(around).filter(|around| is_enough(around.left, menus.left)));
        measured.parts(chosen.unwrap_or(menus))
    }

    /// Of a piece of HTML in something else, such as a mail or a book's chapter: nobody put menus and footers around it.
    pub fn of_piece(nodes: &[Node]) -> Self {
        let measured = Measured::of(nodes, Hidden::of(nodes));
        let menus = measured.without(Rule::Menus);
        measured.parts(menus)
    }

    pub fn leave_out(&self, id: NodeId) -> bool {
        self.left_out.binary_search(&id).is_ok()
    }
}

/// What is below a node and displayed.
#[derive(Debug, Default, Clone, Copy)]
pub struct Size {
    /// Letters and digits, and how many of them are in links.
    pub letters: usize,
    pub linked: usize,
    pub links: u32,
    /// Whether there is a first heading that is no link, and the page's main part.
    pub has_title: bool,
    pub has_main: bool,
}

impl Size {
    /// Links say less than text.
    fn weight(self) -> usize {
        self.letters - self.linked + self.linked / 4
    }

    fn add(&mut self, other: Self) {
        self.letters += other.letters;
        self.linked += other.linked;
        self.links += other.links;
        self.has_title |= other.has_title;
        self.has_main |= other.has_main;
    }
}

/// What is left out.
#[derive(Clone, Copy)]
enum Rule {
    /// What says that it is a menu.
    Menus,
    /// All that stands around the text, and all outside of the main part where there is one.
    Around(Option<NodeId>),
}

/// What comes of a rule.
struct Chosen {
    left_out: Vec<NodeId>,
    places: usize,
    /// The weight of what is left.
    left: usize,
}

struct Measured<'a> {
    nodes: &'a [Node],
    hidden: Hidden,
    sizes: Vec<Size>,
    /// Main parts, and articles that are not in one another.
    mains: Vec<NodeId>,
    articles: Vec<NodeId>,
}

impl<'a> Measured<'a> {
    fn of(nodes: &'a [Node], hidden: Hidden) -> Self {
        let mut measured =
            Self { nodes, hidden, sizes: vec![Size::default(); nodes.len()], mains: Vec::new(), articles: Vec::new() };
        let (mut links, mut articles) = (0_usize, 0_usize);
        visit(nodes, |id, node, is_end| {
            let name = node.name();
            if is_end {
                links -= usize::from(name == "a");
                articles -= usize::from(is_apart(name));
                let size = &mut measured.sizes[id as usize];
                // A heading whose words are a link is the site's name.
                size.has_title |= name == "h1" && links == 0 && size.linked < size.letters;
                let size = *size;
                if let Some(parent) = node.parent {
                    measured.sizes[parent as usize].add(size);
                }
                return true;
            }
            if is_unread(name) || name == "title" || measured.hidden.has(id) {
                return false;
            }
            if let Data::Text(text) = &node.data {
                let letters = text.chars().filter(|c| c.is_alphanumeric()).count();
                let linked = if links > 0 { letters } else { 0 };
                if let Some(parent) = node.parent {
                    measured.sizes[parent as usize].add(Size { letters, linked, ..Size::default() });
                }
                return false;
            }
            let size = &mut measured.sizes[id as usize];
            size.links = u32::from(name == "a");
            if is_main(node) {
                size.has_main = true;
                measured.mains.push(id);
            } else if name == "article" && articles == 0 {
                measured.articles.push(id);
            }
            links += usize::from(name == "a");
            articles += usize::from(is_apart(name));
            true
        });
        measured
    }

    /// The one part of the page that says it is its text.
    fn main(&self) -> Option<NodeId> {
        match (self.mains.as_slice(), self.articles.as_slice()) {
            ([main], _) | ([], [main]) => Some(*main),
            _ => None,
        }
    }

    fn without(&self, rule: Rule) -> Chosen {
        let main = match rule {
            Rule::Around(main) => main,
            Rule::Menus => None,
        };
        let ways: Vec<NodeId> = std::iter::successors(main, |at| self.nodes[*at as usize].parent).collect();
        let total = self.sizes[DOCUMENT as usize];
        let mut chosen = Chosen { left_out: Vec::new(), places: 0, left: total.weight() };
        let (mut within, mut in_main, mut has_begun) = (0_usize, 0_usize, false);
        visit(self.nodes, |id, node, is_end| {
            let (name, scope) = (node.name(), usize::from(is_scope(node)));
            if is_end {
                within -= scope;
                in_main -= usize::from(main == Some(id));
                return true;
            }
            if matches!(name, "head" | "title") || is_unread(name) || self.hidden.has(id) {
                return false;
            }
            let size = self.size(id, node);
            let is_left_out = match rule {
                Rule::Menus => words::is_menu(node),
                Rule::Around(main) => {
                    let is_outside = main.is_some() && in_main == 0 && !ways.contains(&id);
                    let leads = main.is_none() && !has_begun && leads(name, size) && total.weight() >= 2 * SHORT;
                    is_outside || words::is_menu(node) || leads || {
                        let around = Around { within: within > 0, all: total.letters, size };
                        around.has(node)
                    }
                }
            };
            if is_left_out {
                chosen.left_out.push(id);
                chosen.places += usize::from(size.letters > 0);
                chosen.left = chosen.left.saturating_sub(size.weight());
                return false;
            }
            has_begun |= match &node.data {
                Data::Text(_) => size.letters >= PARAGRAPH,
                _ => matches!(name, "h1" | "h2") && size.linked < size.letters,
            };
            within += scope;
            in_main += usize::from(main == Some(id));
            true
        });
        chosen
    }

    fn size(&self, id: NodeId, node: &Node) -> Size {
        match &node.data {
            Data::Text(text) => {
                Size { letters: text.chars().filter(|c| c.is_alphanumeric()).count(), ..Size::default() }
            }
            _ => self.sizes[id as usize],
        }
    }

    fn parts(self, chosen: Chosen) -> Parts {
        let Hidden { nodes: mut left_out, places: hidden } = self.hidden;
        let mut around = 0;
        // A page of nothing but menus is a list of links.
        if chosen.left > 0 {
            left_out.extend(chosen.left_out);
            around = chosen.places;
        }
        left_out.sort_unstable();
        Parts { left_out, hidden, around }
    }
}

/// Whether a block is links and hardly anything else.
fn leads(name: &str, size: Size) -> bool {
    matches!(name, "div" | "ul" | "ol" | "table" | "section" | "p" | "td" | "center" | "form")
        && size.links >= MENU_LINKS
        && size.linked * 5 >= size.letters * 4
}

fn is_main(node: &Node) -> bool {
    node.name() == "main" || node.attribute("role") == Some("main")
}

/// Whether headers and footers below belong to it, and not to the page.
fn is_scope(node: &Node) -> bool {
    matches!(node.name(), "article" | "section" | "blockquote") || is_main(node)
}

/// Whether articles below are none of the page's own.
fn is_apart(name: &str) -> bool {
    matches!(name, "article" | "aside" | "nav" | "footer")
}
