//! What an answer must conform to: OpenAI's `response_format`, and the fields by which vLLM's clients ask for it.

use std::sync::Arc;

use ragstone_actors::{Caller, Ragstone};
use ragstone_kernels::grammar::{GrammarSpec, MAX_GRAMMAR_BYTES};
use serde_json::Value;

use super::fields::Fields;
use super::generation::Generation;
use crate::error::{Error, ErrorKind, Result};
use crate::http::state::State;

/// All fields that ask for a form of the answer.
const FIELDS: &[&str] =
    &["response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"];

/// A grammar and the field that brought it.
#[derive(Debug, Clone)]
pub struct Format {
    pub field: &'static str,
    pub spec: Arc<GrammarSpec>,
}

impl Format {
    /// Takes the fields; at most one may ask for something.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>> {
        let mut taken: Option<Self> = None;
        for field in FIELDS {
            let Some(value) = fields.take_value(field) else { continue };
            let Some(spec) = read(field, value)? else { continue };
            if let Some(other) = &taken {
                return Err(Error::invalid_field(
                    *field,
                    format!("`{field}` and `{}` contradict each other", other.field),
                ));
            }
            taken = Some(Self { field, spec: Arc::new(spec) });
        }
        Ok(taken)
    }
}

fn read(field: &str, value: Value) -> Result<Option<GrammarSpec>> {
    match field {
        "response_format" => response_format(value),
        "structured_outputs" => structured(value),
        "guided_json" => schema(field, value).map(Some),
        "guided_regex" => text(field, value).map(GrammarSpec::Regex).map(Some),
        "guided_choice" => choice(field, value).map(Some),
        _ => text(field, value).map(GrammarSpec::Lark).map(Some),
    }
}

fn response_format(mut value: Value) -> Result<Option<GrammarSpec>> {
    match value["type"].as_str() {
        Some("text") => Ok(None),
        // llama.cpp takes a schema here, too.
        Some("json_object") => match value.get_mut("schema").map(Value::take).filter(|schema| !schema.is_null()) {
            Some(schema) => self::schema("response_format.schema", schema).map(Some),
            None => Ok(Some(GrammarSpec::json_object())),
        },
        Some("json_schema") => {
            let schema = value.pointer_mut("/json_schema/schema").map(Value::take).unwrap_or_default();
            self::schema("response_format.json_schema.schema", schema).map(Some)
        }
        _ => Err(Error::invalid_field(
            "response_format",
            "`response_format.type` must be text, json_object or json_schema".to_owned(),
        )),
    }
}

/// vLLM's object with one of `json`, `regex`, `choice`, `grammar`, `json_object`.
fn structured(value: Value) -> Result<Option<GrammarSpec>> {
    const FIELD: &str = "structured_outputs";
    let Value::Object(map) = value else {
        return Err(Error::invalid_field(FIELD, format!("`{FIELD}` must be an object")));
    };
    let mut given = map.into_iter().filter(|(_, value)| !value.is_null());
    let read = match given.next() {
        None => return Ok(None),
        Some((name, value)) => match name.as_str() {
            "json" => schema("structured_outputs.json", value)?,
            "regex" => GrammarSpec::Regex(text("structured_outputs.regex", value)?),
            "choice" => choice("structured_outputs.choice", value)?,
            "grammar" => GrammarSpec::Lark(text("structured_outputs.grammar", value)?),
            "json_object" if value == true => GrammarSpec::json_object(),
            name => return Err(Error::invalid_field(FIELD, format!("`{FIELD}.{name}` is not supported"))),
        },
    };
    match given.next() {
        None => Ok(Some(read)),
        Some((name, _)) => {
            Err(Error::invalid_field(FIELD, format!("`{FIELD}` asks for more than one thing (`{name}`)")))
        }
    }
}

/// A schema, or its text.
fn schema(field: &str, value: Value) -> Result<GrammarSpec> {
    match value {
        Value::Object(_) => Ok(GrammarSpec::JsonSchema(value)),
        Value::String(text) if text.len() > MAX_GRAMMAR_BYTES => {
            let message = format!("`{field}` has {} bytes; use at most {MAX_GRAMMAR_BYTES}", text.len());
            Err(Error::invalid_field(field, message))
        }
        Value::String(text) if text.trim_start().starts_with('{') => match serde_json::from_str(&text) {
            Ok(schema) => Ok(GrammarSpec::JsonSchema(schema)),
            Err(error) => Err(Error::invalid_field(field, format!("`{field}` is not valid JSON: {error}"))),
        },
        _ => Err(Error::invalid_field(field, format!("`{field}` must be a JSON schema, an object"))),
    }
}

fn text(field: &str, value: Value) -> Result<String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        _ => Err(Error::invalid_field(field, format!("`{field}` must be a text that is not empty"))),
    }
}

/// One of these texts.
fn choice(field: &str, value: Value) -> Result<GrammarSpec> {
    let texts: Option<Vec<String>> = value.as_array().and_then(|values| {
        values.iter().map(|value| value.as_str().filter(|text| !text.is_empty()).map(|_| value.to_string())).collect()
    });
    match texts {
        Some(texts) if !texts.is_empty() => Ok(GrammarSpec::Lark(format!("start: {}", texts.join(" | ")))),
        _ => Err(Error::invalid_field(field, format!("`{field}` must be a list of texts"))),
    }
}

/// Compiles what a request asks for, so that one that is wrong is refused by its field's name.
pub async fn check(state: &State, ragstone: &Ragstone, generation: &Generation, caller: Caller) -> Result<()> {
    let Some(Format { field, spec }) = generation.format.clone() else { return Ok(()) };
    // An engine elsewhere has its own ways.
    if generation.said.is_some() {
        return Ok(());
    }
    let (ragstone, deadline) = (ragstone.clone(), generation.deadline);
    let checked = state.on_runtime(async move { ragstone.check_grammar(&spec, caller, deadline).await }).await?;
    checked.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Error::invalid_field(field, format!("`{field}` cannot be followed: {error}")),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: &str) -> Result<Option<GrammarSpec>> {
        let mut fields = Fields::parse(body.as_bytes())?;
        let taken = Format::take(&mut fields)?;
        fields.finish()?;
        Ok(taken.map(|format| (*format.spec).clone()))
    }

    #[test]
    fn every_field_is_read() {
        let schema = || GrammarSpec::JsonSchema(serde_json::json!({ "type": "null" }));
        for (body, spec) in [
            ("{}", None),
            (r#"{"response_format": {"type": "text"}}"#, None),
            (r#"{"response_format": {"type": "json_object"}}"#, Some(GrammarSpec::json_object())),
            (
                r#"{"response_format": {"type": "json_object", "schema": {"type": "array"}}}"#,
                Some(GrammarSpec::JsonSchema(serde_json::json!({ "type": "array" }))),
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "null"}}}}"#,
                Some(schema()),
            ),
            (r#"{"guided_json": {"type": "null"}}"#, Some(schema())),
            (r#"{"guided_json": "{\"type\": \"null\"}"}"#, Some(schema())),
            (r#"{"guided_regex": "a+"}"#, Some(GrammarSpec::Regex("a+".into()))),
            (r#"{"guided_choice": ["a", "b\""]}"#, Some(GrammarSpec::Lark(r#"start: "a" | "b\"""#.into()))),
            (r#"{"guided_grammar": "start: \"a\""}"#, Some(GrammarSpec::Lark("start: \"a\"".into()))),
            (r#"{"structured_outputs": {"regex": "a", "json": null}}"#, Some(GrammarSpec::Regex("a".into()))),
            (r#"{"structured_outputs": {"json": {"type": "null"}}}"#, Some(schema())),
            (r#"{"structured_outputs": {}}"#, None),
        ] {
            assert_eq!(take(body).unwrap(), spec, "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (r#"{"response_format": {"type": "xml"}}"#, "response_format"),
            (r#"{"response_format": 3}"#, "response_format"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.json_schema.schema"),
            (r#"{"guided_json": [1]}"#, "guided_json"),
            (r#"{"guided_json": "{"}"#, "guided_json"),
            (r#"{"guided_regex": 1}"#, "guided_regex"),
            (r#"{"guided_choice": []}"#, "guided_choice"),
            (r#"{"guided_choice": [1]}"#, "guided_choice"),
            (r#"{"guided_grammar": ""}"#, "guided_grammar"),
            (r#"{"guided_regex": "a", "guided_json": {}}"#, "guided_regex"),
            (r#"{"structured_outputs": {"regex": "a", "choice": ["b"]}}"#, "structured_outputs"),
            (r#"{"structured_outputs": {"structural_tag": "a"}}"#, "structured_outputs"),
        ] {
            assert_eq!(take(body).unwrap_err().at_field(), Some(param), "{body}");
        }
    }
}
