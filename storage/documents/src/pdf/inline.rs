//! Images that stand within a page's content: where they end. Their data may have any bytes, those of their end and of text, too.

/// What follows an image whose length is not known, for it to be its end: nothing but text.
const TEXT_BEHIND: usize = 16;
/// Bytes of what is said of an image.
const MAX_SAID: usize = 1 << 12;
/// Between data and its end.
const MAX_BLANKS: usize = 4;
/// Ways to write data as text, whose lines may end as an image does.
const TEXTS: [&[u8]; 4] = [b"/A85", b"/ASCII85Decode", b"/AHx", b"/ASCIIHexDecode"];

/// What begins with `BI`.
pub enum Image {
    /// It has no data, and is none.
    None,
    /// All else is its data.
    Endless,
    /// So many bytes.
    Of(usize),
}

/// The images of one content, from the first to the last.
#[derive(Default)]
pub struct Images {
    /// Whether no end has text behind it from here on, of data that is text and of other: looked for once, so that many images cost no more.
    has_none: [bool; 2],
}

impl Images {
    /// What begins with the `BI` at the start of `rest`.
    pub fn next(&mut self, rest: &[u8]) -> Image {
        let Some(said) = said(rest) else { return Image::None };
        let words = words(said);
        // Behind `ID` and a blank.
        let data = 2 + said.len() + 3;
        if let Some(end) = length(&words).and_then(|length| known_end(rest, data.checked_add(length)?)) {
            return Image::Of(end);
        }
        let is_written = value(&words, [b"/F", b"/Filter"]).is_some_and(|filter| TEXTS.contains(&filter));
        let before = |at: usize| at.checked_sub(1).and_then(|at| rest.get(at));
        let is_apart = |at: usize| before(at).is_some_and(|byte| is_blank(byte) || *byte == b'>');
        let is_end = |at: &usize| is_word(rest, *at, b"EI") && is_apart(*at);
        let mut end = None;
        if let Some(has_none) = self.has_none.get_mut(usize::from(is_written))
            && !*has_none
        {
            // Some have no blank before it.
            let is_before_text =
                |at: &usize| is_word(rest, *at, b"EI") && (!is_written || is_apart(*at)) && is_text(rest, *at + 2);
            end = (data..rest.len()).find(is_before_text);
            *has_none = end.is_none();
        }
        end.or_else(|| (data..rest.len()).find(is_end)).map_or(Image::Endless, |end| Image::Of(end + 2))
    }
}

fn is_blank(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == 0
}

fn is_word(rest: &[u8], at: usize, word: &[u8]) -> bool {
    let rest = rest.get(at..).and_then(|rest| rest.strip_prefix(word));
    rest.is_some_and(|rest| rest.first().is_none_or(is_blank))
}

/// Whether nothing but text follows, up to a string, which may have any bytes.
fn is_text(rest: &[u8], from: usize) -> bool {
    let mut behind = rest.get(from..).unwrap_or_default().iter().take(TEXT_BEHIND).take_while(|byte| **byte != b'(');
    behind.all(|byte| is_blank(byte) || byte.is_ascii_graphic())
}

/// What stands between `BI` and `ID`; `None` where another `BI` does, so that many of them cost no more than one.
fn said(rest: &[u8]) -> Option<&[u8]> {
    let is_begun = |at: usize| rest.get(at - 1).is_some_and(|byte| !byte.is_ascii_alphabetic() && *byte != b'/');
    let is_other = |at: usize| {
        let behind = rest.get(at..).and_then(|rest| rest.strip_prefix(b"BI"));
        behind.is_some_and(|behind| behind.first().is_none_or(|byte| !byte.is_ascii_alphanumeric()))
    };
    let ends = |at: &usize| is_begun(*at) && (is_word(rest, *at, b"ID") || is_other(*at));
    let end = (2..rest.len().min(MAX_SAID)).find(ends)?;
    rest.get(2..end).filter(|_| !is_other(end))
}

/// Names and numbers.
fn words(said: &[u8]) -> Vec<&[u8]> {
    let is_between = |byte: &u8| is_blank(byte) || b"[]<>()".contains(byte);
    let (mut words, mut rest) = (Vec::new(), said);
    while let Some(start) = rest.iter().position(|byte| !is_between(byte)) {
        let word = &rest[start..];
        let end =
            word.iter().skip(1).position(|byte| is_between(byte) || *byte == b'/').map_or(word.len(), |end| end + 1);
        let (word, behind) = word.split_at(end);
        words.push(word);
        rest = behind;
    }
    words
}

/// What stands behind a name, or behind its long form.
fn value<'w>(words: &[&'w [u8]], names: [&[u8]; 2]) -> Option<&'w [u8]> {
    let at = words.iter().position(|word| names.iter().any(|name| name == word))?;
    words.get(at + 1).copied()
}

fn number(words: &[&[u8]], names: [&[u8]; 2]) -> Option<usize> {
    std::str::from_utf8(value(words, names)?).ok()?.parse().ok()
}

/// How many bytes the data of an image has; `None` where they are packed, or nothing says it.
fn length(words: &[&[u8]]) -> Option<usize> {
    if value(words, [b"/F", b"/Filter"]).is_some() {
        return None;
    }
    let is_mask = value(words, [b"/IM", b"/ImageMask"]).is_some_and(|is| is == b"true");
    let colours = match value(words, [b"/CS", b"/ColorSpace"]) {
        _ if is_mask => 1,
        Some(b"/G" | b"/DeviceGray" | b"/CalGray" | b"/I" | b"/Indexed") => 1,
        Some(b"/RGB" | b"/DeviceRGB" | b"/CalRGB") => 3,
        Some(b"/CMYK" | b"/DeviceCMYK") => 4,
        _ => return None,
    };
    let bits = if is_mask { 1 } else { number(words, [b"/BPC", b"/BitsPerComponent"])? };
    let (width, height) = (number(words, [b"/W", b"/Width"])?, number(words, [b"/H", b"/Height"])?);
    width.checked_mul(colours)?.checked_mul(bits)?.div_ceil(8).checked_mul(height)
}

/// Where an image ends whose data does so at `at`, or a byte behind it: some have two bytes behind `ID`.
fn known_end(rest: &[u8], at: usize) -> Option<usize> {
    let end = |at: usize| {
        let blanks = rest.get(at..)?.iter().take(MAX_BLANKS).take_while(|byte| is_blank(byte)).count();
        is_word(rest, at + blanks, b"EI").then_some(at + blanks + 2)
    };
    end(at).or_else(|| end(at.checked_add(1)?))
}
