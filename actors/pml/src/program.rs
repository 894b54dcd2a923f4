//! Prompt programs (Prompt Cache, section 3.2.4): templates in a subset of Jinja, compiled to a schema and, for arguments, to a prompt of it.
//!
//! ```text
//! program.jinja -tokens-> -syntax-> statements -unroll-> pieces -render-> Schema
//!                                             arguments + pieces -render-> Prompt
//! ```
//!
//! A program begins with a comment that names it and declares what it takes, a line each: `days: 12 tokens` (a string; `, like "…"` states what
//! stands there while its module is computed), `city: one of "rome", "oslo"`, `frugal: flag`, `files: list` (known when the program is
//! compiled: JSON beside the program, or on the line), `question: text` (of any length: the prompt's own, the program's last thing).
//!
//! | in a program | in the schema |
//! |---|---|
//! | text | text |
//! | `<user>…</user>`, `<system>`, `<assistant>` | the same |
//! | `{% if frugal %}…{% endif %}` | a module |
//! | `{% if city == "rome" %}…{% elif … %}…{% else %}…{% endif %}`, `{{ city }}` | a union of modules |
//! | `{% for file in files %}…{% endfor %}` | a module for each item, which every prompt imports |
//! | `{{ days }}` | a parameter (at the top, in a module of its own) |
//! | `{% macro persona(…) %}`, `{{ persona(…) }}`; `{% include "file" %}` | a nested module for each call |
//!
//! A condition whose outcome is known (`loop.first`, an item's field) leaves no module. `{% set %}`, `{% raw %}`, comments, `-` in delimiters and the
//! filters upper, lower, trim, length and join mean what they mean in Jinja; a filter is for what is known. All else is an error with its place.
//!
//! For the same arguments, the text of the selected prompt is what minijinja renders of the same template, with role tags as text, save for
//! white space at the edges of modules: as everywhere in PML, a run of white space at an edge of a text between two other parts is one space, and
//! the prompt's own text has none at its edges.

mod declaration;
mod expression;
mod known;
mod meaning;
mod names;
mod render;
mod statements;
mod syntax;
mod tokens;
mod unroll;

use std::collections::BTreeMap;

use serde_json::Value;

use self::declaration::{Kind, declarations};
use self::render::{Given, content};
use self::syntax::parse;
use self::unroll::{Piece, Tail, Unroller};
use super::{MAX_DOCUMENT_BYTES, Picks, Prompt, Schema, Sources};
use ragstone_env::{Error, ErrorKind, Result};

/// A program that was compiled.
#[derive(Debug)]
pub struct Program {
    arguments: BTreeMap<String, Kind>,
    schema: Schema,
    pieces: Vec<Piece>,
    tail: Option<Tail>,
}

impl Program {
    /// Compiles a program. `lists` has the lists that it declares and does not state, `sources` the files that it includes.
    ///
    /// # Errors
    /// `InvalidInput` with line and column: what is not of the subset, and what to write instead; names that are unknown; what would become larger or
    /// deeper than a schema may be.
    pub fn compile(text: &str, lists: &BTreeMap<String, Value>, sources: &dyn Sources) -> Result<Self> {
        if text.len() > MAX_DOCUMENT_BYTES {
            let message = format!("a program has at most {MAX_DOCUMENT_BYTES} bytes; this one has {}", text.len());
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let declared = declarations(text, lists)?;
        let nodes = parse(text)?;
        let mut unroller = Unroller::new(&declared, sources);
        unroller.nodes(&nodes)?;
        let pieces = unroller.pieces.pop().unwrap_or_default();
        let schema = content(&pieces).schema(&declared.program)?;
        Ok(Self { arguments: declared.arguments, schema, pieces, tail: unroller.tail })
    }

    /// Its schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Names of its arguments, with what each may be.
    pub fn arguments(&self) -> impl Iterator<Item = (&str, String)> {
        self.arguments.iter().map(|(name, kind)| (name.as_str(), kind.describe()))
    }

    /// The prompt of its schema that these arguments select; flags are `true` or `false`, and false where they are not given.
    ///
    /// # Errors
    /// `InvalidInput` if an argument is unknown, none of its choices, or missing where the prompt needs it.
    pub fn prompt(&self, arguments: &BTreeMap<String, String>) -> Result<Prompt> {
        let given = Given { declared: &self.arguments, values: arguments };
        given.check()?;
        let picks = given.picks(&self.pieces, Picks::new())?;
        let picks = match &self.tail {
            Some(tail) => given.tail(tail, picks)?,
            None => picks,
        };
        picks.prompt(&self.schema)
    }
}

#[cfg(test)]
mod tests;
