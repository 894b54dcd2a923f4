//! JSON lines (one object a line) and JSON arrays of objects: `{"id"?, "title"?, "text", "source"?, "metadata"?}`. One
//! document at a time, so that memory follows the greatest document and not their number.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde_json::Value;

use super::parse::{Each, Parsed};

/// Of one document, as JSON. It is kept beside each of the document's passages.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// One document a line; blank lines are skipped.
pub fn lines(text: &str, each: Each<'_>) -> Result<(), String> {
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("line {}", index + 1);
        let value = serde_json::from_str(line).map_err(|error| format!("{place}: {error}"))?;
        let taken = document(value, format!("L{}", index + 1)).and_then(&mut *each);
        taken.map_err(|why| format!("{place}: {why}"))?;
    }
    Ok(())
}

/// One document an element.
pub fn array(text: &str, each: Each<'_>) -> Result<(), String> {
    if !text.trim_start().starts_with('[') {
        return Err("not an array of documents; use .jsonl for one object a line".into());
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.deserialize_seq(Elements(each)).and_then(|()| reader.end()).map_err(|error| error.to_string())
}

struct Elements<'a>(Each<'a>);

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of documents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut index = 0_u64;
        while let Some(value) = elements.next_element::<Value>()? {
            let taken = document(value, index.to_string()).and_then(&mut *self.0);
            taken.map_err(|why| A::Error::custom(format!("element {index}: {why}")))?;
            index += 1;
        }
        Ok(())
    }
}

/// Other fields are kept as metadata, so that nothing of a record is lost.
fn document(value: Value, anchor: String) -> Result<Parsed, String> {
    let Value::Object(mut object) = value else {
        return Err("not an object with a `text`".into());
    };
    let mut take = |field: &str| match object.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        // Ids are numbers in many data sets.
        Some(Value::Number(number)) if field == "id" => Ok(Some(number.to_string())),
        Some(other) => Err(format!("`{field}` must be a string, not {}", kind(&other))),
    };
    let (id, title, text, source) = (take("id")?, take("title")?, take("text")?, take("source")?);
    let text = text.ok_or("`text` is missing")?;
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        None | Some(Value::Null) => serde_json::Map::new(),
        Some(_) => return Err("`metadata` must be an object".into()),
    };
    metadata.extend(object);
    let bytes = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?.len();
    if bytes > MAX_METADATA_BYTES {
        let most = MAX_METADATA_BYTES >> 10;
        return Err(format!(
            "the fields beside `text` come to {} KiB, and may have {most} KiB; leave some out",
            bytes >> 10
        ));
    }
    Ok(Parsed { id, title, text, source, anchor: Some(anchor), metadata })
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
