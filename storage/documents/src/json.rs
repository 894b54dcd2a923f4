//! JSON: lines (one object a line) and arrays of objects, as programs export them, `{"id"?, "title"?, "text", "source"?, "metadata"?}` first of
//! all. One document at a time, so that memory follows the greatest document and not their number; records without a text are gathered to
//! one table. Another object is read as text where it holds some.

mod fields;
mod outline;
mod record;
mod repair;
mod rows;
mod said;

use std::fmt;

use crate::document::most_beside;
use crate::element::{Element, ElementKind};
use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde_json::Value;

pub use self::fields::RecordFields;
pub use self::record::{MIN_ID_BYTES, Records};
pub use self::repair::repaired;
use super::parse::{Each, Parsed, check};

/// The place of what has no text of its own, gathered to one table.
pub const ROWS: &str = "rows";
/// Bad lines or elements that are named; the others are counted.
const MOST_NAMED: usize = 3;

/// One document a line; blank lines are skipped. A bad line does not keep the others from being read: which are bad, and why, it returns.
///
/// # Errors
/// What `each` says.
pub fn lines(text: &str, fields: &RecordFields, each: Each<'_>) -> Result<Option<String>, String> {
    let (mut bad, mut records) = (Bad::default(), Records::of(fields, Vec::new()));
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let read = serde_json::from_str(&repaired(line)).map_err(|error| without_line(&error));
        match read.and_then(|value| records.take(value, format!("L{}", index + 1))) {
            Ok(Some(parsed)) => each(parsed)?,
            Ok(None) => {}
            Err(why) => bad.note(|| format!("line {}: {why}", index + 1)),
        }
    }
    records.finish(&mut bad, each)?;
    Ok(bad.told("lines"))
}

/// Of a record that has one line: it is the first there, and another one in the file.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replacen(&format!(" at line {} ", error.line()), " at ", 1)
}

/// Whether a file is an array or lines of objects, of records then.
pub fn has_several(text: &str) -> bool {
    text.trim_start().starts_with('[') || is_lines(text)
}

/// Some programs call it `.json`, and write an object a line.
fn is_lines(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return false };
    first.starts_with('{') && second.starts_with('{') && serde_json::from_str::<Value>(&repaired(first)).is_ok()
}

/// As [`lines`], of a file that [`has_several`].
///
/// # Errors
/// As [`lines`].
pub fn several(text: &str, fields: &RecordFields, each: Each<'_>) -> Result<Option<String>, String> {
    if is_lines(text) { lines(text, fields, each) } else { array(text, fields, each) }
}

/// Any other file: an object that holds text as that, and what sets up a program as it stands.
pub fn object(text: String) -> Parsed {
    let read = match serde_json::from_str(&repaired(&text)) {
        Ok(Value::Object(object)) => record::whole(object),
        _ => None,
    };
    read.unwrap_or_else(|| {
        let elements = vec![Element { at: 0, kind: ElementKind::Code }];
        Parsed { text, elements, ..Parsed::default() }
    })
}

/// As [`lines`], one document an element. What is no JSON ends the file.
///
/// # Errors
/// As [`lines`].
fn array(text: &str, fields: &RecordFields, each: Each<'_>) -> Result<Option<String>, String> {
    let (mut bad, mut records) = (Bad::default(), Records::of(fields, Vec::new()));
    let text = repaired(text);
    let mut reader = serde_json::Deserializer::from_str(&text);
    let mut stopped = None;
    let read = reader.deserialize_seq(Elements { each, bad: &mut bad, records: &mut records, stopped: &mut stopped });
    if let Some(why) = stopped {
        return Err(why);
    }
    if let Err(error) = read.and_then(|()| reader.end()) {
        bad.end(error.to_string());
    }
    records.finish(&mut bad, each)?;
    Ok(bad.told("elements"))
}

/// What could not be read of a file.
#[derive(Default)]
pub struct Bad {
    named: Vec<String>,
    others: usize,
    /// Why the rest could not be read at all.
    last: Option<String>,
}

impl Bad {
    /// Counts a bad record, and names the first ones.
    pub fn note(&mut self, why: impl FnOnce() -> String) {
        if self.named.len() < MOST_NAMED { self.named.push(why()) } else { self.others += 1 }
    }

    /// Nothing behind here could be read.
    pub fn end(&mut self, why: String) {
        self.last = Some(why);
    }

    /// What is to be said of them, if there are any; `what` they are.
    pub fn told(self, what: &str) -> Option<String> {
        let others = (self.others > 0).then(|| format!("and {} more such {what}", self.others));
        let all: Vec<String> = self.named.into_iter().chain(others).chain(self.last).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

struct Elements<'b, 'f> {
    each: Each<'b>,
    bad: &'b mut Bad,
    records: &'b mut Records<'f>,
    /// What `each` said in the end.
    stopped: &'b mut Option<String>,
}

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of documents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut index = 0_u64;
        while let Some(value) = elements.next_element::<Value>()? {
            match self.records.take(value, index.to_string()) {
                Ok(None) => {}
                Ok(Some(parsed)) => {
                    if let Err(why) = (self.each)(parsed) {
                        *self.stopped = Some(why);
                        return Err(A::Error::custom("stopped"));
                    }
                }
                Err(why) => self.bad.note(|| format!("element {index}: {why}")),
            }
            index += 1;
        }
        Ok(())
    }
}

/// A record of the form that is written for ragstone. Other fields are kept as metadata, so that nothing of a record is lost.
fn document(object: serde_json::Map<String, Value>) -> Result<Parsed, String> {
    let parsed = fields(object)?;
    check(&parsed)?;
    check_beside(&parsed)?;
    Ok(parsed)
}

/// What is kept beside each of the document's passages. Of other files, whose metadata is not their author's wish, what is too much is
/// left out.
fn check_beside(parsed: &Parsed) -> Result<(), String> {
    let named = [&parsed.title, &parsed.source].into_iter().flatten().map(String::len).sum::<usize>();
    let metadata = serde_json::to_vec(&parsed.metadata).map_err(|error| error.to_string())?;
    let (bytes, most) = (metadata.len() + named, most_beside(parsed.text.len()));
    if bytes <= most {
        return Ok(());
    }
    Err(format!(
        "the fields beside `text` come to {} KiB, and may have {} KiB beside a text of this length; leave some out",
        bytes.div_ceil(1 << 10),
        most >> 10
    ))
}

fn fields(mut object: serde_json::Map<String, Value>) -> Result<Parsed, String> {
    let text = match object.remove("text") {
        None | Some(Value::Null) => return Err("`text` is missing".into()),
        Some(Value::String(text)) => text,
        Some(other) => return Err(format!("`text` must be a string, not {}", kind(&other))),
    };
    let id = match object.remove("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id),
        // Ids are numbers in many data sets.
        Some(Value::Number(id)) => Some(id.to_string()),
        Some(other) => return Err(format!("`id` must be a string, not {}", kind(&other))),
    };
    // Other programs mean something else by these names: of that none is an error, and it is kept as all else is.
    let mut take = |field: &str, is: fn(&Value) -> bool| {
        let found = object.get(field).is_some_and(|value| value.is_null() || is(value));
        if found { object.remove(field).filter(|value| !value.is_null()) } else { None }
    };
    let text_of = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let title = take("title", |value| value.is_string() || value.is_number()).map(text_of);
    let source = take("source", Value::is_string).map(text_of);
    let mut metadata = match take("metadata", Value::is_object) {
        Some(Value::Object(metadata)) => metadata,
        _ => serde_json::Map::new(),
    };
    metadata.extend(object);
    Ok(Parsed { id, title, text, source, metadata, ..Parsed::default() })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
