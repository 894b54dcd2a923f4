//! `add`

use ragstone_storage::corpus::Document;
use rmcp::model::CallToolResult;
use serde::Deserialize;
use serde_json::json;

use super::{MAX_ID_BYTES, MAX_TEXT_CHARACTERS, MAX_TITLE_CHARACTERS, check_text, collection, plural, result};
use crate::client::routes::{Request, Routes};
use crate::error::{Error, Result};
use crate::mcp::resources;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    text: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    collection: Option<String>,
}

impl Arguments {
    pub fn checked(self) -> Result<Self> {
        check_text("text", &self.text, MAX_TEXT_CHARACTERS)
            .map_err(|error| Error::param("text", format!("{error}; a long document goes in as several")))?;
        if let Some(title) = &self.title {
            check_text("title", title, MAX_TITLE_CHARACTERS)?;
        }
        if let Some(id) = &self.id {
            check_text("id", id, MAX_ID_BYTES)?;
        }
        Ok(Self { collection: Some(collection(self.collection)?), ..self })
    }
}

pub async fn run(routes: &dyn Routes, arguments: Arguments) -> Result<CallToolResult> {
    let collection = arguments.collection.unwrap_or_default();
    let document = Document {
        id: arguments.id,
        title: arguments.title.unwrap_or_default(),
        text: arguments.text,
        ..Document::default()
    };
    let id = document.identity().map_err(|error| Error::param("id", error.to_string()))?;
    let body = json!({ "documents": [document] });
    let report =
        routes.send(Request::post(&["v1", "collections", &collection, "documents"], body)).await?.json().await?;
    let outcomes = ["added", "replaced", "unchanged"];
    let outcome = outcomes.into_iter().find(|outcome| report[format!("documents_{outcome}")].as_u64() > Some(0));
    let outcome = outcome.unwrap_or("empty");
    let passages = report["passages_added"].as_u64().unwrap_or(0) as usize;
    let text = match outcome {
        "unchanged" => format!("Document `{id}` of collection `{collection}` says that already; nothing was changed."),
        "empty" => format!("The text has no words, and was not added to collection `{collection}`."),
        done => {
            format!("Document `{id}` was {done} in collection `{collection}`: {passages} passage{}.", plural(passages))
        }
    };
    let structured = json!({
        "collection": collection, "document": id, "uri": resources::uri(&collection, &id), "outcome": outcome,
        "passages_added": passages, "passages_removed": report["passages_removed"].as_u64().unwrap_or(0),
    });
    Ok(result(text, structured))
}
