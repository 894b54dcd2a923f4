//! The fields of a JSON request, taken one by one, so that each error names its field and no field is lost unseen.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::body::Incoming;
use crate::error::{Error, Result};

/// What is left of a request's top-level object.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads the body of a request.
    pub async fn read(incoming: Incoming) -> Result<Self> {
        incoming.parse(Self::parse).await
    }

    /// Reads an object from text.
    pub fn parse(body: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|error| {
            Error::invalid(format!("the request's body is not valid UTF-8 (byte {})", error.valid_up_to()))
        })?;
        if text.trim().is_empty() {
            return Err(Error::invalid("the request's body is empty; send a JSON object"));
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(Error::invalid("the request's body must be a JSON object")),
            Err(error) => Err(Error::invalid(format!("the request's body is not valid JSON: {error}"))),
        }
    }

    /// Takes a field; `None` where it is missing or null.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| Error::param(name, format!("`{name}` cannot be read: {error}"))),
        }
    }

    /// Takes a field that must be there.
    pub fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        self.take(name)?.ok_or_else(|| Error::param(name, format!("`{name}` is missing")))
    }

    /// Drops fields that change nothing about an answer.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.0.remove(*name);
        }
    }

    /// Refuses a field with any value but those that mean "nothing special".
    pub fn refuse_unless(&mut self, name: &str, harmless: impl Fn(&Value) -> bool) -> Result<()> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if harmless(&value) => Ok(()),
            Some(_) => Err(Error::param(name, format!("`{name}` is not supported; leave it out"))),
        }
    }

    /// Refuses what nobody took: a misspelt field must not be silently without effect.
    pub fn finish(self) -> Result<()> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::param(name, format!("unrecognized request argument: `{name}`"))),
        }
    }
}

/// A value that counts as not given: false, 0, or empty.
pub fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &[u8]) -> String {
        Fields::parse(body).unwrap_err().to_string()
    }

    #[test]
    fn bad_bodies_are_told_apart() {
        assert!(error(b"").contains("empty"));
        assert!(error(b"[1]").contains("object"));
        assert!(error(b"{\"a\":").contains("not valid JSON"));
        assert!(error(b"{\"a\":\"\xff\"}").contains("UTF-8 (byte 6)"));
        assert!(error(b"{\"a\":\"\\ud800\"}").contains("not valid JSON"));
    }

    #[test]
    fn errors_name_their_field_and_nothing_is_lost() {
        let mut fields = Fields::parse(br#"{"n":"x","t":[],"u":1,"z":null}"#).unwrap();
        assert_eq!(fields.take::<u32>("n").unwrap_err().at_param(), Some("n"));
        assert_eq!(fields.take::<u32>("z").unwrap(), None);
        assert_eq!(fields.need::<u32>("gone").unwrap_err().at_param(), Some("gone"));
        fields.refuse_unless("t", is_nothing).unwrap();
        assert_eq!(fields.finish().unwrap_err().at_param(), Some("u"));
        let mut fields = Fields::parse(br#"{"tools":[{}]}"#).unwrap();
        assert_eq!(fields.refuse_unless("tools", is_nothing).unwrap_err().at_param(), Some("tools"));
    }
}
