//! The order in which the parts of a page are read: columns one after the other. White runs down between columns, but also between the
//! columns of a table, whose rows must stay whole: lines of prose fill their column, and columns are often written one after the other.

use super::glyphs::Piece;
use super::rows::Row;

/// A gap of this many ems may be the white between columns.
const GUTTER: f32 = 0.6;
/// Lines that a column has at least.
const LEAST_LINES: usize = 3;
/// A white stripe across columns as high as this many lines: what is above it is read first.
const STRIPE: f32 = 3.5;
const MAX_DEPTH: usize = 4;
/// A gap of this many ems is between cells rather than words.
const CELLS: f32 = 0.9;
/// A line of a column is wider than this many ems.
const LEAST_EMS: f32 = 9.0;
/// Places that are tried for a column's left edge.
const MAX_EDGES: usize = 12;
/// Edges as near as this many ems are one.
const EDGE: f32 = 0.35;

/// The parts of a page as they are read.
pub fn in_order(rows: Vec<Row>) -> Vec<Vec<Row>> {
    let mut blocks = Vec::new();
    divide(rows, 0, &mut blocks);
    blocks
}

fn divide(rows: Vec<Row>, depth: usize, blocks: &mut Vec<Vec<Row>>) {
    if rows.is_empty() {
        return;
    }
    let best = if depth < MAX_DEPTH { best_gutter(&rows) } else { None };
    let Some((gutter, bands)) = best else {
        blocks.push(rows);
        return;
    };
    let mut rest = Vec::new();
    let mut bands = bands.into_iter().peekable();
    let mut rows = rows.into_iter().enumerate().peekable();
    while let Some((at, row)) = rows.next() {
        let Some((_, end)) = bands.next_if(|(start, _)| *start == at) else {
            rest.push(row);
            continue;
        };
        divide(std::mem::take(&mut rest), depth + 1, blocks);
        let mut band = vec![row];
        while let Some((_, row)) = rows.next_if(|(at, _)| *at < end) {
            band.push(row);
        }
        let mut sides = (Vec::new(), Vec::new());
        for row in band {
            let (left, right) = row.pieces.into_iter().partition(|piece: &Piece| piece.middle() < gutter);
            sides.0.extend(Some(left).filter(|pieces: &Vec<Piece>| !pieces.is_empty()).map(Row::of));
            sides.1.extend(Some(right).filter(|pieces: &Vec<Piece>| !pieces.is_empty()).map(Row::of));
        }
        divide(sides.0, depth + 1, blocks);
        divide(sides.1, depth + 1, blocks);
    }
    divide(rest, depth + 1, blocks);
}

/// The gutter beside which most lines stand, and the stretches of rows that it divides.
fn best_gutter(rows: &[Row]) -> Option<(f32, Vec<(usize, usize)>)> {
    let mut best = None;
    let mut most = 0;
    let leading = leading(rows);
    for (edge, size) in edges(rows) {
        let gutter = edge - 0.2 * size;
        let bands = bands(rows, gutter, leading);
        let lines = bands.iter().map(|(start, end)| end - start).sum::<usize>();
        if lines > most {
            most = lines;
            best = Some((gutter, bands));
        }
    }
    best
}

/// Where stretches of several rows begin, but not at the left: the most frequent first.
fn edges(rows: &[Row]) -> Vec<(f32, f32)> {
    let outermost = rows.iter().map(Row::left).fold(f32::MAX, f32::min);
    let mut starts: Vec<(f32, f32)> = Vec::new();
    for row in rows {
        let start = |pieces: &&[Piece]| Some((pieces.first()?.left, row.size));
        starts.extend(row.stretches(GUTTER).iter().filter_map(start));
    }
    starts.retain(|(left, size)| left - outermost > 3.0 * size);
    starts.sort_by(|a, b| a.0.total_cmp(&b.0));
    // A cluster is known by its leftmost place and how many there are.
    let mut clusters: Vec<(f32, f32, usize)> = Vec::new();
    for (left, size) in starts {
        match clusters.last_mut() {
            Some((first, _, count)) if left - *first < EDGE * size => *count += 1,
            _ => clusters.push((left, size, 1)),
        }
    }
    clusters.retain(|(_, _, count)| *count >= LEAST_LINES);
    clusters.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
    clusters.truncate(MAX_EDGES);
    clusters.into_iter().map(|(left, size, _)| (left, size)).collect()
}

/// What is usual from one row to the next.
fn leading(rows: &[Row]) -> f32 {
    let steps = rows.windows(2).filter_map(|pair| Some(pair.first()?.base - pair.last()?.base));
    let mut steps: Vec<f32> = steps.collect();
    steps.sort_by(f32::total_cmp);
    steps.get(steps.len() / 2).copied().unwrap_or(0.0)
}

/// Stretches of rows that do not cross the gutter and are columns beside it.
fn bands(rows: &[Row], gutter: f32, leading: f32) -> Vec<(usize, usize)> {
    let crosses = |row: &Row| {
        row.stretches(GUTTER).iter().any(|pieces| {
            let right = pieces.iter().map(|piece| piece.right).fold(f32::MIN, f32::max);
            pieces.first().is_some_and(|first| first.left < gutter) && right > gutter
        })
    };
    let mut bands = Vec::new();
    let mut start = 0;
    let mut last: Option<&Row> = None;
    for at in 0..=rows.len() {
        let row = rows.get(at);
        let is_end = row.is_none_or(&crosses);
        let is_stripe = match (last, row) {
            (Some(last), Some(row)) => last.base - row.base > STRIPE * leading.max(row.size),
            _ => false,
        };
        if is_end || is_stripe {
            if rows.get(start..at).is_some_and(|band| are_columns(band, gutter)) {
                bands.push((start, at));
            }
            start = if is_end { at + 1 } else { at };
        }
        last = row;
    }
    bands
}

/// What tells prose from cells.
struct Side {
    /// Rows that have any of it.
    lines: usize,
    /// How much a stretch takes of the room that the longest one below its beginning takes, in the middle of all.
    fill: f32,
    /// How wide a stretch is in the middle of all, in ems.
    ems: f32,
    /// Words of a stretch, but for numbers.
    words: f32,
    /// Of all stretches, those that go on from the line before, as they begin with a small letter.
    going_on: f32,
    orders: Vec<u32>,
}

impl Side {
    fn of(rows: &[Row], is_in: impl Fn(&Piece) -> bool) -> Self {
        let mut stretches = Vec::new();
        let (mut lines, mut words, mut going_on, mut orders) = (0, 0, 0, Vec::new());
        for row in rows {
            orders.extend(row.pieces.iter().filter(|piece| is_in(piece)).map(|piece| piece.order).min());
            let before = stretches.len();
            for pieces in row.stretches(CELLS) {
                // Of one that spans both, only what is on this side.
                let own = || pieces.iter().filter(|piece| is_in(piece));
                let Some(first) = own().next() else { continue };
                let right = own().map(|piece| piece.right).fold(f32::MIN, f32::max);
                let ems = (right - first.left) / row.size.max(1.0);
                stretches.push((first.left, right, ems));
                let letter = first.text.chars().find(|letter| letter.is_alphabetic());
                let has_case = letter.is_none_or(|letter| letter.is_lowercase() || letter.is_uppercase());
                // Scripts without blanks have few pieces; two ems are as good as a word.
                let is_word =
                    |piece: &&Piece| piece.text.chars().filter(|letter| letter.is_alphabetic()).nth(1).is_some();
                words += if has_case { own().filter(is_word).count() } else { ems as usize / 2 };
                going_on += usize::from(!has_case || first.text.starts_with(char::is_lowercase));
            }
            lines += usize::from(stretches.len() > before);
        }
        let count = stretches.len().max(1) as f32;
        let (words, going_on) = (words as f32 / count, going_on as f32 / count);
        let fill = middle(fills(&mut stretches, rows));
        Self { lines, fill, ems: middle(stretches.iter().map(|stretch| stretch.2).collect()), words, going_on, orders }
    }
}

impl Side {
    fn is_prose(&self) -> bool {
        self.fill > 0.7 && self.words > 3.0 && self.ems > LEAST_EMS && self.going_on > 0.2
    }
}

fn middle(mut numbers: Vec<f32>) -> f32 {
    numbers.sort_by(f32::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// How much stretches (left, right, …) take of the room of those that begin below each other.
fn fills(stretches: &mut [(f32, f32, f32)], rows: &[Row]) -> Vec<f32> {
    let near = 2.0 * middle(rows.iter().map(|row| row.size).collect());
    stretches.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lanes = stretches.chunk_by(|a, b| b.0 - a.0 < near);
    let fills = lanes.flat_map(|lane| {
        let left = lane.first().map_or(0.0, |first| first.0);
        let right = lane.iter().map(|stretch| stretch.1).fold(f32::MIN, f32::max);
        lane.iter().map(move |stretch| (stretch.1 - stretch.0) / (right - left).max(1.0))
    });
    fills.collect()
}

fn are_columns(band: &[Row], gutter: f32) -> bool {
    let left = Side::of(band, |piece| piece.middle() < gutter);
    let right = Side::of(band, |piece| piece.middle() >= gutter);
    if left.lines.min(right.lines) < LEAST_LINES {
        return false;
    }
    // The rows of a table are on one line, and written one after the other.
    let both = (left.lines + right.lines).saturating_sub(band.len());
    let (few, many) = (left.lines.min(right.lines), left.lines.max(right.lines));
    let is_unaligned = both * 2 < few && few * 5 > many * 3;
    let are_apart = is_unaligned || is_one_after_other(&left.orders, &right.orders);
    (left.is_prose() && right.is_prose()) || (are_apart && (left.is_prose() || right.is_prose()))
}

/// Whether nearly all of one side was written before nearly all of the other one.
fn is_one_after_other(left: &[u32], right: &[u32]) -> bool {
    let before = |first: &[u32], then: &[u32]| {
        let mut then: Vec<u32> = then.to_vec();
        then.sort_unstable();
        let start = then.get(then.len() / 8).copied().unwrap_or(0);
        first.iter().filter(|order| **order > start).count() * 8 <= first.len()
    };
    before(left, right) || before(right, left)
}
