//! A table as LanceDB commits it, without LanceDB: versions that are created once each. Who comes second looks what changed and commits again; an
//! answer that is lost leaves the writer not knowing.

use std::collections::HashMap;

use object_store::{Error as StoreError, PutMode};
use serde::{Deserialize, Serialize};

use super::*;
use crate::bucket::Bucket;
use crate::table::{Added, Commits, Leaving};

/// A document's rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    pub id: String,
    pub version: String,
    pub generation: u64,
}

/// A node's view of the table.
pub struct Table {
    pub bucket: Bucket,
    pub store: Arc<dyn ObjectStore>,
    pub name: String,
}

/// How long versions stay: longer than a node sleeps.
const KEPT_MS: u64 = 900_000;
/// Tries of a conditional put, as LanceDB has its thirty seconds.
const TRIES: usize = 60;

impl Table {
    /// The newest version and what it has.
    pub async fn latest(&self) -> Result<(u64, Vec<Document>)> {
        let prefix = Name::from(format!("tables/{}.lance", self.name));
        let Some(newest) = self.bucket.list(&prefix, None).await?.pop() else { return Ok((0, Vec::new())) };
        let read = self.bucket.read(&newest.location).await?;
        let name = newest.location.filename().and_then(|name| name.parse().ok()).unwrap_or_default();
        let rows = read.and_then(|read| serde_json::from_slice(&read.bytes).ok()).unwrap_or_default();
        Ok((name, rows))
    }

    /// Removes versions that nobody reads any more, and from which nobody commits.
    pub async fn prune(&self) -> Result<()> {
        let prefix = Name::from(format!("tables/{}.lance", self.name));
        let mut listed = self.bucket.list(&prefix, None).await?;
        listed.pop();
        for object in listed {
            if self.bucket.now_ms().saturating_sub(crate::bucket::written_ms(&object)) > KEPT_MS {
                self.bucket.remove(&object.location).await?;
            }
        }
        Ok(())
    }

    /// Commits what `changed` makes of the rows; an answer that is lost is an error, as LanceDB's "commit status unknown".
    pub async fn commit(&self, changed: impl Fn(Vec<Document>) -> Vec<Document>) -> Result<()> {
        for _ in 0..TRIES {
            let (version, rows) = self.latest().await?;
            let text = serde_json::to_string(&changed(rows)).unwrap();
            let path = Name::from(format!("tables/{}.lance/{:012}", self.name, version + 1));
            match self.store.put_opts(&path, text.into(), PutMode::Create.into()).await {
                Ok(_) => return Ok(()),
                Err(StoreError::AlreadyExists { .. }) => {}
                Err(error) => return Err(Error::new(ErrorKind::Unavailable, error.to_string())),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "others were first sixty times"))
    }
}

impl Commits for Table {
    type Rows = Vec<Document>;

    async fn refresh(&self) -> Result<()> {
        Ok(())
    }

    async fn write(&self, rows: &Vec<Document>, leaving: &[Leaving], is_first: bool) -> Result<()> {
        self.commit(|mut there| {
            let is_same = |one: &Document, other: &Document| (&one.id, &one.version) == (&other.id, &other.version);
            let is_there = |row: &&Document| there.iter().any(|old| is_same(old, row));
            let new: Vec<Document> =
                rows.iter().filter(|row| (is_first && leaving.is_empty()) || !is_there(row)).cloned().collect();
            let leaves = |old: &Document| {
                leaving.iter().any(|one| one.id == old.id && one.up_to.is_none_or(|up_to| old.generation <= up_to))
            };
            // A merge: what the source has stays, what it replaces goes.
            there.retain(|old| !leaves(old) || rows.iter().any(|row| is_same(row, old)));
            there.extend(new);
            there
        })
        .await
    }

    async fn present(&self, documents: &[String]) -> Result<HashMap<String, Vec<Added>>> {
        let mut present: HashMap<String, Vec<Added>> = HashMap::new();
        for row in self.latest().await?.1.into_iter().filter(|row| documents.contains(&row.id)) {
            let added = Added { id: row.id.clone(), version: row.version, generation: row.generation };
            present.entry(row.id).or_default().push(added);
        }
        Ok(present)
    }

    async fn drop_earlier(&self, id: &str, generation: u64) -> Result<()> {
        self.commit(|there| there.into_iter().filter(|row| row.id != id || row.generation >= generation).collect())
            .await
    }
}
