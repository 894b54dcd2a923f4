//! What a prompt used of the tiers, by which they evict.

use super::plan::{LoadPlan, Source, Why};
use crate::cost::PrefillCost;
use crate::segment::SegmentKind;
use crate::store::KvStore;
use crate::tier::Use;

/// Tells every tier's policy what a prompt used, once a request, before what it computed is kept; and counts what its plan declined
/// to load. Memory only.
pub fn record_use(store: &KvStore, plan: &LoadPlan) {
    let declined = plan.segments.iter().filter(|segment| segment.why == Why::SlowToLoad);
    let declined = declined.flat_map(|segment| segment.tiers.iter().copied());
    store.record(&uses_of(plan, &store.costs().model().prefill), declined);
}

/// The paths that a plan used: its exact one, in pieces where something was loaded behind what was computed, as each key of a path stands
/// behind the one before it; and each passage that was blended. Pure.
pub(crate) fn uses_of(plan: &LoadPlan, prefill: &PrefillCost) -> Vec<Use> {
    let (cached, new) = (plan.exact_tokens + plan.blended_tokens, plan.computed_tokens);
    let cost_per_token = prefill.prefill_us(f64::from(cached), f64::from(new)) / f64::from(new.max(1));
    let mut exact = Use { path: Vec::new(), cached: 0, cost_per_token };
    let mut uses = Vec::new();
    for segment in &plan.segments {
        match (segment.source, segment.store_as) {
            (Source::Load { key, .. }, _) if exact.cached == exact.path.len() && segment.exact_key.is_some() => {
                exact.path.push(key);
                exact.cached += 1;
            }
            // What a prompt computes between modules is on the device alone.
            _ if segment.kind == SegmentKind::Question => {}
            // It stands behind what was computed, and what is computed next behind it.
            (Source::Load { key, .. }, _) if segment.exact_key.is_some() => {
                uses.push(std::mem::replace(&mut exact, Use { path: vec![key], cached: 1, cost_per_token }));
            }
            (Source::Load { key, .. } | Source::Blend { key, .. }, _) => {
                uses.push(Use { path: vec![key], cached: 1, cost_per_token: 0.0 });
            }
            (Source::Compute, Some(key)) => exact.path.push(key),
            (Source::Compute, None) => {}
        }
    }
    if !exact.path.is_empty() {
        uses.push(exact);
    }
    uses
}
