//! Reads keys of a JSON object with errors that name the key.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object of a configuration.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn new(value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map }),
            _ => Err(Error::invalid_model("config.json is not a JSON object; fetch the model again")),
        }
    }

    /// The key is there, be it null.
    pub fn mentions(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The key is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// The object under `key`, if any.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map })),
            Some(other) => Err(wrong(key, "an object", other)),
        }
    }

    /// A key that may be absent or null; `expected` says in the message what it should have been.
    pub fn optional<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|_| wrong(key, expected, value)),
        }
    }

    /// A boolean key.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.optional(key, "true or false")?.unwrap_or(default))
    }

    /// A finite number that must be there.
    pub fn number(&self, key: &str) -> Result<f64> {
        self.optional(key, "a number")?
            .ok_or_else(|| Error::invalid_model(format!("config.json lacks `{key}`; fetch the model again")))
    }

    /// One token id or a list of them; absent and null are none.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(_)) => Ok(self.optional(key, "a list of token ids")?.unwrap_or_default()),
            // Some published files write -1 for "none".
            Some(Value::Number(id)) if id.as_i64().is_some_and(|id| id < 0) => Ok(Vec::new()),
            Some(_) => Ok(self.optional::<u32>(key, "a token id or a list of them")?.into_iter().collect()),
        }
    }

    /// The values of all keys.
    pub fn values(&self) -> impl Iterator<Item = &'a Value> {
        self.map.values()
    }
}

fn wrong(key: &str, expected: &str, found: &Value) -> Error {
    let mut found = found.to_string();
    if found.chars().count() > 60 {
        found = found.chars().take(60).chain(['…']).collect();
    }
    Error::invalid_model(format!("config.json: `{key}` should be {expected}, found {found}; fetch the model again"))
}
