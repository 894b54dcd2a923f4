//! Which table a collection has: one small object names it. Creating it creates the collection, removing it deletes the collection, for all
//! nodes at once; a table that no object names is nobody's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use object_store::path::Path;
use ragstone_env::lock::locked;

use super::{Bucket, TABLES, table_prefix, written_ms};
use crate::Result;
use crate::naming::{Stage, stage_of, table_name};

const COLLECTIONS: &str = "collections";
/// How old a table that nobody names must be to be removed: whoever makes one names it at once.
const ORPHANED: Duration = Duration::from_secs(3600);

/// The name of a collection's table.
pub(crate) type Pointer = String;

/// The collections as they were last listed.
#[derive(Debug, Default)]
pub(crate) struct Pointers {
    /// By the etag of the object that says so.
    known: Mutex<HashMap<String, Pointer>>,
}

impl Pointers {
    /// Every collection with its table.
    pub async fn all(&self, bucket: &Bucket) -> Result<BTreeMap<String, Pointer>> {
        let listed = bucket.list(&Path::from(COLLECTIONS), None).await?;
        let (mut all, mut known) = (BTreeMap::new(), HashMap::new());
        for object in listed {
            let Some((name, Stage::Serving)) = object.location.filename().and_then(stage_of) else { continue };
            let tag = object.e_tag.map(|tag| format!("{} {tag}", object.location));
            let before = tag.as_ref().and_then(|tag| locked(&self.known).get(tag).cloned());
            let table = match before {
                Some(table) => Some(table),
                None => bucket.read(&object.location).await?.and_then(|there| id_of(&there.bytes)),
            };
            let Some(table) = table else { continue };
            known.extend(tag.map(|tag| (tag, table.clone())));
            all.insert(name, table);
        }
        *locked(&self.known) = known;
        Ok(all)
    }
}

/// The table of a collection; `None`: there is no such collection.
pub(crate) async fn of(bucket: &Bucket, collection: &str) -> Result<Option<Pointer>> {
    Ok(bucket.read(&path_of(collection)).await?.and_then(|there| id_of(&there.bytes)))
}

/// Names the table of a new collection; whether there was none of that name.
pub(crate) async fn create(bucket: &Bucket, collection: &str, table: &str) -> Result<bool> {
    bucket.create(&path_of(collection), table).await
}

/// Deletes a collection that still has that table, and then the table.
pub(crate) async fn remove(bucket: &Bucket, collection: &str, table: &str) -> Result<()> {
    if of(bucket, collection).await?.as_deref() == Some(table) {
        bucket.remove(&path_of(collection)).await?;
    }
    bucket.remove_all(&table_prefix(table)).await
}

/// Removes tables that were deleted, or made, by a node that did not come to the end of it.
pub(crate) async fn remove_orphans(bucket: &Bucket, pointers: &Pointers) -> Result<usize> {
    let mut newest: BTreeMap<String, u64> = BTreeMap::new();
    for object in bucket.list(&Path::from(TABLES), None).await? {
        let Some(table) = object.location.parts().nth(1) else { continue };
        let Some(id) = table.as_ref().strip_suffix(".lance") else { continue };
        let newest = newest.entry(id.to_owned()).or_default();
        *newest = (*newest).max(written_ms(&object));
    }
    // Behind the listing: what was named meanwhile is not removed.
    let named = pointers.all(bucket).await?;
    let mut removed = 0;
    for (id, written_ms) in newest {
        let is_old = bucket.now_ms().saturating_sub(written_ms) >= ORPHANED.as_millis() as u64;
        if is_old && !named.values().any(|table| *table == id) {
            bucket.remove_all(&table_prefix(&id)).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn path_of(collection: &str) -> Path {
    Path::from(format!("{COLLECTIONS}/{}", table_name(collection)))
}

fn id_of(bytes: &[u8]) -> Option<Pointer> {
    let id = std::str::from_utf8(bytes).ok()?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_id.then(|| id.to_owned())
}
