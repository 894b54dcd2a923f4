//! HTML in Markdown, until it is whole enough to be read.

use crate::html;

/// Of HTML that stands in one piece. What is longer is read in pieces.
const MAX_BYTES: usize = 1 << 20;
/// Of one tag within a paragraph.
const MAX_TAG_BYTES: usize = 8 << 10;

/// What a tag within a paragraph does to its text.
#[derive(Debug, PartialEq, Eq)]
pub enum Inline {
    Nothing,
    Break,
    Words(String),
    Link(String),
    EndLink,
    /// From here on nobody sees the text.
    Hidden,
}

/// HTML that is being gathered, and what of a paragraph is hidden by it.
#[derive(Debug, Default)]
pub struct Raw {
    source: String,
    /// Tables that are open.
    tables: usize,
    /// The element whose text nobody sees, and how many of its name are open.
    hidden: Option<(String, usize)>,
}

impl Raw {
    pub fn push(&mut self, html: &str) {
        self.source.push_str(html);
        let lower = html.to_ascii_lowercase();
        self.tables += lower.matches("<table").count();
        self.tables = self.tables.saturating_sub(lower.matches("</table").count());
    }

    /// Words that stand in it.
    pub fn push_text(&mut self, text: &str) {
        self.source.push_str(&text.replace('&', "&amp;").replace('<', "&lt;"));
    }

    /// Whether there is any.
    pub fn is_open(&self) -> bool {
        !self.source.is_empty()
    }

    /// Whether it can be read. A table can be only when it is closed.
    pub fn is_whole(&self) -> bool {
        self.tables == 0 || self.source.len() > MAX_BYTES
    }

    pub fn take(&mut self) -> String {
        self.tables = 0;
        std::mem::take(&mut self.source)
    }

    /// Whether text is that of a hidden element.
    pub fn is_hidden(&self) -> bool {
        self.hidden.is_some()
    }

    /// No element goes on over a paragraph's end.
    pub fn end_paragraph(&mut self) {
        self.hidden = None;
    }

    /// Takes a tag within a paragraph.
    pub fn inline(&mut self, tag: &str) -> Inline {
        let (name, is_end) = name_of(tag);
        if let Some((hidden, open)) = &mut self.hidden {
            if *hidden == name {
                *open = if is_end { *open - 1 } else { *open + 1 };
                if *open == 0 {
                    self.hidden = None;
                }
            }
            return Inline::Nothing;
        }
        match name.as_str() {
            "br" => Inline::Break,
            "a" if is_end => Inline::EndLink,
            _ if is_end || name.is_empty() || tag.len() > MAX_TAG_BYTES => Inline::Nothing,
            _ => self.begin(name, tag),
        }
    }

    fn begin(&mut self, name: String, tag: &str) -> Inline {
        let Some(element) = html::element(tag) else { return Inline::Nothing };
        match name.as_str() {
            "script" | "style" => self.hidden = Some((name, 1)),
            "img" => return Inline::Words(element.attribute("alt").unwrap_or_default().to_owned()),
            "a" if !html::is_hidden(&element) => {
                return element.attribute("href").map_or(Inline::Nothing, |address| Inline::Link(address.to_owned()));
            }
            "input" | "wbr" | "hr" => {}
            _ if html::is_hidden(&element) => {
                self.hidden = Some((name, 1));
                return Inline::Hidden;
            }
            _ => {}
        }
        Inline::Nothing
    }
}

/// A tag's name in small letters, and whether it ends something.
fn name_of(tag: &str) -> (String, bool) {
    let inner = tag.trim_start_matches('<');
    let rest = inner.strip_prefix('/');
    let name = rest.unwrap_or(inner).chars().take_while(char::is_ascii_alphanumeric);
    (name.collect::<String>().to_ascii_lowercase(), rest.is_some())
}
