//! A bucket that runs out at a steady rate: how much of a minute's quota is used now, as a pure function of what was used and when.

use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
/// What was used in excess is forgotten beyond so many minutes' quota: one long answer shuts nobody out for days.
const MOST_MINUTES: u128 = 60;

/// What is used of a quota of so many a minute. It runs out at that rate, and a whole minute's quota may be used at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    /// In 60,000ths, one of which runs out in a millisecond at one a minute: nothing is rounded.
    used: u128,
    at_ms: u64,
}

impl Bucket {
    /// As it stands at a time. The clock does not run backwards; where it seems to, nothing runs out.
    fn at(self, now_ms: u64, limit: u64) -> Self {
        let run_out = u128::from(now_ms.saturating_sub(self.at_ms)) * u128::from(limit);
        Self { used: self.used.saturating_sub(run_out), at_ms: self.at_ms.max(now_ms) }
    }

    /// With one more used.
    ///
    /// # Errors
    /// How long to wait until there is room for it. A quota of 0 never has: come back in a minute and see.
    pub fn take_one(self, now_ms: u64, limit: u64) -> Result<Self, Duration> {
        self.check_one(now_ms, limit)?;
        Ok(self.charged(now_ms, limit, 1))
    }

    /// Whether there is room for one more.
    ///
    /// # Errors
    /// As [`take_one`](Self::take_one)'s.
    pub fn check_one(self, now_ms: u64, limit: u64) -> Result<(), Duration> {
        let wanted = self.at(now_ms, limit).used + parts(1);
        match wanted.saturating_sub(parts(limit)) {
            0 => Ok(()),
            _ if limit == 0 => Err(Duration::from_millis(MINUTE_MS)),
            over => Err(Duration::from_millis(u64::try_from(over.div_ceil(u128::from(limit))).unwrap_or(u64::MAX))),
        }
    }

    /// With so many more used, whether there was room or not: they are known only afterwards.
    pub fn charged(self, now_ms: u64, limit: u64, amount: u64) -> Self {
        let Self { used, at_ms } = self.at(now_ms, limit);
        let most = (parts(limit) * MOST_MINUTES).max(parts(1));
        Self { used: used.saturating_add(parts(amount)).min(most), at_ms }
    }

    /// How many are used, one begun counting whole.
    pub fn used(self, now_ms: u64, limit: u64) -> u64 {
        u64::try_from(self.at(now_ms, limit).used.div_ceil(parts(1))).unwrap_or(u64::MAX)
    }

    /// Under another quota from now on: what is used up to now is no more than a minute of it.
    pub fn limited(self, now_ms: u64, before: u64, limit: u64) -> Self {
        let Self { used, at_ms } = self.at(now_ms, before);
        Self { used: used.min(parts(limit)), at_ms }
    }
}

fn parts(amount: u64) -> u128 {
    u128::from(amount) * u128::from(MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;

    use super::*;

    /// A bucket that is looked at every millisecond.
    #[derive(Default)]
    struct Slow {
        used: u128,
        now_ms: u64,
    }

    impl Slow {
        fn advance(&mut self, to_ms: u64, limit: u64) {
            while self.now_ms < to_ms {
                self.now_ms += 1;
                self.used = self.used.saturating_sub(u128::from(limit));
            }
        }
    }

    #[test]
    fn it_runs_out_as_one_that_is_looked_at_every_millisecond() {
        let env = Env::seeded(7, 0);
        let below = |most: u64| env.random_u64() % most;
        for _ in 0..300 {
            let limit = below(200);
            let (mut bucket, mut slow, mut now) = (Bucket::default(), Slow::default(), 0);
            for _ in 0..below(60) {
                let (pause, amount, is_charged) = (below(3000), below(50), below(2) == 0);
                now += pause;
                slow.advance(now, limit);
                if is_charged {
                    bucket = bucket.charged(now, limit, amount);
                    let most = u128::from(limit * 60 * MINUTE_MS).max(u128::from(MINUTE_MS));
                    slow.used = (slow.used + u128::from(amount * MINUTE_MS)).min(most);
                } else {
                    let fits = slow.used + u128::from(MINUTE_MS) <= u128::from(limit * MINUTE_MS);
                    match bucket.take_one(now, limit) {
                        Ok(taken) => {
                            assert!(fits);
                            slow.used += u128::from(MINUTE_MS);
                            bucket = taken;
                        }
                        Err(wait) => {
                            assert!(!fits);
                            // Not before, and then for sure.
                            let wait = wait.as_millis() as u64;
                            assert!(wait > 0);
                            if limit > 0 {
                                assert!(bucket.check_one(now + wait, limit).is_ok());
                                assert!(bucket.check_one(now + wait - 1, limit).is_err());
                            }
                        }
                    }
                }
                assert_eq!(u128::from(bucket.used(now, limit)), slow.used.div_ceil(u128::from(MINUTE_MS)));
            }
        }
    }

    #[test]
    fn a_minutes_quota_may_be_used_at_once_and_no_more() {
        let mut bucket = Bucket::default();
        for _ in 0..60 {
            bucket = bucket.take_one(5, 60).unwrap();
        }
        assert_eq!((bucket.take_one(5, 60).unwrap_err(), bucket.used(5, 60)), (Duration::from_secs(1), 60));
        assert!(bucket.take_one(1004, 60).is_err() && bucket.take_one(1005, 60).is_ok());
        assert_eq!(bucket.take_one(0, 60), bucket.take_one(5, 60), "a clock that seems to run backwards");
    }

    #[test]
    fn the_greatest_numbers_and_none_overflow_nothing() {
        let greatest = u64::MAX;
        let bucket = Bucket::default().charged(greatest, greatest, greatest).charged(greatest, greatest, greatest);
        assert_eq!(bucket.used(greatest, greatest), greatest);
        assert!(bucket.check_one(greatest, greatest).is_err());
        assert_eq!(Bucket::default().take_one(greatest, 0), Err(Duration::from_secs(60)));
        assert_eq!(Bucket::default().charged(0, 0, greatest).used(greatest, 0), 1);
        // A long answer is paid back within an hour.
        let wait = Bucket::default().charged(0, 10, greatest).check_one(0, 10).unwrap_err();
        assert!(wait <= Duration::from_secs(3600), "{wait:?}");
        // A quota that is lowered below what was used, too: within a minute.
        let lowered = Bucket::default().charged(0, 1_000_000, 900_000).limited(0, 1_000_000, 6);
        assert_eq!((lowered.used(0, 6), lowered.check_one(0, 6)), (6, Err(Duration::from_secs(10))));
    }
}
