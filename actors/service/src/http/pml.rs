//! `"ragstone": { "pml": … }`: a prompt of a schema's modules.

use std::sync::Arc;
use std::time::Duration;

use ragstone_actors::upkeep::schemas::Found;
use ragstone_actors::{Caller, Input, Ragstone};
use ragstone_pml::{GivenSources, Prompt, Schema};

use crate::api::pml::Pml;
use crate::error::{Error, Result};

impl Pml {
    /// The prompt `text` of this schema, which is the request's `field`.
    ///
    /// # Errors
    /// What is wrong with either, of its field; `DeadlineExceeded`.
    pub async fn input(
        self,
        (field, text): (&'static str, String),
        ragstone: &Ragstone,
        tenant: &str,
        caller: Caller,
        deadline: Duration,
    ) -> Result<Input> {
        let name = match (&self.schema, &self.name) {
            (Some(_), None) => None,
            (None, Some(name)) => Some(name.clone()),
            _ => {
                let message = "give either a `schema`, or the `name` of one that is kept";
                return Err(Error::invalid_field("ragstone.pml", message));
            }
        };
        let read = move || {
            let prompt = Prompt::parse(&text).map_err(|error| Error::invalid_field(field, error.to_string()))?;
            let schema = if self.schema.is_some() { Some(Arc::new(self.given()?)) } else { None };
            Ok((Arc::new(prompt), schema))
        };
        let (prompt, given) = ragstone.read(caller, deadline, read).await?;
        match (given, name) {
            (Some(schema), _) => Ok(Input::Pml { schema, layout: None, found_in: None, prompt }),
            (None, name) => {
                let name = name.unwrap_or_default();
                let Found { schema, layout, found_in } = ragstone.schemas().find(tenant, &name, caller).await?;
                Ok(Input::Pml { schema, layout: Some(layout), found_in: Some(found_in), prompt })
            }
        }
    }

    fn given(&self) -> Result<Schema> {
        let schema = Schema::parse(self.schema.as_deref().unwrap_or_default(), &GivenSources::new(&self.sources));
        schema.map_err(|error| Error::invalid_field("ragstone.pml.schema", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pml: &str) -> Result<Schema> {
        serde_json::from_str::<Pml>(pml).unwrap().given()
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        let good = r#"{"schema": "<schema name='a'><module name='b' src='c'/></schema>", "sources": {"c": "text"}}"#;
        assert!(given(good).is_ok());
        for (pml, words) in [
            (r#"{"schema": "<schema"}"#, "line 1"),
            (r#"{"schema": "<schema name='a'><module name='b' src='c'/></schema>"}"#, "`sources` does not have it"),
        ] {
            let error = given(pml).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_text_that_is_named_again_and_again_is_bounded() {
        let modules: String = (0..20).map(|at| format!("<module name='b{at}' src='c'/>")).collect();
        let schema = Some(format!("<schema name='a'>{modules}</schema>"));
        let pml = Pml { schema, sources: [("c".to_owned(), "x".repeat(1 << 19))].into(), name: None };
        assert!(pml.given().unwrap_err().to_string().contains("more than"));
    }
}
