//! Running heads and feet: what stands at the top or bottom of several pages. An author's text must not go with them, so that these are left
//! out only where a white gap divides them from the text, or their number is the page's and no title's.

use std::collections::{HashMap, HashSet};

use super::rows::Row;

/// Rows at either end of a page that may be heads or feet.
const MOST_ROWS: usize = 3;
/// Pages that have the same one.
const LEAST_PAGES: usize = 3;
/// A gap of this many usual steps divides it from the text.
const GAP: f32 = 1.4;
/// How far it may stand from where it is usual, in ems.
const AWAY: f32 = 1.0;
/// It is not larger than the text by this.
const TITLE: f32 = 1.15;
const MOST_BYTES: usize = 250;
/// A gap of this many ems, or a stroke, parts the page's number from other words.
const LONE: f32 = 1.5;
const STROKES: [char; 3] = ['|', '·', '•'];
/// A number beside words is the page's if it is that many pages from it at most: those of invoices are further away.
const FAR: usize = 50;
/// Words beside a number that are no title's: `Question 1`.
const MANY_WORDS: usize = 3;

/// A row that may be one.
struct Edge {
    page: usize,
    row: usize,
    base: f32,
    size: f32,
    /// Its text, without numbers.
    words: String,
    numbers: Vec<usize>,
    is_top: bool,
    /// A gap divides it from the text.
    is_apart: bool,
    /// Numbers that stand by themselves.
    lone: Vec<usize>,
}

/// Takes them out of pages, whose rows are from the top. Returns how many pages had any.
pub fn leave_out(pages: &mut [Vec<Row>]) -> usize {
    let mut edges = Vec::new();
    let mut found: HashSet<(usize, usize)> = HashSet::new();
    for (page, rows) in pages.iter().enumerate() {
        let is_tagged = |row: &Row| row.pieces.iter().all(|piece| piece.is_head);
        found.extend(rows.iter().enumerate().filter(|(_, row)| is_tagged(row)).map(|(at, _)| (page, at)));
        at_edges(page, rows, &mut edges);
    }
    let mut alike: HashMap<(bool, &str), Vec<&Edge>> = HashMap::new();
    for edge in &edges {
        alike.entry((edge.is_top, edge.words.as_str())).or_default().push(edge);
    }
    for edges in alike.values() {
        found.extend(repeated(edges).into_iter().map(|edge| (edge.page, edge.row)));
    }
    for is_top in [true, false] {
        found.extend(numbered(&edges, is_top).into_iter().map(|edge| (edge.page, edge.row)));
    }
    let mut had = 0;
    for (page, rows) in pages.iter_mut().enumerate() {
        // A page of nothing else is no page of heads.
        let before = rows.len();
        if (0..before).all(|at| found.contains(&(page, at))) {
            continue;
        }
        let mut at = 0;
        rows.retain(|_| {
            at += 1;
            !found.contains(&(page, at - 1))
        });
        had += usize::from(rows.len() < before);
    }
    had
}

fn at_edges(page: usize, rows: &[Row], edges: &mut Vec<Edge>) {
    let mut steps: Vec<f32> = rows
        .windows(2)
        .filter_map(|pair| Some(pair.first()?.base - pair.last()?.base))
        .filter(|step| *step > 0.0)
        .collect();
    steps.sort_by(f32::total_cmp);
    let usual = steps.get(steps.len() * 3 / 10).copied().unwrap_or(0.0);
    let mut sizes: Vec<f32> = rows.iter().map(|row| row.size).collect();
    sizes.sort_by(f32::total_cmp);
    let usual_size = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
    for is_top in [true, false] {
        let nth = |at: usize| if is_top { Some(at) } else { rows.len().checked_sub(at + 1) };
        let row = |at: usize| nth(at).and_then(|at| rows.get(at));
        // How many rows from the edge there is a gap.
        let gap = (0..MOST_ROWS).find(|at| match (row(*at), row(at + 1)) {
            (Some(one), Some(next)) => (one.base - next.base).abs() > (GAP * usual).max(GAP * one.size.min(next.size)),
            _ => false,
        });
        for at in 0..MOST_ROWS {
            let (Some(index), Some(row)) = (nth(at), row(at)) else { break };
            let text = row.text();
            // Titles of slides are larger than what they stand above.
            let is_apart = gap.is_some_and(|gap| at <= gap) && row.size < TITLE * usual_size;
            if text.len() > MOST_BYTES || !(is_apart || at == 0) {
                break;
            }
            let (words, numbers) = without_numbers(&text);
            // A title's number may grow as the page's does, and it is no head for that.
            let is_title = row.size >= TITLE * usual_size && words.contains(char::is_alphabetic) && !says_page(&words);
            if is_title {
                continue;
            }
            let lone = lone_numbers(row);
            let Row { base, size, .. } = *row;
            edges.push(Edge { page, row: index, base, size, words, numbers, is_top, is_apart, lone });
        }
    }
}

/// A text with `#` for its numbers, and these: Roman ones if they stand alone.
fn without_numbers(text: &str) -> (String, Vec<usize>) {
    if let Some(number) = roman(text.trim()) {
        return ("#".into(), vec![number]);
    }
    let (mut words, mut numbers) = (String::new(), Vec::new());
    let mut digits = String::new();
    for letter in text.trim().chars().chain([' ']) {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        if !digits.is_empty() {
            numbers.push(digits.parse().unwrap_or(usize::MAX));
            words.push('#');
            digits.clear();
        }
        words.push(letter);
    }
    (words.trim().to_owned(), numbers)
}

/// Numbers that a gap or a stroke parts from what stands beside them, as it parts pages' numbers from heads.
fn lone_numbers(row: &Row) -> Vec<usize> {
    let number = |part: &str| {
        let part = part.trim_matches(|letter: char| letter.is_whitespace() || "-–—[]".contains(letter));
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { part.parse().ok() } else { roman(part) }
    };
    let cells = row.cells(LONE);
    cells.iter().flat_map(|cell| cell.text.split(STROKES)).filter_map(number).collect()
}

fn roman(text: &str) -> Option<usize> {
    let value = |letter| match letter {
        'i' => Some(1),
        'v' => Some(5),
        'x' => Some(10),
        'l' => Some(50),
        _ => None,
    };
    let values: Option<Vec<usize>> = text.chars().map(value).collect();
    let values = values.filter(|values| !values.is_empty() && values.len() < 9)?;
    let signed = |(at, value): (usize, &usize)| {
        let is_less = values.get(at + 1).is_some_and(|next| value < next);
        if is_less { -(*value as i64) } else { *value as i64 }
    };
    usize::try_from(values.iter().enumerate().map(signed).sum::<i64>()).ok()
}

/// Those of the same words that stand where most of them do, if they are running ones.
fn repeated<'e>(edges: &[&'e Edge]) -> Vec<&'e Edge> {
    let edges = in_place(edges);
    let pages: HashSet<usize> = edges.iter().map(|edge| edge.page).collect();
    let Some(first) = edges.first() else { return Vec::new() };
    let follows = |slot: usize| {
        let mut beyond: HashMap<Option<usize>, usize> = HashMap::new();
        for edge in &edges {
            *beyond.entry(edge.numbers.get(slot).map(|number| number.wrapping_sub(edge.page))).or_default() += 1;
        }
        beyond.values().max().copied().unwrap_or(0) * 5 >= edges.len() * 4
    };
    let is_same = |slot: usize| {
        let mut all: HashMap<Option<&usize>, usize> = HashMap::new();
        edges.iter().for_each(|edge| *all.entry(edge.numbers.get(slot)).or_default() += 1);
        all.values().max().copied().unwrap_or(0) * 5 >= edges.len() * 4
    };
    let slots = 0..first.numbers.len();
    let are_most = |is: &dyn Fn(&Edge) -> bool| edges.iter().filter(|edge| is(edge)).count() * 2 > edges.len();
    let is_page = |slot: usize| follows(slot) && !is_same(slot);
    let is_lone = |slot: usize| are_most(&|edge| edge.numbers.get(slot).is_some_and(|at| edge.lone.contains(at)));
    let is_near =
        |slot: usize| are_most(&|edge| edge.numbers.get(slot).is_some_and(|at| at.abs_diff(edge.page) <= FAR));
    let has_page = slots.clone().any(is_page);
    let are_explained = slots.clone().all(|slot| is_same(slot) || follows(slot));
    let has_pattern = says_page(&first.words) || first.words.contains("#/#");
    let is_enough = pages.len() >= LEAST_PAGES || (pages.len() == 2 && has_page && has_pattern);
    let is_apart = are_most(&|edge| edge.is_apart);
    let is_text = first.words.chars().any(|letter| letter != '#');
    let names = first.words.split_whitespace().filter(|word| word.contains(char::is_alphabetic)).count();
    // What has a number beside it may be a title, and the number what people look for: `Invoice 1001`.
    let is_long = is_apart && (!first.is_top || names >= MANY_WORDS);
    let has_own =
        |slot: usize| is_page(slot) && (is_lone(slot) && (is_near(slot) || names != 1) || is_long && is_near(slot));
    let is_head = if has_page { has_pattern || slots.clone().any(has_own) } else { is_apart && is_text };
    if is_enough && are_explained && is_head { edges } else { Vec::new() }
}

fn says_page(words: &str) -> bool {
    let words = words.to_lowercase();
    let says = |word: &str| words.contains(&format!("{word} #"));
    ["page", "seite", "p.", "pag.", "página", "pagina", "sheet", "strana", "sida", "side"].iter().any(|word| says(word))
        || ["# of #", "# von #", "# de #", "# sur #", "# / #"].iter().any(|pattern| words.contains(pattern))
}

/// Heads that name a chapter, and so are not the same everywhere, have the page's number at their outer end.
fn numbered(edges: &[Edge], is_top: bool) -> Vec<&Edge> {
    let mut beyond: HashMap<usize, Vec<&Edge>> = HashMap::new();
    for edge in edges.iter().filter(|edge| edge.is_top == is_top) {
        // Beside a title's number there is no gap: `1. Goals`, `1 January`.
        let is_lone = |number: &&usize| edge.lone.contains(number) || says_page(&edge.words);
        let first = edge.numbers.first().filter(|_| edge.words.starts_with('#')).filter(is_lone);
        let last = edge.numbers.last().filter(|_| edge.words.ends_with('#')).filter(is_lone);
        let beyonds: HashSet<usize> =
            first.into_iter().chain(last).map(|number| number.wrapping_sub(edge.page)).collect();
        for number in beyonds {
            beyond.entry(number).or_default().push(edge);
        }
    }
    // Of equals the lowest, so that it is the same twice.
    let most = beyond.into_iter().max_by_key(|(number, edges)| (edges.len(), std::cmp::Reverse(*number)));
    let edges = most.map_or_else(Vec::new, |(_, edges)| in_place(&edges));
    let pages: HashSet<usize> = edges.iter().map(|edge| edge.page).collect();
    if pages.len() > LEAST_PAGES { edges } else { Vec::new() }
}

/// Those that stand about where the one in the middle of all does.
fn in_place<'e>(edges: &[&'e Edge]) -> Vec<&'e Edge> {
    let mut bases: Vec<f32> = edges.iter().map(|edge| edge.base).collect();
    bases.sort_by(f32::total_cmp);
    let Some(middle) = bases.get(bases.len() / 2).copied() else { return Vec::new() };
    edges.iter().copied().filter(|edge| (edge.base - middle).abs() < AWAY * edge.size.max(4.0)).collect()
}
