//! Warm-up: a collection's entries after the system prompt, or a schema's modules, are computed before anybody asks.
//!
//! A warm-up is a job in the catalog's journal. It takes the passages in the order of their ids, skips the entries that
//! are there, and notes how far it is only when what it computed is on disk; so a kill at any instant costs the passages
//! since the last note, and the next start goes on behind it. Of modules it looks at all again: there are few, and the schema may have
//! changed. One job computes at a time, one entry after the other, at
//! the engine's background urgency: answers go first, and where they take all there is, it waits.
//!
//! An entry that the disk declines because computing it again is faster than loading it is counted apart, and done with: at
//! this rule nothing else can come of it. One that was lost on its way stays to be done, and so does the job.

mod work;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use ragstone_corpus::{Corpus, Scope};
use ragstone_storage::catalog::{Catalog, WarmJob, WarmProgress, WarmSubject};
use ragstone_storage::key::{KvKey, SegmentDigest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedMutexGuard, mpsc};

use crate::admission::blocking::blocking;
use crate::admission::jobs::{JobKind, Jobs};
use crate::admission::tenant::check_tenants;
use crate::answer::pipeline::Pipeline;
use crate::error::{Error, ErrorKind, Result};
use crate::report::events::{Happened, JobNews, JobState};
use crate::upkeep::schemas::Schemas;
use crate::upkeep::warm::work::Work;

/// Jobs in the journal, and those of the same tenants; more are refused.
const MOST_JOBS: usize = 1024;
const MOST_JOBS_OF_TENANT: usize = 128;
/// Finished jobs whose result is still told.
const RECENT: usize = 64;
/// Entries that the bucket is asked after together: as many as it is asked for at once.
const ASKED_TOGETHER: usize = 32;
/// How often who waits for a job that another call runs hears how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs warm-ups one after another. Clones share the queue.
#[derive(Clone)]
pub struct Warmer(Arc<Inner>);

struct Inner {
    corpus: Corpus,
    catalog: Arc<Catalog>,
    pipeline: Arc<Pipeline>,
    schemas: Schemas,
    jobs: Jobs,
    state: Mutex<State>,
    /// Wakes the running job where it waits, because it was cancelled.
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// The job that computes now.
    running: Option<(u64, WarmProgress)>,
    /// It was cancelled meanwhile.
    cancelled: bool,
    /// Jobs that finished since the start, for who waits for the same.
    recent: BTreeMap<u64, WarmProgress>,
}

/// What a running warm-up tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarmEvent {
    /// How far it is.
    Progress(WarmProgress),
    /// The end.
    Finished(WarmProgress),
}

/// An unfinished warm-up, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WarmStatus {
    /// The job, with its progress as it is now.
    #[serde(flatten)]
    pub job: WarmJob,
    /// What it does.
    pub state: WarmState,
}

/// What an unfinished warm-up does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarmState {
    /// It computes.
    Running,
    /// Another one has the turn, or the next start takes it up.
    Waiting,
    /// It is for another model than the one in use.
    OtherModel,
}

/// What a warm-up would have to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WarmEstimate {
    /// Distinct passages, or texts of modules.
    pub passages: u64,
    /// Entries that are there, on this machine or in the bucket.
    pub entries_there: u64,
    /// Entries to compute.
    pub entries_missing: u64,
    /// Their tokens.
    pub tokens_missing: u64,
}

/// Whose entries are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warm {
    /// Of what.
    pub subject: WarmSubject,
    /// For whom; none given is the default tenant. A schema is one tenant's.
    pub tenants: Vec<String>,
}

impl Warm {
    /// For whom, each once.
    fn tenants(&self) -> Vec<String> {
        if self.tenants.is_empty() {
            return vec![String::new()];
        }
        self.tenants.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Warmer {
    pub(crate) fn new(
        corpus: Corpus,
        catalog: Arc<Catalog>,
        pipeline: Arc<Pipeline>,
        schemas: Schemas,
        jobs: Jobs,
    ) -> Self {
        let (state, wake) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { corpus, catalog, pipeline, schemas, jobs, state, wake }))
    }

    /// Journals a warm-up. One of the same passages and tenants that is not finished is taken up instead. Await it on a
    /// multi-thread runtime.
    ///
    /// # Errors
    /// `InvalidInput` for a bad tenant or an unknown module; `NotFound` for an unknown collection, document or schema; `Overloaded` where
    /// too many jobs wait.
    pub async fn begin(&self, wanted: Warm) -> Result<WarmJob> {
        self.0.pipeline.check_own_model()?;
        check_tenants(&wanted.tenants)?;
        let tenants = wanted.tenants();
        let work = self.work_of(&wanted.subject, &tenants).await?;
        let passages_total = work.len() as u64;
        let store = &self.0.pipeline.store;
        let job = WarmJob {
            id: 0,
            fingerprint: *store.fingerprint(),
            subject: work.subject(wanted.subject),
            tenants,
            created_unix_ms: store.env().now_unix_ms(),
            progress: WarmProgress { passages_total, ..WarmProgress::default() },
        };
        let catalog = self.0.catalog.clone();
        blocking(move || {
            let waiting = catalog.warm_jobs()?;
            let own = waiting.iter().filter(|other| other.tenants == job.tenants).count();
            if waiting.len() >= MOST_JOBS || own >= MOST_JOBS_OF_TENANT {
                let message = format!(
                    "{MOST_JOBS} warm-ups wait, or {MOST_JOBS_OF_TENANT} of the same tenants; let some finish, or cancel some"
                );
                return Err(Error::new(ErrorKind::Overloaded, message));
            }
            catalog.add_warm_job(job)
        })
        .await
    }

    /// The segment that questions over passages begin with, and that warm-ups compute passages behind. `None`: there is
    /// none.
    ///
    /// # Errors
    /// As the model's chat template says.
    pub fn system_prompt(&self) -> Result<Option<SegmentDigest>> {
        let root = self.0.pipeline.root()?;
        Ok(root.map(|root| SegmentDigest::of(self.0.pipeline.store.fingerprint(), &root.tokens)))
    }

    /// The passages that a primer can have, by which their entries are known.
    pub fn primer(&self) -> HashSet<SegmentDigest> {
        let Pipeline { store, known, .. } = &*self.0.pipeline;
        known.fillers().segments().iter().map(|filler| SegmentDigest::of(store.fingerprint(), &filler.tokens)).collect()
    }

    /// What a warm-up would have to do. Changes nothing. Await it on a multi-thread runtime.
    ///
    /// # Errors
    /// As [`Warmer::begin`].
    pub async fn estimate(&self, wanted: &Warm) -> Result<WarmEstimate> {
        check_tenants(&wanted.tenants)?;
        let tenants = wanted.tenants();
        let work = self.work_of(&wanted.subject, &tenants).await?;
        let mut estimate = WarmEstimate { passages: work.len() as u64, ..WarmEstimate::default() };
        for batch in work.batches(0, 1024) {
            let pieces = self.pieces(&wanted.subject, &tenants, &work, batch, 0).await?;
            for together in pieces.chunks(ASKED_TOGETHER) {
                let asked = together.iter().map(|piece| (piece.wanted.key, piece.wanted.tokens())).collect();
                let missing = self.missing(asked).await?;
                estimate.entries_there += (together.len() - missing.len()) as u64;
                estimate.entries_missing += missing.len() as u64;
                estimate.tokens_missing += missing.iter().sum::<u64>();
            }
        }
        Ok(estimate)
    }

    /// How many tokens each of these entries has that is in no tier; the bucket is asked, as the warm-up itself does.
    async fn missing(&self, asked: Vec<(KvKey, Arc<[u32]>)>) -> Result<Vec<u64>> {
        let store = self.0.pipeline.store.clone();
        blocking(move || {
            let in_bucket = store.find_objects(asked.iter().map(|(key, tokens)| (key, &tokens[..])));
            let is_there = |key: &KvKey| store.contains(key).is_some() || in_bucket.contains(key);
            let missing = asked.iter().filter(|(key, _)| !is_there(key));
            Ok(missing.map(|(_, tokens)| tokens.len() as u64).collect())
        })
        .await
    }

    /// What there is to see to.
    async fn work_of(&self, subject: &WarmSubject, tenants: &[String]) -> Result<Work> {
        match subject {
            WarmSubject::Passages { collection, document } => {
                let scope = Scope { collection: Some(collection), document: document.as_deref() };
                let ids = self.0.corpus.passage_ids(scope).await?;
                match document {
                    Some(document) if ids.is_empty() => {
                        let message = format!("there is no document `{document}` in collection `{collection}`");
                        Err(Error::new(ErrorKind::NotFound, message))
                    }
                    _ => Ok(Work::Passages(ids)),
                }
            }
            WarmSubject::Modules { schema, modules, .. } => {
                let [tenant] = tenants else {
                    let message = format!("schema `{schema}` is one tenant's: warm it for one at a time");
                    return Err(Error::new(ErrorKind::InvalidInput, message));
                };
                let (version, texts) = self.0.schemas.modules(tenant, schema, modules).await?;
                Ok(Work::Modules { version, texts })
            }
        }
    }

    /// Runs a job when its turn comes. It goes on if the stream is dropped.
    pub fn run(&self, job: WarmJob) -> impl Stream<Item = Result<WarmEvent>> + use<> {
        let warmer = self.clone();
        let work = move |events| async move { warmer.turn(job.id, &events).await.map(WarmEvent::Finished) };
        self.0.jobs.stream(JobKind::WarmUp, work)
    }

    /// Goes on with every unfinished job of this model except `except`, in the background.
    pub async fn resume(&self, except: Option<u64>) -> Result<()> {
        for WarmStatus { job, state } in self.unfinished().await? {
            if state != WarmState::Waiting || Some(job.id) == except {
                continue;
            }
            tracing::info!(job = job.id, "going on with an unfinished warm-up");
            let warmer = self.clone();
            let work = async move {
                let (events, _) = mpsc::channel(1);
                match warmer.turn(job.id, &events).await {
                    Ok(WarmProgress { entries_computed: computed, entries_skipped: there, .. }) => {
                        tracing::info!(job = job.id, computed, there, "the unfinished warm-up is done");
                    }
                    // Somebody cancelled it, or the service stops: nobody has to look after that.
                    Err(error) if error.kind() == ErrorKind::Cancelled => {
                        tracing::info!(job = job.id, reason = %error, "the unfinished warm-up was ended");
                    }
                    Err(error) => tracing::warn!(%error, job = job.id, "the unfinished warm-up ended early"),
                }
                Ok::<_, Error>(())
            };
            drop(self.0.jobs.run(JobKind::WarmUp, work));
        }
        Ok(())
    }

    /// Unfinished jobs, the oldest first.
    pub async fn unfinished(&self) -> Result<Vec<WarmStatus>> {
        let (catalog, own) = (self.0.catalog.clone(), *self.0.pipeline.store.fingerprint());
        let jobs = blocking(move || catalog.warm_jobs()).await?;
        let running = self.state().running.clone();
        let status = |mut job: WarmJob| match &running {
            Some((id, progress)) if *id == job.id => {
                job.progress = progress.clone();
                WarmStatus { job, state: WarmState::Running }
            }
            _ if job.fingerprint == own => WarmStatus { job, state: WarmState::Waiting },
            _ => WarmStatus { job, state: WarmState::OtherModel },
        };
        Ok(jobs.into_iter().map(status).collect())
    }

    /// Takes a job out of the journal; if it computes, it ends with the passage at hand. What it computed stays. Whether
    /// there was such a job.
    pub async fn cancel(&self, id: u64) -> Result<bool> {
        {
            let mut state = self.state();
            state.cancelled |= state.running.as_ref().is_some_and(|(running, _)| *running == id);
        }
        self.0.wake.notify_one();
        let catalog = self.0.catalog.clone();
        blocking(move || catalog.finish_warm_job(id)).await
    }

    /// Waits for the turn, works, and takes the job out of the journal where there is nothing left to do for it.
    async fn turn(&self, id: u64, events: &mpsc::Sender<Result<WarmEvent>>) -> Result<WarmProgress> {
        let _turn = self.wait_for_turn(id, events).await?;
        let Some(job) = self.journaled(id).await? else {
            let recent = self.state().recent.get(&id).cloned();
            return recent.ok_or_else(|| cancelled(id));
        };
        self.show(&job, &job.progress);
        let running = Running(self);
        let done = self.work(&job, events).await;
        drop(running);
        match &done {
            Ok(progress) => self.tell(&job, progress, JobState::Finished),
            Err(error) => self.tell(&job, &job.progress, JobState::Failed(error.to_string())),
        }
        // A collection or schema that is gone, or cannot be used, will not come back by itself; anything else may work at the next start.
        let is_hopeless = |error: &Error| match error.kind() {
            ErrorKind::NotFound => true,
            ErrorKind::InvalidInput | ErrorKind::ContextLength => matches!(job.subject, WarmSubject::Modules { .. }),
            _ => false,
        };
        let over = done.as_ref().err().is_none_or(is_hopeless);
        if over {
            self.cancel(id).await?;
        }
        if let Ok(progress) = &done {
            let mut state = self.state();
            state.recent.insert(id, progress.clone());
            if state.recent.len() > RECENT {
                state.recent.pop_first();
            }
        }
        done
    }

    /// Tells how far the job is while another call runs it.
    async fn wait_for_turn(&self, id: u64, events: &mpsc::Sender<Result<WarmEvent>>) -> Result<OwnedMutexGuard<()>> {
        let mut turn = std::pin::pin!(self.0.jobs.turn(JobKind::WarmUp));
        loop {
            if let Ok(turn) = tokio::time::timeout(LOOK_EVERY, &mut turn).await {
                return turn;
            }
            let running = self.state().running.clone();
            if let Some((_, progress)) = running.filter(|(running, _)| *running == id) {
                // Nobody has to see every step.
                let _ = events.try_send(Ok(WarmEvent::Progress(progress)));
            }
        }
    }

    async fn journaled(&self, id: u64) -> Result<Option<WarmJob>> {
        let catalog = self.0.catalog.clone();
        let jobs = blocking(move || catalog.warm_jobs()).await?;
        Ok(jobs.into_iter().find(|job| job.id == id))
    }

    /// Shows how far the running job is.
    fn show(&self, job: &WarmJob, progress: &WarmProgress) {
        self.state().running = Some((job.id, progress.clone()));
        self.tell(job, progress, JobState::Running);
    }

    /// Tells those who watch the service.
    fn tell(&self, job: &WarmJob, progress: &WarmProgress, state: JobState) {
        self.0.pipeline.feed.publish(|| Happened::Job(Arc::new(JobNews::of_warm_up(job, progress, state))));
    }

    /// Whether the running job may go on: not if it was cancelled meanwhile, nor if the service stops.
    fn may_go_on(&self, id: u64) -> Result<()> {
        if self.state().cancelled {
            return Err(cancelled(id));
        }
        if self.0.jobs.stopping().is_cancelled() {
            let message = "the service stops; the warm-up goes on when it starts again";
            return Err(Error::new(ErrorKind::Cancelled, message));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until it is dropped, also by a panic, a job runs.
struct Running<'a>(&'a Warmer);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.running, state.cancelled) = (None, false);
    }
}

fn cancelled(id: u64) -> Error {
    Error::new(ErrorKind::Cancelled, format!("warm-up {id} was cancelled; what it computed is kept"))
}
