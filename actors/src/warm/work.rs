//! What a warm-up does when it has the turn.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ragstone_storage::catalog::{WarmJob, WarmProgress};
use ragstone_storage::key::KvKey;
use ragstone_storage::prompt::segment::{Segment, SegmentKind};
use ragstone_storage::store::Became;
use tokio::sync::mpsc;

use super::{WarmEvent, Warmer, cancelled};
use crate::background::{Precompute, Precomputed};
use crate::error::{Error, ErrorKind, Result};
use crate::ragstone::blocking;

/// Passages between two notes: what a kill can cost.
const PASSAGES_PER_NOTE: usize = 16;
/// How often a batch is seen to again where something was invalidated meanwhile.
const MOST_ROUNDS: usize = 4;
/// How long it waits for the disk before it looks whether it may go on waiting.
const DRAIN_STEP: Duration = Duration::from_secs(5);
/// How long a warm-up waits where answers keep every worker busy: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What was done for one entry.
struct Seen {
    /// Its passage.
    passage: String,
    /// `None`: it cannot be computed.
    did: Option<Precomputed>,
}

/// The entries of some passages.
type Batch = HashMap<KvKey, Seen>;

impl Warmer {
    /// Sees to every passage behind the job's place, and notes it batch by batch.
    pub(super) async fn work(&self, job: &WarmJob, events: &mpsc::Sender<Result<WarmEvent>>) -> Result<WarmProgress> {
        let ids = self.passage_ids(&job.collection, job.document.as_deref()).await?;
        let mut progress = job.progress.clone();
        let begin = ids.partition_point(|id| *id <= progress.last_passage);
        (progress.passages_done, progress.passages_total) = (begin as u64, ids.len() as u64);
        progress.entries_lost = 0;
        for batch in ids[begin..].chunks(PASSAGES_PER_NOTE) {
            self.show(job.id, &progress);
            let lost = self.batch(job, batch, &mut progress).await?;
            progress.passages_done += (batch.len() - lost.min(batch.len())) as u64;
            // Once something is not on the disk, the place stays before it: after a kill it is looked at again.
            if progress.entries_lost == 0 {
                progress.last_passage.clone_from(&batch[batch.len() - 1]);
            }
            self.note(job.id, &progress).await?;
            // Nobody has to see every step.
            let _ = events.try_send(Ok(WarmEvent::Progress(progress.clone())));
        }
        if progress.entries_lost == 0 {
            return Ok(progress);
        }
        let message = format!(
            "{} of what the warm-up computed did not reach the disk, or had no room there (the service's log and `ragstone \
             cache status` say why; `disk_bytes` bounds it); it stays in the journal: run it again, or start again, and what is \
             missing is written or computed",
            progress.entries_lost
        );
        Err(Error::new(ErrorKind::Full, message))
    }

    /// Sees to the entries of some passages and counts what became of them; how many passages stay to be done.
    async fn batch(&self, job: &WarmJob, ids: &[String], progress: &mut WarmProgress) -> Result<usize> {
        let store = &self.0.pipeline.store;
        let mut batch = Batch::new();
        for round in 1.. {
            let found_in = store.epoch();
            self.compute(job, ids, &mut batch).await?;
            self.written(job.id).await?;
            let lost = |key: &KvKey, seen: &Seen| seen.should_be_here() && store.became_of(key) == Became::Lost;
            // What was invalidated meanwhile was taken away on purpose: what is still in the corpus is computed once more.
            if round == MOST_ROUNDS || store.epoch() == found_in || !batch.iter().any(|(key, seen)| lost(key, seen)) {
                break;
            }
            batch.retain(|key, seen| !lost(key, seen));
        }
        let mut unfinished = BTreeSet::new();
        for (key, Seen { passage, did }) in batch {
            let became = did.is_some_and(is_local).then(|| store.became_of(&key));
            match (did, became) {
                (None | Some(Precomputed::Unkeepable), _) => progress.entries_failed += 1,
                (_, Some(Became::Declined)) => progress.entries_declined += 1,
                (_, Some(Became::Lost)) => {
                    progress.entries_lost += 1;
                    unfinished.insert(passage);
                }
                (Some(Precomputed::Computed), _) => progress.entries_computed += 1,
                (Some(_), _) => progress.entries_skipped += 1,
            }
        }
        Ok(unfinished.len())
    }

    /// Computes what is missing of the passages' entries and is not in `batch` yet.
    async fn compute(&self, job: &WarmJob, ids: &[String], batch: &mut Batch) -> Result<()> {
        let (store, root) = (&self.0.pipeline.store, self.0.pipeline.root()?);
        let found_in = store.epoch();
        let passages = self.patiently(job.id, || self.0.corpus.passages_of(&job.collection, ids)).await?;
        for passage in passages {
            for tenant in &job.tenants {
                let segment = Segment { kind: SegmentKind::Passage, tokens: passage.token_ids.clone(), place: None };
                let wanted =
                    Precompute { tenant: tenant.as_str().into(), root: root.clone(), passage: segment, found_in };
                let key = wanted.key(store.fingerprint());
                if let Entry::Vacant(place) = batch.entry(key) {
                    let did = self.entry(job.id, wanted, &passage.id).await?;
                    place.insert(Seen { passage: passage.id.clone(), did });
                }
            }
        }
        Ok(())
    }

    /// Computes one entry, if it is missing. `None`: it fails at every attempt; the others need not.
    async fn entry(&self, job: u64, wanted: Precompute, passage: &str) -> Result<Option<Precomputed>> {
        let pipeline = &self.0.pipeline;
        let did = match self.patiently(job, || pipeline.background.compute(wanted.clone())).await {
            Ok(did) => Some(did),
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::ContextLength) => {
                tracing::warn!(%error, passage, "a passage cannot be computed ahead");
                None
            }
            Err(error) => return Err(error),
        };
        pipeline.store.env().fail_point("warm.after_entry")?;
        Ok(did)
    }

    /// Tries until the service has time for it. Ends early where the job is cancelled or the service stops.
    async fn patiently<T, E, F>(&self, job: u64, attempt: impl Fn() -> F) -> Result<T>
    where
        E: Into<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            self.may_go_on(job)?;
            let done: Result<T> = attempt().await.map_err(Into::into);
            match done {
                Err(error) if is_busy(error.kind()) => {
                    tracing::debug!(job, reason = %error, ?pause, "the warm-up waits");
                    // Woken early, it looks whether it may go on.
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.0.wake.notified() => {}
                        () = self.0.jobs.stopping().cancelled() => {}
                    }
                    pause = LONGEST_PAUSE.min(2 * pause);
                }
                done => return done,
            }
        }
    }

    /// Waits until what was computed has been written, or given up, and is safe from a power cut.
    async fn written(&self, job: u64) -> Result<()> {
        loop {
            let store = self.0.pipeline.store.clone();
            if blocking(move || Ok(store.drain_to_disk(DRAIN_STEP))).await? {
                break;
            }
            self.may_go_on(job)?;
        }
        let store = self.0.pipeline.store.clone();
        blocking(move || Ok(store.flush()?)).await
    }

    /// Notes how far the job is, once that is on disk.
    async fn note(&self, id: u64, progress: &WarmProgress) -> Result<()> {
        let (store, catalog, progress) = (self.0.pipeline.store.clone(), self.0.catalog.clone(), progress.clone());
        blocking(move || {
            store.env().fail_point("warm.before_note")?;
            match catalog.update_warm_job(id, &progress) {
                Err(error) if error.kind() == ragstone_storage::ErrorKind::NotFound => Err(cancelled(id)),
                noted => Ok(noted?),
            }?;
            Ok(store.env().fail_point("warm.after_note")?)
        })
        .await
    }
}

impl Seen {
    /// Whether a tier of this machine should have it.
    fn should_be_here(&self) -> bool {
        self.did.is_some_and(is_local)
    }
}

fn is_local(did: Precomputed) -> bool {
    matches!(did, Precomputed::Computed | Precomputed::AlreadyThere)
}

/// What passes by itself: every worker or queue is taken, or answers kept the engine for so long that the entry's time ran out.
fn is_busy(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Overloaded | ErrorKind::DeadlineExceeded)
}
