//! Bytes as text, in whatever encoding they are.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, ISO_2022_JP, UTF_8, UTF_16BE, UTF_16LE};

/// Where a declaration of the encoding is looked for.
const DECLARED_WITHIN: usize = 1024;
/// Of a text in an old encoding, one in so many characters may be a control character; programs and pictures have more.
const PLAIN_FOR_ONE_CONTROL: usize = 1000;
/// The byte order marks of UTF-32. The first begins as that of UTF-16LE does.
const UTF_32: [([u8; 4], Word, &str); 2] =
    [([0xff, 0xfe, 0, 0], u32::from_le_bytes, "UTF-32LE"), ([0, 0, 0xfe, 0xff], u32::from_be_bytes, "UTF-32BE")];
/// What ISO-2022-JP, all of it ASCII, writes before Japanese characters.
const JAPANESE_BEGINS: [&str; 4] = ["\x1b$B", "\x1b$@", "\x1b(I", "\x1b(J"];

/// Reads one character of UTF-32.
type Word = fn([u8; 4]) -> u32;

/// A text, and the encoding that it was in where that was not UTF-8.
pub struct Decoded {
    pub text: String,
    pub encoding: Option<&'static str>,
}

/// By the byte order mark; else UTF-8 where it is that; else as it says of itself (`charset=`, `encoding=`), or as a browser would guess.
///
/// # Errors
/// What is no text.
pub fn decode(bytes: Vec<u8>) -> Result<Decoded, String> {
    let something_else = |name: &str| format!("not text: it begins as {name} does, and goes on as something else");
    if let Some((mark, word, name)) = UTF_32.into_iter().find(|(mark, ..)| bytes.starts_with(mark)) {
        return utf_32(&bytes[mark.len()..], word, name).ok_or_else(|| something_else(name));
    }
    if let Some((encoding, length)) = Encoding::for_bom(&bytes).filter(|(encoding, _)| *encoding != UTF_8) {
        let decoded = with(encoding, &bytes[length..]).filter(|decoded| !decoded.text.contains('\0'));
        return decoded.ok_or_else(|| something_else(encoding.name()));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return unmarked_utf_16(&bytes).ok_or_else(|| {
            format!("not text: byte {at} is zero; convert it to one of the formats that ragstone reads")
        });
    }
    let bytes = match String::from_utf8(bytes) {
        Ok(mut text) => {
            if text.starts_with('\u{feff}') {
                text.drain(..'\u{feff}'.len_utf8());
            }
            return Ok(japanese(&text).unwrap_or(Decoded { text, encoding: None }));
        }
        Err(error) if is_nearly_utf_8(error.as_bytes()) => {
            let at = error.utf8_error().valid_up_to();
            return Err(format!(
                "not valid UTF-8 at byte {at}, though most of it is; repair it (for example with `iconv -c -f utf-8 -t utf-8`)"
            ));
        }
        Err(error) => error.into_bytes(),
    };
    let decoded = declared(&bytes).and_then(|encoding| with(encoding, &bytes)).or_else(|| with(guess(&bytes), &bytes));
    decoded
        .filter(|decoded| is_text(&decoded.text))
        .ok_or_else(|| "not text in any encoding that ragstone knows; convert it to UTF-8".into())
}

fn with(encoding: &'static Encoding, bytes: &[u8]) -> Option<Decoded> {
    let text = encoding.decode_without_bom_handling_and_without_replacement(bytes)?;
    Some(Decoded { text: text.into_owned(), encoding: Some(encoding.name()).filter(|_| encoding != UTF_8) })
}

fn utf_32(bytes: &[u8], word: Word, name: &'static str) -> Option<Decoded> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    let text: String = words.iter().map(|bytes| char::from_u32(word(*bytes))).collect::<Option<_>>()?;
    Some(Decoded { text, encoding: Some(name) }).filter(|decoded| !decoded.text.contains('\0'))
}

/// A text that is ISO-2022-JP and looks like ASCII. Others have such signs, too, as terminals write them.
fn japanese(text: &str) -> Option<Decoded> {
    let is_told = text.is_ascii() && JAPANESE_BEGINS.iter().any(|begin| text.contains(begin));
    is_told.then(|| with(ISO_2022_JP, text.as_bytes())).flatten().filter(|decoded| is_text(&decoded.text))
}

fn guess(bytes: &[u8]) -> &'static Encoding {
    // That is ASCII, and what is guessed is not.
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    detector.guess(None, Utf8Detection::Deny)
}

/// As HTML and XML say it near their beginning.
fn declared(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = bytes[..bytes.len().min(DECLARED_WITHIN)].to_ascii_lowercase();
    if !head.trim_ascii_start().starts_with(b"<") {
        return None;
    }
    let after = |name: &[u8]| head.windows(name.len()).position(|window| window == name).map(|at| at + name.len());
    let start = after(b"charset=").or_else(|| after(b"encoding="))?;
    let label: Vec<u8> = head[start..]
        .iter()
        .copied()
        .skip_while(|byte| matches!(byte, b'"' | b'\''))
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':' | b'.'))
        .collect();
    Encoding::for_label(&label).filter(|encoding| *encoding != UTF_8 && *encoding != UTF_16LE && *encoding != UTF_16BE)
}

/// UTF-16 without a byte order mark: nearly every other byte of a Latin text is zero, and of others many are.
fn unmarked_utf_16(bytes: &[u8]) -> Option<Decoded> {
    // Of a few bytes any may be zero by chance.
    if bytes.len() < 8 || !bytes.len().is_multiple_of(2) {
        return None;
    }
    let zeros = |first: usize| bytes.iter().skip(first).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd, half) = (zeros(0), zeros(1), bytes.len() / 2);
    let encoding = match (10 * odd >= 3 * half, 10 * even >= 3 * half) {
        (true, false) => UTF_16LE,
        (false, true) => UTF_16BE,
        _ => return None,
    };
    with(encoding, bytes).filter(|decoded| is_text(&decoded.text))
}

/// Whether far more of what is beyond ASCII is UTF-8 than is not: it was that before it was damaged.
fn is_nearly_utf_8(bytes: &[u8]) -> bool {
    let (mut good, mut bad) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        good += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        bad += usize::from(!chunk.invalid().is_empty());
    }
    good > 4 * bad
}

fn is_text(text: &str) -> bool {
    let is_bad = |c: &char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{c}' | '\u{85}');
    let bad = text.chars().filter(is_bad).count();
    bad * PLAIN_FOR_ONE_CONTROL <= text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JAPANESE: &str = "東京の図書館は毎日九時に開きます。日曜日は休みです。";

    fn read(bytes: &[u8]) -> (String, Option<&'static str>) {
        let decoded = decode(bytes.to_vec()).unwrap();
        (decoded.text, decoded.encoding)
    }

    fn why(bytes: &[u8]) -> String {
        decode(bytes.to_vec()).map(|decoded| decoded.text).unwrap_err()
    }

    #[test]
    fn encodings_are_found_out() {
        assert_eq!(read("Größe".as_bytes()), ("Größe".into(), None));
        assert_eq!(read("\u{feff}Größe".as_bytes()), ("Größe".into(), None));
        let utf_16 = |text: &str, order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
        for text in ["\u{feff}Nine herons.", "\u{feff}東京", "Nine herons and no mark."] {
            let plain = text.trim_start_matches('\u{feff}').to_owned();
            assert_eq!(read(&utf_16(text, u16::to_le_bytes)), (plain.clone(), Some("UTF-16LE")));
            assert_eq!(read(&utf_16(text, u16::to_be_bytes)), (plain, Some("UTF-16BE")));
        }
        assert_eq!(
            read(b"Das Caf\xe9 in der Stra\xdfe \x84M\xfchle\x93"),
            ("Das Café in der Straße „Mühle“".into(), Some("windows-1252"))
        );
        for (encoding, text) in [
            (encoding_rs::SHIFT_JIS, JAPANESE),
            (encoding_rs::EUC_JP, JAPANESE),
            (ISO_2022_JP, JAPANESE),
            (encoding_rs::GBK, "北京的图书馆每天九点开门，星期日休息。"),
            (encoding_rs::BIG5, "臺北的圖書館每天九點開門，星期日休息。"),
            (encoding_rs::EUC_KR, "서울의 도서관은 매일 아홉 시에 문을 엽니다."),
            (encoding_rs::WINDOWS_1251, "Библиотека открывается каждый день в девять часов."),
        ] {
            assert_eq!(read(&encoding.encode(text).0), (text.into(), Some(encoding.name())));
        }
        let page = "<html><meta charset=iso-2022-jp><p>東京の図書館</p>".to_owned();
        let encoded = ISO_2022_JP.encode(&page).0.into_owned();
        assert_eq!(read(&encoded), (page, Some("ISO-2022-JP")));
        // What it says of itself counts more than a guess.
        let page = b"<html><meta charset=\"iso-8859-2\"><p>\xb3\xf3d\xbc";
        assert_eq!(read(page).0, "<html><meta charset=\"iso-8859-2\"><p>łódź");
    }

    #[test]
    fn utf_32_is_read_by_its_mark() {
        let utf_32 = |text: &str, order: fn(u32) -> [u8; 4]| -> Vec<u8> {
            "\u{feff}".chars().chain(text.chars()).flat_map(|c| order(u32::from(c))).collect()
        };
        for text in ["Nine herons.", JAPANESE, "𝄞", ""] {
            assert_eq!(read(&utf_32(text, u32::to_le_bytes)), (text.into(), Some("UTF-32LE")));
            assert_eq!(read(&utf_32(text, u32::to_be_bytes)), (text.into(), Some("UTF-32BE")));
        }
        for (bytes, name) in [
            (&b"\xff\xfe\0\0a\0\0"[..], "UTF-32LE"),
            (b"\0\0\xfe\xff\0\x11\0\0", "UTF-32BE"),
            (b"\xff\xfe\0\0\0\0\0\0", "UTF-32LE"),
            // Two bytes a character, and half of them zeros.
            (b"\xff\xfea\0\0\0b\0\0\0", "UTF-16LE"),
        ] {
            assert!(why(bytes).contains(name), "{bytes:?}");
        }
        // A soft line break of office programs.
        let marked: Vec<u8> = "\u{feff}Line\u{b}two".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(read(&marked), ("Line\u{b}two".into(), Some("UTF-16LE")));
    }

    #[test]
    fn what_terminals_write_is_not_japanese() {
        for text in ["\u{1b}[31mred\u{1b}(B\u{1b}[m", "\u{1b}$B is told here\u{1b}[0m", "echo '\u{1b}(J\u{1b}[1m'"] {
            assert_eq!(read(text.as_bytes()), (text.into(), None));
        }
    }

    #[test]
    fn what_is_no_text_is_refused() {
        assert!(why(b"a\0b").contains("byte 1 is zero"));
        assert!(why(&[0; 1000]).contains("byte 0 is zero"));
        assert!(why(b"\xff\xfea").contains("UTF-16LE"));
        let noise: Vec<u8> = (0..4000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
        assert!(why(&noise).contains("not text"));
        let mut damaged = "größer und schöner, über alle Maßen früh".repeat(3).into_bytes();
        damaged[2] = 0xff;
        assert!(why(&damaged).contains("UTF-8 at byte 2"));
    }
}
