//! One record after another: documents, rows of one table, messages of one conversation.

use serde_json::{Map, Value};

use super::fields::RecordFields;
use super::outline;
use super::rows::{Row, Rows, cell, flat};
use super::said::{self, Message, Said};
use super::{Bad, document};
use crate::body::Body;
use crate::markup;
use crate::metadata::FileMetadata;
use crate::parse::{Each, Parsed, check};

/// Of a text that is one of many fields, such as a log's message. A longer one is a document.
const SHORT_BYTES: usize = 200;
/// A field as long is text, and nothing to stand beside each passage.
const LONG_BYTES: usize = 200;
/// A shorter id is one of records of other files, too.
pub const MIN_ID_BYTES: usize = 16;
const MAX_ID_BYTES: usize = 200;
/// Of a table, the rows that make a file a list of records.
const MIN_ROWS: usize = 3;

/// What becomes of records.
pub struct Records<'f> {
    fields: &'f RecordFields,
    rows: Rows,
    messages: Vec<Message>,
    documents: usize,
    /// What of the file is left out, for the first document.
    left_out: Vec<String>,
}

impl<'f> Records<'f> {
    /// Of records whose fields are what `fields` says; `left_out` of their file is told with the first document.
    pub fn of(fields: &'f RecordFields, left_out: Vec<String>) -> Self {
        Self { fields, rows: Rows::default(), messages: Vec::new(), documents: 0, left_out }
    }

    /// The document that a record is; none where it is part of another one.
    pub fn take(&mut self, value: Value, anchor: String) -> Result<Option<Parsed>, String> {
        let Value::Object(object) = value else {
            return Err("not an object with a `text`".into());
        };
        let parsed = if self.fields.text.is_empty() {
            let mut named = Parsed::default();
            self.fields.name(&mut named, &object)?;
            match Record::of(object)? {
                Record::Document(parsed) => {
                    let (id, title) = (named.id.or(parsed.id), named.title.or(parsed.title));
                    Parsed { id, title, ..*parsed }
                }
                Record::Row(row) => {
                    self.rows.add(row);
                    return Ok(None);
                }
                Record::Message(message) => {
                    self.messages.push(message);
                    return Ok(None);
                }
            }
        } else {
            self.fields.document(object)?
        };
        check(&parsed)?;
        self.documents += 1;
        Ok(Some(Parsed { anchor: Some(anchor), left_out: std::mem::take(&mut self.left_out), ..parsed }))
    }

    /// Hands out the table and the conversation, each the whole file where there is nothing else.
    pub fn finish(mut self, bad: &mut Bad, each: Each<'_>) -> Result<(), String> {
        let kinds = usize::from(self.documents > 0) + usize::from(!self.rows.is_empty());
        let is_part = kinds + usize::from(!self.messages.is_empty()) > 1;
        let mut hand_out = |anchor: &str, body: Body| {
            let parsed = Parsed::of(None, body, FileMetadata::default());
            let left_out = std::mem::take(&mut self.left_out);
            let parsed = Parsed { anchor: is_part.then(|| anchor.to_owned()), left_out, ..parsed };
            match check(&parsed) {
                Ok(()) => each(parsed),
                Err(why) => {
                    bad.note(|| format!("{anchor}: {why}"));
                    Ok(())
                }
            }
        };
        if !self.rows.is_empty() {
            let mut body = Body::default();
            self.rows.put(&mut body);
            hand_out(super::ROWS, body)?;
        }
        if !self.messages.is_empty() {
            let mut body = Body::default();
            body.paragraph(&said::transcript(&self.messages));
            hand_out("messages", body)?;
        }
        Ok(())
    }
}

/// The document that a file of one object is, if it holds text or a list of records.
pub fn whole(object: Map<String, Value>) -> Option<Parsed> {
    if !outline::is_prose(&object) && said::said(&object).is_none_or(|(_, said)| matches!(said, Said::Text(_))) {
        let lists: Vec<&Vec<Value>> = object.values().filter_map(Value::as_array).collect();
        let is_row = |value: &Value| value.as_object().and_then(flat).is_some();
        let is_list = matches!(lists.as_slice(), [list] if list.len() >= MIN_ROWS && list.iter().all(is_row));
        if !is_list || flat_but_lists(&object).is_none() {
            return None;
        }
    } else if !matches!(said::said(&object), Some((key, Said::Text(_))) if said::is_weak(key))
        && let Ok(Record::Document(parsed)) = Record::of(object.clone())
    {
        return Some(*parsed).filter(|parsed| check(parsed).is_ok());
    }
    let mut body = Body::default();
    outline::put(&Value::Object(object), "", 2, &mut body);
    Some(Parsed::of(None, body, FileMetadata::default())).filter(|parsed| check(parsed).is_ok())
}

/// Whether what is beside lists is single values.
fn flat_but_lists(object: &Map<String, Value>) -> Option<Row> {
    let others = object.iter().filter(|(_, value)| !value.is_array());
    flat(&others.map(|(key, value)| (key.clone(), value.clone())).collect())
}

enum Record {
    Document(Box<Parsed>),
    Row(Row),
    Message(Message),
}

impl Record {
    fn of(object: Map<String, Value>) -> Result<Self, String> {
        let said = said::said(&object);
        let is_own = match object.get("text") {
            Some(Value::String(text)) => !text.trim().is_empty() || said.is_none(),
            Some(Value::Number(_) | Value::Bool(_)) => true,
            _ => false,
        };
        if is_own {
            return Ok(Self::Document(Box::new(document(object)?)));
        }
        if let Some(message) = said::message(&object) {
            return Ok(Self::Message(message));
        }
        let row = flat(&object);
        match (said, row) {
            (Some((key, Said::Text(text))), Some(row))
                if said::is_weak(key) && row.len() > 1 && text.len() <= SHORT_BYTES =>
            {
                Ok(Self::Row(row))
            }
            (Some((key, said)), _) => Ok(Self::Document(Box::new(exported(object, key, &said)))),
            (None, Some(row)) if row.is_empty() => Err("`text` is missing, and so is all else".into()),
            (None, Some(row)) => Ok(Self::Row(row)),
            (None, None) => {
                let mut body = Body::default();
                let title = said::title(&object).map(|(_, title)| title);
                outline::put(&Value::Object(object), "", 2, &mut body);
                Ok(Self::Document(Box::new(Parsed::of(title, body, FileMetadata::default()))))
            }
        }
    }
}

/// A record as some program exports it. What is long of its other fields is text, too; the rest is metadata.
fn exported(mut object: Map<String, Value>, key: &str, said: &Said) -> Parsed {
    object.remove(key);
    let mut body = Body::default();
    match said {
        Said::Conversation(messages) => body.paragraph(&said::transcript(messages)),
        Said::Text(text) if key == "markdown" => body = markup::markdown(text).body,
        Said::Text(text) => outline::put_text(text, &mut body),
    }
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        other => other.into_iter().map(|value| ("metadata".to_owned(), value)).collect(),
    };
    metadata.retain(|_, value| cell(value).is_some());
    let title = said::title(&object);
    if let Some((key, _)) = title {
        object.remove(key);
    }
    let id = ["id", "_id", "uuid"].into_iter().find_map(|key| Some((key, id(object.get(key)?)?)));
    if let Some((key, _)) = &id {
        object.remove(*key);
    }
    let is_weak = said::is_weak(key);
    for (key, value) in object {
        match &value {
            Value::String(text) if text.len() >= LONG_BYTES => {
                body.end_block();
                body.paragraph(&format!("{key}: {}", text.trim()));
            }
            Value::Object(inner) if flat(inner).is_some() => {
                let row = flat(inner).unwrap_or_default();
                metadata.extend(row.into_iter().map(|(field, value)| (format!("{key}.{field}"), value.into())));
            }
            Value::Null => {}
            nested if cell(nested).is_none() => {
                if outline::has_prose(nested) {
                    outline::put(nested, "", 2, &mut body);
                }
            }
            single => {
                if is_weak && let Some(text) = cell(single) {
                    body.line(&format!("{key}: {text}"));
                }
                metadata.insert(key, value);
            }
        }
    }
    let title = title.map(|(_, title)| title);
    let title = title.or_else(|| said::title(&metadata).map(|(_, title)| title));
    let parsed = Parsed::of(title, body, FileMetadata::default());
    Parsed { id: id.map(|(_, id)| id), metadata, ..parsed }
}

/// An id that no record of another file has by chance.
fn id(value: &Value) -> Option<String> {
    let id = match value {
        Value::String(id) => id.clone(),
        Value::Object(object) => object.get("$oid")?.as_str()?.to_owned(),
        _ => return None,
    };
    let is_plain = |id: &String| (MIN_ID_BYTES..=MAX_ID_BYTES).contains(&id.len()) && !id.contains(char::is_control);
    Some(id).filter(is_plain)
}
