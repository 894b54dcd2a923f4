//! The loading controller: which candidates are loaded, and how much of what is blended is recomputed, by what both are
//! predicted to take. Pure.
//!
//! CacheBlend (section 5.1) picks the ratio at which recomputing a layer takes as long as loading one: r = max(r*, that). Here the whole
//! prompt is predicted with its chunks and every load, and r is the greatest with which it takes no longer than with r*. A candidate
//! whose load makes the prompt take longer than computing the segment is declined, the dearest first, one at a time: what is
//! exact behind it stays of use, since a segment that is computed instead is exact, too.

use serde::Serialize;

use super::predict::{Part, Prediction, Share, Work, predict};
use super::{PlanOptions, Ratio};
use crate::cost::CostModel;
use crate::residency::{Candidate, CandidateKind, SegmentResidency};
use crate::tier::Tier;

/// A load is declined if the prompt takes this much less without it: less is within what predictions are wrong by.
const WORTHWHILE: f64 = 0.05;
/// The ratio may make a prompt take so much longer than the floor does, since the last layer hides under no load; where less than that
/// is waited for, nothing hides more.
const HIDDEN: f64 = 0.03;
/// Halvings of the interval in which the ratio is sought: a thousandth is left.
const HALVINGS: usize = 10;

/// Why a segment's KV comes from where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It is on the device.
    InPlace,
    /// What is stored is what would be computed.
    StoredExactly,
    /// What is stored is close to it.
    StoredClosely,
    /// Nothing is stored that may be used.
    NotStored,
    /// Every prompt computes its end: somebody has to produce the next token's logits.
    EndsThePrompt,
    /// Loading it would take longer than computing it.
    SlowToLoad,
}

/// What was decided.
pub(super) struct Decision<'a> {
    pub chosen: Vec<Option<&'a Candidate>>,
    pub declined: Vec<Option<Tier>>,
    pub ratio: f32,
    pub prediction: Option<Prediction>,
}

/// Decides about the candidates that `usable` says may be used, closest first.
pub(super) fn decide<'a>(
    found: &'a [SegmentResidency],
    usable: impl Fn(usize, &Candidate) -> bool,
    options: &PlanOptions,
    costs: Option<&CostModel>,
) -> Decision<'a> {
    let candidates: Vec<Vec<&Candidate>> = found
        .iter()
        .enumerate()
        .map(|(index, at)| at.candidates.iter().filter(|candidate| usable(index, candidate)).collect())
        .collect();
    let chosen = candidates.iter().map(|of| of.first().copied()).collect();
    let ratio = options.ratio.floor();
    let mut decision = Decision { chosen, declined: vec![None; found.len()], ratio, prediction: None };
    let Some(costs) = costs else { return decision };
    // A stand-in is good enough to be shown, and no more.
    let is_known = costs.prefill.is_measured;
    let layer = options.selection_layer;
    let predicted =
        |chosen: &[Option<&Candidate>], ratio: f32| predict(&parts(found, chosen), Share { ratio, layer }, costs);
    let mut now = predicted(&decision.chosen, ratio);
    if options.declines && is_known {
        // Without waiting there is nothing to gain: a load that is hidden costs no more than computing nothing.
        while now.wait_ms > 0.0 {
            let Some((index, instead, better)) =
                best_change(&decision.chosen, &candidates, costs, |chosen| predicted(chosen, ratio))
            else {
                break;
            };
            if better.total_ms > now.total_ms * (1.0 - WORTHWHILE) {
                break;
            }
            decision.declined[index] = decision.chosen[index].map(|candidate| candidate.tier);
            decision.chosen[index] = instead;
            now = better;
        }
    }
    if let Ratio::AtLeast(floor) = options.ratio
        && decision.chosen.iter().flatten().any(|candidate| candidate.kind != CandidateKind::Exact)
        && is_known
        && now.wait_ms > now.total_ms * HIDDEN
    {
        let most_ms = now.total_ms * (1.0 + HIDDEN);
        let (mut low, mut high) = (floor, 1.0_f32);
        for _ in 0..HALVINGS {
            let middle = f32::midpoint(low, high);
            if predicted(&decision.chosen, middle).total_ms <= most_ms { low = middle } else { high = middle }
        }
        decision.ratio = low;
        now = predicted(&decision.chosen, low);
    }
    decision.prediction = Some(now);
    decision
}

/// The segment whose next candidate, or computing it, takes the prompt furthest; what that is, and what it comes to.
fn best_change<'a>(
    chosen: &[Option<&'a Candidate>],
    candidates: &[Vec<&'a Candidate>],
    costs: &CostModel,
    predicted: impl Fn(&[Option<&'a Candidate>]) -> Prediction,
) -> Option<(usize, Option<&'a Candidate>, Prediction)> {
    let mut best: Option<(usize, Option<&Candidate>, Prediction)> = None;
    for (index, candidate) in chosen.iter().enumerate() {
        // What nobody has seen the cost of is loaded, so that it is seen.
        let Some(now) = candidate.filter(|now| now.tier != Tier::Device && costs.has_seen(now.tier)) else { continue };
        let others = candidates[index].iter().copied().filter(|other| other.tier < now.tier).map(Some);
        for instead in others.chain([None]) {
            let mut changed = chosen.to_vec();
            changed[index] = instead;
            let prediction = predicted(&changed);
            if best.as_ref().is_none_or(|(.., best)| prediction.total_ms < best.total_ms) {
                best = Some((index, instead, prediction));
            }
        }
    }
    best
}

/// The prompt as the prefill sees it.
pub(super) fn parts(found: &[SegmentResidency], chosen: &[Option<&Candidate>]) -> Vec<Part> {
    let mut position = 0u32;
    let part = |(at, chosen): (&SegmentResidency, &Option<&Candidate>)| {
        let work = match chosen {
            None => Work::Compute,
            Some(Candidate { tier: Tier::Device, .. }) => Work::Nothing,
            Some(Candidate { kind: CandidateKind::Exact, tier, bytes, .. }) => {
                Work::Load { tier: *tier, bytes: *bytes }
            }
            Some(Candidate { tier, bytes, .. }) => Work::Blend { tier: *tier, bytes: *bytes },
        };
        let part = Part { tokens: at.tokens, position, work };
        position = position.saturating_add(at.tokens);
        part
    };
    found.iter().zip(chosen).map(part).collect()
}

#[cfg(test)]
mod tests;
