//! Which table a collection has: one small object names it. Creating it creates the collection, removing it deletes the collection, for all
//! nodes at once; a table that no object names is nobody's. An object that is there and cannot be read is damage, and not "no collection":
//! while there is one, nobody can say which tables are nobody's, and none is removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use object_store::path::Path;
use ragstone_env::lock::locked;

use super::{Bucket, TABLES, table_prefix, written_ms};
use crate::naming::{Stage, stage_of, table_name};
use crate::{Error, ErrorKind, Result};

const COLLECTIONS: &str = "collections";
/// How old a table that nobody names must be to be removed: whoever makes one names it at once.
const ORPHANED: Duration = Duration::from_secs(3600);

/// The name of a collection's table.
pub(crate) type Pointer = String;

/// The collections as they were last listed.
#[derive(Debug, Default)]
pub(crate) struct Pointers {
    /// By the etag of the object that says so; `None`: it cannot be read.
    known: Mutex<HashMap<String, Option<Pointer>>>,
    /// Those that could not be read then: each is told once.
    told: Mutex<BTreeSet<String>>,
}

/// The collections that a bucket has.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// With their tables.
    pub tables: BTreeMap<String, Pointer>,
    /// Those whose tables nobody can say.
    pub unreadable: BTreeSet<String>,
}

impl Pointers {
    /// Every collection.
    pub async fn all(&self, bucket: &Bucket) -> Result<Named> {
        let listed = bucket.list(&Path::from(COLLECTIONS), None).await?;
        let (mut named, mut known) = (Named::default(), HashMap::new());
        for object in listed {
            let Some((name, Stage::Serving)) = object.location.filename().and_then(stage_of) else { continue };
            let tag = object.e_tag.map(|tag| format!("{} {tag}", object.location));
            let before = tag.as_ref().and_then(|tag| locked(&self.known).get(tag).cloned());
            let table = match before {
                Some(table) => table,
                None => match bucket.read(&object.location).await? {
                    Some(there) => id_of(&there.bytes),
                    // Deleted meanwhile.
                    None => continue,
                },
            };
            known.extend(tag.map(|tag| (tag, table.clone())));
            if let Some(table) = table {
                named.tables.insert(name, table);
            } else {
                named.unreadable.insert(name);
            }
        }
        *locked(&self.known) = known;
        let mut told = locked(&self.told);
        for name in named.unreadable.difference(&told) {
            let error = Self::unreadable(name);
            tracing::warn!(collection = name, %error, "what it has stays where it is, and no table that nobody names is removed");
        }
        *told = named.unreadable.clone();
        Ok(named)
    }

    /// The object of a collection cannot be read.
    pub fn unreadable(collection: &str) -> Error {
        let path = path_of(collection);
        let message = format!("the object `{path}` of the bucket, which says which table it has, cannot be read");
        Error::new(ErrorKind::Corrupt, message)
    }

    /// Deletes a collection whose object cannot be read. Its table is nobody's then, and leaves with those.
    pub async fn remove_unreadable(bucket: &Bucket, collection: &str) -> Result<()> {
        bucket.remove(&path_of(collection)).await
    }

    /// Removes a table that was made for a collection, which may have got it or another one.
    pub async fn take_back(bucket: &Bucket, collection: &str, table: &str) -> Result<()> {
        if of(bucket, collection).await?.as_deref() == Some(table) {
            bucket.remove(&path_of(collection)).await?;
        }
        bucket.remove_all(&table_prefix(table)).await
    }
}

/// The table of a collection; `None`: there is no such collection.
///
/// # Errors
/// `Corrupt` for an object that cannot be read; `Unavailable` where the bucket does not answer.
pub(crate) async fn of(bucket: &Bucket, collection: &str) -> Result<Option<Pointer>> {
    match bucket.read(&path_of(collection)).await? {
        Some(there) => id_of(&there.bytes).map(Some).ok_or_else(|| Pointers::unreadable(collection)),
        None => Ok(None),
    }
}

/// Names the table of a new collection; whether there was none of that name.
pub(crate) async fn create(bucket: &Bucket, collection: &str, table: &str) -> Result<bool> {
    bucket.create(&path_of(collection), table).await
}

/// Deletes a collection that still has that table, or of which nobody can say what it has; and then the table.
pub(crate) async fn remove(bucket: &Bucket, collection: &str, table: &str) -> Result<()> {
    let is_its = match of(bucket, collection).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => true,
        named => named?.as_deref() == Some(table),
    };
    if is_its {
        bucket.remove(&path_of(collection)).await?;
    }
    bucket.remove_all(&table_prefix(table)).await
}

/// Removes tables that were deleted, or made, by a node that did not come to the end of it. None while the object of any collection cannot be
/// read: one of them may be that one's.
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
    if !named.unreadable.is_empty() {
        tracing::debug!(unreadable = ?named.unreadable, "tables that nobody names stay");
        return Ok(0);
    }
    let mut removed = 0;
    for (id, written_ms) in newest {
        let is_old = bucket.now_ms().saturating_sub(written_ms) >= ORPHANED.as_millis() as u64;
        if is_old && !named.tables.values().any(|table| *table == id) {
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
