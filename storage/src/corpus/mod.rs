//! Keeps the documents: passages with their embeddings and token ids, in LanceDB, one table a collection.
//!
//! The corpus is the only primary data of ragstone; everything in the KV store can be computed again from it. A document
//! is cut into passages once, when it is ingested; each passage is embedded and tokenized then and never again.
//!
//! All functions that touch the disk are `async` and must be awaited on a multi-thread tokio runtime: LanceDB's plans
//! spawn tasks that wait for each other. Work that binds the processor (embedding, tokenizing) runs on that runtime's
//! blocking threads.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// What the corpus needs of the models: vectors from the embedding model, token ids from the language model.
///
/// The calls block and bind the processor; the corpus makes them on blocking threads.
pub trait PassageEncoder: Send + Sync {
    /// One vector of [`dimension`](Self::dimension) numbers of unit length for each text.
    fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>>;
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
}

/// How a corpus is built.
#[derive(Debug, Clone)]
pub struct CorpusOptions {
    /// The greatest length of a passage, in tokens of the embedding model.
    pub chunk_tokens: usize,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        Self { chunk_tokens: 256 }
    }
}

/// A document as a caller gives it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Who it is. Without one, the document is known by its source, or by its title and text where it has no source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default)]
    pub title: String,
    pub text: String,
    /// Where it came from: a path or an address, for citations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// A piece of a document, as it is found and put into a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// In the vocabulary of the encoder's tokenizer.
    #[serde(skip)]
    pub token_ids: Arc<[u32]>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Which of the two searches to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMode {
    /// Cosine similarity of embeddings.
    Vector,
    /// BM25 over the words.
    FullText,
    /// Both, fused.
    #[default]
    Fused,
}

/// How to search.
#[derive(Debug, Clone)]
pub struct SearchOptions {
    /// How many hits at most.
    pub top_k: usize,
    pub mode: SearchMode,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self { top_k: 5, mode: SearchMode::Fused }
    }
}

/// A passage found, with its score: cosine similarity, BM25, or the fused score, by mode. Greater is better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    pub passage: Passage,
    pub score: f32,
}

/// What an upsert changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpsertReport {
    pub documents_added: usize,
    pub documents_unchanged: usize,
    pub documents_replaced: usize,
    /// Documents without a word: nothing to find, so nothing is kept (an older version with words is removed).
    pub documents_empty: usize,
    pub passages_added: usize,
    pub passages_removed: usize,
}

/// How far an upsert is. What it counts as done is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UpsertProgress {
    pub documents_done: usize,
    pub documents_total: usize,
    pub passages_added: usize,
}

/// A collection's size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollectionInfo {
    pub name: String,
    pub documents: usize,
    pub passages: usize,
}

/// A stored document, without its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DocumentInfo {
    pub id: String,
    pub title: String,
    pub source: Option<String>,
    pub passages: usize,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// A stored document with its passages in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredDocument {
    #[serde(flatten)]
    pub info: DocumentInfo,
    pub passages: Vec<Passage>,
}

/// Counters since the corpus was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CorpusCounters {
    /// Passages that were tokenized again on read, because their ids belonged to another tokenizer.
    pub passages_retokenized: u64,
    /// Texts (passages and questions) that went through the embedding model.
    pub texts_embedded: u64,
}

/// The corpus of one data folder. Clones share it.
#[derive(Clone)]
pub struct Corpus {}

fn not_built<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Internal, "the corpus is not built yet"))
}

impl Corpus {
    /// Opens the corpus in `dir`, which is created where it is missing.
    ///
    /// # Errors
    /// `Incompatible` where a collection was built with another embedding model; the message says what to do.
    pub async fn open(_dir: &Path, _encoder: Arc<dyn PassageEncoder>, _options: CorpusOptions) -> Result<Self> {
        not_built()
    }

    /// Adds `documents` to `collection`, which is created where it is missing. See [`Document::id`] for identity.
    ///
    /// A document whose content is already there is left alone and nothing of it is embedded. One whose content changed
    /// replaces all passages of the older version in one commit. Of two documents with one identity the later wins. On
    /// return, and for what `progress` reports as done, the change is on disk.
    pub async fn upsert(
        &self,
        _collection: &str,
        _documents: Vec<Document>,
        _progress: &(dyn Fn(UpsertProgress) + Send + Sync),
    ) -> Result<UpsertReport> {
        not_built()
    }

    /// Removes a document; how many passages went. 0 where there was none.
    pub async fn delete(&self, _collection: &str, _document_id: &str) -> Result<usize> {
        not_built()
    }

    /// Removes a collection; how many passages went. `NotFound` where there was none.
    pub async fn delete_collection(&self, _collection: &str) -> Result<usize> {
        not_built()
    }

    /// All collections by name.
    pub async fn collections(&self) -> Result<Vec<CollectionInfo>> {
        not_built()
    }

    /// Documents `offset..offset + limit` of a collection, ordered by id.
    pub async fn documents(&self, _collection: &str, _offset: usize, _limit: usize) -> Result<Vec<DocumentInfo>> {
        not_built()
    }

    /// One document with its passages. `NotFound` where there is none.
    pub async fn document(&self, _collection: &str, _document_id: &str) -> Result<StoredDocument> {
        not_built()
    }

    /// The passages that answer `query` best, best first, ties by id; each content once.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection. An empty collection, or a query without words, has no hits.
    pub async fn search(&self, _collection: &str, _query: &str, _options: &SearchOptions) -> Result<Vec<Hit>> {
        not_built()
    }

    /// Counters since the start.
    pub fn counters(&self) -> CorpusCounters {
        CorpusCounters::default()
    }
}
