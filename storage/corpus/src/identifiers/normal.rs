//! A text as identifiers are looked for in it: its letters and digits in lower case, and where its words begin and end.

use crate::composed::searched;
use crate::scripts::{is_dense, narrow};

/// How sure it is that a passage has an identifier.
pub const WHOLE: f32 = 1.0;
/// It is a part of another one: `ERR_CONN` of `ERR_CONN_RESET`.
pub const PART: f32 = 0.7;
/// The beginning of a hash.
pub const BEGINNING: f32 = 0.9;

/// What stands between the parts of one identifier, at most: `DE89 3705`, `a :: b`.
const MOST_BETWEEN: usize = 3;

/// Stands in a key where two digits have something between them.
pub const BORDER: char = '.';

/// A text's letters and digits in lower case, and where its words begin and end.
pub struct Normal {
    /// Without borders, for keys that have none.
    plain: String,
    /// With [`BORDER`]s between digits.
    bordered: String,
    /// Of a byte of `plain` and of `bordered`: a word begins or ends before it.
    edges: [Vec<Edge>; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Edge {
    No,
    /// Of a part of an identifier: the next one follows at once, `-rc`.
    Part,
    Word,
}

impl Normal {
    pub fn of(text: &str) -> Self {
        let mut normal = Self { plain: String::new(), bordered: String::new(), edges: Default::default() };
        let (mut between, mut last): (String, Option<char>) = (String::new(), None);
        for c in searched(text).chars().map(narrow) {
            if !c.is_alphanumeric() {
                if between.len() <= MOST_BETWEEN {
                    between.push(c);
                }
                continue;
            }
            let edge = match (last, between.is_empty()) {
                (None, _) => Edge::Word,
                (Some(last), true) if is_dense(last) != is_dense(c) => Edge::Word,
                (_, true) => Edge::No,
                _ if binds(&between) => Edge::Part,
                _ => Edge::Word,
            };
            if edge != Edge::No && last.is_some_and(|last| last.is_ascii_digit()) && c.is_ascii_digit() {
                normal.push(1, BORDER, Edge::No);
            }
            // What is far apart is not one identifier.
            if between.len() > MOST_BETWEEN || between.contains('\n') {
                normal.push(0, ' ', Edge::No);
                normal.push(1, ' ', Edge::No);
            }
            for lower in c.to_lowercase() {
                normal.push(0, lower, edge);
                normal.push(1, lower, edge);
            }
            last = Some(c);
            between.clear();
        }
        let end = if binds(&between) && between.len() > 1 { Edge::Part } else { Edge::Word };
        normal.edges.iter_mut().for_each(|edges| edges.push(end));
        normal
    }

    fn push(&mut self, which: usize, c: char, edge: Edge) {
        let text = if which == 0 { &mut self.plain } else { &mut self.bordered };
        text.push(c);
        let edges = &mut self.edges[which];
        edges.push(edge);
        edges.extend(std::iter::repeat_n(Edge::No, c.len_utf8() - 1));
    }

    /// How well a key is there: from a border to a border.
    pub fn find(&self, key: &str) -> f32 {
        let which = usize::from(key.contains(BORDER));
        let (text, edges) = (if which == 0 { &self.plain } else { &self.bordered }, &self.edges[which]);
        let mut best = 0.0;
        let mut from = 0;
        while let Some(at) = text[from..].find(key).map(|found| from + found) {
            // The next one may begin within this one.
            from = at + text[at..].chars().next().map_or(1, char::len_utf8);
            let end = at + key.len();
            // A border and the blank of a gap stand before the next word.
            let end = end + text[end..].len() - text[end..].trim_start_matches([' ', BORDER]).len();
            match (edges[at], edges[end]) {
                (Edge::No, _) | (_, Edge::No) => {}
                (Edge::Word, Edge::Word) => return WHOLE,
                _ => best = PART,
            }
        }
        best
    }

    /// Whether a word of hexadecimal digits begins so.
    pub fn find_beginning(&self, key: &str) -> f32 {
        let begins = |(at, _): (usize, &str)| {
            let word = self.plain[at..].bytes().zip(&self.edges[0][at..]).enumerate();
            let word = word.take_while(|(place, (_, edge))| *place == 0 || **edge == Edge::No);
            let word: Vec<u8> = word.map(|(_, (byte, _))| byte).take_while(u8::is_ascii_hexdigit).collect();
            self.edges[0][at] != Edge::No && word.len() > key.len()
        };
        if self.plain.match_indices(key).any(begins) { BEGINNING } else { 0.0 }
    }
}

/// Whether what stands between two words makes them one identifier.
fn binds(between: &str) -> bool {
    matches!(between, "-" | "." | "_" | "/" | ":" | "::" | "+" | "@" | "#")
}
