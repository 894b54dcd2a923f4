//! Finds passages: by meaning, by words, and by both.

mod best;
#[cfg(test)]
pub(super) mod reference;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;

use futures::stream::{FuturesUnordered, StreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::best::{Asked, Best, best};
use super::Passage;
use super::candidates::{Similarities, StoredHit};
use super::filter::Filter;
use super::found::{Wholes, within_bounds};
use super::query::{
    self, Briefs, CANDIDATES_PER_HIT, DEEPER, MAX_CANDIDATES, MIN_CANDIDATES, PROBES, Probes, Rows, Scored, matching,
    nearest,
};
use super::table::{Collection, Snapshot};
use crate::Result;
use ragstone_env::{Env, Stopwatch};

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
    /// What is less similar to the query is left out, unless it has an identifier of the query as it stands.
    pub min_similarity: Option<f32>,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self { top_k: 5, mode: SearchMode::Fused, filter: None, min_similarity: None }
    }
}

/// A passage found, with its score: cosine similarity, BM25, or the fused score, by mode. Greater is better. Of words and fused it is more for a
/// passage that has an identifier of the query as it stands, which few have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hit {
    pub passage: Passage,
    pub score: f32,
    /// Cosine similarity to the query, from -1 to 1, whatever the mode; absent where vectors are not compared. Unlike the score it can be compared
    /// between queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<f32>,
    /// Where the same text was found, too, best first, 8 at most: other titles and documents, or places in this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_in: Vec<Elsewhere>,
}

/// What a search found, and what is to be said of all of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Searched {
    /// Best first.
    pub hits: Vec<Hit>,
    /// Whether any passage that was looked at is about the query; `None` where that cannot be told: of an embedding model of which nothing is
    /// known yet, or a language of which nothing is.
    pub is_relevant: Option<bool>,
    /// The greatest similarity of any passage that was looked at.
    pub best_similarity: Option<f32>,
    /// What the search took without embedding the query, in milliseconds.
    pub search_ms: f64,
    /// Where the time went.
    pub took: Took,
}

/// Where a search's time went, in milliseconds. Vectors and words are searched at the same time. Of a search in stages the middle two are not
/// told.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Took {
    pub embedding_ms: f64,
    pub vectors_ms: f64,
    pub words_ms: f64,
    /// Candidates' texts, and all of the hits.
    pub reading_ms: f64,
}

/// As [`Searched`], as it was stored.
pub(super) struct Outcome {
    pub hits: Vec<StoredHit>,
    pub is_relevant: Option<bool>,
    pub best_similarity: Option<f32>,
    pub took: Took,
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

/// The best passages for `query`, whose embedding is `vector`; needed unless the mode is full-text.
pub(super) async fn search(
    collection: &Collection,
    query: &str,
    vector: Option<Vec<f32>>,
    options: &SearchOptions,
    env: &Env,
) -> Result<Outcome> {
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
) -> Result<Outcome> {
    let filter = options.filter.as_ref();
    let asked = Asked::of(query, collection);
    let words = &asked.words;
    // What has the query's identifiers does not depend on how deep the others go.
    let (mut named, briefs): (Option<Scored>, Briefs) = Default::default();
    let mut took = Took::default();
    loop {
        let by_vector = async {
            match &vector {
                Some(vector) if options.mode != SearchMode::FullText => {
                    let probes = (depth, Probes::Last);
                    timed(nearest(collection, snapshot, (vector, filter), probes, env)).await
                }
                _ => Ok((Vec::new(), 0.0)),
            }
        };
        let by_text = async {
            match options.mode {
                SearchMode::Vector => Ok((Vec::new(), 0.0)),
                _ => timed(matching(collection, snapshot, (words, filter), depth)).await,
            }
        };
        let by_name = async {
            match (&named, options.mode) {
                (Some(named), _) => Ok(named.clone()),
                (None, SearchMode::Vector) => Ok(Vec::new()),
                (None, _) => query::named(collection, (snapshot, &briefs), (&asked.identifiers, filter)).await,
            }
        };
        let ((by_vector, vectors_ms), (by_text, words_ms), by_name) = futures::try_join!(by_vector, by_text, by_name)?;
        (took.vectors_ms, took.words_ms) = (took.vectors_ms + vectors_ms, took.words_ms + words_ms);
        let deeper = deeper((&by_vector, &by_text), depth, options);
        let compared = (collection, snapshot, vector.as_deref());
        let ([by_vector, by_text], reading_ms) = timed(briefs.of(snapshot, [&by_vector, &by_text])).await?;
        took.reading_ms += reading_ms;
        let similarities = similarities(compared, [&by_vector, &by_text, &by_name], options).await?;
        let (best, kept) = best((&asked, depth), by_vector, by_text, by_name.clone(), (options, &similarities));
        named = Some(by_name);
        match deeper {
            Some(deeper) if kept < options.top_k => depth = deeper,
            _ => return end(compared, best, Wholes::default(), took).await,
        }
    }
}

/// How many candidates to ask for next, if there may be more than these.
fn deeper((by_vector, by_text): (&Rows, &Rows), depth: usize, options: &SearchOptions) -> Option<usize> {
    let deeper = depth.saturating_mul(DEEPER).min(MAX_CANDIDATES);
    // Behind the first that is not similar enough there is none that is.
    let is_below = |bound: f32| by_vector.iter().any(|(_, similarity)| *similarity < bound);
    let may_be_more = by_vector.len().max(by_text.len()) >= depth && !options.min_similarity.is_some_and(is_below);
    (may_be_more && deeper > depth).then_some(deeper)
}

/// Where vectors are, and the query's.
type Compared<'a> = (&'a Collection, &'a Snapshot<'a>, Option<&'a [f32]>);

/// What is known of the similarity of these passages: what the vectors' search told, and, where there is a bound, that of the others.
async fn similarities(
    (_, snapshot, vector): Compared<'_>,
    [by_vector, by_text, by_name]: [&Scored; 3],
    options: &SearchOptions,
) -> Result<Similarities> {
    let mut known: Similarities = by_vector.iter().map(|(brief, similarity)| (brief.row, *similarity)).collect();
    if let Some(vector) = vector.filter(|_| options.min_similarity.is_some()) {
        let others = by_text.iter().chain(by_name).map(|(brief, _)| brief.row);
        let missing: BTreeSet<u64> = others.filter(|row| !known.contains_key(row)).collect();
        known.extend(query::similarities(snapshot, vector, missing.into_iter().collect()).await?);
    }
    Ok(known)
}

/// What a search ends with: the hits as far as they fit, each with its similarity.
async fn end(
    (collection, snapshot, vector): Compared<'_>,
    mut best: Best,
    mut wholes: Wholes,
    took: Took,
) -> Result<Outcome> {
    let unknown = best.hits.iter().filter(|hit| hit.similarity.is_none());
    let unknown: BTreeSet<u64> = unknown.filter(|_| vector.is_some()).map(|hit| hit.brief.row).collect();
    let compared = query::similarities(snapshot, vector.unwrap_or_default(), unknown.into_iter().collect());
    let hits = std::mem::take(&mut best.hits);
    let read = async { futures::try_join!(within_bounds(collection, snapshot, &mut wholes, hits), compared) };
    let ((mut hits, found), reading_ms) = timed(read).await?;
    let took = Took { reading_ms: took.reading_ms + reading_ms, ..took };
    for hit in hits.iter_mut().filter(|hit| hit.similarity.is_none()) {
        hit.similarity = found.get(&hit.stored.row).copied();
    }
    Ok(Outcome { hits, is_relevant: best.is_relevant, best_similarity: best.best_similarity, took })
}

/// What something gave, and how many milliseconds it took.
async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, f64)> {
    let watch = Stopwatch::start();
    Ok((work.await?, watch.elapsed_ms()))
}

/// Which search ended.
enum Found {
    Vectors {
        stage: usize,
    },
    Words {
        /// What has the query's identifiers.
        by_name: Scored,
    },
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
) -> Result<Outcome> {
    let (depth, filter) = (depth(options.top_k), options.filter.as_ref());
    let asked = Asked::of(query, collection);
    let snapshot = collection.snapshot().await?;
    type Searching<'a> = Pin<Box<dyn Future<Output = Result<(Found, Rows)>> + Send + 'a>>;
    // Both are told before anything is: without them nearly all of it would be wrong.
    let (mut named, briefs, mut wholes): (Scored, Briefs, Wholes) = Default::default();
    let words = async {
        let words = matching(collection, &snapshot, (&asked.words, filter), depth);
        let by_name = query::named(collection, (&snapshot, &briefs), (&asked.identifiers, filter));
        let (words, by_name) = futures::try_join!(words, by_name)?;
        Ok((Found::Words { by_name }, words))
    };
    let running = FuturesUnordered::from_iter([Box::pin(words) as Searching<'_>]);
    for (stage, probes) in STAGES.into_iter().enumerate() {
        let (vector, snapshot) = (&vector, &snapshot);
        let probes = if stage + 1 == STAGES.len() { Probes::Last } else { Probes::First(probes) };
        running.push(Box::pin(async move {
            Ok((Found::Vectors { stage }, nearest(collection, snapshot, (vector, filter), (depth, probes), env).await?))
        }));
    }
    let mut running = running;
    let (mut by_vector, mut by_text): (Option<(usize, Rows)>, Option<Rows>) = (None, None);
    while let Some(found) = running.next().await {
        match found? {
            (Found::Words { by_name }, found) => (by_text, named) = (Some(found), by_name),
            // One that looked into more cells may have ended first.
            (Found::Vectors { stage }, found) if by_vector.as_ref().is_none_or(|(seen, _)| *seen < stage) => {
                by_vector = Some((stage, found));
            }
            (Found::Vectors { .. }, _) => continue,
        }
        if let (Some((stage, near)), Some(words)) = (&by_vector, &by_text) {
            if stage + 1 == STAGES.len() {
                break;
            }
            let known = near.iter().copied().collect();
            let [near, words] = briefs.of(&snapshot, [near, words]).await?;
            let (found, _) = best((&asked, depth), near, words, named.clone(), (options, &known));
            provisional(within_bounds(collection, &snapshot, &mut wholes, found.hits).await?);
        }
    }
    drop(running);
    let near = by_vector.map(|(_, found)| found).unwrap_or_default();
    let words = by_text.unwrap_or_default();
    let deeper = deeper((&near, &words), depth, options);
    let compared = (collection, &snapshot, Some(&vector[..]));
    let [near, words] = briefs.of(&snapshot, [&near, &words]).await?;
    let similarities = similarities(compared, [&near, &words, &named], options).await?;
    let (best, kept) = best((&asked, depth), near, words, named, (options, &similarities));
    match deeper {
        Some(deeper) if kept < options.top_k => {
            search_from(deeper, collection, &snapshot, (query, Some(vector)), options, env).await
        }
        _ => end(compared, best, wholes, Took::default()).await,
    }
}

/// Candidates of each search.
fn depth(top_k: usize) -> usize {
    top_k.saturating_mul(CANDIDATES_PER_HIT).max(MIN_CANDIDATES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_as_deep_as_it_may() {
        let (mut depth, mut depths) = (100, vec![100]);
        let found = |depth: usize| (0..depth as u64).map(|row| (row, 1.0)).collect::<Rows>();
        while let Some(next) = deeper((&found(depth), &Rows::new()), depth, &SearchOptions::default()) {
            depths.push(next);
            depth = next;
        }
        assert_eq!(depths, [100, 400, 1_600, 6_400, MAX_CANDIDATES]);
        assert_eq!(deeper((&found(99), &Rows::new()), 100, &SearchOptions::default()), None, "there are no more");
    }
}
