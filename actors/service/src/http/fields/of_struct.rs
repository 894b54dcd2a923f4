//! A struct's fields, taken out of a request: those that it names, each of whose errors names it, and no others.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Takes what `T` names; null counts as missing. Structs without flattened ones alone: those do not say what they name.
pub(super) fn take<T: DeserializeOwned>(fields: &mut Map<String, Value>) -> Result<T> {
    T::deserialize(OfStruct(fields)).map_err(|Wrong(error)| error)
}

struct OfStruct<'a>(&'a mut Map<String, Value>);

#[derive(Debug)]
struct Wrong(Error);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Wrong {}

impl serde::de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(Error::internal(format!("a request is read into another type than a plain struct: {message}")))
    }

    fn missing_field(name: &'static str) -> Self {
        Self(Error::invalid_field(name, format!("`{name}` is missing")))
    }
}

impl<'de> Deserializer<'de> for OfStruct<'_> {
    type Error = Wrong;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_map(Taken { fields: self.0, names: names.iter(), next: None })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Wrong> {
        Err(serde::de::Error::custom("it does not say what it names"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Taken<'a> {
    fields: &'a mut Map<String, Value>,
    names: std::slice::Iter<'static, &'static str>,
    next: Option<(&'static str, Value)>,
}

impl<'de> MapAccess<'de> for Taken<'_> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        for name in self.names.by_ref() {
            match self.fields.remove(*name) {
                None | Some(Value::Null) => {}
                Some(value) => {
                    self.next = Some((name, value));
                    let name: StrDeserializer<'_, Wrong> = name.into_deserializer();
                    return seed.deserialize(name).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let (name, value) = self.next.take().unwrap_or_default();
        seed.deserialize(value)
            .map_err(|error| Wrong(Error::invalid_field(name, format!("`{name}` cannot be read: {error}"))))
    }
}
