//! The journal of ingests, and what takes one out of it for good. An ingest that was not finished goes on at the next start, so
//! that whoever deletes a collection, or a document of its files, must cancel it first: else it brings back what was deleted.
//!
//! An ingest writes nothing once it is cancelled: it is asked in the turn to write, and before a collection is made
//! ([`Corpus::upsert_while`](ragstone_corpus::Corpus::upsert_while)), and a removal cancels before it takes that turn. None can be
//! begun between the two, for which [`removing`](Ingests::removing) is held.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use ragstone_env::lock::locked;
use ragstone_storage::catalog::{Catalog, IngestJob, IngestOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio_util::sync::CancellationToken;

use crate::admission::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};
pub use crate::report::progress::IngestProgress;

/// A job that was begun so often, and never got further, is taken up by nobody but the user. More than the attempts that one file has, so
/// that a few bad files in a row do not park it.
pub const MAX_STARTS: u32 = 5;

/// Whether only the user takes a job up again.
pub fn is_parked(job: &IngestJob) -> bool {
    job.starts >= MAX_STARTS
}

/// The journal of ingests. Clones share it.
#[derive(Clone)]
pub struct Ingests(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    /// Those that somebody waits for or runs, by their ids: also ones that are finished already, as another asked for the same.
    begun: Mutex<BTreeMap<u64, Known>>,
    /// The one that has the turn.
    at_work: Mutex<Option<AtWork>>,
    /// Why those that are in the journal and that nobody runs failed, since the start.
    failed: Mutex<BTreeMap<u64, String>>,
    /// One for each collection that somebody is at.
    gates: Mutex<BTreeMap<String, Weak<RwLock<()>>>>,
}

struct Known {
    job: IngestJob,
    cancelled: CancellationToken,
    why: Arc<OnceLock<CancelledBy>>,
    alive: Weak<()>,
}

impl Known {
    fn cancel(self, by: CancelledBy) {
        // Nobody cancels twice: it is known no more.
        let _ = self.why.set(by);
        self.cancelled.cancel();
    }
}

/// A job that is to be run.
#[derive(Debug, Clone)]
pub struct Begun {
    /// As the journal has it.
    pub job: IngestJob,
    /// Somebody deleted what it would write, or ended it by its number.
    pub cancelled: CancellationToken,
    why: Arc<OnceLock<CancelledBy>>,
    _alive: Arc<()>,
}

impl Begun {
    /// Who cancelled it. Of one that nobody did, somebody who asked.
    pub fn cancelled_by(&self) -> CancelledBy {
        self.why.get().copied().unwrap_or_default()
    }
}

/// Why a job was cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelledBy {
    /// Somebody ended it by its number.
    #[default]
    Request,
    /// Its collection, or a document that it may have brought back, was deleted.
    Deletion,
}

/// The job that has the turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtWork {
    /// Its number.
    pub id: u64,
    /// Where its documents go.
    pub collection: String,
    /// Files that this start got done.
    pub files_done: u64,
    /// Files that it found.
    pub files_total: u64,
    /// How far it is within them.
    pub progress: IngestProgress,
}

/// Until this is dropped, also by a panic, a job has the turn.
pub struct HasTurn(Ingests);

impl Drop for HasTurn {
    fn drop(&mut self) {
        *locked(&self.0.0.at_work) = None;
    }
}

/// An ingest that is not finished, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnfinishedIngest {
    /// Its number: it is cancelled by it.
    #[serde(default)]
    pub id: u64,
    /// Where its documents go.
    pub collection: String,
    /// What was named to it.
    pub paths: Vec<PathBuf>,
    /// When it was asked for first, in milliseconds since 1970.
    #[serde(default)]
    pub created_unix_ms: u64,
    /// What it does.
    pub state: IngestState,
    /// The most files that one start got done, this one included.
    pub files_done: u64,
    /// Files that there are, once the start that runs has found them.
    #[serde(default)]
    pub files_total: Option<u64>,
    /// How far it is within them, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<IngestProgress>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
}

/// What an unfinished ingest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IngestState {
    /// It works.
    Running,
    /// Another one has the turn.
    Waiting,
    /// Nobody is at it. The next start goes on with it, and so does `ragstone ingest` with its paths.
    Interrupted,
    /// It failed, as `error` says. The next start goes on with it, and so does `ragstone ingest` with its paths.
    Failed,
    /// It ended ragstone again and again, and only `ragstone ingest` with its paths takes it up.
    Parked,
}

impl From<IngestJob> for UnfinishedIngest {
    fn from(job: IngestJob) -> Self {
        let state = if is_parked(&job) { IngestState::Parked } else { IngestState::Interrupted };
        let IngestJob { id, collection, paths, created_unix_ms, done: files_done, .. } = job;
        let (files_total, progress, error) = (None, None, None);
        Self { id, collection, paths, created_unix_ms, state, files_done, files_total, progress, error }
    }
}

impl Ingests {
    /// Over an open catalog.
    pub(crate) fn new(catalog: Arc<Catalog>) -> Self {
        let (begun, at_work, failed, gates) = Default::default();
        Self(Arc::new(Inner { catalog, begun, at_work, failed, gates }))
    }

    /// Journals a job. One with the same collection, paths and options that was not finished is taken up instead, also where it was
    /// parked; whether it is a new one. Waits while something is removed.
    ///
    /// # Errors
    /// `InvalidInput` if a path is not UTF-8; else as the catalog says.
    pub async fn begin(
        &self,
        collection: &str,
        paths: Vec<PathBuf>,
        options: IngestOptions,
        now_unix_ms: u64,
    ) -> Result<(Begun, bool)> {
        let _gate = self.at_the_gate(collection).await;
        let (me, collection) = (self.clone(), collection.to_owned());
        blocking(move || {
            let (mut begun, catalog) = (me.begun(), &me.0.catalog);
            let is_same =
                |job: &IngestJob| job.collection == collection && job.paths == paths && job.options == options;
            let (job, is_new) = match catalog.unfinished_jobs()?.into_iter().find(is_same) {
                Some(job) if is_parked(&job) => {
                    let job = IngestJob { starts: 0, ..job };
                    catalog.update_job(&job)?;
                    (job, false)
                }
                Some(job) => (job, false),
                None => (catalog.add_job_with(&collection, &paths, options, now_unix_ms)?, true),
            };
            Ok((known(&mut begun, job), is_new))
        })
        .await
    }

    /// Every job that is not finished, the oldest first.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn unfinished(&self) -> Result<Vec<Begun>> {
        let me = self.clone();
        blocking(move || {
            let mut begun = me.begun();
            Ok(me.0.catalog.unfinished_jobs()?.into_iter().map(|job| known(&mut begun, job)).collect())
        })
        .await
    }

    /// Every job that is not finished, for people; waits for nobody.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn listed(&self) -> Result<Vec<UnfinishedIngest>> {
        let me = self.clone();
        blocking(move || {
            let (begun, jobs) = (me.begun(), me.0.catalog.unfinished_jobs()?);
            let (at_work, mut failed) = (me.at_work(), locked(&me.0.failed));
            failed.retain(|id, _| jobs.iter().any(|job| job.id == *id));
            let listed = |job: IngestJob| {
                let is_alive = begun.get(&job.id).is_some_and(|known| known.alive.strong_count() > 0);
                let mut listed = UnfinishedIngest::from(job);
                match (&at_work, failed.get(&listed.id)) {
                    (Some(at), _) if at.id == listed.id => {
                        listed.state = IngestState::Running;
                        listed.files_total = (at.files_total > 0).then_some(at.files_total);
                        listed.files_done = listed.files_done.max(at.files_done);
                        // Some of those that an earlier start had done may be gone.
                        listed.files_done =
                            listed.files_total.map_or(listed.files_done, |all| listed.files_done.min(all));
                        listed.progress = Some(at.progress);
                    }
                    _ if is_alive => listed.state = IngestState::Waiting,
                    (_, Some(why)) if listed.state != IngestState::Parked => {
                        (listed.state, listed.error) = (IngestState::Failed, Some(why.clone()));
                    }
                    _ => {}
                }
                listed
            };
            Ok(jobs.into_iter().map(listed).collect())
        })
        .await
    }

    /// A job has the turn for as long as the result is held.
    pub fn take_turn(&self, job: &IngestJob) -> HasTurn {
        // Unless somebody says how it ended.
        self.failed(job.id, "it broke off; the service's log says why".to_owned());
        let (id, collection) = (job.id, job.collection.clone());
        let (files_done, files_total, progress) = Default::default();
        *locked(&self.0.at_work) = Some(AtWork { id, collection, files_done, files_total, progress });
        HasTurn(self.clone())
    }

    /// How far the job that has the turn is.
    pub fn show(&self, files_done: u64, files_total: u64, progress: IngestProgress) {
        if let Some(at_work) = &mut *locked(&self.0.at_work) {
            (at_work.files_done, at_work.files_total, at_work.progress) = (files_done, files_total, progress);
        }
    }

    /// The job that has the turn.
    pub fn at_work(&self) -> Option<AtWork> {
        locked(&self.0.at_work).clone()
    }

    /// Keeps why a job that stays in the journal failed, for those who look at the list.
    pub fn failed(&self, id: u64, why: String) {
        locked(&self.0.failed).insert(id, why);
    }

    /// The job as the journal has it now. While it waited for its turn, somebody else may have asked for the same and be done: then it is
    /// a new one, with nothing to do.
    ///
    /// # Errors
    /// `Cancelled` where it was; else as the catalog says.
    pub async fn look_up(&self, begun: Begun, now_unix_ms: u64) -> Result<Begun> {
        let _gate = self.at_the_gate(&begun.job.collection).await;
        let me = self.clone();
        blocking(move || {
            let (mut others, catalog) = (me.begun(), &me.0.catalog);
            if begun.cancelled.is_cancelled() {
                return Err(cancelled(begun.cancelled_by()));
            }
            let IngestJob { id, collection, paths, options, .. } = &begun.job;
            match catalog.job(*id)? {
                Some(job) => Ok(Begun { job, ..begun }),
                None => Ok(known(&mut others, catalog.add_job_with(collection, paths, options.clone(), now_unix_ms)?)),
            }
        })
        .await
    }

    /// Writes how far a job is and what it works on; durable on return.
    ///
    /// # Errors
    /// `Cancelled` where it was; else as the catalog says.
    pub async fn note(&self, job: IngestJob) -> Result<()> {
        let catalog = self.0.catalog.clone();
        blocking(move || {
            catalog.update_job(&job).map_err(|error| match error.kind() {
                ErrorKind::NotFound => cancelled(CancelledBy::default()),
                _ => error,
            })
        })
        .await
    }

    /// Takes a job that is done out of the journal.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn finish(&self, id: u64) -> Result<()> {
        let catalog = self.0.catalog.clone();
        blocking(move || catalog.finish_job(id)).await
    }

    /// Keeps jobs into a collection from being begun for as long as the result is held.
    pub(crate) async fn removing(&self, collection: &str) -> OwnedRwLockWriteGuard<()> {
        self.gate(collection).write_owned().await
    }

    /// Keeps what was begun into a collection from being cancelled for as long as the result is held.
    pub(crate) async fn at_the_gate(&self, collection: &str) -> OwnedRwLockReadGuard<()> {
        self.gate(collection).read_owned().await
    }

    fn gate(&self, collection: &str) -> Arc<RwLock<()>> {
        let mut gates = locked(&self.0.gates);
        if let Some(gate) = gates.get(collection).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::default();
        gates.insert(collection.to_owned(), Arc::downgrade(&gate));
        gate
    }

    /// Cancels the jobs into a collection and takes them out of the journal; how many. Any of them may bring back what leaves it: a record
    /// in a file names any source, so that a document does not tell which file it is of. Those that were journaled after the removal `removal`
    /// are somebody's later wish, which a removal that is finished after a kill leaves alone.
    pub(crate) async fn forget(&self, collection: &str, removal: u64) -> Result<usize> {
        let (me, collection) = (self.clone(), collection.to_owned());
        blocking(move || {
            let mut begun = me.begun();
            let forgotten = me.of_collection(&begun, &collection, removal)?;
            for id in &forgotten {
                me.0.catalog.finish_job(*id)?;
                if let Some(known) = begun.remove(id) {
                    known.cancel(CancelledBy::Deletion);
                }
            }
            Ok(forgotten.len())
        })
        .await
    }

    /// Cancels one job, where `is_meant` says so of its collection, and takes it out of the journal; durable on return. It ends within one
    /// batch, and what it stored stays. Whether there was such a job.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn cancel(&self, id: u64, is_meant: impl FnOnce(&str) -> bool + Send + 'static) -> Result<bool> {
        let me = self.clone();
        blocking(move || {
            let mut begun = me.begun();
            let journaled = me.0.catalog.job(id)?;
            // One that another finished may still be waited for.
            let waiting = begun.get(&id).filter(|known| known.alive.strong_count() > 0).map(|known| &known.job);
            if !journaled.as_ref().or(waiting).is_some_and(|job| is_meant(&job.collection)) {
                return Ok(false);
            }
            me.0.catalog.finish_job(id)?;
            if let Some(known) = begun.remove(&id) {
                known.cancel(CancelledBy::Request);
            }
            Ok(true)
        })
        .await
    }

    /// How many jobs [`forget`](Self::forget) would cancel now.
    pub(crate) async fn count(&self, collection: &str) -> Result<usize> {
        let (me, collection) = (self.clone(), collection.to_owned());
        blocking(move || Ok(me.of_collection(&me.begun(), &collection, u64::MAX)?.len())).await
    }

    fn of_collection(&self, begun: &BTreeMap<u64, Known>, collection: &str, before: u64) -> Result<BTreeSet<u64>> {
        let journaled = self.0.catalog.unfinished_jobs()?;
        let waiting = begun.values().filter(|known| known.alive.strong_count() > 0).map(|known| &known.job);
        let all = journaled.iter().chain(waiting).filter(|job| job.id < before && job.collection == collection);
        Ok(all.map(|job| job.id).collect())
    }

    fn begun(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        locked(&self.0.begun)
    }
}

/// The job, with what cancels it.
fn known(begun: &mut BTreeMap<u64, Known>, job: IngestJob) -> Begun {
    begun.retain(|_, known| known.alive.strong_count() > 0);
    if let Some(Known { cancelled, why, alive, .. }) = begun.get(&job.id)
        && let Some(alive) = alive.upgrade()
    {
        return Begun { job, cancelled: cancelled.clone(), why: why.clone(), _alive: alive };
    }
    let (cancelled, why, alive) = (CancellationToken::new(), Arc::default(), Arc::new(()));
    let told =
        Known { job: job.clone(), cancelled: cancelled.clone(), why: Arc::clone(&why), alive: Arc::downgrade(&alive) };
    begun.insert(job.id, told);
    Begun { job, cancelled, why, _alive: alive }
}

/// What whoever runs or waits for a cancelled job hears.
pub fn cancelled(by: CancelledBy) -> Error {
    let message = match by {
        CancelledBy::Deletion => {
            "the ingest was cancelled: its collection, or a document that it may have brought back, was deleted meanwhile; \
             run it again if its files are wanted"
        }
        CancelledBy::Request => {
            "the ingest was cancelled; what it stored is kept, and the same command goes on with the others"
        }
    };
    Error::new(ErrorKind::Cancelled, message)
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;
    use tempfile::TempDir;

    use super::*;

    fn ingests(folder: &TempDir) -> Ingests {
        Ingests::new(Arc::new(Catalog::open(&folder.path().join("catalog"), &Env::seeded(1, 0)).unwrap()))
    }

    async fn begin(ingests: &Ingests, collection: &str, path: &str) -> Begun {
        ingests.begin(collection, vec![path.into()], IngestOptions::default(), 0).await.unwrap().0
    }

    async fn left(ingests: &Ingests) -> Vec<u64> {
        ingests.unfinished().await.unwrap().iter().map(|begun| begun.job.id).collect()
    }

    #[tokio::test]
    async fn a_job_of_what_is_deleted_is_forgotten_and_does_not_come_back() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let (gone, other) = (begin(&ingests, "c", "/a").await, begin(&ingests, "d", "/a").await);
        assert_eq!((ingests.count("c").await.unwrap(), ingests.count("e").await.unwrap()), (1, 0));
        assert_eq!(ingests.forget("e", u64::MAX).await.unwrap(), 0);
        assert_eq!(ingests.forget("c", u64::MAX).await.unwrap(), 1);
        assert!(gone.cancelled.is_cancelled() && !other.cancelled.is_cancelled());
        // Neither when its turn comes, nor when it writes what it did.
        assert_eq!(ingests.look_up(gone.clone(), 0).await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(ingests.note(gone.job).await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(left(&ingests).await, [other.job.id]);
        assert_eq!(ingests.forget("c", u64::MAX).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_is_cancelled_by_its_number_and_says_by_what() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let (gone, other) = (begin(&ingests, "c", "/a").await, begin(&ingests, "c", "/b").await);
        assert!(!ingests.cancel(gone.job.id, |collection| collection == "d").await.unwrap(), "another tenant's");
        assert!(!gone.cancelled.is_cancelled());
        assert!(ingests.cancel(gone.job.id, |collection| collection == "c").await.unwrap());
        assert!(gone.cancelled.is_cancelled() && !other.cancelled.is_cancelled());
        assert_eq!(gone.cancelled_by(), CancelledBy::Request);
        assert_eq!(ingests.look_up(gone.clone(), 0).await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(ingests.note(gone.job.clone()).await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(left(&ingests).await, [other.job.id]);
        assert!(!ingests.cancel(gone.job.id, |_| true).await.unwrap(), "it is gone");
        ingests.forget("c", u64::MAX).await.unwrap();
        assert_eq!(other.cancelled_by(), CancelledBy::Deletion);
        // One that nobody runs, as after a kill; and one that another finished, and that is waited for all the same.
        let idle = begin(&ingests, "c", "/a").await.job.id;
        assert!(ingests.cancel(idle, |_| true).await.unwrap() && left(&ingests).await.is_empty());
        let waits = begin(&ingests, "c", "/a").await;
        ingests.finish(waits.job.id).await.unwrap();
        assert!(ingests.cancel(waits.job.id, |_| true).await.unwrap() && waits.cancelled.is_cancelled());
    }

    #[tokio::test]
    async fn the_list_says_what_each_does_and_how_far_it_is() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let (first, second) = (begin(&ingests, "c", "/a").await, begin(&ingests, "d", "/a").await);
        ingests.note(IngestJob { done: 40, ..first.job.clone() }).await.unwrap();
        let listed = async || ingests.listed().await.unwrap();
        let turn = ingests.take_turn(&first.job);
        assert_eq!((listed().await[0].state, listed().await[0].files_total), (IngestState::Running, None));
        let far = async || listed().await[0].clone();
        let progress = IngestProgress { bytes_done: 1, bytes_total: 2, passages: 3, left_s: Some(4) };
        ingests.show(3, 100, progress);
        assert_eq!(far().await.progress, Some(progress));
        assert_eq!((far().await.files_done, far().await.files_total), (40, Some(100)), "an earlier start had more");
        ingests.show(41, 100, progress);
        assert_eq!(far().await.files_done, 41);
        ingests.show(3, 5, progress);
        assert_eq!(far().await.files_done, 5, "of files that are gone, none is done");
        assert_eq!(listed().await[1].state, IngestState::Waiting);
        drop(turn);
        assert_eq!((far().await.state, far().await.files_done, far().await.progress), (IngestState::Waiting, 40, None));
        ingests.failed(first.job.id, "the disk is full".into());
        assert_eq!(far().await.state, IngestState::Waiting, "somebody waits for it still");
        let id = first.job.id;
        drop(first);
        assert_eq!((far().await.id, far().await.state), (id, IngestState::Failed));
        assert_eq!(far().await.error.as_deref(), Some("the disk is full"));
        drop(ingests.take_turn(&second.job));
        drop(second);
        assert!(listed().await[1].error.as_ref().unwrap().contains("broke off"), "a panic says no more");
        ingests.cancel(id, |_| true).await.unwrap();
        assert_eq!(listed().await.len(), 1);
        // The next start takes up what is left.
        let ingests = Ingests::new(ingests.0.catalog.clone());
        assert_eq!(ingests.listed().await.unwrap()[0].state, IngestState::Interrupted);
        let _all = ingests.unfinished().await.unwrap();
        assert_eq!(ingests.listed().await.unwrap()[0].state, IngestState::Waiting, "it is taken up");
    }

    #[tokio::test]
    async fn a_later_wish_is_left_alone() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let before = begin(&ingests, "c", "/a").await;
        let removal = before.job.id + 1;
        ingests.finish(before.job.id).await.unwrap();
        let after = begin(&ingests, "c", "/a").await;
        assert!(after.job.id >= removal, "ids ascend");
        // The first one waits still, as another asked for the same and is done.
        assert_eq!(ingests.forget("c", removal).await.unwrap(), 1);
        assert!(before.cancelled.is_cancelled() && !after.cancelled.is_cancelled());
        assert_eq!(left(&ingests).await, [after.job.id]);
    }

    #[tokio::test]
    async fn one_that_waited_while_another_was_done_is_a_new_one() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let (first, second) = (begin(&ingests, "c", "/a").await, begin(&ingests, "c", "/a").await);
        assert_eq!(first.job.id, second.job.id);
        ingests.finish(first.job.id).await.unwrap();
        drop(first);
        let second = ingests.look_up(second, 0).await.unwrap();
        assert_eq!(left(&ingests).await, [second.job.id]);
    }

    #[tokio::test]
    async fn none_is_begun_while_something_is_removed() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let removing = ingests.removing("c").await;
        begin(&ingests, "d", "/a").await;
        let begun = begin(&ingests, "c", "/a");
        tokio::pin!(begun);
        assert!(futures::poll!(&mut begun).is_pending());
        drop(removing);
        begun.await;
        assert!(ingests.gate("c").try_write_owned().is_ok(), "and it is free again");
    }

    #[tokio::test]
    async fn whoever_asks_takes_up_a_parked_one() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let begun = begin(&ingests, "c", "/a").await;
        let job = IngestJob { starts: MAX_STARTS, ..begun.job };
        ingests.note(job.clone()).await.unwrap();
        assert_eq!(UnfinishedIngest::from(job).state, IngestState::Parked);
        assert_eq!(begin(&ingests, "c", "/a").await.job.starts, 0);
    }
}
