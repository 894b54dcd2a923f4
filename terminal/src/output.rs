//! Standard output: data only. A reader that stops reading (`| head`) is no error.

use std::io::{ErrorKind as Io, IsTerminal, Write};

use ragstone_env::mebibytes;
use serde::Serialize;

use crate::error::{Error, Result};

/// Writes text as it is.
pub fn text(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    check(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Writes a line.
pub fn line(line: &str) -> Result<()> {
    text(&format!("{line}\n"))
}

/// Writes a value as JSON: indented for a terminal, on one line for a program.
pub fn json(value: &impl Serialize) -> Result<()> {
    let text = if std::io::stdout().is_terminal() {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    line(&text.map_err(|error| Error::internal(format!("the output cannot be written as JSON: {error}")))?)
}

/// Text from a model or a document, without what could steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !steers(*c) || matches!(c, '\n' | '\t')).collect()
}

/// Whether a character changes how others are shown: orders to the terminal, and marks that turn the direction of writing, by which
/// `invoice\u{202e}fdp.exe` looks like the name of another file. Letters of Arabic and Hebrew have their direction themselves, so that words
/// without such marks stay what they are; what joins and parts letters within a word (U+200C, U+200D) is no such mark, and stays.
fn steers(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
    );
    c.is_control() || turns
}

/// As [`printable`], on one line of at most `width` characters.
pub fn one_line(text: &str, width: usize) -> String {
    let words = printable(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= width {
        return words;
    }
    let cut: String = words.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}

/// `1 entry`, `2 entries`
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Entries, and what their copies in all tiers come to: `12 entries (19 copies, 34.0 MiB)`.
pub fn entries(entries: u64, copies: u64, bytes: u64) -> String {
    let (entries, copies) = (count(entries, "entry", "entries"), count(copies, "copy", "copies"));
    format!("{entries} ({copies}, {:.1} MiB)", mebibytes(bytes))
}

fn check(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != Io::BrokenPipe => {
            Err(Error::internal(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one() {
        assert_eq!(entries(12, 19, 35_651_584), "12 entries (19 copies, 34.0 MiB)");
        assert_eq!(entries(1, 1, 0), "1 entry (1 copy, 0.0 MiB)");
        assert_eq!(count(0, "file", "files"), "0 files");
    }

    #[test]
    fn a_terminal_is_not_steered() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a[2Jb\nc");
        assert_eq!(one_line("a\n b   c", 10), "a b c");
        assert_eq!(printable("invoice\u{202e}fdp.exe a\u{2066}b\u{2069}\u{200f}"), "invoicefdp.exe ab");
        assert_eq!(one_line("(\u{202b}a\u{202c})\u{61c} b", 10), "(a) b");
        // Hebrew, Arabic, Persian with a non-joiner, and signs that are joined.
        for text in ["שלום, עולם", "مرحبا (بالعالم)", "می\u{200c}خواهم", "👩\u{200d}👧"]
        {
            assert_eq!((printable(text), one_line(text, 20)), (text.to_owned(), text.to_owned()));
        }
        assert_eq!(one_line("abcdef", 4), "abc…");
    }
}
