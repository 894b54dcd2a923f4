//! What else is known of a document: JSON that stands beside each of its passages. Kept as text, which passages share: parsed it takes up
//! to thirty times as much, and nobody looks into what is only passed on.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{Error, ErrorKind, Result};

/// The text of a JSON object. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata(Arc<str>);

impl Metadata {
    /// Of text that was stored.
    pub(super) fn stored(json: &str) -> Self {
        if json == "{}" { Self::default() } else { Self(json.into()) }
    }

    /// As it is stored.
    pub fn json(&self) -> &str {
        &self.0
    }

    /// An entry that is a text.
    pub fn text(&self, key: &str) -> Option<String> {
        // Most have none, and whoever asks wants one alone.
        if !self.0.contains(key) {
            return None;
        }
        self.entries().ok()?.remove(key)?.as_str().map(str::to_owned)
    }

    /// Its entries.
    ///
    /// # Errors
    /// `Corrupt` for what is no object.
    pub fn entries(&self) -> Result<Map<String, Value>> {
        serde_json::from_str(&self.0)
            .map_err(|error| Error::new(ErrorKind::Corrupt, "a passage's metadata is not JSON").with_source(error))
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self(Arc::from("{}"))
    }
}

impl From<&Map<String, Value>> for Metadata {
    fn from(entries: &Map<String, Value>) -> Self {
        // A map with text for keys is always JSON.
        Self(serde_json::to_string(entries).unwrap_or_default().into())
    }
}

impl Serialize for Metadata {
    /// As the object that it is.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.entries().map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Map::deserialize(deserializer).map(|entries| Self::from(&entries))
    }
}

impl JsonSchema for Metadata {
    fn inline_schema() -> bool {
        <Map<String, Value>>::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        <Map<String, Value>>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <Map<String, Value>>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_and_written_as_an_object_and_kept_as_text() {
        let metadata: Metadata = serde_json::from_str(r#"{ "a": [0, 1], "b": {"c": null} }"#).unwrap();
        assert_eq!(metadata.json(), r#"{"a":[0,1],"b":{"c":null}}"#);
        assert_eq!(serde_json::to_string(&metadata).unwrap(), metadata.json());
        assert_eq!(metadata.entries().unwrap()["a"], serde_json::json!([0, 1]));
        let told: Metadata = serde_json::from_str(r#"{"changed": "2025-01-31", "size": 3}"#).unwrap();
        assert_eq!(
            (told.text("changed").as_deref(), told.text("size"), told.text("x")),
            (Some("2025-01-31"), None, None)
        );
        assert_eq!((Metadata::default().json(), Metadata::stored("{}")), ("{}", Metadata::default()));
        assert_eq!(Metadata::stored("[").entries().unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(serde_json::from_str::<Metadata>("[]").is_err());
    }
}
