//! Identifiers of a query: versions, hashes, part numbers, error names, names of code. Whoever types one means that one.
//!
//! A text index cuts them into words and counts these, so that 1.2.3 and 3.2.1 are the same to it, and `ppr1670` is not PPR-1670. So the index
//! gives candidates ([`Identifiers::terms`]), and a passage is then looked at itself ([`Identifiers::in_passage`]).
//!
//! Two writings are one identifier where their letters and digits are the same, whatever stands between them. A border between two digits
//! counts, as in 1.2.3 and 12.3, unless the query has none.

mod normal;

use std::collections::BTreeSet;

use self::normal::{BORDER, Normal, WHOLE};
use super::composed::searched;
use super::scripts::{self, is_dense, narrow};
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
    Code {
        key: String,
        /// The key without borders, where these are but groups: `100 000`, `100,000`.
        ungrouped: Option<String>,
        /// The first digits of a hash, perhaps.
        may_be_prefix: bool,
    },
    /// As it stands, capitals included: acronyms, and names of function words such as The Who.
    Name,
    /// Words that are perhaps one name, in lower case without blanks.
    Joined(String),
}

/// A word of a query.
struct Token<'a> {
    /// Without what a sentence puts around it.
    word: &'a str,
    /// A sentence or line begins with it.
    is_first: bool,
    /// Nothing but a blank stands before it.
    follows: bool,
}

impl Identifiers {
    /// Those of a query.
    pub fn of(query: &str) -> Self {
        if query.len() > MOST_QUERY_BYTES {
            return Self::default();
        }
        let query: String = searched(query).chars().map(narrow).collect();
        let tokens = tokens(&query);
        // Of a query in capitals, or one written as a title, capitals say nothing.
        let capitals = tokens.iter().filter(|token| token.word.starts_with(char::is_uppercase)).count();
        let has_names = 3 * capitals <= 2 * tokens.len();
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() && found.len() < MOST {
            let Token { word, is_first, .. } = tokens[at];
            let (groups, name) = (groups(&tokens[at..]), if has_names && !is_first { name(&tokens[at..]) } else { 0 });
            let taken = if groups > 1 {
                found.push(Identifier::code(written(&tokens[at..at + groups])));
                groups
            } else if is_code(word) {
                found.push(Identifier::code(word.to_owned()));
                1
            } else if (has_names && is_acronym(word)) || name > 0 {
                let length = name.max(1);
                found.push(Identifier { written: written(&tokens[at..at + length]), kind: Kind::Name });
                length
            } else {
                1
            };
            at += taken;
        }
        let words: Vec<&str> = tokens.iter().map(|token| token.word).collect();
        found.extend(joined(&words));
        Self(found)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The query with its words joined, too: such words are rare, so that they need no search of their own. Nearly every question has three words
    /// in a row that might be a name.
    pub fn with_joined(&self, query: &str) -> String {
        let joined = self.0.iter().filter_map(|identifier| match &identifier.kind {
            Kind::Joined(key) => Some(key.as_str()),
            _ => None,
        });
        [query].into_iter().chain(joined).collect::<Vec<_>>().join(" ")
    }

    /// Words of its codes for the text index: most passages that have one of them have at least one of these. Empty where it has none.
    pub fn terms(&self) -> String {
        let mut terms = BTreeSet::new();
        for Identifier { written, kind } in &self.0 {
            let Kind::Code { key, .. } = kind else { continue };
            let together: String = key.chars().filter(|c| *c != BORDER).collect();
            terms.extend(parts(written).map(str::to_lowercase));
            // As it may be written apart: at borders of letters and digits, in groups of four.
            terms.extend(runs(&together));
            if together.is_ascii() && (12..=40).contains(&together.len()) {
                terms.extend((4..together.len()).step_by(4).map(|at| together[at - 4..at].to_owned()));
            }
            terms.insert(together);
        }
        let mut text = String::new();
        for term in terms.iter().filter(|term| term.chars().count() > 1).take(MOST_TERMS) {
            text.push_str(term);
            text.push(' ');
        }
        text
    }

    /// Texts in small letters that no word of a text index is: beginnings of hashes, and codes whose parts are all short, such as 1.2.3.
    pub fn literals(&self) -> Vec<String> {
        let literal = |identifier: &Identifier| match &identifier.kind {
            Kind::Code { key, may_be_prefix: true, .. } => Some(key.clone()),
            Kind::Code { .. } if parts(&identifier.written).all(|part| part.len() <= 2) => {
                Some(identifier.written.to_lowercase())
            }
            _ => None,
        };
        self.0.iter().filter_map(literal).collect()
    }

    /// Whether a passage has a code of the query as it stands, or the hash that begins so: whoever types one means what has it.
    pub fn has_code_in(&self, passage: &str) -> bool {
        if !self.0.iter().any(|identifier| matches!(identifier.kind, Kind::Code { .. })) {
            return false;
        }
        let normal = Normal::of(passage);
        let codes = self.0.iter().filter(|identifier| matches!(identifier.kind, Kind::Code { .. }));
        codes.into_iter().any(|identifier| identifier.found_in(passage, &normal) >= normal::BEGINNING)
    }

    /// How much of what the query names a passage has: 0 for nothing, 1 for all of it, as it stands.
    pub fn in_passage(&self, passage: &str) -> f32 {
        if self.is_empty() {
            return 0.0;
        }
        let (mut sum, mut wanted) = (0.0, 0.0);
        let has_code = self.0.iter().any(|identifier| matches!(identifier.kind, Kind::Code { .. }));
        let normal = if has_code { Normal::of(passage) } else { Normal::of("") };
        for identifier in &self.0 {
            let found = identifier.found_in(passage, &normal);
            // What is perhaps a name is one if it is there.
            if !matches!(identifier.kind, Kind::Joined(_)) || found > 0.0 {
                wanted += 1.0;
                sum += found;
            }
        }
        if wanted > 0.0 { sum / wanted } else { 0.0 }
    }
}

fn tokens(query: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for line in query.lines() {
        let (mut is_first, mut follows) = (true, false);
        for raw in line.split_whitespace() {
            let word = bare(raw);
            if word.is_empty() {
                follows = false;
                continue;
            }
            let mut follows_on = follows && raw.starts_with(word);
            for part in parts_of_word(word) {
                tokens.push(Token { word: part, is_first, follows: follows_on });
                (is_first, follows_on) = (false, false);
            }
            is_first = raw.ends_with(['.', '?', '!', ':']);
            follows = raw.ends_with(word);
        }
    }
    tokens
}

/// Without blanks beside it, a code stands alone where its script ends: `型番PPR-1670の`.
fn parts_of_word(word: &str) -> impl Iterator<Item = &str> {
    scripts::parts(word).map(bare).filter(|part| !part.is_empty())
}

/// How many words are groups of one number: `DE89 3705 0198`.
fn groups(tokens: &[Token<'_>]) -> usize {
    let is_group = |token: &&Token<'_>| token.follows && token.word.bytes().all(|byte| byte.is_ascii_digit());
    let Some(first) = tokens.first().filter(|token| has_digit(token.word) && token.word.len() >= 2) else { return 0 };
    let count = 1 + tokens[1..].iter().take_while(is_group).count();
    let has_letter = first.word.chars().any(char::is_alphabetic);
    // Two numbers beside each other are years, or a range.
    if count >= 3 || (count == 2 && has_letter && tokens[1].word.len() >= 3) { count } else { 0 }
}

/// How many words are a name of function words: The Who.
fn name(tokens: &[Token<'_>]) -> usize {
    let mut last = true;
    let goes_on = |(at, token): &(usize, &Token<'_>)| {
        let goes_on = last && (*at == 0 || token.follows) && is_capitalised_function_word(token.word);
        last = goes_on;
        goes_on
    };
    tokens.iter().enumerate().take_while(goes_on).count()
}

fn written(tokens: &[Token<'_>]) -> String {
    tokens.iter().map(|token| token.word).collect::<Vec<_>>().join(" ")
}

impl Identifier {
    fn code(written: String) -> Self {
        let key = key(&written);
        let is_grouped = key.contains(BORDER) && written.chars().all(|c| c.is_alphanumeric() || matches!(c, ' ' | ','));
        let ungrouped = is_grouped.then(|| key.chars().filter(|c| *c != BORDER).collect());
        let may_be_prefix = PREFIX.contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_hexdigit())
            && key.bytes().any(|byte| byte.is_ascii_digit())
            && key.bytes().any(|byte| byte.is_ascii_alphabetic());
        Self { written, kind: Kind::Code { key, ungrouped, may_be_prefix } }
    }

    fn found_in(&self, passage: &str, normal: &Normal) -> f32 {
        match &self.kind {
            Kind::Code { key, ungrouped, may_be_prefix } => {
                let found = normal.find(key).max(ungrouped.as_ref().map_or(0.0, |key| normal.find(key)));
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
                    let goes_on = |c: char| c.is_alphanumeric() && !is_dense(c);
                    !before.is_some_and(goes_on) && !after.is_some_and(goes_on)
                };
                let has = passage.match_indices(&self.written).any(|(at, _)| borders(at));
                if has { WHOLE } else { 0.0 }
            }
        }
    }
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
    if token.len() < 3 || is_ordinal(token) || !token.chars().any(char::is_alphanumeric) {
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
    use super::normal::{BEGINNING, PART};
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
        assert_eq!(written("What changed in PPR-1670, PPR-1671?"), ["PPR-1670", "PPR-1671"]);
        assert_eq!(written("versions 1.2.3, 1.2.4 of ppr1670 rev2"), ["1.2.3", "1.2.4", "ppr1670", "rev2"]);
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
            "The pump is broken. What should I do?",
            "What Is The Capital Of France",
            "Complete this: it is made of ____",
            "in 2019 2020",
            "Which pump is it?\nThe big one.\nWhat does it cost?",
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
    fn a_code_ends_where_its_script_does() {
        assert_eq!(written("型番PPR-1670の取り付けは2019年か"), ["PPR-1670"]);
        assert_eq!(written("ＰＰＲ－１６７０は何で出来ていますか"), ["PPR-1670"]);
        for query in [
            "2019年に修理された水車小屋",
            "１０時に開く",
            "洗衣机可以使用到晚上9点吗",
            "제3공장은 어디입니까",
            "รถไฟออก8โมง",
        ] {
            assert_eq!(written(query), [""; 0], "{query}");
        }
        for (query, passage) in [
            ("ppr1670は", "型番ＰＰＲ－１６７０を取り付けます。"),
            ("PPR-1670을 찾습니다", "부품 PPR-1670은 황동입니다."),
            ("使用GPU吗", "用GPU加速"),
        ] {
            assert_eq!(has(query, passage), 1.0, "{query} in {passage}");
        }
        assert_eq!(has("PPR-1670を", "型番PPR-16701の"), 0.0);
    }

    #[test]
    fn an_identifier_is_found_however_it_is_written() {
        for (query, passage) in [
            ("is ppr1670 there?", "Part PPR-1670 is made of brass."),
            ("is PPR-1670 there?", "Part ppr1670, of brass"),
            ("is PPR-1670 there?", "Part PPR 1670 is made of brass."),
            ("to DE89370501981234567812?", "the account DE89 3705 0198 1234 5678 12 within"),
            ("of bkl1234", "the plate B-KL 1234 was"),
            ("to DE89 3705 0198 1234 5678 12?", "the account DE89370501981234567812 within"),
            ("a limit of 100,000?", "the limit is 100000 crowns"),
            ("version 1.1.1", "11.1 1.1.1"),
            ("version 11.0.4", "Version 11.0.4."),
            ("of The Who?", "The Who played in the hall."),
            (
                "the tests of cached schedule notification coordinator?",
                "The class CachedScheduleNotificationCoordinator is",
            ),
        ] {
            assert_eq!(has(query, passage), 1.0, "{query}");
        }
        let has_code = |query: &str, passage: &str| Identifiers::of(query).has_code_in(passage);
        assert!(has_code("commit edc87ff", "Commit edc87ff4aa11") && has_code("of PPR-1670 and PPR-1671", "ppr1670"));
        assert!(!has_code("the mascot of IT", "the IT of it") && !has_code("PPR-1670", "PPR-1671"));
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
        assert_eq!(
            has("Is PPR\u{200b}-1670 there?", "Part PPR-16\u{ad}70 is of brass."),
            1.0,
            "with invisible characters"
        );
        assert_eq!(has("the cached schedule coordinator of 1.2.3x9", "CachedScheduleCoordinator of 7.7.7"), 0.5);
    }

    #[test]
    fn terms_are_words_of_the_index() {
        let terms = |query| Identifiers::of(query).terms();
        assert_eq!(terms("is ppr1670 there?"), "1670 ppr ppr1670 ");
        assert_eq!(terms("who repairs the old stone bridge in winter?"), "");
        let with_joined = |query| Identifiers::of(query).with_joined(query);
        assert_eq!(
            with_joined("the cached schedule coordinator"),
            "the cached schedule coordinator cachedschedulecoordinator"
        );
        assert_eq!(with_joined("the roof"), "the roof");
        assert_eq!(terms("version 11.0.4"), "11 1104 ");
        let literals = |query| Identifiers::of(query).literals();
        assert_eq!(literals("version 1.2.3 or 1.2.345, edc87ff, ppr1670"), ["1.2.3", "edc87ff"]);
        assert!(terms("to DE89370501981234567812?").split(' ').any(|term| term == "3705"));
        assert!(Identifiers::of(&"a1b2 ".repeat(9999)).is_empty());
        assert!(terms(&"x1y2z3-a4b5c6 ".repeat(200)).len() < 4096);
    }
}
