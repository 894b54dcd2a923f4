//! The last prompts' plans, for whoever wants to know why an answer took what it took.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::report::ReuseReport;

/// Plans that are remembered of each tenant, and of all: who has the most loses one first.
const MOST: usize = 64;
const MOST_OF_ALL: usize = 1024;

/// One prompt's plan, and what came of it. Of its text the start of what was asked, for those who may know it.
#[derive(Debug, Clone)]
pub struct PlanRecord {
    /// Counts from 1 since the start.
    pub number: u64,
    /// When its first token was there, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Whose it was.
    pub tenant: String,
    /// The start of what was asked; `None` of tokens and of modules.
    pub asked: Option<String>,
    /// What was planned, predicted and measured.
    pub report: ReuseReport,
}

/// The last of each tenant, so that none learns from its own how much others ask, or loses them by it.
#[derive(Debug, Default)]
pub(crate) struct Plans(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    number: u64,
    of: HashMap<String, VecDeque<PlanRecord>>,
}

impl Plans {
    /// Keeps it, and gives it back with its number.
    pub fn remember(&self, unix_ms: u64, (tenant, asked): (&str, Option<String>), report: &ReuseReport) -> PlanRecord {
        let mut plans = self.locked();
        plans.number += 1;
        let (number, tenant_of, report) = (plans.number, tenant.to_owned(), report.clone());
        let record = PlanRecord { number, unix_ms, tenant: tenant_of, asked, report };
        if plans.of.values().map(VecDeque::len).sum::<usize>() == MOST_OF_ALL {
            let most = plans.of.iter().max_by_key(|(_, own)| (own.len(), Reverse(own.front().map(|plan| plan.number))));
            if let Some(name) = most.map(|(name, _)| name.clone())
                && let Entry::Occupied(mut own) = plans.of.entry(name)
            {
                own.get_mut().pop_front();
                if own.get().is_empty() {
                    own.remove();
                }
            }
        }
        let own = plans.of.entry(tenant.to_owned()).or_default();
        if own.len() == MOST {
            own.pop_front();
        }
        own.push_back(record.clone());
        record
    }

    /// A tenant's, or the last of everybody's; the latest first.
    pub fn last(&self, tenant: Option<&str>) -> Vec<PlanRecord> {
        let plans = self.locked();
        let is_meant = |name: &str| tenant.is_none_or(|tenant| tenant == name);
        let of = plans.of.iter().filter(|(name, _)| is_meant(name));
        let mut last: Vec<&PlanRecord> = of.flat_map(|(_, own)| own).collect();
        last.sort_by_key(|plan| Reverse(plan.number));
        last.into_iter().take(MOST).cloned().collect()
    }

    fn locked(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_the_latest_first_and_each_tenant_has_its_own() {
        let plans = Plans::default();
        plans.remember(1, ("quiet", None), &ReuseReport::default());
        for at in 0..100 {
            plans.remember(at, ("a", Some("Who?".into())), &ReuseReport::default());
        }
        let last = plans.last(None);
        assert_eq!(last[0].asked.as_deref(), Some("Who?"));
        assert_eq!((last.len(), last[0].number, last[0].unix_ms, last[63].number), (64, 101, 99, 38));
        assert_eq!(plans.last(Some("quiet")).iter().map(|plan| plan.number).collect::<Vec<_>>(), [1]);
        assert!(plans.last(Some("b")).is_empty());
        // Together they are bounded: whoever has the most gives way, and not the quiet one.
        for at in 0..2 * MOST_OF_ALL {
            plans.remember(0, (&(at % MOST_OF_ALL).to_string(), None), &ReuseReport::default());
        }
        let all: usize = plans.locked().of.values().map(VecDeque::len).sum();
        assert_eq!((all, plans.locked().of.len()), (MOST_OF_ALL, MOST_OF_ALL));
    }
}
