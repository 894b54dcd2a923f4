//! A program's text to tokens, as Jinja cuts it: text, and what stands in `{{ … }}` and `{% … %}`. Comments are gone, `-` at a delimiter has
//! taken the white space beside it, and a line end at the text's own end is dropped, as by minijinja with its defaults.

use crate::Role;
use crate::document::{Place, is_char, wrong};
use ragstone_env::Result;

/// The longest name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside of delimiters.
    Text(String),
    /// `<user>` in such text, or `</user>`.
    RoleOpens(Role),
    RoleCloses(Role),
    /// `{{`
    Output,
    /// `{%`
    Block,
    /// `}}` or `%}`, whichever was open.
    Close,
    Name(String),
    /// A string between quotes.
    Quoted(String),
    Whole(i64),
    Symbol(&'static str),
}

/// Longer ones first.
const SYMBOLS: [&str; 27] = [
    "==", "!=", ">=", "<=", "//", "**", "=", ".", ",", "|", "(", ")", "[", "]", "+", "-", "*", "/", "%", "~", "<", ">",
    ":", "{", "}", "!", "&",
];

/// Cuts a text into tokens.
///
/// # Errors
/// `InvalidInput` with line and column.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, Place)>> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    let mut reader = Reader { rest: text, at: Place { line: 1, column: 1 }, trims: false, tokens: Vec::new() };
    while !reader.rest.is_empty() {
        reader.outside()?;
    }
    Ok(reader.tokens)
}

struct Reader<'a> {
    rest: &'a str,
    at: Place,
    /// `-` stood before what closed last.
    trims: bool,
    tokens: Vec<(Token, Place)>,
}

impl<'a> Reader<'a> {
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (passed, rest) = self.rest.split_at(bytes);
        for c in passed.chars() {
            if c == '\n' {
                self.at = Place { line: self.at.line + 1, column: 1 };
            } else {
                self.at.column += 1;
            }
        }
        self.rest = rest;
        passed
    }

    /// Text up to the next delimiter, and what stands in that.
    fn outside(&mut self) -> Result<()> {
        if std::mem::take(&mut self.trims) {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
        }
        let opens =
            |(index, _): &(usize, &str)| matches!(self.rest.as_bytes().get(index + 1), Some(b'{' | b'%' | b'#'));
        let Some((index, _)) = self.rest.match_indices('{').find(opens) else {
            return self.text(self.rest.len(), self.rest.len(), true);
        };
        let control = self.rest.as_bytes().get(index + 2).copied();
        let kept = if control == Some(b'-') { self.rest[..index].trim_end().len() } else { index };
        self.text(kept, index, true)?;
        let delimiter = if matches!(control, Some(b'-' | b'+')) { 3 } else { 2 };
        match self.rest.as_bytes()[1] {
            b'#' => self.comment(delimiter),
            b'{' => self.inside(Token::Output, "}}", delimiter),
            _ => match basic(&self.rest[delimiter..], "raw") {
                Some((length, trims)) => self.raw(delimiter + length, trims),
                None => self.inside(Token::Block, "%}", delimiter),
            },
        }
    }

    /// Takes `kept` bytes as text, of `passed`.
    fn text(&mut self, kept: usize, passed: usize, has_roles: bool) -> Result<()> {
        if let Some((index, c)) = self.rest[..kept].char_indices().find(|(_, c)| !is_char(*c)) {
            self.advance(index);
            return Err(wrong(self.at, format!("the character U+{:04X} cannot stand in a prompt", u32::from(c))));
        }
        let mut left = kept;
        while left > 0 {
            let tag = role_tag(&self.rest[..left]).filter(|_| has_roles);
            let until = tag.as_ref().map_or(left, |(index, _, _)| *index);
            if until > 0 {
                let at = self.at;
                let text = self.advance(until).to_owned();
                self.tokens.push((Token::Text(text), at));
            }
            left -= until;
            if let Some((_, length, token)) = tag {
                self.tokens.push((token, self.at));
                self.advance(length);
                left -= length;
            }
        }
        self.advance(passed - kept);
        Ok(())
    }

    fn comment(&mut self, delimiter: usize) -> Result<()> {
        let Some(end) = self.rest[delimiter..].find("#}") else {
            return Err(wrong(self.at, "a comment without its end, `#}`"));
        };
        self.trims = self.rest[delimiter..delimiter + end].ends_with('-');
        self.advance(delimiter + end + 2);
        Ok(())
    }

    /// Text up to `{% endraw %}`, as it stands.
    fn raw(&mut self, opening: usize, trims: bool) -> Result<()> {
        let began = self.at;
        self.advance(opening);
        let ends = self.rest.match_indices("{%").find_map(|(index, _)| {
            let inner = &self.rest[index + 2..];
            let control = usize::from(inner.starts_with(['-', '+']));
            basic(&inner[control..], "endraw").map(|(length, after)| (index, 2 + control + length, after))
        });
        let Some((end, closing, trims_after)) = ends else {
            return Err(wrong(began, "{% raw %} without {% endraw %}"));
        };
        let text = &self.rest[..end];
        let begin = if trims { end - text.trim_start().len() } else { 0 };
        let kept = if self.rest[end + 2..].starts_with('-') { text.trim_end().len() } else { end };
        self.advance(begin);
        self.text(kept.saturating_sub(begin), end - begin, false)?;
        self.advance(closing);
        self.trims = trims_after;
        Ok(())
    }

    fn inside(&mut self, opening: Token, end: &'static str, delimiter: usize) -> Result<()> {
        let began = self.at;
        self.tokens.push((opening, began));
        self.advance(delimiter);
        let mut open = 0i64;
        loop {
            let blank = self.rest.find(|c: char| !c.is_ascii_whitespace()).unwrap_or(self.rest.len());
            self.advance(blank);
            if self.rest.is_empty() {
                return Err(wrong(began, format!("this is not closed; write `{end}`")));
            }
            let control = usize::from(self.rest.starts_with(['-', '+']));
            if open == 0 && self.rest[control..].starts_with(end) {
                self.trims = self.rest.starts_with('-');
                self.tokens.push((Token::Close, self.at));
                self.advance(control + 2);
                return Ok(());
            }
            let at = self.at;
            let token = self.token()?;
            match token {
                Token::Symbol("(" | "[" | "{") => open += 1,
                Token::Symbol(")" | "]" | "}") => open -= 1,
                _ => {}
            }
            self.tokens.push((token, at));
        }
    }

    fn token(&mut self) -> Result<Token> {
        let at = self.at;
        let first = self.rest.chars().next().unwrap_or_default();
        if first == '"' || first == '\'' {
            return self.quoted(first);
        }
        let word = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        if first.is_ascii_digit() {
            let has_fraction = self.rest[word..].starts_with('.');
            let number = self.advance(word);
            return match number.parse() {
                Ok(whole) if !has_fraction => Ok(Token::Whole(whole)),
                _ => Err(wrong(at, "only whole numbers of digits can stand here; write others as text, \"0.5\"")),
            };
        }
        if word > MAX_NAME_BYTES {
            return Err(wrong(at, format!("a name has at most {MAX_NAME_BYTES} letters")));
        }
        if word > 0 {
            return Ok(Token::Name(self.advance(word).to_owned()));
        }
        match SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol)) {
            Some(symbol) => {
                self.advance(symbol.len());
                Ok(Token::Symbol(symbol))
            }
            None => Err(wrong(at, format!("`{}` means nothing here", first.escape_debug()))),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Token> {
        let began = self.at;
        self.advance(1);
        let mut text = String::new();
        loop {
            let at = self.at;
            let Some(c) = self.rest.chars().next() else {
                return Err(wrong(began, "a string without its closing quote"));
            };
            self.advance(c.len_utf8());
            if c == quote {
                return Ok(Token::Quoted(text));
            }
            if !is_char(c) {
                return Err(wrong(at, format!("the character U+{:04X} cannot stand in a prompt", u32::from(c))));
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let escaped = self.rest.chars().next();
            text.push(match escaped {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(c @ ('\\' | '"' | '\'')) => c,
                _ => return Err(wrong(at, "after a backslash stands one of n, t, r, \", ' and \\")),
            });
            self.advance(1);
        }
    }
}

/// The first role tag of a text: where, its length, its token.
fn role_tag(text: &str) -> Option<(usize, usize, Token)> {
    text.match_indices('<').find_map(|(index, _)| {
        let inner = &text[index + 1..];
        let (closes, name) = match inner.strip_prefix('/') {
            Some(name) => (true, name),
            None => (false, inner),
        };
        [Role::System, Role::User, Role::Assistant].into_iter().find_map(|role| {
            let tail = name.strip_prefix(role.name())?;
            let token = if closes { Token::RoleCloses(role) } else { Token::RoleOpens(role) };
            tail.starts_with('>').then(|| (index, 2 + usize::from(closes) + role.name().len(), token))
        })
    })
}

/// The length of ` NAME %}`, and whether it trims, where a block is no more than that.
fn basic(text: &str, name: &str) -> Option<(usize, bool)> {
    let blank = |text: &'_ str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_whitespace()).len();
    let rest = text[blank(text)..].strip_prefix(name)?;
    let rest = &rest[blank(rest)..];
    let trims = rest.starts_with('-');
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some((text.len() - rest.len(), trims))
}
