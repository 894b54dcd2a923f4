//! The load plan of a prompt. For every segment it says: load stored KV, blend it, or compute. It also says which computed
//! segments may be stored afterwards.
//!
//! Planning is a pure function of two things: the residency (stored KV that the look-up found) and the cost model (predicted
//! times of reading and computing).

mod cheapest;
mod decide;
mod options;
mod predict;
mod recurring;

use std::collections::HashSet;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::cheapest::{InTier, cheapest};
pub use self::decide::Why;
use self::decide::{Decision, decide, parts};
pub use self::options::{Choosing, LOOKING_TOKENS, PlanOptions, Ratio, ReuseMode};
pub use self::predict::{BEGUN_TOGETHER, DISK_LANES, lanes};
use self::predict::{Share, alone};
pub use self::recurring::Recurring;
use crate::cost::{CostModel, Prediction};
use crate::key::KvKey;
use crate::prompt::residency::{Candidate, CandidateKind, Residency, SegmentResidency};
use crate::segment::{Segment, SegmentKind};
use crate::tier::Tier;
use crate::tier::device::KeptSegment;
use crate::{Error, Result};

/// Where a segment's KV comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Loaded as it is: equal to what a full prefill computes.
    Load {
        /// The entry.
        key: KvKey,
        /// Where it was found. On the device it is in place already.
        tier: Tier,
    },
    /// Loaded as computed after the system prompt, or lossy, then partly recomputed: an approximation, never filed.
    Blend {
        /// The entry.
        key: KvKey,
        /// Where it was found.
        tier: Tier,
    },
    /// Computed anew.
    Compute,
}

impl Source {
    /// The entry that it is taken from.
    pub fn key(&self) -> Option<KvKey> {
        match self {
            Self::Load { key, .. } | Self::Blend { key, .. } => Some(*key),
            Self::Compute => None,
        }
    }

    /// The tier that it is taken from.
    pub fn tier(&self) -> Option<Tier> {
        match self {
            Self::Load { tier, .. } | Self::Blend { tier, .. } => Some(*tier),
            Self::Compute => None,
        }
    }
}

/// What is done about one segment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentPlan {
    /// Its index in the prompt.
    pub segment: usize,
    /// What it is.
    pub kind: SegmentKind,
    /// Its slots: where its tokens' KV lies in the sequence's blocks.
    pub range: Range<u32>,
    /// Where its first token stands; the others follow it. Slots have no gaps, positions may.
    pub position: u32,
    /// Where its KV comes from.
    pub source: Source,
    /// Why from there.
    pub why: Why,
    /// The tiers that are known to have what was chosen; for what was declined, the tier that it was declined from.
    pub tiers: Vec<Tier>,
    /// The bytes of what was chosen; a blend does not read the layers before the choosing one.
    pub bytes: u64,
    /// What loading it and computing it are predicted to take, each by itself, in milliseconds.
    pub predicted: Option<SegmentPrediction>,
    /// The key under which the KV computed for it may be filed, because everything before it is exact; its parent is
    /// `parent`. `None`: do not file it.
    pub store_as: Option<KvKey>,
    /// Its key, because it and everything before it is exact, whether it is to be filed or was; `None`: it has none.
    pub exact_key: Option<KvKey>,
    /// What the device keeps it under, if it and everything before it are what that key says; `None`: it is not kept there.
    pub device_key: Option<KvKey>,
    /// Key of everything before it; `None` at the start.
    pub parent: Option<KvKey>,
}

/// One segment's part in what is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentPrediction {
    /// Reading it.
    pub load_ms: f64,
    /// Computing what is computed of it.
    pub compute_ms: f64,
    /// Computing all of it.
    pub recompute_ms: f64,
}

/// What is done about a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadPlan {
    /// One for each segment of the prompt, in order; together their ranges are `0..total_tokens`.
    pub segments: Vec<SegmentPlan>,
    /// Share of the blended tokens that is recomputed.
    pub ratio: f32,
    /// How it is chosen.
    pub choosing: Choosing,
    /// What it is predicted to take; `None` where nothing is known of what things cost.
    pub prediction: Option<Prediction>,
    /// What it is predicted to take if all that it loads were in one tier, and what keeping it there costs; empty where it loads
    /// nothing, or nothing is known.
    pub in_tiers: Vec<InTier>,
    /// Length of the prompt.
    pub total_tokens: u32,
    /// Tokens of `Load` segments.
    pub exact_tokens: u32,
    /// Tokens of `Blend` segments, those that will be recomputed among them.
    pub blended_tokens: u32,
    /// Tokens of `Compute` segments.
    pub computed_tokens: u32,
    /// The store's epoch in which the plan was made: what it computes is filed as planned in it.
    #[serde(skip)]
    pub epoch: u64,
    /// Key of the root, the parent of entries after the system prompt; `None` without a root.
    pub root_key: Option<KvKey>,
    /// Whether an answer behind this prompt may be filed: everything before it is exact. It begins with the question's tokens.
    pub files_answer: bool,
    /// Passages (indices of segments) without a standalone entry that this plan will not file either: worth
    /// computing in the background, so that they can be blended next time. Only in [`ReuseMode::Auto`].
    pub missing_standalone: Vec<usize>,
}

impl LoadPlan {
    /// The segments, empty ones aside, that are exact from the start of the prompt on, with the keys of their KV.
    pub fn exact_path(&self) -> impl Iterator<Item = (&SegmentPlan, KvKey)> {
        let key = |segment: &SegmentPlan| match segment.source {
            Source::Load { key, .. } => Some(key),
            Source::Blend { .. } => None,
            Source::Compute => segment.exact_key,
        };
        let with_tokens = self.segments.iter().filter(|segment| !segment.range.is_empty());
        with_tokens.map_while(move |segment| Some((segment, key(segment)?)))
    }

    /// The leading segments, empty ones aside, that the device keeps, with what it keeps them under: those that are exact, and modules
    /// that are taken as they were computed apart.
    pub fn device_path(&self) -> impl Iterator<Item = (&SegmentPlan, KvKey)> {
        // What was to be loaded may have been computed instead: a module, then, is another one.
        let is_as_planned = |segment: &SegmentPlan| {
            segment.kind != SegmentKind::Module
                || segment.source != Source::Compute
                || segment.device_key == segment.exact_key
        };
        let with_tokens = self.segments.iter().filter(|segment| !segment.range.is_empty());
        with_tokens.map_while(move |segment| Some((segment, segment.device_key.filter(|_| is_as_planned(segment))?)))
    }

    /// The same of a prompt of these `tokens` that was prefilled as planned.
    pub fn kept_segments(&self, tokens: &[u32]) -> Vec<KeptSegment> {
        let segment = |(planned, key): (&SegmentPlan, KvKey)| {
            let (begin, end) = (planned.range.start as usize, planned.range.end as usize);
            KeptSegment {
                key,
                segment: Segment { kind: planned.kind, tokens: tokens[begin..end].into(), place: None },
                end,
            }
        };
        self.device_path().map(segment).collect()
    }

    /// What the prompt ends with and nobody looks up: its tokens are the first of the answer's text.
    pub fn question(&self) -> Option<&SegmentPlan> {
        self.segments.last().filter(|segment| segment.kind == SegmentKind::Question)
    }

    /// The true position of each slot of the prompt.
    pub fn key_positions(&self) -> Vec<u32> {
        self.segments
            .iter()
            .flat_map(|segment| (0..segment.range.len() as u32).map(|at| segment.position + at))
            .collect()
    }

    /// Whether the prompt is as fast from `tier` as it would be from a dearer one: room there is better left to others (CacheBlend,
    /// section 5.1: the cheapest device that adds nothing to the latency).
    pub fn is_well_kept_in(&self, tier: Tier) -> bool {
        self.in_tiers.iter().any(|at| at.tier == tier && at.hides)
            && cheapest(&self.in_tiers).is_some_and(|at| at.tier >= tier)
    }

    /// Tokens whose KV is on the device already: they begin the prompt.
    pub fn device_tokens(&self) -> u32 {
        let on_device = |segment: &&SegmentPlan| segment.source.tier() == Some(Tier::Device);
        self.segments.iter().filter(on_device).map(|segment| segment.range.len() as u32).sum()
    }
}

/// Plans a prompt.
///
/// - The question is always computed, and so is the last segment that has tokens: somebody has to produce the logits
///   of the next token.
/// - Of the others, what is stored exactly is loaded, what is stored closely is blended, the rest is computed; unless `costs` say
///   that computing is faster (`decide.rs`).
/// - Only what is computed after nothing but loaded or computed segments may be filed: exact stays exact.
///
/// # Errors
/// `InvalidInput` if the ratio is not within 0 to 1.
pub fn plan(residency: &Residency, options: &PlanOptions, costs: Option<&CostModel>) -> Result<LoadPlan> {
    if !(0.0..=1.0).contains(&options.ratio.floor()) {
        return Err(Error::invalid_input(format!(
            "the recompute ratio is {}, but must be within 0 to 1",
            options.ratio.floor()
        )));
    }
    let found = &residency.segments;
    let tokens: Option<u32> = found.iter().try_fold(0u32, |sum, at| sum.checked_add(at.tokens));
    let total_tokens = tokens.ok_or_else(|| Error::invalid_input("the prompt is longer than 2^32 tokens"))?;
    let last_with_tokens = found.iter().rposition(|at| at.tokens > 0);
    let usable = |index: usize, candidate: &Candidate| {
        let has_kv = found[index].kind != SegmentKind::Question || candidate.tier == Tier::Device;
        has_kv
            && found[index].tokens > 0
            && Some(index) != last_with_tokens
            && may_use(&found[index], candidate.kind, options.reuse)
    };
    let decision = decide(found, usable, options, costs);
    let segments = segments(found, &decision, options, last_with_tokens, costs);
    let tokens_of = |wanted: fn(&Source) -> bool| {
        segments.iter().filter(|plan| wanted(&plan.source)).map(|plan| plan.range.len() as u32).sum()
    };
    let is_exact = !segments.iter().any(|plan| matches!(plan.source, Source::Blend { .. }));
    Ok(LoadPlan {
        ratio: decision.ratio,
        choosing: options.choosing,
        prediction: decision.prediction,
        in_tiers: decision.in_tiers,
        epoch: residency.epoch,
        total_tokens,
        exact_tokens: tokens_of(|source| matches!(source, Source::Load { .. })),
        blended_tokens: tokens_of(|source| matches!(source, Source::Blend { .. })),
        computed_tokens: tokens_of(|source| matches!(source, Source::Compute)),
        files_answer: options.reuse != ReuseMode::Off && is_exact,
        root_key: found.iter().find(|at| at.kind == SegmentKind::SystemPrompt).and_then(|at| at.chain_key),
        missing_standalone: missing_standalone(found, &segments, options.reuse),
        segments,
    })
}

/// What a prompt is predicted to take if a tier had nothing of it: `None` where nothing of the plan comes from there.
///
/// # Errors
/// As [`plan`].
pub fn predict_without(
    residency: &Residency,
    planned: &LoadPlan,
    options: &PlanOptions,
    costs: &CostModel,
    tier: Tier,
) -> Result<Option<Prediction>> {
    if !planned.segments.iter().any(|segment| segment.source.tier() == Some(tier)) {
        return Ok(None);
    }
    let bytes_per_token = costs.prefill.grid.kv_bytes_per_token();
    let without = |at: &SegmentResidency| {
        let elsewhere = |candidate: &Candidate| {
            let tiers: Vec<Tier> = candidate.tiers.iter().copied().filter(|other| *other != tier).collect();
            // On the device it is in place, so that nobody has counted what would be read.
            let bytes = if candidate.bytes > 0 { candidate.bytes } else { u64::from(at.tokens) * bytes_per_token };
            Some(Candidate { tier: *tiers.first()?, tiers, bytes, ..*candidate })
        };
        SegmentResidency { candidates: at.candidates.iter().filter_map(elsewhere).collect(), ..at.clone() }
    };
    let residency = Residency { segments: residency.segments.iter().map(without).collect(), ..Residency::default() };
    Ok(plan(&residency, options, Some(costs))?.prediction)
}

fn may_use(at: &SegmentResidency, kind: CandidateKind, reuse: ReuseMode) -> bool {
    match reuse {
        ReuseMode::Auto => true,
        ReuseMode::SamePositions => kind == CandidateKind::Exact || at.kind == SegmentKind::Module,
        ReuseMode::ExactOnly => kind == CandidateKind::Exact,
        ReuseMode::Off => false,
    }
}

fn segments(
    found: &[SegmentResidency],
    decision: &Decision<'_>,
    options: &PlanOptions,
    last_with_tokens: Option<usize>,
    costs: Option<&CostModel>,
) -> Vec<SegmentPlan> {
    let parts = parts(found, &decision.chosen);
    let share = Share { ratio: decision.ratio, choosing: options.choosing };
    let (mut is_exact_so_far, mut is_kept_so_far, mut end) = (true, options.reuse != ReuseMode::Off, 0u32);
    let segment = |(segment, at): (usize, &SegmentResidency)| {
        let (chosen, declined) = (decision.chosen[segment], decision.declined[segment]);
        let source = match chosen {
            None => Source::Compute,
            Some(Candidate { kind: CandidateKind::Exact, key, tier, .. }) => Source::Load { key: *key, tier: *tier },
            Some(Candidate { key, tier, .. }) => Source::Blend { key: *key, tier: *tier },
        };
        is_exact_so_far &= !matches!(source, Source::Blend { .. });
        is_kept_so_far &= is_kept_on_device(at, source, decision.ratio);
        let may_file = options.reuse != ReuseMode::Off && source == Source::Compute && is_exact_so_far;
        let part = parts[segment];
        let position = at.position.unwrap_or(end);
        end = position.saturating_add(at.tokens);
        let predicted = costs.map(|costs| {
            let (load_ms, compute_ms) = alone(&part, share, costs);
            let whole = costs.prefill.prefill_us(f64::from(part.position), f64::from(part.tokens));
            SegmentPrediction { load_ms, compute_ms, recompute_ms: whole / 1e3 }
        });
        SegmentPlan {
            segment,
            kind: at.kind,
            range: part.position..part.position + part.tokens,
            position,
            source,
            why: match why(source, declined, Some(segment) == last_with_tokens) {
                Why::NotStored if options.reuse == ReuseMode::SamePositions && at.standalone_tier.is_some() => {
                    Why::OtherPositions
                }
                why => why,
            },
            tiers: chosen.map_or_else(|| declined.into_iter().collect(), |candidate| candidate.tiers.clone()),
            bytes: chosen.map_or(0, |candidate| candidate.bytes),
            predicted,
            // What was declined where it is far is kept where it is near.
            store_as: at
                .chain_key
                .filter(|_| may_file && (declined.is_some_and(|tier| tier > Tier::Host) || !is_stored(at))),
            exact_key: at.chain_key.filter(|_| options.reuse != ReuseMode::Off && is_exact_so_far),
            device_key: at.device_key.filter(|_| is_kept_so_far),
            parent: at.parent,
        }
    };
    found.iter().enumerate().map(segment).collect()
}

/// Whether a segment's KV is what its key on the device says, if that is so of those before it.
fn is_kept_on_device(at: &SegmentResidency, source: Source, ratio: f32) -> bool {
    match source {
        Source::Load { tier: Tier::Device, .. } | Source::Blend { tier: Tier::Device, .. } => true,
        Source::Load { key, .. } => at.device_key == Some(key),
        Source::Blend { .. } => at.kind == SegmentKind::Module && ratio == 0.0,
        Source::Compute => at.kind != SegmentKind::Module || at.device_key == at.chain_key,
    }
}

fn why(source: Source, declined: Option<Tier>, is_last: bool) -> Why {
    match source {
        Source::Load { tier: Tier::Device, .. } | Source::Blend { tier: Tier::Device, .. } => Why::InPlace,
        Source::Load { .. } => Why::StoredExactly,
        Source::Blend { .. } => Why::StoredClosely,
        Source::Compute if is_last => Why::EndsThePrompt,
        Source::Compute if declined.is_some() => Why::SlowToLoad,
        Source::Compute => Why::NotStored,
    }
}

/// Whether a tier that outlives the device has what would be filed.
fn is_stored(at: &SegmentResidency) -> bool {
    let outlives = |candidate: &Candidate| candidate.kind == CandidateKind::Exact && candidate.tier != Tier::Device;
    at.candidates.iter().any(outlives)
}

/// Each key once, at the first passage that wants it.
fn missing_standalone(found: &[SegmentResidency], segments: &[SegmentPlan], reuse: ReuseMode) -> Vec<usize> {
    if reuse != ReuseMode::Auto {
        return Vec::new();
    }
    let mut provided: HashSet<KvKey> = segments.iter().filter_map(|plan| plan.store_as).collect();
    let wants = found.iter().enumerate().filter_map(|(index, at)| {
        // Modules were computed before the prompt was planned.
        let is_missing = at.kind == SegmentKind::Passage && at.standalone_tier.is_none();
        let key = at.standalone_key.filter(|_| is_missing)?;
        provided.insert(key).then_some(index)
    });
    wants.collect()
}

#[cfg(test)]
mod tests;
