//! Where the time of a pass goes: the parts of a model's work, timed while somebody wants to know.
//!
//! A part is what all threads do between two steps of the one that leads the pass, so its time is the clock's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Token ids to rows.
    Embed,
    /// Norms, and rounding of what enters products.
    Norm,
    /// Q, K and V of rows.
    Project,
    /// Rotation, and K and V into their blocks.
    Place,
    /// Scores, softmax, values.
    Attend,
    /// Attention's way out.
    Output,
    /// The feed-forward part, its activation and its experts.
    FeedForward,
    /// The last norm, and logits.
    Logits,
}

impl Part {
    /// All of them, in the order of a pass.
    pub const ALL: [Self; 8] = [
        Self::Embed,
        Self::Norm,
        Self::Project,
        Self::Place,
        Self::Attend,
        Self::Output,
        Self::FeedForward,
        Self::Logits,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Norm => "norm",
            Self::Project => "qkv",
            Self::Place => "place",
            Self::Attend => "attend",
            Self::Output => "output",
            Self::FeedForward => "feed_forward",
            Self::Logits => "logits",
        }
    }
}

/// Seconds by part; off until it is started, and then it costs next to nothing.
#[derive(Debug, Default)]
pub struct Profile {
    is_on: AtomicBool,
    nanoseconds: [AtomicU64; Part::ALL.len()],
}

impl Profile {
    /// Counts from zero.
    pub fn start(&self) {
        self.nanoseconds.iter().for_each(|part| part.store(0, Ordering::Relaxed));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Counts no more: the seconds of each part since the start.
    pub fn stop(&self) -> [(Part, f64); Part::ALL.len()] {
        self.is_on.store(false, Ordering::Relaxed);
        Part::ALL.map(|part| (part, self.nanoseconds[part as usize].load(Ordering::Relaxed) as f64 / 1e9))
    }

    /// Does `work`, which is of `part`. Parts do not nest.
    #[expect(
        clippy::disallowed_methods,
        reason = "measuring is all that these times are for; storage's clock is above this crate"
    )]
    pub(crate) fn time<T>(&self, part: Part, work: impl FnOnce() -> T) -> T {
        if !self.is_on.load(Ordering::Relaxed) {
            return work();
        }
        let started = Instant::now();
        let done = work();
        self.nanoseconds[part as usize].fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        done
    }
}
