//! Write-behind: entries on their way to a slower tier, in a bounded queue with threads of its own, so that no answer
//! waits for a disk or a network.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::entry::Entry;
use ragstone_env::Env;
use ragstone_env::lock::locked;

/// An entry to be written, and the epoch in which it was planned.
pub(super) struct Job {
    pub entry: Arc<Entry>,
    pub planned_in: u64,
}

/// What waits, and what had no room to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WriteBehindStatus {
    /// Entries waiting or being written.
    pub entries: u64,
    /// Bytes of those waiting.
    pub bytes: u64,
    /// Entries that were not queued because the queue was full: they stay where they are.
    pub dropped: u64,
}

/// A queue and the threads that empty it. Dropped, it lets what is being written end, and forgets the rest.
pub(super) struct WriteBehind {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    max_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order of their numbers.
    waiting: VecDeque<(u64, Job)>,
    bytes: u64,
    /// Numbers of those being written.
    writing: Vec<u64>,
    /// The number of the next one.
    next: u64,
    dropped: u64,
    closed: bool,
}

impl WriteBehind {
    /// Starts `threads` threads that call `write` for every entry; at most `max_bytes` wait.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread left.
    pub fn start(
        name: &str,
        threads: usize,
        max_bytes: u64,
        write: impl Fn(&Job) + Clone + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared { max_bytes, state: Mutex::default(), changed: Condvar::new() });
        let mut queue = Self { shared, threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let (shared, write) = (Arc::clone(&queue.shared), write.clone());
            queue.threads.push(Env::spawn(name, move || shared.work(&write))?);
        }
        Ok(queue)
    }

    /// Queues an entry; `false`, and counted, where the queue is full.
    pub fn offer(&self, job: Job) -> bool {
        let bytes = job.entry.header().total_bytes();
        let mut state = locked(&self.shared.state);
        // One entry always has room, however large it is.
        if state.closed || (!state.waiting.is_empty() && state.bytes + bytes > self.shared.max_bytes) {
            state.dropped += 1;
            return false;
        }
        state.bytes += bytes;
        let number = state.next;
        state.next += 1;
        state.waiting.push_back((number, job));
        drop(state);
        self.shared.changed.notify_all();
        true
    }

    /// Waits until what was queued before this call is written or was given up, for `limit` at most; whether it came to that.
    pub fn drain(&self, limit: Duration) -> bool {
        self.drain_to(self.mark(), limit)
    }

    /// What was queued so far.
    fn mark(&self) -> u64 {
        locked(&self.shared.state).next
    }

    /// Later ones do not count: on a busy service there is always another.
    fn drain_to(&self, mark: u64, limit: Duration) -> bool {
        let is_busy = |state: &mut State| state.has_before(mark);
        let waited = self.shared.changed.wait_timeout_while(locked(&self.shared.state), limit, is_busy);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        !state.has_before(mark)
    }

    pub fn status(&self) -> WriteBehindStatus {
        let state = locked(&self.shared.state);
        WriteBehindStatus {
            entries: (state.waiting.len() + state.writing.len()) as u64,
            bytes: state.bytes,
            dropped: state.dropped,
        }
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        let mut state = locked(&self.shared.state);
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was reported where it happened.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn work(&self, write: &impl Fn(&Job)) {
        while let Some((number, job)) = self.next() {
            let _writing = Writing(self, number);
            // The entry is lost to that tier, which is legal; the thread goes on.
            if catch_unwind(AssertUnwindSafe(|| write(&job))).is_err() {
                tracing::error!(key = %job.entry.header().key, "writing an entry panicked");
            }
        }
    }

    fn next(&self) -> Option<(u64, Job)> {
        let mut state = locked(&self.state);
        loop {
            if let Some((number, job)) = state.waiting.pop_front() {
                state.bytes -= job.entry.header().total_bytes();
                state.writing.push(number);
                return Some((number, job));
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn has_before(&self, mark: u64) -> bool {
        self.waiting.front().is_some_and(|(number, _)| *number < mark)
            || self.writing.iter().any(|number| *number < mark)
    }
}

/// One write and its number, until it ended in whatever way.
struct Writing<'a>(&'a Shared, u64);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).writing.retain(|number| *number != self.1);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;
    use crate::entry::tests::entry_behind;

    fn job(id: u32) -> Job {
        Job { entry: Arc::new(entry_behind(None, &[id])), planned_in: 0 }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_and_a_drain_waits_for_the_last_write() {
        let bytes = job(0).entry.header().total_bytes();
        let (go, wait) = sync_channel::<()>(0);
        let (tell, written) = channel();
        let (wait, tell) = (Arc::new(Mutex::new(wait)), Arc::new(Mutex::new(tell)));
        let write = move |job: &Job| {
            locked(&wait).recv().unwrap();
            locked(&tell).send(job.entry.header().tokens[0]).unwrap();
        };
        let queue = WriteBehind::start("test", 1, 2 * bytes, write).unwrap();
        assert!(queue.offer(job(1)));
        while queue.status().bytes > 0 {
            std::thread::yield_now(); // until the thread has taken it
        }
        assert_eq!([2, 3, 4].map(|id| queue.offer(job(id))), [true, true, false]);
        assert_eq!(queue.status(), WriteBehindStatus { entries: 3, bytes: 2 * bytes, dropped: 1 });
        assert!(!queue.drain(Duration::ZERO));
        (0..3).for_each(|_| go.send(()).unwrap());
        assert!(queue.drain(Duration::from_secs(60)));
        assert_eq!(written.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(queue.status(), WriteBehindStatus { entries: 0, bytes: 0, dropped: 1 });
    }

    #[test]
    fn a_drain_does_not_wait_for_what_comes_after_it() {
        let (go, wait) = sync_channel::<()>(0);
        let wait = Arc::new(Mutex::new(wait));
        // Written when told to, or when nobody tells any more.
        let write = move |_: &Job| assert!(matches!(locked(&wait).recv(), Ok(()) | Err(_)));
        let queue = WriteBehind::start("test", 1, u64::MAX, write).unwrap();
        assert!(queue.offer(job(1)));
        let mark = queue.mark();
        assert!(queue.offer(job(2)));
        assert!(!queue.drain_to(mark, Duration::ZERO));
        go.send(()).unwrap();
        assert!(queue.drain_to(mark, Duration::from_secs(60)), "though the second one is not written");
        assert!(!queue.drain(Duration::ZERO));
        drop(go);
        assert!(queue.drain(Duration::from_secs(60)));
    }
}
