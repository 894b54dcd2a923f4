//! Documents on their way into the corpus, and those of files that are gone on their way out.

use ragstone_storage::corpus::{Document, Going, Taken, UpsertProgress, UpsertReport};

use super::{Library, Removed, Withdrawn};
use crate::error::{Error, ErrorKind, Result};
use crate::ingests::{self, Begun};
use crate::jobs::JobKind;

impl Library {
    /// As [`Corpus::upsert`](ragstone_storage::corpus::Corpus::upsert); KV of passages that no document has any more leaves the store. If the
    /// caller goes away, it goes on as long as it is `wanted`, which is asked between commits.
    ///
    /// # Errors
    /// `Cancelled` once it is not wanted any more; what was committed by then stays.
    pub async fn upsert(
        &self,
        collection: &str,
        documents: Vec<Document>,
        asks: Option<&str>,
        wanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<(UpsertReport, Withdrawn)> {
        let asked = move |progress: UpsertProgress| match wanted() {
            true => Ok(Going::On),
            false => {
                let message = format!(
                    "the caller went away; {} of {} documents were stored",
                    progress.documents_done, progress.documents_total
                );
                Err(Error::new(ErrorKind::Cancelled, message))
            }
        };
        let (taken, kv) = self.take(collection, documents, asks, asked).await?;
        Ok((taken.report, kv))
    }

    /// Documents of an ingest, until the service stops: what has its vectors by then is stored, and how many documents that were is told.
    ///
    /// # Errors
    /// `Cancelled` where the ingest was: then nothing more of it is stored.
    pub async fn take_in(&self, of: &Begun, documents: Vec<Document>) -> Result<Taken> {
        let (begun, stopping) = (of.clone(), self.0.jobs.stopping().clone());
        let asked = move |_| match (begun.cancelled.is_cancelled(), stopping.is_cancelled()) {
            (true, _) => Err(ingests::cancelled(begun.cancelled_by())),
            (false, true) => Ok(Going::Enough),
            (false, false) => Ok(Going::On),
        };
        self.take(&of.job.collection, documents, None, asked).await.map(|(taken, _)| taken)
    }

    async fn take(
        &self,
        collection: &str,
        documents: Vec<Document>,
        asks: Option<&str>,
        asked: impl Fn(UpsertProgress) -> Result<Going> + Send + Sync + 'static,
    ) -> Result<(Taken, Withdrawn)> {
        let (library, collection, reach) = (self.clone(), collection.to_owned(), self.reach(asks).await);
        let change = self.0.jobs.run(JobKind::Change, async move {
            let change = library.change(reach)?;
            let taken = library.0.corpus.upsert_while(&collection, documents, &change, &asked).await?;
            library.0.store.env().fail_point("removal.left_corpus")?;
            Ok((taken, change.finish().await?))
        });
        change.await
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
