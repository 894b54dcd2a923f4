//! Chat messages to one prompt text, by the Jinja template that a model folder brings.

mod date;
mod json;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use minijinja::{Environment, ErrorKind as TemplateErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::tokenizer::{SpecialTokens, read_json};
pub use date::Date;

const TEMPLATE: &str = "chat template";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`, and what else the model's template knows.
    pub role: String,
    pub content: String,
}

impl ChatMessage {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template, rendered as transformers renders it: blocks trimmed, Python methods on values,
/// `raise_exception` and `strftime_now`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: SpecialTokens,
}

impl ChatTemplate {
    /// The template in `chat_template.jinja` or else in `tokenizer_config.json` (a text, or a list of named ones, of
    /// which `default` is taken); `None` when the model has none.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        let tokens = SpecialTokens::from_folder(folder)?;
        let path = folder.join("chat_template.jinja");
        if path.is_file() {
            let source = fs::read_to_string(&path).map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot read {}: {error}", path.display())).with_source(error)
            })?;
            return Self::new(source, tokens).map(Some);
        }
        let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        match configured_template(&config) {
            Some(source) => Self::new(source.to_owned(), tokens).map(Some),
            None => Ok(None),
        }
    }

    /// Compiles a template's text.
    ///
    /// # Errors
    /// `UnsupportedModel` when it uses what this engine does not know; the message has the line.
    pub fn new(source: String, tokens: SpecialTokens) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", json::to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(TemplateErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(TEMPLATE, without_generation_tags(&source)).map_err(|error| {
            Error::unsupported(format!(
                "the model's chat template is not understood ({error:#}); use /v1/completions, or edit the template"
            ))
            .with_source(error)
        })?;
        Ok(Self { environment, tokens })
    }

    /// The prompt text of `messages`. With `add_generation_prompt` it ends where the assistant's answer begins.
    /// `today` is what a template is told when it asks for the date.
    ///
    /// The text already holds the model's BOS where the template wants one: encode it without adding another.
    ///
    /// # Errors
    /// `InvalidInput` when the template refuses the messages, with its reason.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool, today: Date) -> Result<String> {
        let refused = |error: minijinja::Error| {
            let reason = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            Error::invalid_input(format!("the model's chat template refuses these messages: {reason}"))
                .with_source(error)
        };
        let template = self.environment.get_template(TEMPLATE).map_err(refused)?;
        let strftime = Value::from_function(move |format: String| today.format(&format));
        // Absent tokens stay undefined, as transformers leaves them.
        let token = |text: &Option<String>| text.clone().map_or(Value::UNDEFINED, Value::from);
        let values = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            tools => Value::from(()),
            documents => Value::from(()),
            bos_token => token(&self.tokens.bos),
            eos_token => token(&self.tokens.eos),
            unk_token => token(&self.tokens.unk),
            pad_token => token(&self.tokens.pad),
            strftime_now => strftime,
        };
        template.render(values).map_err(refused)
    }
}

fn configured_template(config: &serde_json::Value) -> Option<&str> {
    let value = config.get("chat_template")?;
    if let Some(source) = value.as_str() {
        return Some(source);
    }
    let named = value.as_array()?;
    let default = named.iter().find(|entry| entry.get("name").and_then(|name| name.as_str()) == Some("default"));
    default.or_else(|| named.first())?.get("template")?.as_str()
}

/// transformers marks the assistant's text with `{% generation %}` blocks, for training. They render what they hold,
/// as a block that is always taken does.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + length + 2];
        text.push_str(&rest[..start]);
        match tag.trim_matches(['{', '%', '}', '-', '+']).trim() {
            name @ ("generation" | "endgeneration") => {
                text.push_str(&tag.replace(name, if name == "generation" { "if true" } else { "endif" }));
            }
            _ => text.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    text.push_str(rest);
    text
}
