//! Styles of a Word document: what a paragraph of each is, its list, and whether its text is hidden or struck.

use std::collections::HashMap;

use roxmltree::Node;

use crate::xml::{self, attribute, below, child, name};

/// Styles that are made from one another.
const MAX_BASES: usize = 16;

/// What a paragraph of a style is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Title,
    Heading(u8),
    /// Of a table of contents.
    Contents,
    /// Of a list.
    Item,
    Code,
}

/// Which list a paragraph is of, and how deep in it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ListPlace {
    pub number: Option<String>,
    pub level: Option<usize>,
}

impl ListPlace {
    /// Of a paragraph's or a style's properties.
    pub fn of(properties: Node<'_, '_>) -> Option<Self> {
        let place = child(properties, "numPr")?;
        let value = |wanted| child(place, wanted).and_then(|node| attribute(node, "val"));
        Some(Self {
            number: value("numId").map(str::to_owned),
            level: value("ilvl").and_then(|level| level.parse().ok()),
        })
    }

    /// Its own fields, and those of `base` where it has none.
    pub fn over(self, base: &Self) -> Self {
        Self { number: self.number.or_else(|| base.number.clone()), level: self.level.or(base.level) }
    }
}

/// How the text of a run looks; `None`: as the style says.
#[derive(Debug, Default, Clone, Copy)]
pub struct Look {
    pub hidden: Option<bool>,
    pub struck: Option<bool>,
}

impl Look {
    /// Of a run's or a style's properties.
    pub fn of(properties: Node<'_, '_>) -> Self {
        let is_on = |wanted| {
            let value = attribute(child(properties, wanted)?, "val");
            Some(!matches!(value, Some("0" | "false" | "off")))
        };
        Self { hidden: is_on("vanish"), struck: is_on("strike").max(is_on("dstrike")) }
    }

    /// Its own fields, and those of `base` where it has none.
    pub fn over(self, base: Self) -> Self {
        Self { hidden: self.hidden.or(base.hidden), struck: self.struck.or(base.struck) }
    }
}

/// What a style says of itself.
#[derive(Debug, Clone, Copy)]
enum Said {
    Kind(Kind),
    /// It is text, whatever it is made from.
    Text,
}

#[derive(Debug, Default)]
struct Style {
    base: Option<String>,
    kind: Option<Said>,
    place: Option<ListPlace>,
    look: Look,
}

/// Styles by their ids. Word names them in its own language in ids, and in English in names.
#[derive(Debug, Default)]
pub struct Styles(HashMap<String, Style>);

impl Styles {
    /// Reads `word/styles.xml`.
    ///
    /// # Errors
    /// Where it is no XML.
    pub fn read(text: &str) -> Result<Self, String> {
        let parsed = xml::parse(text, "word/styles.xml")?;
        let mut styles = HashMap::new();
        for node in parsed.descendants().filter(|node| name(*node) == "style") {
            let style = Style {
                base: child(node, "basedOn").and_then(|node| attribute(node, "val")).map(str::to_owned),
                kind: kind(node),
                place: child(node, "pPr").and_then(ListPlace::of),
                look: child(node, "rPr").map(Look::of).unwrap_or_default(),
            };
            styles.insert(attribute(node, "styleId").unwrap_or_default().to_owned(), style);
        }
        Ok(Self(styles))
    }

    /// What a paragraph of this style is, perhaps as those of a style it is made from are.
    pub fn kind(&self, id: &str) -> Option<Kind> {
        match self.bases(id).find_map(|style| style.kind) {
            Some(Said::Kind(kind)) => Some(kind),
            // Headings are numbered, too, so that lists come last.
            Some(Said::Text) | None => {
                self.place(id).filter(|place| place.number.as_deref() != Some("0")).map(|_| Kind::Item)
            }
        }
    }

    /// The list of this style's paragraphs, perhaps that of a style it is made from.
    pub fn place(&self, id: &str) -> Option<ListPlace> {
        let mut places = self.bases(id).filter_map(|style| style.place.as_ref());
        let first = places.next()?.clone();
        Some(places.fold(first, ListPlace::over))
    }

    /// How text of this style looks.
    pub fn look(&self, id: &str) -> Look {
        self.bases(id).fold(Look::default(), |look, style| look.over(style.look))
    }

    /// A style, and those it is made from.
    fn bases(&self, id: &str) -> impl Iterator<Item = &Style> {
        let base = |style: &&Style| self.0.get(style.base.as_deref()?);
        std::iter::successors(self.0.get(id), base).take(MAX_BASES)
    }
}

fn kind(style: Node<'_, '_>) -> Option<Said> {
    let called = child(style, "name").and_then(|node| attribute(node, "val")).unwrap_or_default().to_lowercase();
    let outline = below(style, "outlineLvl").and_then(|node| attribute(node, "val")?.parse::<u8>().ok());
    let kind = if called == "title" {
        Kind::Title
    } else if let Some(level) = called.strip_prefix("heading ").and_then(|level| level.parse().ok()) {
        Kind::Heading(level)
    } else if called == "subtitle" {
        // Some are made from the title.
        return Some(Said::Text);
    } else if called.starts_with("toc ") || matches!(called.as_str(), "table of figures" | "contents heading") {
        Kind::Contents
    } else if called.contains("code") || called == "html preformatted" || called == "macro" {
        Kind::Code
    } else {
        // Level 9 is that of text.
        return outline.map(|level| if level < 9 { Said::Kind(Kind::Heading(level + 1)) } else { Said::Text });
    };
    Some(Said::Kind(kind))
}
