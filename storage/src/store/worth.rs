//! Admission by cost: what is cheaper to compute again than to load is not kept, and not loaded.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tier::resident::locked;
use crate::tier::{EntrySummary, Tier};

/// Loads seen before a prediction is made; until then everything is worth keeping.
const LOADS_BEFORE_PREDICTION: u64 = 8;
/// Weight of the latest load in the moving mean.
const WEIGHT: f64 = 0.1;
/// Of the loads that look too slow, one in so many is made all the same: else a tier that got faster would never be seen.
const PROBE_EVERY: u64 = 32;

/// What is kept in the disk and object tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionRule {
    /// What loads faster than it was computed, as far as both were measured.
    #[default]
    Cost,
    /// Everything.
    Always,
}

/// Observed load times, and the rule.
#[derive(Debug, Default)]
pub(super) struct Worth {
    rule: AdmissionRule,
    disk: Mutex<LoadTime>,
    object: Mutex<LoadTime>,
    too_slow: AtomicU64,
}

/// A moving mean. Entries of one model have like sizes, so that the mean a byte covers the fixed part of a load as well.
#[derive(Debug, Default)]
struct LoadTime {
    us_per_byte: f64,
    loads: u64,
}

impl Worth {
    pub fn new(rule: AdmissionRule) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Notes that `bytes` came from `tier` in this time.
    pub fn observe(&self, tier: Tier, bytes: u64, elapsed: Duration) {
        let Some(time) = self.time(tier).filter(|_| bytes > 0) else { return };
        let us_per_byte = elapsed.as_secs_f64() * 1e6 / bytes as f64;
        let mut time = locked(time);
        let weight = if time.loads == 0 { 1.0 } else { WEIGHT };
        time.us_per_byte += weight * (us_per_byte - time.us_per_byte);
        time.loads += 1;
    }

    /// What loading `bytes` would take, in microseconds, once enough loads were seen.
    pub fn predicted_us(&self, tier: Tier, bytes: u64) -> Option<f64> {
        let time = locked(self.time(tier)?);
        (time.loads >= LOADS_BEFORE_PREDICTION).then_some(time.us_per_byte * bytes as f64)
    }

    /// Whether an entry should be kept in a tier. One that does not say what it cost is.
    pub fn is_worth_keeping(&self, tier: Tier, entry: &EntrySummary) -> bool {
        if self.rule == AdmissionRule::Always || entry.compute_us == 0 {
            return true;
        }
        self.predicted_us(tier, entry.bytes).is_none_or(|load_us| load_us <= entry.compute_us as f64)
    }

    /// Whether an entry should be loaded from a tier.
    pub fn is_worth_loading(&self, tier: Tier, entry: &EntrySummary) -> bool {
        self.is_worth_keeping(tier, entry)
            || self.too_slow.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY == PROBE_EVERY - 1
    }

    fn time(&self, tier: Tier) -> Option<&Mutex<LoadTime>> {
        match tier {
            Tier::Disk => Some(&self.disk),
            Tier::Object => Some(&self.object),
            Tier::Device | Tier::Host => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::entry_behind;

    #[test]
    fn what_loads_slower_than_it_computes_is_declined_once_that_was_measured() {
        let entry = entry_behind(None, &[1]).header().summary(); // computed in 1.5 ms
        let worth = Worth::new(AdmissionRule::Cost);
        for load in 0..LOADS_BEFORE_PREDICTION {
            assert!(worth.is_worth_keeping(Tier::Object, &entry), "after {load} loads");
            worth.observe(Tier::Object, entry.bytes, Duration::from_millis(20));
        }
        assert_eq!(worth.predicted_us(Tier::Object, entry.bytes).map(f64::round), Some(20_000.0));
        assert!(!worth.is_worth_keeping(Tier::Object, &entry));
        assert!(worth.is_worth_keeping(Tier::Disk, &entry), "each tier for itself");
        let loaded = (0..64).filter(|_| worth.is_worth_loading(Tier::Object, &entry)).count();
        assert_eq!(loaded, 2, "a probe now and then");
        (0..60).for_each(|_| worth.observe(Tier::Object, entry.bytes, Duration::from_micros(300)));
        assert!(worth.is_worth_keeping(Tier::Object, &entry), "and it comes back");
        assert!(Worth::new(AdmissionRule::Always).is_worth_keeping(Tier::Object, &entry));
    }
}
