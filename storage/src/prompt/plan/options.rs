//! What a plan is made for: how far reuse may go, and how much of what is blended is recomputed.

use serde::{Deserialize, Serialize};

/// How far reuse may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReuseMode {
    /// Exact entries first, then blending; the other way round, or neither, where what is first is slow to load.
    #[default]
    Auto,
    /// As [`Auto`](Self::Auto), of a model whose KV cannot be moved: entries that were computed at other positions are no use, so that
    /// passages are not blended. The key of a module's entry covers its positions, if whoever laid it out saw to that.
    SamePositions,
    /// Exact entries only: the answer is that of a full prefill, bit for bit.
    ExactOnly,
    /// Compute everything, file nothing.
    Off,
}

/// What a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlanOptions {
    /// How much of the blended tokens is recomputed.
    pub ratio: Ratio,
    /// How these tokens are chosen.
    pub choosing: Choosing,
    /// How far reuse may go.
    pub reuse: ReuseMode,
    /// Whether a load that takes longer than computing is declined.
    pub declines: bool,
}

/// How tokens of blended passages are chosen, as far as it takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Choosing {
    /// The layer that chooses: those before it compute every token of what is blended.
    pub layer: u32,
    /// Layers that what is not stored passes first, by itself, so that the choice sees what it looks at.
    pub probed: u32,
    /// Layers whose attention weights are looked at, those of the last [`LOOKING_TOKENS`] tokens of the prompt.
    pub looked: u32,
}

/// Tokens of the question, from its last one back, whose attention chooses: what a long one looks at shows by its end.
pub const LOOKING_TOKENS: u32 = 64;

/// The share of the blended tokens that is recomputed, 0 to 1 (CacheBlend's r).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ratio {
    /// This one.
    Fixed(f32),
    /// This one (CacheBlend's r*, what quality wants), or more where that hides under the loads.
    AtLeast(f32),
}

impl Ratio {
    /// The least.
    pub fn floor(self) -> f32 {
        let (Self::Fixed(ratio) | Self::AtLeast(ratio)) = self;
        ratio
    }
}

impl Choosing {
    /// The first layer whose stored KV is of use to what is blended, of `layers`, where this share of it is recomputed: those before the
    /// choosing layer compute all of it. As many as the model has where none is of use.
    pub fn reads_from(&self, ratio: f32, layers: u32) -> u32 {
        if ratio >= 1.0 {
            layers
        } else if ratio > 0.0 && self.probed == 0 {
            self.layer.min(layers.saturating_sub(1))
        } else {
            0
        }
    }
}

impl PlanOptions {
    /// This very ratio, and every load that can be made: nothing depends on what this machine was seen to take. The first layer chooses;
    /// who chooses otherwise says so.
    pub fn fixed(ratio: f32, reuse: ReuseMode) -> Self {
        Self {
            ratio: Ratio::Fixed(ratio),
            choosing: Choosing { layer: 0, probed: 0, looked: 0 },
            reuse,
            declines: false,
        }
    }
}
