//! Documents on their way into the corpus, and those of files that are gone on their way out.

use std::sync::Mutex;

use futures::future::BoxFuture;
use ragstone_corpus::{Course, Going, Piece, Taken, UpsertProgress, UpsertReport, tenant_of};
use ragstone_documents::Document;
use ragstone_env::Env;
use ragstone_env::lock::locked;

use super::{Library, Removed, Withdrawn};
use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::jobs::JobKind;
use crate::admission::quotas::Adding;
use crate::admission::turns::Turns;
use crate::error::{Error, ErrorKind, Result};
use crate::upkeep::ingests::{self, Begun};

/// Documents that are cut at once: a long one takes a thread for a while.
const CUT_AT_ONCE: usize = 4;
/// Calls of the embedding model for upserts at once. Each computes on all processors for moments, so that more would only end later.
const EMBEDDED_AT_ONCE: usize = 2;

/// Turns at the pieces of upserts, by which those of several callers go on side by side, however long each takes.
pub(super) struct Pieces {
    cut: Turns,
    embed: Turns,
}

impl Pieces {
    pub fn new(env: &Env) -> Self {
        let cut = Turns::for_long_work(CUT_AT_ONCE, 1, env.clone());
        Self { cut, embed: Turns::new(EMBEDDED_AT_ONCE, env.clone()) }
    }

    async fn turn(&self, piece: Piece, caller: Caller) -> Box<dyn Send> {
        let turns = match piece {
            Piece::Cut => &self.cut,
            Piece::Embed => &self.embed,
        };
        Box::new(turns.take(caller).await)
    }
}

/// An upsert of a caller.
struct OnItsWay<F> {
    library: Library,
    collection: String,
    caller: Caller,
    asked: F,
    /// Its documents that count for its tenant's quota and are not stored yet.
    adding: Mutex<Option<Adding>>,
}

impl<F: Fn(UpsertProgress) -> Result<Going> + Send + Sync> Course for OnItsWay<F> {
    fn asked(&self, progress: UpsertProgress) -> ragstone_storage::Result<Going> {
        let going = (self.asked)(progress)?;
        if let Some(adding) = &mut *locked(&self.adding) {
            adding.left(progress.documents_total.saturating_sub(progress.documents_done) as u64);
        }
        Ok(going)
    }

    /// A quota is asked for what comes with a tenant's key. The data folder's owner may add what he likes.
    fn adding(&self, documents: usize) -> BoxFuture<'_, ragstone_storage::Result<()>> {
        Box::pin(async move {
            if self.caller.is_tenant() {
                let (inner, tenant) = (&self.library.0, tenant_of(&self.collection));
                let adding = inner.quotas.add_documents(&inner.corpus, tenant, documents as u64).await?;
                *locked(&self.adding) = adding;
            }
            Ok(())
        })
    }

    fn turn(&self, piece: Piece) -> BoxFuture<'_, Box<dyn Send>> {
        Box::pin(self.library.0.pieces.turn(piece, self.caller))
    }
}

impl Library {
    /// As [`Corpus::upsert`](ragstone_corpus::Corpus::upsert); KV of passages that no document has any more leaves the store. If the
    /// caller goes away, it goes on as long as it is `wanted`, which is asked between calls of the embedding model. It computes at the
    /// caller's turns, beside the upserts of others.
    ///
    /// # Errors
    /// `Cancelled` once it is not wanted any more, or the service stops; what was committed by then stays.
    pub async fn upsert(
        &self,
        collection: &str,
        documents: Vec<Document>,
        (asks, caller): (Option<&str>, Caller),
        wanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<(UpsertReport, Withdrawn)> {
        let stopping = self.0.jobs.stopping().clone();
        let asked = move |progress: UpsertProgress| {
            let why = match (wanted(), stopping.is_cancelled()) {
                (true, false) => return Ok(Going::On),
                (true, true) => "the service stops; send the others again",
                (false, _) => "the caller went away",
            };
            let UpsertProgress { documents_done, documents_total, .. } = progress;
            let message = format!("{documents_done} of {documents_total} documents were stored: {why}");
            Err(Error::new(ErrorKind::Cancelled, message))
        };
        let (taken, kv) = self.take(collection, documents, (asks, caller), asked).await?;
        Ok((taken.report, kv))
    }

    /// Documents of an ingest, until the service stops: what has its vectors by then is stored, and how many documents that were is told.
    ///
    /// # Errors
    /// `Cancelled` where the ingest was: then nothing more of it is stored.
    pub async fn take_in(&self, of: &Begun, documents: Vec<Document>) -> Result<Taken> {
        self.take_in_telling(of, documents, |_| ()).await
    }

    /// As [`take_in`](Self::take_in); `told` hears how far it is, also between two commits.
    ///
    /// # Errors
    /// As [`take_in`](Self::take_in).
    pub async fn take_in_telling(
        &self,
        of: &Begun,
        documents: Vec<Document>,
        told: impl Fn(UpsertProgress) + Send + Sync + 'static,
    ) -> Result<Taken> {
        let (begun, stopping) = (of.clone(), self.0.jobs.stopping().clone());
        let asked = move |progress| {
            told(progress);
            match (begun.cancelled.is_cancelled(), stopping.is_cancelled()) {
                (true, _) => Err(ingests::cancelled(begun.cancelled_by())),
                (false, true) => Ok(Going::Enough),
                (false, false) => Ok(Going::On),
            }
        };
        let program = (None, Caller::default());
        self.take(&of.job.collection, documents, program, asked).await.map(|(taken, _)| taken)
    }

    async fn take(
        &self,
        collection: &str,
        documents: Vec<Document>,
        (asks, caller): (Option<&str>, Caller),
        asked: impl Fn(UpsertProgress) -> Result<Going> + Send + Sync + 'static,
    ) -> Result<(Taken, Withdrawn)> {
        let (library, collection, reach) = (self.clone(), collection.to_owned(), self.reach(asks).await);
        let change = self.0.jobs.run(JobKind::Change, async move {
            let change = library.change(reach)?;
            let (library_of, name, adding) = (library.clone(), collection.clone(), Mutex::default());
            let course = OnItsWay { library: library_of, collection: name, caller, asked, adding };
            let taken = library.0.corpus.upsert_while(&collection, documents, &change, &course).await;
            // Also where it failed half way: there may be a collection now.
            library.note_collection(&collection).await?;
            let taken = taken?;
            library.0.store.env().fail_point("removal.left_corpus")?;
            // The documents are stored, whatever becomes of the KV of older ones.
            Ok((taken, change.finish_or_leave().await))
        });
        change.await
    }

    /// Notes that a collection is there, if it is. Not while somebody removes it.
    async fn note_collection(&self, collection: &str) -> Result<()> {
        let _gate = self.0.ingests.at_the_gate(collection).await;
        if !self.0.corpus.has(collection).await {
            return Ok(());
        }
        let (catalog, name) = (self.0.catalog.clone(), collection.to_owned());
        blocking(move || catalog.note_collection(&name)).await
    }

    /// Removes a document whose file is gone, as an ingest was asked to. No ingest brings it back, so that none is forgotten; and whoever
    /// cancels this one waits until it is done.
    ///
    /// # Errors
    /// `Cancelled` where the ingest was; else as [`delete_document`](Library::delete_document)'s.
    pub async fn remove_gone(&self, of: &Begun, document: &str) -> Result<Removed> {
        let (library, of, document) = (self.clone(), of.clone(), document.to_owned());
        let change = self.0.jobs.run(JobKind::Change, async move {
            let gate = library.0.ingests.at_the_gate(&of.job.collection).await;
            if of.cancelled.is_cancelled() {
                return Err(ingests::cancelled(of.cancelled_by()));
            }
            let change = library.change(library.reach(None).await)?;
            let passages_removed = library.0.corpus.delete(&of.job.collection, &document, &change).await?;
            drop(gate);
            library.0.store.env().fail_point("removal.left_corpus")?;
            Ok(Removed { passages_removed, jobs_cancelled: 0, kv: change.finish().await? })
        });
        change.await
    }
}
