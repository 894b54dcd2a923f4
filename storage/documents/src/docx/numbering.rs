//! Numbers of lists: Word stores how they are made, and counts when it shows them.

use std::collections::{HashMap, HashSet};

use roxmltree::Node;

use super::super::counting::Counting;
use crate::xml::{self, attribute, child, name};

/// Word has no more.
const LEVELS: usize = 9;
/// Of one number.
const MAX_LABEL_BYTES: usize = 200;

/// How the items of a level are numbered.
#[derive(Debug, Clone)]
struct Level {
    start: u32,
    counting: Counting,
    /// `%1.%2.`, where `%1` is the number of the first level.
    text: String,
    /// The level (from 1) whose items make this one begin anew; 0: none does.
    restart: Option<usize>,
    /// Whether all numbers of its text are written 1, 2, 3.
    is_legal: bool,
    /// The style whose paragraphs are of this level.
    style: Option<String>,
}

/// A definition that lists are made from.
#[derive(Debug, Default)]
struct Definition {
    levels: HashMap<usize, Level>,
    /// The style whose definition is meant.
    style: Option<String>,
}

/// A list.
#[derive(Debug, Default)]
struct List {
    definition: String,
    starts: HashMap<usize, u32>,
    levels: HashMap<usize, Level>,
}

/// Lists of a document, and how far they are counted.
#[derive(Debug, Default)]
pub struct Numbering {
    definitions: HashMap<String, Definition>,
    /// Definitions by the styles that they stand for.
    styled: HashMap<String, String>,
    lists: HashMap<String, List>,
    /// By definition: lists of one definition go on counting.
    counts: HashMap<String, [Option<u32>; LEVELS]>,
    /// Lists that had an item.
    begun: HashSet<String>,
}

impl Numbering {
    /// Reads `word/numbering.xml`.
    ///
    /// # Errors
    /// Where it is no XML.
    pub fn read(text: &str) -> Result<Self, String> {
        let parsed = xml::parse(text, "word/numbering.xml")?;
        let mut numbering = Self::default();
        for node in parsed.root_element().children() {
            match (name(node), attribute(node, "abstractNumId"), attribute(node, "numId")) {
                ("abstractNum", Some(id), _) => {
                    if let Some(style) = value(node, "styleLink") {
                        numbering.styled.insert(style.to_owned(), id.to_owned());
                    }
                    numbering.definitions.insert(id.to_owned(), definition(node));
                }
                ("num", _, Some(id)) => {
                    numbering.lists.insert(id.to_owned(), list(node));
                }
                _ => {}
            }
        }
        Ok(numbering)
    }

    /// The number of the next item of a list, such as `3.`; `-` for a bullet. `style` is the item's, which may say how deep it is.
    pub fn next(&mut self, number: &str, level: Option<usize>, style: Option<&str>) -> Option<String> {
        let list = self.lists.get(number)?;
        let definition = self.definition(&list.definition)?;
        let styled = || {
            let is_styled = |(_, level): &(&usize, &Level)| level.style.is_some() && level.style.as_deref() == style;
            definition.levels.iter().find(is_styled).map(|(level, _)| *level)
        };
        let at = level.or_else(styled).unwrap_or(0).min(LEVELS - 1);
        let find = |level: usize| list.levels.get(&level).or_else(|| definition.levels.get(&level));
        let start = |level: usize| {
            let own = list.starts.get(&level).copied();
            own.or_else(|| find(level).map(|level| level.start)).unwrap_or(1)
        };
        let mut counts = self.counts.get(&list.definition).copied().unwrap_or_default();
        if !self.begun.contains(number) {
            list.starts.keys().for_each(|level| counts[*level] = None);
        }
        counts[at] = Some(counts[at].map_or_else(|| start(at), |count| count.saturating_add(1)));
        for (below, count) in counts.iter_mut().enumerate().skip(at + 1) {
            let restart = find(below).and_then(|level| level.restart);
            if restart.is_none_or(|restart| at < restart) {
                *count = None;
            }
        }
        let label = find(at).and_then(|level| {
            let number = |at: usize| {
                let count = counts.get(at).copied().flatten().unwrap_or_else(|| start(at));
                let counting = find(at).map_or(Counting::Decimal, |level| level.counting);
                if level.is_legal { Counting::Decimal.write(count) } else { counting.write(count) }
            };
            label(level, number)
        });
        self.counts.insert(list.definition.clone(), counts);
        self.begun.insert(number.to_owned());
        label
    }

    /// A definition, perhaps through the style that it names.
    fn definition(&self, id: &str) -> Option<&Definition> {
        let own = self.definitions.get(id)?;
        let linked = own.style.as_ref().filter(|_| own.levels.is_empty());
        let of_style = |style: &String| self.definitions.get(self.styled.get(style)?);
        Some(linked.and_then(of_style).unwrap_or(own))
    }
}

fn label(level: &Level, number: impl Fn(usize) -> String) -> Option<String> {
    if level.counting == Counting::Bullet {
        return Some("-".into());
    }
    let mut label = String::new();
    let mut rest = level.text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek().and_then(|digit| digit.to_digit(10))) {
            ('%', Some(digit @ 1..)) => {
                rest.next();
                label.push_str(&number(digit as usize - 1));
            }
            _ => label.push(c),
        }
        if label.len() > MAX_LABEL_BYTES {
            return None;
        }
    }
    let label = super::super::body::one_line(&label);
    (!label.is_empty()).then_some(label)
}

fn value<'a>(node: Node<'a, '_>, wanted: &str) -> Option<&'a str> {
    attribute(child(node, wanted)?, "val")
}

fn levels(node: Node<'_, '_>) -> HashMap<usize, Level> {
    let levels = node.children().filter(|node| name(*node) == "lvl");
    levels.filter_map(|node| Some((place(node)?, level(node)))).collect()
}

/// Which level it is about.
fn place(node: Node<'_, '_>) -> Option<usize> {
    attribute(node, "ilvl")?.parse().ok().filter(|at| *at < LEVELS)
}

fn level(node: Node<'_, '_>) -> Level {
    Level {
        start: value(node, "start").and_then(|start| start.parse().ok()).unwrap_or(0),
        counting: Counting::of_word(value(node, "numFmt").unwrap_or("decimal")),
        text: value(node, "lvlText").unwrap_or_default().to_owned(),
        restart: value(node, "lvlRestart").and_then(|level| level.parse().ok()),
        is_legal: child(node, "isLgl").is_some(),
        style: value(node, "pStyle").map(str::to_owned),
    }
}

fn definition(node: Node<'_, '_>) -> Definition {
    Definition { levels: levels(node), style: value(node, "numStyleLink").map(str::to_owned) }
}

fn list(node: Node<'_, '_>) -> List {
    let mut list = List { definition: value(node, "abstractNumId").unwrap_or_default().to_owned(), ..List::default() };
    for own in node.children().filter(|node| name(*node) == "lvlOverride") {
        let Some(at) = place(own) else { continue };
        if let Some(start) = value(own, "startOverride").and_then(|start| start.parse().ok()) {
            list.starts.insert(at, start);
        }
        if let Some(of_list) = child(own, "lvl") {
            list.levels.insert(at, level(of_list));
        }
    }
    list
}
