//! `/v1/collections…`: documents in and out, search, ingest.

use std::path::PathBuf;

use ragstone_actors::MinSimilarity;
use ragstone_actors::upkeep::library::{Removed, Withdrawn};
use ragstone_corpus::{
    CollectionInfo, DocumentInfo, Filter, Hit, Metadata, Passage, SearchMode, StoredDocument, UpsertReport,
};
use ragstone_documents::{Document, RecordFields};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{List, ListObject, is_false};
use crate::error::{Error, Result};

/// Where documents go that nobody says a collection of.
pub const DEFAULT_COLLECTION: &str = "default";
/// Collections that are named where none was.
const MOST_NAMED: usize = 10;

/// The collection that is meant where none is named: the usual one where it is there, else the only one.
///
/// # Errors
/// `InvalidInput` where there are several, with their names.
pub fn default_collection(there: &List<CollectionInfo>) -> Result<String> {
    let names: Vec<&str> = there.data.iter().map(|collection| collection.name.as_str()).collect();
    match &names[..] {
        [only] => Ok((*only).to_owned()),
        // What asks for it says that there is none.
        [] => Ok(DEFAULT_COLLECTION.to_owned()),
        _ if names.contains(&DEFAULT_COLLECTION) => Ok(DEFAULT_COLLECTION.to_owned()),
        _ => {
            let more = match names.len().saturating_sub(MOST_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named: Vec<String> = names.iter().take(MOST_NAMED).map(|name| format!("`{name}`")).collect();
            let message = format!(
                "there are several collections: name one (on the command line by --collection): {}{more}",
                named.join(", ")
            );
            Err(Error::invalid_field("collection", message))
        }
    }
}

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

/// How something is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeleteQuery {
    /// Answer once its bytes have left every file, too. For the owner and admins' keys: all that was deleted by then leaves with it.
    pub now: bool,
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
    /// Of a file: what is no text or not meant to be read, such as menus, page heads, hidden text and columns of bytes, and was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// What is told of a file beside its bytes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FileQuery {
    /// A JSON object that is noted with every document of the file, as [`Ingest::metadata`].
    pub metadata: Option<String>,
    /// A JSON object, as [`Ingest::fields`].
    pub fields: Option<String>,
    /// When the file was changed last.
    pub changed_unix_ms: Option<u64>,
}

/// A document with its passages in order.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WholeDocument {
    pub id: String,
    pub title: String,
    pub source: Option<String>,
    pub metadata: Metadata,
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
    /// At most so many passages, 1 to 1000, and 4 MiB; the setting's, where nothing is said.
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
    /// Whether the query's `path:`, `folder:`, `file:`, `name:`, `after:` and `before:` are filters.
    #[serde(default, skip_serializing_if = "is_false")]
    pub qualifiers: bool,
    /// How similar a passage must be to the query; the setting's, where nothing is said. A number leaves out what is less similar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_similarity: Option<MinSimilarity>,
}

/// A query without its qualifiers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReadAs {
    pub query: String,
    /// Those of the request included.
    pub filter: Filter,
}

/// What a search found, best first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FoundPassages {
    #[serde(default)]
    pub object: ListObject,
    pub data: Vec<Hit>,
    /// No passage is about the query: `data` has the nearest ones, if any. Absent where one is, and where that cannot be told.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nothing_found: bool,
    /// What was searched for and among which documents, where the query had qualifiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_as: Option<ReadAs>,
    /// Words alone were searched: the collection was built with an embedding model that cannot be loaded, and is not embedded again yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub words_only: bool,
}

/// Files and folders of the service's machine, and addresses.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Ingest {
    /// Absolute; or addresses, which the service fetches: `https://…` (a page, and what is below its folder; a feed; a file), and repositories
    /// (`https://….git`, `git@host:owner/name`, `git+ssh://…`), and buckets (`s3://bucket/prefix`).
    pub paths: Vec<PathBuf>,
    /// Remove documents of files that were in these folders and are gone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prune: bool,
    /// Of the files that are found, read these alone: the others are known to be as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<PathBuf>>,
    /// What is noted with every document, beside what its file says of itself, before which it counts: texts, numbers, true, false, or lists of
    /// these; at most 32 entries and 2 KiB.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Which fields of records (of JSON, CSV, Parquet and Arrow) are their documents' text, title and id.
    #[serde(default, skip_serializing_if = "RecordFields::is_empty")]
    pub fields: RecordFields,
    /// Pages of a site, at most (1,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<usize>,
    /// Links from the page that was named, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_no_collection_means_the_usual_or_the_only_one() {
        let there = |names: &[&str]| {
            let info =
                |name: &&str| CollectionInfo { name: (*name).to_owned(), documents: 1, passages: 1, damaged: None };
            default_collection(&List::from(names.iter().map(info).collect::<Vec<_>>()))
        };
        for (names, meant) in [(&[][..], "default"), (&["notes"], "notes"), (&["a", "default"], "default")] {
            assert_eq!(there(names).unwrap(), meant, "{names:?}");
        }
        let error = there(&["a", "b"]).unwrap_err();
        assert_eq!(error.at_field(), Some("collection"));
        assert!(error.to_string().ends_with("by --collection): `a`, `b`"), "{error}");
        let many: Vec<String> = (0..12).map(|number| format!("c{number}")).collect();
        let error = there(&many.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(error.ends_with("`c9` and 2 more"), "{error}");
    }
}
