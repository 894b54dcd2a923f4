//! What happens in the service, for those who watch it: answers' reports, how far jobs are, what left the tiers.
//!
//! A bounded broadcast. Whoever publishes waits for nobody; a watcher that falls behind by more than [`KEPT`] events is told how many it
//! missed. While nobody watches, an event costs a look at a counter.

use std::sync::Arc;

use ragstone_storage::catalog::{WarmJob, WarmProgress, WarmSubject};
use ragstone_storage::tier::{Tier, TierStatus};
use tokio::sync::broadcast;

use crate::admission::jobs::JobKind;
use crate::report::plans::PlanRecord;
use crate::report::progress::IngestProgress;

/// Events that a watcher may be behind.
const KEPT: usize = 256;

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Happened {
    /// A prompt's first token was there.
    Answer(Arc<PlanRecord>),
    /// A job began, got further or ended.
    Job(Arc<JobNews>),
    /// Entries left tiers: evicted for room, or on demand.
    Evictions(Arc<[(Tier, u64)]>),
    /// The tiers hold something else than a moment ago, or were asked for something.
    Tiers(Arc<[(Tier, TierStatus)]>),
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNews {
    /// What it does.
    pub kind: JobKind,
    /// Its number among those of its kind.
    pub id: u64,
    /// Of what.
    pub subject: JobSubject,
    /// Whether it goes on.
    pub state: JobState,
    /// Files, passages, or texts of modules that are done.
    pub done: u64,
    /// And those that there are, as far as that is known.
    pub total: u64,
    /// How far an ingest is within its files.
    pub progress: Option<IngestProgress>,
}

/// What a job is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSubject {
    /// A collection, by its full name, or one document of it.
    Collection {
        /// The collection.
        collection: String,
        /// The document.
        document: Option<String>,
        /// For whom entries are computed; empty where text is changed, which is nobody's but the collection's.
        tenants: Vec<String>,
    },
    /// A schema of a tenant.
    Schema {
        /// Its name.
        schema: String,
        /// Whose.
        tenants: Vec<String>,
    },
}

/// Whether a job goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It works, or waits for its turn.
    Running,
    /// It is done.
    Finished,
    /// It ended early; this is why.
    Failed(String),
}

impl JobNews {
    /// News of a warm-up.
    pub(crate) fn of_warm_up(job: &WarmJob, progress: &WarmProgress, state: JobState) -> Self {
        let tenants = job.tenants.clone();
        let subject = match &job.subject {
            WarmSubject::Passages { collection, document } => {
                JobSubject::Collection { collection: collection.clone(), document: document.clone(), tenants }
            }
            WarmSubject::Modules { schema, .. } => JobSubject::Schema { schema: schema.clone(), tenants },
        };
        let (done, total) = (progress.passages_done, progress.passages_total);
        Self { kind: JobKind::WarmUp, id: job.id, subject, state, done, total, progress: None }
    }
}

/// Where events go. Clones share it.
#[derive(Debug, Clone)]
pub struct Feed(broadcast::Sender<Happened>);

impl Default for Feed {
    fn default() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }
}

impl Feed {
    /// Tells everybody who watches.
    pub fn publish(&self, event: impl FnOnce() -> Happened) {
        if self.is_watched() {
            // The last one may have left meanwhile.
            let _ = self.0.send(event());
        }
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Everything from now on.
    pub fn watch(&self) -> Watcher {
        Watcher(self.0.subscribe())
    }
}

/// Receives events.
#[derive(Debug)]
pub struct Watcher(broadcast::Receiver<Happened>);

/// What a watcher is told.
#[derive(Debug, Clone)]
pub enum News {
    /// Something happened.
    Happened(Happened),
    /// So many events are lost, because they were not taken in time.
    Missed(u64),
}

impl Watcher {
    /// The next event; `None`: the service has ended.
    pub async fn next(&mut self) -> Option<News> {
        match self.0.recv().await {
            Ok(event) => Some(News::Happened(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(News::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evicted(entries: u64) -> Happened {
        Happened::Evictions([(Tier::Host, entries)].into())
    }

    #[tokio::test]
    async fn a_watcher_hears_everything_or_how_much_it_missed() {
        let feed = Feed::default();
        feed.publish(|| unreachable!("nobody watches"));
        let mut watcher = feed.watch();
        for entries in 0..KEPT as u64 + 7 {
            feed.publish(|| evicted(entries));
        }
        assert!(matches!(watcher.next().await, Some(News::Missed(7))));
        for expected in 7..KEPT as u64 + 7 {
            match watcher.next().await {
                Some(News::Happened(Happened::Evictions(tiers))) => assert_eq!(*tiers, [(Tier::Host, expected)]),
                other => panic!("{other:?}"),
            }
        }
        drop(feed);
        assert!(watcher.next().await.is_none());
    }
}
