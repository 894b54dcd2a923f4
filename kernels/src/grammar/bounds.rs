//! What a grammar may have. Its compiler calls itself for every name of an object, every reference and every rule that another one
//! needs, and multiplies names by patterns: what it takes is counted before it is called, in terms of what a grammar says.
//!
//! A grammar within these bounds compiles on a stack of [`STACK_BYTES`] with room to spare (a test takes a quarter), in seconds.

use serde_json::Value;

use super::{GrammarSpec, MAX_GRAMMAR_BYTES};
use crate::error::{Error, Result};

/// The stack of a thread that compiles grammars. Pages that are never touched cost nothing.
pub const STACK_BYTES: usize = 64 << 20;

/// How deep a schema may nest: it is read recursively.
const MAX_SCHEMA_DEPTH: usize = 64;
/// Keys, elements and values of a schema.
const MAX_SCHEMA_VALUES: usize = 20_000;
/// Names in `properties` and `required` of a schema, all objects together: `allOf` and references join them.
const MAX_NAMES: usize = 2_000;
/// The same where a number of properties is asked for: each choice of them is an object of its own.
const MAX_COUNTED_NAMES: usize = 100;
/// References of a schema: each may need the next.
const MAX_REFERENCES: usize = 500;
/// Patterns for names: each is compiled, and compared with every name.
const MAX_NAME_PATTERNS: usize = 16;
/// Colons of a grammar, so that no more rules need each other.
const MAX_RULES: usize = 4_000;
/// Opening brackets and negations of a grammar, so that no more groups stand in each other.
const MAX_GROUPS: usize = 4_000;

/// Whether a grammar may be compiled.
///
/// # Errors
/// `InvalidInput`, which says what there is too much of.
pub(super) fn check(spec: &GrammarSpec) -> Result<()> {
    let bytes = match spec {
        GrammarSpec::JsonSchema(schema) | GrammarSpec::Calls { schema, .. } => schema.to_string().len(),
        GrammarSpec::Regex(text) | GrammarSpec::Lark(text) => text.len(),
    };
    within("bytes", bytes, MAX_GRAMMAR_BYTES)?;
    match spec {
        GrammarSpec::JsonSchema(schema) | GrammarSpec::Calls { schema, .. } => check_schema(schema),
        GrammarSpec::Regex(_) => Ok(()),
        GrammarSpec::Lark(text) => check_lark(text),
    }
}

fn within(what: &str, count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    Err(Error::invalid_input(format!("it has {count} {what}; use at most {most}")))
}

/// What a schema has.
#[derive(Default)]
struct Counts {
    values: usize,
    names: usize,
    references: usize,
    name_patterns: usize,
    /// Whether it asks for a number of properties.
    counts_names: bool,
}

fn check_schema(schema: &Value) -> Result<()> {
    let mut counts = Counts::default();
    counts.add(schema, MAX_SCHEMA_DEPTH)?;
    within("values", counts.values, MAX_SCHEMA_VALUES)?;
    within("properties", counts.names, MAX_NAMES)?;
    within("references", counts.references, MAX_REFERENCES)?;
    within("patterns for names of properties", counts.name_patterns, MAX_NAME_PATTERNS)?;
    if counts.counts_names {
        within("properties beside minProperties or maxProperties", counts.names, MAX_COUNTED_NAMES)?;
    }
    Ok(())
}

impl Counts {
    /// Adds a value and all that is in it. A keyword counts wherever it stands: too much is never found too little.
    fn add(&mut self, value: &Value, left: usize) -> Result<()> {
        if left == 0 {
            return Err(Error::invalid_input(format!("it nests deeper than {MAX_SCHEMA_DEPTH}")));
        }
        self.values += 1;
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| self.add(value, left - 1)),
            Value::Object(map) => map.iter().try_for_each(|(key, value)| {
                self.note(key, value);
                self.add(value, left - 1)
            }),
            _ => Ok(()),
        }
    }

    fn note(&mut self, key: &str, value: &Value) {
        self.values += 1;
        let inner = value.as_object().map_or(0, serde_json::Map::len) + value.as_array().map_or(0, Vec::len);
        match key {
            "properties" | "required" => self.names += inner,
            "patternProperties" => self.name_patterns += inner,
            "minProperties" | "maxProperties" => self.counts_names = true,
            "$ref" | "$dynamicRef" => self.references += 1,
            _ => {}
        }
    }
}

/// Counts without reading the grammar: what stands in texts and comments counts, too, so that nothing is overlooked.
fn check_lark(text: &str) -> Result<()> {
    let count = |wanted: &[u8]| text.bytes().filter(|byte| wanted.contains(byte)).count();
    within("colons", count(b":"), MAX_RULES)?;
    within("opening brackets", count(b"([{~"), MAX_GROUPS)?;
    // What is no JSON here is none for the compiler.
    for (at, keyword) in text.match_indices("%json") {
        let mut values = serde_json::Deserializer::from_str(&text[at + keyword.len()..]).into_iter::<Value>();
        if let Some(Ok(schema)) = values.next() {
            check_schema(&schema)?;
        }
    }
    Ok(())
}
