//! The room of the durable jobs: ingests, warm-ups, changes of the corpus, vacuums, the bucket's collection, and embedding again.
//!
//! How far a job is stands in the catalog's journal, which each kind writes in its own words before it acts; so the next start goes
//! on with what a kill cut off. What they have in common is here: a job goes on when whoever asked for it leaves; those that compete for
//! the same processors take turns; one that panics ends, and costs nobody else a turn; and when the service stops, each ends at its
//! next commit, which is waited for.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{FutureExt, Stream, StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::error::{Error, ErrorKind, Result};
use crate::worker::panic_text;

/// What a job has told and nobody has taken yet; it waits, or leaves steps out, beyond that.
const EVENTS: usize = 16;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Files become passages.
    Ingest,
    /// Entries are computed before anybody asks.
    WarmUp,
    /// Documents come, change or go, and the KV of what left leaves every tier.
    Change,
    /// What the bucket need not keep leaves it.
    Collection,
    /// How the model's prompts may be blended is found out.
    Calibration,
    /// Collections of another embedding model are embedded again.
    Renewal,
    /// Files are rewritten: without what was deleted from them, or few for many.
    Vacuum,
}

impl JobKind {
    const ALL: [Self; 7] =
        [Self::Ingest, Self::WarmUp, Self::Change, Self::Collection, Self::Calibration, Self::Renewal, Self::Vacuum];

    /// For logs, metrics and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::WarmUp => "warm-up",
            Self::Change => "change",
            Self::Collection => "collection",
            Self::Calibration => "calibration",
            Self::Renewal => "renewal",
            Self::Vacuum => "vacuum",
        }
    }
}

/// Jobs of one kind that run or wait for their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobsStatus {
    /// What they do.
    pub kind: JobKind,
    /// How many there are.
    pub jobs: usize,
}

/// The room. Clones share it.
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

struct Inner {
    runtime: Handle,
    stop: CancellationToken,
    turns: [Arc<Mutex<()>>; JobKind::ALL.len()],
    here: watch::Sender<[usize; JobKind::ALL.len()]>,
    /// How many of each kind began so far.
    begun: [AtomicU64; JobKind::ALL.len()],
}

impl Jobs {
    /// A room whose jobs run on `runtime`, a multi-thread one.
    pub(crate) fn new(runtime: Handle) -> Self {
        let (stop, here) = (CancellationToken::new(), watch::Sender::new([0; JobKind::ALL.len()]));
        Self(Arc::new(Inner { runtime, stop, turns: Default::default(), here, begun: Default::default() }))
    }

    /// Begins a job at once; what becomes of it. It goes on if the result is dropped.
    ///
    /// # Errors
    /// The job's own; `Internal` where it panicked, `Cancelled` where the runtime ended.
    pub fn run<T, E, F>(&self, kind: JobKind, work: F) -> impl Future<Output = Result<T, E>> + Send + use<T, E, F>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let here = Here::new(self, kind);
        let job = async move {
            let done = AssertUnwindSafe(work).catch_unwind().await;
            drop(here);
            done.unwrap_or_else(|panic| Err(broken(kind, panic_text(panic.as_ref())).into()))
        };
        // Its request ends long before it.
        let span = tracing::info_span!(parent: None, "job", kind = kind.name());
        let job = self.0.runtime.spawn(job.instrument(span));
        async move {
            let stopped = |_| Error::new(ErrorKind::Cancelled, "the service is shutting down").into();
            job.await.unwrap_or_else(|error| Err(stopped(error)))
        }
    }

    /// Begins a job at once; what it tells on its way, and last what becomes of it. It goes on if the stream is dropped.
    pub fn stream<T, E, W, F>(
        &self,
        kind: JobKind,
        work: W,
    ) -> impl Stream<Item = Result<T, E>> + Send + use<T, E, W, F>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        W: FnOnce(mpsc::Sender<Result<T, E>>) -> F,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (events, received) = mpsc::channel(EVENTS);
        let job = self.run(kind, work(events));
        let told =
            stream::unfold(
                received,
                |mut received| async move { received.recv().await.map(|event| (event, received)) },
            );
        told.chain(stream::once(job))
    }

    /// Waits until no other job of its kind works.
    ///
    /// # Errors
    /// `Cancelled` once the service stops.
    pub async fn turn(&self, kind: JobKind) -> Result<OwnedMutexGuard<()>> {
        let turn = self.0.turns[kind as usize].clone().lock_owned();
        let turn = self.0.stop.run_until_cancelled(turn).await;
        turn.filter(|_| !self.0.stop.is_cancelled()).ok_or_else(|| {
            let message = format!("the service stops; the {} goes on when it starts again", kind.name());
            Error::new(ErrorKind::Cancelled, message)
        })
    }

    /// Tells jobs to end at their next commit.
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Ends every job at its next commit. The next start goes on with them.
    pub fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Waits until there is no job.
    pub async fn stopped(&self) {
        let mut here = self.0.here.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        drop(here.wait_for(|here| here.iter().all(|jobs| *jobs == 0)).await);
    }

    /// How many jobs of other kinds began so far: whoever looks now and then sees what came and went in between.
    pub(crate) fn begun_but(&self, kind: JobKind) -> u64 {
        let others = JobKind::ALL.into_iter().zip(&self.0.begun).filter(|(other, _)| *other != kind);
        others.map(|(_, begun)| begun.load(Ordering::Relaxed)).sum()
    }

    /// The jobs that run or wait for their turn.
    pub fn status(&self) -> Vec<JobsStatus> {
        let here = *self.0.here.borrow();
        let jobs = JobKind::ALL.into_iter().zip(here).map(|(kind, jobs)| JobsStatus { kind, jobs });
        jobs.filter(|status| status.jobs > 0).collect()
    }
}

/// Counts a job until it has ended, however it does.
struct Here(Jobs, JobKind);

impl Here {
    fn new(jobs: &Jobs, kind: JobKind) -> Self {
        jobs.0.here.send_modify(|here| here[kind as usize] += 1);
        jobs.0.begun[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self(jobs.clone(), kind)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.0.here.send_modify(|here| here[self.1 as usize] -= 1);
    }
}

fn broken(kind: JobKind, panic: &str) -> Error {
    tracing::error!(job = kind.name(), panic, "a job panicked; the service goes on");
    metrics::counter!("ragstone_panics_total", "worker" => kind.name()).increment(1);
    let what_next = match kind {
        JobKind::Ingest | JobKind::WarmUp | JobKind::Renewal => "ask for it again, or the next start goes on with it",
        JobKind::Change => "send it again: what is there already changes nothing",
        JobKind::Collection | JobKind::Vacuum => "the next one goes on",
        JobKind::Calibration => "the same command tries again",
    };
    let message =
        format!("the {} met a defect in ragstone ({panic}); what it did so far is kept; {what_next}", kind.name());
    Error::new(ErrorKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::oneshot;

    use super::*;

    fn jobs() -> Jobs {
        Jobs::new(Handle::current())
    }

    fn counted(jobs: &Jobs) -> Vec<(JobKind, usize)> {
        jobs.status().into_iter().map(|status| (status.kind, status.jobs)).collect()
    }

    #[tokio::test]
    async fn a_job_goes_on_when_nobody_waits_for_it_and_is_waited_for_at_the_end() {
        let jobs = jobs();
        let ((go, wait), (done, is_done)) = (oneshot::channel::<()>(), oneshot::channel());
        drop(jobs.run(JobKind::Change, async move {
            drop(wait.await);
            done.send(()).expect("the test waits");
            Ok::<_, Error>(())
        }));
        assert_eq!(counted(&jobs), [(JobKind::Change, 1)]);
        jobs.stop();
        let stopped = jobs.stopped();
        tokio::pin!(stopped);
        assert!(futures::poll!(&mut stopped).is_pending(), "it is in the middle of it");
        go.send(()).unwrap();
        is_done.await.unwrap();
        stopped.await;
        assert_eq!(counted(&jobs), []);
    }

    #[tokio::test]
    async fn jobs_of_a_kind_take_turns_and_a_panic_costs_nobody_a_turn() {
        let jobs = jobs();
        let (room, (go, wait)) = (jobs.clone(), oneshot::channel::<()>());
        let first = jobs.run(JobKind::Ingest, async move {
            let _turn = room.turn(JobKind::Ingest).await?;
            drop(wait.await);
            panic!("a defect");
            #[allow(unreachable_code, reason = "names the type")]
            Ok::<(), Error>(())
        });
        tokio::task::yield_now().await;
        let second = jobs.turn(JobKind::Ingest);
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        jobs.turn(JobKind::WarmUp).await.unwrap();
        go.send(()).unwrap();
        let error = first.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("ingest") && error.to_string().contains("a defect"), "{error}");
        let turn = second.await.unwrap();
        assert_eq!(counted(&jobs), []);
        // Whoever waits when the service stops does not begin.
        let third = jobs.turn(JobKind::Ingest);
        tokio::pin!(third);
        assert!(futures::poll!(&mut third).is_pending());
        jobs.stop();
        drop(turn);
        assert_eq!(third.await.unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[tokio::test]
    async fn a_stream_tells_everything_and_the_end_last() {
        let jobs = jobs();
        let work = |events: mpsc::Sender<Result<u32>>| async move {
            for number in 0..100 {
                events.send(Ok(number)).await.expect("the test listens");
            }
            Ok(100)
        };
        let told: Vec<u32> = jobs.stream(JobKind::WarmUp, work).map(Result::unwrap).collect().await;
        assert_eq!(told, (0..=100).collect::<Vec<_>>());
        let work = |_: mpsc::Sender<Result<u32>>| async { Err(Error::new(ErrorKind::NotFound, "gone")) };
        let told: Vec<Result<u32>> = jobs.stream(JobKind::WarmUp, work).collect().await;
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    }
}
