//! The text of a paragraph of OpenDocument: with notes, comments and addresses, without what is deleted, struck or hidden.

use roxmltree::Node;

use super::styles::Styles;
use crate::address;
use crate::body::one_line;
use crate::xml::{attribute, child, name};

/// Elements in one another.
const MAX_DEPTH: usize = 200;
/// Blanks that one element may stand for.
const MAX_BLANKS: usize = 100;

/// Places whose text was left out.
#[derive(Debug, Default)]
pub struct Places {
    pub struck: usize,
    pub hidden: usize,
}

/// Reads paragraphs.
pub struct Words<'a> {
    pub styles: &'a Styles,
    pub places: &'a mut Places,
    text: String,
    /// Whether the text before this was left out.
    is_joint: bool,
}

impl<'a> Words<'a> {
    /// The text of a paragraph.
    pub fn of(node: Node<'_, '_>, styles: &'a Styles, places: &'a mut Places) -> String {
        let mut words = Self { styles, places, text: String::new(), is_joint: false };
        let style = attribute(node, "style-name").unwrap_or_default();
        words.span(node, style, [false; 2], 0);
        words.text
    }

    fn push(&mut self, text: &str) {
        let is_joint = std::mem::take(&mut self.is_joint) && self.text.ends_with(' ');
        self.text.push_str(if is_joint { text.trim_start_matches(' ') } else { text });
    }

    /// A stretch of a style; `look` is whether the text around is hidden and struck.
    fn span(&mut self, node: Node<'_, '_>, style: &str, look: [bool; 2], depth: usize) {
        let [hidden, struck] = look;
        let look = [self.styles.hidden(style).unwrap_or(hidden), self.styles.struck(style).unwrap_or(struck)];
        for part in node.children().take_while(|_| depth < MAX_DEPTH) {
            self.part(part, look, depth);
        }
    }

    fn part(&mut self, node: Node<'_, '_>, look: [bool; 2], depth: usize) {
        if node.is_text() {
            return self.say(node.text().unwrap_or_default(), look);
        }
        let style = attribute(node, "style-name").unwrap_or_default();
        // Paragraphs of a box: their words are none of those around.
        let is_paragraph = matches!(name(node), "p" | "h");
        if is_paragraph && !self.text.is_empty() && !self.text.ends_with(char::is_whitespace) {
            self.push("\n");
        }
        match name(node) {
            "s" => {
                let blanks = attribute(node, "c").and_then(|count| count.parse().ok()).unwrap_or(1);
                self.push(&" ".repeat(usize::min(blanks, MAX_BLANKS)));
            }
            "tab" => self.push("\t"),
            "line-break" => self.push("\n"),
            "a" => {
                let start = self.text.len();
                self.span(node, style, look, depth + 1);
                if let Some(address) = attribute(node, "href") {
                    address::put(&mut self.text, start, address);
                }
            }
            "note" => {
                let body = child(node, "note-body").map(|body| self.aside(body, depth)).unwrap_or_default();
                self.push(&if body.is_empty() { body } else { format!(" ({body})") });
            }
            "annotation" => self.comment(node, depth),
            "hidden-text" | "hidden-paragraph" if attribute(node, "is-hidden") != Some("false") => {
                let says = node.descendants().any(|node| node.is_text()) || attribute(node, "string-value").is_some();
                self.places.hidden += usize::from(says);
            }
            "tracked-changes" | "note-citation" | "ruby-text" | "desc" | "title" | "" => {}
            _ => self.span(node, style, look, depth + 1),
        }
        if is_paragraph {
            self.push("\n");
        }
    }

    fn say(&mut self, text: &str, [hidden, struck]: [bool; 2]) {
        // Only `text:s` is more than one blank.
        let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
        let inner = text.split(blank).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        let begin = if text.starts_with(blank) && !inner.is_empty() { " " } else { "" };
        let end = if text.ends_with(blank) { " " } else { "" };
        if hidden || struck {
            if !inner.is_empty() {
                let places = if hidden { &mut self.places.hidden } else { &mut self.places.struck };
                *places += usize::from(!self.is_joint);
                self.is_joint = true;
            }
            return;
        }
        self.push(&format!("{begin}{inner}{end}"));
    }

    fn aside(&mut self, node: Node<'_, '_>, depth: usize) -> String {
        let before = std::mem::take(&mut self.text);
        self.span(node, "", [false; 2], depth + 1);
        one_line(&std::mem::replace(&mut self.text, before))
    }

    fn comment(&mut self, node: Node<'_, '_>, depth: usize) {
        let who = child(node, "creator").and_then(|who| who.text()).unwrap_or_default();
        let before = std::mem::take(&mut self.text);
        for part in node.children().filter(|part| matches!(name(*part), "p" | "list")) {
            self.span(part, "", [false; 2], depth + 1);
            self.push(" ");
        }
        let said = one_line(&std::mem::replace(&mut self.text, before));
        if !said.is_empty() {
            self.push(&match one_line(who) {
                who if who.is_empty() => format!(" [comment: {said}]"),
                who => format!(" [comment by {who}: {said}]"),
            });
        }
    }
}
