//! Lines as the text that they were before it was broken.

use std::collections::HashSet;

use super::rows::is_wide;
use super::units::{Kind, Line, Unit, are_alike, marker};

/// Words after which a hyphen stays, as it stands for a word's other part.
const AND: [&str; 10] = ["und", "oder", "and", "or", "bis", "et", "ou", "sowie", "bzw.", "to"];
/// Texts at the margin of a page and the next one.
const MAX_ASIDES: usize = 8;
/// First parts that keep their hyphen.
const PREFIXES: [&str; 2] = ["self", "well"];

/// Which broken words are written with their hyphen elsewhere in a text.
#[derive(Debug, Default)]
pub struct Compounds {
    hyphenated: HashSet<String>,
}

impl Compounds {
    pub fn of(units: &[Unit]) -> Self {
        let mut asked: HashSet<String> = HashSet::new();
        for unit in units {
            for pair in unit.lines.windows(2) {
                if let [line, next] = pair
                    && let Some((left, right)) = broken(&line.text, &next.text)
                {
                    asked.insert(format!("{left}-{right}").to_lowercase());
                }
            }
        }
        let mut hyphenated = HashSet::new();
        if !asked.is_empty() {
            for line in units.iter().flat_map(|unit| &unit.lines) {
                let words = line.text.split(|letter: char| !letter.is_alphanumeric() && letter != '-');
                let known = words.filter(|word| word.contains('-')).map(str::to_lowercase);
                hyphenated.extend(known.filter(|word| asked.contains(word)));
            }
        }
        Self { hyphenated }
    }

    /// Appends a line to those before it.
    fn append(&self, text: &mut String, line: &str) {
        let Some(last) = text.chars().next_back() else {
            text.push_str(line);
            return;
        };
        let first = line.chars().next().unwrap_or(' ');
        if last == '\u{ad}' {
            text.pop();
        } else if let Some((left, right)) = broken(text, line) {
            let is_known = self.hyphenated.contains(&format!("{left}-{right}").to_lowercase());
            if !is_known && !left.contains('-') && !PREFIXES.contains(&left.to_lowercase().as_str()) {
                text.pop();
            }
        } else if !((is_hyphen(last) && stays_open(text, line)) || (is_wide(last) && is_wide(first))) {
            let is_address = text.rsplit(' ').next().is_some_and(|word| word.contains("://"));
            let is_dash = last == '—' || (last == '–' && stays_open(text, line));
            if !is_dash && last != '@' && !(is_address && matches!(last, '/' | '=' | '_' | '?' | '&')) {
                text.push(' ');
            }
        }
        text.push_str(line);
    }

    /// A unit's text, and where in it pages begin.
    pub fn text_of(&self, lines: &[Line]) -> (String, Vec<(usize, usize)>) {
        let (mut text, mut pages): (String, Vec<(usize, usize)>) = (String::new(), Vec::new());
        for line in lines {
            let before = text.len();
            if line.is_own && !text.is_empty() {
                text.push('\n');
                text.push_str(&line.text);
            } else {
                self.append(&mut text, &line.text);
            }
            if pages.last().is_none_or(|(page, _)| *page != line.page) {
                // A word that was broken belongs to where it ends.
                let at =
                    text.get(..before.min(text.len())).and_then(|text| text.rfind([' ', '\n'])).map_or(0, |at| at + 1);
                let is_apart = text.get(before..).is_some_and(|text| text.starts_with([' ', '\n']));
                pages.push((line.page, if is_apart { before + 1 } else { at }));
            }
        }
        let text = if text.contains('\u{ad}') { text.replace('\u{ad}', "") } else { text };
        (text, pages)
    }
}

fn is_hyphen(letter: char) -> bool {
    matches!(letter, '-' | '‐' | '\u{2011}')
}

/// The parts of a word that was broken between two lines.
fn broken<'t>(line: &'t str, next: &'t str) -> Option<(&'t str, &'t str)> {
    let start = line.strip_suffix(is_hyphen)?;
    let left = start.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '-').next()?;
    let right = next.split(|letter: char| !letter.is_alphanumeric()).next()?;
    let is_word = left.chars().next_back()?.is_alphabetic() && right.chars().next()?.is_lowercase();
    let word = next.split(' ').next().unwrap_or_default();
    (is_word && !AND.contains(&word)).then_some((left, right))
}

/// Whether a hyphen at a line's end goes on without a blank: `Post-` `Kantian`, `2019-` `2020`; not `Vor-` `und`, nor a dash.
fn stays_open(line: &str, next: &str) -> bool {
    let before = line.chars().rev().nth(1).is_some_and(char::is_alphanumeric);
    let word = next.split(' ').next().unwrap_or_default();
    before && next.starts_with(char::is_alphanumeric) && !AND.contains(&word)
}

/// Parts of pages, one after the other: what goes on in the next one is put together.
pub fn whole(parts: Vec<Vec<Unit>>) -> Vec<Unit> {
    let mut whole: Vec<Unit> = Vec::new();
    for part in parts {
        for (at, mut unit) in part.into_iter().enumerate() {
            // What stands at the margin does not end a sentence.
            match whole.iter_mut().rev().take(MAX_ASIDES).find(|unit| !unit.is_aside) {
                Some(last) if at == 0 && !unit.is_aside && goes_on(last, &unit) => {
                    unit.lines.iter_mut().take(1).for_each(|line| line.is_own = false);
                    last.lines.extend(unit.lines);
                    last.is_full = unit.is_full;
                }
                _ => whole.push(unit),
            }
        }
    }
    whole
}

fn goes_on(last: &Unit, unit: &Unit) -> bool {
    let (Some(line), Some(next)) = (last.lines.last(), unit.lines.first()) else { return false };
    let is_prose = matches!(last.kind, Kind::Paragraph | Kind::Item) && unit.kind == Kind::Paragraph;
    if !is_prose || !are_alike(last.size, unit.size) || last.is_bold || unit.is_bold || marker(&next.text).is_some() {
        return false;
    }
    let ends = line.text.trim_end_matches(['"', '”', '“', '»', '’', ')', ']']);
    if ends.ends_with(['.', '!', '?', ':', '。', '！', '？']) {
        return false;
    }
    let is_lower = next.text.starts_with(char::is_lowercase);
    is_lower || line.text.ends_with(['-', '\u{ad}', ',']) || (last.is_full && !unit.is_indented && last.lines.len() > 1)
}
