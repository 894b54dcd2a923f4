//! The loading controller: which candidates are loaded, and how much of what is blended is recomputed, by what both are
//! predicted to take. Pure.
//!
//! CacheBlend (section 5.1) picks the ratio at which recomputing a layer takes as long as loading one: r = max(r*, that). Here the whole
//! prompt is predicted with its chunks and every load, and r is the greatest with which it takes hardly longer than with r*. Candidates
//! whose loads make the prompt take longer than computing their segments are declined, the dearest first, as many as make it
//! shortest: what is exact behind one stays of use, since a segment that is computed instead is exact, too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cheapest::{HIDDEN, InTier, by_tier};
use super::predict::{Part, Share, Work, predict};
use super::{PlanOptions, Ratio};
use crate::cost::{CostModel, Prediction};
use crate::prompt::residency::{Candidate, CandidateKind, SegmentResidency};
use crate::tier::Tier;

/// A load is declined if the prompt takes this much less without it: less is within what predictions are wrong by.
const WORTHWHILE: f64 = 0.05;
/// Numbers of changes that are tried: the time that a plan takes has a bound.
const MOST_TRIALS: usize = 24;
/// Halvings of the interval in which the ratio is sought: a thousandth is left.
const HALVINGS: usize = 10;

/// Why a segment's KV comes from where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// What is stored was computed at other positions, and the model's KV cannot be moved: it is not blended.
    OtherPositions,
    /// Every prompt computes its end: somebody has to produce the next token's logits.
    EndsThePrompt,
    /// Loading it would take longer than computing it.
    SlowToLoad,
    /// It was stored, and could not be loaded.
    LateMiss,
}

/// What was decided.
pub(super) struct Decision<'a> {
    pub chosen: Vec<Option<&'a Candidate>>,
    pub declined: Vec<Option<Tier>>,
    pub ratio: f32,
    pub prediction: Option<Prediction>,
    pub in_tiers: Vec<InTier>,
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
    let mut decision =
        Decision { chosen, declined: vec![None; found.len()], ratio, prediction: None, in_tiers: Vec::new() };
    let Some(costs) = costs else { return decision };
    // A stand-in is good enough to be shown, and no more.
    let is_known = costs.prefill.is_measured;
    let choosing = options.choosing;
    let predicted =
        |chosen: &[Option<&Candidate>], ratio: f32| predict(&parts(found, chosen), Share { ratio, choosing }, costs);
    let mut now = predicted(&decision.chosen, ratio);
    if options.declines && is_known {
        // A nearer candidate first, then computing.
        for nearer in [true, false] {
            let changes = changes(found, &decision.chosen, &candidates, nearer, costs);
            now = decline(&mut decision, &changes, now, |chosen| predicted(chosen, ratio));
        }
    }
    if let Ratio::AtLeast(floor) = options.ratio
        && decision.chosen.iter().flatten().any(|candidate| candidate.kind != CandidateKind::Exact)
        && is_known
        && now.wait_ms > now.total_ms * HIDDEN
    {
        // As much longer than the floor, since the last layer hides under no load.
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
    if is_known {
        // By r*: with the ratio that was raised because a tier is slow, that tier would always hide (CacheBlend, section 5.1).
        decision.in_tiers = by_tier(&parts(found, &decision.chosen), Share { ratio, choosing }, costs);
    }
    decision
}

/// A segment, and what would take the place of the candidate that it has.
type Change<'a> = (usize, Option<&'a Candidate>);

/// What might be done instead of each load: `nearer`, by what a nearer tier has, where one has something; else by computing. First what
/// saves most loading for what it adds to the computation.
fn changes<'a>(
    found: &[SegmentResidency],
    chosen: &[Option<&'a Candidate>],
    candidates: &[Vec<&'a Candidate>],
    nearer: bool,
    costs: &CostModel,
) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    for (part, (index, now)) in parts(found, chosen).iter().zip(chosen.iter().enumerate()) {
        // What nobody has seen the cost of is loaded, so that it is seen.
        let Some(now) = now.filter(|now| now.tier != Tier::Device && costs.has_seen(now.tier)) else { continue };
        let instead = candidates[index].iter().copied().find(|other| nearer && other.tier < now.tier);
        let load = |candidate: &Candidate| costs.entry_us(candidate.tier, costs.prefill.layers, candidate.bytes);
        let saved = load(now) - instead.map_or(0.0, load);
        let added = costs.prefill.prefill_us(f64::from(part.position), f64::from(part.tokens));
        changes.push((saved / added.max(1.0), (index, instead)));
    }
    changes.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    changes.into_iter().map(|(_, change)| change).collect()
}

/// Makes as many of the changes, from the first on, as make the prompt shortest; what it is predicted to take then.
fn decline<'a>(
    decision: &mut Decision<'a>,
    changes: &[Change<'a>],
    now: Prediction,
    predicted: impl Fn(&[Option<&'a Candidate>]) -> Prediction,
) -> Prediction {
    // No change saves more than what is waited for.
    if now.wait_ms < now.total_ms * WORTHWHILE {
        return now;
    }
    let changed = |count: usize| {
        let mut chosen = decision.chosen.clone();
        changes[..count].iter().for_each(|(index, instead)| chosen[*index] = *instead);
        chosen
    };
    let step = changes.len().div_ceil(MOST_TRIALS).max(1);
    // All of them, too: what is paid once for any number of loads is saved by none less.
    let counts = (1..=changes.len()).step_by(step).chain([changes.len()]).filter(|count| *count > 0);
    let trials = counts.map(|count| (count, predicted(&changed(count))));
    let best = trials.min_by(|(_, left), (_, right)| left.total_ms.total_cmp(&right.total_ms));
    let Some((count, better)) = best.filter(|(_, best)| best.total_ms <= now.total_ms * (1.0 - WORTHWHILE)) else {
        return now;
    };
    let chosen = changed(count);
    for (index, _) in &changes[..count] {
        decision.declined[*index] =
            decision.declined[*index].or(decision.chosen[*index].map(|candidate| candidate.tier));
    }
    decision.chosen = chosen;
    better
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
