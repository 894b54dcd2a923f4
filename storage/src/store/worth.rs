//! Admission by cost: what is cheaper to compute again than to load is not kept.

use serde::{Deserialize, Serialize};

use crate::cost::{CostModel, Costs};
use crate::tier::{EntrySummary, Tier};
use ragstone_env::Env;

/// Of what may be declined, one in so many is not: else a tier that got faster would never be seen. At random, so that no pattern of requests
/// hides from it.
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
}

impl Worth {
    pub fn new(rule: AdmissionRule, costs: Costs) -> Self {
        Self { rule, costs }
    }

    /// Whether an entry should be kept in a tier. What it took another machine says nothing, and is believed only until this one
    /// was measured; one that does not say is kept.
    pub fn is_worth_keeping(&self, tier: Tier, entry: &EntrySummary, env: &Env) -> bool {
        if self.rule == AdmissionRule::Always || matches!(tier, Tier::Device | Tier::Host) {
            return true;
        }
        loads_faster(&self.costs.model(), tier, entry) || env.random_u64().is_multiple_of(PROBE_EVERY)
    }

    /// Whether the plan that is made now may decline loads.
    pub fn may_decline(&self, env: &Env) -> bool {
        self.rule == AdmissionRule::Cost && !env.random_u64().is_multiple_of(PROBE_EVERY)
    }
}

/// Whether an entry is loaded from a tier as fast as it is computed, as far as that is known. Pure.
pub(crate) fn loads_faster(costs: &CostModel, tier: Tier, entry: &EntrySummary) -> bool {
    let compute_us = match (costs.prefill.is_measured, entry.compute_us) {
        (true, _) => costs.prefill.prefill_us(0.0, f64::from(entry.tokens)),
        (false, 0) => return true,
        (false, compute_us) => compute_us as f64,
    };
    !costs.has_seen(tier) || costs.entry_us(tier, entry.layers, entry.bytes) <= compute_us
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
        let (worth, env) = (Worth::new(AdmissionRule::Cost, costs.clone()), Env::seeded(1, 0));
        for load in 0..8 {
            assert!(worth.is_worth_keeping(Tier::Object, &entry, &env), "after {load} loads");
            costs.observe_read(Tier::Object, entry.bytes, 1, Duration::from_millis(20));
        }
        let kept = |times| (0..times).filter(|_| worth.is_worth_keeping(Tier::Object, &entry, &env)).count();
        assert!((15..60).contains(&kept(1000)), "a probe now and then");
        assert!(worth.is_worth_keeping(Tier::Disk, &entry, &env), "each tier for itself");
        assert!(Worth::new(AdmissionRule::Always, costs.clone()).is_worth_keeping(Tier::Object, &entry, &env));
        // Once this machine was measured, what the entry says it took counts no more.
        let mut prefill = costs.model().prefill;
        prefill.is_measured = true;
        prefill.scale = 1e3;
        costs.set_prefill(prefill);
        assert_eq!(kept(100), 100);
        let declining = (0..1000).filter(|_| worth.may_decline(&env)).count();
        assert!((940..985).contains(&declining), "a probe now and then: {declining}");
    }
}
