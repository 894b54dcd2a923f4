//! The operations of a page's content. The PDF library reads none behind a byte that it does not know, and nothing at all beside some images.

use pdf_extract::content::{Content, Operation};

/// What follows an image that stands within the content, for it to be its end: nothing but text.
const TEXT_BEHIND: usize = 16;

/// The operations, and whether these are all.
pub fn read(content: &[u8]) -> (Vec<Operation>, bool) {
    let plain = plain(content);
    match Content::decode_strict(&plain) {
        Ok(content) => (content.operations, true),
        Err(_) => (Content::decode(&plain).map(|content| content.operations).unwrap_or_default(), false),
    }
}

/// A content without images, comments and brackets that nothing opens, and with blanks for what else ISO 32000 takes for them.
fn plain(content: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(content.len());
    let (mut at, mut open, mut has_ends) = (0, 0_usize, true);
    while let Some(byte) = content.get(at) {
        let rest = &content[at..];
        let length = match byte {
            b'(' => literal(rest),
            b'<' if rest.get(1) == Some(&b'<') => 2,
            b'<' => rest.iter().position(|byte| *byte == b'>').map_or(rest.len(), |end| end + 1),
            b'>' if rest.get(1) == Some(&b'>') => 2,
            b'%' => {
                plain.push(b' ');
                at += rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
                continue;
            }
            0 | 0x0c | b'>' | b')' | b'{' | b'}' => {
                plain.push(b' ');
                at += 1;
                continue;
            }
            b'[' | b']' => {
                let is_stray = *byte == b']' && open == 0;
                open = if *byte == b'[' { open + 1 } else { open.saturating_sub(1) };
                plain.push(if is_stray { b' ' } else { *byte });
                at += 1;
                continue;
            }
            byte if byte.is_ascii_whitespace() => 1,
            _ => {
                // A name begins with what parts others.
                let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\0()<>[]{}/%".contains(byte);
                let length = 1 + rest[1..].iter().position(is_end).unwrap_or(rest.len() - 1);
                if has_ends && &rest[..length] == b"BI" {
                    if let Some(image) = image(rest) {
                        plain.push(b' ');
                        at += image;
                        continue;
                    }
                    // Looked for once, so that many that have none cost no more.
                    has_ends = false;
                }
                length
            }
        };
        plain.extend_from_slice(&rest[..length.min(rest.len())]);
        at += length;
    }
    plain
}

/// How long a text in brackets is.
fn literal(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = rest.get(at) {
        match byte {
            b'\\' => at += 1,
            b'(' => depth += 1,
            b')' if depth == 1 => return at + 1,
            b')' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    rest.len()
}

/// How long an image is that stands within the content, from `BI` to `EI`; `None` where it is none.
fn image(rest: &[u8]) -> Option<usize> {
    let is_word = |at: usize, word: &[u8]| {
        let is_space = |byte: Option<&u8>| byte.is_none_or(|byte| byte.is_ascii_whitespace() || *byte == 0);
        rest.get(at..).is_some_and(|rest| rest.starts_with(word) && is_space(rest.get(word.len())))
    };
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
    let data = (2..rest.len().min(1 << 12)).find(|at| is_word(*at, b"ID"))? + 3;
    let is_text = |from: usize| {
        let behind = rest.get(from..).unwrap_or_default();
        behind.iter().take(TEXT_BEHIND).all(|byte| is_blank(byte) || byte.is_ascii_graphic())
    };
    // Of an image without data the blank before `EI` is that behind `ID`.
    let is_end = |at: &usize| is_word(*at, b"EI") && is_blank(&rest[*at - 1]);
    let end = (data..rest.len()).find(|at| is_end(at) && is_text(*at + 2));
    let end = end.or_else(|| (data..rest.len()).find(is_end))?;
    Some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_does_not_know_ends_nothing() {
        let image = "BI /W 8 /H 8 /BPC 1 /IM true ID \u{20}\u{20}\u{20}\0\0 EI";
        for odd in [image, "BI /W 1 /H 1 /BPC 8 ID x EI", "\0\u{c}", "]", ")", "% (comment)\n"] {
            let (read, is_whole) = read(format!("BT (One % \\) [) Tj ET {odd} BT [(Two) 3 <41>] TJ ET").as_bytes());
            let read: Vec<&str> = read.iter().map(|operation| operation.operator.as_str()).collect();
            assert_eq!((read, is_whole), (vec!["BT", "Tj", "ET", "BT", "TJ", "ET"], true), "{odd:?}");
        }
    }
}
