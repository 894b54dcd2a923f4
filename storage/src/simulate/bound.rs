//! What no policy can exceed.

use serde::Serialize;

use super::Workload;
use crate::cost::CostGrid;

/// How the bound is computed, for reports.
pub const BOUND_METHOD: &str = "fractional knapsack over intervals between uses, sizes times durations within \
    capacity times duration of the trace (PFOO-L's relaxation), prefix rule dropped";

/// Rates that no policy can exceed, whatever it knows of the future.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bound {
    /// Of the prompts' tokens.
    pub token_hit_rate: f64,
    /// Of the full prefill times.
    pub cost_hit_rate: f64,
}

/// One stay that ends in a hit: a node kept from one use to the next.
struct Stay {
    /// Bytes times requests.
    room: f64,
    tokens: f64,
    saved_us: f64,
}

/// An upper bound on what a cache of `capacity_bytes` can save. O(n log n) for n uses of nodes.
///
/// A node is hit by a request only if it was kept ever since an earlier one, so at least since the one before that used
/// it: that takes its bytes for so many gaps between requests. All gaps together offer `capacity × (requests - 1)`
/// byte-gaps. Choosing the stays of greatest value within that sum, the last one in part, is at least as good as any
/// schedule: a schedule keeps within the capacity in every single gap, keeps whole nodes, and can use a node only together
/// with its ancestors. This is PFOO-L (Berger, Beckmann, Harchol-Balter, "Practical Bounds on Optimal Caching with
/// Variable Object Sizes", 2018) with values. A node's value is what it adds to its ancestors' hits:
/// `T(before, prompt - before) - T(before + node, prompt - before - node)`, which sums up to what the hit path saves.
pub fn bound(workload: &Workload, grid: &CostGrid, capacity_bytes: u64) -> Bound {
    let mut last_use: Vec<Option<usize>> = vec![None; workload.nodes.len()];
    let mut stays = Vec::new();
    let (mut all_tokens, mut all_us) = (0.0, 0.0);
    for (now, request) in workload.requests.iter().enumerate() {
        let prompt = workload.prompt_tokens(request);
        all_tokens += f64::from(prompt);
        all_us += grid.prefill_us(0, prompt);
        let mut before = 0;
        for &node in &request.path {
            let tokens = workload.tokens(node);
            if let Some(then) = last_use[node as usize].replace(now) {
                let saved = grid.prefill_us(before, prompt - before)
                    - grid.prefill_us(before + tokens, prompt - before - tokens);
                let bytes = u64::from(tokens) * grid.kv_bytes_per_token();
                stays.push(Stay {
                    room: bytes as f64 * (now - then) as f64,
                    tokens: f64::from(tokens),
                    saved_us: saved.max(0.0),
                });
            }
            before += tokens;
        }
    }
    let room = capacity_bytes as f64 * workload.requests.len().saturating_sub(1) as f64;
    Bound {
        token_hit_rate: fill(&mut stays, room, |stay| stay.tokens) / all_tokens.max(1.0),
        cost_hit_rate: fill(&mut stays, room, |stay| stay.saved_us) / all_us.max(1.0),
    }
}

/// The greatest value that fits into `room`, the last stay in part.
fn fill(stays: &mut [Stay], mut room: f64, value: impl Fn(&Stay) -> f64) -> f64 {
    // What takes no room (an empty node) has an infinite density, or none if it is worth nothing.
    let density = |stay: &Stay| if stay.room > 0.0 { value(stay) / stay.room } else { f64::INFINITY };
    stays.sort_by(|a, b| density(b).total_cmp(&density(a)));
    let mut sum = 0.0;
    for stay in stays.iter() {
        if stay.room > room {
            return sum + value(stay) * room / stay.room;
        }
        room -= stay.room;
        sum += value(stay);
    }
    sum
}
