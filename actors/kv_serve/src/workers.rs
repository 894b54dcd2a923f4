//! Threads that do jobs, from one bounded queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use ragstone_env::lock::locked;
use ragstone_env::{Env, Result};

/// One job.
pub type Job = Box<dyn FnOnce() + Send>;

/// A queue and the threads that empty it. Dropped, it does what is queued, and ends.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    most_waiting: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl Workers {
    /// Starts `threads` threads; `most_waiting` jobs may wait.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread left.
    pub fn start(threads: usize, most_waiting: usize) -> Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), most_waiting });
        let mut workers = Self { shared, threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let shared = Arc::clone(&workers.shared);
            workers.threads.push(Env::spawn("kv-serve-job", move || shared.work())?);
        }
        Ok(workers)
    }

    /// Queues a job; false where too many wait.
    pub fn offer(&self, job: Job) -> bool {
        let mut state = locked(&self.shared.state);
        if state.closed || state.waiting.len() >= self.shared.most_waiting {
            return false;
        }
        state.waiting.push_back(job);
        drop(state);
        self.shared.changed.notify_one();
        true
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics is one client's loss; the hook has reported it.
            drop(catch_unwind(AssertUnwindSafe(job)));
        }
    }

    fn next(&self) -> Option<Job> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let waited = self.changed.wait_while(locked(&self.state), is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        locked(&self.shared.state).closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
