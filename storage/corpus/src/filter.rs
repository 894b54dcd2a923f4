//! Which documents a search may find, by their metadata.
//!
//! The form is that of OpenAI's file search, and five types more:
//!
//! ```text
//! {"type": "eq" | "ne" | "gt" | "gte" | "lt" | "lte", "key": "year", "value": 2024}
//! {"type": "in" | "nin", "key": "lang", "value": ["en", "de"]}
//! {"type": "prefix" | "suffix" | "contains", "key": "path", "value": "handbook/"}
//! {"type": "exists", "key": "author"}
//! {"type": "and" | "or", "filters": [...]}
//! {"type": "not", "filter": {...}}
//! ```
//! Equal means: the same text, or the same number, where a text that is a number equals it. Two integers are the same only if all of their
//! digits are, however many there are; 1 is the same as 1.0. Two texts are the same in whichever form of Unicode their letters are written: a file
//! system may keep `Übung` as it was not typed. Order is that of numbers where both are ones, or that of the bytes of two
//! texts, which is the order of dates as ISO 8601 writes them. An entry that is a list is met by any of its elements. `ne` and `nin` are the
//! opposites of `eq` and `in`, so that they are also met where there is no such entry.
//!
//! A filter is evaluated, never written as SQL: no text in it has a meaning but its own.

mod number;
mod predicate;
mod qualifiers;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use self::number::Number;
pub(super) use self::predicate::predicate;
pub use self::qualifiers::{Qualified, qualified};
use crate::{Error, ErrorKind, Result};

/// How deep conditions stand in each other.
const MAX_DEPTH: usize = 8;
/// Conditions of a filter, those that join others included.
const MAX_CONDITIONS: usize = 64;
/// Values of all `in` and `nin` together.
const MAX_VALUES: usize = 1024;
/// Of a key.
const MAX_KEY_BYTES: usize = 256;
/// Of a text to compare with.
const MAX_VALUE_BYTES: usize = 1024;

/// A condition on a document's metadata. Clones share it.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter(Arc<Parsed>);

#[derive(Debug, PartialEq)]
struct Parsed {
    condition: Condition,
    /// As it was given.
    given: Value,
}

/// What is compared: a text, a number, true or false.
#[derive(Debug, Clone, PartialEq)]
enum Scalar {
    Text(String),
    Number(Number),
    Bool(bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Where a text is to stand in an entry.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Prefix,
    Suffix,
    Anywhere,
}

impl Part {
    fn is_in(self, text: &str, part: &str) -> bool {
        let text = nfc(text);
        match self {
            Self::Prefix => text.starts_with(part),
            Self::Suffix => text.ends_with(part),
            Self::Anywhere => text.contains(part),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Condition {
    /// Equal to one of these.
    In(String, Vec<Scalar>),
    Ordered(String, Order, Scalar),
    Text(String, Part, String),
    Exists(String),
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
}

/// What a filter may still have.
struct Budget {
    conditions: usize,
    values: usize,
}

impl Filter {
    /// Reads a filter from JSON.
    ///
    /// # Errors
    /// `InvalidInput`; the message says where in the filter something is wrong, and what may stand there.
    pub fn parse(given: &Value) -> Result<Self> {
        let mut budget = Budget { conditions: MAX_CONDITIONS, values: MAX_VALUES };
        let condition = condition(given, "filter", 1, &mut budget)?;
        Ok(Self(Arc::new(Parsed { condition, given: given.clone() })))
    }

    /// A filter that asks for all of these; `None` for none.
    ///
    /// # Errors
    /// `InvalidInput` for too many, or filters that stand too deep then.
    pub fn all_of(filters: Vec<Self>) -> Result<Option<Self>> {
        let mut given: Vec<Value> = filters.into_iter().map(|filter| filter.0.given.clone()).collect();
        match given.len() {
            0 => Ok(None),
            1 => given.pop().map(|one| Self::parse(&one)).transpose(),
            _ => Self::parse(&serde_json::json!({ "type": "and", "filters": given })).map(Some),
        }
    }

    /// Whether a document of this metadata is meant.
    pub fn matches(&self, metadata: &serde_json::Map<String, Value>) -> bool {
        self.0.condition.holds(&|key| metadata.get(key))
    }

    /// The keys that it asks about.
    fn keys(&self) -> Vec<&str> {
        let mut keys = Vec::new();
        self.0.condition.keys(&mut keys);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// As [`matches`](Self::matches), of entries that were found for [`keys`](Self::keys).
    fn matches_found(&self, found: &HashMap<&str, Value>) -> bool {
        self.0.condition.holds(&|key| found.get(key))
    }
}

impl Condition {
    fn holds<'a>(&self, entry: &dyn Fn(&str) -> Option<&'a Value>) -> bool {
        let any = |key: &str, test: &dyn Fn(&Value) -> bool| match entry(key) {
            None | Some(Value::Null) => false,
            Some(Value::Array(elements)) => elements.iter().any(test),
            Some(value) => test(value),
        };
        match self {
            Self::In(key, wanted) => any(key, &|value| {
                // Once, however many are wanted.
                let text = value.as_str().map(nfc);
                wanted.iter().any(|wanted| equal((value, text.as_deref()), wanted))
            }),
            Self::Ordered(key, order, bound) => {
                any(key, &|value| compare(value, bound).is_some_and(|ordering| order.allows(ordering)))
            }
            Self::Text(key, part, wanted) => {
                any(key, &|value| value.as_str().is_some_and(|text| part.is_in(text, wanted)))
            }
            Self::Exists(key) => !matches!(entry(key), None | Some(Value::Null)),
            Self::All(conditions) => conditions.iter().all(|condition| condition.holds(entry)),
            Self::Any(conditions) => conditions.iter().any(|condition| condition.holds(entry)),
            Self::Not(condition) => !condition.holds(entry),
        }
    }

    fn keys<'a>(&'a self, keys: &mut Vec<&'a str>) {
        match self {
            Self::In(key, _) | Self::Ordered(key, ..) | Self::Text(key, ..) | Self::Exists(key) => keys.push(key),
            Self::All(conditions) | Self::Any(conditions) => {
                conditions.iter().for_each(|condition| condition.keys(keys));
            }
            Self::Not(condition) => condition.keys(keys),
        }
    }
}

impl Order {
    fn allows(self, ordering: Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// A text as it is compared.
fn nfc(text: &str) -> Cow<'_, str> {
    // Of nearly every text the quick look is enough.
    if text.is_ascii() || is_nfc(text) { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect()) }
}

/// Two texts are equal where they are the same text: `007` is not `7`. `text` is the value's as it is compared.
fn equal((value, text): (&Value, Option<&str>), wanted: &Scalar) -> bool {
    match (value, wanted) {
        (Value::String(_), Scalar::Text(wanted)) => text == Some(wanted),
        (Value::String(text), Scalar::Number(wanted)) => Number::read(text) == Some(*wanted),
        (Value::String(text), Scalar::Bool(wanted)) => text.parse() == Ok(*wanted),
        (Value::Number(value), Scalar::Number(wanted)) => Number::of(value) == Some(*wanted),
        (Value::Number(value), Scalar::Text(wanted)) => {
            Number::of(value).is_some_and(|value| Number::read(wanted) == Some(value))
        }
        (Value::Bool(value), Scalar::Bool(wanted)) => value == wanted,
        (Value::Bool(value), Scalar::Text(wanted)) => wanted.parse() == Ok(*value),
        _ => false,
    }
}

/// `None` where there is no order between them.
fn compare(value: &Value, bound: &Scalar) -> Option<Ordering> {
    let as_number = match value {
        Value::Number(value) => Number::of(value),
        Value::String(text) => Number::read(text),
        _ => None,
    };
    let bound_number = match bound {
        Scalar::Number(bound) => Some(*bound),
        Scalar::Text(bound) => Number::read(bound),
        Scalar::Bool(_) => None,
    };
    match (as_number, bound_number, value, bound) {
        (Some(value), Some(bound), ..) => value.partial_cmp(&bound),
        (_, _, Value::String(text), Scalar::Text(bound)) => Some((*nfc(text)).cmp(bound)),
        _ => None,
    }
}

fn bad<T>(at: &str, why: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, format!("`{at}` {why}")))
}

fn condition(given: &Value, at: &str, depth: usize, budget: &mut Budget) -> Result<Condition> {
    const TYPES: &str = "eq, ne, gt, gte, lt, lte, in, nin, prefix, suffix, contains, exists, and, or, not";
    if depth > MAX_DEPTH {
        return bad(at, format!("stands too deep: conditions may stand in each other {MAX_DEPTH} deep"));
    }
    budget.conditions = match budget.conditions.checked_sub(1) {
        Some(left) => left,
        None => return bad(at, format!("is one too many: a filter has at most {MAX_CONDITIONS} conditions")),
    };
    let Value::Object(object) = given else {
        return bad(at, r#"must be an object such as {"type": "eq", "key": "lang", "value": "en"}"#);
    };
    let Some(kind) = object.get("type").and_then(Value::as_str) else {
        return bad(&format!("{at}.type"), format!("must be one of {TYPES}"));
    };
    let known: &[&str] = match kind {
        "and" | "or" => &["type", "filters"],
        "not" => &["type", "filter"],
        "exists" => &["type", "key"],
        "eq" | "ne" | "gt" | "gte" | "lt" | "lte" | "in" | "nin" | "prefix" | "suffix" | "contains" => {
            &["type", "key", "value"]
        }
        _ => return bad(&format!("{at}.type"), format!("must be one of {TYPES}")),
    };
    if object.keys().any(|name| !known.contains(&name.as_str())) {
        return bad(at, format!("has a field that `{kind}` does not know: it has {}", known.join(", ")));
    }
    let field = |name: &str| match object.get(name) {
        Some(value) => Ok((value, format!("{at}.{name}"))),
        None => bad(&format!("{at}.{name}"), "is missing"),
    };
    match kind {
        "and" | "or" => {
            let (filters, at) = field("filters")?;
            let Some(filters) = filters.as_array().filter(|filters| !filters.is_empty()) else {
                return bad(&at, "must be a list of conditions, and not empty");
            };
            let mut conditions = Vec::with_capacity(filters.len().min(MAX_CONDITIONS));
            for (index, filter) in filters.iter().enumerate() {
                conditions.push(condition(filter, &format!("{at}[{index}]"), depth + 1, budget)?);
            }
            Ok(if kind == "and" { Condition::All(conditions) } else { Condition::Any(conditions) })
        }
        "not" => {
            let (filter, at) = field("filter")?;
            Ok(Condition::Not(Box::new(condition(filter, &at, depth + 1, budget)?)))
        }
        _ => {
            let (name, at) = field("key")?;
            let name = key(name, &at)?;
            if kind == "exists" { Ok(Condition::Exists(name)) } else { comparison(kind, name, field("value")?, budget) }
        }
    }
}

fn comparison(kind: &str, key: String, (value, at): (&Value, String), budget: &mut Budget) -> Result<Condition> {
    Ok(match kind {
        "eq" => Condition::In(key, vec![scalar(value, &at)?]),
        "ne" => Condition::Not(Box::new(Condition::In(key, vec![scalar(value, &at)?]))),
        "in" | "nin" => {
            let Some(values) = value.as_array() else {
                return bad(&at, format!("must be a list, as `{kind}` takes several values"));
            };
            budget.values = match budget.values.checked_sub(values.len()) {
                Some(left) => left,
                None => return bad(&at, format!("has too many values: a filter has at most {MAX_VALUES}")),
            };
            let values = values.iter().map(|value| scalar(value, &at)).collect::<Result<_>>()?;
            let within = Condition::In(key, values);
            if kind == "in" { within } else { Condition::Not(Box::new(within)) }
        }
        "prefix" | "suffix" | "contains" => match (scalar(value, &at)?, kind) {
            (Scalar::Text(text), "prefix") => Condition::Text(key, Part::Prefix, text),
            (Scalar::Text(text), "suffix") => Condition::Text(key, Part::Suffix, text),
            (Scalar::Text(text), _) => Condition::Text(key, Part::Anywhere, text),
            _ => return bad(&at, format!("must be a text, as `{kind}` compares texts")),
        },
        _ => {
            let order = match kind {
                "lt" => Order::Less,
                "lte" => Order::LessOrEqual,
                "gt" => Order::Greater,
                _ => Order::GreaterOrEqual,
            };
            match scalar(value, &at)? {
                Scalar::Bool(_) => {
                    return bad(&at, format!("must be a number or a text, as `{kind}` compares by size"));
                }
                bound => Condition::Ordered(key, order, bound),
            }
        }
    })
}

fn key(given: &Value, at: &str) -> Result<String> {
    match given.as_str() {
        Some(key) if !key.is_empty() && key.len() <= MAX_KEY_BYTES => Ok(key.to_owned()),
        _ => bad(at, format!("must be the name of an entry of the metadata, of 1 to {MAX_KEY_BYTES} bytes")),
    }
}

fn scalar(given: &Value, at: &str) -> Result<Scalar> {
    let scalar = match given {
        Value::String(text) if text.len() <= MAX_VALUE_BYTES => Some(Scalar::Text(nfc(text).into_owned())),
        Value::Number(given) => Number::of(given).map(Scalar::Number),
        Value::Bool(given) => Some(Scalar::Bool(*given)),
        _ => None,
    };
    match scalar {
        Some(scalar) => Ok(scalar),
        None => bad(at, format!("must be a text of at most {MAX_VALUE_BYTES} bytes, a number, true or false")),
    }
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.given.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let given = Value::deserialize(deserializer)?;
        Self::parse(&given).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Filter {
    fn schema_name() -> Cow<'static, str> {
        "Filter".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let nested = generator.subschema_for::<Self>();
        json_schema!({
            "description": "A condition on a document's metadata",
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {
                    "enum": [
                        "eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "prefix", "suffix", "contains", "exists", "and",
                        "or", "not",
                    ],
                },
                "key": { "type": "string", "description": "An entry of the metadata; not of `and`, `or` and `not`" },
                "value": { "description": "A text, a number, true or false; of `in` and `nin` a list of these; not of `exists`" },
                "filters": { "type": "array", "items": nested, "description": "Of `and` and `or`" },
                "filter": { "allOf": [nested], "description": "Of `not`" },
            },
            "additionalProperties": false,
        })
    }
}
