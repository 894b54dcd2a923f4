//! `search`

use ragstone_actors::MinSimilarity;
use ragstone_corpus::Filter;
use rmcp::model::CallToolResult;
use serde::{Deserialize, Serialize};

use super::{
    MAX_QUERY_CHARACTERS, MAX_TOP_K, Passage, check_number, check_text, collection, looked_into, plural, result,
};
use crate::api::collections::{FoundPassages, Search};
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
    #[serde(default)]
    min_similarity: Option<MinSimilarity>,
    #[serde(default)]
    filter: Option<Filter>,
}

impl Arguments {
    pub fn checked(self) -> Result<Self> {
        check_text("query", &self.query, MAX_QUERY_CHARACTERS)?;
        check_number("top_k", self.top_k, MAX_TOP_K)?;
        Ok(Self { collection: collection(self.collection)?, ..self })
    }
}

pub async fn run(routes: &dyn Routes, arguments: Arguments) -> Result<CallToolResult> {
    let collection = looked_into(routes, arguments.collection).await?;
    let top_k = arguments.top_k.map(|count| count as usize);
    let Arguments { query, min_similarity, filter, .. } = arguments;
    let body = Search { query, top_k, min_similarity, filter, ..Search::default() };
    let path = ["v1", "collections", &collection, "search"];
    let found: FoundPassages = routes.send(Request::post(&path, body)).await?.json().await?;
    let nothing_found = found.nothing_found;
    let hits = found.data.into_iter().enumerate();
    let passages: Vec<Passage> = hits.map(|(index, hit)| Passage::of_hit(&collection, index + 1, hit)).collect();
    let text = shown(&collection, &passages, nothing_found);
    Ok(result(text, Found { collection, nothing_found, passages }))
}

/// What a program gets.
#[derive(Serialize)]
struct Found {
    collection: String,
    /// No passage is about the query; those that are there are the nearest.
    nothing_found: bool,
    passages: Vec<Passage>,
}

fn shown(collection: &str, passages: &[Passage], nothing_found: bool) -> String {
    if passages.is_empty() {
        return format!("No passage of collection `{collection}` fits.");
    }
    let (count, plural) = (passages.len(), plural(passages.len()));
    let mut text = match nothing_found {
        true => format!("No passage of collection `{collection}` seems to be about this. The nearest {count}:"),
        false => format!("{count} passage{plural} of collection `{collection}`, best first:"),
    };
    for passage in passages {
        text.push_str(&format!("\n\n{}\n{}", passage.heading(), passage.text.trim()));
    }
    text
}
