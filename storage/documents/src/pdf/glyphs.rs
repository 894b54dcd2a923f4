//! The letters of a page as the PDF library places them, put together to pieces: what was written without a blank.

use pdf_extract::{MediaBox, OutputDev, OutputError, Transform};

use super::content::Show;

/// A distance of this many ems between letters is a blank. Those of narrow lines are a fifth; kerning stays below a tenth.
pub const BLANK: f32 = 0.13;
/// How far a letter may begin before the last one's end: accents are put above letters by that.
const BACK: f32 = 0.6;
/// So many letters without a meaning, one after the other, are a word.
const UNKNOWN: usize = 4;
/// Letters of other directions are brought to this many degrees.
const DEGREES: i16 = 10;

/// A word or part of one. Places are along the line and across it, whichever way the line runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    pub text: String,
    pub left: f32,
    pub right: f32,
    pub base: f32,
    pub size: f32,
    /// Which way it runs, in degrees.
    pub angle: i16,
    /// When it was written.
    pub order: u32,
    /// There was a blank before it.
    pub is_spaced: bool,
    pub is_bold: bool,
    pub is_head: bool,
}

impl Piece {
    pub fn middle(&self) -> f32 {
        f32::midpoint(self.left, self.right)
    }
}

/// Collects the pieces of a page.
pub struct Glyphs<'s> {
    shows: std::slice::Iter<'s, Show>,
    show: Show,
    pub pieces: Vec<Piece>,
    /// The last piece may go on.
    is_open: bool,
    is_spaced: bool,
    /// Where the last letter began.
    last: f32,
    /// Letters one after the other whose font does not say what they are.
    streak: usize,
    /// Places with such.
    pub unknown: usize,
    glyphs_left: usize,
    pieces_left: usize,
}

impl<'s> Glyphs<'s> {
    pub fn new(shows: &'s [Show], glyphs_left: usize, pieces_left: usize) -> Self {
        Self {
            shows: shows.iter(),
            show: Show::default(),
            pieces: Vec::new(),
            is_open: false,
            is_spaced: false,
            last: 0.0,
            streak: 0,
            unknown: 0,
            glyphs_left,
            pieces_left,
        }
    }

    /// Whether it stopped for there are too many.
    pub fn is_full(&self) -> bool {
        self.glyphs_left == 0 || self.pieces_left == 0
    }

    pub fn glyphs_left(&self) -> usize {
        self.glyphs_left
    }

    fn add(&mut self, glyph: Piece) {
        let begins = glyph.left;
        if let Some(piece) = self.pieces.last_mut() {
            let (size, gap) = (glyph.size, glyph.left - piece.right);
            let is_level = piece.angle == glyph.angle && (piece.base - glyph.base).abs() < 0.05 * size;
            let is_alike = (piece.size - size).abs() < 0.02 * size && piece.is_head == glyph.is_head;
            // Bold letters are made by writing them twice. What has no width says nothing of that.
            if is_level
                && glyph.right > begins
                && (begins - self.last).abs() < 0.1 * size
                && piece.text.ends_with(&glyph.text)
            {
                return;
            }
            let back = if glyph.text.chars().any(is_rightward) { BLANK } else { BACK };
            if self.is_open && is_level && is_alike && gap < BLANK * size && gap > -back * size {
                piece.text.push_str(&glyph.text);
                piece.right = piece.right.max(glyph.right);
                self.last = begins;
                return;
            }
        }
        self.pieces_left = self.pieces_left.saturating_sub(1);
        self.pieces.push(Piece { is_spaced: self.is_spaced, ..glyph });
        self.last = begins;
        self.is_open = true;
        self.is_spaced = false;
    }
}

impl OutputDev for Glyphs<'_> {
    fn begin_page(&mut self, _: u32, _: &MediaBox, _: Option<(f64, f64, f64, f64)>) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn output_character(
        &mut self,
        place: &Transform,
        width: f64,
        spacing: f64,
        font_size: f64,
        text: &str,
    ) -> Result<(), OutputError> {
        if self.is_full() {
            return Err(OutputError::FormatError(std::fmt::Error));
        }
        self.glyphs_left -= 1;
        // Blanks often have no meaning.
        self.streak = if text.is_empty() { self.streak + 1 } else { 0 };
        self.unknown += usize::from(self.streak == UNKNOWN);
        let text = plain(text);
        if text.trim().is_empty() {
            if !text.is_empty() {
                (self.is_open, self.is_spaced) = (false, true);
            }
            return Ok(());
        }
        let (along, up) = (place.m11.hypot(place.m12), place.m21.hypot(place.m22));
        let angle = turn(place.m12 * font_size, place.m11 * font_size);
        let (sine, cosine) = f64::from(angle).to_radians().sin_cos();
        let left = place.m31 * cosine + place.m32 * sine;
        let base = place.m32 * cosine - place.m31 * sine;
        let right = left + along * (width * font_size.abs() + spacing * font_size.signum()).max(0.0);
        let size = up * font_size.abs() * f64::from(self.show.scale);
        let is_there = [left, base, right, size].into_iter().all(|one| one.is_finite() && one.abs() < 1e6);
        if is_there && size > 0.01 {
            self.add(Piece {
                text,
                left: left as f32,
                right: right as f32,
                base: base as f32,
                size: size as f32,
                angle,
                order: self.pieces.len() as u32,
                is_spaced: false,
                is_bold: self.show.is_bold,
                is_head: self.show.is_head,
            });
        }
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.show = self.shows.next().copied().unwrap_or_default();
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

/// Degrees: a right angle where it is nearly one, as scans are not quite straight.
fn turn(y: f64, x: f64) -> i16 {
    let degrees = y.atan2(x).to_degrees();
    let right = (degrees / 90.0).round() * 90.0;
    let angle =
        if (degrees - right).abs() < 5.0 { right } else { (degrees / f64::from(DEGREES)).round() * f64::from(DEGREES) };
    (angle as i16).rem_euclid(360)
}

/// A letter as it is searched for: ligatures in letters, blanks of any width as blanks, without what nobody sees.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            'ﬀ' => plain.push_str("ff"),
            'ﬁ' => plain.push_str("fi"),
            'ﬂ' => plain.push_str("fl"),
            'ﬃ' => plain.push_str("ffi"),
            'ﬄ' => plain.push_str("ffl"),
            'ﬅ' | 'ﬆ' => plain.push_str("st"),
            '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{fffe}' => {}
            // Symbol fonts' bullet, from word processors.
            '\u{f0b7}' => plain.push('•'),
            _ if letter.is_whitespace() => plain.push(' '),
            _ if letter.is_control() => {}
            _ => plain.push(letter),
        }
    }
    // Pieces of these are turned as they are read.
    if plain.chars().count() > 1 && plain.chars().any(is_rightward) {
        plain = plain.chars().rev().collect();
    }
    plain
}

/// Whether it is a letter of a script that runs from right to left.
pub fn is_rightward(letter: char) -> bool {
    matches!(letter, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}')
}
