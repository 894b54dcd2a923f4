//! `"ragstone": { "pml": … }`: a prompt of a schema's modules.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use ragstone_actors::Input;
use ragstone_actors::pml::{Prompt, Schema, Sources};
use serde::Deserialize;

use crate::error::{Error, Result};

/// Bytes of all the texts that a schema takes from elsewhere, each time that it does.
const MOST_SOURCE_BYTES: usize = 8 << 20;

/// The schema of a prompt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pml {
    /// `<schema name="…">…`
    schema: String,
    /// The texts that it names by `src`.
    #[serde(default)]
    sources: BTreeMap<String, String>,
}

/// Texts that came with the request.
struct Given<'a> {
    texts: &'a BTreeMap<String, String>,
    left: Cell<usize>,
}

impl Sources for Given<'_> {
    fn text(&self, name: &str) -> std::result::Result<String, String> {
        let text = self.texts.get(name).ok_or("`ragstone.pml.sources` does not have it")?;
        let left = self.left.get().checked_sub(text.len());
        self.left
            .set(left.ok_or_else(|| format!("the schema takes more than {MOST_SOURCE_BYTES} bytes of such texts"))?);
        Ok(text.clone())
    }
}

impl Pml {
    /// The prompt `text` of this schema.
    pub fn input(&self, text: &str) -> Result<Input> {
        let sources = Given { texts: &self.sources, left: Cell::new(MOST_SOURCE_BYTES) };
        let schema = Schema::parse(&self.schema, &sources);
        let schema = schema.map_err(|error| Error::param("ragstone.pml.schema", error.to_string()))?;
        let prompt = Prompt::parse(text).map_err(|error| Error::param("prompt", error.to_string()))?;
        Ok(Input::Pml { schema: Arc::new(schema), prompt: Arc::new(prompt) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(pml: &str, prompt: &str) -> Result<Input> {
        serde_json::from_str::<Pml>(pml).unwrap().input(prompt)
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        let prompt = r#"<prompt schema="a"><b/>Hi</prompt>"#;
        let good = r#"{"schema": "<schema name='a'><module name='b' src='c'/></schema>", "sources": {"c": "text"}}"#;
        assert!(matches!(input(good, prompt), Ok(Input::Pml { .. })));
        for (pml, prompt, words) in [
            (r#"{"schema": "<schema"}"#, prompt, "line 1"),
            (r#"{"schema": "<schema name='a'><module name='b' src='c'/></schema>"}"#, prompt, "ragstone.pml.sources"),
            (good, "<prompt", "line 1"),
        ] {
            let error = input(pml, prompt).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_text_that_is_named_again_and_again_is_bounded() {
        let modules: String = (0..20).map(|at| format!("<module name='b{at}' src='c'/>")).collect();
        let pml = Pml {
            schema: format!("<schema name='a'>{modules}</schema>"),
            sources: [("c".to_owned(), "x".repeat(1 << 19))].into(),
        };
        assert!(pml.input("<prompt schema='a'><b1/></prompt>").unwrap_err().to_string().contains("more than"));
    }
}
