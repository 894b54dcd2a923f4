//! The retrieval worker: embeds the question and searches the corpus.

use std::future::Future;
use std::sync::Arc;

use ragstone_corpus::{Corpus, Filter, Hit, SearchMode, SearchOptions, Searched};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::admission::caller::Caller;
use crate::admission::turns::Turns;
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
    /// Turns at the processors: a search keeps its own whether somebody waits for it or not.
    pub processors: Turns,
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
    /// Which documents may be found; `None`: all.
    pub filter: Option<Filter>,
    /// What is less similar is left out; `None`: nothing is.
    pub min_similarity: Option<f32>,
    /// Who asks.
    pub caller: Caller,
    /// Who is told what is best so far, at the end of each stage; `None` searches without stages.
    pub stages: Option<mpsc::UnboundedSender<Vec<Hit>>>,
}

/// What a search found.
#[derive(Debug)]
pub struct Retrieved {
    /// Best first.
    pub hits: Vec<Hit>,
    /// What it took without embedding the query, in milliseconds.
    pub search_ms: f64,
    /// The collection's embedding model cannot be loaded.
    pub words_only: bool,
    /// Whether any passage is about the query; `None` where that cannot be told.
    pub is_relevant: Option<bool>,
    /// The greatest similarity of any passage that was looked at.
    pub best_similarity: Option<f32>,
}

impl Service for Retriever {
    const NAME: &'static str = "retrieval";
    // While it waits for its turn; see `in_turn`.
    const ENDS_WITH_CALLER: bool = true;
    type Request = Search;
    type Reply = Retrieved;

    async fn handle(self: Arc<Self>, search: Search) -> Result<Retrieved> {
        let corpus = self.corpus.clone();
        let found = in_turn((&self.processors, search.caller), &self.runtime, async move {
            let options = SearchOptions {
                top_k: search.top_k,
                mode: SearchMode::Fused,
                filter: search.filter,
                min_similarity: search.min_similarity,
            };
            let (query, is_staged) = (beginning(&search.query), search.stages.is_some());
            let mut stage = |hits: Vec<Hit>| {
                // Whoever has left waits for the result, or for nothing.
                drop(search.stages.as_ref().map(|stages| stages.send(hits)));
            };
            let words_only = corpus.built_with(&search.collection).await?.words_only;
            let found = corpus.search_in_stages(&search.collection, query, &options, is_staged, &mut stage).await;
            found.map(|Searched { hits, search_ms, is_relevant, best_similarity, .. }| Retrieved {
                hits,
                search_ms,
                words_only,
                is_relevant,
                best_similarity,
            })
        });
        found.await?
    }
}

/// Runs `work` on `runtime` when one of `turns` is free. Dropped before that, it never begins; dropped later, the work goes on and
/// keeps its turn to its end: it embeds on a blocking thread, which nobody can end, and clients that hang up must not be able to
/// queue embeddings without bound.
async fn in_turn<T: Send + 'static>(
    (turns, caller): (&Turns, Caller),
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let turn = turns.take(caller).await;
    let work = async move {
        let done = work.await;
        drop(turn);
        done
    };
    let task = runtime.spawn(work.in_current_span());
    task.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Error::new(ErrorKind::Cancelled, "the service is shutting down"),
    })
}

/// As much of a question as is searched for.
pub(crate) fn beginning(query: &str) -> &str {
    &query[..query.floor_char_boundary(MAX_QUERY_BYTES)]
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_query_is_cut_between_characters() {
        assert_eq!(beginning("é"), "é");
        assert_eq!(beginning(&"é".repeat(MAX_QUERY_BYTES)).len(), MAX_QUERY_BYTES);
        assert_eq!(beginning(&format!("a{}", "é".repeat(MAX_QUERY_BYTES))).len(), MAX_QUERY_BYTES - 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_left_before_its_turn_never_begins_and_later_keeps_its_turn() {
        let (turns, runtime, caller) = (Turns::new(1, Env::system()), Handle::current(), Caller::default());
        let (begun, has_begun) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let mut first = Box::pin(in_turn((&turns, caller), &runtime, async move {
            begun.send(()).unwrap();
            drop(ended.await);
        }));
        assert!(futures::poll!(first.as_mut()).is_pending());
        has_begun.await.unwrap();
        drop(first);
        // It goes on in its turn.
        let mut second = Box::pin(in_turn((&turns, caller), &runtime, async { unreachable!("nobody waits for it") }));
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(second);
        end.send(()).unwrap();
        assert_eq!(in_turn((&turns, caller), &runtime, async { 3 }).await.unwrap(), 3);
    }
}
