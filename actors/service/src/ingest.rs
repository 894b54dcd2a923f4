//! Ingest jobs: files become documents become passages. A job is journaled before it starts and taken out when it is
//! done, so that a kill at any instant costs nothing but time: upserts of what is already there change nothing. What a job
//! works on is journaled, too, so that a file that ends the process does so twice and not at every start.

mod attempts;
mod far;
mod fetching;
mod gone;
mod left;
mod reading;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use ragstone_actors::Ragstone;
use ragstone_actors::admission::jobs::{JobKind, Jobs};
use ragstone_actors::report::events::{Feed, JobState};
use ragstone_actors::upkeep::ingests::{self, AtWork, Begun, CancelledBy, IngestState, Ingests, is_parked};
use ragstone_actors::upkeep::library::Library;
use ragstone_corpus::UpsertReport;
use ragstone_env::Env;
use ragstone_kernels::memory::{self, Work};
use ragstone_storage::catalog::{IngestJob, IngestOptions};
use ragstone_storage::tier::object::ObjectOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, mpsc};

pub use self::fetching::told_apart;
use self::run::{Run, listed};
use crate::error::{Error, ErrorKind, Result};

/// How often somebody who waits hears how far the other job is.
const TELL_WAITING: Duration = Duration::from_secs(2);

/// What a running job tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IngestEvent {
    /// The job's number: it is cancelled by it. Told again where the job was begun anew while it waited.
    Begun { id: u64 },
    /// How far it is. What it counts is durable, but for `passages_embedded`: of those that have their vectors, the last are not committed yet.
    Progress {
        files_done: usize,
        files_total: usize,
        documents: usize,
        passages_added: usize,
        #[serde(default)]
        passages_embedded: usize,
        /// With the bytes that are embedded within a file.
        #[serde(default)]
        new: NewFiles,
        /// Seconds that it still takes, as far as that is known.
        #[serde(default)]
        left_s: Option<u64>,
    },
    /// Of an address so much was fetched; so many of its pages are known and still to be asked for.
    Fetching { address: String, files: usize, bytes: u64, waiting: Option<usize> },
    /// A file that was not taken whole, and why; the job goes on.
    Skipped(NotTaken),
    /// Files of the named folders that are of no kind that is read, by the endings of their names; and how many hidden files and folders
    /// there were, which are not looked into.
    LeftAlone {
        kinds: BTreeMap<String, usize>,
        #[serde(default)]
        hidden: usize,
        /// The first of the files.
        #[serde(default)]
        files: Vec<String>,
    },
    /// Another job, that only the user takes up again: it ended the process too often without getting further.
    Parked { collection: String, paths: Vec<String> },
    /// Another job has the turn, and is so far; told again while it goes on.
    Waiting { collection: String, files_done: usize, files_total: usize },
    /// The service stops, and goes on with the job when it starts again. The files that it counts are done for good.
    Stopped { files_done: usize, files_total: usize },
    /// Somebody cancelled it: the job is over. The files that it counts are stored, where its collection was not deleted.
    Cancelled { by: CancelledBy, files_done: usize, files_total: usize },
    /// The end.
    Finished(IngestReport),
}

/// Of a job's files those of which no document was stored when this start began: they are embedded, and not only read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewFiles {
    pub files_done: usize,
    pub files_total: usize,
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// A file that was not taken whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotTaken {
    /// A name that is not UTF-8, or could steer a terminal, is written with `\xff` or `\u{1b}`.
    pub path: String,
    pub reason: String,
    #[serde(default)]
    pub kind: NotTakenKind,
}

/// What of a file was not taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotTakenKind {
    /// All of it: it cannot be read.
    #[default]
    Unread,
    /// Some of its records; the others were.
    Partly,
    /// It was read, and has no text.
    Empty,
    /// What is no text or not meant to be read, such as menus, page heads, hidden text and columns of bytes; all else was taken.
    LeftOut,
}

/// What a job changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct IngestReport {
    /// Files that were found and are of a kind that is read. Those that none of the next three counts were taken whole.
    pub files: usize,
    /// Of those, the ones that could not be read.
    pub files_skipped: usize,
    /// And the ones of which some records could not be read, and the others were taken.
    pub files_partly: usize,
    /// And the ones that have no text.
    pub files_empty: usize,
    /// Files of addresses that are as they were when they were fetched last: they were not sent again. Not counted in `files`.
    pub files_unchanged: usize,
    /// Documents that this collection has of files which were in the named folders, and are not there any more.
    pub documents_gone: usize,
    /// Of those, the ones that were removed, as was asked.
    pub documents_pruned: usize,
    /// And the ones that are kept whatever was asked, by their folders.
    pub kept: Vec<KeptFolder>,
    #[serde(flatten)]
    pub changes: UpsertReport,
}

/// A named folder in which there is no file at all, though documents of its files are stored. A disk that is not mounted looks like that:
/// they are not removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptFolder {
    pub folder: String,
    pub documents: usize,
}

/// Runs ingest jobs one after another. Clones share the queue.
#[derive(Clone)]
pub struct Ingestor {
    library: Library,
    ingests: Ingests,
    env: Env,
    jobs: Jobs,
    feed: Feed,
    data: PathBuf,
    /// Of KV, or else of the corpus.
    bucket: Option<ObjectOptions>,
    /// Processor time that parsing one file may take.
    file_seconds: u64,
    /// What was unfinished is taken up once: what is begun later somebody runs.
    is_resumed: Arc<AtomicBool>,
}

impl Ingestor {
    /// For `data`, the folder of `ragstone`. Parsing a file may take `file_seconds` of processor time.
    pub fn new(ragstone: &Ragstone, data: PathBuf, env: Env, file_seconds: u64) -> Self {
        let (library, ingests) = (ragstone.library().clone(), ragstone.ingests().clone());
        let (jobs, feed) = (ragstone.jobs().clone(), ragstone.feed().clone());
        fetching::clear(&data);
        let bucket = ragstone.settings().object().or_else(|| ragstone.settings().corpus());
        Self { library, ingests, env, jobs, feed, data, bucket, file_seconds, is_resumed: Arc::default() }
    }

    /// Journals a job. One with the same collection and paths that was not finished is taken up instead, also where it was
    /// parked; whether it is a new one.
    pub async fn begin(&self, collection: &str, paths: Vec<PathBuf>, options: IngestOptions) -> Result<(Begun, bool)> {
        self.ingests.begin(collection, paths, options, self.env.now_unix_ms()).await
    }

    /// Cancels a job, where `is_meant` says so of its collection: it ends within one batch, what it stored stays, and no start takes it up.
    /// Whether there was such a job.
    pub async fn cancel(&self, id: u64, is_meant: impl FnOnce(&str) -> bool + Send + 'static) -> Result<bool> {
        self.env.fail_point("ingest.cancelling")?;
        let was_there = self.ingests.cancel(id, is_meant).await?;
        self.env.fail_point("ingest.cancelled")?;
        Ok(was_there)
    }

    /// Goes on with every unfinished job except `except`, in the background. Parked ones stay. Does nothing when it is called again.
    pub async fn resume(&self, except: Option<u64>) -> Result<()> {
        if self.is_resumed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for begun in self.ingests.unfinished().await?.into_iter().filter(|begun| Some(begun.job.id) != except) {
            let job = &begun.job;
            if is_parked(job) {
                // Whoever asks for another job hears it from that.
                if except.is_none() {
                    warn_parked(job);
                }
                continue;
            }
            tracing::info!(job = job.id, collection = job.collection, "going on with an unfinished ingest");
            tokio::spawn(log_events(self.run(begun, None)));
        }
        Ok(())
    }

    /// Runs a job when its turn comes. It goes on if the stream is dropped. Of the files that it finds it reads `only` those; the journal
    /// does not know of that, so that a start that takes it up reads all.
    pub fn run(&self, begun: Begun, only: Option<Vec<PathBuf>>) -> impl Stream<Item = Result<IngestEvent>> + use<> {
        let ingestor = self.clone();
        self.jobs.stream(JobKind::Ingest, |events| async move {
            let _ = events.send(Ok(IngestEvent::Begun { id: begun.job.id })).await;
            // They compete for the same processors.
            let turn = begun.cancelled.run_until_cancelled(ingestor.turn(begun.job.id, &events)).await;
            // What an earlier start got done.
            let files_done = begun.job.done as usize;
            match turn {
                None => Ok(IngestEvent::Cancelled { by: begun.cancelled_by(), files_done, files_total: 0 }),
                // Only a stop keeps it from its turn.
                Some(Err(_)) => Ok(IngestEvent::Stopped { files_done, files_total: 0 }),
                Some(Ok(_turn)) => {
                    let done = ingestor.take_turn(begun, only, &events).await;
                    memory::give_back_after(Work::Large);
                    done
                }
            }
        })
    }

    /// Waits for the turn of job `id`, and tells what it waits for.
    async fn turn(&self, id: u64, events: &mpsc::Sender<Result<IngestEvent>>) -> Result<OwnedMutexGuard<()>> {
        let mut turn = std::pin::pin!(self.jobs.turn(JobKind::Ingest));
        let mut told = tokio::time::interval(TELL_WAITING);
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return turn,
                _ = told.tick() => {
                    // Not for itself: the same may have been asked for twice.
                    let others = self.ingests.at_work().filter(|at_work| at_work.id != id);
                    if let Some(AtWork { collection, files_done, files_total, .. }) = others {
                        let (files_done, files_total) = (files_done as usize, files_total as usize);
                        // Nobody has to see every step.
                        let _ = events.try_send(Ok(IngestEvent::Waiting { collection, files_done, files_total }));
                    }
                }
            }
        }
    }

    async fn take_turn(
        &self,
        begun: Begun,
        only: Option<Vec<PathBuf>>,
        events: &mpsc::Sender<Result<IngestEvent>>,
    ) -> Result<IngestEvent> {
        let waited = begun.clone();
        let begun = match self.ingests.look_up(begun, self.env.now_unix_ms()).await {
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                let (by, files_done) = (waited.cancelled_by(), waited.job.done as usize);
                return Ok(IngestEvent::Cancelled { by, files_done, files_total: 0 });
            }
            found => found?,
        };
        if begun.job.id != waited.job.id {
            let _ = events.send(Ok(IngestEvent::Begun { id: begun.job.id })).await;
        }
        let _turn = self.ingests.take_turn(&begun.job);
        // One that was asked for is not parked any more.
        for other in self.ingests.listed().await?.into_iter().filter(|other| other.state == IngestState::Parked) {
            let event = IngestEvent::Parked { collection: other.collection, paths: listed(&other.paths) };
            let _ = events.send(Ok(event)).await;
        }
        let mut run = Run::new(self, begun.clone(), events);
        run.tell(JobState::Running);
        let done = run.work(only).await;
        self.ended(&begun, run, done).await
    }

    /// Tells how a run ended, and has the journal say so, too.
    async fn ended(&self, begun: &Begun, run: Run<'_>, done: Result<IngestReport>) -> Result<IngestEvent> {
        let (id, is_cancelled) = (begun.job.id, begun.cancelled.is_cancelled());
        let (files_done, files_total) = (run.files_done(), run.files_total());
        let error = match done {
            Ok(report) => {
                run.tell(JobState::Finished);
                return self.ingests.finish(id).await.map(|()| IngestEvent::Finished(report));
            }
            // It may have met anything in what was deleted; and it is out of the journal.
            Err(_) if is_cancelled => {
                let by = begun.cancelled_by();
                run.tell(JobState::Failed(ingests::cancelled(by).to_string()));
                return Ok(IngestEvent::Cancelled { by, files_done, files_total });
            }
            Err(error) => error,
        };
        let is_stop = error.kind() == ErrorKind::Cancelled;
        // A stop is a pause.
        if !is_stop {
            run.tell(JobState::Failed(error.to_string()));
        }
        // Input that cannot be ingested now will not be at the next start either; anything else may be.
        if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Incompatible) {
            self.ingests.finish(id).await?;
            return Err(error);
        }
        let noted = self.ingests.note(run.end_in_order()).await;
        if is_stop {
            return noted.map(|()| IngestEvent::Stopped { files_done, files_total });
        }
        self.ingests.failed(id, error.to_string());
        Err(error)
    }
}

fn warn_parked(job: &IngestJob) {
    tracing::warn!(
        collection = job.collection,
        paths = listed(&job.paths).join(" "),
        "an ingest is parked: it ended ragstone {} times without getting further; `ragstone ingest` with its paths tries again",
        job.starts
    );
}

async fn log_events(events: impl Stream<Item = Result<IngestEvent>>) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(
                IngestEvent::Begun { .. }
                | IngestEvent::Progress { .. }
                | IngestEvent::Fetching { .. }
                | IngestEvent::LeftAlone { .. }
                | IngestEvent::Parked { .. }
                | IngestEvent::Waiting { .. },
            ) => {}
            Ok(IngestEvent::Cancelled { by, .. }) => tracing::info!(why = %ingests::cancelled(by), "the ingest ends"),
            Ok(IngestEvent::Skipped(NotTaken { kind: NotTakenKind::Empty, path, reason })) => {
                tracing::info!(path, reason, "skipped");
            }
            Ok(IngestEvent::Skipped(NotTaken { kind: NotTakenKind::LeftOut, path, reason })) => {
                tracing::debug!(path, reason, "left out");
            }
            Ok(IngestEvent::Skipped(NotTaken { path, reason, .. })) => tracing::warn!(path, reason, "skipped"),
            Ok(IngestEvent::Stopped { files_done, files_total }) => {
                tracing::info!(files_done, files_total, "the ingest pauses, and goes on at the next start");
            }
            Ok(IngestEvent::Finished(IngestReport { files, files_skipped, changes, .. })) => {
                let (added, replaced) = (changes.documents_added, changes.documents_replaced);
                tracing::info!(files, files_skipped, added, replaced, "the unfinished ingest is done");
            }
            Err(error) => tracing::error!(%error, "the unfinished ingest failed"),
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(format!("a part of the ingest broke off: {error}"))),
    }
}
