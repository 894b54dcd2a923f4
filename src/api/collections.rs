//! `/v1/collections…`: documents in and out, search, ingest.

use std::path::PathBuf;

use ragstone_actors::library::{Removed, Withdrawn};
use ragstone_storage::corpus::{
    Document, DocumentInfo, Filter, Hit, Passage, SearchMode, StoredDocument, UpsertReport,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ListObject, is_false};

/// Which documents to list.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DocumentsQuery {
    /// So many are passed over.
    pub offset: usize,
    /// At most so many, 1000 at most.
    pub limit: usize,
}

impl Default for DocumentsQuery {
    fn default() -> Self {
        Self { offset: 0, limit: 100 }
    }
}

/// Documents to add or replace, 1000 at most.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Upsert {
    pub documents: Vec<Document>,
}

/// What an upsert did to the corpus, and what of the KV of texts that are not said any more.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Upserted {
    #[serde(flatten)]
    pub report: UpsertReport,
    #[serde(flatten)]
    pub kv: Withdrawn,
    /// Of a file: why nothing of it was added, or, where its other records were, what is wrong with those that were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_read: Option<String>,
}

/// A document with its passages in order.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WholeDocument {
    pub id: String,
    pub title: String,
    pub source: Option<String>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub passages: Vec<Passage>,
}

impl From<StoredDocument> for WholeDocument {
    fn from(StoredDocument { info, passages }: StoredDocument) -> Self {
        let DocumentInfo { id, title, source, passages: _, metadata } = info;
        Self { id, title, source, metadata, passages }
    }
}

/// A document or collection that left, with its KV.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Deleted {
    /// Of the document, or the collection's name.
    pub id: String,
    pub deleted: bool,
    #[serde(flatten)]
    pub removed: Removed,
}

/// What to look for.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Search {
    pub query: String,
    /// At most so many passages, 1 to 1000; the setting's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// By meaning, by words, or both; both where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SearchMode>,
    /// Passages that are found and put in order by the reranker, of which the best are answered; the setting's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerank: Option<usize>,
    /// Which documents may be found, by their metadata; all where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

/// What a search found, best first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FoundPassages {
    #[serde(default)]
    pub object: ListObject,
    pub data: Vec<Hit>,
    /// Words alone were searched: the collection was built with an embedding model that cannot be loaded, and is not embedded again yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub words_only: bool,
}

/// Files and folders of the service's machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Ingest {
    /// Absolute.
    pub paths: Vec<PathBuf>,
    /// Remove documents of files that were in these folders and are gone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prune: bool,
    /// Of the files that are found, read these alone: the others are known to be as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<PathBuf>>,
}
