//! A search that reads everything of all that it finds in the queries themselves, as the one beside it did: the same hits, more slowly.

use std::collections::HashMap;
use std::sync::Arc;

use lancedb::query::{ExecutableQuery, QueryBase, Select};

use super::{Asked, Best, Outcome, SearchMode, SearchOptions, Took, best, deeper, depth};
use crate::Result;
use crate::candidates::StoredHit;
use crate::query::{self, Probes, Rows, Scored};
use crate::relevance::cosine;
use crate::schema::{self, Brief, StoredPassage};
use crate::search::Elsewhere;
use crate::table::{Collection, Snapshot};

/// Whole passages, their vectors too, by their rows.
type Read = HashMap<u64, (StoredPassage, Vec<f32>)>;

/// As [`search`](super::search), without metadata's bound and without what a query names.
pub async fn search(
    collection: &Collection,
    query: &str,
    vector: Option<Vec<f32>>,
    options: &SearchOptions,
) -> Result<Outcome> {
    let snapshot = collection.snapshot().await?;
    let (asked, filter) = (Asked::of(query, collection), options.filter.as_ref());
    let mut depth = depth(options.top_k);
    loop {
        let mut read = Read::new();
        let by_vector = match &vector {
            Some(vector) if options.mode != SearchMode::FullText => {
                let asked = query::nearest_query(collection, &snapshot, (vector, filter), Probes::Last)?;
                run(collection, asked, "_distance", depth, &mut read).await?
            }
            _ => Rows::new(),
        };
        let by_text = match options.mode {
            SearchMode::Vector => Rows::new(),
            _ => {
                let asked = query::matching_query(collection, &snapshot, (&asked.words, filter)).await;
                run(collection, asked, "_score", depth, &mut read).await?
            }
        };
        let mut similarities: HashMap<u64, f32> = by_vector.iter().copied().collect();
        if let Some(vector) = &vector {
            for (row, (_, stored)) in &read {
                if options.min_similarity.is_some() && !similarities.contains_key(row) {
                    similarities.extend(cosine(vector, stored).map(|similarity| (*row, similarity)));
                }
            }
        }
        let named = named(collection, &snapshot, &asked, options, &mut read).await?;
        let scored = |rows: &Rows| -> Scored { rows.iter().map(|(row, score)| (brief(&read, *row), *score)).collect() };
        let next = deeper((&by_vector, &by_text), depth, options);
        let (Best { hits, is_relevant, best_similarity }, kept) =
            best((&asked, depth), scored(&by_vector), scored(&by_text), scored(&named), (options, &similarities));
        match next {
            Some(next) if kept < options.top_k => depth = next,
            _ => {
                let whole = |hit: crate::candidates::BriefHit| {
                    let (stored, own) = &read[&hit.brief.row];
                    let elsewhere = hit.also_in.iter().map(|other| &read[&other.row].0.passage);
                    let also_in = elsewhere.map(|passage| Elsewhere {
                        document_id: passage.document_id.clone(),
                        title: passage.title.clone(),
                        source: passage.source.clone(),
                        ordinal: passage.ordinal,
                    });
                    let similarity = hit.similarity.or_else(|| cosine(vector.as_deref()?, own));
                    StoredHit { stored: stored.clone(), score: hit.score, similarity, also_in: also_in.collect() }
                };
                let hits = hits.into_iter().map(whole).collect();
                return Ok(Outcome { hits, is_relevant, best_similarity, took: Took::default() });
            }
        }
    }
}

/// What has the query's identifiers.
async fn named(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    asked: &Asked<'_>,
    options: &SearchOptions,
    read: &mut Read,
) -> Result<Rows> {
    let terms = asked.identifiers.terms();
    if options.mode == SearchMode::Vector || terms.is_empty() {
        return Ok(Rows::new());
    }
    let query = query::matching_query(collection, snapshot, (&terms, options.filter.as_ref())).await;
    let mut found = run(collection, query, "_score", query::MIN_CANDIDATES, read).await?;
    found.retain(|(row, _)| asked.identifiers.in_passage(&brief(read, *row).content()) > 0.0);
    Ok(found)
}

fn brief(read: &Read, row: u64) -> Arc<Brief> {
    let passage = &read[&row].0.passage;
    let (document_id, ordinal) = (passage.document_id.clone(), passage.ordinal);
    Arc::new(Brief { document_id, ordinal, title: passage.title.clone(), text: passage.text.clone(), row })
}

/// The best `depth` of all, of those that tie the lowest rows.
async fn run(
    collection: &Collection,
    query: impl QueryBase + ExecutableQuery,
    score: &'static str,
    depth: usize,
    read: &mut Read,
) -> Result<Rows> {
    let columns = Select::columns(&collection.passage_columns(&["token_ids", "vector", score]));
    let (mut rows, mut wholes) = (Rows::new(), Read::new());
    for batch in collection.run(query.limit(query::MAX_CANDIDATES).select(columns).with_row_id()).await? {
        let stored = schema::decode(&batch, &collection.name)?;
        rows.extend(stored.iter().map(|stored| stored.row).zip(schema::scores(&batch, score)?));
        wholes.extend(stored.into_iter().zip(schema::vectors(&batch)?).map(|whole| (whole.0.row, whole)));
    }
    if score == "_distance" {
        rows = rows.into_iter().map(|(row, distance)| (row, 1.0 - distance)).collect();
    }
    rows.sort_by(|(a, a_score), (b, b_score)| b_score.total_cmp(a_score).then(a.cmp(b)));
    rows.truncate(depth);
    read.extend(rows.iter().filter_map(|(row, _)| wholes.remove_entry(row)));
    Ok(rows)
}
