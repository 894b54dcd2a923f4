//! How an upsert goes on: whether it is still wanted, and when it may compute.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Corpus;
use super::ingest::{Going, UpsertProgress};
use super::table::Collection;
use crate::{Error, ErrorKind, Result};

/// A piece of an upsert that takes processors. None holds anything that another upsert or removal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A document is cut into passages, on one thread.
    Cut,
    /// Some texts go through the embedding model, on all.
    Embed,
}

/// What an upsert asks whoever wants it. A function that hears how far it is, and says whether it goes on, is one whose pieces wait for
/// nobody.
pub trait Course: Send + Sync {
    /// Hears how far the upsert is, and says whether it goes on; an error ends it before the next commit.
    ///
    /// # Errors
    /// Whatever ends it.
    fn asked(&self, progress: UpsertProgress) -> Result<Going>;

    /// Hears that so many documents are new to the collection, before any of them is stored.
    ///
    /// # Errors
    /// Whatever keeps them out; then nothing is stored.
    fn adding(&self, _: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Waits for the turn at a piece of work. It is over when the result is dropped.
    fn turn(&self, _: Piece) -> BoxFuture<'_, Box<dyn Send>> {
        Box::pin(std::future::ready(Box::new(()) as Box<dyn Send>))
    }
}

impl<F: Fn(UpsertProgress) -> Result<Going> + Send + Sync> Course for F {
    fn asked(&self, progress: UpsertProgress) -> Result<Going> {
        self(progress)
    }
}

/// Where an upsert's documents go. Between two commits others write, and another table may take its place, or none.
pub(super) struct Destination {
    pub table: Arc<Collection>,
    /// How many commits the table had when the upsert last looked at what it holds; `None`: it did not look yet.
    pub seen: Option<u64>,
}

impl Destination {
    /// A table, before anybody looks at what it holds.
    pub fn new(table: Arc<Collection>) -> Self {
        let seen = Some(table.commits());
        Self { table, seen }
    }

    /// Looks for the table that has taken this one's place. Where the collection was deleted, and perhaps made anew, who has no part in what was
    /// there begins anew, as if it had come later; a part is what it stored, and what it found there as it wants it. `None`: it is not
    /// wanted any more.
    ///
    /// # Errors
    /// `NotFound` where a part of the upsert went with the collection; what `course` returns.
    pub async fn again(
        &self,
        (corpus, collection): (&Corpus, &str),
        progress: UpsertProgress,
        has_part: bool,
        course: &dyn Course,
    ) -> Result<Option<Self>> {
        let table = match corpus.find(collection).await {
            _ if has_part && self.table.is_gone() => return Err(deleted_meanwhile(collection, progress)),
            Ok(table) => Some(table),
            Err(_) if has_part => return Err(deleted_meanwhile(collection, progress)),
            Err(_) => corpus.find_or_create(collection, &|| course.asked(progress)).await?,
        };
        Ok(table.map(Self::new))
    }
}

fn deleted_meanwhile(collection: &str, progress: UpsertProgress) -> Error {
    let UpsertProgress { documents_done, documents_total, .. } = progress;
    let message = format!(
        "collection `{collection}` was deleted while documents were added to it: {documents_done} of {documents_total} went with it, \
         and the others were not stored; send them again where they are wanted"
    );
    Error::new(ErrorKind::NotFound, message)
}
