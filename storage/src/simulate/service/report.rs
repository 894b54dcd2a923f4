//! Policies and ways of reuse side by side, on a whole node.

use serde::Serialize;

use super::{ServiceOutcome, ServiceReplay, ServiceTiers, replay_service, reuse_options};
use crate::cost::CostModel;
use crate::policy::PolicyKind;
use crate::simulate::{Workload, WorkloadSummary};
use crate::store::AdmissionRule;
use crate::{Error, Result};

/// What to compare. Sizes are shares of the working set: of the KV of all distinct paths.
#[derive(Debug, Clone)]
pub struct ServiceComparison {
    /// Policies of device, host and disk.
    pub policies: Vec<PolicyKind>,
    /// Sizes of host memory, each above 0 and at most 1.
    pub capacities: Vec<f64>,
    /// Size of the device's pool, 0 to 1; 0 for none.
    pub device: f64,
    /// Size of the disk, 0 to 1; 0 for none.
    pub disk: f64,
    /// Whether there is object storage.
    pub has_bucket: bool,
    /// What the disk and the bucket keep.
    pub admission: AdmissionRule,
    /// Beside exact reuse: the least recompute ratio of blended passages, and the layer that chooses.
    pub blend: Option<(f32, u32)>,
    /// Tokens of the primer that standalone entries are computed behind; 0: there is none.
    pub primer_tokens: u32,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceReport {
    /// The workload in numbers.
    pub workload: WorkloadSummary,
    /// Where the prefill times come from.
    pub profile: String,
    /// KV of all distinct paths, in bytes.
    pub working_set_bytes: u64,
    /// For each size of host memory.
    pub capacities: Vec<ServiceAtCapacity>,
}

/// All policies and ways with one size of host memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceAtCapacity {
    /// Of the working set.
    pub capacity: f64,
    /// The node.
    pub tiers: ServiceTiers,
    /// One for each policy and way.
    pub rows: Vec<ServiceRow>,
}

/// One policy, reusing exactly or blending.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServiceRow {
    /// Who leaves first.
    pub policy: PolicyKind,
    /// The least recompute ratio; `None`: nothing is blended.
    pub blend: Option<f32>,
    #[serde(flatten)]
    /// What came of it.
    pub outcome: ServiceOutcome,
}

/// Replays the workload for every size of host memory, policy and way. `progress` is told requests done and requests in all.
///
/// # Errors
/// `InvalidInput` if a size is no share of the working set, or the ratio not within 0 to 1.
pub fn compare_service(
    workload: &Workload,
    costs: &CostModel,
    comparison: &ServiceComparison,
    progress: &dyn Fn(usize, usize),
) -> Result<ServiceReport> {
    let are_shares = comparison.capacities.iter().all(|share| *share > 0.0 && *share <= 1.0)
        && [comparison.device, comparison.disk].iter().all(|share| (0.0..=1.0).contains(share));
    if !are_shares {
        return Err(Error::invalid_input(
            "host memory must lie above 0 %, and every tier at 100 % of the working set at most",
        ));
    }
    let summary = workload.summary();
    let grid = &costs.prefill.grid;
    let working_set_bytes = summary.working_set_tokens.saturating_mul(grid.kv_bytes_per_token());
    // Shares of at most 1 of a number of bytes.
    let share_of = |share: f64| (working_set_bytes as f64 * share) as u64;
    let ways: Vec<Option<(f32, u32)>> = [None].into_iter().chain(comparison.blend.map(Some)).collect();
    let total = comparison.capacities.len() * comparison.policies.len() * ways.len() * summary.requests;
    let mut done = 0;
    let mut capacities = Vec::with_capacity(comparison.capacities.len());
    for &capacity in &comparison.capacities {
        let tiers = ServiceTiers {
            device_bytes: share_of(comparison.device),
            host_bytes: share_of(capacity),
            disk_bytes: share_of(comparison.disk),
            has_bucket: comparison.has_bucket,
        };
        let mut rows = Vec::new();
        for (&policy, &blend) in comparison.policies.iter().flat_map(|policy| ways.iter().map(move |way| (policy, way)))
        {
            let (admission, options) = (comparison.admission, reuse_options(blend));
            let primer_tokens = comparison.primer_tokens;
            let run = ServiceReplay { workload, costs, tiers, policy, admission, options, primer_tokens };
            let outcome = replay_service(&run, &|requests| progress(done + requests, total))?;
            rows.push(ServiceRow { policy, blend: blend.map(|(ratio, _)| ratio), outcome });
            done += summary.requests;
        }
        capacities.push(ServiceAtCapacity { capacity, tiers, rows });
    }
    Ok(ServiceReport { workload: summary, profile: grid.source().to_owned(), working_set_bytes, capacities })
}
