//! Takes deleted and replaced text off the disk within a stated time. A deletion marks rows of a table and keys of RocksDB; their bytes stay
//! in files until those are rewritten, which costs as much as what else is in them, and so is done for many deletions at once.
//!
//! ```text
//! note what may hold deleted text -> delete it -> half of the time later, or at once where somebody waits for it: rewrite the files
//!     -> take the note out
//! ```
//! What a bucket keeps that did not answer is tried again meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ragstone_env::lock::locked;
use ragstone_storage::catalog::{Holder, Remains};
use tokio::runtime::Handle;

use super::Library;
use crate::admission::blocking::blocking;
use crate::admission::jobs::JobKind;
use crate::error::{Error, ErrorKind, Result};

/// How often it is looked whether something is due, at the least.
const LOOK: Duration = Duration::from_secs(60);
/// After a vacuum that failed; the first such pause is [`LOOK`], and each is twice the one before.
const MOST_PAUSE: Duration = Duration::from_secs(3600);

/// Whether deleted text has to leave the files now, so that it has left them `within` that time. One that is noted for a time to come, as a
/// clock was set back, has waited long enough.
fn is_due(since_unix_ms: u64, now_unix_ms: u64, within: Duration) -> bool {
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    now_unix_ms.checked_sub(since_unix_ms).is_none_or(|age_ms| age_ms >= within_ms / 2)
}

/// Vacuums that failed: how often in a row, and before when each is not tried again, in milliseconds since 1970. Each costs as much as one
/// that succeeds.
#[derive(Default)]
pub(super) struct PutOff(Mutex<BTreeMap<Holder, (u32, u64)>>);

impl PutOff {
    fn ended(&self, holder: &Holder, has_failed: bool, now_unix_ms: u64) {
        let mut all = locked(&self.0);
        if !has_failed {
            all.remove(holder);
            return;
        }
        let (failed, until) = all.entry(holder.clone()).or_default();
        let pause = LOOK.saturating_mul(1 << (*failed).min(16)).min(MOST_PAUSE);
        *failed += 1;
        *until = now_unix_ms.saturating_add(pause.as_millis() as u64);
    }

    fn is_put_off(&self, holder: &Holder, now_unix_ms: u64) -> bool {
        // Not for longer than that, whatever became of the clock.
        let most = now_unix_ms.saturating_add(MOST_PAUSE.as_millis() as u64);
        locked(&self.0).get(holder).is_some_and(|(_, until)| (now_unix_ms + 1..=most).contains(until))
    }
}

impl Library {
    /// Notes that everything may hold deleted text: the notes were lost with the catalog.
    pub(super) async fn note_all_remains(&self) -> Result<()> {
        let (names, catalog, now) =
            (self.0.corpus.names().await, self.0.catalog.clone(), self.0.store.env().now_unix_ms());
        blocking(move || {
            let all = names.into_iter().map(Holder::Collection).chain([Holder::Kv]);
            all.into_iter().try_for_each(|holder| catalog.note_remains(&holder, now))
        })
        .await
    }

    /// Looks now and then what is to leave the files, or a bucket that did not answer, until the program closes or the service stops.
    pub(crate) fn start_vacuum(&self, within: Duration, runtime: &Handle) {
        let (me, stopping) = (Arc::downgrade(&self.0), self.0.jobs.stopping().clone());
        let pause = (within / 8).min(LOOK).max(Duration::from_millis(50));
        runtime.spawn(async move {
            while stopping.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
                let Some(library) = me.upgrade().map(Library) else { return };
                if let Err(error) = library.tidy(within).await {
                    tracing::warn!(%error, "deleted text is still in files or in the bucket; it is tried again");
                }
                library.compact().await;
            }
        });
    }

    /// Does what is due: tries again what a tier kept that did not answer, and rewrites the files that had deleted text for half of the
    /// time `within` which it is to leave them.
    ///
    /// # Errors
    /// The first that is met; everything else is done all the same.
    pub async fn tidy(&self, within: Duration) -> Result<()> {
        let (store, catalog) = (self.0.store.clone(), self.0.catalog.clone());
        let now_ms = store.env().now_unix_ms();
        let (is_kept, mut due) = blocking(move || Ok((store.has_object_removals()?, catalog.remains()?))).await?;
        due.retain(|row| is_due(row.since_unix_ms, now_ms, within) && !self.0.put_off.is_put_off(&row.holder, now_ms));
        if !self.has_left_over() && !is_kept && due.is_empty() {
            return Ok(());
        }
        let library = self.clone();
        let tidied = self.0.jobs.run(JobKind::Vacuum, async move {
            library.settle_left_over().await;
            let again = if is_kept { library.remove_objects_again().await } else { Ok(()) };
            let vacuumed = library.vacuum(&due.into_iter().map(|row| row.holder).collect::<Vec<_>>()).await;
            again.and(vacuumed)
        });
        tidied.await
    }

    /// Merges the files of collections that nobody has changed for a while.
    async fn compact(&self) {
        for name in self.0.corpus.uncompacted().await {
            let corpus = self.0.corpus.clone();
            let of = name.clone();
            let compacted = self.0.jobs.run(JobKind::Vacuum, async move { corpus.compact(&of).await });
            if let Err(error) = compacted.await
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!(collection = name, %error, "its files could not be merged; searches open more of them than they need to");
            }
        }
    }

    /// Waits until what was deleted from a collection, or with it, is in no file any more, nor its KV.
    ///
    /// # Errors
    /// As the disk says; then it is tried again as if nobody had waited.
    pub async fn vacuum_collection(&self, collection: &str) -> Result<()> {
        let (library, holders) = (self.clone(), [Holder::Collection(collection.to_owned()), Holder::Kv]);
        self.0.jobs.run(JobKind::Vacuum, async move { library.vacuum(&holders).await }).await
    }

    /// As [`vacuum_collection`](Self::vacuum_collection), of everything that was ever deleted.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn vacuum_all(&self) -> Result<()> {
        let (library, catalog) = (self.clone(), self.0.catalog.clone());
        self.0
            .jobs
            .run(JobKind::Vacuum, async move {
                let all = blocking(move || catalog.remains()).await?;
                library.vacuum(&all.into_iter().map(|row| row.holder).collect::<Vec<_>>()).await
            })
            .await
    }

    /// Rewrites the files of those holders that have deleted text.
    async fn vacuum(&self, holders: &[Holder]) -> Result<()> {
        if holders.is_empty() {
            return Ok(());
        }
        // They compete for one disk; and who waited finds it done.
        let _turn = self.0.vacuuming.lock().await;
        let catalog = self.0.catalog.clone();
        let mut failed = None;
        for row in blocking(move || catalog.remains()).await? {
            if !holders.contains(&row.holder) {
                continue;
            }
            if self.0.jobs.stopping().is_cancelled() {
                let message = "the service stops; deleted text leaves the files after the next start";
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
            let holder = row.holder.clone();
            let vacuumed = self.vacuum_one(row).await;
            self.0.put_off.ended(&holder, vacuumed.is_err(), self.0.store.env().now_unix_ms());
            failed = failed.or(vacuumed.err());
        }
        failed.map_or(Ok(()), Err)
    }

    async fn vacuum_one(&self, row: Remains) -> Result<()> {
        let (store, catalog) = (self.0.store.clone(), self.0.catalog.clone());
        let begun_ms = store.env().now_unix_ms();
        match &row.holder {
            Holder::Collection(name) => self.0.corpus.vacuum(name).await?,
            Holder::Kv => blocking(move || store.vacuum_disk()).await?,
        }
        tracing::debug!(holder = ?row.holder, "deleted text has left the files");
        blocking(move || catalog.finish_remains(&row, begun_ms)).await
    }

    /// Removes what a bucket kept that did not answer.
    pub(super) async fn remove_objects_again(&self) -> Result<()> {
        let (store, models) = (self.0.store.clone(), self.fingerprints()?);
        blocking(move || store.invalidate(&[], &models).map(drop)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_time_is_left_for_the_work_and_a_clock_that_was_set_back_puts_nothing_off() {
        let hour = Duration::from_secs(3600);
        let half_ms = 1800 * 1000;
        assert!(!is_due(1000, 1000, hour) && !is_due(1000, 1000 + half_ms - 1, hour));
        assert!(is_due(1000, 1000 + half_ms, hour) && is_due(1000, 999, hour));
        assert!(is_due(5, 5, Duration::ZERO));
    }

    #[test]
    fn what_fails_again_and_again_is_tried_ever_later_and_what_succeeds_is_forgotten() {
        let (put_off, holder, minute) = (PutOff::default(), Holder::Collection("c".into()), 60_000);
        put_off.ended(&holder, true, 0);
        assert!(put_off.is_put_off(&holder, minute - 1) && !put_off.is_put_off(&holder, minute));
        assert!(!put_off.is_put_off(&Holder::Kv, 0));
        put_off.ended(&holder, true, minute);
        assert!(put_off.is_put_off(&holder, 3 * minute - 1) && !put_off.is_put_off(&holder, 3 * minute));
        (0..100).for_each(|_| put_off.ended(&holder, true, 0));
        assert!(put_off.is_put_off(&holder, 60 * minute - 1) && !put_off.is_put_off(&holder, 60 * minute));
        put_off.ended(&holder, false, 0);
        assert!(!put_off.is_put_off(&holder, 0));
    }
}
