//! Whether a file whose name does not say so is a text.

use std::io::Read;

use super::find::FoundFile;
use super::open;

/// What is looked at.
const HEAD_BYTES: usize = 4096;
/// Words of texts are shorter on average; of scripts without blanks, sentences are.
const MOST_CHARS_A_WORD: usize = 100;

/// Whether it begins as a text for people or a script does. Keys and data of programs do not.
pub fn is_text(found: &FoundFile) -> bool {
    let (head, is_whole) = head(found);
    let text = match str::from_utf8(&head) {
        Ok(text) => text,
        // A character may be cut at the end of what is looked at.
        Err(error) if !is_whole && error.error_len().is_none() => {
            str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    reads_as_text(text)
}

/// Whether it is no text at all.
pub fn is_binary(found: &FoundFile) -> bool {
    head(found).0.contains(&0)
}

/// Its first bytes, and whether these are all.
fn head(found: &FoundFile) -> (Vec<u8>, bool) {
    let mut head = Vec::new();
    let read = open::open(found).map(|file| file.take(HEAD_BYTES as u64).read_to_end(&mut head));
    if !matches!(read, Ok(Ok(_))) {
        head.clear();
    }
    let is_whole = head.len() < HEAD_BYTES;
    (head, is_whole)
}

fn reads_as_text(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}').trim();
    let words = text.split_whitespace().count();
    let is_control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{c}');
    let (chars, letters) = (text.chars().count(), text.chars().filter(|c| c.is_alphabetic()).count());
    let is_data = ["{", "[", "<?xml", "-----BEGIN", "ssh-"].iter().any(|begin| text.starts_with(begin));
    words > 0 && !is_data && !text.contains(is_control) && chars <= MOST_CHARS_A_WORD * words && 2 * letters >= chars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_from_data() {
        for text in [
            "Dear Ada, the mill is dry.",
            "#!/bin/sh\nset -e\necho done\n",
            "図書館は毎日九時に開きます。日曜日は休みです。",
        ] {
            assert!(reads_as_text(text), "{text}");
        }
        let base64 = "QUJD".repeat(100);
        for text in [
            "",
            " \n",
            "a\u{1b}[0m text",
            "{\"a\": \"text\"}",
            "-----BEGIN CERTIFICATE-----\nMIIB",
            &base64,
            "1 2 3\n4 5 6\n",
        ] {
            assert!(!reads_as_text(text), "{text}");
        }
    }
}
