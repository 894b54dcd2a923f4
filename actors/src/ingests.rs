//! The journal of ingests, and what takes one out of it for good. An ingest that was not finished goes on at the next start, so
//! that whoever deletes a collection, or a document of its files, must cancel it first: else it brings back what was deleted.
//!
//! An ingest writes nothing once it is cancelled: it is asked in the turn to write, and before a collection is made
//! ([`Corpus::upsert_while`](ragstone_storage::corpus::Corpus::upsert_while)), and a removal cancels before it takes that turn. None can be
//! begun between the two, for which [`removing`](Ingests::removing) is held.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ragstone_storage::catalog::{Catalog, IngestJob};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};

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
    /// One for each collection that somebody is at.
    gates: Mutex<BTreeMap<String, Weak<RwLock<()>>>>,
}

struct Known {
    job: IngestJob,
    cancelled: CancellationToken,
    alive: Weak<()>,
}

/// A job that is to be run.
#[derive(Debug, Clone)]
pub struct Begun {
    /// As the journal has it.
    pub job: IngestJob,
    /// Somebody deleted what it would write.
    pub cancelled: CancellationToken,
    _alive: Arc<()>,
}

/// An ingest that goes on at the next start, or when somebody asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnfinishedIngest {
    /// Where its documents go.
    pub collection: String,
    /// What was named to it.
    pub paths: Vec<PathBuf>,
    /// The most files that one start got done.
    pub files_done: u64,
    /// It ended ragstone again and again, and only `ragstone ingest` with its paths takes it up.
    pub parked: bool,
    /// It works, or waits for its turn. Where not, it failed, and the next start goes on with it.
    #[serde(default)]
    pub running: bool,
}

impl From<IngestJob> for UnfinishedIngest {
    fn from(job: IngestJob) -> Self {
        let parked = is_parked(&job);
        Self { collection: job.collection, paths: job.paths, files_done: job.done, parked, running: false }
    }
}

impl Ingests {
    /// Over an open catalog.
    pub(crate) fn new(catalog: Arc<Catalog>) -> Self {
        Self(Arc::new(Inner { catalog, begun: Mutex::default(), gates: Mutex::default() }))
    }

    /// Journals a job. One with the same collection and paths that was not finished is taken up instead, also where it was
    /// parked; whether it is a new one. Waits while something is removed.
    ///
    /// # Errors
    /// `InvalidInput` if a path is not UTF-8; else as the catalog says.
    pub async fn begin(
        &self,
        collection: &str,
        paths: Vec<PathBuf>,
        prune: bool,
        now_unix_ms: u64,
    ) -> Result<(Begun, bool)> {
        let _gate = self.at_the_gate(collection).await;
        let (me, collection) = (self.clone(), collection.to_owned());
        blocking(move || {
            let (mut begun, catalog) = (me.begun(), &me.0.catalog);
            let is_same = |job: &IngestJob| job.collection == collection && job.paths == paths && job.prune == prune;
            let (job, is_new) = match catalog.unfinished_jobs()?.into_iter().find(is_same) {
                Some(job) if is_parked(&job) => {
                    let job = IngestJob { starts: 0, ..job };
                    catalog.update_job(&job)?;
                    (job, false)
                }
                Some(job) => (job, false),
                None => (catalog.add_job(&collection, &paths, prune, now_unix_ms)?, true),
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
            let begun = me.begun();
            let is_running = |id| begun.get(&id).is_some_and(|known| known.alive.strong_count() > 0);
            let jobs = me.0.catalog.unfinished_jobs()?.into_iter();
            Ok(jobs.map(|job| UnfinishedIngest { running: is_running(job.id), ..job.into() }).collect())
        })
        .await
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
                return Err(cancelled());
            }
            let IngestJob { id, collection, paths, prune, .. } = &begun.job;
            match catalog.job(*id)? {
                Some(job) => Ok(Begun { job, ..begun }),
                None => Ok(known(&mut others, catalog.add_job(collection, paths, *prune, now_unix_ms)?)),
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
                ErrorKind::NotFound => cancelled(),
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
        let mut gates = self.0.gates.lock().unwrap_or_else(PoisonError::into_inner);
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
                    known.cancelled.cancel();
                }
            }
            Ok(forgotten.len())
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
        self.0.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The job, with what cancels it.
fn known(begun: &mut BTreeMap<u64, Known>, job: IngestJob) -> Begun {
    begun.retain(|_, known| known.alive.strong_count() > 0);
    if let Some(Known { cancelled, alive, .. }) = begun.get(&job.id)
        && let Some(alive) = alive.upgrade()
    {
        return Begun { job, cancelled: cancelled.clone(), _alive: alive };
    }
    let (cancelled, alive) = (CancellationToken::new(), Arc::new(()));
    begun.insert(job.id, Known { job: job.clone(), cancelled: cancelled.clone(), alive: Arc::downgrade(&alive) });
    Begun { job, cancelled, _alive: alive }
}

/// What whoever runs or waits for a cancelled job hears.
pub fn cancelled() -> Error {
    let message = "the ingest was cancelled: its collection, or a document that it would have brought back, was deleted meanwhile; \
                   run it again if its files are wanted";
    Error::new(ErrorKind::Cancelled, message)
}

#[cfg(test)]
mod tests {
    use ragstone_storage::env::Env;
    use tempfile::TempDir;

    use super::*;

    fn ingests(folder: &TempDir) -> Ingests {
        Ingests::new(Arc::new(Catalog::open(&folder.path().join("catalog"), &Env::seeded(1, 0)).unwrap()))
    }

    async fn begin(ingests: &Ingests, collection: &str, path: &str) -> Begun {
        ingests.begin(collection, vec![path.into()], false, 0).await.unwrap().0
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
    async fn one_that_failed_is_told_from_one_that_waits() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let begun = begin(&ingests, "c", "/a").await;
        assert!(ingests.listed().await.unwrap()[0].running);
        drop(begun);
        assert!(!ingests.listed().await.unwrap()[0].running, "nobody is at it any more");
    }

    #[tokio::test]
    async fn whoever_asks_takes_up_a_parked_one() {
        let folder = TempDir::new().unwrap();
        let ingests = ingests(&folder);
        let begun = begin(&ingests, "c", "/a").await;
        let job = IngestJob { starts: MAX_STARTS, ..begun.job };
        ingests.note(job.clone()).await.unwrap();
        assert!(UnfinishedIngest::from(job).parked);
        assert_eq!(begin(&ingests, "c", "/a").await.job.starts, 0);
    }
}
