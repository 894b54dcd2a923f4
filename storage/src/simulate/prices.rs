//! A tighter bound: room has a price of its own in each part of the trace, and hits of a path come from its root on.

use super::{Bound, Workload};
use crate::cost::CostGrid;

/// How the tight bound is computed, for reports.
pub const TIGHT_BOUND_METHOD: &str = "Lagrangian dual with a price of room for each part of the trace and hits from the \
    root on: also above every schedule";

/// Parts of the trace that have prices of their own.
const PARTS: usize = 128;
/// Times that prices are corrected.
const ROUNDS: usize = 80;

/// A node kept from one use to the next.
struct Stay {
    /// The requests of these uses.
    then: usize,
    now: usize,
    bytes: f64,
    /// What the hit adds to those before it in the path.
    tokens: f64,
    saved_us: f64,
}

/// An upper bound on what a cache of `capacity_bytes` can save, at most [`bound`](super::bound) and often far below.
///
/// Let `p(t) >= 0` be a price of a byte kept between the requests t and t + 1. Whatever a schedule does: it keeps
/// at most the capacity in each of these gaps, so that the room that its hits take costs at most `capacity · Σ p(t)`; and at each
/// request its hits are the first L nodes of the path, for some L. So it saves no more than
/// ```text
/// capacity · Σ p(t)  +  Σ over requests of  max over L of  Σ over the first L nodes (value - bytes · Σ p over the stay)
/// ```
/// for any prices. With one price for the whole trace and without the prefix rule the least of these is the fractional knapsack of
/// [`bound`](super::bound). Here the prices begin with that one and follow the demand, part by part (a subgradient method with
/// multiplicative steps); each round's sum is a bound, and the least of them is given. O(rounds · uses).
pub fn tight_bound(workload: &Workload, grid: &CostGrid, capacity_bytes: u64) -> Bound {
    let (mut all_tokens, mut all_us) = (0.0, 0.0);
    for request in &workload.requests {
        let prompt = workload.prompt_tokens(request);
        all_tokens += f64::from(prompt);
        all_us += grid.prefill_us(0, prompt);
    }
    let paths = stays(workload, grid);
    let gaps = workload.requests.len().saturating_sub(1);
    let least = |value: fn(&Stay) -> f64| least_sum(&paths, gaps, capacity_bytes as f64, value);
    Bound {
        token_hit_rate: least(|stay| stay.tokens) / all_tokens.max(1.0),
        cost_hit_rate: least(|stay| stay.saved_us) / all_us.max(1.0),
    }
}

/// For each request the stays that can end in its hits, from the root on.
fn stays(workload: &Workload, grid: &CostGrid) -> Vec<Vec<Stay>> {
    let mut last_use: Vec<Option<usize>> = vec![None; workload.nodes.len()];
    let mut paths = Vec::with_capacity(workload.requests.len());
    for (now, request) in workload.requests.iter().enumerate() {
        let prompt = workload.prompt_tokens(request);
        let mut before = 0;
        let mut path = Vec::new();
        for &node in &request.path {
            let tokens = workload.tokens(node);
            // What follows on a new node is new.
            if let Some(then) = last_use[node as usize].replace(now) {
                let saved_us = grid.prefill_us(before, prompt - before)
                    - grid.prefill_us(before + tokens, prompt - before - tokens);
                let bytes = (u64::from(tokens) * grid.kv_bytes_per_token()) as f64;
                path.push(Stay { then, now, bytes, tokens: f64::from(tokens), saved_us });
            }
            before += tokens;
        }
        paths.push(path);
    }
    paths
}

/// The least of the sums over the rounds.
fn least_sum(paths: &[Vec<Stay>], gaps: usize, capacity: f64, value: fn(&Stay) -> f64) -> f64 {
    let part_of = |gap: usize| gap * PARTS / gaps.max(1);
    let mut prices = [first_price(paths, capacity * gaps as f64, value); PARTS];
    // Without prices: every hit that there can be.
    let all = |path: &Vec<Stay>| path.iter().scan(0.0, |sum, stay| Some(add(sum, value(stay)))).fold(0.0, f64::max);
    let mut least: f64 = paths.iter().map(all).sum();
    for round in 1..=ROUNDS {
        // What is paid from the first request on, up to each.
        let mut paid = Vec::with_capacity(gaps + 1);
        paid.push(0.0);
        (0..gaps).for_each(|gap| paid.push(paid[gap] + prices[part_of(gap)]));
        let mut sum = capacity * paid[gaps];
        // Bytes that come into demand and go out of it, by request.
        let mut change = vec![0.0; gaps + 1];
        for path in paths {
            let (mut gained, mut best) = (0.0, (0.0, 0));
            for (index, stay) in path.iter().enumerate() {
                gained += value(stay) - stay.bytes * (paid[stay.now] - paid[stay.then]);
                if gained > best.0 {
                    best = (gained, index + 1);
                }
            }
            sum += best.0;
            for stay in &path[..best.1] {
                change[stay.then] += stay.bytes;
                change[stay.now] -= stay.bytes;
            }
        }
        least = f64::min(least, sum);
        let (mut demand, mut supply, mut kept) = ([0.0; PARTS], [0.0; PARTS], 0.0);
        for (gap, change) in change[..gaps].iter().enumerate() {
            kept += change;
            demand[part_of(gap)] += kept;
            supply[part_of(gap)] += capacity;
        }
        let step = 0.5 / (round as f64).sqrt();
        for (price, (demand, supply)) in prices.iter_mut().zip(demand.iter().zip(supply)) {
            let excess: f64 = (demand - supply) / f64::max(supply, 1.0);
            *price *= (step * excess.clamp(-1.0, 1.0)).exp();
        }
    }
    least
}

fn add(sum: &mut f64, more: f64) -> f64 {
    *sum += more;
    *sum
}

/// The price at which the fractional knapsack is full: the value for its room of the last stay that is taken. Where all
/// fits, which says nothing about any one part, a hundredth of the middle one.
fn first_price(paths: &[Vec<Stay>], mut room: f64, value: fn(&Stay) -> f64) -> f64 {
    let takes = |stay: &Stay| stay.bytes * (stay.now - stay.then) as f64;
    let all = paths.iter().flatten().filter(|stay| takes(stay) > 0.0);
    let mut densities: Vec<(f64, f64)> = all.map(|stay| (value(stay) / takes(stay), takes(stay))).collect();
    densities.sort_by(|a, b| b.0.total_cmp(&a.0));
    let low = densities.get(densities.len() / 2).map_or(0.0, |(density, _)| density / 100.0);
    let full = densities.iter().find(|(_, takes)| {
        room -= takes;
        room < 0.0
    });
    full.map_or(low, |(density, _)| *density).max(0.0)
}
