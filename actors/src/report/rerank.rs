//! What is told of a reranking.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How passages were put in order.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct RerankReport {
    /// Who did it.
    pub by: RerankedBy,
    /// Passages that were looked at.
    pub candidates: u32,
    /// Tokens that were read for it.
    pub prompt_tokens: u32,
    /// Of those, what was stored bit for bit or on the device already; none of a cross-encoder's.
    pub cached_tokens: u32,
    /// What it took.
    pub ms: f64,
}

impl RerankReport {
    /// Of two searches of one question.
    pub(crate) fn sum(before: Option<Self>, after: Option<Self>) -> Option<Self> {
        let (Some(a), Some(b)) = (before, after) else { return before.or(after) };
        Some(Self {
            by: a.by,
            candidates: a.candidates + b.candidates,
            prompt_tokens: a.prompt_tokens + b.prompt_tokens,
            cached_tokens: a.cached_tokens + b.cached_tokens,
            ms: a.ms + b.ms,
        })
    }
}

/// Who puts passages in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RerankedBy {
    /// The cross-encoder that is configured.
    CrossEncoder,
    /// The language model, by how likely it says yes rather than no.
    Model,
}

impl RerankedBy {
    /// As metrics have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CrossEncoder => "cross_encoder",
            Self::Model => "model",
        }
    }
}
