//! What a warm-up does when it has the turn.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use ragstone_storage::catalog::{WarmJob, WarmProgress, WarmSubject};
use ragstone_storage::key::KvKey;
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::Became;
use tokio::sync::mpsc;

use super::{WarmEvent, Warmer, cancelled};
use crate::admission::blocking::blocking;
use crate::answer::background::{Precompute, Precomputed, Whose};
use crate::error::{Error, ErrorKind, Result};

/// Passages between two notes: what a kill can cost.
const PASSAGES_PER_NOTE: usize = 16;
/// How often a batch is seen to again where something was invalidated meanwhile.
const MOST_ROUNDS: usize = 4;
/// How long it waits for the disk before it looks whether it may go on waiting.
const DRAIN_STEP: Duration = Duration::from_secs(5);
/// How long a warm-up waits where answers keep every worker busy: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a warm-up has to see to.
pub(super) enum Work {
    /// Passages, by their ids.
    Passages(Vec<String>),
    /// Texts of a schema's modules, all of one version.
    Modules { version: String, texts: Vec<Segment> },
}

impl Work {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Passages(ids) => ids.len(),
            Self::Modules { texts, .. } => texts.len(),
        }
    }

    /// What the journal says of it.
    pub(super) fn subject(&self, wanted: WarmSubject) -> WarmSubject {
        match (self, wanted) {
            (Self::Modules { version, .. }, WarmSubject::Modules { schema, modules, .. }) => {
                WarmSubject::Modules { schema, modules, version: version.clone() }
            }
            (_, passages) => passages,
        }
    }

    /// How much of it an earlier run has done that came as far as `last_passage`.
    fn done_before(&self, last_passage: &str) -> usize {
        match self {
            Self::Passages(ids) => ids.partition_point(|id| id.as_str() <= last_passage),
            // What is there is skipped.
            Self::Modules { .. } => 0,
        }
    }

    /// What the journal calls a place in it.
    fn name(&self, at: usize) -> String {
        match self {
            Self::Passages(ids) => ids.get(at).cloned().unwrap_or_default(),
            Self::Modules { .. } => String::new(),
        }
    }

    /// What is left behind the first `begin`, in order.
    pub(super) fn batches(&self, begin: usize, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = self.len();
        (begin..end).step_by(size).map(move |at| at..end.min(at + size))
    }
}

/// An entry that a warm-up is to see to.
pub(super) struct Piece {
    /// Its place in the [`Work`].
    of: usize,
    tenant: String,
    pub(super) wanted: Precompute,
}

/// What was done for one entry.
struct Seen {
    /// Its place in the [`Work`].
    of: usize,
    /// `None`: it cannot be computed.
    did: Option<Precomputed>,
}

/// The entries of some passages or modules.
type Batch = HashMap<KvKey, Seen>;

impl Warmer {
    /// Sees to every passage behind the job's place, and notes it batch by batch.
    pub(super) async fn work(&self, job: &WarmJob, events: &mpsc::Sender<Result<WarmEvent>>) -> Result<WarmProgress> {
        let work = self.work_of(&job.subject, &job.tenants).await?;
        let mut progress = job.progress.clone();
        let begin = work.done_before(&progress.last_passage);
        if begin == 0 {
            // It begins anew: what an earlier run computed it finds there.
            progress = WarmProgress::default();
        }
        (progress.passages_done, progress.passages_total) = (begin as u64, work.len() as u64);
        progress.entries_lost = 0;
        let mut at_place = progress.clone();
        for batch in work.batches(begin, PASSAGES_PER_NOTE) {
            self.show(job, &progress);
            let lost = self.batch(job, &work, batch.clone(), &mut progress).await?;
            progress.passages_done += (batch.len() - lost.min(batch.len())) as u64;
            // Once something is not on the disk, the place stays before it: after a kill it is looked at again.
            if progress.entries_lost == 0 {
                progress.last_passage = work.name(batch.end - 1);
                at_place = progress.clone();
            }
            // The next run counts what is behind the place.
            let noted = WarmProgress { entries_lost: progress.entries_lost, ..at_place.clone() };
            self.note(job.id, &noted).await?;
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

    /// Sees to some entries and counts what became of them; how many passages or texts stay to be done.
    async fn batch(&self, job: &WarmJob, work: &Work, at: Range<usize>, progress: &mut WarmProgress) -> Result<usize> {
        let store = &self.0.pipeline.store;
        let mut batch = Batch::new();
        for round in 1.. {
            let found_in = store.epoch();
            self.compute(job, work, at.clone(), &mut batch).await?;
            self.written(job.id).await?;
            let lost = |key: &KvKey, seen: &Seen| seen.should_be_here() && store.became_of(key) == Became::Lost;
            // What was invalidated meanwhile was taken away on purpose: what is still in the corpus is computed once more.
            if round == MOST_ROUNDS || store.epoch() == found_in || !batch.iter().any(|(key, seen)| lost(key, seen)) {
                break;
            }
            batch.retain(|key, seen| !lost(key, seen));
        }
        let mut unfinished = BTreeSet::new();
        for (key, Seen { of, did }) in batch {
            let became = did.is_some_and(is_local).then(|| store.became_of(&key));
            match (did, became) {
                (None | Some(Precomputed::Unkeepable), _) => progress.entries_failed += 1,
                (_, Some(Became::Declined)) => progress.entries_declined += 1,
                (_, Some(Became::Lost)) => {
                    progress.entries_lost += 1;
                    unfinished.insert(of);
                }
                (Some(Precomputed::Computed), _) => progress.entries_computed += 1,
                (Some(_), _) => progress.entries_skipped += 1,
            }
        }
        Ok(unfinished.len())
    }

    /// Computes what is missing of these entries and is not in `batch` yet.
    async fn compute(&self, job: &WarmJob, work: &Work, at: Range<usize>, batch: &mut Batch) -> Result<()> {
        let found_in = self.0.pipeline.store.epoch();
        // Behind the epoch: what is withdrawn from here on is not filed.
        self.check_text(job)?;
        let pieces = || self.pieces(&job.subject, &job.tenants, work, at.clone(), found_in);
        for piece in self.patiently(job.id, pieces).await? {
            if let Entry::Vacant(place) = batch.entry(piece.wanted.key) {
                let did = self.entry(job.id, &piece).await?;
                place.insert(Seen { of: piece.of, did });
            }
        }
        Ok(())
    }

    /// Fails where a schema has another text than the job is of.
    fn check_text(&self, job: &WarmJob) -> Result<()> {
        match (&job.subject, &job.tenants[..]) {
            (WarmSubject::Modules { schema, version, .. }, [tenant]) => {
                self.0.schemas.check_version(tenant, schema, version)
            }
            _ => Ok(()),
        }
    }

    /// The entries of some passages or modules; passages that are gone have none.
    pub(super) async fn pieces(
        &self,
        subject: &WarmSubject,
        tenants: &[String],
        work: &Work,
        at: Range<usize>,
        found_in: u64,
    ) -> Result<Vec<Piece>> {
        let fingerprint = self.0.pipeline.store.fingerprint();
        let mut pieces = Vec::new();
        match (work, subject) {
            (Work::Modules { texts, .. }, _) => {
                for (of, tenant) in at.flat_map(|of| tenants.iter().map(move |tenant| (of, tenant))) {
                    let wanted = Precompute::module(fingerprint, tenant, &texts[of], found_in);
                    pieces.extend(wanted.map(|wanted| Piece { of, tenant: tenant.clone(), wanted }));
                }
            }
            (Work::Passages(ids), WarmSubject::Passages { collection, .. }) => {
                let (root, first) = (self.0.pipeline.root()?, at.start);
                let primer = self.0.pipeline.known.primer();
                let ids = &ids[at];
                let places: HashMap<&str, usize> = ids.iter().map(String::as_str).zip(0..).collect();
                for passage in self.0.corpus.passages_of(collection, ids).await? {
                    let Some(&of) = places.get(passage.id.as_str()) else { continue };
                    for tenant in tenants {
                        let (kind, tokens) = (SegmentKind::Passage, passage.token_ids.clone());
                        let passage = Segment { kind, tokens, place: None };
                        let whose = (fingerprint, &**tenant);
                        let wanted = Precompute::standalone(whose, root.as_ref(), &primer, passage, found_in);
                        pieces.push(Piece { of: first + of, tenant: tenant.clone(), wanted });
                    }
                }
            }
            // The work is of the subject.
            (Work::Passages(_), WarmSubject::Modules { .. }) => {}
        }
        Ok(pieces)
    }

    /// Computes one entry, if it is missing. `None`: it fails at every attempt; the others need not.
    async fn entry(&self, job: u64, piece: &Piece) -> Result<Option<Precomputed>> {
        let pipeline = &self.0.pipeline;
        let attempt = || {
            let (whose, wanted) = (Whose::background(piece.tenant.as_str().into()), piece.wanted.clone());
            async move { pipeline.background.compute(&whose, wanted).await }
        };
        let did = match self.patiently(job, attempt).await {
            Ok(did) => Some(did),
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::ContextLength) => {
                tracing::warn!(%error, key = %piece.wanted.key, "a passage or module cannot be computed ahead");
                None
            }
            Err(error) => return Err(error),
        };
        pipeline.store.env().fail_point("warm.after_entry")?;
        Ok(did)
    }

    /// Tries until the service has time for it. Ends early where the job is cancelled or the service stops.
    async fn patiently<T, F: Future<Output = Result<T>>>(&self, job: u64, attempt: impl Fn() -> F) -> Result<T> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.may_go_on(job)?;
            match attempt().await {
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
        blocking(move || store.flush()).await
    }

    /// Notes how far the job is, once that is on disk.
    async fn note(&self, id: u64, progress: &WarmProgress) -> Result<()> {
        let (store, catalog, progress) = (self.0.pipeline.store.clone(), self.0.catalog.clone(), progress.clone());
        blocking(move || {
            store.env().fail_point("warm.before_note")?;
            match catalog.update_warm_job(id, &progress) {
                Err(error) if error.kind() == ErrorKind::NotFound => Err(cancelled(id)),
                noted => noted,
            }?;
            store.env().fail_point("warm.after_note")
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

/// What passes by itself: every worker or queue is taken, a medium is busy, or answers kept the engine for so long that the entry's time
/// ran out.
fn is_busy(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}
