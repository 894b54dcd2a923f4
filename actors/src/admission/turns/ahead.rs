//! How far a caller is ahead of its share of time that callers compete for: what its turns took, less what its share came to since. Pure.
//!
//! Turns alone share the number of what runs at once. One that always has a turn at work, beside others who seldom have any, has most of the
//! time, and nobody can interrupt it: so whoever is ahead waits. Its share is an equal part, and a third at least: with less, one that has much
//! to do would wait for nobody's sake.

use std::time::Duration;

/// A caller's share of the time, at least.
const LEAST_SHARE: f64 = 1.0 / 3.0;
/// So far ahead it begins all the same: requests come in bursts.
const FREE_MS: f64 = 100.0;
/// What it had beyond that while it was alone, or could not be stopped, is forgotten.
const MOST_MS: f64 = 1000.0;

/// Milliseconds of its share in one of the clock's, where so many `callers` share `capacity` things that are busy with one turn each.
pub(super) fn rate(capacity: usize, callers: usize) -> f64 {
    capacity as f64 * LEAST_SHARE.max(1.0 / callers.max(1) as f64)
}

/// How far it is ahead after `elapsed`, in milliseconds.
pub(super) fn after(ahead_ms: f64, elapsed: Duration, rate: f64) -> f64 {
    (ahead_ms - elapsed.as_secs_f64() * 1e3 * rate).max(0.0)
}

/// How far it is ahead with a turn more that took `ms`.
pub(super) fn with(ahead_ms: f64, ms: f64) -> f64 {
    (ahead_ms + ms.max(0.0)).min(MOST_MS)
}

/// How long it waits until it may begin again.
pub(super) fn wait(ahead_ms: f64, rate: f64) -> Duration {
    Duration::from_secs_f64(((ahead_ms - FREE_MS) / rate.max(1e-6) / 1e3).clamp(0.0, 3600.0))
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;

    use super::*;

    #[test]
    fn one_that_always_wants_more_has_its_share_of_the_time() {
        for (callers, capacity, share) in [(2, 2, 1.0), (3, 2, 2.0 / 3.0), (10, 2, 2.0 / 3.0), (10, 1, 1.0 / 3.0)] {
            let rate = rate(capacity, callers);
            let (mut now, mut busy, mut ahead) = (0.0, 0.0, 0.0);
            // Turns of 25 ms, one after the other, for a minute.
            while now < 60_000.0 {
                let wait_ms = wait(ahead, rate).as_secs_f64() * 1e3;
                ahead = after(ahead, Duration::from_secs_f64((wait_ms + 25.0) / 1e3), rate);
                ahead = with(ahead, 25.0);
                (now, busy) = (now + wait_ms + 25.0, busy + 25.0);
            }
            let expected = f64::min(share, 1.0);
            assert!((busy / now - expected).abs() < 0.01, "{callers}: {}", busy / now);
        }
    }

    #[test]
    fn nobody_waits_long_and_who_does_little_not_at_all() {
        let env = Env::seeded(7, 0);
        let below = |most: u64| env.random_u64() % most;
        for _ in 0..1000 {
            let rate = rate(1 + below(63) as usize, 1 + below(99) as usize);
            let mut ahead = 0.0;
            for _ in 0..below(50) {
                ahead = with(after(ahead, Duration::from_millis(below(5000)), rate), below(5000) as f64);
                assert!((0.0..=MOST_MS).contains(&ahead));
                assert!(wait(ahead, rate) <= Duration::from_secs(3));
                let later = after(ahead, wait(ahead, rate), rate);
                assert!(wait(later, rate) < Duration::from_millis(1));
            }
            assert_eq!(wait(with(0.0, FREE_MS), rate), Duration::ZERO);
        }
    }
}
