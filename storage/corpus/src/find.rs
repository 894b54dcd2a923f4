//! Searches, from a question's text to passages in the own tokenizer's ids.

use std::collections::HashMap;

use super::candidates::{StoredHit, told};
use super::composed::composed;
use super::search::{self, Outcome, Searched, Took};
use super::table::Collection;
use super::{Corpus, Hit, SearchMode, SearchOptions};
use crate::Result;
use ragstone_env::Stopwatch;

impl Corpus {
    /// The passages that answer `query` best, best first, ties by document and place; each text once.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection. An empty collection and an empty query have no hits.
    pub async fn search(&self, collection: &str, query: &str, options: &SearchOptions) -> Result<Vec<Hit>> {
        Ok(self.search_in_stages(collection, query, options, false, &mut |_| {}).await?.hits)
    }

    /// As [`search`](Self::search), with the same hits, and whether any of them is about the query. Where the collection has a vector index, `provisional` is told what is best
    /// so far whenever a search of fewer cells has ended, before the last one has (RAGCache, section 5.3).
    ///
    /// # Errors
    /// As [`search`](Self::search)'s.
    pub async fn search_in_stages(
        &self,
        collection: &str,
        query: &str,
        options: &SearchOptions,
        staged: bool,
        provisional: &mut (dyn FnMut(Vec<Hit>) + Send),
    ) -> Result<Searched> {
        let table = self.find(collection).await?;
        // As keyboards write it, from wherever it was copied.
        let composed = composed(query);
        if composed.trim().is_empty() || options.top_k == 0 {
            return Ok(Searched::default());
        }
        let asked = Stopwatch::start();
        let (vector, options) = &self.prepare(&table, &composed, options).await?;
        let embedding_ms = asked.elapsed_ms();
        let (vector, env, own) = (vector.clone(), &self.inner.options.env, self.encoder().tokenizer_identity());
        let started = Stopwatch::start();
        let (mended, again) = (table.broken.times_mended(), vector.clone());
        let found = match vector {
            Some(vector) if staged && options.mode == SearchMode::Fused && table.has_vector_index().await? => {
                let mut stage = |found: Vec<StoredHit>| {
                    // Whoever changed the tokenizer waits for the end.
                    if found.iter().all(|hit| hit.stored.tokenizer == own) {
                        provisional(found.into_iter().map(StoredHit::into_hit).collect());
                    }
                };
                search::in_stages(&table, query, vector, options, env, &mut stage).await
            }
            vector => search::search(&table, query, vector, options, env).await,
        };
        let found = match found {
            Err(_) if self.mend(&table, mended).await => search::search(&table, query, again, options, env).await,
            found => found,
        };
        let search_ms = started.elapsed_ms();
        let Outcome { hits, is_relevant, best_similarity, took } = found?;
        let (best_similarity, took) = (best_similarity.map(told), Took { embedding_ms, ..took });
        Ok(Searched { hits: self.hits(collection, hits).await?, is_relevant, best_similarity, search_ms, took })
    }

    /// The query's vector, where one is needed, and how to search: by words alone where the collection's embedding model cannot be loaded.
    async fn prepare(
        &self,
        table: &Collection,
        query: &str,
        options: &SearchOptions,
    ) -> Result<(Option<Vec<f32>>, SearchOptions)> {
        match &table.embedder {
            // Of words with a bound the vectors are compared, too.
            Some(embedder) if options.mode != SearchMode::FullText || options.min_similarity.is_some() => {
                Ok((Some(self.embed_query(embedder, query).await?), options.clone()))
            }
            _ => Ok((None, SearchOptions { mode: SearchMode::FullText, ..options.clone() })),
        }
    }

    /// What is not what was stored is left out: whoever asks is not told another text than somebody added.
    async fn hits(&self, collection: &str, mut found: Vec<StoredHit>) -> Result<Vec<Hit>> {
        found.retain(|hit| {
            let is_intact = hit.stored.is_intact();
            if !is_intact {
                self.inner.damaged.note_passage(collection, &hit.stored.passage.document_id);
            }
            is_intact
        });
        keep_newest(&mut found);
        let rest = |hit: StoredHit| (hit.stored, (hit.score, hit.similarity, hit.also_in));
        let (stored, rest): (Vec<_>, Vec<_>) = found.into_iter().map(rest).unzip();
        let passages = self.with_own_tokens(stored).await?;
        let told = passages.into_iter().zip(rest).map(|(passage, (score, similarity, also_in))| {
            let similarity: Option<f32> = similarity;
            Hit { passage, score, similarity: similarity.map(told), also_in }
        });
        Ok(told.collect())
    }
}

/// Of a document that two nodes have just added, the later one's rows count until the others are gone.
fn keep_newest(found: &mut Vec<StoredHit>) {
    let mut newest: HashMap<String, u64> = HashMap::new();
    for hit in found.iter() {
        let generation = newest.entry(hit.stored.passage.document_id.clone()).or_default();
        *generation = (*generation).max(hit.stored.generation);
    }
    found.retain(|hit| {
        newest.get(&hit.stored.passage.document_id).is_none_or(|newest| hit.stored.generation == *newest)
    });
}
