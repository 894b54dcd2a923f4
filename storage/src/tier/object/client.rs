//! Operations on the bucket: each with a deadline, one of a bounded number under way, past the breaker, and counted.
//!
//! The store is asynchronous and the tier is not: a small runtime of its own does the work, and whoever calls waits on a
//! channel, which works on any thread.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::breaker::{Breaker, Clearance, Outcome};
use super::options::ObjectOptions;
use crate::cost::Costs;
use crate::tier::{InFlight, Tier};
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;

/// What the tier asked of the bucket since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCounts {
    /// Operations that went out; retries within one are not counted.
    pub operations: u64,
    /// Of those, the ones that the bucket failed.
    pub failed: u64,
    /// Of the failed, those that ran past their deadline.
    pub timed_out: u64,
    /// Operations that did not go out because the bucket is taken for dead.
    pub shed: u64,
    /// Bytes of entries read.
    pub read_bytes: u64,
    /// Bytes of entries written.
    pub written_bytes: u64,
    /// Headers and layers of sealed entries that were not what somebody with this key sealed under this name: forged, replayed, changed or
    /// damaged. None was used.
    #[serde(default)]
    pub forged: u64,
}

/// The runtime, and what its tasks share. Dropping it ends what is under way, on any thread.
pub(super) struct Client {
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    pub bucket: Arc<Bucket>,
}

/// The store and everything that bounds its use.
pub(super) struct Bucket {
    pub store: Arc<dyn ObjectStore>,
    pub env: Env,
    timeout: Duration,
    breaker: Mutex<Breaker>,
    slots: Semaphore,
    counts: Counts,
    /// Who is told what reads take.
    pub costs: OnceLock<Costs>,
    /// Reads that are under way.
    reads: AtomicU64,
}

#[derive(Default)]
struct Counts {
    operations: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    shed: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    forged: AtomicU64,
}

/// What an operation is, for its failpoint, its deadline and its errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    /// As in "cannot … object x".
    pub doing: &'static str,
    pub failpoint: &'static str,
    /// That it moves at most.
    pub bytes: u64,
}

/// The result of work that was started. Dropped, it ends the work.
pub(super) struct Pending<T> {
    result: Receiver<Result<T>>,
    task: AbortHandle,
}

impl<T> Pending<T> {
    /// BLOCKS until the work is done; its operations have deadlines.
    pub fn wait(self) -> Result<T> {
        let gone = || Error::new(ErrorKind::Unavailable, "the object tier is closing");
        self.result.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    pub fn new(store: Arc<dyn ObjectStore>, options: &ObjectOptions, env: Env) -> Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("ragstone-object").enable_all().build().map_err(
                |error| Error::new(ErrorKind::Unavailable, "start the object tier's threads").with_source(error),
            )?;
        let bucket = Bucket {
            store,
            env,
            timeout: options.timeout,
            breaker: Mutex::new(Breaker::new(options.breaker)),
            slots: Semaphore::new(options.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            counts: Counts::default(),
            costs: OnceLock::new(),
            reads: AtomicU64::new(0),
        };
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime), bucket: Arc::new(bucket) })
    }

    /// Starts work; `work` must not hold a [`Client`].
    pub fn start<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Pending<T> {
        let (sender, result) = sync_channel(1);
        let task = self.handle.spawn(async move {
            let _ = sender.send(work.await);
        });
        Pending { result, task: task.abort_handle() }
    }

    /// Does work and BLOCKS until it is done.
    pub fn wait<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.start(work).wait()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait, and so may happen on a thread of any runtime.
            runtime.shutdown_background();
        }
    }
}

/// An admitted operation, whose end the breaker is told whatever happens.
struct Admitted<'a> {
    bucket: &'a Bucket,
    admission: Clearance,
    outcome: Outcome,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let now_ms = self.bucket.env.now_unix_ms();
        self.bucket.breaker().record(self.admission, self.outcome, now_ms);
    }
}

impl Bucket {
    /// Does one operation.
    ///
    /// # Errors
    /// `Unavailable` at once while the bucket is taken for dead, and past the deadline; else as `work` says.
    pub async fn operate<T>(&self, operation: Operation, work: impl Future<Output = Result<T>>) -> Result<T> {
        let unavailable = |why: String| {
            Error::new(ErrorKind::Unavailable, format!("object storage: cannot {}: {why}", operation.doing))
        };
        let deadline = self.timeout + Duration::from_secs(operation.bytes >> 20);
        let Ok(Ok(_slot)) = tokio::time::timeout(deadline, self.slots.acquire()).await else {
            return Err(unavailable(format!("too many requests under way for {deadline:?}")));
        };
        let admission = self.breaker().admit(self.env.now_unix_ms());
        if let Clearance::Refuse { retry_in_ms } = admission {
            self.counts.shed.fetch_add(1, Ordering::Relaxed);
            let why = format!("it failed before; the next attempt is in about {retry_in_ms} ms");
            return Err(unavailable(why));
        }
        let mut admitted = Admitted { bucket: self, admission, outcome: Outcome::Abandoned };
        self.counts.operations.fetch_add(1, Ordering::Relaxed);
        let work = async {
            self.env.fail_point(operation.failpoint)?;
            work.await
        };
        let result = match tokio::time::timeout(deadline, work).await {
            Ok(result) => result,
            Err(_) => {
                self.counts.timed_out.fetch_add(1, Ordering::Relaxed);
                Err(unavailable(format!("no answer within {deadline:?}")))
            }
        };
        admitted.outcome = match &result {
            Err(error) if is_the_buckets(error.kind()) => Outcome::Failed,
            _ => Outcome::Answered,
        };
        if admitted.outcome == Outcome::Failed {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Gets a range of an object, as much of it as there is; with `etag`, of that very object only.
    ///
    /// # Errors
    /// `NotFound`, also if another object has taken the name; `Unavailable`.
    pub async fn get(&self, path: &Path, etag: Option<&str>, range: Range<u64>) -> Result<(ObjectMeta, Bytes)> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: etag.map(str::to_owned),
            ..GetOptions::default()
        };
        let got = match self.store.get_opts(path, options).await {
            Ok(got) => got,
            Err(error) => return Err(self.get_error(path, error).await),
        };
        let meta = got.meta.clone();
        let end = range.end.min(meta.size);
        if got.range != (range.start..end) {
            return Err(short(path, &format!("{:?} came instead of {range:?}", got.range)));
        }
        let bytes = collect(path, got).await?;
        self.counts.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok((meta, bytes))
    }

    /// As [`get`](Self::get), for layers: what it takes is reported.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_layers(&self, path: &Path, etag: Option<&str>, range: Range<u64>) -> Result<Bytes> {
        let started = self.env.stopwatch();
        let reading = InFlight::begin(&self.reads);
        let (_, bytes) = self.get(path, etag, range).await?;
        if let Some(costs) = self.costs.get() {
            costs.observe_read(Tier::Object, bytes.len() as u64, reading.in_flight, started.elapsed());
        }
        Ok(bytes)
    }

    /// An object of no bytes has no range to be got: an answer, and not a failure of the bucket.
    async fn get_error(&self, path: &Path, error: object_store::Error) -> Error {
        let text = error.to_string();
        if matches!(error, object_store::Error::Generic { .. }) && (text.contains("416") || text.contains("ange")) {
            let size = self.store.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await;
            if size.is_ok_and(|head| head.meta.size == 0) {
                return Error::corrupt(format!("object {path} is empty"));
            }
        }
        fault("read", path, error)
    }

    /// What is known of an object without reading it; `None`: it is not there.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>> {
        match self.store.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await {
            Ok(got) => Ok(Some(got.meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(fault("look for", path, error)),
        }
    }

    /// Counts what a sealed entry was refused for, and tells the first time what that means.
    pub fn refused(&self, is_sealed: bool, error: Error) -> Error {
        if is_sealed && error.kind() == ErrorKind::Corrupt && self.counts.forged.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(
                %error,
                "an entry of the bucket is not what somebody with this key sealed: it was forged, changed or damaged. It is not used, computed \
                 again, and removed there. Look who can write to the bucket; ragstone_object_forged_total counts the next ones"
            );
        }
        error
    }

    pub fn count_written(&self, bytes: u64) {
        self.counts.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn counts(&self) -> ObjectCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ObjectCounts {
            operations: read(&self.counts.operations),
            failed: read(&self.counts.failed),
            timed_out: read(&self.counts.timed_out),
            shed: read(&self.counts.shed),
            read_bytes: read(&self.counts.read_bytes),
            written_bytes: read(&self.counts.written_bytes),
            forged: read(&self.counts.forged),
        }
    }

    /// Whether operations go out as usual.
    pub fn is_up(&self) -> bool {
        self.breaker().is_closed()
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of an answer: exactly as many as its range has, never more in memory.
async fn collect(path: &Path, got: GetResult) -> Result<Bytes> {
    let wanted = usize::try_from(got.range.end - got.range.start).unwrap_or(usize::MAX);
    if matches!(got.payload, GetResultPayload::File(..)) {
        let bytes = got.bytes().await.map_err(|error| fault("read", path, error))?;
        return if bytes.len() == wanted { Ok(bytes) } else { Err(short(path, "the file is shorter than it was")) };
    }
    let mut stream = got.into_stream();
    let mut whole = BytesMut::new();
    while let Some(chunk) = stream.try_next().await.map_err(|error| fault("read", path, error))? {
        if chunk.len() > wanted - whole.len() {
            return Err(short(path, &format!("more than the {wanted} bytes asked for came")));
        }
        if whole.is_empty() && chunk.len() == wanted {
            return Ok(chunk);
        }
        if whole.is_empty() {
            whole.reserve(wanted);
        }
        whole.extend_from_slice(&chunk);
    }
    if whole.len() == wanted {
        Ok(whole.freeze())
    } else {
        Err(short(path, &format!("{} of {wanted} bytes came", whole.len())))
    }
}

/// An answer of another length says nothing about the object: it may be whole, and the next answer, too.
fn short(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("object storage: read object {path}: {what}"))
}

fn is_the_buckets(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::NotFound | ErrorKind::Corrupt)
}

/// An error of the store in our terms.
pub(super) fn fault(doing: &str, path: &Path, error: object_store::Error) -> Error {
    use object_store::Error as Store;
    let (kind, advice) = match &error {
        Store::NotFound { .. } => (ErrorKind::NotFound, ""),
        Store::Precondition { .. } => (ErrorKind::NotFound, "; it was replaced since it was opened"),
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
            (ErrorKind::Unavailable, "; check the credentials and what they permit")
        }
        Store::NotSupported { .. } | Store::NotImplemented { .. } => {
            (ErrorKind::Internal, "; this store cannot be used")
        }
        _ if is_full(&error) => (ErrorKind::Full, "; free space there"),
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("object storage: {doing} object {path}: {error}{advice}")).with_source(error)
}

/// Whether a disk under a folder store is full.
fn is_full(error: &object_store::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return matches!(io.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        }
        source = cause.source();
    }
    false
}
