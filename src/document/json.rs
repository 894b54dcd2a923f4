//! JSON lines (one object a line) and JSON arrays of objects: `{"id"?, "title"?, "text", "source"?, "metadata"?}`.

use std::path::Path;

use ragstone_storage::corpus::Document;
use serde_json::Value;

use super::invalid;
use crate::error::Result;

/// One document a line; blank lines are skipped.
pub fn lines(path: &Path, text: &str) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("line {}", index + 1);
        let value = serde_json::from_str(line).map_err(|error| invalid(path, &format!("{place}: {error}")))?;
        documents.push(document(path, &place, &format!("L{}", index + 1), value)?);
    }
    Ok(documents)
}

/// One document an element.
pub fn array(path: &Path, text: &str) -> Result<Vec<Document>> {
    let value: Value = serde_json::from_str(text).map_err(|error| invalid(path, &error.to_string()))?;
    let Value::Array(values) = value else {
        return Err(invalid(path, "not an array of documents; use .jsonl for one object a line"));
    };
    let documents = values
        .into_iter()
        .enumerate()
        .map(|(index, value)| document(path, &format!("element {index}"), &format!("{index}"), value));
    documents.collect()
}

/// Other fields are kept as metadata, so that nothing of a record is lost.
fn document(path: &Path, place: &str, anchor: &str, value: Value) -> Result<Document> {
    let Value::Object(mut object) = value else {
        return Err(invalid(path, &format!("{place}: not an object with a `text`")));
    };
    let mut take = |field: &str| match object.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        // Ids are numbers in many data sets.
        Some(Value::Number(number)) if field == "id" => Ok(Some(number.to_string())),
        Some(other) => Err(invalid(path, &format!("{place}: `{field}` must be a string, not {other}"))),
    };
    let (id, title, text, source) = (take("id")?, take("title")?, take("text")?, take("source")?);
    let text = text.ok_or_else(|| invalid(path, &format!("{place}: `text` is missing")))?;
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        None | Some(Value::Null) => serde_json::Map::new(),
        Some(_) => return Err(invalid(path, &format!("{place}: `metadata` must be an object"))),
    };
    metadata.extend(object);
    let source = source.unwrap_or_else(|| format!("{}#{anchor}", path.display()));
    Ok(Document { id, title: title.unwrap_or_default(), text, source: Some(source), metadata })
}
