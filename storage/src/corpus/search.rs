//! Finds passages: by meaning, by words, and by both.

use std::collections::{HashMap, HashSet};

use lancedb::DistanceType;
use lancedb::index::scalar::FullTextSearchQuery;
use lancedb::query::{QueryBase, Select};
use serde::{Deserialize, Serialize};

use super::Passage;
use super::disk::failed;
use super::fusion::{Ranking, fuse};
use super::schema::{PASSAGE_COLUMNS, StoredPassage, decode, scores};
use super::table::{Collection, Snapshot};
use crate::Result;

/// Each search gives this many candidates for a wanted hit, and at least [`MIN_CANDIDATES`]: one that is far down in one
/// ranking can still come out on top when the other has it first, and equal contents are given once. A constant number for
/// up to 50 hits also means that asking for more of them changes nothing about the first.
const CANDIDATES_PER_HIT: usize = 2;
const MIN_CANDIDATES: usize = 100;
/// Cells of the vector index that are searched, so that about 32,000 passages are compared at most.
const PROBES: usize = 32;

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

/// A hit as it was stored: its token ids may be another tokenizer's.
pub(super) struct StoredHit {
    pub stored: StoredPassage,
    pub score: f32,
}

/// What the two searches found, each passage once, and each search's ranking of it.
#[derive(Default)]
struct Candidates {
    passages: Vec<StoredPassage>,
    at: HashMap<(String, u32), usize>,
}

/// The best passages for `query`, whose embedding is `vector`; needed unless the mode is full-text.
pub(super) async fn search(
    collection: &Collection,
    query: &str,
    vector: Option<Vec<f32>>,
    options: &SearchOptions,
) -> Result<Vec<StoredHit>> {
    let depth = options.top_k.saturating_mul(CANDIDATES_PER_HIT).max(MIN_CANDIDATES);
    let snapshot = collection.snapshot().await?;
    let by_vector = async {
        match vector {
            Some(vector) if options.mode != SearchMode::FullText => nearest(collection, &snapshot, vector, depth).await,
            _ => Ok(Vec::new()),
        }
    };
    let by_text = async {
        match options.mode {
            SearchMode::Vector => Ok(Vec::new()),
            _ => matching(collection, &snapshot, query, depth).await,
        }
    };
    let (by_vector, by_text) = futures::try_join!(by_vector, by_text)?;
    let mut candidates = Candidates::default();
    let by_vector = candidates.rank(by_vector, depth);
    let by_text = candidates.rank(by_text, depth);
    let scores = match options.mode {
        SearchMode::Vector => alone(&by_vector),
        SearchMode::FullText => alone(&by_text),
        SearchMode::Fused => fuse(&by_vector, &by_text, candidates.passages.len()),
    };
    Ok(candidates.best(&scores, options.top_k))
}

/// Passages by cosine similarity.
async fn nearest(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    vector: Vec<f32>,
    depth: usize,
) -> Result<Vec<(StoredPassage, f32)>> {
    let failed = || failed(format!("search the vectors of collection `{}`", collection.name));
    let query = snapshot.table.query().nearest_to(vector).map_err(failed())?;
    let query = query.column("vector").distance_type(DistanceType::Cosine).nprobes(PROBES).map_err(failed())?;
    let query = query.limit(depth).select(columns("_distance"));
    let mut found = Vec::new();
    for batch in collection.run(query).await? {
        let similarities = scores(&batch, "_distance")?.into_iter().map(|distance| 1.0 - distance);
        found.extend(decode(&batch, &collection.name)?.into_iter().zip(similarities));
    }
    Ok(found)
}

/// Passages by BM25. The query is a bag of words: it is not parsed, so that no character in it has a meaning.
async fn matching(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    query: &str,
    depth: usize,
) -> Result<Vec<(StoredPassage, f32)>> {
    let words = FullTextSearchQuery::new(query.to_owned()).with_column("content".to_owned());
    let words =
        words.map_err(|error| failed(format!("search the words of collection `{}`", collection.name))(error.into()))?;
    let query = snapshot.table.query().full_text_search(words).limit(depth).select(columns("_score"));
    let mut found = Vec::new();
    for batch in collection.run(query).await? {
        let bm25 = scores(&batch, "_score")?;
        found.extend(decode(&batch, &collection.name)?.into_iter().zip(bm25));
    }
    Ok(found)
}

fn columns(score: &str) -> Select {
    Select::columns(&[&PASSAGE_COLUMNS[..], &["token_ids", score]].concat())
}

/// One search's scores as they are.
fn alone(ranking: &Ranking) -> Vec<f32> {
    let mut scores = vec![0.0; ranking.found.len()];
    for (candidate, score) in &ranking.found {
        scores[*candidate] = *score;
    }
    scores
}

impl Candidates {
    /// Adds what a search found; its ranking, ties by document and place so that it is the same every time.
    fn rank(&mut self, mut found: Vec<(StoredPassage, f32)>, depth: usize) -> Ranking {
        found.sort_by(|(a, a_score), (b, b_score)| {
            b_score.total_cmp(a_score).then_with(|| order(&a.passage).cmp(&order(&b.passage)))
        });
        let mut ranking = Ranking { found: Vec::with_capacity(found.len()), complete: found.len() < depth };
        for (stored, score) in found {
            let key = (stored.passage.document_id.clone(), stored.passage.ordinal);
            let candidate = *self.at.entry(key).or_insert(self.passages.len());
            if candidate == self.passages.len() {
                self.passages.push(stored);
            }
            ranking.found.push((candidate, score));
        }
        ranking
    }

    /// The `top_k` best, each content once.
    fn best(self, scores: &[f32], top_k: usize) -> Vec<StoredHit> {
        let mut hits: Vec<StoredHit> = Vec::with_capacity(self.passages.len());
        hits.extend(self.passages.into_iter().zip(scores).map(|(stored, score)| StoredHit { stored, score: *score }));
        hits.sort_by(|a, b| {
            b.score.total_cmp(&a.score).then_with(|| order(&a.stored.passage).cmp(&order(&b.stored.passage)))
        });
        let mut contents = HashSet::new();
        hits.retain(|hit| contents.insert(hit.stored.passage.id.clone()));
        hits.truncate(top_k);
        hits
    }
}

fn order(passage: &Passage) -> (&str, u32) {
    (&passage.document_id, passage.ordinal)
}
