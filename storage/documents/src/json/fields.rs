//! Which fields of records are their documents' text, title and id, where whoever ingests them says so.

use ragstone_env::{Error, ErrorKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::rows::cell;
use super::said::title;
use crate::body::one_line;
use crate::parse::Parsed;

/// Fields that one text is made of.
const MAX_TEXTS: usize = 16;
/// Of a field's name.
const MAX_NAME_BYTES: usize = 200;
/// Between the texts of several fields.
const BETWEEN: &str = "\n\n";

/// Which fields of a record are what; `a.b` is the field `b` of the object `a`. For records of JSON, CSV, Parquet and Arrow: other files have none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecordFields {
    /// Those that are its text, one below the other; none: the field that usually is. A record that has none of them, or no text in them, is
    /// named and left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub text: Vec<String>,
    /// The one that is its title; none: the field that usually is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The one that is its id, a text or a number; none: `id`, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl RecordFields {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As a journal keeps it.
    pub fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            // A struct is an object.
            _ => Map::new(),
        }
    }

    /// Of what [`to_map`](Self::to_map) gave.
    ///
    /// # Errors
    /// `InvalidInput` where another version kept what this one does not know: without it, other documents would come of the same records.
    pub fn of_map(map: &Map<String, Value>) -> Result<Self> {
        serde_json::from_value(Value::Object(map.clone())).map_err(|error| {
            let message = format!(
                "another version of ragstone kept which fields of records are what, and this one cannot read it: {error}; cancel the ingest, and \
                 ingest again"
            );
            Error::new(ErrorKind::InvalidInput, message)
        })
    }

    /// Checks what can be wrong with names.
    ///
    /// # Errors
    /// `InvalidInput` for an empty or long name, or too many.
    pub fn check(&self) -> Result<()> {
        let refused = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        if self.text.len() > MAX_TEXTS {
            return refused(format!("{} fields are to be the text, and may be {MAX_TEXTS}", self.text.len()));
        }
        for name in self.text.iter().chain(&self.title).chain(&self.id) {
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                return refused(format!("a field's name has 1 to {MAX_NAME_BYTES} bytes, and not {}", name.len()));
            }
        }
        Ok(())
    }

    /// The document that a record is, where its text's fields are named.
    pub(crate) fn document(&self, mut object: Map<String, Value>) -> std::result::Result<Parsed, String> {
        let mut texts = Vec::new();
        for name in &self.text {
            let Some(value) = found(&object, name) else { continue };
            let text = words(value).ok_or_else(|| not_a_text(name, value))?;
            texts.extend(Some(text).filter(|text| !text.trim().is_empty()));
        }
        if texts.is_empty() {
            let names: Vec<String> = self.text.iter().map(|name| format!("`{name}`")).collect();
            let is_there = self.text.iter().any(|name| found(&object, name).is_some());
            let names = names.join(", ");
            return Err(if is_there {
                format!("there is no text in {names}")
            } else {
                format!("there is no {names}; it has {}", named(&object))
            });
        }
        let mut parsed = Parsed { text: texts.join(BETWEEN), ..Parsed::default() };
        self.name(&mut parsed, &object)?;
        self.text.iter().chain(&self.title).chain(&self.id).for_each(|name| remove(&mut object, name));
        if self.title.is_none()
            && let Some((key, usual)) = title(&object)
        {
            object.remove(key);
            parsed.title = Some(usual);
        }
        if self.id.is_none()
            && let Some(id) = object.get("id").and_then(name_of)
        {
            object.remove("id");
            parsed.id = Some(id);
        }
        if let Some(Value::String(source)) = object.get("source") {
            parsed.source = Some(source.clone());
            object.remove("source");
        }
        if let Some(Value::Object(metadata)) = object.get("metadata") {
            parsed.metadata = metadata.clone();
            object.remove("metadata");
        }
        object.retain(|_, value| !value.is_null());
        parsed.metadata.extend(object);
        Ok(parsed)
    }

    /// Gives a document the title and the id that its record has in the fields of that meaning.
    pub(crate) fn name(&self, parsed: &mut Parsed, record: &Map<String, Value>) -> std::result::Result<(), String> {
        if let Some(value) = self.title.as_deref().and_then(|name| found(record, name)) {
            parsed.title = cell(value).map(|title| one_line(&title)).filter(|title| !title.is_empty());
        }
        if let Some((name, value)) = self.id.as_deref().and_then(|name| Some((name, found(record, name)?))) {
            let id = name_of(value).ok_or_else(|| format!("`{name}`, its id, must be a text or a number"))?;
            parsed.id = Some(id);
        }
        Ok(())
    }
}

/// The value of a field, which may be one of an object within. A name with a dot in it is meant first.
fn found<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = object.get(name) {
        return Some(value).filter(|value| !value.is_null());
    }
    let (outer, inner) = name.split_once('.')?;
    found(object.get(outer)?.as_object()?, inner)
}

fn remove(object: &mut Map<String, Value>, name: &str) {
    if object.remove(name).is_some() {
        return;
    }
    if let Some((outer, inner)) = name.split_once('.')
        && let Some(Value::Object(within)) = object.get_mut(outer)
    {
        remove(within, inner);
        if within.is_empty() {
            object.remove(outer);
        }
    }
}

/// A value as text: of a list its items, a line each.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::Array(items) => Some(items.iter().map(words).collect::<Option<Vec<_>>>()?.join("\n")),
        Value::String(text) => Some(text.clone()),
        single => cell(single),
    }
}

fn name_of(value: &Value) -> Option<String> {
    match value {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

fn not_a_text(name: &str, value: &Value) -> String {
    let within = match value {
        Value::Object(object) => object.keys().next(),
        Value::Array(items) => items.iter().find_map(Value::as_object).and_then(|object| object.keys().next()),
        _ => None,
    };
    match (within, value) {
        (Some(field), Value::Object(_)) => {
            format!("`{name}` is an object; name a field of it, such as `{name}.{field}`")
        }
        _ => format!("`{name}` is a list of objects, and no text"),
    }
}

/// The fields that there are, for people.
fn named(object: &Map<String, Value>) -> String {
    const MOST: usize = 8;
    let there = || object.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name);
    let names: Vec<String> = there().take(MOST).map(|name| format!("`{name}`")).collect();
    let others = there().count().saturating_sub(MOST);
    match (names.is_empty(), others) {
        (true, _) => "no fields".into(),
        (false, 0) => names.join(", "),
        (false, _) => format!("{} and {others} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(fields: &Value, record: Value) -> std::result::Result<Parsed, String> {
        let fields: RecordFields = serde_json::from_value(fields.clone()).unwrap();
        fields.check().unwrap();
        let Value::Object(record) = record else { panic!("an object") };
        fields.document(record)
    }

    #[test]
    fn fields_are_what_they_are_said_to_be() {
        let fields = json!({ "text": ["head", "body.plain", "tags"], "title": "name", "id": "keys.pk" });
        let record = json!({
            "head": "First.", "body": { "plain": "Second.", "html": "<p>" }, "tags": ["a", "b"], "name": " The  name ",
            "keys": { "pk": 7 }, "id": "other", "stars": 5, "none": null, "source": "https://a.example",
        });
        let parsed = read(&fields, record).unwrap();
        assert_eq!(parsed.text, "First.\n\nSecond.\n\na\nb");
        assert_eq!((parsed.title.as_deref(), parsed.id.as_deref()), (Some("The name"), Some("7")));
        assert_eq!(parsed.source.as_deref(), Some("https://a.example"));
        assert_eq!(Value::Object(parsed.metadata), json!({ "body": { "html": "<p>" }, "id": "other", "stars": 5 }));
        // What is not said is as usual.
        let parsed =
            read(&json!({ "text": ["t"] }), json!({ "t": 3, "title": "T", "id": 4, "metadata": { "a": 1 } })).unwrap();
        assert_eq!((parsed.text.as_str(), parsed.title.as_deref(), parsed.id.as_deref()), ("3", Some("T"), Some("4")));
        assert_eq!(Value::Object(parsed.metadata), json!({ "a": 1 }));
        // A dot may be part of a name.
        assert_eq!(read(&json!({ "text": ["a.b"] }), json!({ "a.b": "x", "a": { "b": "y" } })).unwrap().text, "x");
    }

    #[test]
    fn what_has_no_text_says_what_it_has() {
        let why = |record| read(&json!({ "text": ["body", "more"] }), record).unwrap_err();
        assert_eq!(why(json!({ "a": 1, "b": 2 })), "there is no `body`, `more`; it has `a`, `b`");
        assert_eq!(why(json!({})), "there is no `body`, `more`; it has no fields");
        assert_eq!(why(json!({ "body": " " })), "there is no text in `body`, `more`");
        assert_eq!(
            why(json!({ "body": { "html": "" } })),
            "`body` is an object; name a field of it, such as `body.html`"
        );
        assert_eq!(why(json!({ "body": [{ "a": 1 }] })), "`body` is a list of objects, and no text");
        let error = read(&json!({ "text": ["a"], "id": "b" }), json!({ "a": "x", "b": [1] })).unwrap_err();
        assert_eq!(error, "`b`, its id, must be a text or a number");
    }

    #[test]
    fn names_are_bounded() {
        let of = |text: Vec<String>| RecordFields { text, ..RecordFields::default() };
        for bad in [of(vec![String::new()]), of(vec!["x".repeat(201)]), of(vec!["x".into(); 17])] {
            assert_eq!(bad.check().unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert!(of(vec!["x".repeat(200); 16]).check().is_ok());
        assert!(serde_json::from_str::<RecordFields>(r#"{"texts": ["a"]}"#).is_err());
        let fields = of(vec!["a".into()]);
        assert_eq!(RecordFields::of_map(&fields.to_map()).unwrap(), fields);
        assert!(fields.to_map().contains_key("text") && RecordFields::default().to_map().is_empty());
        let later = json!({ "text": ["a"], "language": "l" });
        let error = RecordFields::of_map(later.as_object().unwrap()).unwrap_err();
        assert!(error.to_string().contains("cancel the ingest"), "{error}");
    }
}
