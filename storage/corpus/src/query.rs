//! What LanceDB is asked: passages by meaning, by words, and by what may be an identifier.

use std::sync::atomic::Ordering;

use lancedb::DistanceType;
use lancedb::datafusion::prelude::{col, lit};
use lancedb::expr::{contains, lower};
use lancedb::index::scalar::{BooleanQuery, FtsQuery, FullTextSearchQuery, MatchQuery, Occur};
use lancedb::query::{QueryBase, Select};
use ragstone_env::Env;

use super::candidates::Similarities;
use super::disk::{caught, failed};
use super::filter::{self, Filter};
use super::identifiers::Identifiers;
use super::relevance::cosine;
use super::schema::{self, StoredPassage, content, decode, scores};
use super::scripts;
use super::table::{Collection, Snapshot};
use crate::Result;

/// Candidates of each search, at least.
pub(super) const MIN_CANDIDATES: usize = 100;
/// Cells of the vector index that are searched, so that about 32,000 passages are compared at most.
pub(super) const PROBES: usize = 32;
/// Passages that are looked at of those which have an identifier somewhere within their words.
const MOST_LITERAL: usize = 50;

/// One search's passages and their scores.
pub(super) type Scored = Vec<(StoredPassage, f32)>;

/// Cells of the vector index that are looked into.
#[derive(Clone, Copy)]
pub(super) enum Probes {
    /// So many.
    First(usize),
    /// [`PROBES`]; where a filter leaves too few passages in them, more.
    Last,
}

/// Passages by cosine similarity, of some cells of the vector index.
pub(super) async fn nearest(
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
    let mut query = query.map_err(failed())?.limit(depth).select(columns(collection, "_distance", depth)).with_row_id();
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
pub(super) async fn matching(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (query, filter): (&str, Option<&Filter>),
    depth: usize,
) -> Result<Scored> {
    let of = |column: &str, words: String| MatchQuery::new(words).with_column(Some(column.to_owned()));
    let words = of("content", query.to_owned());
    // Where that cannot be looked up, the words between blanks are still there.
    let has_terms = collection.has_terms().await.unwrap_or_else(|error| {
        tracing::warn!(collection = collection.name, %error, "its words of scripts without blanks are not searched");
        false
    });
    let terms = if has_terms { scripts::asked(query) } else { String::new() };
    let words = match terms.is_empty() {
        true => FtsQuery::from(words),
        false => {
            let both = [words, of("terms", terms)].map(|each| (Occur::Should, each.into()));
            FtsQuery::from(BooleanQuery::new(both))
        }
    };
    let words = FullTextSearchQuery::new_query(words);
    let mut query = snapshot
        .table
        .query()
        .full_text_search(words)
        .limit(depth)
        .select(columns(collection, "_score", depth))
        .with_row_id();
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

/// Passages that have an identifier of the query.
pub(super) async fn named(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (identifiers, filter): (&Identifiers, Option<&Filter>),
) -> Result<Scored> {
    let (terms, literal) = (identifiers.terms(), identifiers.literals());
    let mut found = match terms.is_empty() {
        true => Vec::new(),
        false => matching(collection, snapshot, (&terms, filter), MIN_CANDIDATES).await?,
    };
    keep_named(&mut found, identifiers);
    if found.is_empty() && !literal.is_empty() {
        found = having(collection, snapshot, (&literal, filter)).await?;
        keep_named(&mut found, identifiers);
    }
    Ok(found)
}

/// The index gives what has some of the words: what has no identifier is no candidate for it.
fn keep_named(found: &mut Scored, identifiers: &Identifiers) {
    found.retain(|(stored, _)| identifiers.in_passage(&content(&stored.passage.title, &stored.passage.text)) > 0.0);
}

/// Passages that have one of these texts anywhere, in small letters: all passages are looked at, as no index knows parts of words.
async fn having(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (literals, filter): (&[String], Option<&Filter>),
) -> Result<Scored> {
    let has = |literal: &String| contains(lower(col("content")), lit(literal.as_str()));
    let Some(mut predicate) = literals.iter().map(has).reduce(|one, other| one.or(other)) else {
        return Ok(Vec::new());
    };
    if let Some(filter) = filter {
        predicate = predicate.and(filter::predicate(filter));
    }
    let columns = Select::columns(&collection.passage_columns(&["token_ids"]));
    let query = snapshot.table.query().only_if_expr(predicate).limit(MOST_LITERAL).select(columns).with_row_id();
    let mut found = Vec::new();
    for batch in caught("search the words", collection.run(query)).await? {
        found.extend(decode(&batch, &collection.name)?.into_iter().map(|stored| (stored, 0.0)));
    }
    Ok(found)
}

/// The cosine similarity of passages, by the numbers of their rows.
pub(super) async fn similarities(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    vector: &[f32],
    rows: Vec<u64>,
) -> Result<Similarities> {
    let mut found = Similarities::new();
    if rows.is_empty() {
        return Ok(found);
    }
    let query = snapshot.table.take_row_ids(rows).select(Select::columns(&["vector"])).with_row_id();
    for batch in collection.run(query).await? {
        let vectors = schema::vectors(&batch)?;
        let rows = schema::row_numbers(&batch).into_iter().flat_map(|rows| rows.values().iter());
        let known = rows.zip(&vectors).filter_map(|(row, stored)| Some((*row, cosine(vector, stored)?)));
        found.extend(known);
    }
    Ok(found)
}

/// Whether so many candidates are read without their metadata: each may have 64 KiB of it, and few are answered.
pub(super) fn is_lean(depth: usize) -> bool {
    depth > MIN_CANDIDATES
}

fn columns(collection: &Collection, score: &'static str, depth: usize) -> Select {
    let mut columns = collection.passage_columns(&["token_ids", score]);
    columns.retain(|column| *column != "metadata" || !is_lean(depth));
    Select::columns(&columns)
}
