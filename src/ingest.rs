//! Ingest jobs: files become documents become passages. A job is journaled before it starts and taken out when it is
//! done, so that a kill at any instant costs nothing but time: upserts of what is already there change nothing. What a job
//! works on is journaled, too, so that a file that ends the process does so twice and not at every start.

mod attempts;
mod reading;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use ragstone_actors::Ragstone;
use ragstone_actors::events::{Feed, JobState};
use ragstone_actors::jobs::{JobKind, Jobs};
use ragstone_actors::library::Library;
use ragstone_storage::catalog::{Catalog, IngestJob};
use ragstone_storage::corpus::UpsertReport;
use ragstone_storage::env::Env;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::run::{Run, listed};
use crate::error::{Error, ErrorKind, Result};

/// What a running job tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IngestEvent {
    /// How far it is; what it counts is durable.
    Progress { files_done: usize, files_total: usize, documents: usize, passages_added: usize },
    /// A file that could not be read, and why; the job goes on. A name that is not UTF-8, or could steer a terminal, is
    /// written with `\xff` or `\u{1b}`.
    Skipped { path: String, reason: String },
    /// Files of the named folders that are of no kind that is read, by the endings of their names; and how many hidden files and folders
    /// there were, which are not looked into.
    LeftAlone {
        kinds: BTreeMap<String, usize>,
        #[serde(default)]
        hidden: usize,
    },
    /// Another job, that only the user takes up again: it ended the process too often without getting further.
    Parked { collection: String, paths: Vec<String> },
    /// The end.
    Finished(IngestReport),
}

/// What a job changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct IngestReport {
    /// Files that were found and are of a kind that is read.
    pub files: usize,
    /// Of those, the ones that could not be read, or not all of them.
    pub files_skipped: usize,
    /// Documents that this collection has of files which were in the named folders, and are not there any more.
    pub documents_gone: usize,
    /// Of those, the ones that were removed, as was asked.
    pub documents_pruned: usize,
    #[serde(flatten)]
    pub changes: UpsertReport,
}

/// Runs ingest jobs one after another. Clones share the queue.
#[derive(Clone)]
pub struct Ingestor {
    library: Library,
    catalog: Arc<Catalog>,
    env: Env,
    jobs: Jobs,
    feed: Feed,
    /// Processor time that parsing one file may take.
    file_seconds: u64,
}

impl Ingestor {
    /// For the data folder of `ragstone`. Parsing a file may take `file_seconds` of processor time.
    pub fn new(ragstone: &Ragstone, env: Env, file_seconds: u64) -> Self {
        let (library, catalog) = (ragstone.library().clone(), ragstone.catalog().clone());
        let (jobs, feed) = (ragstone.jobs().clone(), ragstone.feed().clone());
        Self { library, catalog, env, jobs, feed, file_seconds }
    }

    /// Journals a job. One with the same collection and paths that was not finished is taken up instead, also where it was
    /// parked; whether it is a new one.
    pub async fn begin(&self, collection: &str, paths: Vec<PathBuf>, prune: bool) -> Result<(IngestJob, bool)> {
        let (catalog, now, collection) = (self.catalog.clone(), self.env.now_unix_ms(), collection.to_owned());
        blocking(move || {
            let unfinished = catalog.unfinished_jobs()?;
            let is_same = |job: &IngestJob| job.collection == collection && job.paths == paths && job.prune == prune;
            match unfinished.into_iter().find(is_same) {
                Some(job) if attempts::is_parked(&job) => {
                    let job = IngestJob { starts: 0, ..job };
                    catalog.update_job(&job)?;
                    Ok((job, false))
                }
                Some(job) => Ok((job, false)),
                None => Ok((catalog.add_job(&collection, &paths, prune, now)?, true)),
            }
        })
        .await
    }

    /// Goes on with every unfinished job except `except`, in the background. Parked ones stay.
    pub async fn resume(&self, except: Option<u64>) -> Result<()> {
        let catalog = self.catalog.clone();
        let jobs = blocking(move || catalog.unfinished_jobs()).await?;
        for job in jobs.into_iter().filter(|job| Some(job.id) != except) {
            if attempts::is_parked(&job) {
                // Whoever asks for another job hears it from that.
                if except.is_none() {
                    warn_parked(&job);
                }
                continue;
            }
            tracing::info!(job = job.id, collection = job.collection, "going on with an unfinished ingest");
            tokio::spawn(log_events(self.run(job, None)));
        }
        Ok(())
    }

    /// Runs a job when its turn comes. It goes on if the stream is dropped. Of the files that it finds it reads `only` those; the journal
    /// does not know of that, so that a start that takes it up reads all.
    pub fn run(&self, job: IngestJob, only: Option<Vec<PathBuf>>) -> impl Stream<Item = Result<IngestEvent>> + use<> {
        let ingestor = self.clone();
        self.jobs.stream(JobKind::Ingest, |events| async move {
            // They compete for the same processors.
            let _turn = ingestor.jobs.turn(JobKind::Ingest).await?;
            ingestor.take_turn(job, only, &events).await.map(IngestEvent::Finished)
        })
    }

    async fn take_turn(
        &self,
        job: IngestJob,
        only: Option<Vec<PathBuf>>,
        events: &mpsc::Sender<Result<IngestEvent>>,
    ) -> Result<IngestReport> {
        let (job, parked) = self.look_up(job).await?;
        for other in parked {
            let event = IngestEvent::Parked { collection: other.collection, paths: listed(&other.paths) };
            let _ = events.send(Ok(event)).await;
        }
        let id = job.id;
        let mut run = Run::new(self, job, events);
        run.tell(JobState::Running);
        let done = run.work(only).await;
        run.tell(match &done {
            Ok(_) => JobState::Finished,
            Err(error) => JobState::Failed(error.to_string()),
        });
        // Input that cannot be ingested now will not be at the next start either; anything else may be.
        let hopeless = |error: &Error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Incompatible);
        let is_over = done.as_ref().err().is_none_or(hopeless);
        let (catalog, ended) = (self.catalog.clone(), run.end_in_order());
        let closed = blocking(move || if is_over { catalog.finish_job(id) } else { catalog.update_job(&ended) }).await;
        done.and_then(|report| closed.map(|()| report))
    }

    /// The job as the journal has it now, and other jobs that are parked. While it waited for its turn, somebody else may
    /// have asked for the same and be done: then it is a new one, with nothing to do.
    async fn look_up(&self, job: IngestJob) -> Result<(IngestJob, Vec<IngestJob>)> {
        let (catalog, now) = (self.catalog.clone(), self.env.now_unix_ms());
        blocking(move || {
            let mut parked = catalog.unfinished_jobs()?;
            parked.retain(|other| other.id != job.id && attempts::is_parked(other));
            let job = match catalog.job(job.id)? {
                Some(job) => job,
                None => catalog.add_job(&job.collection, &job.paths, job.prune, now)?,
            };
            Ok((job, parked))
        })
        .await
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
            Ok(IngestEvent::Progress { .. } | IngestEvent::LeftAlone { .. } | IngestEvent::Parked { .. }) => {}
            Ok(IngestEvent::Skipped { path, reason }) => tracing::warn!(path, reason, "skipped"),
            Ok(IngestEvent::Finished(IngestReport { files, files_skipped, changes, .. })) => {
                let (added, replaced) = (changes.documents_added, changes.documents_replaced);
                tracing::info!(files, files_skipped, added, replaced, "the unfinished ingest is done");
            }
            Err(error) if error.kind() == ErrorKind::Cancelled => tracing::info!(why = %error, "the ingest pauses"),
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
