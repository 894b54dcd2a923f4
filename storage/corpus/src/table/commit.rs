//! One commit to a shared table, whatever becomes of its answers: apart from LanceDB, so that a simulation can run it through weeks of faults.

use std::collections::HashMap;

use crate::bucket::Bucket;
use crate::naming::unknown;
use crate::sharing::table_of;
use crate::{Error, ErrorKind, Result};

/// Tries of one commit.
const ATTEMPTS: usize = 4;

/// A document as its rows have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Added {
    pub id: String,
    pub version: String,
    pub generation: u64,
}

/// A document whose rows leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaving {
    pub id: String,
    /// Of this generation and of earlier ones; `None`: of one that is added, of its own generation, and of others all of them.
    pub up_to: Option<u64>,
}

impl Leaving {
    /// A document that was deleted, or of which another version is added.
    pub fn whole(id: &str) -> Self {
        Self { id: id.to_owned(), up_to: None }
    }
}

/// What a commit asks of a table.
pub(crate) trait Commits: Sync {
    /// What is added.
    type Rows: Sync;

    /// Sees what all nodes committed until now.
    fn refresh(&self) -> impl Future<Output = Result<()>> + Send;

    /// Adds rows that are not there, and takes out the other rows of the documents that leave; of one that is added, those of later claims stay: whoever
    /// slept through its own must not take out what was acknowledged since. An error says nothing about whether it was done. At the first try
    /// nothing can be there, so that rows may simply be added.
    fn write(&self, rows: &Self::Rows, leaving: &[Leaving], is_first: bool) -> impl Future<Output = Result<()>> + Send;

    /// What is there of documents, by their ids.
    fn present(&self, documents: &[String]) -> impl Future<Output = Result<HashMap<String, Vec<Added>>>> + Send;

    /// Takes out the rows of a document that are of earlier generations.
    fn drop_earlier(&self, id: &str, generation: u64) -> impl Future<Output = Result<()>> + Send;
}

/// What became of a commit.
pub(crate) struct Ended {
    /// Commits that took something out.
    pub took_out: u64,
    /// On `Ok` it is in the bucket. `NotFound`: the collection was deleted meanwhile; `Unavailable`: nobody knows.
    pub end: Result<()>,
}

/// Commits to the table `id` of a collection.
pub(crate) async fn commit<T: Commits>(
    table: &T,
    bucket: &Bucket,
    (collection, id): (&str, &str),
    rows: &T::Rows,
    added: &[Added],
    removed: &[Leaving],
) -> Ended {
    let mut took_out = 0;
    let end = steps(table, bucket, (collection, id), rows, (added, removed), &mut took_out).await;
    Ended { took_out, end }
}

async fn steps<T: Commits>(
    table: &T,
    bucket: &Bucket,
    (collection, id): (&str, &str),
    rows: &T::Rows,
    (added, removed): (&[Added], &[Leaving]),
    took_out: &mut u64,
) -> Result<()> {
    let generation = |id: &String| added.iter().find(|added| added.id == *id).map(|added| added.generation);
    let bounded = |one: &Leaving| Leaving { id: one.id.clone(), up_to: one.up_to.or_else(|| generation(&one.id)) };
    let leaving: Vec<Leaving> = removed.iter().map(bounded).collect();
    let mut refused = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            table.refresh().await?;
            if is_done(table, added, removed).await? {
                refused = None;
                break;
            }
        }
        match table.write(rows, &leaving, attempt == 0).await {
            Ok(()) => {
                refused = None;
                break;
            }
            Err(error) => {
                tracing::debug!(collection, %error, "a commit's end is not known; it is looked up");
                refused = Some(error);
            }
        }
    }
    if let Some(error) = refused {
        return Err(Error::new(ErrorKind::Unavailable, format!("{error}; try again")));
    }
    if !removed.is_empty() {
        *took_out += 1;
    }
    drop_earlier_generations(table, added, took_out).await?;
    match table_of(bucket, collection).await? {
        Some(named) if named == id => Ok(()),
        // What was committed went with the table.
        _ => Err(unknown(collection)),
    }
}

/// Whether a change whose answer was lost is there.
async fn is_done<T: Commits>(table: &T, added: &[Added], removed: &[Leaving]) -> Result<bool> {
    let ids = added.iter().map(|added| &added.id).chain(removed.iter().map(|one| &one.id));
    let documents: Vec<String> = ids.cloned().collect();
    let present = table.present(&documents).await?;
    let is_there = |added: &Added| present.get(&added.id).is_some_and(|all| all.contains(added));
    let is_gone = |one: &Leaving| {
        let wanted = added.iter().find(|added| added.id == one.id);
        let is_later = |there: &Added| one.up_to.is_some_and(|up_to| there.generation > up_to);
        present.get(&one.id).is_none_or(|all| all.iter().all(|there| Some(there) == wanted || is_later(there)))
    };
    Ok(added.iter().all(is_there) && removed.iter().all(is_gone))
}

/// Of a document that two nodes added, the rows of the later claim stay. Whoever commits last sees both.
async fn drop_earlier_generations<T: Commits>(table: &T, added: &[Added], took_out: &mut u64) -> Result<()> {
    if added.is_empty() {
        return Ok(());
    }
    let documents: Vec<String> = added.iter().map(|added| added.id.clone()).collect();
    for (id, all) in table.present(&documents).await? {
        let newest = all.iter().map(|added| added.generation).max().unwrap_or_default();
        if all.iter().any(|added| added.generation < newest) {
            table.drop_earlier(&id, newest).await?;
            *took_out += 1;
        }
    }
    Ok(())
}
