//! A circuit breaker: after failures in a row nobody waits for a dead bucket, and one probe at a time finds out whether it
//! is back. Pure: time is what the caller says.
//!
//! ```text
//!            failures in a row                  cool-down over: one probe
//!   Closed ---------------------> Open -----------------------------------> HalfOpen
//!      ^                            ^                                          |
//!      |                            +---- it failed: a longer cool-down --------+
//!      +--------------------------------- it succeeded -------------------------+
//! ```

/// When it opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerOptions {
    /// Failures in a row that open it; at least 1.
    pub failures: u32,
    /// The first cool-down in milliseconds; it doubles with every probe that fails.
    pub cool_down_ms: u64,
    /// No cool-down is longer.
    pub longest_cool_down_ms: u64,
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self { failures: 5, cool_down_ms: 1_000, longest_cool_down_ms: 60_000 }
    }
}

/// Whether an operation may go out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clearance {
    /// As usual.
    Pass,
    /// It is the probe: its outcome decides, and must be told.
    Probe,
    /// Not now.
    Refuse {
        /// Until the next probe may go.
        retry_in_ms: u64,
    },
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The other side answered, if only that there is nothing.
    Answered,
    /// It did not, or could not.
    Failed,
    /// Nobody waited for the end.
    Abandoned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { since_ms: u64, cool_down_ms: u64 },
    HalfOpen { cool_down_ms: u64 },
}

/// The state machine; one for a tier.
#[derive(Debug)]
pub(super) struct Breaker {
    options: BreakerOptions,
    state: State,
}

impl Breaker {
    pub fn new(options: BreakerOptions) -> Self {
        Self { options, state: State::Closed { failures: 0 } }
    }

    /// Asks for an operation at `now_ms`. Whoever is admitted calls [`Breaker::record`] once.
    pub fn admit(&mut self, now_ms: u64) -> Clearance {
        match self.state {
            State::Closed { .. } => Clearance::Pass,
            State::HalfOpen { cool_down_ms } => Clearance::Refuse { retry_in_ms: cool_down_ms },
            State::Open { since_ms, cool_down_ms } => {
                // A clock that was set back must not keep it open for longer than the cool-down.
                let until_ms = since_ms.saturating_add(cool_down_ms);
                if now_ms >= since_ms && now_ms < until_ms {
                    return Clearance::Refuse { retry_in_ms: until_ms - now_ms };
                }
                self.state = State::HalfOpen { cool_down_ms };
                Clearance::Probe
            }
        }
    }

    /// Tells how an admitted operation ended.
    pub fn record(&mut self, admission: Clearance, outcome: Outcome, now_ms: u64) {
        match (self.state, admission, outcome) {
            (State::Closed { .. }, Clearance::Pass, Outcome::Answered) => self.state = State::Closed { failures: 0 },
            (State::Closed { failures }, Clearance::Pass, Outcome::Failed) => {
                let failures = failures.saturating_add(1);
                self.state = if failures >= self.options.failures.max(1) {
                    State::Open { since_ms: now_ms, cool_down_ms: self.bounded(self.options.cool_down_ms) }
                } else {
                    State::Closed { failures }
                };
            }
            (State::HalfOpen { .. }, Clearance::Probe, Outcome::Answered) => self.state = State::Closed { failures: 0 },
            (State::HalfOpen { cool_down_ms }, Clearance::Probe, Outcome::Failed) => {
                let cool_down_ms = self.bounded(cool_down_ms.saturating_mul(2));
                self.state = State::Open { since_ms: now_ms, cool_down_ms };
            }
            // The cool-down is over already: the next operation is the probe.
            (State::HalfOpen { cool_down_ms }, Clearance::Probe, Outcome::Abandoned) => {
                self.state = State::Open { since_ms: now_ms.saturating_sub(cool_down_ms), cool_down_ms };
            }
            // What went out before it opened ends late: only the probe decides.
            _ => {}
        }
    }

    /// Whether operations go out as usual.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    fn bounded(&self, cool_down_ms: u64) -> u64 {
        cool_down_ms.clamp(1, self.options.longest_cool_down_ms.max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Clearance::{Pass, Probe, Refuse};
    use super::Outcome::{Abandoned, Answered, Failed};
    use super::*;

    const OPTIONS: BreakerOptions = BreakerOptions { failures: 3, cool_down_ms: 100, longest_cool_down_ms: 350 };

    /// Open since 1,000.
    fn opened() -> Breaker {
        let mut breaker = Breaker::new(OPTIONS);
        for _ in 0..3 {
            assert_eq!(breaker.admit(1_000), Pass);
            breaker.record(Pass, Failed, 1_000);
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let mut breaker = Breaker::new(OPTIONS);
        for outcome in [Failed, Failed, Answered, Failed, Abandoned, Failed] {
            assert_eq!(breaker.admit(0), Pass);
            breaker.record(Pass, outcome, 0);
        }
        assert!(breaker.is_closed());
        breaker.record(Pass, Failed, 0);
        assert_eq!(breaker.admit(0), Refuse { retry_in_ms: 100 });
        assert!(!breaker.is_closed());
    }

    #[test]
    fn one_probe_after_the_cool_down_and_its_success_closes() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(1_099), Refuse { retry_in_ms: 1 });
        assert_eq!(breaker.admit(1_100), Probe);
        assert_eq!(breaker.admit(1_100), Refuse { retry_in_ms: 100 }, "one at a time");
        breaker.record(Pass, Failed, 1_100);
        breaker.record(Pass, Answered, 1_100);
        assert!(!breaker.is_closed(), "what went out before decides nothing");
        breaker.record(Probe, Answered, 1_110);
        assert_eq!(breaker.admit(1_110), Pass);
        breaker.record(Pass, Failed, 1_110);
        assert!(breaker.is_closed(), "the count begins anew");
    }

    #[test]
    fn a_failed_probe_waits_longer_up_to_the_bound() {
        let mut breaker = opened();
        let mut now = 1_000;
        for cool_down in [100, 200, 350, 350] {
            assert_eq!(breaker.admit(now + cool_down - 1), Refuse { retry_in_ms: 1 });
            now += cool_down;
            assert_eq!(breaker.admit(now), Probe);
            breaker.record(Probe, Failed, now);
        }
        now += 350;
        assert_eq!(breaker.admit(now), Probe);
        breaker.record(Probe, Answered, now);
        (0..3).for_each(|_| breaker.record(Pass, Failed, now));
        assert_eq!(
            breaker.admit(now),
            Refuse { retry_in_ms: 100 },
            "after it closed the first cool-down is short again"
        );
    }

    #[test]
    fn a_probe_that_nobody_waited_for_leaves_the_place_to_the_next() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(1_100), Probe);
        breaker.record(Probe, Abandoned, 1_101);
        assert_eq!(breaker.admit(1_101), Probe);
        breaker.record(Probe, Answered, 1_101);
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_clock_set_back_does_not_keep_it_open() {
        assert_eq!(opened().admit(10), Probe);
    }

    proptest! {
        /// Whatever happened: once the longest cool-down is over and nothing is under way, somebody gets through, and one
        /// success closes it.
        #[test]
        fn it_always_closes_again(steps in prop::collection::vec((0u64..200, 0u8..3), 0..200)) {
            let mut breaker = Breaker::new(OPTIONS);
            let mut now = 0;
            for (elapsed, outcome) in steps {
                now += elapsed;
                let admission = breaker.admit(now);
                if !matches!(admission, Refuse { .. }) {
                    breaker.record(admission, [Answered, Failed, Abandoned][outcome as usize], now);
                }
            }
            let admission = breaker.admit(now + 350);
            let refused = matches!(admission, Refuse { .. });
            prop_assert!(!refused);
            breaker.record(admission, Answered, now + 350);
            prop_assert!(breaker.is_closed());
        }
    }
}
