//! KV of passages that left the corpus, on its way out of the tiers. Every change takes its own along; what a tier keeps that does not
//! answer is tried again beside others' changes, which neither wait for it nor hear of it.

use ragstone_env::lock::locked;
use ragstone_storage::catalog::{Holder, Leaving, Reach};

use super::{Change, Library, Withdrawn};
use crate::admission::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};

/// Rows of the journal whose passages are looked for in one scan of the corpus.
const ROWS_PER_SCAN: usize = 16;

impl Library {
    /// Takes the KV of `rows` of the journal out of the store; then the rows out of the journal. Their changes of the corpus are done, or
    /// failed and will not be done.
    ///
    /// # Errors
    /// As a tier says: then what is left is tried again by [`settle_left_over`](Self::settle_left_over).
    pub(super) async fn settle(&self, mut rows: Vec<u64>) -> Result<Withdrawn> {
        let mut sum = Withdrawn::default();
        while !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ROWS_PER_SCAN));
            match self.settle_some(&rows).await {
                Ok(withdrawn) => sum.add(withdrawn),
                Err(error) => {
                    locked(&self.0.left_over).extend(rows.into_iter().chain(rest));
                    return Err(error);
                }
            }
            rows = rest;
        }
        Ok(sum)
    }

    /// Tries again what earlier changes could not remove; whether nothing is left.
    pub(super) async fn settle_left_over(&self) -> bool {
        let mut rows = std::mem::take(&mut *locked(&self.0.left_over));
        let mut failed = None;
        while !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ROWS_PER_SCAN));
            // One that fails keeps the others from nothing.
            failed = self.settle(rows).await.err().or(failed);
            rows = rest;
        }
        if let Some(error) = &failed {
            tracing::warn!(%error, "KV of removed passages is still in a tier that does not answer; it is tried again");
        }
        failed.is_none()
    }

    /// Whether a change left KV behind that it could not remove.
    pub(super) fn has_left_over(&self) -> bool {
        !locked(&self.0.left_over).is_empty()
    }

    async fn settle_some(&self, rows: &[u64]) -> Result<Withdrawn> {
        let (catalog, wanted) = (self.0.catalog.clone(), rows.to_vec());
        let leaving = blocking(move || catalog.leaving_passages(&wanted)).await?;
        let mut sum = Withdrawn::default();
        for Leaving { reach, passages } in leaving {
            sum.add(match &reach {
                Reach::Everyone => {
                    let absent = self.absent(&passages, |_| true).await?;
                    self.tell_nodes(passages.iter().filter(|passage| absent.contains(&passage.id))).await?;
                    self.withdraw(None, &passages, &absent).await?
                }
                Reach::Each { asks } => {
                    self.tell_nodes(passages.iter()).await?;
                    self.withdraw_each(asks.as_deref(), &passages).await?
                }
            });
        }
        let (store, catalog, rows) = (self.0.store.clone(), self.0.catalog.clone(), rows.to_vec());
        blocking(move || {
            store.flush()?;
            // Behind the removal, so that no vacuum takes the note for done before; a kill in between has the journal's rows settled again.
            catalog.note_remains(&Holder::Kv, store.env().now_unix_ms())?;
            store.env().fail_point("removal.left_store")?;
            catalog.finish_removals(&rows)
        })
        .await?;
        Ok(sum)
    }
}

impl Change {
    /// Takes along the KV of what left. What a tier says that cannot be reached names its files and objects, and is for the log alone.
    ///
    /// # Errors
    /// `Unavailable` where some is still in a tier.
    pub(super) async fn finish(&self) -> Result<Withdrawn> {
        let rows = std::mem::take(&mut *locked(&self.rows));
        self.library.settle(rows).await.map_err(|error| {
            tracing::warn!(%error, "KV of a text that left the corpus is still in a tier that does not answer");
            let message = "the text left the corpus, and nothing finds it any more; some of its KV is in a tier that does not answer now \
                           (see the service's log), and is removed as soon as it does";
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    /// As [`finish`](Self::finish), of a change that is done whatever becomes of the KV of what it replaced.
    pub(super) async fn finish_or_leave(&self) -> Withdrawn {
        self.finish().await.unwrap_or(Withdrawn { pending: true, ..Withdrawn::default() })
    }
}
