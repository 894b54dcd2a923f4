//! The load plan: for every segment of a prompt, whether its KV is loaded, blended or computed, and whether what is
//! computed may be filed. A pure function of what is resident.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::key::KvKey;
use crate::residency::{Residency, SegmentKind, SegmentResidency, SegmentState};
use crate::tier::Tier;
use crate::{Error, Result};

/// How far reuse may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReuseMode {
    /// Exact entries first, then blending.
    #[default]
    Auto,
    /// Exact entries only: the answer is that of a full prefill, bit for bit.
    ExactOnly,
    /// Compute everything, file nothing.
    Off,
}

/// What a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlanOptions {
    /// Share of the blended tokens that is recomputed, 0 to 1 (CacheBlend's r).
    pub ratio: f32,
    /// How far reuse may go.
    pub reuse: ReuseMode,
}

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
    /// Loaded from behind the root, or lossy, then partly recomputed: an approximation, never filed.
    Blend {
        /// The entry.
        key: KvKey,
        /// Where it was found.
        tier: Tier,
    },
    /// Computed anew.
    Compute,
}

/// What is done about one segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// The key under which the KV computed for it may be filed, because everything before it is exact; its parent is
    /// `parent`. `None`: do not file it.
    pub file_under: Option<KvKey>,
    /// Its key, because it and everything before it is exact, whether it is to be filed or was; `None`: it has none.
    pub exact_key: Option<KvKey>,
    /// Key of everything before it; `None` at the start.
    pub parent: Option<KvKey>,
}

/// What is done about a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadPlan {
    /// One for each segment of the prompt, in order; together their ranges are `0..total_tokens`.
    pub segments: Vec<SegmentPlan>,
    /// Share of the blended tokens that is recomputed.
    pub ratio: f32,
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
    /// Key of the root, the parent of entries behind the root; `None` without a root.
    pub root_key: Option<KvKey>,
    /// Whether an answer behind this prompt may be filed: everything before it is exact. It begins with the question's tokens.
    pub files_answer: bool,
    /// Passages (indices of segments) without an entry behind the root that this plan will not file either: worth
    /// computing in the background, so that they can be blended next time. Only in [`ReuseMode::Auto`].
    pub missing_behind_root: Vec<usize>,
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

    /// Tokens whose KV is on the device already: they begin the prompt.
    pub fn device_tokens(&self) -> u32 {
        let on_device = |segment: &&SegmentPlan| matches!(segment.source, Source::Load { tier: Tier::Device, .. });
        self.segments.iter().filter(on_device).map(|segment| segment.range.len() as u32).sum()
    }
}

/// Plans a prompt.
///
/// - [`SegmentState::Exact`] segments are loaded, [`SegmentState::BehindRoot`] and [`SegmentState::Lossy`] ones blended, the
///   rest computed.
/// - The question is always computed, and so is the last segment that has tokens: somebody has to produce the logits
///   of the next token.
/// - Only what is computed behind nothing but loaded or computed segments may be filed: exact stays exact.
///
/// # Errors
/// `InvalidInput` if the ratio is not within 0 to 1.
pub fn plan(residency: &Residency, options: &PlanOptions) -> Result<LoadPlan> {
    if !(0.0..=1.0).contains(&options.ratio) {
        return Err(Error::invalid_input(format!(
            "the recompute ratio is {}, but must be within 0 to 1",
            options.ratio
        )));
    }
    let found = &residency.segments;
    let last_with_tokens = found.iter().rposition(|at| at.tokens > 0);
    let mut segments = Vec::with_capacity(found.len());
    let mut position = 0u32;
    let mut is_exact_so_far = true;
    for (segment, at) in found.iter().enumerate() {
        let source = if Some(segment) == last_with_tokens { Source::Compute } else { source_of(at, options.reuse) };
        is_exact_so_far &= !matches!(source, Source::Blend { .. });
        let may_file = options.reuse != ReuseMode::Off && source == Source::Compute && is_exact_so_far;
        let end = position.checked_add(at.tokens);
        let end = end.ok_or_else(|| Error::invalid_input("the prompt is longer than 2^32 tokens"))?;
        segments.push(SegmentPlan {
            segment,
            kind: at.kind,
            range: position..end,
            position,
            source,
            file_under: at.chain_key.filter(|_| may_file && !is_stored(at)),
            exact_key: at.chain_key.filter(|_| options.reuse != ReuseMode::Off && is_exact_so_far),
            parent: at.parent,
        });
        position = end;
    }
    let tokens_of = |wanted: fn(&Source) -> bool| {
        segments.iter().filter(|plan| wanted(&plan.source)).map(|plan| plan.range.len() as u32).sum()
    };
    Ok(LoadPlan {
        ratio: options.ratio,
        epoch: residency.epoch,
        total_tokens: position,
        exact_tokens: tokens_of(|source| matches!(source, Source::Load { .. })),
        blended_tokens: tokens_of(|source| matches!(source, Source::Blend { .. })),
        computed_tokens: tokens_of(|source| matches!(source, Source::Compute)),
        files_answer: options.reuse != ReuseMode::Off && is_exact_so_far,
        root_key: found.iter().find(|at| at.kind == SegmentKind::Root).and_then(|at| at.chain_key),
        missing_behind_root: missing_behind_root(found, &segments, options.reuse),
        segments,
    })
}

/// Whether a tier that outlives the device has what would be filed.
fn is_stored(at: &SegmentResidency) -> bool {
    matches!(at.state, SegmentState::Exact { tier, .. } if tier != Tier::Device)
}

fn source_of(at: &SegmentResidency, reuse: ReuseMode) -> Source {
    match (at.state, reuse) {
        _ if at.kind == SegmentKind::Question || at.tokens == 0 => Source::Compute,
        (SegmentState::Exact { key, tier }, ReuseMode::Auto | ReuseMode::ExactOnly) => Source::Load { key, tier },
        (SegmentState::BehindRoot { key, tier } | SegmentState::Lossy { key, tier }, ReuseMode::Auto) => {
            Source::Blend { key, tier }
        }
        _ => Source::Compute,
    }
}

/// Each key once, at the first passage that wants it.
fn missing_behind_root(found: &[SegmentResidency], segments: &[SegmentPlan], reuse: ReuseMode) -> Vec<usize> {
    if reuse != ReuseMode::Auto {
        return Vec::new();
    }
    let mut provided: HashSet<KvKey> = segments.iter().filter_map(|plan| plan.file_under).collect();
    let wants = found.iter().enumerate().filter_map(|(index, at)| {
        let key = at.behind_root_key.filter(|_| at.behind_root.is_none())?;
        provided.insert(key).then_some(index)
    });
    wants.collect()
}

#[cfg(test)]
mod tests;
