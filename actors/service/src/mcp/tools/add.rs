//! `add`

use ragstone_corpus::UpsertReport;
use ragstone_documents::Document;
use rmcp::model::CallToolResult;
use serde::{Deserialize, Serialize};

use super::{MAX_ID_BYTES, MAX_TEXT_CHARACTERS, MAX_TITLE_CHARACTERS, check_text, collection, plural, result};
use crate::api::collections::{DEFAULT_COLLECTION, Upsert, Upserted};
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
            .map_err(|error| Error::invalid_field("text", format!("{error}; a long document goes in as several")))?;
        if let Some(title) = &self.title {
            check_text("title", title, MAX_TITLE_CHARACTERS)?;
        }
        if let Some(id) = &self.id {
            check_text("id", id, MAX_ID_BYTES)?;
        }
        Ok(Self { collection: collection(self.collection)?, ..self })
    }
}

pub async fn run(routes: &dyn Routes, arguments: Arguments) -> Result<CallToolResult> {
    let collection = arguments.collection.unwrap_or_else(|| DEFAULT_COLLECTION.to_owned());
    let document = Document {
        id: arguments.id,
        title: arguments.title.unwrap_or_default(),
        text: arguments.text,
        ..Document::default()
    };
    let id = document.identity().map_err(|error| Error::invalid_field("id", error.to_string()))?;
    let body = Upsert { documents: vec![document] };
    let path = ["v1", "collections", &collection, "documents"];
    let Upserted { report, .. } = routes.send(Request::post(&path, body)).await?.json().await?;
    let outcome = match report {
        UpsertReport { documents_added: 1.., .. } => "added",
        UpsertReport { documents_replaced: 1.., .. } => "replaced",
        UpsertReport { documents_unchanged: 1.., .. } => "unchanged",
        _ => "empty",
    };
    let UpsertReport { passages_added, passages_removed, .. } = report;
    let text = match outcome {
        "unchanged" => format!("Document `{id}` of collection `{collection}` says that already; nothing was changed."),
        "empty" => format!("The text has no words, and was not added to collection `{collection}`."),
        done => {
            let plural = plural(passages_added);
            format!("Document `{id}` was {done} in collection `{collection}`: {passages_added} passage{plural}.")
        }
    };
    let uri = resources::uri(&collection, &id);
    Ok(result(text, Done { collection, document: id, uri, outcome, passages_added, passages_removed }))
}

/// What a program gets.
#[derive(Serialize)]
struct Done {
    collection: String,
    document: String,
    uri: String,
    outcome: &'static str,
    passages_added: usize,
    passages_removed: usize,
}
