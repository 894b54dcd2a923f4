//! What a JSON schema may have.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{MAX_REPEATS, repeats, within};
use crate::error::{Error, Result};

/// How deep a schema may nest: it is read recursively.
const MAX_DEPTH: usize = 64;
/// The same, where each reference goes on with what it refers to, however they follow each other.
const MAX_REFERRED_DEPTH: usize = 1_200;
/// Keys, elements and values of a schema.
const MAX_VALUES: usize = 10_000;
/// The same with a copy of what is referred to, wherever it is joined with something else.
const MAX_COPIED_VALUES: usize = 50_000;
/// Names in `properties` and `required` of a schema, all objects together: `allOf` and references join them.
const MAX_NAMES: usize = 1_000;
/// The same where a number of properties is asked for: each choice of them is an object of its own.
const MAX_COUNTED_NAMES: usize = 100;
/// Patterns for names: each is compiled, and compared with every name.
const MAX_NAME_PATTERNS: usize = 16;

/// Keys beside a reference that ask for nothing.
const ANNOTATIONS: [&str; 8] =
    ["$ref", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"];

/// Whether a schema may be compiled.
pub(super) fn check_schema(schema: &Value) -> Result<()> {
    let mut counts = Counts::default();
    counts.add(schema, 0)?;
    within("values", counts.values, MAX_VALUES)?;
    within("properties", counts.names, MAX_NAMES)?;
    within("patterns for names of properties", counts.name_patterns, MAX_NAME_PATTERNS)?;
    within("repeats in patterns (`?`, `*`, `+`, `{`)", counts.repeats, MAX_REPEATS)?;
    if counts.counts_names {
        within("properties beside minProperties or maxProperties", counts.names, MAX_COUNTED_NAMES)?;
    }
    let whole = depth(schema);
    // What an id moves may refer to anything.
    let referred = |reference: &&str| counts.target(schema, reference).map_or(whole, depth);
    let levels = whole + counts.references.iter().map(referred).sum::<usize>();
    within("levels, those of all that it refers to added", levels, MAX_REFERRED_DEPTH)?;
    let mut copies = Copies { counts: &counts, schema, sizes: HashMap::new() };
    within("values, with copies of what it refers to", copies.of(schema), MAX_COPIED_VALUES)
}

/// Levels of a value that was counted, so that they are few.
fn depth(value: &Value) -> usize {
    let inner = match value {
        Value::Array(values) => values.iter().map(depth).max(),
        Value::Object(map) => map.values().map(depth).max(),
        _ => None,
    };
    1 + inner.unwrap_or(0)
}

/// What a schema has.
#[derive(Default)]
struct Counts<'a> {
    values: usize,
    names: usize,
    name_patterns: usize,
    repeats: usize,
    /// Whether it asks for a number of properties.
    counts_names: bool,
    /// Whether its parts have ids, from which references go.
    has_ids: bool,
    references: HashSet<&'a str>,
}

impl<'a> Counts<'a> {
    /// Adds a value and all that is in it. A keyword counts wherever it stands: too much is never found too little.
    fn add(&mut self, value: &'a Value, level: usize) -> Result<()> {
        if level >= MAX_DEPTH {
            return Err(Error::invalid_input(format!("it nests deeper than {MAX_DEPTH}")));
        }
        self.values += 1;
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| self.add(value, level + 1)),
            Value::Object(map) => map.iter().try_for_each(|(key, value)| {
                self.note(key, value);
                self.add(value, level + 1)
            }),
            _ => Ok(()),
        }
    }

    fn note(&mut self, key: &'a str, value: &'a Value) {
        self.values += 1;
        let inner = value.as_object().map_or(0, Map::len) + value.as_array().map_or(0, Vec::len);
        match (key, value) {
            ("properties" | "required", _) => self.names += inner,
            ("patternProperties", Value::Object(patterns)) => {
                self.name_patterns += inner;
                self.repeats += patterns.keys().map(|pattern| repeats(pattern)).sum::<usize>();
            }
            ("pattern", Value::String(pattern)) => self.repeats += repeats(pattern),
            ("minProperties" | "maxProperties", _) => self.counts_names = true,
            ("$id" | "id" | "$anchor" | "$dynamicAnchor", _) => self.has_ids = true,
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                self.references.insert(reference);
            }
            _ => {}
        }
    }

    /// What a reference refers to, if that is certain.
    fn target<'b>(&self, schema: &'b Value, reference: &str) -> Option<&'b Value> {
        let pointer = reference.strip_prefix('#').filter(|pointer| !self.has_ids && !pointer.contains('%'))?;
        schema.pointer(pointer)
    }
}

/// Counts values with those of what is referred to, where the compiler makes a copy.
struct Copies<'a> {
    counts: &'a Counts<'a>,
    schema: &'a Value,
    /// Of what was referred to; nothing as long as it is counted, so that this ends.
    sizes: HashMap<&'a str, usize>,
}

impl<'a> Copies<'a> {
    fn of(&mut self, value: &'a Value) -> usize {
        match value {
            Value::Array(values) => values.iter().fold(1, |sum, value| sum.saturating_add(self.of(value))),
            Value::Object(map) => {
                let mut sum = 1_usize;
                for (key, value) in map {
                    sum = sum.saturating_add(match value {
                        // Alone it stays a reference.
                        Value::String(reference) if key.ends_with("Ref") || key == "$ref" => {
                            if is_alone(map) {
                                1
                            } else {
                                self.referred(reference)
                            }
                        }
                        Value::Array(members) if key == "allOf" => members.iter().fold(1, |sum: usize, member| {
                            let reference = member.get("$ref").and_then(Value::as_str);
                            let copied = reference.map_or(0, |reference| self.referred(reference));
                            sum.saturating_add(copied).saturating_add(self.of(member))
                        }),
                        value => self.of(value),
                    });
                }
                sum
            }
            _ => 1,
        }
    }

    fn referred(&mut self, reference: &'a str) -> usize {
        if let Some(size) = self.sizes.get(reference) {
            return *size;
        }
        self.sizes.insert(reference, 0);
        let target = self.counts.target(self.schema, reference);
        let size = target.map_or(self.counts.values, |target| self.of(target));
        self.sizes.insert(reference, size);
        size
    }
}

fn is_alone(map: &Map<String, Value>) -> bool {
    map.keys().all(|key| ANNOTATIONS.contains(&key.as_str()))
}
