//! What becomes of a question about which a collection has nothing: what counts as nothing, what is done then, and in which words.

mod words;

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use self::words::{note, refusal};

/// How similar a passage must be to the question.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum MinSimilarity {
    /// As the embedding model was measured: nothing is left out, and where no passage at all is about the question, nothing was found.
    #[default]
    Auto,
    /// However little.
    Off,
    /// Cosine similarity, from -1 to 1: what is less similar is left out.
    Least(f32),
}

impl MinSimilarity {
    /// The bound, where it is a number.
    pub fn least(self) -> Option<f32> {
        match self {
            Self::Least(least) => Some(least),
            Self::Auto | Self::Off => None,
        }
    }

    fn of(number: f64) -> Option<Self> {
        // What is no number is not within.
        (-1.0..=1.0).contains(&number).then_some(Self::Least(number as f32))
    }
}

impl std::str::FromStr for MinSimilarity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            text => text.parse().ok().and_then(Self::of).ok_or_else(|| format!("`{text}` is neither {ALLOWED}")),
        }
    }
}

/// What it may be, for people.
const ALLOWED: &str = "`auto`, `off`, nor a number from -1 to 1";

impl Serialize for MinSimilarity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Off => serializer.serialize_str("off"),
            Self::Least(least) => serializer.serialize_f32(*least),
        }
    }
}

impl<'de> Deserialize<'de> for MinSimilarity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl Visitor<'_> for Any {
            type Value = MinSimilarity;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("`auto`, `off`, or a number from -1 to 1")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MinSimilarity, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<MinSimilarity, E> {
                MinSimilarity::of(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<MinSimilarity, E> {
                self.visit_f64(number as f64)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<MinSimilarity, E> {
                self.visit_f64(number as f64)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl JsonSchema for MinSimilarity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MinSimilarity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "enum": ["auto", "off"] }, { "type": "number", "minimum": -1, "maximum": 1 }] })
    }
}

/// What is done with a question about which nothing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNothingFound {
    /// It is said, in the question's language, and the model is not asked. A question that wants more than words (a form, calls of tools), and one
    /// that others stand before, is answered as usual.
    Say,
    /// The model answers without passages, behind a note that says so.
    Answer,
    /// The model answers over the nearest passages; the report says that they are not about it.
    #[default]
    AsUsual,
}

/// Nothing that was found is about the question.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NothingFound {
    /// What was done.
    pub answered: Answered,
    /// The greatest similarity of any passage that was looked at, where vectors were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_similarity: Option<f32>,
}

/// What was done about a question about which nothing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    /// It was said that the documents have nothing; no model was asked.
    Said,
    /// By the model, without passages.
    WithoutPassages,
    /// By the model, over the nearest passages.
    AsUsual,
}

impl Answered {
    /// As metrics have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Said => "said",
            Self::WithoutPassages => "without_passages",
            Self::AsUsual => "as_usual",
        }
    }
}

impl NothingFound {
    /// A sentence for people.
    pub fn in_words(&self) -> &'static str {
        match self.answered {
            Answered::Said => "No passage is about this; no model was asked.",
            Answered::WithoutPassages => {
                "No passage is about this: the answer is the model's own, without your documents."
            }
            Answered::AsUsual => "No passage seems to be about this: the answer stands on the nearest ones.",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_bound_is_a_word_or_a_number_within() {
        let read = |value: Value| serde_json::from_value::<MinSimilarity>(value);
        for (value, expected) in [
            (json!("auto"), MinSimilarity::Auto),
            (json!("off"), MinSimilarity::Off),
            (json!(0), MinSimilarity::Least(0.0)),
            (json!(-1), MinSimilarity::Least(-1.0)),
            (json!(1.0), MinSimilarity::Least(1.0)),
            (json!("0.25"), MinSimilarity::Least(0.25)),
        ] {
            assert_eq!(read(value.clone()).unwrap(), expected, "{value}");
            let told = serde_json::to_value(expected).unwrap();
            assert_eq!(read(told).unwrap(), expected);
        }
        for value in [
            json!(1.01),
            json!(-2),
            json!("nan"),
            json!("inf"),
            json!(""),
            json!("Auto"),
            json!(null),
            json!([]),
            json!(u64::MAX),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
        assert!("NaN".parse::<MinSimilarity>().unwrap_err().contains("a number from -1 to 1"));
    }

    #[test]
    fn texts_around_numbers_are_bounds_or_errors() {
        for text in ["-1", "1", "0.5", "-0", "1e0", "+0.5", ".5"] {
            assert!(matches!(text.parse(), Ok(MinSimilarity::Least(least)) if (-1.0..=1.0).contains(&least)), "{text}");
        }
        for text in ["1.0001", "-1.0001", "1e9", "NaN", "-inf", "infinity", "0,5", "0.5 ", "0x0", "٠", "AUTO", "\u{0}"]
        {
            assert!(text.parse::<MinSimilarity>().is_err(), "{text}");
        }
    }
}
