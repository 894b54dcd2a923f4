//! What LanceDB is asked: passages by meaning, by words, and by what may be an identifier.
//!
//! Its indexes give numbers of rows and scores, and that is all that is asked of them: of a hundred candidates five are answered. What ranks
//! them ([`Brief`]) is read once for all searches, and the rest of the hits alone (`found.rs`).

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use lancedb::DistanceType;
use lancedb::datafusion::prelude::{col, lit};
use lancedb::expr::{contains, lower};
use lancedb::index::scalar::{BooleanQuery, FtsQuery, FullTextSearchQuery, MatchQuery, Occur};
use lancedb::query::{Query, QueryBase, Select, VectorQuery};
use ragstone_env::Env;

use super::candidates::Similarities;
use super::composed::{other_words, searched};
use super::disk::{caught, failed};
use super::filter::{self, Filter};
use super::identifiers::Identifiers;
use super::relevance::cosine;
use super::schema::{self, BRIEF_COLUMNS, Brief, scores};
use super::scripts;
use super::table::{Collection, Snapshot};
use crate::{Error, ErrorKind, Result};
use ragstone_env::lock::locked;

/// Candidates of each search, at least.
pub(super) const MIN_CANDIDATES: usize = 100;
/// Each search gives this many candidates for a wanted hit, and at least [`MIN_CANDIDATES`]: one that is far down in one
/// ranking can still come out on top when the other has it first. A constant number for up to 50 hits also means that asking
/// for more of them changes nothing about the first.
pub(super) const CANDIDATES_PER_HIT: usize = 2;
/// Where so many of them have the same texts that hits are missing, each search is asked for this many times more, up to a number.
pub(super) const DEEPER: usize = 4;
pub(super) const MAX_CANDIDATES: usize = 10_000;
/// Cells of the vector index that are searched, so that about 32,000 passages are compared at most.
pub(super) const PROBES: usize = 32;
/// Passages that are looked at of those which have an identifier somewhere within their words: so many at first, [`DEEPER`] times as many each
/// time, until one has it as it stands; and how many are taken.
const LITERAL_TOGETHER: usize = 50;
/// Of them in all: `1.2.3` is a part of every address `10.1.2.3`.
const MOST_LITERAL: usize = 2_000;

/// One search's passages, by the numbers of their rows, and their scores.
pub(super) type Rows = Vec<(u64, f32)>;
/// As [`Rows`], with what ranks them.
pub(super) type Scored = Vec<(Arc<Brief>, f32)>;

/// What a search has read of its candidates, by the numbers of their rows: each is read once, however many rankings have it.
#[derive(Default)]
pub(super) struct Briefs(Mutex<HashMap<u64, Arc<Brief>>>);

impl Briefs {
    /// What these searches found.
    pub async fn of<const N: usize>(&self, snapshot: &Snapshot<'_>, found: [&Rows; N]) -> Result<[Scored; N]> {
        let unread: Vec<u64> = {
            let known = locked(&self.0);
            // In order: neighbours are read together.
            let rows: BTreeSet<u64> = found.iter().flat_map(|found| found.iter().map(|(row, _)| *row)).collect();
            rows.into_iter().filter(|row| !known.contains_key(row)).collect()
        };
        if !unread.is_empty() {
            let read = caught("read the passages", snapshot.take(&unread, &BRIEF_COLUMNS)).await?;
            let read = Brief::decode(&read, unread)?.into_iter().map(|brief| (brief.row, Arc::new(brief)));
            locked(&self.0).extend(read);
        }
        let known = locked(&self.0);
        let brief = |(row, score): &(u64, f32)| Some((known.get(row)?.clone(), *score));
        Ok(found.map(|found| found.iter().filter_map(brief).collect()))
    }
}

/// The best `depth` of what a search has, the same ones every time. Of several with one score LanceDB gives those that came first, and its
/// parts search side by side. Where enough stand before those that tie with the last one, [`leave_out_chance`] leaves these out; where too few
/// do, more are `asked` for, once, and the lowest rows are taken. Of more than [`MAX_CANDIDATES`] that tie it stays chance.
async fn best_of<F: Future<Output = Result<Rows>>>(depth: usize, asked: impl Fn(usize) -> F) -> Result<Rows> {
    let best_first = |mut found: Rows| {
        found.sort_by(|(a, a_score), (b, b_score)| b_score.total_cmp(a_score).then(a.cmp(b)));
        found
    };
    let found = best_first(asked(depth).await?);
    if before_the_cut(&found, depth).is_none_or(|before| before >= wanted(depth)) {
        return Ok(found);
    }
    let mut more = best_first(asked(MAX_CANDIDATES.max(depth)).await?);
    more.truncate(depth);
    Ok(more)
}

/// For how many hits a search asks for `depth` candidates.
fn wanted(depth: usize) -> usize {
    depth.div_ceil(CANDIDATES_PER_HIT)
}

/// Of `found`, best first, how many are better than the last, where `depth` were asked for and more may have the last one's score.
fn before_the_cut<T>(found: &[(T, f32)], depth: usize) -> Option<usize> {
    let (_, cut) = found.last().filter(|_| found.len() >= depth)?;
    Some(found.partition_point(|(_, score)| score.total_cmp(cut).is_gt()))
}

/// Leaves out those that tie with the last one: which of them were found is chance. Where they are all there is, they are better than
/// nothing. `found` is best first; the score at which it was cut off, if it was.
pub(super) fn leave_out_chance<T>(found: &mut Vec<(T, f32)>, depth: usize) -> Option<f32> {
    let before = before_the_cut(found, depth)?;
    let cut = found.last().map(|(_, score)| *score);
    if before >= wanted(depth) {
        found.truncate(before);
    }
    cut
}

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
) -> Result<Rows> {
    let delay = env.delay_at("corpus.probe");
    let cells = match probes {
        Probes::First(cells) => cells,
        Probes::Last => PROBES,
    };
    if !delay.is_zero() {
        tokio::time::sleep(delay * cells as u32).await;
    }
    let query = nearest_query(collection, snapshot, (vector, filter), probes)?;
    let query = &query.select(Select::columns(&["_distance"])).with_row_id();
    let ask = |limit| async move {
        let ran = caught("search the vectors", collection.run(query.clone().limit(limit))).await;
        let batches = ran.inspect_err(|_| collection.broken.vectors.store(true, Ordering::Release))?;
        rows(&batches, "_distance", |distance| 1.0 - distance)
    };
    match probes {
        // It is told and forgotten: what comes last decides.
        Probes::First(_) => ask(depth).await,
        Probes::Last => best_of(depth, ask).await,
    }
}

/// What LanceDB is asked for [`nearest`], but for how many and which columns.
pub(super) fn nearest_query(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (vector, filter): (&[f32], Option<&Filter>),
    probes: Probes,
) -> Result<VectorQuery> {
    let failed = || failed(format!("search the vectors of collection `{}`", collection.name));
    let query = snapshot.table.query().nearest_to(vector).map_err(failed())?;
    let query = query.column("vector").distance_type(DistanceType::Cosine);
    let query = match (probes, filter) {
        (Probes::Last, Some(_)) => query.minimum_nprobes(PROBES).and_then(|query| query.maximum_nprobes(None)),
        (Probes::Last, None) => query.nprobes(PROBES),
        (Probes::First(cells), _) => query.nprobes(cells),
    };
    let query = query.map_err(failed())?;
    Ok(match filter {
        Some(filter) => query.only_if_expr(filter::predicate(filter)),
        None => query,
    })
}

/// Passages by BM25. The query is a bag of words: it is not parsed, so that no character in it has a meaning.
pub(super) async fn matching(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    asked: (&str, Option<&Filter>),
    depth: usize,
) -> Result<Rows> {
    let query = matching_query(collection, snapshot, asked).await;
    let query = &query.select(Select::columns(&["_score"])).with_row_id();
    best_of(depth, |limit| async move {
        let ran = caught("search the words", collection.run(query.clone().limit(limit))).await;
        let batches = ran.inspect_err(|_| collection.broken.words.store(true, Ordering::Release))?;
        rows(&batches, "_score", |bm25| bm25)
    })
    .await
}

/// What a search found: rows, and what the column says of each.
fn rows(batches: &[RecordBatch], column: &str, score: impl Fn(f32) -> f32) -> Result<Rows> {
    let mut found = Rows::new();
    for batch in batches {
        found.extend(row_numbers(batch)?.zip(scores(batch, column)?.into_iter().map(&score)));
    }
    Ok(found)
}

/// What LanceDB is asked for [`matching`], but for how many and which columns.
pub(super) async fn matching_query(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (query, filter): (&str, Option<&Filter>),
) -> Query {
    let of = |column: &str, words: String| MatchQuery::new(words).with_column(Some(column.to_owned()));
    // A word with `İ` stands with a dot in the index, and what is meant may be written without.
    let plain = searched(query);
    let words = of("content", [query].into_iter().chain(other_words(query, &plain)).collect::<Vec<_>>().join(" "));
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
    let query = snapshot.table.query().full_text_search(FullTextSearchQuery::new_query(words));
    match filter {
        Some(filter) => query.only_if_expr(filter::predicate(filter)),
        None => query,
    }
}

/// Passages that have an identifier of the query.
pub(super) async fn named(
    collection: &Collection,
    (snapshot, briefs): (&Snapshot<'_>, &Briefs),
    (identifiers, filter): (&Identifiers, Option<&Filter>),
) -> Result<Scored> {
    let (terms, literal) = (identifiers.terms(), identifiers.literals());
    let found = match terms.is_empty() {
        true => Vec::new(),
        false => matching(collection, snapshot, (&terms, filter), MIN_CANDIDATES).await?,
    };
    let [mut found] = briefs.of(snapshot, [&found]).await?;
    keep_named(&mut found, identifiers);
    if found.is_empty() && !literal.is_empty() {
        let rows = having(collection, snapshot, (&literal, filter)).await?;
        let (mut rest, mut together) = (&rows[..], LITERAL_TOGETHER);
        // What is nowhere takes few reads, and what is there is mostly among the first.
        while found.is_empty() && !rest.is_empty() {
            let (some, behind) = rest.split_at(together.min(rest.len()));
            (rest, together) = (behind, DEEPER * together);
            [found] = briefs.of(snapshot, [&some.to_vec()]).await?;
            keep_named(&mut found, identifiers);
            found.truncate(LITERAL_TOGETHER);
        }
    }
    Ok(found)
}

/// The index gives what has some of the words: what has no identifier is no candidate for it.
fn keep_named(found: &mut Scored, identifiers: &Identifiers) {
    found.retain(|(brief, _)| identifiers.in_passage(&brief.content()) > 0.0);
}

/// Passages that have one of these texts anywhere, in small letters: all passages are looked at, as no index knows parts of words.
async fn having(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    (literals, filter): (&[String], Option<&Filter>),
) -> Result<Rows> {
    let has = |literal: &String| contains(lower(col("content")), lit(literal.as_str()));
    let Some(mut predicate) = literals.iter().map(has).reduce(|one, other| one.or(other)) else {
        return Ok(Vec::new());
    };
    if let Some(filter) = filter {
        predicate = predicate.and(filter::predicate(filter));
    }
    let rows = Select::columns(&["ordinal"]);
    let query = snapshot.table.query().only_if_expr(predicate).limit(MOST_LITERAL).select(rows).with_row_id();
    let mut found = Vec::new();
    for batch in caught("search the words", collection.run(query)).await? {
        found.extend(row_numbers(&batch)?.map(|row| (row, 0.0)));
    }
    Ok(found)
}

/// The cosine similarity of passages, by the numbers of their rows.
pub(super) async fn similarities(snapshot: &Snapshot<'_>, vector: &[f32], rows: Vec<u64>) -> Result<Similarities> {
    if rows.is_empty() {
        return Ok(Similarities::new());
    }
    let batch = caught("read the vectors", snapshot.take(&rows, &["vector"])).await?;
    let vectors = schema::vectors(&batch)?;
    Ok(rows.into_iter().zip(&vectors).filter_map(|(row, stored)| Some((row, cosine(vector, stored)?))).collect())
}

fn row_numbers(batch: &RecordBatch) -> Result<impl Iterator<Item = u64>> {
    let rows = schema::row_numbers(batch);
    let rows = rows.ok_or_else(|| Error::new(ErrorKind::Internal, "a search told no numbers of rows"))?;
    Ok(rows.values().iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search whose answer has those that tie in another order each time.
    fn of_groups(groups: &[(f32, u64)], turn: u64) -> Rows {
        let mut first = 0;
        let mut rows = Rows::new();
        for (score, count) in groups {
            let mut group: Vec<_> = (0..*count).map(|n| (first + (n + turn) % count, *score)).collect();
            rows.append(&mut group);
            first += count;
        }
        rows
    }

    #[tokio::test]
    async fn what_is_found_is_the_same_every_time_whoever_comes_first_of_those_that_tie() {
        for (groups, asked, kept, cut) in [
            // Whole.
            (&[(2.0, 3), (1.0, 5)][..], 1, 8, None),
            // Cut within those that tie, behind enough that do not, and behind too few.
            (&[(2.0, 60), (1.0, 70)], 1, 60, Some(1.0)),
            (&[(2.0, 20), (1.0, 150)], 2, 100, Some(1.0)),
            (&[(2.0, 20), (1.0, 500), (0.5, 1)], 2, 100, Some(1.0)),
            // More of them than are ever asked for.
            (&[(1.0, 20_000)], 2, 100, Some(1.0)),
        ] {
            let mut found = Vec::new();
            for turn in [0, 7, 111] {
                let times = std::cell::Cell::new(0);
                let rows = best_of(100, |limit| {
                    times.set(times.get() + 1);
                    let mut rows = of_groups(groups, turn);
                    rows.truncate(limit);
                    std::future::ready(Ok(rows))
                });
                let mut rows = rows.await.unwrap();
                assert_eq!(times.get(), asked, "{groups:?}");
                assert_eq!(leave_out_chance(&mut rows, 100), cut, "{groups:?}");
                assert_eq!(rows.len(), kept, "{groups:?}");
                rows.sort_by_key(|(row, _)| *row);
                found.push(rows);
            }
            if groups[0].1 < 20_000 {
                assert!(found.windows(2).all(|two| two[0] == two[1]), "{groups:?}");
            }
        }
    }
}
