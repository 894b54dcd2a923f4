//! `/v1/rerank` and `/v2/rerank`, in the form that Jina, Cohere and vLLM share.

use ragstone_actors::{InlineDocument, Reuse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ListObject;

/// Documents to put in order. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RerankRequest {
    /// The cross-encoder's or the language model's name; whoever is configured, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub query: String,
    pub documents: Vec<RerankDocument>,
    /// Only so many of the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_n: Option<usize>,
    /// Whether results repeat their documents; they do where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_documents: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<RerankExtension>,
    /// Without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A text, or a title and a text.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RerankDocument {
    Text(String),
    Fields(InlineDocument),
}

/// `"ragstone": {…}` of a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RerankExtension {
    /// Whether stored KV may serve the language model.
    pub reuse: Reuse,
    /// Keeps this tenant's KV apart; a key's own where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Seconds this request may take; at most the configured deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<u64>,
}

/// Documents in the order of how well they answer the query.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Reranking {
    pub id: String,
    pub object: ListObject,
    pub model: String,
    pub results: Vec<RerankResult>,
    pub usage: RerankUsage,
}

/// A document's place.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RerankResult {
    /// Its place among those that were sent.
    pub index: usize,
    /// 0 to 1.
    pub relevance_score: f32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<InlineDocument>,
}

/// Tokens that were read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct RerankUsage {
    pub prompt_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: RerankTokens,
}

/// Of these, what was stored.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct RerankTokens {
    pub cached_tokens: u32,
}

/// Texts to score. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ScoreRequest {
    /// The cross-encoder's or the language model's name; whoever is configured, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A query, or as many as there are texts in `text_2`.
    pub text_1: Texts,
    /// What is read with it.
    pub text_2: Texts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<RerankExtension>,
    /// Without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A text, or several.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Texts {
    One(String),
    Many(Vec<String>),
}

/// A score for each pair, in their order.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Scores {
    pub id: String,
    pub object: ListObject,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    pub data: Vec<Score>,
    pub usage: RerankUsage,
}

/// A pair's score.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Score {
    pub index: usize,
    /// `score`
    pub object: String,
    /// 0 to 1.
    pub score: f32,
}
