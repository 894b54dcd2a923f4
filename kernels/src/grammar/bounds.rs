//! What a grammar may have. Its compiler calls itself for every name of an object, every reference and every rule that another one
//! needs, copies what is referred to beside other demands, and takes the square of how much is optional: what it takes is counted before
//! it is called, in terms of what a grammar says.
//!
//! A grammar within these bounds compiles on a stack of [`STACK_BYTES`] with room to spare (a test takes a quarter), in seconds.

mod schema;

use serde_json::Value;

use self::schema::check_schema;
use super::{GrammarSpec, MAX_GRAMMAR_BYTES};
use crate::error::{Error, Result};

/// The stack of a thread that compiles grammars. Pages that are never touched cost nothing.
pub const STACK_BYTES: usize = 128 << 20;

/// Colons of a grammar, so that no more rules need each other.
const MAX_RULES: usize = 1_000;
/// Opening brackets and negations of a grammar, so that no more groups stand in each other.
const MAX_GROUPS: usize = 1_000;
/// What may be left out or repeated, of an expression or a grammar: `?`, `*`, `+`, `{`.
const MAX_REPEATS: usize = 1_000;
/// Alternatives: `|`.
const MAX_ALTERNATIVES: usize = 2_000;

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
        GrammarSpec::Regex(text) => check_choices(text),
        GrammarSpec::Lark(text) => check_lark(text),
    }
}

fn within(what: &str, count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    Err(Error::invalid_input(format!("it has {count} {what}; use at most {most}")))
}

fn count(text: &str, wanted: &[u8]) -> usize {
    text.bytes().filter(|byte| wanted.contains(byte)).count()
}

fn repeats(text: &str) -> usize {
    count(text, b"?*+{")
}

fn check_choices(text: &str) -> Result<()> {
    within("repeats (`?`, `*`, `+`, `{`)", repeats(text), MAX_REPEATS)?;
    within("alternatives (`|`)", count(text, b"|"), MAX_ALTERNATIVES)
}

/// Counts without reading the grammar: what stands in texts and comments counts, too, so that nothing is overlooked.
fn check_lark(text: &str) -> Result<()> {
    within("colons", count(text, b":"), MAX_RULES)?;
    within("opening brackets", count(text, b"([{~"), MAX_GROUPS)?;
    check_choices(text)?;
    // What is no JSON here is none for the compiler.
    for (at, keyword) in text.match_indices("%json") {
        let mut values = serde_json::Deserializer::from_str(&text[at + keyword.len()..]).into_iter::<Value>();
        if let Some(Ok(schema)) = values.next() {
            check_schema(&schema)?;
        }
    }
    Ok(())
}
