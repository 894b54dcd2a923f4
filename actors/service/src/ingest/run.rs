//! One job on its way: files become documents become passages.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::path::PathBuf;

use ragstone_actors::report::events::JobState;
use ragstone_actors::upkeep::ingests::{self, Begun};
use ragstone_corpus::{UpsertProgress, UpsertReport};
use ragstone_documents::{Document, FoundFile, RecordFields, file_of, shown, with_given};
use ragstone_storage::catalog::IngestJob;
use tokio::sync::mpsc;

use super::attempts::{GROUP_FILES, Record, Standing};
use super::far::{Far, Telling};
use super::fetching::told_apart;
use super::gone::{is_gone, keep, within};
use super::reading::{Reading, Step, stopped};
use super::{IngestEvent, IngestReport, Ingestor, NewFiles, NotTaken, NotTakenKind, blocking};
use crate::error::Result;

/// Documents that are embedded and committed together. Small enough that little is done twice after a kill.
const BATCH_DOCUMENTS: usize = 32;
/// Notes on what of a file was left out.
const MOST_LEFT_OUT: usize = 8;
/// A batch also ends with this much text.
const BATCH_BYTES: usize = 1 << 20;

/// One start of a job.
pub struct Run<'a> {
    ingestor: &'a Ingestor,
    begun: Begun,
    events: &'a mpsc::Sender<Result<IngestEvent>>,
    record: Record,
    report: IngestReport,
    /// Files of which all is in the corpus that will be.
    files_done: usize,
    files_total: usize,
    new: NewFiles,
    /// Paths of found files of which documents are stored.
    known: HashSet<String>,
    /// Names of files that could not be read, or not whole.
    failed: HashSet<String>,
    batch: Batch,
    telling: Telling,
}

/// Documents that wait to be committed, and the files that they are of.
#[derive(Default)]
struct Batch {
    documents: Vec<Document>,
    /// Of its file, up to each document that is not committed yet.
    shares: VecDeque<f32>,
    bytes: usize,
    files: Vec<InWork>,
}

struct InWork {
    path: String,
    /// Of its documents, those that are not committed yet.
    documents: usize,
    is_read: bool,
    /// Its size, where nothing of it was stored.
    new_bytes: Option<u64>,
    /// Of it, what is committed and what is read, from 0 to 1.
    stored: f32,
    read: f32,
}

impl<'a> Run<'a> {
    pub fn new(ingestor: &'a Ingestor, begun: Begun, events: &'a mpsc::Sender<Result<IngestEvent>>) -> Self {
        let (record, report, batch) = (Record::begin(begun.job.clone()), IngestReport::default(), Batch::default());
        let (new, known, failed) = Default::default();
        let (job, ingests, feed) = (&begun.job, ingestor.ingests.clone(), ingestor.feed.clone());
        let telling = Telling::new((job.id, &job.collection), events.clone(), ingests, feed);
        let (files_done, files_total) = (0, 0);
        Self { ingestor, begun, events, record, report, files_done, files_total, new, known, failed, batch, telling }
    }

    /// Files of which all is in the corpus that will be; it stays there whatever comes.
    pub fn files_done(&self) -> usize {
        self.files_done
    }

    /// Files that were found.
    pub fn files_total(&self) -> usize {
        self.files_total
    }

    /// The job as the journal is to have it when this start ends before the job does.
    pub fn end_in_order(self) -> IngestJob {
        self.record.end_in_order()
    }

    /// Works on the job to its end; of the files that are found, on `only` these.
    pub async fn work(&mut self, only: Option<Vec<PathBuf>>) -> Result<IngestReport> {
        self.note().await?;
        self.ingestor.env.fail_point("ingest.begin")?;
        let (addresses, paths) = told_apart(&self.record.job().paths)?;
        let copies = self.ingestor.fetch(self.record.job(), addresses, self.events);
        let mut copies = self.unless_ended(copies).await?;
        let mut found = self.unless_ended(blocking(move || ragstone_documents::find_files(&paths))).await?;
        if let Some(only) = only {
            let only: HashSet<PathBuf> = only.into_iter().collect();
            found.files.retain(|file| only.contains(&file.path));
            // What is not read was told before.
            (found.left_alone, found.unreadable, found.hidden) = Default::default();
        }
        found.files.append(&mut copies.files);
        for (kind, count) in std::mem::take(&mut copies.left_alone) {
            *found.left_alone.entry(kind).or_default() += count;
        }
        self.report.files_unchanged = copies.unchanged;
        self.files_total = found.files.len() + found.unreadable.len() + copies.left_out.len();
        self.look_for_new(&found.files).await?;
        if !found.left_alone.is_empty() || found.hidden > 0 {
            let files = found.left_alone_files.iter().map(|path| shown(path)).collect();
            let left_alone = IngestEvent::LeftAlone { kinds: found.left_alone, hidden: found.hidden, files };
            let _ = self.events.send(Ok(left_alone)).await;
        }
        let unreadable = found.unreadable.into_iter().map(|(path, reason)| (shown(&path), reason));
        for (name, reason) in unreadable.chain(std::mem::take(&mut copies.left_out)) {
            self.leave_out(name, reason).await;
        }
        self.show();
        let Ingestor { env, file_seconds, jobs, .. } = self.ingestor;
        let fields = RecordFields::of_map(&self.record.job().options.fields)?;
        let mut reading = Reading::start(env.clone(), *file_seconds, fields, jobs.stopping().clone());
        let mut files = found.files.into_iter().peekable();
        loop {
            let group = self.next_group(&mut files).await;
            if group.is_empty() {
                self.look_for_gone(found.folders, found.empty, std::mem::take(&mut copies.gone)).await?;
                copies.note(&self.failed);
                return Ok(std::mem::take(&mut self.report));
            }
            self.record.begin_files(group.iter().map(FoundFile::name).collect());
            self.note().await?;
            for file in &group {
                reading.want(file.clone()).await?;
            }
            for file in group {
                self.read(&mut reading, &file).await?;
            }
            self.commit().await?;
        }
    }

    /// Files to begin together. What ended ragstone twice is left out.
    async fn next_group(&mut self, files: &mut std::iter::Peekable<std::vec::IntoIter<FoundFile>>) -> Vec<FoundFile> {
        let (mut group, mut standings) = (Vec::new(), Vec::new());
        while let Some(file) = files.peek() {
            let standing = self.record.standing(&file.name());
            if standing == Standing::Condemned {
                let reason = "it ended ragstone twice while it was read; skipped; ingest it alone to try again";
                let name = file.name();
                self.failed.insert(name.clone());
                self.count_new(self.new_bytes(file));
                self.leave_out(name, reason.into()).await;
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

    async fn read(&mut self, reading: &mut Reading, file: &FoundFile) -> Result<()> {
        let (name, new_bytes) = (file.name(), self.new_bytes(file));
        let (stored, read) = (0.0, 0.0);
        self.batch.files.push(InWork { path: name.clone(), documents: 0, is_read: false, new_bytes, stored, read });
        let (mut has_some, mut has_text, mut left_out) = (false, false, Vec::new());
        // What the corpus would not take, which would end the whole ingest there.
        let mut refused = None;
        loop {
            let step = match self.unless_ended(reading.next()).await? {
                Step::Done => refused.take().map_or(Step::Done, Step::Skipped),
                step => step,
            };
            match step {
                Step::Document(document) => {
                    let document = with_given(*document, &self.record.job().options.metadata);
                    if let Err(why) = document.check() {
                        refused.get_or_insert(why.to_string());
                        continue;
                    }
                    has_some = true;
                    has_text |= !document.text.trim().is_empty();
                    let room = MOST_LEFT_OUT.saturating_sub(left_out.len());
                    left_out.extend(document.left_out.iter().take(room).cloned());
                    self.commit_if_full().await?;
                    self.batch.push(document);
                }
                Step::Done if has_text => {
                    self.name_left_out(&name, &left_out).await;
                    break;
                }
                Step::Done => {
                    self.report.files_empty += 1;
                    self.name(name, "it has no text".into(), NotTakenKind::Empty).await;
                    break;
                }
                Step::Skipped(reason) if has_some => {
                    self.failed.insert(name.clone());
                    self.report.files_partly += 1;
                    let reason = format!("{reason}; the file's other documents are ingested");
                    self.name(name.clone(), reason, NotTakenKind::Partly).await;
                    self.name_left_out(&name, &left_out).await;
                    break;
                }
                Step::Skipped(reason) => {
                    self.failed.insert(name.clone());
                    self.report.files_skipped += 1;
                    self.name(name, reason, NotTakenKind::Unread).await;
                    break;
                }
            }
        }
        if let Some(file) = self.batch.files.last_mut() {
            (file.is_read, file.read) = (true, 1.0);
        }
        self.report.files += 1;
        // Not before it is known whether the file has more: whoever stops it hears how many files are done.
        self.commit_if_full().await
    }

    /// Waits no longer than the job may go on: for what costs nothing to do again.
    async fn unless_ended<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.begun.cancelled.cancelled() => Err(ingests::cancelled(self.begun.cancelled_by())),
            () = self.ingestor.jobs.stopping().cancelled() => Err(stopped()),
            done = work => done,
        }
    }

    /// Finds out which files are new, so that whoever waits hears how long they take. Of a few it is not worth a look.
    async fn look_for_new(&mut self, files: &[FoundFile]) -> Result<()> {
        if files.len() > GROUP_FILES {
            let paths: HashSet<String> = files.iter().map(FoundFile::name).collect();
            let known = self.ingestor.library.pick_documents(self.collection(), move |_, source| {
                let whole = paths.get(source);
                whole.or_else(|| paths.get(file_of(source))).cloned()
            });
            self.known = self.unless_ended(known).await?.into_iter().collect();
        }
        let new = files.iter().filter_map(|file| self.new_bytes(file));
        (self.new.files_total, self.new.bytes_total) = new.fold((0, 0), |(files, sum), bytes| (files + 1, sum + bytes));
        Ok(())
    }

    /// A file's size, where nothing of it is stored. An empty file is begun and ended all the same.
    fn new_bytes(&self, file: &FoundFile) -> Option<u64> {
        (!self.known.contains(&file.name())).then_some(file.bytes.max(1))
    }

    fn count_new(&mut self, bytes: Option<u64>) {
        self.new.files_done += usize::from(bytes.is_some());
        self.new.bytes_done += bytes.unwrap_or(0);
    }

    /// Counts, and where that was asked removes, the documents of files of these folders that are not there any more, and those of `gone`
    /// sources. Those of `empty` folders stay.
    async fn look_for_gone(&mut self, folders: Vec<PathBuf>, empty: Vec<PathBuf>, gone: HashSet<String>) -> Result<()> {
        if folders.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let Ingestor { library, jobs, .. } = self.ingestor;
        let documents = library.pick_documents(self.collection(), move |id, source| {
            let is_gone = gone.contains(source) || gone.contains(file_of(source)) || is_gone(source, &folders);
            is_gone.then(|| (id, within(source, &empty).map(shown)))
        });
        for (document, empty) in self.unless_ended(documents).await? {
            self.report.documents_gone += 1;
            if let Some(folder) = empty {
                keep(&mut self.report.kept, folder);
            } else if self.record.job().options.prune {
                if jobs.stopping().is_cancelled() {
                    return Err(stopped());
                }
                let removed = library.remove_gone(&self.begun, &document).await?;
                self.report.documents_pruned += 1;
                self.report.changes.passages_removed += removed.passages_removed;
            }
        }
        Ok(())
    }

    fn collection(&self) -> &str {
        &self.begun.job.collection
    }

    /// A file that is not even begun.
    async fn leave_out(&mut self, name: String, reason: String) {
        self.report.files += 1;
        self.report.files_skipped += 1;
        self.files_done += 1;
        self.name(name, reason, NotTakenKind::Unread).await;
    }

    /// Names a file of which something was left out.
    async fn name_left_out(&self, name: &str, left_out: &[String]) {
        if !left_out.is_empty() {
            self.name(name.to_owned(), left_out.join("; "), NotTakenKind::LeftOut).await;
        }
    }

    /// Names a file that is not taken whole.
    async fn name(&self, path: String, reason: String, kind: NotTakenKind) {
        let _ = self.events.send(Ok(IngestEvent::Skipped(NotTaken { path, reason, kind }))).await;
    }

    /// Writes what is begun and done to the journal; durable on return.
    async fn note(&self) -> Result<()> {
        self.ingestor.ingests.note(self.record.job().clone()).await
    }

    async fn commit_if_full(&mut self) -> Result<()> {
        if self.batch.is_full() {
            self.commit().await?;
            self.note().await?;
        }
        Ok(())
    }

    /// Stores the batch. Where the service stops on the way, what is computed by then.
    async fn commit(&mut self) -> Result<()> {
        let far = self.far();
        let documents = self.batch.take();
        let (given, mut taken) = (documents.len(), 0);
        if given > 0 {
            let telling = self.telling.clone();
            let told = move |upsert: UpsertProgress| telling.show(&far, upsert);
            let done = self.ingestor.library.take_in_telling(&self.begun, documents, told).await?;
            taken = done.documents;
            add(&mut self.report.changes, &done.report);
            self.ingestor.env.fail_point("ingest.after_commit")?;
        }
        for file in self.batch.taken(taken, &mut self.record) {
            self.files_done += 1;
            self.count_new(file.new_bytes);
        }
        self.show();
        self.tell(JobState::Running);
        if taken < given { Err(stopped()) } else { Ok(()) }
    }

    /// How far it is, at its last commit.
    fn far(&self) -> Far {
        let changes = &self.report.changes;
        let bytes = |share: fn(&InWork) -> f32| {
            let of = |file: &InWork| file.new_bytes.map_or(0.0, |bytes| bytes as f64 * f64::from(share(file)));
            self.batch.files.iter().map(of).sum::<f64>() as u64
        };
        Far {
            files: [self.files_done, self.files_total],
            documents: changes.documents_added + changes.documents_replaced + changes.documents_unchanged,
            passages_added: changes.passages_added,
            new: self.new,
            begun: [bytes(|file| file.stored), bytes(|file| file.read)],
            batch_bytes: self.batch.bytes,
        }
    }

    /// Shows whoever asked for the job how far it is.
    fn show(&self) {
        self.telling.show(&self.far(), UpsertProgress::default());
    }

    /// Tells those who watch the service how far it is.
    pub fn tell(&self, state: JobState) {
        self.telling.tell(state, [self.files_done, self.files_total]);
    }
}

impl Batch {
    /// Takes a document of the last file.
    fn push(&mut self, document: Document) {
        self.bytes += document.text.len();
        self.shares.push_back(document.share);
        if let Some(file) = self.files.last_mut() {
            file.documents += 1;
            file.read = document.share;
        }
        self.documents.push(document);
    }

    fn is_full(&self) -> bool {
        self.documents.len() >= BATCH_DOCUMENTS || self.bytes >= BATCH_BYTES
    }

    fn take(&mut self) -> Vec<Document> {
        self.bytes = 0;
        std::mem::take(&mut self.documents)
    }

    /// Notes that the first `documents` of those that were taken out are in the corpus; the files that are done by that.
    fn taken(&mut self, mut documents: usize, record: &mut Record) -> Vec<InWork> {
        let (mut done, mut open) = (Vec::new(), Vec::new());
        for mut file in std::mem::take(&mut self.files) {
            let own = file.documents.min(documents);
            documents -= own;
            file.documents -= own;
            file.stored = self.shares.drain(..own).next_back().unwrap_or(file.stored);
            record.committed(&file.path, own as u64);
            if file.is_read && file.documents == 0 {
                record.finished(&file.path);
                done.push(file);
            } else {
                open.push(file);
            }
        }
        self.files = open;
        done
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

/// Paths as people type them.
pub fn listed(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| shown(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_done_when_it_is_read_and_all_of_its_documents_are_in() {
        let job = IngestJob {
            id: 1,
            collection: "c".into(),
            paths: Vec::new(),
            created_unix_ms: 0,
            done: 0,
            starts: 0,
            attempts: Vec::new(),
            options: ragstone_storage::catalog::IngestOptions::default(),
        };
        let mut record = Record::begin(job);
        record.begin_files(["a", "b", "empty", "c"].map(str::to_owned).to_vec());
        let mut batch = Batch::default();
        for (path, documents, is_read) in [("a", 1, true), ("b", 3, true), ("empty", 0, true), ("c", 2, false)] {
            batch.files.push(InWork {
                path: path.into(),
                documents: 0,
                is_read,
                new_bytes: None,
                stored: 0.0,
                read: 0.0,
            });
            for _ in 0..documents {
                batch.push(Document::default());
            }
        }
        assert_eq!(batch.take().len(), 6);
        // The service stopped in the middle of the second one.
        assert_eq!(batch.taken(2, &mut record).len(), 2);
        assert_eq!(
            batch.files.iter().map(|file| (file.path.as_str(), file.documents)).collect::<Vec<_>>(),
            [("b", 2), ("c", 2)]
        );
        assert_eq!(batch.taken(4, &mut record).len(), 1, "of the last one more is to be read");
        let ended = record.end_in_order();
        assert_eq!((ended.done, ended.attempts.len()), (3, 0), "{ended:?}");
    }
}
