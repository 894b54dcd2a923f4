//! Policies side by side.

use serde::Serialize;

use super::{
    BOUND_METHOD, Bound, Capacity, Outcome, Replay, TIGHT_BOUND_METHOD, Workload, WorkloadSummary, bound, replay,
    tight_bound,
};
use crate::cost::CostGrid;
use crate::policy::PolicyKind;
use crate::{Error, Result};

/// What to compare.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub policies: Vec<PolicyKind>,
    /// Sizes of the host tier, as shares of the working set, each above 0 and at most 1.
    pub capacities: Vec<f64>,
    /// Size of a device tier before it, as a share of the working set; 0 for none.
    pub device: f64,
    /// Nodes beyond which the tree forgets free ones.
    pub max_nodes: usize,
}

/// All policies at all capacities.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub workload: WorkloadSummary,
    /// Where the prefill times come from.
    pub profile: String,
    pub working_set_bytes: u64,
    pub device_bytes: u64,
    pub bound_method: &'static str,
    pub tight_bound_method: &'static str,
    pub capacities: Vec<AtCapacity>,
}

/// All policies at one capacity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AtCapacity {
    /// Of the working set.
    pub capacity: f64,
    pub capacity_bytes: u64,
    /// What no policy can exceed.
    pub bound: Bound,
    /// What no policy can exceed either, and nearer to what can be reached.
    pub tight_bound: Bound,
    pub policies: Vec<PolicyOutcome>,
}

/// One policy at one capacity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PolicyOutcome {
    pub policy: PolicyKind,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Replays the workload for every policy at every capacity, one after the other so that scheduling times are not
/// disturbed. `progress` is told requests done and requests in all.
///
/// # Errors
/// `InvalidInput` if a capacity is not a share of the working set.
pub fn compare(
    workload: &Workload,
    grid: &CostGrid,
    comparison: &Comparison,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    let is_share = |share: f64| share > 0.0 && share <= 1.0;
    if !comparison.capacities.iter().all(|share| is_share(*share)) {
        return Err(Error::invalid_input("a capacity must lie above 0 % and at 100 % of the working set at most"));
    }
    if comparison.device != 0.0 && !is_share(comparison.device) {
        return Err(Error::invalid_input("the device tier must lie between 0 % and 100 % of the working set"));
    }
    let summary = workload.summary();
    let working_set_bytes = summary.working_set_tokens.saturating_mul(grid.kv_bytes_per_token());
    // Shares of at most 1 of a number of bytes.
    let share_of = |share: f64| (working_set_bytes as f64 * share) as u64;
    let device_bytes = share_of(comparison.device);
    let total = comparison.capacities.len() * comparison.policies.len() * summary.requests;
    let mut done = 0;
    let mut capacities = Vec::with_capacity(comparison.capacities.len());
    for &capacity in &comparison.capacities {
        let host_bytes = share_of(capacity);
        let mut policies = Vec::with_capacity(comparison.policies.len());
        for &policy in &comparison.policies {
            let capacity = Capacity { device_bytes, host_bytes };
            let run = Replay { workload, grid, capacity, policy, max_nodes: comparison.max_nodes };
            policies
                .push(PolicyOutcome { policy, outcome: replay(&run, &|requests| progress(done + requests, total))? });
            done += summary.requests;
        }
        // Both tiers together hold no more than their sum.
        let all_bytes = device_bytes + host_bytes;
        let (bound, tight_bound) = (bound(workload, grid, all_bytes), tight_bound(workload, grid, all_bytes));
        capacities.push(AtCapacity { capacity, capacity_bytes: host_bytes, bound, tight_bound, policies });
    }
    Ok(Report {
        workload: summary,
        profile: grid.source().to_owned(),
        working_set_bytes,
        device_bytes,
        bound_method: BOUND_METHOD,
        tight_bound_method: TIGHT_BOUND_METHOD,
        capacities,
    })
}
