//! Identifiers of a query: versions, hashes, part numbers, error names, names of code. Whoever types one means that one.
//!
//! A text index cuts them into words and counts these, so that 1.2.3 and 3.2.1 are the same to it, and `ppr1670` is not PPR-1670. So the index
//! gives candidates ([`Identifiers::terms`]), and a passage is then looked at itself ([`Identifiers::in_passage`]).
//!
//! Two writings are one identifier where their letters and digits are the same, whatever stands between them. A border between two digits
//! counts, as in 1.2.3 and 12.3, unless the query has none.

use std::collections::BTreeSet;

use super::words::is_function_word;

/// Of one query.
const MOST: usize = 8;
const MOST_TERMS: usize = 64;
/// A longer query is a text, not a question.
const MOST_QUERY_BYTES: usize = 4 << 10;
/// Hexadecimal digits of which people copy the first.
const PREFIX: std::ops::RangeInclusive<usize> = 7..=63;
/// Words that may be one name of code, `cached schedule coordinator` for `CachedScheduleCoordinator`.
const JOINED: std::ops::RangeInclusive<usize> = 3..=6;
/// What stands between the parts of one identifier, at most: `DE89 3705`, `a :: b`.
const MOST_BETWEEN: usize = 3;

/// How sure it is that a passage has an identifier.
const WHOLE: f32 = 1.0;
/// It is a part of another one: `ERR_CONN` of `ERR_CONN_RESET`.
const PART: f32 = 0.7;
/// The beginning of a hash.
const BEGINNING: f32 = 0.9;

/// The identifiers of a query.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Identifiers(Vec<Identifier>);

#[derive(Debug, PartialEq)]
struct Identifier {
    /// As the query has it.
    written: String,
    kind: Kind,
}

#[derive(Debug, PartialEq)]
enum Kind {
    /// Letters and digits count, as [`key`] has them.
    Code { key: String, may_be_prefix: bool },
    /// As it stands, capitals included: acronyms, and names of function words such as The Who.
    Name,
    /// Words that are perhaps one name, in lower case without blanks.
    Joined(String),
}

impl Identifiers {
    /// Those of a query.
    pub fn of(query: &str) -> Self {
        if query.len() > MOST_QUERY_BYTES {
            return Self::default();
        }
        let tokens: Vec<&str> = query.split_whitespace().map(bare).filter(|token| !token.is_empty()).collect();
        let shouts = !query.chars().any(char::is_lowercase);
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() && found.len() < MOST {
            // Groups of one number: DE89 3705 0198.
            let run = tokens[at..].iter().take_while(|token| has_digit(token) && token.len() >= 2).count();
            let is_first_a_code = is_code(tokens[at]);
            if run > 1 && tokens[at..at + run].iter().map(|token| token.len()).sum::<usize>() >= 8 {
                found.push(Identifier::code(tokens[at..at + run].join(" ")));
                at += run;
                continue;
            }
            if is_first_a_code {
                found.push(Identifier::code(tokens[at].to_owned()));
            } else if !shouts && is_acronym(tokens[at]) {
                found.push(Identifier { written: tokens[at].to_owned(), kind: Kind::Name });
            } else if at > 0 && !shouts {
                let name = tokens[at..].iter().take_while(|token| is_capitalised_function_word(token)).count();
                if name > 0 {
                    found.push(Identifier { written: tokens[at..at + name].join(" "), kind: Kind::Name });
                    at += name;
                    continue;
                }
            }
            at += 1;
        }
        found.extend(joined(&tokens));
        Self(found)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Words for the text index: passages that have an identifier have at least one of these.
    pub fn terms(&self) -> String {
        let mut terms = BTreeSet::new();
        for Identifier { written, kind } in &self.0 {
            match kind {
                Kind::Joined(key) => {
                    terms.insert(key.clone());
                }
                Kind::Name => {}
                Kind::Code { key, .. } => {
                    let together: String = key.chars().filter(|c| *c != BORDER).collect();
                    terms.extend(parts(written).map(str::to_lowercase));
                    // As it may be written apart: at borders of letters and digits, in groups of four.
                    terms.extend(runs(&together));
                    if together.is_ascii() && (12..=40).contains(&together.len()) {
                        terms.extend((4..together.len()).step_by(4).map(|at| together[at - 4..at].to_owned()));
                    }
                    terms.insert(together);
                }
            }
        }
        let mut text = String::new();
        for term in terms.iter().filter(|term| term.chars().count() > 1).take(MOST_TERMS) {
            text.push_str(term);
            text.push(' ');
        }
        text
    }

    /// Beginnings of hashes, which no word of a text index is.
    pub fn beginnings(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|identifier| match &identifier.kind {
            Kind::Code { key, may_be_prefix: true } => Some(key.as_str()),
            _ => None,
        })
    }

    /// How much of what the query names a passage has: 0 for nothing, 1 for all of it, as it stands.
    pub fn in_passage(&self, passage: &str) -> f32 {
        let (mut sum, mut wanted) = (0.0, 0.0);
        let normal = Normal::of(passage);
        for identifier in &self.0 {
            let found = identifier.found_in(passage, &normal);
            // What is perhaps a name is one if it is there.
            if !matches!(identifier.kind, Kind::Joined(_)) {
                wanted += 1.0;
                sum += found;
            } else if found > 0.0 {
                return found;
            }
        }
        if wanted > 0.0 { sum / wanted } else { 0.0 }
    }
}

impl Identifier {
    fn code(written: String) -> Self {
        let key = key(&written);
        let may_be_prefix = PREFIX.contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_hexdigit())
            && key.bytes().any(|byte| byte.is_ascii_digit())
            && key.bytes().any(|byte| byte.is_ascii_alphabetic());
        Self { written, kind: Kind::Code { key, may_be_prefix } }
    }

    fn found_in(&self, passage: &str, normal: &Normal) -> f32 {
        match &self.kind {
            Kind::Code { key, may_be_prefix } => {
                let found = normal.find(key);
                if found > 0.0 || !may_be_prefix { found } else { normal.find_beginning(key) }
            }
            Kind::Joined(key) => {
                let has = passage
                    .split(|c: char| !c.is_alphanumeric())
                    .any(|word| word.len() == key.len() && is_camel(word) && word.to_lowercase() == *key);
                if has { WHOLE } else { 0.0 }
            }
            Kind::Name => {
                let borders = |at: usize| {
                    let before = passage[..at].chars().next_back();
                    let after = passage[at + self.written.len()..].chars().next();
                    !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
                };
                let has = passage.match_indices(&self.written).any(|(at, _)| borders(at));
                if has { WHOLE } else { 0.0 }
            }
        }
    }
}

/// Stands in a key where two digits have something between them.
const BORDER: char = '.';

/// A text's letters and digits in lower case, and where its words begin and end.
struct Normal {
    /// Without borders, for keys that have none.
    plain: String,
    /// With [`BORDER`]s between digits.
    bordered: String,
    /// Of a byte of `plain` and of `bordered`: a word begins or ends before it.
    edges: [Vec<Edge>; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Edge {
    No,
    /// Of a part of an identifier: the next one follows at once, `-rc`.
    Part,
    Word,
}

impl Normal {
    fn of(text: &str) -> Self {
        let mut normal = Self { plain: String::new(), bordered: String::new(), edges: Default::default() };
        let (mut between, mut last): (String, Option<char>) = (String::new(), None);
        for c in text.chars() {
            if !c.is_alphanumeric() {
                if between.len() <= MOST_BETWEEN {
                    between.push(c);
                }
                continue;
            }
            let edge = match (last, between.is_empty()) {
                (None, _) => Edge::Word,
                (_, true) => Edge::No,
                _ if binds(&between) => Edge::Part,
                _ => Edge::Word,
            };
            if edge != Edge::No && last.is_some_and(|last| last.is_ascii_digit()) && c.is_ascii_digit() {
                normal.push(1, BORDER, Edge::No);
            }
            // What is far apart is not one identifier.
            if between.len() > MOST_BETWEEN || between.contains('\n') {
                normal.push(0, ' ', Edge::No);
                normal.push(1, ' ', Edge::No);
            }
            for lower in c.to_lowercase() {
                normal.push(0, lower, edge);
                normal.push(1, lower, edge);
            }
            last = Some(c);
            between.clear();
        }
        let end = if binds(&between) && between.len() > 1 { Edge::Part } else { Edge::Word };
        normal.edges.iter_mut().for_each(|edges| edges.push(end));
        normal
    }

    fn push(&mut self, which: usize, c: char, edge: Edge) {
        let text = if which == 0 { &mut self.plain } else { &mut self.bordered };
        text.push(c);
        let edges = &mut self.edges[which];
        edges.push(edge);
        edges.extend(std::iter::repeat_n(Edge::No, c.len_utf8() - 1));
    }

    /// How well a key is there: from a border to a border.
    fn find(&self, key: &str) -> f32 {
        let which = usize::from(key.contains(BORDER));
        let (text, edges) = (if which == 0 { &self.plain } else { &self.bordered }, &self.edges[which]);
        let mut best = 0.0;
        for (at, _) in text.match_indices(key) {
            let end = at + key.len();
            // A border and the blank of a gap stand before the next word.
            let end = end + text[end..].len() - text[end..].trim_start_matches([' ', BORDER]).len();
            match (edges[at], edges[end]) {
                (Edge::No, _) | (_, Edge::No) => {}
                (Edge::Word, Edge::Word) => return WHOLE,
                _ => best = PART,
            }
        }
        best
    }

    /// Whether a word of hexadecimal digits begins so.
    fn find_beginning(&self, key: &str) -> f32 {
        let begins = |(at, _): (usize, &str)| {
            let word = self.plain[at..].bytes().zip(&self.edges[0][at..]).enumerate();
            let word = word.take_while(|(place, (_, edge))| *place == 0 || **edge == Edge::No);
            let word: Vec<u8> = word.map(|(_, (byte, _))| byte).take_while(u8::is_ascii_hexdigit).collect();
            self.edges[0][at] != Edge::No && word.len() > key.len()
        };
        if self.plain.match_indices(key).any(begins) { BEGINNING } else { 0.0 }
    }
}

/// Whether what stands between two words makes them one identifier.
fn binds(between: &str) -> bool {
    matches!(between, "-" | "." | "_" | "/" | ":" | "::" | "+" | "@" | "#")
}

/// A query's identifier as it is compared.
fn key(written: &str) -> String {
    let mut key = String::new();
    let mut last: Option<(usize, char)> = None;
    for (at, c) in written.char_indices().filter(|(_, c)| c.is_alphanumeric()) {
        let is_apart = last.is_some_and(|(end, last)| end < at && last.is_ascii_digit() && c.is_ascii_digit());
        if is_apart {
            key.push(BORDER);
        }
        key.extend(c.to_lowercase());
        last = Some((at + c.len_utf8(), c));
    }
    key
}

/// Without what a sentence puts around a word.
fn bare(token: &str) -> &str {
    token.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '#' | '+')).trim_end_matches(['#', '+'])
}

/// Whether a word of a query is no word of a language.
fn is_code(token: &str) -> bool {
    if token.len() < 3 || is_ordinal(token) {
        return false;
    }
    let separators = token.chars().filter(|c| matches!(c, '.' | '-' | '/' | ':' | '_' | '@' | '#')).count();
    let has_letter = token.chars().any(char::is_alphabetic);
    if has_digit(token) {
        let digits = token.bytes().filter(u8::is_ascii_digit).count();
        return has_letter || separators >= 2 || digits >= 5;
    }
    token.contains('_')
        || token.contains("::")
        || is_camel(token)
        || (token.contains('.') && !token.ends_with('.') && separators >= 1 && token.len() >= 5)
        || (token.contains('/') && separators >= 2)
        || (token.contains('-') && token.len() >= 5 && token.chars().all(|c| c == '-' || c.is_uppercase()))
}

fn has_digit(token: &str) -> bool {
    token.bytes().any(|byte| byte.is_ascii_digit())
}

/// 1st, 22nd; 1990s; 10am.
fn is_ordinal(token: &str) -> bool {
    let rest = token.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < token.len()
        && matches!(rest.to_lowercase().as_str(), "st" | "nd" | "rd" | "th" | "s" | "am" | "pm" | "h")
}

/// A capital behind a small letter: `getUserName`. Not `McDonald`, whose parts are too short.
fn is_camel(token: &str) -> bool {
    let mut letters = token.chars().zip(token.chars().skip(1)).enumerate();
    token.len() >= 5
        && letters.any(|(at, (a, b))| at >= 1 && a.is_lowercase() && b.is_uppercase() && at + 2 < token.len())
        && !token.starts_with("Mc")
        && !token.starts_with("Mac")
}

fn is_acronym(token: &str) -> bool {
    (2..=6).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn is_capitalised_function_word(token: &str) -> bool {
    token.starts_with(char::is_uppercase) && token.len() > 1 && is_function_word(token)
}

/// Runs of words that may be one name of code.
fn joined(tokens: &[&str]) -> Vec<Identifier> {
    let is_word = |token: &&str| token.len() > 2 && token.chars().all(|c| c.is_lowercase());
    let mut found = Vec::new();
    for run in tokens.split(|token| !is_word(token) || is_function_word(token)) {
        for length in JOINED {
            for words in run.windows(length) {
                if found.len() < MOST * 2 {
                    found.push(Identifier { written: words.join(" "), kind: Kind::Joined(words.concat()) });
                }
            }
        }
    }
    found
}

/// The parts of an identifier as the text index cuts it.
fn parts(written: &str) -> impl Iterator<Item = &str> {
    written.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty())
}

/// Runs of letters and of digits.
fn runs(text: &str) -> Vec<String> {
    let mut runs: Vec<String> = Vec::new();
    let mut last = None;
    for c in text.chars() {
        let is_digit = c.is_ascii_digit();
        match runs.last_mut().filter(|_| last == Some(is_digit)) {
            Some(run) => run.push(c),
            None => runs.push(c.to_string()),
        }
        last = Some(is_digit);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(query: &str) -> Vec<String> {
        let all = Identifiers::of(query).0.into_iter();
        all.filter(|one| !matches!(one.kind, Kind::Joined(_))).map(|one| one.written).collect()
    }

    fn has(query: &str, passage: &str) -> f32 {
        Identifiers::of(query).in_passage(passage)
    }

    #[test]
    fn identifiers_are_told_from_words() {
        for (query, expected) in [
            ("Which test fails in v1.2.3-rc.1?", "v1.2.3-rc.1"),
            ("set when updating to version 11.0.4 of it", "11.0.4"),
            ("restarted after ERR_CONN_RESET?", "ERR_CONN_RESET"),
            ("In which drawer is ppr1670?", "ppr1670"),
            ("payments to DE89 3705 0198 1234 5678 12?", "DE89 3705 0198 1234 5678 12"),
            ("imports of org.tarn.billing.core.Writer", "org.tarn.billing.core.Writer"),
            ("the tests of getUserName", "getUserName"),
            ("the mascot of IT?", "IT"),
            ("the support act of The Who?", "The Who"),
            ("the image sha256:1f2e3d4c5b6a?", "sha256:1f2e3d4c5b6a"),
        ] {
            assert_eq!(written(query), [expected], "{query}");
        }
        for query in [
            "How high is the tower?",
            "What happened in 1990?",
            "the 3rd of May",
            "a well-known state-of-the-art pump",
            "Is it open and/or closed?",
            "WHAT IS THE PRICE",
            "Where does Mr. McDonald live?",
            "at 10 o'clock",
            "",
        ] {
            assert_eq!(written(query), [""; 0], "{query}");
        }
    }

    #[test]
    fn an_identifier_is_found_however_it_is_written() {
        for (query, passage) in [
            ("is ppr1670 there?", "Part PPR-1670 is made of brass."),
            ("is PPR-1670 there?", "Part ppr1670, of brass"),
            ("is PPR-1670 there?", "Part PPR 1670 is made of brass."),
            ("to DE89370501981234567812?", "the account DE89 3705 0198 1234 5678 12 within"),
            ("of bkl1234", "the plate B-KL 1234 was"),
            ("version 11.0.4", "Version 11.0.4."),
            ("of The Who?", "The Who played in the hall."),
            (
                "the tests of cached schedule notification coordinator?",
                "The class CachedScheduleNotificationCoordinator is",
            ),
        ] {
            assert_eq!(has(query, passage), 1.0, "{query}");
        }
        assert_eq!(has("commit edc87ff", "Commit edc87ff4aa11 on branch"), BEGINNING);
        assert_eq!(has("after ERR_CONN_RESET", "ERR_CONN_RESET_PEER is"), PART);
        assert_eq!(has("in v1.2.3", "The build v1.2.3-rc.1 was"), PART);
    }

    #[test]
    fn what_is_like_it_is_not_it() {
        for (query, passage) in [
            ("version 1.2.3", "Version 3.2.1 of"),
            ("version 1.2.3", "Version 12.3 of"),
            ("version 1.10.4", "Version 11.0.4 of"),
            ("version 1.2.3", "Version 11.2.3 and 1.2.34"),
            ("ERR_CONN_RESET", "ERR_RESET_CONN is"),
            ("of The Who?", "those who played, the whole evening, and the who"),
            ("mascot of IT?", "it is there; ITEM"),
            ("commit edc87ff", "Commit aaedc87ff4"),
            ("commit edc87ff", "the edc87ffzebra"),
            ("PPR-1670", "PPR\n1670"),
        ] {
            assert_eq!(has(query, passage), 0.0, "{query} in {passage}");
        }
        assert_eq!(has("PPR-1670 and PPR-1671", "PPR-1670 alone"), 0.5);
        assert_eq!(has("PPR-1670", ""), 0.0);
    }

    #[test]
    fn terms_are_words_of_the_index() {
        let terms = |query| Identifiers::of(query).terms();
        assert_eq!(terms("is ppr1670 there?"), "1670 ppr ppr1670 ");
        assert_eq!(terms("version 11.0.4"), "11 1104 ");
        assert!(terms("to DE89370501981234567812?").split(' ').any(|term| term == "3705"));
        assert!(Identifiers::of(&"a1b2 ".repeat(9999)).is_empty());
        assert!(terms(&"x1y2z3-a4b5c6 ".repeat(200)).len() < 4096);
    }
}
