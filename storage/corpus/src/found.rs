//! What a search answers with, within a bound of bytes. Only of the best is read what ranked none of them: metadata, token ids, sources, some at a
//! time, until the bound is met.

use std::collections::{BTreeSet, HashMap};

use super::Passage;
use super::candidates::{BriefHit, StoredHit};
use super::disk::caught;
use super::schema::{self, StoredPassage};
use super::search::Elsewhere;
use super::table::{Collection, Snapshot};
use crate::Result;

/// Titles, texts, sources and metadata that a search answers with, in bytes.
const MOST_BYTES: usize = 4 << 20;
/// Hits that are read at once.
const TOGETHER: usize = 64;

/// Whole passages that a search has read, by the numbers of their rows: stages of one search tell nearly the same.
#[derive(Default)]
pub(super) struct Wholes {
    passages: HashMap<u64, StoredPassage>,
    /// Of those that are elsewhere.
    sources: HashMap<u64, Option<String>>,
}

/// The best of `hits` whole, as many as fit, the first of them at least.
pub(super) async fn within_bounds(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    wholes: &mut Wholes,
    hits: Vec<BriefHit>,
) -> Result<Vec<StoredHit>> {
    let (mut bytes, mut whole) = (0, Vec::with_capacity(hits.len().min(TOGETHER)));
    for some in hits.chunks(TOGETHER) {
        wholes.read(collection, snapshot, some).await?;
        for hit in some.iter().filter_map(|hit| wholes.of(hit)) {
            bytes += bytes_of(&hit);
            if bytes > MOST_BYTES && !whole.is_empty() {
                return Ok(whole);
            }
            whole.push(hit);
        }
    }
    Ok(whole)
}

impl Wholes {
    async fn read(&mut self, collection: &Collection, snapshot: &Snapshot<'_>, hits: &[BriefHit]) -> Result<()> {
        let rows: BTreeSet<u64> = hits.iter().map(|hit| hit.brief.row).collect();
        let rows: Vec<u64> = rows.into_iter().filter(|row| !self.passages.contains_key(row)).collect();
        if !rows.is_empty() {
            let columns = collection.passage_columns(&["token_ids"]);
            let read = caught("read the passages", snapshot.take(&rows, &columns)).await?;
            for (row, stored) in rows.into_iter().zip(schema::decode(&read, &collection.name)?) {
                self.passages.insert(row, StoredPassage { row, ..stored });
            }
        }
        let rows: BTreeSet<u64> = hits.iter().flat_map(|hit| hit.also_in.iter().map(|other| other.row)).collect();
        let rows: Vec<u64> = rows.into_iter().filter(|row| !self.sources.contains_key(row)).collect();
        if !rows.is_empty() {
            let read = caught("read the passages", snapshot.take(&rows, &["source"])).await?;
            let sources = schema::strings(&read, "source")?;
            let sources = rows.into_iter().enumerate().map(|(at, row)| (row, schema::optional(sources, at)));
            self.sources.extend(sources);
        }
        Ok(())
    }

    fn of(&self, hit: &BriefHit) -> Option<StoredHit> {
        let elsewhere = hit.also_in.iter().map(|other| Elsewhere {
            document_id: other.document_id.clone(),
            title: other.title.clone(),
            source: self.sources.get(&other.row).cloned().flatten(),
            ordinal: other.ordinal,
        });
        let stored = self.passages.get(&hit.brief.row)?.clone();
        Some(StoredHit { stored, score: hit.score, similarity: hit.similarity, also_in: elsewhere.collect() })
    }
}

fn bytes_of(hit: &StoredHit) -> usize {
    let Passage { id, document_id, collection, title, text, source, metadata, .. } = &hit.stored.passage;
    let own = [id, document_id, collection, title, text].map(String::len).iter().sum::<usize>()
        + source.as_ref().map_or(0, String::len)
        + metadata.json().len();
    let elsewhere = hit
        .also_in
        .iter()
        .map(|other| other.document_id.len() + other.title.len() + other.source.as_ref().map_or(0, String::len));
    own + elsewhere.sum::<usize>()
}
