//! Filters within a query, as search boxes have them: `roof folder:House after:2025-01 -- "path:Old papers/"`.
//!
//! ```text
//! path:VALUE             the path begins with it
//! folder:VALUE           in this folder, or below it; `/` is the folder of all
//! file:VALUE, name:VALUE the file has this name, with or without its ending; `*` at its ends stands for anything
//! after:DATE             changed on this day, or later; 2025, 2025-01 and 2025-01-31 are dates
//! before:DATE            changed before it
//! ```
//! A value with blanks stands in quotes. Several of one kind: one of them must hold; of several kinds: each.
//!
//! Only whoever asks for it has a query read so: in a question `file:` may be a part of an address, and nothing tells the two apart. Even then a
//! qualifier is one only where a blank or nothing stands before it and no blank behind its colon.

use serde_json::{Value, json};

use super::Filter;
use crate::{Error, ErrorKind, Result};

/// When a document's file was changed last, its name, its path and its folder, in its metadata.
const CHANGED: &str = "changed";
const FILE: &str = "file";
const PATH: &str = "path";
const FOLDER: &str = "folder";

/// Kinds of qualifiers, by the names that they have in a query.
const NAMES: [(&str, Kind); 6] = [
    ("path", Kind::Path),
    ("folder", Kind::Folder),
    ("file", Kind::File),
    ("name", Kind::File),
    ("after", Kind::After),
    ("before", Kind::Before),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Path,
    Folder,
    File,
    After,
    Before,
}

/// A query without its qualifiers, and what they mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Qualified {
    /// What is to be looked for.
    pub query: String,
    /// `None` where it had none.
    pub filter: Option<Filter>,
}

/// Reads a query with qualifiers.
///
/// # Errors
/// `InvalidInput` for a value that is missing or no date, quotes that do not end, and a query of nothing but qualifiers; the message says what to
/// do.
pub fn qualified(query: &str) -> Result<Qualified> {
    let (mut rest, mut words, mut conditions) = (query, String::new(), Vec::<(Kind, Value)>::new());
    while !rest.is_empty() {
        // What stands before a word: a qualifier begins where one may begin.
        if let Some((name, kind, value)) = begin(rest) {
            let (value, behind) = value_of(name, value)?;
            conditions.push((kind, condition(kind, name, value)?));
            rest = behind.trim_start();
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let next = rest[end..].find(|c: char| !c.is_whitespace()).map_or(rest.len(), |at| end + at);
        words.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    let words = words.trim().to_owned();
    if conditions.is_empty() {
        return Ok(Qualified { query: words, filter: None });
    }
    if words.is_empty() {
        return bad("the query has nothing but filters: say what to look for beside them".to_owned());
    }
    Ok(Qualified { query: words, filter: all(conditions)? })
}

/// The qualifier that a text begins with: its name, its kind, and what stands behind its colon.
fn begin(text: &str) -> Option<(&'static str, Kind, &str)> {
    NAMES.iter().find_map(|(name, kind)| {
        let value = text.strip_prefix(name)?.strip_prefix(':')?;
        // `before: what?` is a text.
        (!value.starts_with(char::is_whitespace)).then_some((*name, *kind, value))
    })
}

/// The value that a text begins with, and the rest.
fn value_of<'a>(name: &str, text: &'a str) -> Result<(&'a str, &'a str)> {
    let (value, rest) = match text.strip_prefix('"') {
        Some(quoted) => match quoted.split_once('"') {
            Some(parts) => parts,
            None => return bad(format!("the quotes behind `{name}:` do not end: put a \" behind the value")),
        },
        None => text.split_at(text.find(char::is_whitespace).unwrap_or(text.len())),
    };
    match value.trim() {
        "" => bad(format!("`{name}:` needs a value, such as {name}:{}", example(name))),
        value => Ok((value, rest)),
    }
}

fn example(name: &str) -> &'static str {
    match name {
        "after" | "before" => "2025-01-31",
        "file" | "name" => "minutes.md",
        "path" => "House/minutes.md",
        _ => "House",
    }
}

fn condition(kind: Kind, name: &str, value: &str) -> Result<Value> {
    let is = |kind: &str, key: &str, value: &str| json!({ "type": kind, "key": key, "value": value });
    Ok(match kind {
        Kind::Path => is("prefix", PATH, value.trim_start_matches("./").trim_start_matches('/')),
        Kind::Folder => {
            let folder = value.trim_start_matches("./").trim_matches('/');
            if matches!(folder, "" | ".") {
                return Ok(json!({ "type": "exists", "key": FOLDER }));
            }
            one_of(vec![is("eq", FOLDER, folder), is("prefix", FOLDER, &format!("{folder}/"))])
        }
        Kind::File => match (value.strip_prefix('*'), value.strip_suffix('*')) {
            (Some(_), Some(_)) => match value.trim_matches('*') {
                "" => return bad(format!("`{name}:*` is every file: leave it out")),
                part => is("contains", FILE, part),
            },
            (Some(end), None) => is("suffix", FILE, end),
            (None, Some(beginning)) => is("prefix", FILE, beginning),
            // A name without its ending.
            (None, None) => one_of(vec![is("eq", FILE, value), is("prefix", FILE, &format!("{value}."))]),
        },
        Kind::After => is("gte", CHANGED, date(name, value)?),
        Kind::Before => is("lt", CHANGED, date(name, value)?),
    })
}

/// The days of a month, in the Gregorian calendar. Of what is no month, as many as any has.
fn days(parts: &[&str]) -> u32 {
    let number = |at: usize| parts.get(at).and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    let (year, month) = (number(0), number(1));
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A date as ISO 8601 writes it, or the beginning of one: texts in the order of time.
fn date<'a>(name: &str, value: &'a str) -> Result<&'a str> {
    let day = value.split_once('T').map_or(value, |(day, _)| day);
    let parts: Vec<&str> = day.split('-').collect();
    let number = |at: usize, digits: usize, range: std::ops::RangeInclusive<u32>| {
        parts.get(at).is_none_or(|part| {
            part.len() == digits
                && part.bytes().all(|byte| byte.is_ascii_digit())
                && part.parse().is_ok_and(|number| range.contains(&number))
        })
    };
    let is_day = (1..=3).contains(&parts.len())
        && number(0, 4, 1..=9999)
        && number(1, 2, 1..=12)
        && number(2, 2, 1..=days(&parts));
    let is_time = value.len() == day.len() || (parts.len() == 3 && is_time(&value[day.len() + 1..]));
    if is_day && is_time {
        return Ok(value);
    }
    bad(format!("`{name}:{value}` has no date: write {name}:2025, {name}:2025-01 or {name}:2025-01-31"))
}

/// `10:30`, `10:30:00`, both with or without a Z.
fn is_time(text: &str) -> bool {
    let parts: Vec<&str> = text.strip_suffix('Z').unwrap_or(text).split(':').collect();
    (2..=3).contains(&parts.len())
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn one_of(mut conditions: Vec<Value>) -> Value {
    match conditions.len() {
        1 => conditions.remove(0),
        _ => json!({ "type": "or", "filters": conditions }),
    }
}

/// Each kind must hold; of a kind that names something one is enough, of times all.
fn all(conditions: Vec<(Kind, Value)>) -> Result<Option<Filter>> {
    let mut kinds: Vec<(Kind, Vec<Value>)> = Vec::new();
    for (kind, condition) in conditions {
        let is_time = matches!(kind, Kind::After | Kind::Before);
        match kinds.iter_mut().find(|(other, _)| *other == kind && !is_time) {
            Some((_, same)) => same.push(condition),
            None => kinds.push((kind, vec![condition])),
        }
    }
    let filters = kinds.into_iter().map(|(_, conditions)| Filter::parse(&one_of(conditions))).collect::<Result<_>>()?;
    Filter::all_of(filters)
}

fn bad<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(query: &str) -> (String, Option<Value>) {
        let Qualified { query, filter } = qualified(query).unwrap();
        (query, filter.map(|filter| serde_json::to_value(filter).unwrap()))
    }

    fn matches(query: &str, metadata: Value) -> bool {
        let filter = qualified(query).unwrap().filter.unwrap();
        filter.matches(metadata.as_object().unwrap())
    }

    #[test]
    fn qualifiers_are_taken_out_wherever_they_stand() {
        let after = json!({ "type": "gte", "key": "changed", "value": "2025-01" });
        assert_eq!(read("after:2025-01 who pays?"), ("who pays?".to_owned(), Some(after.clone())));
        assert_eq!(read("who after:2025-01  pays?"), ("who pays?".to_owned(), Some(after.clone())));
        assert_eq!(read("who pays? after:2025-01"), ("who pays?".to_owned(), Some(after)));
        let path = json!({ "type": "prefix", "key": "path", "value": "Old papers/a b.md" });
        assert_eq!(read("roof path:\"Old papers/a b.md\""), ("roof".to_owned(), Some(path)));
    }

    #[test]
    fn what_is_no_qualifier_stays_as_it_is() {
        for query in [
            "before: what was there?",
            "see profile:7",
            "Path:x",
            "http://a/path:b",
            "what is xpath:y",
            "a  b\n c",
            "",
            "after",
            "the:name:of",
        ] {
            assert_eq!(read(query), (query.trim().to_owned(), None), "{query}");
        }
    }

    #[test]
    fn they_mean_what_people_expect() {
        let roof = json!({ "path": "House/roof/notes.md", "folder": "House/roof", "file": "notes.md", "changed": "2025-03-02T10:00:00Z" });
        for query in [
            "path:House/ x",
            "path:/House/roof x",
            "folder:House x",
            "folder:House/roof/ x",
            "folder:./House x",
            "folder:/ x",
            "folder:./ x",
            "folder:. x",
            "file:notes.md x",
            "name:notes x",
            "file:*.md x",
            "file:no* x",
            "file:*ote* x",
            "after:2025 x",
            "after:2025-03-02 x",
            "before:2025-04 x",
            "after:2025-03-02T09:59 before:2025-03-02T10:00:01Z x",
            "folder:Garden folder:House x",
            "folder:House after:2024 before:2026 x",
        ] {
            assert!(matches(query, roof.clone()), "{query}");
            assert!(!matches(query, json!({})), "{query}: nothing is known of it");
        }
        for query in [
            "path:roof x",
            "folder:Hou x",
            "folder:roof x",
            "file:note x",
            "file:*.txt x",
            "after:2025-03-03 x",
            "before:2025-03-02 x",
            "folder:Garden folder:Cellar x",
            "after:2025 after:2026 x",
            "folder:House file:other.md x",
        ] {
            assert!(!matches(query, roof.clone()), "{query}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (query, words) in [
            ("after:soon x", "`after:soon` has no date"),
            ("before:2025-13 x", "has no date"),
            ("after:2025-02-29 x", "has no date"),
            ("after:2025-04-31 x", "has no date"),
            ("before:25-01-01 x", "has no date"),
            ("after:2025-01-01T9 x", "has no date"),
            ("after:٢٠٢٥ x", "has no date"),
            ("path:\"x", "do not end"),
            ("folder:\"\" x", "needs a value, such as folder:House"),
            ("folder:House", "nothing but filters"),
            ("file:* x", "every file"),
            ("path:", "needs a value"),
        ] {
            let error = qualified(query).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(words), "{query}: {error}");
        }
        let many = "folder:a ".repeat(100) + "x";
        assert!(qualified(&many).unwrap_err().to_string().contains("conditions"));
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(query in any::<String>()) {
            if let Ok(Qualified { query: words, filter }) = qualified(&query) {
                prop_assert!(words.len() <= query.len());
                prop_assert!(filter.is_some() || words == query.trim());
            }
        }

        #[test]
        fn a_text_without_colons_is_itself(query in "[a-z \"*-]{0,40}") {
            prop_assert_eq!(qualified(&query).unwrap(), Qualified { query: query.trim().to_owned(), filter: None });
        }
    }
}
