//! Prompts that wait for the engine, and what wakes it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Job, Urgency};
use crate::error::{Error, ErrorKind, Result};

/// Shared by those who submit, the loads under way, and the engine's thread.
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    /// Of each urgency.
    capacity: usize,
    preemptions: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    next_id: u64,
    /// Something happened since the engine heeded it.
    is_stirred: bool,
    is_closed: bool,
}

/// A prompt that has not begun.
pub(super) struct Waiting {
    /// Greater came later.
    pub id: u64,
    pub urgency: Urgency,
    /// How often later ones went before it.
    pub overtaken: u32,
    pub job: Job,
}

impl Inbox {
    pub(super) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), capacity, preemptions: AtomicU64::new(0) }
    }

    pub(super) fn push(&self, job: Job, urgency: Urgency) -> Result<()> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Error::new(ErrorKind::Cancelled, "the service is shutting down"));
        }
        // Those whose callers left take no place.
        state.waiting.retain(|waiting| waiting.job.is_wanted());
        if state.waiting.iter().filter(|waiting| waiting.urgency == urgency).count() >= self.capacity {
            let message = format!("the engine's queue is full ({}); try again", self.capacity);
            return Err(Error::new(ErrorKind::Overloaded, message));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.push(Waiting { id, urgency, overtaken: 0, job });
        drop(state);
        self.stir();
        Ok(())
    }

    /// Shows what waits, without those that nobody waits for; `None` where the engine is to end.
    pub(super) fn look<T>(&self, show: impl FnOnce(&mut Vec<Waiting>) -> T) -> Option<T> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        state.waiting.retain(|waiting| waiting.job.is_wanted());
        Some(show(&mut state.waiting))
    }

    /// From here on, whatever happens ends the next wait: to be called before the engine looks at anything.
    pub(super) fn heed(&self) {
        self.lock().is_stirred = false;
    }

    /// Takes one that is to begin.
    pub(super) fn take(&self, id: u64) -> Option<Waiting> {
        let mut state = self.lock();
        let index = state.waiting.iter().position(|waiting| waiting.id == id)?;
        Some(state.waiting.remove(index))
    }

    /// Gives one back that could not begin.
    pub(super) fn put_back(&self, waiting: Waiting) {
        let mut state = self.lock();
        if !state.is_closed {
            state.waiting.push(waiting);
        }
    }

    /// Waits until something has happened since the last look, `patience` at most; for ever without.
    pub(super) fn wait(&self, patience: Option<Duration>) {
        let state = self.lock();
        let is_quiet = |state: &mut State| !state.is_stirred && !state.is_closed;
        // Whoever is woken looks again.
        match patience {
            Some(patience) => drop(self.changed.wait_timeout_while(state, patience, is_quiet)),
            None => drop(self.changed.wait_while(state, is_quiet)),
        }
    }

    /// Wakes the engine: a load has come, a caller has left.
    pub(super) fn stir(&self) {
        self.lock().is_stirred = true;
        self.changed.notify_all();
    }

    /// A sequence was swapped out.
    pub(super) fn count_preemption(&self) {
        self.preemptions.fetch_add(1, Ordering::Relaxed);
    }

    /// Sequences that were swapped out so far.
    pub(super) fn preemptions(&self) -> u64 {
        self.preemptions.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
