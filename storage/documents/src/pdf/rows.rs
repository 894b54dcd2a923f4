//! Pieces on one line, by where they stand.

use super::glyphs::{BLANK, Piece, is_rightward};

/// Of a line's height, how much is above and below the letters' foot.
const ABOVE: f32 = 0.7;
const BELOW: f32 = 0.2;
/// Rows above that a piece may still belong to: those of small raised letters come first.
const OPEN_ROWS: usize = 4;
/// Pieces of a row that are looked at for whether they stand below another one.
const MOST_BESIDE: usize = 100;

/// A line across a page or a column of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// From left to right.
    pub pieces: Vec<Piece>,
    pub base: f32,
    /// Of its largest letters.
    pub size: f32,
}

/// A stretch of a row between wide gaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub left: f32,
    pub right: f32,
    pub text: String,
}

impl Row {
    /// Of pieces in any order.
    pub fn of(mut pieces: Vec<Piece>) -> Self {
        pieces.sort_by(|a, b| a.left.total_cmp(&b.left));
        // What is written twice on the same spot is bold.
        pieces.dedup_by(|b, a| a.text == b.text && (a.left - b.left).abs() < 0.15 * a.size);
        // Raised and lowered letters are not its base: the widest size is.
        let main = pieces.iter().max_by(|a, b| (a.size * 8.0).round().total_cmp(&(b.size * 8.0).round()));
        let (base, size) = main.map_or((0.0, 0.0), |piece| (piece.base, piece.size));
        Self { pieces, base, size }
    }

    pub fn left(&self) -> f32 {
        self.pieces.first().map_or(0.0, |piece| piece.left)
    }

    pub fn right(&self) -> f32 {
        self.pieces.iter().map(|piece| piece.right).fold(f32::MIN, f32::max)
    }

    pub fn is_bold(&self) -> bool {
        !self.pieces.is_empty() && self.pieces.iter().all(|piece| piece.is_bold)
    }

    pub fn text(&self) -> String {
        text_of(&self.pieces)
    }

    /// How wide its first word is.
    pub fn first_word(&self) -> f32 {
        let mut end = self.pieces.first().map_or(self.size, |piece| piece.right);
        if self.pieces.first().and_then(|piece| piece.text.chars().next()).is_some_and(is_wide) {
            return self.size;
        }
        for pair in self.pieces.windows(2) {
            let [before, piece] = pair else { break };
            if is_apart(before, piece) {
                break;
            }
            end = end.max(piece.right);
        }
        end - self.left()
    }

    /// Its stretches between gaps of at least so many ems.
    pub fn stretches(&self, ems: f32) -> Vec<&[Piece]> {
        let mut right = f32::MIN;
        let mut cuts = vec![0];
        for (at, piece) in self.pieces.iter().enumerate() {
            if at > 0 && piece.left - right > ems * self.size {
                cuts.push(at);
            }
            right = right.max(piece.right);
        }
        cuts.push(self.pieces.len());
        cuts.windows(2).filter_map(|cut| self.pieces.get(*cut.first()?..*cut.last()?)).collect()
    }

    pub fn cells(&self, ems: f32) -> Vec<Cell> {
        let cell = |pieces: &&[Piece]| {
            let right = pieces.iter().map(|piece| piece.right).fold(f32::MIN, f32::max);
            Some(Cell { left: pieces.first()?.left, right, text: text_of(pieces) })
        };
        self.stretches(ems).iter().filter_map(cell).collect()
    }
}

/// Whether there is a blank between neighbours.
fn is_apart(before: &Piece, piece: &Piece) -> bool {
    piece.is_spaced || piece.left - before.right > BLANK * f32::midpoint(before.size, piece.size)
}

/// Pieces from left to right as they are read, with blanks where there are gaps.
pub fn text_of(pieces: &[Piece]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut before: Option<&Piece> = None;
    for piece in pieces {
        match (before, words.last_mut()) {
            (Some(before), Some(word)) if !is_apart(before, piece) => word.push_str(&piece.text),
            _ => words.push(piece.text.clone()),
        }
        before = Some(piece);
    }
    let letters = || pieces.iter().flat_map(|piece| piece.text.chars());
    let rightward = letters().filter(|letter| is_rightward(*letter)).count();
    if rightward > 0 && 2 * rightward > letters().filter(|letter| letter.is_alphabetic()).count() {
        words = leftward(words);
    }
    let text = words.join(" ");
    // A soft hyphen that is seen within a line is a hyphen.
    match text.strip_suffix('\u{ad}') {
        Some(text) => text.replace('\u{ad}', "-") + "\u{ad}",
        None => text.replace('\u{ad}', "-"),
    }
}

/// Words as they stand from left to right, of a script that is read from right to left. Numbers and foreign words keep their way.
fn leftward(mut words: Vec<String>) -> Vec<String> {
    words.reverse();
    let mut read = Vec::with_capacity(words.len());
    let mut foreign: Vec<String> = Vec::new();
    for word in words {
        if word.chars().any(is_rightward) {
            read.extend(foreign.drain(..).rev());
            read.push(turned(&word));
        } else {
            foreign.push(word);
        }
    }
    read.extend(foreign.drain(..).rev());
    read
}

/// A word's letters the other way round, but for numbers and foreign letters in it.
fn turned(word: &str) -> String {
    let letters: Vec<char> = word.chars().rev().collect();
    let is_foreign = |letter: &char| letter.is_alphanumeric() && !is_rightward(*letter);
    let parts = letters.chunk_by(|a, b| is_foreign(a) == is_foreign(b));
    parts
        .map(
            |part| {
                if part.iter().all(is_foreign) { part.iter().rev().collect() } else { part.iter().collect::<String>() }
            },
        )
        .collect()
}

/// Whether it is a character of a script without blanks.
pub fn is_wide(letter: char) -> bool {
    matches!(letter, '\u{2e80}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}

/// The rows of pieces that run the same way, from the top.
pub fn rows(mut pieces: Vec<Piece>) -> Vec<Row> {
    struct Open {
        pieces: Vec<Piece>,
        base: f32,
        size: f32,
    }
    pieces.sort_by(|a, b| b.base.total_cmp(&a.base));
    let mut open: Vec<Open> = Vec::new();
    for piece in pieces {
        let fits = |row: &Open| {
            let top = (piece.base + ABOVE * piece.size).min(row.base + ABOVE * row.size);
            let foot = (piece.base - BELOW * piece.size).max(row.base - BELOW * row.size);
            let (small, large) = (piece.size.min(row.size), piece.size.max(row.size));
            let is_near = (piece.base - row.base).abs() < 0.5 * small + 0.2 * large;
            // What is written above another one is a line of its own, whatever large letters stand beside both.
            let is_above = |other: &Piece| {
                let across = piece.right.min(other.right) - piece.left.max(other.left);
                across > 0.3 * small && (piece.base - other.base).abs() > 0.4 * piece.size.min(other.size)
            };
            let is_over = top - foot > 0.5 * (ABOVE + BELOW) * small;
            is_over && is_near && !row.pieces.iter().rev().take(MOST_BESIDE).any(is_above)
        };
        let recent = open.len().saturating_sub(OPEN_ROWS);
        let nearest = open.iter_mut().skip(recent).filter(|row| fits(row));
        let nearest = nearest.min_by(|a, b| (a.base - piece.base).abs().total_cmp(&(b.base - piece.base).abs()));
        match nearest {
            Some(row) => {
                if piece.size > 1.1 * row.size {
                    (row.base, row.size) = (piece.base, piece.size);
                }
                row.pieces.push(piece);
            }
            None => open.push(Open { base: piece.base, size: piece.size, pieces: vec![piece] }),
        }
    }
    let mut rows: Vec<Row> = open.into_iter().map(|row| Row::of(row.pieces)).collect();
    rows.sort_by(|a, b| b.base.total_cmp(&a.base));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_from_right_to_left_are_read_so() {
        let piece = |text: &str, left: f32| Piece {
            text: text.into(),
            left,
            right: left + 10.0,
            size: 10.0,
            ..Piece::default()
        };
        // As they stand from left to right: a number, then two words in reverse.
        let pieces = [piece("42", 0.0), piece("םלוע", 20.0), piece("v2םולש", 40.0)];
        assert_eq!(text_of(&pieces), "שלוםv2 עולם 42");
    }
}
