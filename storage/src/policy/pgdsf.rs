//! Prefix-aware Greedy-Dual-Size-Frequency: RAGCache's replacement policy.

use super::ranked::{Ranked, Rule};
use super::{Access, Id, PolicyKind};

/// Requests after which a use no longer counts.
pub const WINDOW_REQUESTS: u64 = 16_384;

/// PGDSF (RAGCache, section 5.1, algorithm 1).
///
/// ```text
/// priority    = clock + frequency · cost/size                     equation 1, as of the entry's last use
/// clock       = max over the evicted of their priority            equation 2
/// cost/size   = mean over misses of T(cached, new) / new          equation 3, microseconds a token
/// frequency   = uses within the last requests, cached or not
/// ```
/// Frequency and cost belong to the entry, not to its stay in the tier: they are kept while it is gone, until
/// [`Policy::forget`](super::Policy::forget). The paper says "within a time window" and gives no length; here two halves of a
/// window are counted, the running one and the one before, so that a use counts for between half a window and a whole.
pub type Pgdsf = Ranked<PgdsfRule>;

/// `priority = clock + frequency · mean cost`.
#[derive(Debug)]
pub struct PgdsfRule {
    clock: f64,
    half_window: u64,
    statistics: Vec<Statistics>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Statistics {
    /// Which half window `running` counts.
    half: u64,
    running: u32,
    before: u32,
    /// Sum over misses of T(cached, new) / new.
    total_cost: f64,
    computed: u32,
}

impl Default for PgdsfRule {
    fn default() -> Self {
        Self { clock: 0.0, half_window: WINDOW_REQUESTS / 2, statistics: Vec::new() }
    }
}

impl Pgdsf {
    /// A policy that counts a use for `requests` requests at most; `u64::MAX` counts for ever.
    pub fn with_window(requests: u64) -> Self {
        Self::new(PgdsfRule { half_window: (requests / 2).max(1), ..PgdsfRule::default() })
    }
}

impl Statistics {
    /// Counts uses, and says how many there were within the window.
    fn count(&mut self, half: u64, uses: u32) -> f64 {
        if half != self.half {
            self.before = if half == self.half + 1 { self.running } else { 0 };
            self.running = 0;
            self.half = half;
        }
        self.running = self.running.saturating_add(uses);
        f64::from(self.running) + f64::from(self.before)
    }

    fn add_cost(&mut self, cost_per_token: f64) {
        // A grid that somebody measured badly must not poison the order.
        if cost_per_token.is_finite() {
            self.total_cost += cost_per_token.max(0.0);
            self.computed = self.computed.saturating_add(1);
        }
    }

    fn mean_cost(&self) -> f64 {
        self.total_cost / f64::from(self.computed.max(1))
    }
}

impl Rule for PgdsfRule {
    const KIND: PolicyKind = PolicyKind::Pgdsf;

    /// Algorithm 1, `UPDATE_NODE`, lines 3 to 13.
    fn priority(&mut self, id: Id, access: Access, _: bool) -> f64 {
        if self.statistics.len() <= id.index() {
            self.statistics.resize(id.index() + 1, Statistics::default());
        }
        let statistics = &mut self.statistics[id.index()];
        let frequency = statistics.count(access.request / self.half_window, access.uses());
        if !access.is_cached {
            statistics.add_cost(access.cost_per_token);
        }
        self.clock + statistics.mean_cost() * frequency
    }

    /// Algorithm 1, line 21.
    fn evicted(&mut self, priority: f64) {
        self.clock = self.clock.max(priority);
    }

    fn forget(&mut self, id: Id) {
        if let Some(statistics) = self.statistics.get_mut(id.index()) {
            *statistics = Statistics::default();
        }
    }
}
