//! Which letters a font's codes are, as the font says it (`ToUnicode`): read by what files have there, and written as the PDF library reads it.

use std::fmt::Write;

/// Codes of a font.
const MAX_CODES: usize = 1 << 17;
/// Bytes of a code.
const MAX_CODE: usize = 4;
/// Bytes of what a code means, and of what each of a range does: a range has many codes.
const MAX_TARGET: usize = 512;
const MAX_RANGE_TARGET: usize = 32;

enum Token<'m> {
    Text(Vec<u8>),
    Open,
    Close,
    Word(&'m [u8]),
}

/// The map with one line for each code; `None` where it has none.
pub fn plain(map: &[u8]) -> Option<Vec<u8>> {
    let all = pairs(&tokens(map));
    if all.is_empty() {
        return None;
    }
    let mut plain = format!("{} beginbfchar\n", all.len());
    for (code, bytes, units) in &all {
        let _ = write!(plain, "<{code:0width$x}> <", width = 2 * bytes);
        units.iter().for_each(|unit| plain.push_str(&format!("{unit:04x}")));
        plain.push_str(">\n");
    }
    plain.push_str("endbfchar\n");
    Some(plain.into_bytes())
}

fn tokens(map: &[u8]) -> Vec<Token<'_>> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\0<>[]()%/".contains(byte);
    while let Some(first) = map.get(at) {
        let rest = &map[at + 1..];
        let until = |end: &dyn Fn(&u8) -> bool| rest.iter().position(end).unwrap_or(rest.len());
        at += 1;
        match first {
            b'%' => at += until(&|byte| matches!(byte, b'\n' | b'\r')),
            b'(' => at += until(&|byte| *byte == b')'),
            // A letter by its name says nothing here, and stands where others have theirs.
            b'/' => {
                tokens.push(Token::Text(Vec::new()));
                at += until(&is_end);
            }
            b'<' if rest.first() == Some(&b'<') => at += 1,
            b'<' => {
                let length = until(&|byte| *byte == b'>');
                tokens.push(Token::Text(hexadecimal(&rest[..length])));
                at += length + 1;
            }
            b'[' => tokens.push(Token::Open),
            b']' => tokens.push(Token::Close),
            byte if is_end(byte) => {}
            _ => {
                let length = until(&is_end);
                tokens.push(Token::Word(&map[at - 1..at + length]));
                at += length;
            }
        }
    }
    tokens
}

fn hexadecimal(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text
        .iter()
        .filter_map(|byte| char::from(*byte).to_digit(16))
        .filter_map(|digit| u8::try_from(digit).ok())
        .collect();
    let byte = |pair: &[u8]| pair.first().map_or(0, |high| high << 4) | pair.get(1).copied().unwrap_or(0);
    digits.chunks(2).map(byte).collect()
}

/// A code, its bytes, and the letters in UTF-16.
type Pair = (u32, usize, Vec<u16>);

fn pairs(tokens: &[Token<'_>]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let (mut is_range, mut is_open, mut codes, mut at) = (false, false, Vec::new(), 0);
    for token in tokens {
        match token {
            Token::Word(word) => {
                (is_range, is_open) = (*word == b"beginbfrange", *word == b"beginbfchar" || *word == b"beginbfrange");
                codes.clear();
            }
            _ if !is_open || pairs.len() >= MAX_CODES => {}
            Token::Text(code) if codes.len() <= usize::from(is_range) => {
                codes.push((number(code), code.len().clamp(1, MAX_CODE)));
                at = 0;
            }
            Token::Text(target) => {
                let Some((first, bytes)) = codes.first().copied() else { continue };
                let last = codes.last().map_or(first, |(last, _)| *last);
                let is_listed = at > 0;
                // One of a list is of one code.
                let from = if is_listed { first.saturating_add(at - 1) } else { first };
                let to = if is_listed { from } else { last.min(first.saturating_add(0xfffe)) };
                let most = if to > from { MAX_RANGE_TARGET } else { MAX_TARGET };
                let all = (from..=to).zip(0..).filter(|_| target.len() <= most);
                pairs.extend(all.filter_map(|(code, step)| Some((code, bytes, units(target, step)?))));
                if is_listed {
                    at += 1;
                } else {
                    codes.clear();
                }
            }
            Token::Open => at = 1,
            Token::Close => codes.clear(),
        }
    }
    pairs
}

fn number(code: &[u8]) -> u32 {
    code.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

/// Letters, the last one so many further on; `None` where they are none.
fn units(target: &[u8], step: u16) -> Option<Vec<u16>> {
    let mut units: Vec<u16> = match target {
        [byte] => vec![u16::from(*byte)],
        _ => target.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect(),
    };
    let last = units.last_mut()?;
    *last = last.wrapping_add(step);
    String::from_utf16(&units).ok().map(|_| units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_as_files_have_them() {
        let map = b"/CMapName /X def % <00>\n2 beginbfchar <0041> <0061> <42> <d800> endbfchar \
                    3 beginbfrange <00AE> <00AE> <006600660069> <20> <21> <20> <01> <02> [<0041> <00420043>] endbfrange";
        let expected = "6 beginbfchar\n<0041> <0061>\n<00ae> <006600660069>\n<20> <0020>\n<21> <0021>\n<01> <0041>\n\
                        <02> <00420043>\nendbfchar\n";
        assert_eq!(plain(map).map(|plain| String::from_utf8(plain).unwrap()).as_deref(), Some(expected));
        assert_eq!(plain(b"1 begincodespacerange <00> <ff> endcodespacerange <"), None);
    }

    #[test]
    fn long_targets_and_names_cost_themselves_alone() {
        let (long, code) = ("0041".repeat(100_000), "00".repeat(100_000));
        let map = format!(
            "9 beginbfrange <0000> <fffe> <{long}> <01> <01> <{long}> endbfrange \
             9 beginbfchar <{code}41> <0042> <02> /f_i <03> <0043> endbfchar"
        );
        let read = plain(map.as_bytes()).map(|plain| String::from_utf8(plain).unwrap());
        assert_eq!(read.as_deref(), Some("2 beginbfchar\n<00000041> <0042>\n<03> <0043>\nendbfchar\n"));
    }
}
