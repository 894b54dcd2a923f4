//! Lines as paragraphs, list items and tables.

use super::rows::Row;
use super::tables::{self, Table};

/// A step of this many usual ones begins a paragraph.
const GAP: f32 = 1.25;
/// A line that begins so many ems farther in or out than the one above it is indented.
const INDENT: f32 = 0.7;
/// A gap of this many ems is no blank of prose, however wide its blanks are.
const BESIDE: f32 = 2.0;
/// Lines that are few.
const FEW: usize = 3;
/// Letters whose sizes differ by less are alike.
const ALIKE: f32 = 0.06;

/// A line of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// From 0.
    pub page: usize,
    pub text: String,
    /// It stays a line of its own.
    pub is_own: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Paragraph,
    Item,
    Table(Table),
}

/// What is read as one.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    pub kind: Kind,
    pub lines: Vec<Line>,
    pub size: f32,
    pub is_bold: bool,
    /// Its last line is full, so that it may go on in the next column.
    pub is_full: bool,
    /// Its first line is indented, so that it goes on from nowhere.
    pub is_indented: bool,
    /// It stands at the page's margin, and the text goes on beside it.
    pub is_aside: bool,
}

/// The units of a part of a page.
pub fn units(rows: &[Row], page: usize) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut prose = Vec::new();
    let left = rows.iter().map(Row::left).fold(f32::MAX, f32::min);
    let part = (left, rows.iter().map(Row::right).fold(f32::MIN, f32::max));
    let mut at = 0;
    while let Some(row) = rows.get(at) {
        match rows.get(at..).map_or(Err(1), tables::table) {
            Ok((table, count)) => {
                paragraphs(&prose, page, part, &mut units);
                prose.clear();
                units.push(Unit {
                    kind: Kind::Table(table),
                    lines: vec![Line { page, text: String::new(), is_own: true }],
                    size: row.size,
                    is_bold: false,
                    is_full: false,
                    is_indented: false,
                    is_aside: false,
                });
                at += count;
            }
            Err(count) => {
                prose.extend(rows.iter().skip(at).take(count));
                at += count.max(1);
            }
        }
    }
    paragraphs(&prose, page, part, &mut units);
    units
}

/// Where dots begin that lead to a page's number.
pub fn leader(text: &str) -> Option<usize> {
    [". . . .", ".....", "…….", "………"].iter().filter_map(|dots| text.find(dots)).min()
}

/// A text with dots that lead to a number cut short.
fn without_leader(text: String) -> String {
    let Some(at) = leader(&text) else { return text };
    let (before, after) = text.split_at(at);
    let after = after.trim_start_matches(['.', '…', ' ']);
    format!("{} … {after}", before.trim_end()).trim_end().to_owned()
}

/// The usual step from line to line: of lines of one size, and rather one of a paragraph than one between paragraphs.
fn usual_step(rows: &[&Row]) -> f32 {
    let step = |pair: &[&Row]| match pair {
        [above, row] if are_alike(above.size, row.size) => Some((above.base - row.base) / row.size),
        _ => None,
    };
    let mut steps: Vec<f32> = rows.windows(2).filter_map(step).filter(|step| (0.8..4.0).contains(step)).collect();
    steps.sort_by(f32::total_cmp);
    steps.get(steps.len() * 3 / 10).copied().unwrap_or(1.2)
}

pub fn are_alike(a: f32, b: f32) -> bool {
    (a - b).abs() < ALIKE * a.max(b)
}

fn paragraphs(rows: &[&Row], page: usize, part: (f32, f32), units: &mut Vec<Unit>) {
    let step = usual_step(rows);
    let mut stretch: Vec<&Row> = Vec::new();
    for row in rows {
        if let Some(above) = stretch.last() {
            let is_far = above.base - row.base > GAP * step * above.size.max(row.size);
            if is_far || !are_alike(above.size, row.size) || changes_weight(above, row) {
                lines(&stretch, page, part, units);
                stretch.clear();
            }
        }
        stretch.push(row);
    }
    lines(&stretch, page, part, units);
}

/// Whether bold lines end or begin between rows, and no bold words go on.
fn changes_weight(above: &Row, row: &Row) -> bool {
    let goes_on =
        above.pieces.last().is_some_and(|piece| piece.is_bold) && row.pieces.first().is_some_and(|piece| piece.is_bold);
    above.is_bold() != row.is_bold() && !goes_on
}

/// What a line is to the one above it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Begins {
    Paragraph,
    Item,
    OwnLine,
    Nothing,
}

/// Units of lines without more white between them than is usual.
fn lines(rows: &[&Row], page: usize, part: (f32, f32), units: &mut Vec<Unit>) {
    let margin = rows.iter().map(|row| row.left()).fold(f32::MAX, f32::min);
    let right = rows.iter().map(|row| row.right()).fold(f32::MIN, f32::max);
    // A few short lines do not show how long one may be.
    let is_narrow = rows.len() <= FEW && right - margin < 0.8 * (part.1 - part.0);
    let right = if is_narrow { part.1 } else { right };
    let first = units.len();
    // Sentences that are written one below the other.
    let ended = rows.iter().filter(|row| row.text().ends_with(['.', ';', ':', '!', '?'])).count();
    let are_own = rows.len() > 2 && ended * 5 >= rows.len() * 4;
    for (at, row) in rows.iter().enumerate() {
        let text = row.text();
        let is_leading = leader(&text).is_some();
        let text = without_leader(text);
        let above = at.checked_sub(1).and_then(|at| rows.get(at)).copied();
        let unit = units.get(first..).and_then(<[Unit]>::last);
        let begins = match (above, unit) {
            (Some(_), Some(_)) if is_leading => Begins::OwnLine,
            (Some(above), Some(unit)) => begins(above, row, rows.get(at + 1).copied(), unit, (margin, right), &text),
            _ if marker(&text).is_some() => Begins::Item,
            _ => Begins::Paragraph,
        };
        let is_full = right - row.right() < 0.15 * (right - row.left()) && rows.len() > 1;
        let begins = if are_own && begins == Begins::Nothing { Begins::OwnLine } else { begins };
        let line = Line { page, text, is_own: begins != Begins::Nothing };
        match (begins, units.last_mut()) {
            (Begins::OwnLine | Begins::Nothing, Some(unit)) => {
                unit.lines.push(line);
                unit.is_full = is_full;
            }
            _ => units.push(Unit {
                kind: if begins == Begins::Item { Kind::Item } else { Kind::Paragraph },
                lines: vec![line],
                size: row.size,
                is_bold: row.is_bold(),
                is_full,
                is_indented: row.left() - margin > INDENT * row.size,
                is_aside: false,
            }),
        }
    }
}

fn begins(above: &Row, row: &Row, below: Option<&Row>, unit: &Unit, sides: (f32, f32), text: &str) -> Begins {
    let (margin, right) = sides;
    let size = row.size;
    let before = unit.lines.last().map_or("", |line| line.text.as_str());
    let is_ended = before.ends_with(['.', '!', '?', ':', ';', '"', '”', '»', ')', '。', '！', '？']);
    // A line that had room for the next word ends here.
    let room = right - above.right();
    let goes_on = !is_ended && text.starts_with(char::is_lowercase);
    let is_broken = before.ends_with(['-', '\u{ad}']) && text.starts_with(char::is_lowercase);
    let is_short = !is_broken && room > row.first_word() + 0.4 * size && (!goes_on || room > 0.2 * (right - margin));
    let shift = row.left() - above.left();
    if marker(text).is_some() && (is_short || is_ended || shift < -0.3 * size || unit.kind == Kind::Item) {
        return Begins::Item;
    }
    // Labels and what stands beside them.
    let are_cells = [above, row].iter().any(|row| row.stretches(BESIDE).len() > 1);
    if are_cells && (is_short || row.stretches(BESIDE).len() > 1) {
        return Begins::OwnLine;
    }
    let middle = |row: &Row| f32::midpoint(row.left(), row.right());
    let is_centred = (middle(above) - middle(row)).abs() < 0.5 * size && shift.abs() > INDENT * size;
    if shift > INDENT * size && !is_centred && unit.kind != Kind::Item {
        let goes_out = below.is_some_and(|below| row.left() - below.left() > 0.5 * size);
        if goes_out || (is_short && is_ended) || (below.is_none() && is_ended) {
            return Begins::Paragraph;
        }
    }
    if shift < -INDENT * size && !is_centred {
        let is_hanging = unit.lines.len() > 1 && row.left() - margin < 0.3 * size;
        if (unit.kind == Kind::Item && is_ended) || (is_hanging && (is_ended || is_short)) {
            return Begins::Paragraph;
        }
    }
    match (is_short, is_ended && unit.lines.len() > 1) {
        (false, _) => Begins::Nothing,
        (true, true) => Begins::Paragraph,
        (true, false) => Begins::OwnLine,
    }
}

/// How many bytes of a text mark an item of a list, if they do.
pub fn marker(text: &str) -> Option<usize> {
    let end = text.find(' ').unwrap_or(text.len());
    let word = text.get(..end)?;
    let first = word.chars().next()?;
    if matches!(
        first,
        '\u{e000}'
            ..='\u{f8ff}'
                | '•'
                | '◦'
                | '▪'
                | '‣'
                | '·'
                | '●'
                | '○'
                | '■'
                | '□'
                | '➢'
                | '✓'
                | '∙'
                | '⁃'
                | '▸'
                | '►'
    ) {
        return Some(if word.chars().count() == 1 { end } else { first.len_utf8() });
    }
    if matches!(word, "-" | "–" | "—" | "*") {
        return Some(end);
    }
    let is_short = |inner: &str, most: usize| {
        let is_number = inner.bytes().all(|byte| byte.is_ascii_digit()) && inner.len() <= most;
        let is_letter = inner.len() == 1 && inner.bytes().all(|byte| byte.is_ascii_alphabetic());
        let is_roman = inner.len() <= 5 && inner.bytes().all(|byte| matches!(byte, b'i' | b'v' | b'x'));
        !inner.is_empty() && (is_number || is_letter || is_roman)
    };
    let closed = |open: char, close: char| word.strip_prefix(open).and_then(|word| word.strip_suffix(close));
    let is_marker = word.strip_suffix(')').is_some_and(|inner| is_short(inner, 3))
        || word
            .strip_suffix('.')
            .is_some_and(|inner| is_short(inner, 2) && !inner.bytes().all(|b| b.is_ascii_uppercase()))
        || closed('(', ')').is_some_and(|inner| is_short(inner, 2))
        || closed('[', ']').is_some_and(|inner| is_short(inner, 3));
    is_marker.then_some(end)
}
