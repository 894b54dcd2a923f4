//! Finds passages: by meaning, by words, and by both.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;

use futures::stream::{FuturesUnordered, StreamExt};
use lancedb::DistanceType;
use lancedb::index::scalar::FullTextSearchQuery;
use lancedb::query::{QueryBase, Select};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Passage;
use super::disk::{caught, failed};
use super::filter::{self, Filter};
use super::found::within_bounds;
use super::fusion::{Ranking, fuse};
use super::schema::{PASSAGE_COLUMNS, StoredPassage, content, decode, scores};
use super::table::{Collection, Snapshot};
use super::words::Keywords;
use crate::Result;
use ragstone_env::Env;

/// Each search gives this many candidates for a wanted hit, and at least [`MIN_CANDIDATES`]: one that is far down in one
/// ranking can still come out on top when the other has it first. A constant number for up to 50 hits also means that asking
/// for more of them changes nothing about the first.
const CANDIDATES_PER_HIT: usize = 2;
const MIN_CANDIDATES: usize = 100;
/// Where so many of them have the same texts that hits are missing, each search is asked for this many times more, up to a number.
const DEEPER: usize = 4;
const MAX_CANDIDATES: usize = 10_000;
/// Other places of a hit's text that are named.
const MAX_ELSEWHERE: usize = 8;
/// Cells of the vector index that are searched, so that about 32,000 passages are compared at most.
const PROBES: usize = 32;
/// Cells of a search in stages: the last stage is the search without stages. All begin at once, so that the last ends no later for the
/// others but for what they compute, a third of what it does.
const STAGES: [usize; 3] = [2, 8, PROBES];

/// Which of the two searches to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
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
    /// How many hits at most; fewer where they come to more than 4 MiB.
    pub top_k: usize,
    pub mode: SearchMode,
    /// Which documents may be found: the best are taken among them.
    pub filter: Option<Filter>,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self { top_k: 5, mode: SearchMode::Fused, filter: None }
    }
}

/// A passage found, with its score: cosine similarity, BM25, or the fused score, by mode. Greater is better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hit {
    pub passage: Passage,
    pub score: f32,
    /// Where the same text was found, too, best first, 8 at most: other titles and documents, or places in this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_in: Vec<Elsewhere>,
}

/// Another place of a passage's text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Elsewhere {
    pub document_id: String,
    pub title: String,
    pub source: Option<String>,
    pub ordinal: u32,
}

/// A hit as it was stored: its token ids may be another tokenizer's.
pub(super) struct StoredHit {
    pub stored: StoredPassage,
    pub score: f32,
    pub also_in: Vec<Elsewhere>,
}

impl StoredHit {
    /// For whom its token ids are right.
    pub fn into_hit(self) -> Hit {
        Hit { passage: self.stored.passage, score: self.score, also_in: self.also_in }
    }
}

/// One search's passages and their scores.
type Scored = Vec<(StoredPassage, f32)>;

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
    env: &Env,
) -> Result<Vec<StoredHit>> {
    let snapshot = collection.snapshot().await?;
    search_from(depth(options.top_k), collection, &snapshot, (query, vector), options, env).await
}

/// As [`search`], beginning with so many candidates of each search.
async fn search_from(
    mut depth: usize,
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (query, vector): (&str, Option<Vec<f32>>),
    options: &SearchOptions,
    env: &Env,
) -> Result<Vec<StoredHit>> {
    let filter = options.filter.as_ref();
    let keywords = (options.mode == SearchMode::Fused).then(|| Keywords::of(query)).flatten();
    loop {
        let by_vector = async {
            match &vector {
                Some(vector) if options.mode != SearchMode::FullText => {
                    nearest(collection, snapshot, (vector, filter), (depth, Probes::Last), env).await
                }
                _ => Ok(Vec::new()),
            }
        };
        let by_text = async {
            match options.mode {
                SearchMode::Vector => Ok(Vec::new()),
                _ => matching(collection, snapshot, (query, filter), depth).await,
            }
        };
        let (by_vector, by_text) = futures::try_join!(by_vector, by_text)?;
        let deeper = deeper((&by_vector, &by_text), depth);
        let hits = best((keywords.as_ref(), depth), by_vector, by_text, options);
        match deeper {
            Some(deeper) if hits.len() < options.top_k => depth = deeper,
            _ => return within_bounds(collection, snapshot, hits, is_lean(depth)).await,
        }
    }
}

/// How many candidates to ask for next, if there may be more than these.
fn deeper((by_vector, by_text): (&Scored, &Scored), depth: usize) -> Option<usize> {
    let deeper = depth.saturating_mul(DEEPER);
    (by_vector.len().max(by_text.len()) >= depth && deeper <= MAX_CANDIDATES).then_some(deeper)
}

/// As [`search`] in mode [`SearchMode::Fused`], with the same result. `provisional` is told what is best so far, from the words and a
/// part of the vectors: words are searched once, and without them nearly all that is told would be wrong.
pub(super) async fn in_stages(
    collection: &Collection,
    query: &str,
    vector: Vec<f32>,
    options: &SearchOptions,
    env: &Env,
    provisional: &mut (dyn FnMut(Vec<StoredHit>) + Send),
) -> Result<Vec<StoredHit>> {
    let (depth, filter) = (depth(options.top_k), options.filter.as_ref());
    let keywords = Keywords::of(query);
    let snapshot = collection.snapshot().await?;
    type Searching<'a> = Pin<Box<dyn Future<Output = Result<(Option<usize>, Scored)>> + Send + 'a>>;
    let words = async { Ok((None, matching(collection, &snapshot, (query, filter), depth).await?)) };
    let running = FuturesUnordered::from_iter([Box::pin(words) as Searching<'_>]);
    for (stage, probes) in STAGES.into_iter().enumerate() {
        let (vector, snapshot) = (&vector, &snapshot);
        let probes = if stage + 1 == STAGES.len() { Probes::Last } else { Probes::First(probes) };
        running.push(Box::pin(async move {
            Ok((Some(stage), nearest(collection, snapshot, (vector, filter), (depth, probes), env).await?))
        }));
    }
    let mut running = running;
    let (mut by_vector, mut by_text): (Option<(usize, Scored)>, Option<Scored>) = (None, None);
    while let Some(found) = running.next().await {
        match found? {
            (None, found) => by_text = Some(found),
            // One that looked into more cells may have ended first.
            (Some(stage), found) if by_vector.as_ref().is_none_or(|(seen, _)| *seen < stage) => {
                by_vector = Some((stage, found));
            }
            (Some(_), _) => continue,
        }
        if let (Some((stage, near)), Some(words)) = (&by_vector, &by_text) {
            if stage + 1 == STAGES.len() {
                break;
            }
            provisional(best((keywords.as_ref(), depth), near.clone(), words.clone(), options));
        }
    }
    drop(running);
    let near = by_vector.map(|(_, found)| found).unwrap_or_default();
    let words = by_text.unwrap_or_default();
    let deeper = deeper((&near, &words), depth);
    let hits = best((keywords.as_ref(), depth), near, words, options);
    match deeper {
        Some(deeper) if hits.len() < options.top_k => {
            search_from(deeper, collection, &snapshot, (query, Some(vector)), options, env).await
        }
        _ => within_bounds(collection, &snapshot, hits, is_lean(depth)).await,
    }
}

/// Candidates of each search.
fn depth(top_k: usize) -> usize {
    top_k.saturating_mul(CANDIDATES_PER_HIT).max(MIN_CANDIDATES)
}

/// The best of what both searches found.
fn best(
    (keywords, depth): (Option<&Keywords>, usize),
    by_vector: Scored,
    by_text: Scored,
    options: &SearchOptions,
) -> Vec<StoredHit> {
    let mut candidates = Candidates::default();
    let by_vector = candidates.rank(by_vector, depth);
    let mut by_text = candidates.rank(by_text, depth);
    let scores = match options.mode {
        SearchMode::Vector => alone(&by_vector),
        SearchMode::FullText => alone(&by_text),
        SearchMode::Fused => {
            by_text.has_keywords = by_text.found.first().is_some_and(|(best, _)| {
                let Passage { title, text, .. } = &candidates.passages[*best].passage;
                keywords.is_some_and(|keywords| keywords.are_in(&content(title, text)))
            });
            fuse(&by_vector, &by_text, candidates.passages.len())
        }
    };
    candidates.best(&scores, options.top_k)
}

/// Cells of the vector index that are looked into.
#[derive(Clone, Copy)]
enum Probes {
    /// So many.
    First(usize),
    /// [`PROBES`]; where a filter leaves too few passages in them, more.
    Last,
}

/// Passages by cosine similarity, of some cells of the vector index.
async fn nearest(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (vector, filter): (&[f32], Option<&Filter>),
    (depth, probes): (usize, Probes),
    env: &Env,
) -> Result<Scored> {
    let delay = env.delay_at("corpus.probe");
    let cells = match probes {
        Probes::First(cells) => cells,
        Probes::Last => PROBES,
    };
    if !delay.is_zero() {
        tokio::time::sleep(delay * cells as u32).await;
    }
    let failed = || failed(format!("search the vectors of collection `{}`", collection.name));
    let query = snapshot.table.query().nearest_to(vector).map_err(failed())?;
    let query = query.column("vector").distance_type(DistanceType::Cosine);
    let query = match (probes, filter) {
        (Probes::Last, Some(_)) => query.minimum_nprobes(cells).and_then(|query| query.maximum_nprobes(None)),
        _ => query.nprobes(cells),
    };
    let mut query = query.map_err(failed())?.limit(depth).select(columns("_distance", depth)).with_row_id();
    if let Some(filter) = filter {
        query = query.only_if_expr(filter::predicate(filter));
    }
    let ran = caught("search the vectors", collection.run(query)).await;
    let batches = ran.inspect_err(|_| collection.broken.vectors.store(true, Ordering::Release))?;
    let mut found = Vec::new();
    for batch in batches {
        let similarities = scores(&batch, "_distance")?.into_iter().map(|distance| 1.0 - distance);
        found.extend(decode(&batch, &collection.name)?.into_iter().zip(similarities));
    }
    Ok(found)
}

/// Passages by BM25. The query is a bag of words: it is not parsed, so that no character in it has a meaning.
async fn matching(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (query, filter): (&str, Option<&Filter>),
    depth: usize,
) -> Result<Scored> {
    let words = FullTextSearchQuery::new(query.to_owned()).with_column("content".to_owned());
    let words =
        words.map_err(|error| failed(format!("search the words of collection `{}`", collection.name))(error.into()))?;
    let mut query =
        snapshot.table.query().full_text_search(words).limit(depth).select(columns("_score", depth)).with_row_id();
    if let Some(filter) = filter {
        query = query.only_if_expr(filter::predicate(filter));
    }
    let ran = caught("search the words", collection.run(query)).await;
    let batches = ran.inspect_err(|_| collection.broken.words.store(true, Ordering::Release))?;
    let mut found = Vec::new();
    for batch in batches {
        let bm25 = scores(&batch, "_score")?;
        found.extend(decode(&batch, &collection.name)?.into_iter().zip(bm25));
    }
    Ok(found)
}

/// Whether so many candidates are read without their metadata: each may have 64 KiB of it, and few are answered.
fn is_lean(depth: usize) -> bool {
    depth > MIN_CANDIDATES
}

fn columns(score: &str, depth: usize) -> Select {
    let mut columns = [&PASSAGE_COLUMNS[..], &["token_ids", score]].concat();
    columns.retain(|column| *column != "metadata" || !is_lean(depth));
    Select::columns(&columns)
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
    fn rank(&mut self, mut found: Scored, depth: usize) -> Ranking {
        found.sort_by(|(a, a_score), (b, b_score)| {
            b_score.total_cmp(a_score).then_with(|| order(&a.passage).cmp(&order(&b.passage)))
        });
        let mut ranking =
            Ranking { found: Vec::with_capacity(found.len()), complete: found.len() < depth, has_keywords: false };
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

    /// The `top_k` best, each text once: under its best title, of the document that had it first, with the others named.
    fn best(self, scores: &[f32], top_k: usize) -> Vec<StoredHit> {
        let mut ranked: Vec<(StoredPassage, f32)> = self.passages.into_iter().zip(scores.iter().copied()).collect();
        ranked.sort_by(|(a, a_score), (b, b_score)| {
            b_score.total_cmp(a_score).then_with(|| order(&a.passage).cmp(&order(&b.passage)))
        });
        let mut hits: Vec<StoredHit> = Vec::with_capacity(top_k.min(ranked.len()));
        let mut places: HashMap<String, usize> = HashMap::new();
        for (stored, score) in ranked {
            match places.entry(stored.passage.text.clone()) {
                Entry::Vacant(place) if hits.len() < top_k => {
                    place.insert(hits.len());
                    hits.push(StoredHit { stored, score, also_in: Vec::new() });
                }
                Entry::Vacant(_) => {}
                Entry::Occupied(place) => hits[*place.get()].note(stored),
            }
        }
        hits
    }
}

impl StoredHit {
    /// The same text is there, too. Of those under one title the hit is the one that was there first: a copy that comes later takes no
    /// citation away, and leaves the prompt as its KV is stored.
    fn note(&mut self, mut other: StoredPassage) {
        if other.passage.title == self.stored.passage.title && other.row < self.stored.row {
            std::mem::swap(&mut self.stored, &mut other);
        }
        if self.also_in.len() < MAX_ELSEWHERE {
            let Passage { document_id, title, source, ordinal, .. } = other.passage;
            self.also_in.push(Elsewhere { document_id, title, source, ordinal });
        }
    }
}

fn order(passage: &Passage) -> (&str, u32) {
    (&passage.document_id, passage.ordinal)
}
