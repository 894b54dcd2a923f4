//! The retrieval worker: embeds the question and searches the corpus.

use std::sync::Arc;

use ragstone_storage::corpus::{Corpus, Hit, SearchMode, SearchOptions};
use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind, Result};
use crate::worker::Service;

/// Bytes of a query that are searched for. The embedding model reads 256 tokens, and every word more is a look-up more.
pub const MAX_QUERY_BYTES: usize = 8 << 10;

/// Searches on `runtime`: LanceDB's plans want a multi-thread runtime, and an arbiter is a single-thread one.
pub struct Retriever {
    /// Where to search.
    pub corpus: Corpus,
    /// Where LanceDB's futures run.
    pub runtime: Handle,
}

/// One search.
#[derive(Debug)]
pub struct Search {
    /// The collection to search.
    pub collection: String,
    /// The question in the user's words; what is behind [`MAX_QUERY_BYTES`] is not searched for.
    pub query: String,
    /// How many passages.
    pub top_k: usize,
}

impl Service for Retriever {
    const NAME: &'static str = "retrieval";
    // A question is embedded on a blocking thread, which nobody can end. Were its place free when its caller leaves, clients that
    // hang up would queue embeddings without bound.
    const ENDS_WITH_CALLER: bool = false;
    type Request = Search;
    type Reply = Vec<Hit>;

    async fn handle(self: Arc<Self>, search: Search) -> Result<Vec<Hit>> {
        let corpus = self.corpus.clone();
        let task = self.runtime.spawn(async move {
            let options = SearchOptions { top_k: search.top_k, mode: SearchMode::Fused };
            corpus.search(&search.collection, beginning(&search.query), &options).await
        });
        // Dropped before the answer (deadline, panic elsewhere): the search must not run on.
        let mut task = AbortOnDrop(task);
        match (&mut task.0).await {
            Ok(hits) => Ok(hits?),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
        }
    }
}

fn beginning(query: &str) -> &str {
    &query[..query.floor_char_boundary(MAX_QUERY_BYTES)]
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_cut_between_characters() {
        assert_eq!(beginning("é"), "é");
        assert_eq!(beginning(&"é".repeat(MAX_QUERY_BYTES)).len(), MAX_QUERY_BYTES);
        assert_eq!(beginning(&format!("a{}", "é".repeat(MAX_QUERY_BYTES))).len(), MAX_QUERY_BYTES - 1);
    }
}
