//! RTF cut into groups, words and characters.

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    GroupBegins,
    GroupEnds,
    /// `\par`, `\u8364`.
    Word(&'a str, Option<i32>),
    /// `\~`, `\*`.
    Symbol(u8),
    /// A byte of text in the code page that stands: `a`, `\'e9`.
    Byte(u8),
}

/// The parts of a file, from its beginning.
pub struct Tokens<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Tokens<'a> {
    /// Those of `bytes`.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn while_is(&mut self, is: impl Fn(&u8) -> bool) -> &'a [u8] {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| !is(byte)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// After a backslash.
    fn control(&mut self) -> Option<Token<'a>> {
        let first = self.peek()?;
        if !first.is_ascii_alphabetic() {
            self.at += 1;
            if first != b'\'' {
                return Some(Token::Symbol(first));
            }
            let digits = self.bytes.get(self.at..self.at + 2).and_then(|digits| str::from_utf8(digits).ok());
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            self.at += if byte.is_some() { 2 } else { 0 };
            return Some(Token::Byte(byte.unwrap_or(b'?')));
        }
        let word = str::from_utf8(self.while_is(u8::is_ascii_alphabetic)).unwrap_or_default();
        let begin = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        self.while_is(u8::is_ascii_digit);
        let number = self.bytes.get(begin..self.at).and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
        if number.is_none() {
            self.at = begin;
        }
        self.at += usize::from(self.peek() == Some(b' '));
        if word == "bin" {
            self.at = self.at.saturating_add(number.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0));
        }
        Some(Token::Word(word, number))
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let byte = self.peek()?;
            self.at += 1;
            return match byte {
                b'{' => Some(Token::GroupBegins),
                b'}' => Some(Token::GroupEnds),
                b'\\' => self.control(),
                b'\r' | b'\n' | 0 => continue,
                byte => Some(Token::Byte(byte)),
            };
        }
    }
}
