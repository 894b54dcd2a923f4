//! Filters on metadata as a command line has them.

use ragstone_corpus::Filter;
use ragstone_service::api::collections::ReadAs;
use ragstone_terminal::output::one_line;
use serde_json::{Map, Value, json};

/// What stands between key and value, the longer ones first, and the filter's type.
const OPERATORS: [(&str, &str); 7] =
    [("!=", "ne"), (">=", "gte"), ("<=", "lte"), ("^=", "prefix"), ("=", "eq"), (">", "gt"), ("<", "lt")];

/// Reads `KEY`, `KEY=VALUE` and the like, or a filter as JSON.
///
/// # Errors
/// What is wrong and what may stand there, for clap to print.
pub fn filter(text: &str) -> Result<Filter, String> {
    let given = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| format!("it begins as JSON and is none: {error}"))?
    } else {
        condition(text)?
    };
    Filter::parse(&given).map_err(|error| error.to_string())
}

/// Reads `KEY=VALUE` of what is to be noted.
///
/// # Errors
/// What is missing, for clap to print.
pub fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("write KEY=VALUE, such as project=roof".to_owned()),
    }
}

/// Entries as JSON: what is given more than once is a list.
pub fn entries(given: &[(String, String)]) -> Map<String, Value> {
    let mut entries = Map::new();
    for (key, value) in given {
        let value = Value::from(value.as_str());
        match entries.get_mut(key) {
            None => drop(entries.insert(key.clone(), value)),
            Some(Value::Array(values)) => values.push(value),
            Some(one) => *one = Value::Array(vec![one.take(), value]),
        }
    }
    entries
}

/// That a query was read with qualifiers, for people.
pub fn read_as(ReadAs { query, filter }: &ReadAs) -> String {
    let filter = serde_json::to_string(filter).unwrap_or_default();
    let (query, filter) = (one_line(query, 120), one_line(&filter, 240));
    format!("(searched for \"{query}\" where {filter}; --plain takes the query as it is)")
}

/// The first operator parts the two; the key ends where it begins.
fn condition(text: &str) -> Result<Value, String> {
    let places = OPERATORS.iter().filter_map(|(operator, kind)| text.find(operator).map(|at| (at, *operator, *kind)));
    // Of those that begin at the same place the longer one.
    let first = places.min_by_key(|(at, operator, _)| (*at, std::cmp::Reverse(operator.len())));
    match first {
        Some((at, operator, kind)) => {
            let value = text[at + operator.len()..].trim();
            // Everything is greater than nothing: only to be equal to it means something.
            if value.is_empty() && !matches!(operator, "=" | "!=") {
                return Err(format!("a value is missing, such as {}{operator}2024", text[..at].trim()));
            }
            Ok(json!({ "type": kind, "key": text[..at].trim(), "value": value }))
        }
        None => Ok(json!({ "type": "exists", "key": text.trim() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_twice_is_a_list() {
        let given = ["project=roof", " tag = a=b ", "tag=c", "tag=d", "empty="].map(|text| entry(text).unwrap());
        let expected = json!({ "project": "roof", "tag": ["a=b", "c", "d"], "empty": "" });
        assert_eq!(Value::Object(entries(&given)), expected);
        assert!(entry("x").is_err() && entry("=x").is_err());
    }

    #[test]
    fn a_condition_is_parted_at_its_first_operator() {
        for (text, kind, key, value) in [
            ("lang=en", "eq", "lang", json!("en")),
            (" year >= 2024", "gte", "year", json!("2024")),
            ("a!=b=c", "ne", "a", json!("b=c")),
            ("path^=docs/<x>", "prefix", "path", json!("docs/<x>")),
            ("date<2024-05-01", "lt", "date", json!("2024-05-01")),
            ("n<=3", "lte", "n", json!("3")),
            ("empty=", "eq", "empty", json!("")),
        ] {
            let given = json!(filter(text).unwrap());
            assert_eq!((&given["type"], &given["key"], &given["value"]), (&json!(kind), &json!(key), &value), "{text}");
        }
        assert_eq!(json!(filter("author").unwrap()), json!({"type": "exists", "key": "author"}));
        let whole = r#"{"type": "in", "key": "lang", "value": ["en"]}"#;
        assert_eq!(json!(filter(whole).unwrap()), serde_json::from_str::<Value>(whole).unwrap());
    }

    #[test]
    fn what_is_none_is_told_so() {
        for text in ["", "=x", "lang>", "year <= ", "{", "{}", r#"{"type":"like"}"#] {
            assert!(!filter(text).unwrap_err().is_empty(), "{text}");
        }
    }
}
