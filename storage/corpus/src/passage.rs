//! Passages, and what makes them: the encoder of the two models.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Metadata, Unrelated};
use crate::Result;

/// What the corpus needs of the models: vectors from the embedding model, token ids from the language model.
///
/// The calls block and bind the processor; the corpus makes them on blocking threads.
pub trait PassageEncoder: Send + Sync {
    /// One vector of [`dimension`](Self::dimension) numbers of unit length for each passage.
    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>>;
    /// That of a question, which is near the vectors of what answers it.
    fn embed_query(&self, text: &str) -> Result<Vec<f32>>;
    /// The length of a vector.
    fn dimension(&self) -> usize;
    /// Names the embedding model and its weights. A corpus built with one identity is not searched with another.
    fn identity(&self) -> String;
    /// The token ids of a passage as it stands in a prompt, separators included, in the language model's vocabulary.
    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>>;
    /// Names the tokenizer and the passage's form in a prompt. Ids stored under another identity are made again on read.
    fn tokenizer_identity(&self) -> String;
    /// How many tokens of the embedding model `text` has, special tokens left out. Chunks are measured with it.
    fn count_tokens(&self, text: &str) -> usize;
    /// How alike unrelated texts are to the embedding model, where that is known: without it nobody can tell whether a passage is about a question.
    fn unrelated(&self) -> Option<Arc<Unrelated>> {
        None
    }
}

/// A piece of a document, as it is found and put into a prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Passage {
    /// 32 hex digits of a hash of title and text: the same content has the same id wherever it stands.
    pub id: String,
    pub document_id: String,
    pub collection: String,
    /// Its place among the document's passages, from 0.
    pub ordinal: u32,
    pub title: String,
    pub text: String,
    pub source: Option<String>,
    /// The page that it begins on, from 1, of documents that have pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// In the vocabulary of the encoder's tokenizer.
    #[serde(skip)]
    pub token_ids: Arc<[u32]>,
    pub metadata: Metadata,
}
