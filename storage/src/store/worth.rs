//! Admission by cost: what is cheaper to compute again than to load is not kept.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::cost::Costs;
use crate::tier::{EntrySummary, Tier};

/// Of the plans that may decline loads, one in so many does not: else a tier that got faster would never be seen.
const PROBE_EVERY: u64 = 32;

/// What is kept in the disk and object tiers, and loaded from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionRule {
    /// What loads faster than it is computed, as far as both were measured.
    #[default]
    Cost,
    /// Everything.
    Always,
}

/// The rule, and what it goes by.
#[derive(Debug)]
pub(super) struct Worth {
    rule: AdmissionRule,
    pub costs: Costs,
    plans: AtomicU64,
}

impl Worth {
    pub fn new(rule: AdmissionRule, costs: Costs) -> Self {
        Self { rule, costs, plans: AtomicU64::new(0) }
    }

    /// Whether an entry should be kept in a tier. What it took another machine says nothing, and is believed only until this one
    /// was measured; one that does not say is kept.
    pub fn is_worth_keeping(&self, tier: Tier, entry: &EntrySummary) -> bool {
        if self.rule == AdmissionRule::Always || matches!(tier, Tier::Device | Tier::Host) {
            return true;
        }
        let costs = self.costs.model();
        let compute_us = match (costs.prefill.is_measured, entry.compute_us) {
            (true, _) => costs.prefill.prefill_us(0.0, f64::from(entry.tokens)),
            (false, 0) => return true,
            (false, compute_us) => compute_us as f64,
        };
        !costs.has_seen(tier) || costs.entry_us(tier, entry.layers, entry.bytes) <= compute_us
    }

    /// Whether the plan that is made now may decline loads.
    pub fn may_decline(&self) -> bool {
        self.rule == AdmissionRule::Cost && self.plans.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY != PROBE_EVERY - 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cost::CostProfile;
    use crate::entry::tests::entry_behind;

    #[test]
    fn what_loads_slower_than_it_computes_is_declined_once_that_was_measured() {
        let entry = entry_behind(None, &[1]).header().summary(); // computed in 1.5 ms
        let costs = Costs::new(CostProfile::assumed().unwrap());
        let worth = Worth::new(AdmissionRule::Cost, costs.clone());
        for load in 0..8 {
            assert!(worth.is_worth_keeping(Tier::Object, &entry), "after {load} loads");
            costs.observe_read(Tier::Object, entry.bytes, 1, Duration::from_millis(20));
        }
        assert!(!worth.is_worth_keeping(Tier::Object, &entry));
        assert!(worth.is_worth_keeping(Tier::Disk, &entry), "each tier for itself");
        assert!(Worth::new(AdmissionRule::Always, costs.clone()).is_worth_keeping(Tier::Object, &entry));
        // Once this machine was measured, what the entry says it took counts no more.
        let mut prefill = costs.model().prefill;
        prefill.is_measured = true;
        prefill.scale = 1e3;
        costs.set_prefill(prefill);
        assert!(worth.is_worth_keeping(Tier::Object, &entry));
        assert_eq!((0..64).filter(|_| worth.may_decline()).count(), 62, "a probe now and then");
    }
}
