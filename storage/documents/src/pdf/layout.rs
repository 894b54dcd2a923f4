//! Pages of pieces as one text with headings, tables and the places where pages begin. Pure.

use std::collections::BTreeMap;

use crate::body::Body;

use super::glyphs::Piece;
use super::join::{Compounds, whole};
use super::rows::{self, Row};
use super::units::{Kind, Unit, units};
use super::{columns, heads};

/// Headings are this much larger than the text.
const LARGER: f32 = 1.1;
/// Sizes that differ by less are one level.
const LEVEL: f32 = 0.95;
const MAX_LEVEL: u8 = 6;
const MAX_HEADING_BYTES: usize = 200;
/// A bold line is a heading if it is no longer.
const MAX_BOLD_BYTES: usize = 100;
/// Of all letters, those of headings are no more than a third: else the text is large, not its headings.
const MOST_HEADINGS: usize = 3;

/// What a file's pages say.
pub struct Read {
    pub body: Body,
    /// Where pages begin in it, as [`crate::Document::pages`].
    pub pages: Vec<usize>,
    /// Pages that had heads or feet.
    pub heads: usize,
}

/// The text of pages.
pub fn read(pages: Vec<Vec<Piece>>) -> Read {
    let count = pages.len();
    let mut upright = Vec::with_capacity(count);
    let mut others = Vec::with_capacity(count);
    for pieces in pages {
        let mut by_angle: BTreeMap<i16, Vec<Piece>> = BTreeMap::new();
        let main = main_angle(&pieces);
        for piece in pieces {
            by_angle.entry(piece.angle).or_default().push(piece);
        }
        upright.push(rows::rows(by_angle.remove(&main).unwrap_or_default()));
        others.push(by_angle);
    }
    let heads = heads::leave_out(&mut upright);
    let mut parts = Vec::new();
    for (page, (rows, others)) in upright.into_iter().zip(others).enumerate() {
        parts.extend(columns::in_order(rows).iter().map(|block: &Vec<Row>| units(block, page)));
        for rows in others.into_values().map(rows::rows) {
            let mut aside = units(&rows, page);
            aside.iter_mut().for_each(|unit| unit.is_aside = true);
            parts.push(aside);
        }
    }
    let units = whole(parts);
    let (body, pages) = written(&units, count);
    Read { body, pages, heads }
}

/// Which way most of a page's letters run.
pub fn main_angle(pieces: &[Piece]) -> i16 {
    let mut letters: BTreeMap<i16, usize> = BTreeMap::new();
    for piece in pieces {
        *letters.entry(piece.angle).or_default() += piece.text.len();
    }
    letters
        .into_iter()
        .max_by_key(|(angle, letters)| (*letters, std::cmp::Reverse(*angle)))
        .map_or(0, |(angle, _)| angle)
}

/// Sizes of headings, the largest first, and of the text.
struct Sizes {
    levels: Vec<f32>,
    text: f32,
    /// Bold lines are headings.
    is_bold_rare: bool,
}

fn letters(unit: &Unit) -> usize {
    match &unit.kind {
        Kind::Table(table) => table.rows.iter().flatten().map(String::len).sum(),
        _ => unit.lines.iter().map(|line| line.text.len()).sum(),
    }
}

fn could_be_heading(unit: &Unit) -> bool {
    let length = letters(unit);
    let mut all = unit.lines.iter().flat_map(|line| line.text.chars());
    !matches!(unit.kind, Kind::Table(_))
        && !unit.is_aside
        && unit.lines.len() <= 4
        && length <= MAX_HEADING_BYTES
        && all.by_ref().filter(|letter| letter.is_alphabetic()).nth(1).is_some()
}

impl Sizes {
    fn of(units: &[Unit]) -> Self {
        let mut by_size: BTreeMap<u32, usize> = BTreeMap::new();
        for unit in units {
            *by_size.entry((unit.size * 4.0).round() as u32).or_default() += letters(unit);
        }
        let all: usize = by_size.values().sum();
        let text = by_size
            .iter()
            .max_by_key(|(size, letters)| (**letters, **size))
            .map_or(0.0, |(size, _)| *size as f32 / 4.0);
        let large = || units.iter().filter(|unit| could_be_heading(unit) && unit.size > LARGER * text);
        let mut sizes: Vec<f32> = large().map(|unit| unit.size).collect();
        sizes.sort_by(|a, b| b.total_cmp(a));
        sizes.dedup_by(|b, a| *b > LEVEL * *a);
        if large().map(letters).sum::<usize>() * MOST_HEADINGS > all {
            sizes.clear();
        }
        let bold: usize = units.iter().filter(|unit| unit.is_bold).map(letters).sum();
        Self { levels: sizes, text, is_bold_rare: bold * MOST_HEADINGS < all }
    }

    fn level(&self, unit: &Unit, next: Option<&Unit>) -> Option<u8> {
        if !could_be_heading(unit) {
            return None;
        }
        let level = |at: usize| u8::try_from(at + 1).unwrap_or(MAX_LEVEL).min(MAX_LEVEL);
        if unit.size > LARGER * self.text {
            return self.levels.iter().position(|size| unit.size > LEVEL * size).map(level);
        }
        let line = unit.lines.first().filter(|_| unit.lines.len() == 1)?;
        let is_line = line.text.len() <= MAX_BOLD_BYTES && !line.text.ends_with(['.', ',', ';', ':']);
        let is_above = next.is_some_and(|next| !(next.is_bold || (unit.kind == Kind::Item && next.kind == Kind::Item)));
        let is_bold = unit.is_bold && self.is_bold_rare && unit.size > LEVEL * self.text;
        (is_line && is_above && is_bold).then(|| level(self.levels.len()))
    }
}

fn written(units: &[Unit], count: usize) -> (Body, Vec<usize>) {
    let compounds = Compounds::of(units);
    let sizes = Sizes::of(units);
    let mut body = Body::default();
    let mut starts: Vec<Option<usize>> = vec![None; count];
    let mut is_item = false;
    for (at, unit) in units.iter().enumerate() {
        let (text, pages) = compounds.text_of(&unit.lines);
        let goes_on = is_item && unit.kind == Kind::Item;
        is_item = false;
        if !goes_on {
            body.end_block();
        }
        let start = body.len();
        match &unit.kind {
            Kind::Table(table) => body.table(&table.rows, table.has_header),
            _ => match sizes.level(unit, units.get(at + 1)) {
                Some(level) => body.heading(level, &text),
                None if unit.kind == Kind::Item => {
                    is_item = true;
                    body.line(&text);
                }
                None => body.paragraph(&text),
            },
        }
        let start = if goes_on && is_item { start + 1 } else { start };
        for (page, within) in pages {
            if let Some(known) = starts.get_mut(page) {
                known.get_or_insert(start + within);
            }
        }
    }
    // A page without text begins where the next one does.
    let mut next = body.len();
    let mut pages: Vec<usize> = starts
        .into_iter()
        .rev()
        .map(|start| {
            next = start.unwrap_or(next).min(next);
            next
        })
        .collect();
    pages.reverse();
    (body, pages)
}
