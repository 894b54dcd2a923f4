//! The tools: what each is called, what it takes, and what it answers, for a model to read (`content`) and for a program
//! (`structuredContent`).

use ragstone_actors::Citation;
use ragstone_corpus::Hit;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Progress;
use crate::api::collections::default_collection;
use crate::client::routes::{Request, Routes};
use crate::error::{Error, Result};

mod add;
mod ask;
mod definitions;
mod search;
mod status;

pub use definitions::all;

/// Of a search: what more of them would take of a model's context is worth less than the next search.
const MAX_TOP_K: u64 = 50;
/// Of a question over the local model's context.
const MAX_PASSAGES: u64 = 20;
const MAX_QUERY_CHARACTERS: usize = 2000;
const MAX_TEXT_CHARACTERS: usize = 1_000_000;
const MAX_TITLE_CHARACTERS: usize = 500;
/// As the corpus bounds it.
const MAX_ID_BYTES: usize = 1024;
const MAX_ANSWER_TOKENS: u64 = 4096;

/// A call whose arguments were read.
#[derive(Debug)]
pub enum Call {
    Search(search::Arguments),
    Ask(ask::Arguments),
    Add(add::Arguments),
    Status,
}

impl Call {
    /// The call of the tool `name`; `None` where there is no such tool.
    pub fn read(name: &str, arguments: JsonObject) -> Option<Result<Self>> {
        Some(match name {
            "search" => read(name, arguments).and_then(search::Arguments::checked).map(Self::Search),
            "ask" => read(name, arguments).and_then(ask::Arguments::checked).map(Self::Ask),
            "add" => read(name, arguments).and_then(add::Arguments::checked).map(Self::Add),
            "status" => read::<Nothing>(name, arguments).map(|_| Self::Status),
            _ => return None,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn read<T: DeserializeOwned>(tool: &str, arguments: JsonObject) -> Result<T> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        Error::invalid_input(format!(
            "the arguments of `{tool}` cannot be read: {error}; call it as its input schema says"
        ))
    })
}

/// Does what a call asks for.
///
/// # Errors
/// Those of the path that does it.
pub async fn run(routes: &dyn Routes, call: Call, progress: Option<Progress>) -> Result<CallToolResult> {
    match call {
        Call::Search(arguments) => search::run(routes, arguments).await,
        Call::Ask(arguments) => ask::run(routes, arguments, progress).await,
        Call::Add(arguments) => add::run(routes, arguments).await,
        Call::Status => status::run(routes).await,
    }
}

/// A result for a model and for a program.
fn result(text: String, structured: impl Serialize) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    // Results are structs with text for keys, which become JSON.
    result.structured_content = serde_json::to_value(structured).ok();
    result
}

/// A text within its bounds.
fn check_text(name: &str, text: &str, most: usize) -> Result<()> {
    let count = text.chars().count();
    if text.trim().is_empty() {
        return Err(Error::invalid_field(name, format!("`{name}` is empty; write some text")));
    }
    if count > most {
        return Err(Error::invalid_field(name, format!("`{name}` has {count} characters; use at most {most}")));
    }
    Ok(())
}

/// A number within its bounds, where it is given.
fn check_number(name: &str, number: Option<u64>, most: u64) -> Result<()> {
    match number {
        Some(number) if !(1..=most).contains(&number) => {
            Err(Error::invalid_field(name, format!("`{name}` is {number}; use 1 to {most}")))
        }
        _ => Ok(()),
    }
}

/// The collection that a call names, if it names one. What may be in a name the corpus checks; here it must only lead nowhere else.
fn collection(given: Option<String>) -> Result<Option<String>> {
    match given {
        Some(name) if matches!(name.as_str(), "" | "." | "..") || name.len() > MAX_ID_BYTES => {
            Err(Error::invalid_field("collection", "`collection` names none; `status` lists those that are there"))
        }
        given => Ok(given),
    }
}

/// The collection that a call looks into: where it names none, the one that [`default_collection`] finds among those that its caller may see.
async fn looked_into(routes: &dyn Routes, given: Option<String>) -> Result<String> {
    match given {
        Some(name) => Ok(name),
        None => default_collection(&routes.send(Request::get(&["v1", "collections"])).await?.json().await?),
    }
}

/// What is added to the name of several.
fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A passage of a search or a citation, with what leads to its document.
#[derive(Debug, Clone, Serialize)]
struct Passage {
    /// Its place, from 1.
    number: usize,
    /// Empty where it is of no document.
    document: String,
    title: String,
    source: Option<String>,
    /// The page that it begins on, where its document has pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<u32>,
    text: String,
    score: Option<f32>,
    /// Cosine similarity to the query, where vectors are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    similarity: Option<f32>,
    /// When its file was changed last, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<String>,
    /// The whole document, as a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
}

impl Passage {
    fn of_hit(collection: &str, number: usize, Hit { passage, score, similarity, also_in }: Hit) -> Self {
        let ragstone_corpus::Passage { document_id, title, source, page, text, metadata, .. } = passage;
        let (score, changed) = (Some(score), metadata.text("changed"));
        let citation = Citation { number, document_id, title, source, page, text, score, similarity, changed, also_in };
        Self::of_citation(collection, number, citation)
    }

    fn of_citation(collection: &str, number: usize, citation: Citation) -> Self {
        let Citation { document_id: document, title, source, page, text, score, similarity, changed, .. } = citation;
        let uri = (!document.is_empty()).then(|| super::resources::uri(collection, &document));
        Self { number, document, title, source, page, text, score, similarity, changed, uri }
    }

    /// How it is shown to a model: who it is; its text comes after it.
    fn heading(&self) -> String {
        let mut heading = format!("[{}]", self.number);
        if !self.title.is_empty() {
            heading.push_str(&format!(" {}", self.title));
        }
        if !self.document.is_empty() {
            heading.push_str(&format!(" (document `{}`", self.document));
            if let Some(source) = self.source.as_deref().filter(|source| !source.is_empty()) {
                heading.push_str(&format!(", from {source}"));
            }
            if let Some(page) = self.page {
                heading.push_str(&format!(", page {page}"));
            }
            heading.push(')');
        }
        heading
    }
}
