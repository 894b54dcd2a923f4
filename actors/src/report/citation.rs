//! What an answer is told to stand beside: the passages of its prompt.

use ragstone_corpus::Elsewhere;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A passage that stood in the prompt.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Citation {
    /// From 1: what the request gave, in its order, then what was found, the best first.
    pub number: usize,
    /// Its document; empty for documents given inline.
    pub document_id: String,
    /// Its document's title.
    pub title: String,
    /// File or address it came from, where known.
    pub source: Option<String>,
    /// The page that it begins on, from 1, of documents that have pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// The passage itself.
    pub text: String,
    /// What the search scored it, or the reranker between 0 and 1 where there was one; `None` for documents given inline.
    pub score: Option<f32>,
    /// Cosine similarity to the question, from -1 to 1; absent of documents given inline, and where vectors are not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub similarity: Option<f32>,
    /// When its document's file was changed last, as ISO 8601 writes it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
    /// Other documents and places where the search found the same text, which stands in the prompt once; 8 at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_in: Vec<Elsewhere>,
}
