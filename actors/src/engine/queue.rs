//! Two bounded queues in front of the engine: answers first, background work when nobody waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Job, Urgency};
use crate::error::{Error, ErrorKind, Result};

pub(super) struct JobQueue {
    state: Mutex<State>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct State {
    answers: VecDeque<Box<Job>>,
    background: VecDeque<Box<Job>>,
    closed: bool,
}

pub(super) enum Popped {
    Job(Box<Job>),
    Nothing,
    Closed,
}

impl JobQueue {
    pub(super) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), capacity }
    }

    pub(super) fn push(&self, job: Job, urgency: Urgency) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::new(ErrorKind::Cancelled, "the service is shutting down"));
        }
        let queue = match urgency {
            Urgency::Answer => &mut state.answers,
            Urgency::Background => &mut state.background,
        };
        if queue.len() >= self.capacity {
            // Those whose callers left would be passed over when their turn comes.
            queue.retain(|job| job.is_wanted());
        }
        if queue.len() >= self.capacity {
            let message = format!("the engine's queue is full ({}); try again", self.capacity);
            return Err(Error::new(ErrorKind::Overloaded, message));
        }
        queue.push_back(Box::new(job));
        self.changed.notify_one();
        Ok(())
    }

    /// The next job. With nothing running (`idle`) background jobs count too, and the call waits for one.
    pub(super) fn pop(&self, idle: bool) -> Popped {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Popped::Closed;
            }
            if let Some(job) = state.answers.pop_front() {
                return Popped::Job(job);
            }
            if !idle {
                return Popped::Nothing;
            }
            if let Some(job) = state.background.pop_front() {
                return Popped::Job(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.answers.clear();
        state.background.clear();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
