//! Styles of OpenDocument: whose text is hidden or struck, which paragraphs are titles, how lists count.

use std::collections::{HashMap, HashSet};

use roxmltree::Node;

use crate::counting::Counting;
use crate::xml::{attribute, child, name};

/// Styles that are made from one another.
const MAX_BASES: usize = 16;

/// How text of a style looks; `None`: as that of its parent.
#[derive(Debug, Default)]
struct Style {
    parent: Option<String>,
    hidden: Option<bool>,
    struck: Option<bool>,
    list: Option<String>,
}

/// A level of a list.
#[derive(Debug, Clone)]
pub struct Level {
    pub counting: Counting,
    pub start: u32,
    prefix: String,
    suffix: String,
    /// How many levels' numbers are shown.
    shown: usize,
}

impl Level {
    fn of(node: Node<'_, '_>) -> Self {
        let text = |key| attribute(node, key).unwrap_or_default().to_owned();
        let number = |key| attribute(node, key).and_then(|number| number.parse().ok());
        let counting = match name(node) {
            "list-level-style-bullet" | "list-level-style-image" => Counting::Bullet,
            _ => Counting::of_open_document(attribute(node, "num-format").unwrap_or_default()),
        };
        let shown = number("display-levels").map_or(1, |levels| levels as usize);
        Self {
            counting,
            start: number("start-value").unwrap_or(1),
            prefix: text("num-prefix"),
            suffix: text("num-suffix"),
            shown,
        }
    }
}

/// Levels of a list, by their number from 1 on.
pub type Levels = HashMap<usize, Level>;

/// The number of an item, of the counts of all levels down to its own.
pub fn label(levels: &Levels, counts: &[u32]) -> Option<String> {
    let own = levels.get(&counts.len())?;
    match own.counting {
        Counting::Bullet => return Some("-".into()),
        Counting::Nothing => return None,
        _ => {}
    }
    let first = counts.len().saturating_sub(own.shown.max(1));
    let written = counts.iter().enumerate().skip(first).map(|(at, count)| {
        let counting = levels.get(&(at + 1)).map_or(Counting::Decimal, |level| level.counting);
        counting.write(*count)
    });
    let numbers: Vec<String> = written.filter(|number| !number.is_empty()).collect();
    Some(format!("{}{}{}", own.prefix.trim_start(), numbers.join("."), own.suffix.trim_end()))
}

/// All styles of a document.
#[derive(Debug, Default)]
pub struct Styles {
    styles: HashMap<String, Style>,
    lists: HashMap<String, Levels>,
    /// Numbers of headings.
    pub outline: Levels,
    /// Pages of a presentation that are not shown.
    hidden_pages: HashSet<String>,
}

impl Styles {
    /// Adds those of a part.
    pub fn add(&mut self, root: Node<'_, '_>) {
        for node in root.descendants() {
            let own = || attribute(node, "name").unwrap_or_default().to_owned();
            match name(node) {
                "style" => {
                    let look = child(node, "text-properties");
                    let value = |key| look.and_then(|look| attribute(look, key));
                    let line = value("text-line-through-style").or_else(|| value("text-line-through-type"));
                    let style = Style {
                        parent: attribute(node, "parent-style-name").map(str::to_owned),
                        hidden: value("display").map(|display| display == "none"),
                        struck: line.map(|line| line != "none"),
                        list: attribute(node, "list-style-name").filter(|name| !name.is_empty()).map(str::to_owned),
                    };
                    let page = child(node, "drawing-page-properties").and_then(|page| attribute(page, "visibility"));
                    self.hidden_pages.extend((page == Some("hidden")).then(own));
                    self.styles.insert(own(), style);
                }
                "list-style" => {
                    self.lists.insert(own(), levels(node));
                }
                "outline-style" => self.outline = levels(node),
                _ => {}
            }
        }
    }

    fn bases(&self, name: &str) -> impl Iterator<Item = &Style> {
        let parent = |style: &&Style| self.styles.get(style.parent.as_deref()?);
        std::iter::successors(self.styles.get(name), parent).take(MAX_BASES)
    }

    /// Whether text of a style is hidden; `None`: it does not say.
    pub fn hidden(&self, name: &str) -> Option<bool> {
        self.bases(name).find_map(|style| style.hidden)
    }

    /// Whether text of a style is struck; `None`: it does not say.
    pub fn struck(&self, name: &str) -> Option<bool> {
        self.bases(name).find_map(|style| style.struck)
    }

    /// Whether a style is, or is made from, one of this name.
    pub fn is(&self, name: &str, wanted: &str) -> bool {
        let mut parents = self.bases(name).filter_map(|style| style.parent.as_deref());
        name == wanted || parents.any(|parent| parent == wanted)
    }

    /// The list of a style's paragraphs.
    pub fn list_of(&self, name: &str) -> Option<&str> {
        self.bases(name).find_map(|style| style.list.as_deref())
    }

    /// How a list of this style counts.
    pub fn levels(&self, list: &str) -> Option<&Levels> {
        self.lists.get(list)
    }

    /// Whether a page of this style is not shown.
    pub fn is_hidden_page(&self, name: &str) -> bool {
        self.hidden_pages.contains(name)
    }
}

fn levels(node: Node<'_, '_>) -> Levels {
    let is_level =
        |node: &Node<'_, '_>| name(*node).starts_with("list-level-style") || name(*node) == "outline-level-style";
    let levels = node.children().filter(is_level);
    levels.filter_map(|node| Some((attribute(node, "level")?.parse().ok()?, Level::of(node)))).collect()
}
