//! What a turn's work took of the time that callers share, counted as it is spent: a step that was under way when its caller left ends after
//! the turn, and is that caller's all the same.

use std::sync::{Arc, Mutex};

use ragstone_env::lock::locked;

use super::Turns;
use crate::admission::caller::Caller;

/// The time that a turn's work took. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ComputeTime(Arc<Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    /// Since the turn began.
    ms: f64,
    /// Whose turn it was, once that has ended.
    ended: Option<(Turns, Caller)>,
}

impl ComputeTime {
    /// Counts time more: for the turn's end or, where that is over, at once.
    pub fn add_ms(&self, ms: f64) {
        let mut counted = locked(&self.0);
        let Some((turns, caller)) = counted.ended.clone() else {
            counted.ms += ms;
            return;
        };
        drop(counted);
        turns.state().spend(caller, ms, &turns.0);
    }

    /// The turn ends; what was counted so far, in milliseconds.
    pub(super) fn end(&self, turns: &Turns, caller: Caller) -> f64 {
        let mut counted = locked(&self.0);
        counted.ended = Some((turns.clone(), caller));
        std::mem::take(&mut counted.ms)
    }

    /// What was counted of a turn that has not ended.
    #[cfg(test)]
    pub(crate) fn ms(&self) -> f64 {
        locked(&self.0).ms
    }
}
