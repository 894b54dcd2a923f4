//! A filter as a predicate of LanceDB's: a function of the column `metadata`, evaluated before the best are taken.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray};
use arrow_schema::DataType;
use lancedb::datafusion::common::{DataFusionError, Result, ScalarValue};
use lancedb::datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use lancedb::datafusion::prelude::{Expr, col};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::Filter;

/// Holds for the rows of the documents that `filter` means.
pub fn predicate(filter: &Filter) -> Expr {
    let text = filter.0.given.to_string();
    let matches = Matches { filter: filter.clone(), text, signature: Signature::any(1, Volatility::Immutable) };
    ScalarUDF::new_from_impl(matches).call(vec![col("metadata")])
}

/// The function.
#[derive(Debug)]
struct Matches {
    filter: Filter,
    /// Tells it from others.
    text: String,
    signature: Signature,
}

impl PartialEq for Matches {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Matches {}

impl Hash for Matches {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl ScalarUDFImpl for Matches {
    fn name(&self) -> &str {
        "ragstone_metadata_matches"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let wrong = || DataFusionError::Execution("the corpus's column `metadata` is not text".to_owned());
        match args.args.first() {
            Some(ColumnarValue::Array(array)) => {
                let rows = array.as_string_opt::<i32>().ok_or_else(wrong)?;
                Ok(ColumnarValue::Array(Arc::new(self.rows((0..rows.len()).map(|row| rows.value(row)))?)))
            }
            Some(ColumnarValue::Scalar(ScalarValue::Utf8(Some(row)))) => {
                let holds = self.rows(std::iter::once(row.as_str()))?.value(0);
                Ok(ColumnarValue::Scalar(ScalarValue::Boolean(Some(holds))))
            }
            _ => Err(wrong()),
        }
    }
}

impl Matches {
    /// Rows of a document stand together, and have the same text: it is read once.
    fn rows<'a>(&self, rows: impl Iterator<Item = &'a str>) -> Result<BooleanArray> {
        let keys = self.filter.keys();
        let mut last: Option<(&str, bool)> = None;
        let mut holds = Vec::with_capacity(rows.size_hint().0);
        for row in rows {
            let matches = match last {
                Some((text, matches)) if text == row => matches,
                _ => self.filter.matches_found(&entries(row, &keys)?),
            };
            last = Some((row, matches));
            holds.push(matches);
        }
        Ok(BooleanArray::from(holds))
    }
}

/// The entries of these keys; the rest of the object is passed over.
fn entries<'a>(json: &str, keys: &'a [&'a str]) -> Result<HashMap<&'a str, Value>> {
    if json == "{}" {
        return Ok(HashMap::new());
    }
    let mut reader = serde_json::Deserializer::from_str(json);
    let found = serde::Deserializer::deserialize_map(&mut reader, Entries(keys));
    found.map_err(|error| DataFusionError::Execution(format!("a passage's metadata is not a JSON object: {error}")))
}

struct Entries<'a>(&'a [&'a str]);

impl<'de, 'a> Visitor<'de> for Entries<'a> {
    type Value = HashMap<&'a str, Value>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut found = HashMap::with_capacity(self.0.len());
        while let Some(key) = map.next_key_seed(Wanted(self.0))? {
            match key {
                Some(key) => drop(found.insert(key, map.next_value()?)),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// Which of the wanted keys comes next, if it is one.
struct Wanted<'a>(&'a [&'a str]);

impl<'de, 'a> DeserializeSeed<'de> for Wanted<'a> {
    type Value = Option<&'a str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Wanted<'a> {
    type Value = Option<&'a str>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> std::result::Result<Self::Value, E> {
        Ok(self.0.iter().copied().find(|wanted| *wanted == key))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_asked_about_is_read_and_the_last_of_a_key_counts() {
        let found = entries(r#"{"a":1,"deep":{"a":[2,{"a":3}]},"b\u0062":"x","a":4}"#, &["a", "bb", "c"]).unwrap();
        assert_eq!(found, HashMap::from([("a", json!(4)), ("bb", json!("x"))]));
        assert!(entries("[]", &["a"]).is_err());
        assert!(entries("{}", &["a"]).unwrap().is_empty());
    }

    #[test]
    fn a_row_is_judged_as_the_map_is() {
        let filter = Filter::parse(&json!({"type": "gte", "key": "year", "value": 2020})).unwrap();
        let rows = [r#"{"year":2021}"#, r#"{"year":2021}"#, r#"{"year":"2019"}"#, "{}", r#"{"year":"2020"}"#];
        let text = filter.0.given.to_string();
        let signature = Signature::any(1, Volatility::Immutable);
        let judged = Matches { filter: filter.clone(), text, signature }.rows(rows.into_iter()).unwrap();
        let wanted = rows.map(|row| filter.matches(&serde_json::from_str(row).unwrap()));
        assert_eq!(judged.values().iter().collect::<Vec<_>>(), wanted);
        assert_eq!(wanted, [true, true, false, false, true]);
    }
}
