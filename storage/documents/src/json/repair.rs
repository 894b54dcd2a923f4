//! What programs write into JSON though it is none: numbers that are no numbers, and halves of characters.

use std::borrow::Cow;

/// Python writes these; the longest first.
const NO_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
const MARKS: [&str; 4] = ["NaN", "Infinity", "\\ud", "\\uD"];
/// Bytes of `\ud83d`.
const ESCAPE: usize = 6;

/// A text in which such numbers are `null`, and halves of characters, as texts have them that were cut anywhere, the character for that. Lines
/// stay.
pub fn repaired(text: &str) -> Cow<'_, str> {
    if !MARKS.iter().any(|mark| text.contains(mark)) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let (mut repaired, mut copied, mut at, mut is_string) = (String::new(), 0, 0, false);
    while let Some(first) = bytes.get(at) {
        let rest = &bytes[at..];
        let (length, better) = match first {
            b'"' => {
                is_string = !is_string;
                (1, None)
            }
            b'\\' if is_string => escape(rest),
            b'-' | b'I' | b'N' if !is_string => {
                let found = NO_NUMBERS.iter().find(|name| rest.starts_with(name.as_bytes()));
                found.map_or((1, None), |name| (name.len(), Some("null")))
            }
            _ => (1, None),
        };
        if let Some(better) = better {
            repaired.push_str(&text[copied..at]);
            repaired.push_str(better);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    repaired.push_str(&text[copied..]);
    Cow::Owned(repaired)
}

/// How long an escape is, and what is to stand for it.
fn escape(rest: &[u8]) -> (usize, Option<&'static str>) {
    match (unit(rest), rest.get(ESCAPE..).and_then(unit)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (2 * ESCAPE, None),
        (Some(0xd800..=0xdfff), _) => (ESCAPE, Some("\\ufffd")),
        _ => (2, None),
    }
}

/// The unit of UTF-16 that an escape such as `\ud83d` is.
fn unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.get(..ESCAPE)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_json_is_put_right() {
        for (text, expected) in [
            (r#"[NaN,-Infinity,Infinity,-1]"#, r#"[null,null,null,-1]"#),
            (r#"{"a \" NaN":NaN}"#, r#"{"a \" NaN":null}"#),
            (
                r#"["cut \ud83d","\udc00 x","\ud83d\ude00","\\ud83d"]"#,
                r#"["cut \ufffd","\ufffd x","\ud83d\ude00","\\ud83d"]"#,
            ),
            (r#"["\ud83d\ud83d\ude00é"]"#, r#"["\ufffd\ud83d\ude00é"]"#),
            ("[1]", "[1]"),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(repaired(text), expected);
        }
    }
}
