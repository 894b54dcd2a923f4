//! How far a job is, also within a file: for whoever asked for it, for the list of ingests, and for those who watch the service.

use std::sync::{Arc, Mutex};

use ragstone_actors::admission::jobs::JobKind;
use ragstone_actors::report::events::{Feed, Happened, JobNews, JobState, JobSubject};
use ragstone_actors::upkeep::ingests::{IngestProgress, Ingests};
use ragstone_corpus::UpsertProgress;
use ragstone_env::Stopwatch;
use ragstone_env::lock::locked;
use tokio::sync::mpsc;

use super::left::TimeLeft;
use super::{IngestEvent, NewFiles};
use crate::error::Result;

/// How often those who watch the service hear of a job between two commits.
const TELL_WATCHERS_S: f64 = 1.0;

/// How far a job is at a commit, and what comes with the next one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Far {
    /// Done, and all.
    pub files: [usize; 2],
    pub documents: usize,
    pub passages_added: usize,
    /// With the bytes of whole files.
    pub new: NewFiles,
    /// Bytes of new files that are begun: those that are stored, and with the next commit.
    pub begun: [u64; 2],
    /// Bytes of the texts that are committed next.
    pub batch_bytes: usize,
}

impl Far {
    /// Bytes of new files that are embedded, so far within the next commit.
    fn bytes_done(&self, upsert: UpsertProgress) -> u64 {
        let UpsertProgress { passages_embedded, passages_cut, bytes_cut, .. } = upsert;
        // The rest has as many passages a byte.
        let expected = passages_cut as f64 * self.batch_bytes as f64 / bytes_cut.max(1) as f64;
        let share = if expected > 0.0 { (passages_embedded as f64 / expected).min(1.0) } else { 0.0 };
        let [stored, next] = self.begun;
        let within = stored + (next.saturating_sub(stored) as f64 * share) as u64;
        (self.new.bytes_done + within).min(self.new.bytes_total)
    }
}

/// Where a job tells it. Clones share what they know of its pace.
#[derive(Clone)]
pub(super) struct Telling {
    pub id: u64,
    pub collection: String,
    pub events: mpsc::Sender<Result<IngestEvent>>,
    pub ingests: Ingests,
    pub feed: Feed,
    pace: Arc<Mutex<Pace>>,
}

struct Pace {
    begun: Stopwatch,
    left: TimeLeft,
    /// As it was told last.
    progress: IngestProgress,
    /// When those who watch heard of it last.
    told_s: f64,
}

impl Telling {
    /// Of a job that begins now.
    pub fn new(
        (id, collection): (u64, &str),
        events: mpsc::Sender<Result<IngestEvent>>,
        ingests: Ingests,
        feed: Feed,
    ) -> Self {
        let (left, progress) = Default::default();
        let pace = Arc::new(Mutex::new(Pace { begun: Stopwatch::start(), left, progress, told_s: 0.0 }));
        Self { id, collection: collection.to_owned(), events, ingests, feed, pace }
    }

    /// Tells whoever asked for the job, and who looks at the list; those who watch now and then.
    pub fn show(&self, far: &Far, upsert: UpsertProgress) {
        let Far { files: [files_done, files_total], documents, passages_added, new, .. } = *far;
        let new = NewFiles { bytes_done: far.bytes_done(upsert), ..new };
        let passages_embedded = passages_added + upsert.passages_embedded;
        let (progress, is_due) = {
            let mut pace = locked(&self.pace);
            let now_s = pace.begun.elapsed_s();
            let left_s = pace.left.after(now_s, (files_done, files_total), new).map(|left_s| left_s.round() as u64);
            let NewFiles { bytes_done, bytes_total, .. } = new;
            pace.progress = IngestProgress { bytes_done, bytes_total, passages: passages_embedded as u64, left_s };
            let is_due = now_s >= pace.told_s + TELL_WATCHERS_S;
            if is_due {
                pace.told_s = now_s;
            }
            (pace.progress, is_due)
        };
        let left_s = progress.left_s;
        // Nobody has to see every step.
        let _ = self.events.try_send(Ok(IngestEvent::Progress {
            files_done,
            files_total,
            documents,
            passages_added,
            passages_embedded,
            new,
            left_s,
        }));
        self.ingests.show(files_done as u64, files_total as u64, progress);
        if is_due {
            self.tell(JobState::Running, far.files);
        }
    }

    /// Tells those who watch the service.
    pub fn tell(&self, state: JobState, [done, total]: [usize; 2]) {
        self.feed.publish(|| {
            let (collection, document, tenants) = (self.collection.clone(), None, Vec::new());
            Happened::Job(Arc::new(JobNews {
                kind: JobKind::Ingest,
                id: self.id,
                subject: JobSubject::Collection { collection, document, tenants },
                state,
                done: done as u64,
                total: total as u64,
                progress: Some(locked(&self.pace).progress),
            }))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_batch_it_is_as_far_as_its_passages_have_vectors() {
        let new = NewFiles { files_done: 1, files_total: 3, bytes_done: 1000, bytes_total: 9000 };
        let far = Far { new, begun: [2000, 4000], batch_bytes: 800, ..Far::default() };
        let at = |passages_embedded, passages_cut, bytes_cut| {
            far.bytes_done(UpsertProgress { passages_embedded, passages_cut, bytes_cut, ..UpsertProgress::default() })
        };
        assert_eq!(at(0, 0, 0), 3000, "nothing is cut yet");
        // Half of it is cut, to ten passages: there will be twenty.
        assert_eq!(at(5, 10, 400), 3500);
        assert_eq!(at(10, 10, 400), 4000);
        assert_eq!(at(20, 20, 800), 5000);
        assert_eq!(at(99, 20, 800), 5000, "documents of an older version were counted, too");
        let all = Far { begun: [0, 99_000], ..far };
        assert_eq!(
            all.bytes_done(UpsertProgress {
                passages_embedded: 1,
                passages_cut: 1,
                bytes_cut: 800,
                ..UpsertProgress::default()
            }),
            9000
        );
    }
}
