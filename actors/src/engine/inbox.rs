//! Prompts that wait for the engine, and what wakes it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ragstone_storage::tier::device::LostPath;

use super::{Job, Urgency, WhenLost};
use crate::admission::caller::Caller;
use crate::engine::status::{GroupsStatus, SequencesStatus};
use crate::error::{Error, ErrorKind, Result};
use crate::speculation::Load;

/// Shared by those who submit, the loads under way, and the engine's thread.
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    /// Of each urgency.
    capacity: usize,
    preemptions: AtomicU64,
    sharing: Mutex<GroupsStatus>,
    /// Those that have begun, as of the last step.
    begun: Mutex<SequencesStatus>,
    when_lost: Mutex<Option<WhenLost>>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    next_id: u64,
    /// The least milliseconds that a row of a prefill takes; 0: nothing is known.
    row_ms: f64,
    /// Rows of answers' prompts that are under way, by caller.
    under_way: HashMap<Caller, usize>,
    /// Rows of speculative prompts that are under way.
    speculative: usize,
    /// Whether answers decode.
    is_decoding: bool,
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

impl State {
    /// When a job's prefill will have ended, as things stand: callers have equal shares, so that it waits for its own caller's
    /// prompts, and for as many rows of each of the others'.
    fn expected_ms(&self, job: &Job) -> f64 {
        let mut ahead = self.under_way.clone();
        for other in self.waiting.iter().filter(|other| other.urgency == Urgency::Answer) {
            *ahead.entry(other.job.caller).or_default() += other.job.least_rows();
        }
        let own = ahead.remove(&job.caller).unwrap_or(0) + job.least_rows();
        let others: usize = ahead.values().map(|rows| own.min(*rows)).sum();
        (own + others) as f64 * self.row_ms
    }
}

impl Inbox {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            capacity,
            preemptions: AtomicU64::new(0),
            sharing: Mutex::default(),
            begun: Mutex::default(),
            when_lost: Mutex::default(),
        }
    }

    pub(super) fn push(&self, job: Job, urgency: Urgency) -> Result<()> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Error::new(ErrorKind::Cancelled, "the service is shutting down"));
        }
        // Those whose callers left take no place.
        state.waiting.retain(|waiting| waiting.job.is_wanted());
        let waiting = state.waiting.iter().filter(|waiting| waiting.urgency == urgency).count();
        if waiting >= self.capacity && !job.is_begun() {
            let message = format!("the engine's queue is full ({}); try again", self.capacity);
            return Err(Error::new(ErrorKind::Overloaded, message));
        }
        if urgency == Urgency::Answer && !job.is_begun() {
            let (expected_ms, left_ms) = (state.expected_ms(&job), job.left_ms());
            // Nothing is refused by an engine that has nothing to do: it is to find out what it can.
            let is_idle =
                state.under_way.is_empty() && !state.waiting.iter().any(|waiting| waiting.urgency == Urgency::Answer);
            if expected_ms > left_ms && !is_idle {
                metrics::counter!("ragstone_shed_total", "worker" => "engine").increment(1);
                let (behind, left) = (expected_ms / 1e3, left_ms / 1e3);
                let message = format!(
                    "the engine has work for {behind:.0} s before this prompt, which has {left:.0} s; try again"
                );
                return Err(Error::new(ErrorKind::Overloaded, message));
            }
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
        for waiting in &mut state.waiting {
            if waiting.job.hold.take_if(|hold| hold.is_released()).is_some() {
                waiting.urgency = Urgency::Answer;
            }
        }
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

    /// What a row of a prefill takes, in milliseconds, and the rows that are under way.
    pub(super) fn note_pace(
        &self,
        row_ms: f64,
        under_way: HashMap<Caller, usize>,
        (speculative, is_decoding): (usize, bool),
    ) {
        let mut state = self.lock();
        (state.row_ms, state.under_way) = (row_ms, under_way);
        (state.speculative, state.is_decoding) = (speculative, is_decoding);
    }

    /// What there is to do for others than the background, where `most` rows fill a step. Beside answers that decode there is no room.
    pub(super) fn load(&self, most: usize) -> Load {
        let state = self.lock();
        let waiting = state.waiting.iter().filter(|waiting| waiting.urgency != Urgency::Background);
        let rows = waiting.map(|waiting| waiting.job.rows()).chain(state.under_way.values().copied()).sum::<usize>();
        Load { pending: rows + state.speculative, most: if state.is_decoding { 0 } else { most } }
    }

    pub(super) fn when_lost(&self, when_lost: WhenLost) {
        *self.when_lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(when_lost);
    }

    /// The device's memory was lost, with these.
    pub(super) fn tell_lost(&self, paths: Vec<LostPath>) {
        let when_lost = self.when_lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(when_lost) = when_lost {
            when_lost(paths);
        }
    }

    /// A sequence is to leave the device for others.
    pub(super) fn count_preemption(&self) {
        self.preemptions.fetch_add(1, Ordering::Relaxed);
    }

    /// Sequences that left the device so far.
    pub(super) fn preemptions(&self) -> u64 {
        self.preemptions.load(Ordering::Relaxed)
    }

    /// A step was made beside groups that hold this.
    pub(super) fn note_sharing(&self, step: GroupsStatus) {
        *self.sharing.lock().unwrap_or_else(PoisonError::into_inner) += step;
    }

    /// What groups held in all steps so far.
    pub(super) fn sharing(&self) -> GroupsStatus {
        *self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step is about to be made, with these under way.
    pub(super) fn note_begun(&self, begun: SequencesStatus) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    }

    /// Those that wait now, and those under way.
    pub(super) fn sequences(&self) -> SequencesStatus {
        let mut status = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        for waiting in self.lock().waiting.iter().filter(|waiting| waiting.job.is_wanted()) {
            match waiting.urgency {
                Urgency::Background => status.background += 1,
                Urgency::Answer | Urgency::Speculative => status.waiting += 1,
            }
        }
        status
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
