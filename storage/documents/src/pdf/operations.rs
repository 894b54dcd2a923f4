//! The operations of a page's content. The PDF library reads none behind a byte that it does not know, and nothing at all beside some images.

use pdf_extract::content::{Content, Operation};

use super::inline::{Image, Images};

/// Lists and dictionaries in one another: the library reads nothing of a content that has a hundred.
const MAX_OPEN: usize = 64;

/// The operations, and whether these are all.
pub fn read(content: &[u8]) -> (Vec<Operation>, bool) {
    let (plain, is_whole) = plain(content);
    match Content::decode_strict(&plain) {
        Ok(content) => (content.operations, is_whole),
        Err(_) => (Content::decode(&plain).map(|content| content.operations).unwrap_or_default(), false),
    }
}

/// A content without images, comments and brackets that nothing opens, and with blanks for what else ISO 32000 takes for them; and whether that is
/// all of it.
fn plain(content: &[u8]) -> (Vec<u8>, bool) {
    let mut plain = Vec::with_capacity(content.len());
    let (mut at, mut open, mut inner, mut images) = (0, 0_usize, 0_usize, Images::default());
    while let Some(byte) = content.get(at) {
        if open + inner > MAX_OPEN {
            return (plain, false);
        }
        let rest = &content[at..];
        let length = match byte {
            b'(' => literal(rest),
            b'<' if rest.get(1) == Some(&b'<') => {
                inner += 1;
                2
            }
            b'<' => rest.iter().position(|byte| *byte == b'>').map_or(rest.len(), |end| end + 1),
            b'>' if rest.get(1) == Some(&b'>') => {
                inner = inner.saturating_sub(1);
                2
            }
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
                if rest.starts_with(b"BI") {
                    // The library reads nothing at all beside one that it does not know.
                    let image = if length == 2 { images.next(rest) } else { Image::None };
                    at += match image {
                        Image::None => length,
                        Image::Endless => return (plain, false),
                        Image::Of(bytes) => bytes,
                    };
                    plain.push(b' ');
                    continue;
                }
                length
            }
        };
        plain.extend_from_slice(&rest[..length.min(rest.len())]);
        at += length;
    }
    (plain, true)
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

    fn operators(content: &[u8]) -> (String, bool) {
        let (read, is_whole) = read(content);
        let read: Vec<String> = read.into_iter().map(|operation| operation.operator).collect();
        (read.join(" "), is_whole)
    }

    #[test]
    fn an_image_ends_where_its_data_does() {
        let gray = |data: &[u8]| [b"BI /W 1 /H 1 /CS /G /BPC 8 ID ".as_slice(), data].concat();
        let packed = |filter: &str, data: &[u8]| [format!("BI /W 9 /H 9 /F {filter} ID ").as_bytes(), data].concat();
        for image in [
            gray(b"\xffEI"),
            gray(b"\xff\nEI"),
            b"BI/W 2/H 1/CS/RGB/BPC 8 ID EI Q q EI".to_vec(),
            b"BI /IM true /W 9 /H 1 ID\r\nEI\r\nEI".to_vec(),
            packed("/Fl", b"x\x80EI"),
            packed("[/A85 /Fl]", b"abcEI\nabc~>EI"),
            packed("/A85", b"abcEI\nabc~>\nEI"),
        ] {
            let one: &[u8] = b" BT (One) Tj ET ";
            let content = [image.as_slice(), one, &image, b" q EI Q"].concat();
            assert_eq!(operators(&content), ("BT Tj ET q EI Q".to_owned(), true), "{image:?}");
        }
        // A text may have any bytes.
        let content = [&*packed("/Fl", b"x EI BT(\xe4) Tj ET "), &*packed("/Fl", b"x EI Q")].concat();
        assert_eq!(operators(&content).0, "BT Tj ET Q");
    }

    #[test]
    fn what_stands_before_an_image_without_end_is_read() {
        let one = b"BT (One) Tj ET ".as_slice();
        let endless = [one, b"BI /W 9 /H 9 /CS /G /BPC 8 ID \x80\x80".as_slice()].concat();
        assert_eq!(operators(&endless), ("BT Tj ET".to_owned(), false));
        let deep = [one, &b"[".repeat(200)].concat();
        assert_eq!(operators(&deep), ("BT Tj ET".to_owned(), false));
        // What has no data is no image, and takes nothing from those behind it.
        for odd in [&b"BI /W 9 "[..], b"BIG ", b"BI/W 9 BI /W 1 /H 1 ID x EI "] {
            assert_eq!(operators(&[one, odd, one].concat()), ("BT Tj ET BT Tj ET".to_owned(), true), "{odd:?}");
        }
    }

    #[test]
    fn many_images_cost_what_they_are_long() {
        let one = b"BT (One) Tj ET ".as_slice();
        for many in ["BI ID x EI \u{80} ", "BI[ ", "BI ", "BI /W 1 /H 1 /IM true /F /A85 ID x EI \u{80} "] {
            let content = [one, many.repeat(300_000).as_bytes()].concat();
            assert!(operators(&content).0.starts_with("BT Tj ET"), "{many}");
        }
    }
}
