//! What a search answers with, within a bound of bytes. A search for many leaves metadata out of its candidates, and reads that of the best,
//! some at a time, until the bound is met.

use std::collections::HashMap;

use lancedb::query::Select;

use super::candidates::StoredHit;
use super::schema;
use super::table::{Collection, Snapshot};
use super::{Metadata, Passage};
use crate::Result;

/// Titles, texts, sources and metadata that a search answers with, in bytes.
const MOST_BYTES: usize = 4 << 20;
/// Hits whose metadata is read at once.
const TOGETHER: usize = 64;

/// The best of `hits`, as many as fit, the first of them at least; with their metadata, if they `lack` it.
pub(super) async fn within_bounds(
    collection: &Collection,
    snapshot: &Snapshot<'_>,
    mut hits: Vec<StoredHit>,
    lack: bool,
) -> Result<Vec<StoredHit>> {
    let (mut bytes, mut kept) = (0, 0);
    for start in (0..hits.len()).step_by(TOGETHER) {
        let end = hits.len().min(start + TOGETHER);
        if lack {
            add_metadata(collection, snapshot, &mut hits[start..end]).await?;
        }
        let fitting = hits[start..end].iter().take_while(|hit| {
            bytes += bytes_of(hit);
            bytes <= MOST_BYTES
        });
        kept = start + fitting.count();
        if kept < end {
            break;
        }
    }
    hits.truncate(kept.max(1));
    Ok(hits)
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

async fn add_metadata(collection: &Collection, snapshot: &Snapshot<'_>, hits: &mut [StoredHit]) -> Result<()> {
    let rows = hits.iter().map(|hit| hit.stored.row).collect();
    let query = snapshot.table.take_row_ids(rows).select(Select::columns(&["metadata"])).with_row_id();
    let mut read = HashMap::new();
    for batch in collection.run(query).await? {
        let metadata = schema::strings(&batch, "metadata")?;
        let rows = schema::row_numbers(&batch).into_iter().flat_map(|rows| rows.values().iter().enumerate());
        read.extend(rows.map(|(at, row)| (*row, Metadata::stored(metadata.value(at)))));
    }
    for hit in hits {
        hit.stored.passage.metadata = read.get(&hit.stored.row).cloned().unwrap_or_default();
    }
    Ok(())
}
