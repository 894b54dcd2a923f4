//! Characters that begin a cell as a quote would: of titles and inches, in texts whose cells are not quoted. Read as CSV, such a cell goes
//! on to the next quote of the file, or to the file's end.

use std::borrow::Cow;

use super::DELIMITERS;

const QUOTE: u8 = b'"';

/// A text in which every quote that begins a cell has one that ends it: cells without such an end are quoted as CSV does it. Lines stay.
pub fn mended(text: &str, delimiter: u8) -> Cow<'_, str> {
    if !text.contains('"') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let (mut mended, mut copied, mut at) = (String::new(), 0, 0);
    // At the beginning of a cell each time. What is cut at is ASCII.
    while at < bytes.len() {
        if let Some(quote) = quote_behind_blanks(bytes, at, delimiter) {
            mended.push_str(&text[copied..at]);
            (copied, at) = (quote, quote);
        }
        let closed = if bytes[at] == QUOTE { end_of_quoted(bytes, at, delimiter) } else { Some(at) };
        let end = end_of_cell(bytes, closed.unwrap_or(at), delimiter);
        if closed.is_none() {
            mended.push_str(&text[copied..at]);
            mended.push_str(&format!("\"{}\"", text[at..end].replace('"', "\"\"")));
            copied = end;
        }
        at = end + 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    mended.push_str(&text[copied..]);
    Cow::Owned(mended)
}

/// Where the delimiter or the end of the line behind a cell is.
fn end_of_cell(bytes: &[u8], from: usize, delimiter: u8) -> usize {
    let is_end = |byte: &u8| *byte == delimiter || matches!(byte, b'\n' | b'\r');
    bytes[from..].iter().position(is_end).map_or(bytes.len(), |length| from + length)
}

/// The quote of a cell that is quoted behind blanks, as people and some programs write it: CSV knows none there, and would cut the cell.
fn quote_behind_blanks(bytes: &[u8], from: usize, delimiter: u8) -> Option<usize> {
    let quote = from + bytes[from..].iter().take_while(|byte| **byte == b' ').count();
    if quote == from || bytes.get(quote) != Some(&QUOTE) || !DELIMITERS.contains(&delimiter) {
        return None;
    }
    let end = end_of_quoted(bytes, quote, delimiter)?;
    let next = bytes[end..].iter().find(|byte| **byte != b' ');
    next.is_none_or(|next| *next == delimiter || matches!(next, b'\n' | b'\r')).then_some(quote)
}

/// What follows the quote that ends the cell that one begins; `None` where that one is a character of the cell.
fn end_of_quoted(bytes: &[u8], from: usize, delimiter: u8) -> Option<usize> {
    let (mut at, mut has_lines) = (from + 1, false);
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (&QUOTE, Some(&QUOTE)) => at += 2,
            (&QUOTE, _) => break,
            (byte, _) => {
                has_lines |= matches!(byte, b'\n' | b'\r');
                at += 1;
            }
        }
    }
    // Within a line people put words in quotes; what is read too far is lines.
    if !has_lines {
        return Some(at + 1);
    }
    // Another cell begins with that quote if text follows it, or if delimiters stand on both sides of it.
    let next = bytes[at + 1..].iter().find(|byte| **byte != b' ' || delimiter == b' ');
    let is_closed =
        next.is_none_or(|next| *next == delimiter || DELIMITERS.contains(next) || matches!(next, b'\n' | b'\r'));
    let is_between = bytes[at - 1] == delimiter && (delimiter == b'\t' || bytes[from + 1] == delimiter);
    (is_closed && !is_between).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_that_end_their_cells_stay() {
        for (text, delimiter) in [
            ("", b','),
            ("a,b\n1,2", b','),
            ("a,\"b\nc\"\n\"d, \"\"e\"\"\n\",f\r\n", b','),
            ("a;\"b\r\nc\" \r\n\"d\ne\";f", b';'),
            // Words in quotes, and inches behind their number.
            ("\"Rake\" hoe,24\"\n\"Hoe\" rake,5\" x 3\"\n", b','),
            // By another delimiter than the text's own, it has these, too.
            ("1;\"a,b\nc,d\";2\n\"a,b\nc\";3", b','),
            ("a,\"Dear Ada,\n\nyours,\",b", b','),
            ("\"Lind, Ada\"\nHolm, Jo\n\"two\nlines\"", b'\n'),
            ("\"\"\"Rake\"\"\nis a title\",5\n", b','),
        ] {
            assert!(matches!(mended(text, delimiter), Cow::Borrowed(same) if same == text), "{text:?}");
        }
    }

    #[test]
    fn quotes_that_end_no_cell_are_characters() {
        for (text, delimiter, expected) in [
            ("a\t\"Rake\t3\nb\tHoe\t4\n", b'\t', "a\t\"\"\"Rake\"\t3\nb\tHoe\t4\n"),
            ("\"", b',', "\"\"\"\""),
            ("a,\"größer\nb", b',', "a,\"\"\"größer\"\nb"),
            // Those of two rows are no pair.
            ("a\t\"Rake\t3\nb\t\"Hoe\" x\t4", b'\t', "a\t\"\"\"Rake\"\t3\nb\t\"Hoe\" x\t4"),
            ("3,\",pipe\n4,\",hose\n", b',', "3,\"\"\"\",pipe\n4,\"\"\"\",hose\n"),
            ("a\t\"Rake\t3\nb\t\"\t4\n", b'\t', "a\t\"\"\"Rake\"\t3\nb\t\"\"\"\"\t4\n"),
            // What stands before a quote is none of its cell.
            ("a, \"b, c\"\nd, \"e\" f, g", b',', "a,\"b, c\"\nd, \"e\" f, g"),
            // The others of the text are as they were.
            ("\"a\nb\",1\n\"c,2\n\"d\ne\",3", b',', "\"a\nb\",1\n\"\"\"c\",2\n\"d\ne\",3"),
        ] {
            assert_eq!(mended(text, delimiter), expected, "{text:?}");
        }
    }

    #[test]
    fn many_quotes_cost_no_more_than_their_bytes() {
        for part in ["\"a\n", "\"\"\"\n", ",\"\"x\"\"\n", "\"\"\"\"\"\t\n", "\"\n,"] {
            let text = part.repeat(100_000);
            for delimiter in [b',', b'\t', 0] {
                let mended = mended(&text, delimiter);
                assert!(mended.len() <= 4 * text.len() && mended.matches('\n').count() == 100_000);
            }
        }
    }
}
