//! What whoever adds files says of them, beside what they say of themselves.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::{Document, fitted_but_for};
use ragstone_env::{Error, ErrorKind, Result};

/// Entries of one ingest: they stand beside every passage of every file.
const MAX_ENTRIES: usize = 32;
const MAX_KEY_BYTES: usize = 64;
const MAX_VALUE_BYTES: usize = 512;
const MAX_VALUES: usize = 32;
/// All of them, as JSON: less than what may stand beside any text.
const MAX_BYTES: usize = 2 << 10;
/// What a file says by its place and time; filters count on that.
const RESERVED: [&str; 4] = ["path", "folder", "file", "changed"];

/// Checks metadata that is given for files.
///
/// # Errors
/// `InvalidInput`; the message says what to do.
pub fn check_given(given: &Map<String, Value>) -> Result<()> {
    let refused = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
    if given.len() > MAX_ENTRIES {
        return refused(format!("the metadata has {} entries; give at most {MAX_ENTRIES}", given.len()));
    }
    for (key, value) in given {
        let shown = key.escape_debug().to_string();
        if RESERVED.contains(&key.as_str()) {
            return refused(format!(
                "the metadata may not say `{key}`: that is told by the file itself; choose another name"
            ));
        }
        if key.is_empty() || key.len() > MAX_KEY_BYTES || key.chars().any(char::is_control) {
            return refused(format!(
                "`{shown}` is no name of metadata: it has 1 to {MAX_KEY_BYTES} bytes and no control characters"
            ));
        }
        let is_right = match value {
            Value::Array(values) => values.len() <= MAX_VALUES && values.iter().all(is_scalar),
            value => is_scalar(value),
        };
        if !is_right {
            return refused(format!(
                "the metadata `{shown}` must be a text of at most {MAX_VALUE_BYTES} bytes, a number, true, false, or a list of at most \
                 {MAX_VALUES} of these"
            ));
        }
    }
    let bytes = super::metadata_json(given).len();
    if bytes > MAX_BYTES {
        return refused(format!(
            "the metadata comes to {bytes} bytes; give at most {MAX_BYTES}, as it stands beside every passage"
        ));
    }
    Ok(())
}

fn is_scalar(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= MAX_VALUE_BYTES,
        Value::Number(_) | Value::Bool(_) => true,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// A file's document with what was given for it: that counts before what the file says itself, which makes room for it where there is too
/// little.
pub fn with_given(mut document: Document, given: &Map<String, Value>) -> Document {
    if given.is_empty() {
        return document;
    }
    document.metadata.extend(given.iter().map(|(key, value)| (key.clone(), value.clone())));
    fitted_but_for(document, |key| given.contains_key(key))
}

/// A time as ISO 8601 writes it, in UTC and to the second; none before 1970 and behind the year 9999.
pub fn timestamp(time: SystemTime) -> Option<String> {
    const MOST: u64 = 253_402_300_799;
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let seconds = i64::try_from(Some(seconds).filter(|seconds| *seconds <= MOST)?).ok()?;
    Some(mail_parser::DateTime::from_timestamp(seconds).to_rfc3339())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::document::most_beside;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn what_is_given_is_checked() {
        let good = json!({ "project": "roof", "year": 2025, "is_open": true, "tags": ["a", 1], "Größe": "x" });
        check_given(&map(good)).unwrap();
        for (given, words) in [
            (json!({ "path": "x" }), "told by the file itself"),
            (json!({ "": "x" }), "no name of metadata"),
            (json!({ "a\u{1b}": "x" }), "no name of metadata"),
            (json!({ "a": null }), "must be a text"),
            (json!({ "a": { "b": 1 } }), "must be a text"),
            (json!({ "a": [["b"]] }), "must be a text"),
            (json!({ "a": "x".repeat(513) }), "must be a text"),
            (
                json!({ "a": "x".repeat(500), "b": "x".repeat(500), "c": "x".repeat(500), "d": "x".repeat(500), "e": "x".repeat(500) }),
                "bytes",
            ),
        ] {
            let error = check_given(&map(given)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let many: Map<String, Value> = (0..33).map(|at| (at.to_string(), Value::Bool(true))).collect();
        assert!(check_given(&many).unwrap_err().to_string().contains("33 entries"));
    }

    #[test]
    fn what_is_given_stands_before_what_the_file_says() {
        let said = map(json!({ "project": "cellar", "author": "Ada" }));
        let document = Document { text: "t".into(), metadata: said, ..Document::default() };
        let given = map(json!({ "project": "roof" }));
        let document = with_given(document, &given);
        assert_eq!(Value::Object(document.metadata), json!({ "project": "roof", "author": "Ada" }));
        // Where there is no more room, what the file says goes.
        let text = "x".repeat(1 << 20);
        let said = map(json!({ "long": "x".repeat(most_beside(text.len()) - 100), "author": "Ada" }));
        let document = Document { id: Some("a".into()), text, metadata: said, ..Document::default() };
        document.check().unwrap();
        let given = map(json!({ "project": "x".repeat(500) }));
        let document = with_given(document, &given);
        document.check().unwrap();
        assert_eq!((document.metadata.get("project"), document.metadata.get("long")), (given.get("project"), None));
    }

    #[test]
    fn times_are_texts_in_their_order() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_709_210_096).unwrap(), "2024-02-29T12:34:56Z");
        assert_eq!(at(253_402_300_799).unwrap(), "9999-12-31T23:59:59Z");
        assert_eq!(at(253_402_300_800), None);
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(1)), None);
    }
}
