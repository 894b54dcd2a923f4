//! The last prompts' plans, for whoever wants to know why an answer took what it took.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::report::ReuseReport;

/// Plans that are remembered.
const MOST: usize = 64;

/// One prompt's plan, and what came of it. Nothing of its text.
#[derive(Debug, Clone, Serialize)]
pub struct PlanRecord {
    /// Counts from 1 since the start.
    pub number: u64,
    /// When its first token was there, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Whose it was.
    pub tenant: String,
    /// What was planned, predicted and measured.
    pub report: ReuseReport,
}

/// The last of them.
#[derive(Debug, Default)]
pub(crate) struct Plans(Mutex<(u64, VecDeque<PlanRecord>)>);

impl Plans {
    pub fn remember(&self, unix_ms: u64, tenant: &str, report: &ReuseReport) {
        let mut plans = self.locked();
        plans.0 += 1;
        let number = plans.0;
        if plans.1.len() == MOST {
            plans.1.pop_front();
        }
        plans.1.push_back(PlanRecord { number, unix_ms, tenant: tenant.to_owned(), report: report.clone() });
    }

    /// The latest first.
    pub fn last(&self) -> Vec<PlanRecord> {
        self.locked().1.iter().rev().cloned().collect()
    }

    fn locked(&self) -> MutexGuard<'_, (u64, VecDeque<PlanRecord>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_the_latest_first() {
        let plans = Plans::default();
        for at in 0..100 {
            plans.remember(at, "a", &ReuseReport::default());
        }
        let last = plans.last();
        assert_eq!((last.len(), last[0].number, last[0].unix_ms, last[63].number), (64, 100, 99, 37));
    }
}
