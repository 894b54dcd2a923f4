//! `search`

use rmcp::model::CallToolResult;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MAX_QUERY_CHARACTERS, MAX_TOP_K, check_number, check_text, collection, heading, passage, plural, result};
use crate::client::routes::{Request, Routes};
use crate::error::Result;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    query: String,
    #[serde(default)]
    collection: Option<String>,
    #[serde(default)]
    top_k: Option<u64>,
}

impl Arguments {
    pub fn checked(self) -> Result<Self> {
        check_text("query", &self.query, MAX_QUERY_CHARACTERS)?;
        check_number("top_k", self.top_k, MAX_TOP_K)?;
        Ok(Self { collection: Some(collection(self.collection)?), ..self })
    }
}

pub async fn run(routes: &dyn Routes, arguments: Arguments) -> Result<CallToolResult> {
    let collection = arguments.collection.unwrap_or_default();
    let body = json!({ "query": arguments.query, "top_k": arguments.top_k });
    let found = routes.send(Request::post(&["v1", "collections", &collection, "search"], body)).await?.json().await?;
    let hits = found["data"].as_array().into_iter().flatten().enumerate();
    let passages: Vec<Value> =
        hits.map(|(index, hit)| passage(&collection, index + 1, &hit["passage"], &hit["score"])).collect();
    Ok(result(shown(&collection, &passages), json!({ "collection": collection, "passages": passages })))
}

fn shown(collection: &str, passages: &[Value]) -> String {
    if passages.is_empty() {
        return format!("No passage of collection `{collection}` fits.");
    }
    let mut text =
        format!("{} passage{} of collection `{collection}`, best first:", passages.len(), plural(passages.len()));
    for (index, passage) in passages.iter().enumerate() {
        let (heading, words) = (heading(index + 1, passage), passage["text"].as_str().unwrap_or_default());
        text.push_str(&format!("\n\n{heading}\n{}", words.trim()));
    }
    text
}
