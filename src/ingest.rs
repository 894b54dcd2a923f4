//! Ingest jobs: files become documents become passages. A job is journaled before it starts and taken out when it is
//! done, so that a kill at any instant costs nothing but time: upserts of what is already there change nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::Stream;
use ragstone_actors::library::Library;
use ragstone_storage::catalog::{Catalog, IngestJob};
use ragstone_storage::corpus::{Document, UpsertReport};
use ragstone_storage::env::Env;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};

use crate::document;
use crate::error::{Error, ErrorKind, Result};

/// Documents that are embedded and committed together. Small enough that little is done twice after a kill.
const BATCH_DOCUMENTS: usize = 32;
/// A batch also ends with this much text.
const BATCH_BYTES: usize = 1 << 20;

/// What a running job tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IngestEvent {
    /// How far it is; what it counts is durable.
    Progress { files_done: usize, files_total: usize, documents: usize, passages_added: usize },
    /// A file that could not be read, and why; the job goes on.
    Skipped { path: PathBuf, reason: String },
    /// The end.
    Finished(IngestReport),
}

/// What a job changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngestReport {
    pub files: usize,
    /// Files that could not be read.
    pub files_skipped: usize,
    #[serde(flatten)]
    pub changes: UpsertReport,
}

/// Runs ingest jobs one after another. Clones share the queue.
#[derive(Clone)]
pub struct Ingestor {
    library: Library,
    catalog: Arc<Catalog>,
    env: Env,
    /// Jobs wait here in order: they compete for the same processors.
    turn: Arc<Mutex<()>>,
    stopping: Arc<AtomicBool>,
    /// The multi-thread runtime, which the corpus needs; callers may stand on another.
    runtime: Handle,
}

impl Ingestor {
    /// For one data folder. Jobs run on the runtime that this is called on.
    pub fn new(library: Library, catalog: Arc<Catalog>, env: Env) -> Self {
        Self { library, catalog, env, turn: Arc::default(), stopping: Arc::default(), runtime: Handle::current() }
    }

    /// Journals a job. One with the same collection and paths that was not finished is taken up instead.
    pub async fn begin(&self, collection: &str, paths: Vec<PathBuf>) -> Result<IngestJob> {
        let (catalog, now, collection) = (self.catalog.clone(), self.env.now_unix_ms(), collection.to_owned());
        blocking(move || {
            let unfinished = catalog.unfinished_jobs()?;
            match unfinished.into_iter().find(|job| job.collection == collection && job.paths == paths) {
                Some(job) => Ok(job),
                None => Ok(catalog.add_job(&collection, &paths, now)?),
            }
        })
        .await
    }

    /// Goes on with every unfinished job except `except`, in the background.
    pub async fn resume(&self, except: Option<u64>) -> Result<()> {
        let catalog = self.catalog.clone();
        let jobs = blocking(move || Ok(catalog.unfinished_jobs()?)).await?;
        for job in jobs.into_iter().filter(|job| Some(job.id) != except) {
            tracing::info!(job = job.id, collection = job.collection, "going on with an unfinished ingest");
            let (events, mut received) = mpsc::channel(16);
            self.spawn(job, events);
            self.runtime.spawn(async move {
                while let Some(event) = received.recv().await {
                    match event {
                        Ok(IngestEvent::Progress { .. }) => {}
                        Ok(IngestEvent::Skipped { path, reason }) => {
                            tracing::warn!(path = %path.display(), reason, "skipped")
                        }
                        Ok(IngestEvent::Finished(report)) => tracing::info!(?report, "the unfinished ingest is done"),
                        Err(error) => tracing::error!(%error, "the unfinished ingest failed"),
                    }
                }
            });
        }
        Ok(())
    }

    /// Runs a job when its turn comes. It goes on if the stream is dropped.
    pub fn run(&self, job: IngestJob) -> impl Stream<Item = Result<IngestEvent>> + use<> {
        let (events, received) = mpsc::channel(16);
        self.spawn(job, events);
        futures::stream::unfold(
            received,
            |mut received| async move { received.recv().await.map(|event| (event, received)) },
        )
    }

    /// Ends running jobs at their next commit; they go on at the next start.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Waits until no job runs.
    pub async fn stopped(&self) {
        drop(self.turn.lock().await);
    }

    fn spawn(&self, job: IngestJob, events: mpsc::Sender<Result<IngestEvent>>) {
        let ingestor = self.clone();
        self.runtime.spawn(async move {
            let turn = ingestor.turn.clone().lock_owned().await;
            let done = ingestor.work(&job, &events).await;
            // Input that cannot be ingested now will not be at the next start either; anything else may be.
            let hopeless = |error: &Error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Incompatible);
            let over = done.as_ref().err().is_none_or(hopeless);
            let catalog = ingestor.catalog.clone();
            let closed = if over { blocking(move || Ok(catalog.finish_job(job.id)?)).await } else { Ok(()) };
            drop(turn);
            // The receiver may be gone: the job was for the store, not for it.
            let _ = events.send(closed.and(done).map(IngestEvent::Finished)).await;
        });
    }

    async fn work(&self, job: &IngestJob, events: &mpsc::Sender<Result<IngestEvent>>) -> Result<IngestReport> {
        let paths = job.paths.clone();
        let found = blocking(move || Ok(document::find_files(&paths))).await?;
        let mut run =
            Run { ingestor: self, job, events, report: IngestReport::default(), files_total: found.files.len() };
        for (path, reason) in found.unreadable {
            run.skip(path, reason).await;
        }
        let mut batch = Batch::default();
        for path in found.files {
            let read = {
                let path = path.clone();
                blocking(move || Ok(read_file(&path))).await?
            };
            match read {
                Ok(documents) => {
                    for document in documents {
                        if batch.push(document) {
                            run.commit(&mut batch).await?;
                        }
                    }
                }
                Err(reason) => run.skip(path, reason).await,
            }
            run.report.files += 1;
        }
        run.commit(&mut batch).await?;
        Ok(run.report)
    }
}

fn read_file(path: &Path) -> Result<Vec<Document>, String> {
    document::read(path).map_err(|error| error.to_string())
}

#[derive(Default)]
struct Batch {
    documents: Vec<Document>,
    bytes: usize,
}

impl Batch {
    /// Whether the batch is full now.
    fn push(&mut self, document: Document) -> bool {
        self.bytes += document.text.len();
        self.documents.push(document);
        self.documents.len() >= BATCH_DOCUMENTS || self.bytes >= BATCH_BYTES
    }
}

/// One job on its way.
struct Run<'a> {
    ingestor: &'a Ingestor,
    job: &'a IngestJob,
    events: &'a mpsc::Sender<Result<IngestEvent>>,
    report: IngestReport,
    files_total: usize,
}

impl Run<'_> {
    async fn skip(&mut self, path: PathBuf, reason: String) {
        self.report.files_skipped += 1;
        let _ = self.events.send(Ok(IngestEvent::Skipped { path, reason })).await;
    }

    async fn commit(&mut self, batch: &mut Batch) -> Result<()> {
        let Batch { documents, .. } = std::mem::take(batch);
        if self.ingestor.stopping.load(Ordering::Relaxed) {
            let message = "the service stops; the ingest goes on when it starts again";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if !documents.is_empty() {
            let (changes, _) = self.ingestor.library.upsert(&self.job.collection, documents, || true).await?;
            add(&mut self.report.changes, &changes);
            self.ingestor.env.fail_point("ingest.after_commit")?;
        }
        let (catalog, id, done) = (self.ingestor.catalog.clone(), self.job.id, self.report.files as u64);
        blocking(move || Ok(catalog.update_job(id, done)?)).await?;
        let changes = &self.report.changes;
        let progress = IngestEvent::Progress {
            files_done: self.report.files,
            files_total: self.files_total,
            documents: changes.documents_added + changes.documents_replaced + changes.documents_unchanged,
            passages_added: changes.passages_added,
        };
        // Nobody has to see every step.
        let _ = self.events.try_send(Ok(progress));
        Ok(())
    }
}

fn add(sum: &mut UpsertReport, more: &UpsertReport) {
    sum.documents_added += more.documents_added;
    sum.documents_unchanged += more.documents_unchanged;
    sum.documents_replaced += more.documents_replaced;
    sum.documents_empty += more.documents_empty;
    sum.passages_added += more.passages_added;
    sum.passages_removed += more.passages_removed;
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(format!("a part of the ingest broke off: {error}"))),
    }
}
