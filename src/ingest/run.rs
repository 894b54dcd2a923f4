//! One job on its way: files become documents become passages.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ragstone_actors::events::{Happened, JobNews, JobState, JobSubject};
use ragstone_actors::jobs::JobKind;
use ragstone_storage::catalog::IngestJob;
use ragstone_storage::corpus::{Document, UpsertReport};
use tokio::sync::mpsc;

use super::attempts::{Record, Standing};
use super::reading::{Reading, Step, stopped};
use super::{IngestEvent, IngestReport, Ingestor, blocking};
use crate::document::{self, FoundFile, shown};
use crate::error::{Error, Result};

/// Documents that are embedded and committed together. Small enough that little is done twice after a kill.
const BATCH_DOCUMENTS: usize = 32;
/// A batch also ends with this much text.
const BATCH_BYTES: usize = 1 << 20;

/// One start of a job.
pub struct Run<'a> {
    ingestor: &'a Ingestor,
    collection: String,
    events: &'a mpsc::Sender<Result<IngestEvent>>,
    record: Record,
    report: IngestReport,
    files_total: usize,
    batch: Batch,
}

/// Documents that wait to be committed, and the files that they are of.
#[derive(Default)]
struct Batch {
    documents: Vec<Document>,
    bytes: usize,
    files: Vec<InWork>,
}

struct InWork {
    path: String,
    /// Of its documents, those that are not committed yet.
    documents: u64,
    is_read: bool,
}

impl<'a> Run<'a> {
    pub fn new(ingestor: &'a Ingestor, job: IngestJob, events: &'a mpsc::Sender<Result<IngestEvent>>) -> Self {
        let collection = job.collection.clone();
        let (record, report, batch) = (Record::begin(job), IngestReport::default(), Batch::default());
        Self { ingestor, collection, events, record, report, files_total: 0, batch }
    }

    /// The job as the journal is to have it when this start ends before the job does.
    pub fn end_in_order(self) -> IngestJob {
        self.record.end_in_order()
    }

    /// Works on the job to its end; of the files that are found, on `only` these.
    pub async fn work(&mut self, only: Option<Vec<PathBuf>>) -> Result<IngestReport> {
        self.note().await?;
        self.ingestor.env.fail_point("ingest.begin")?;
        let paths = self.record.job().paths.clone();
        let mut found = blocking(move || document::find_files(&paths)).await?;
        if let Some(only) = only {
            let only: HashSet<PathBuf> = only.into_iter().collect();
            found.files.retain(|file| only.contains(&file.path));
            // What is not read was told before.
            (found.left_alone, found.unreadable, found.hidden) = Default::default();
        }
        self.files_total = found.files.len() + found.unreadable.len();
        if !found.left_alone.is_empty() || found.hidden > 0 {
            let left_alone = IngestEvent::LeftAlone { kinds: found.left_alone, hidden: found.hidden };
            let _ = self.events.send(Ok(left_alone)).await;
        }
        for (path, reason) in found.unreadable {
            self.skip(&path, reason).await;
            self.report.files += 1;
        }
        self.show();
        let Ingestor { env, file_seconds, jobs, .. } = self.ingestor;
        let mut reading = Reading::start(env.clone(), *file_seconds, jobs.stopping().clone());
        let mut files = found.files.into_iter().peekable();
        loop {
            let group = self.next_group(&mut files).await;
            if group.is_empty() {
                self.look_for_gone(found.folders).await?;
                return Ok(self.report);
            }
            self.record.begin_files(group.iter().map(|file| shown(&file.path)).collect());
            self.note().await?;
            for file in &group {
                reading.want(file.clone()).await?;
            }
            for file in group {
                self.read(&mut reading, &file.path).await?;
            }
            self.commit().await?;
        }
    }

    /// Files to begin together. What ended ragstone twice is left out.
    async fn next_group(&mut self, files: &mut std::iter::Peekable<std::vec::IntoIter<FoundFile>>) -> Vec<FoundFile> {
        let (mut group, mut standings) = (Vec::new(), Vec::new());
        while let Some(file) = files.peek() {
            let standing = self.record.standing(&shown(&file.path));
            if standing == Standing::Condemned {
                let reason = "it ended ragstone twice while it was read; skipped; ingest it alone to try again";
                let path = file.path.clone();
                self.skip(&path, reason.into()).await;
                self.report.files += 1;
                files.next();
            } else if Record::may_join(standing, &standings) {
                group.extend(files.next());
                standings.push(standing);
            } else {
                break;
            }
        }
        group
    }

    async fn read(&mut self, reading: &mut Reading, path: &Path) -> Result<()> {
        self.batch.files.push(InWork { path: shown(path), documents: 0, is_read: false });
        let mut has_some = false;
        loop {
            match reading.next().await? {
                Step::Document(document) => {
                    has_some = true;
                    if self.batch.push(document) {
                        self.commit().await?;
                        self.note().await?;
                    }
                }
                Step::Done => break,
                Step::Skipped(reason) => {
                    let others = if has_some { "; the file's other documents are ingested" } else { "" };
                    let reason = format!("{reason}{others}");
                    self.skip(path, reason).await;
                    break;
                }
            }
        }
        if let Some(file) = self.batch.files.last_mut() {
            file.is_read = true;
        }
        self.report.files += 1;
        Ok(())
    }

    /// Counts, and where that was asked removes, the documents of files of these folders that are not there any more.
    async fn look_for_gone(&mut self, folders: Vec<PathBuf>) -> Result<()> {
        if folders.is_empty() {
            return Ok(());
        }
        let documents = self.ingestor.library.documents_of(&self.collection, move |source| is_gone(source, &folders));
        for document in documents.await? {
            self.report.documents_gone += 1;
            if self.record.job().prune {
                if self.ingestor.jobs.stopping().is_cancelled() {
                    return Err(stopped());
                }
                let removed = self.ingestor.library.delete_document(&self.collection, &document, None).await?;
                self.report.documents_pruned += 1;
                self.report.changes.passages_removed += removed.passages_removed;
            }
        }
        Ok(())
    }

    async fn skip(&mut self, path: &Path, reason: String) {
        self.report.files_skipped += 1;
        let _ = self.events.send(Ok(IngestEvent::Skipped { path: shown(path), reason })).await;
    }

    /// Writes what is begun and done to the journal; durable on return.
    async fn note(&self) -> Result<()> {
        let (catalog, job) = (self.ingestor.catalog.clone(), self.record.job().clone());
        blocking(move || catalog.update_job(&job)).await
    }

    async fn commit(&mut self) -> Result<()> {
        if self.ingestor.jobs.stopping().is_cancelled() {
            return Err(stopped());
        }
        let documents = self.batch.take();
        if !documents.is_empty() {
            let stopping = self.ingestor.jobs.stopping().clone();
            let wanted = move || !stopping.is_cancelled();
            let upserted = self.ingestor.library.upsert(&self.collection, documents, None, wanted).await;
            let is_cancelled = |error: &Error| error.kind() == crate::error::ErrorKind::Cancelled;
            let (changes, _) = upserted.map_err(|error| if is_cancelled(&error) { stopped() } else { error })?;
            add(&mut self.report.changes, &changes);
            self.ingestor.env.fail_point("ingest.after_commit")?;
        }
        for file in &mut self.batch.files {
            self.record.committed(&file.path, std::mem::take(&mut file.documents));
            if file.is_read {
                self.record.finished(&file.path);
            }
        }
        self.batch.files.retain(|file| !file.is_read);
        self.show();
        self.tell(JobState::Running);
        Ok(())
    }

    /// Shows whoever asked for the job how far it is.
    fn show(&self) {
        let changes = &self.report.changes;
        let progress = IngestEvent::Progress {
            files_done: self.report.files,
            files_total: self.files_total,
            documents: changes.documents_added + changes.documents_replaced + changes.documents_unchanged,
            passages_added: changes.passages_added,
        };
        // Nobody has to see every step.
        let _ = self.events.try_send(Ok(progress));
    }

    /// Tells those who watch the service how far it is.
    pub fn tell(&self, state: JobState) {
        self.ingestor.feed.publish(|| {
            let (collection, document, tenants) = (self.collection.clone(), None, Vec::new());
            Happened::Job(Arc::new(JobNews {
                kind: JobKind::Ingest,
                id: self.record.job().id,
                subject: JobSubject::Collection { collection, document, tenants },
                state,
                done: self.report.files as u64,
                total: self.files_total as u64,
            }))
        });
    }
}

impl Batch {
    /// Takes a document of the last file; whether the batch is full now.
    fn push(&mut self, document: Document) -> bool {
        self.bytes += document.text.len();
        self.documents.push(document);
        if let Some(file) = self.files.last_mut() {
            file.documents += 1;
        }
        self.documents.len() >= BATCH_DOCUMENTS || self.bytes >= BATCH_BYTES
    }

    fn take(&mut self) -> Vec<Document> {
        self.bytes = 0;
        std::mem::take(&mut self.documents)
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

/// Whether a document's source is a file in one of the folders that is not there any more. What is not known for sure is
/// not gone: a name that is not written as it is, a folder that cannot be read.
fn is_gone(source: &str, folders: &[PathBuf]) -> bool {
    let is_missing = |path: &str| {
        let looked = std::fs::symlink_metadata(path);
        looked.is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    };
    // One of a file's several documents: `notes.jsonl#L2`.
    let file = source.rsplit_once('#').map_or(source, |(file, _)| file);
    let is_within = folders.iter().any(|folder| Path::new(file).starts_with(folder));
    is_within && !source.contains('\\') && is_missing(source) && is_missing(file)
}

/// Paths as people type them.
pub fn listed(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| shown(path)).collect()
}
