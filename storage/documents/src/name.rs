//! Names and messages that come from files, as people, terminals and JSON can take them.

use std::fmt::Write;
use std::path::Path;

/// A path as text: bytes that are not UTF-8 as `\xff`, control characters and marks that turn the direction of writing as
/// `\u{1b}`. Two names never become the same text, unless one of them was written with such a backslash.
pub fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if steers(c) { text.extend(c.escape_default()) } else { text.push(c) }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// A parser's message on one line, without what could steer a terminal, of at most `most` characters.
pub fn clean(message: &str, most: usize) -> String {
    let words = message.split(|c: char| c.is_whitespace() || steers(c)).filter(|word| !word.is_empty());
    let mut line = String::new();
    let mut left = most;
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if left == 0 {
                line.push('…');
                return line;
            }
            line.push(c);
            left -= 1;
        }
    }
    line
}

/// Whether a terminal could take it for an order.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_apart_and_steer_nothing() {
        assert_eq!(shown(Path::new("/a b/é.txt")), "/a b/é.txt");
        assert_eq!(shown(Path::new("a\u{1b}[2J\n\u{9b}\u{202e}.txt")), "a\\u{1b}[2J\\n\\u{9b}\\u{202e}.txt");
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let name = |bytes| shown(Path::new(std::ffi::OsStr::from_bytes(bytes)));
            assert_eq!(name(b"a\xff.txt"), "a\\xff.txt");
            assert_ne!(name(b"a\xff.txt"), name(b"a\xfe.txt"));
        }
    }

    #[test]
    fn messages_are_short_lines() {
        assert_eq!(clean("one\n\u{1b}[31m two\u{0}", 100), "one [31m two");
        assert_eq!(clean(&"x".repeat(1000), 5), "xxxxx…");
    }
}
