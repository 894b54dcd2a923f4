//! What a caller asks: the input of the pipeline.

use std::time::Duration;

use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use serde::{Deserialize, Serialize};

use crate::prefill::Selection;

/// One request for generated text.
#[derive(Debug, Clone)]
pub struct Question {
    /// What the model is to continue.
    pub input: Input,
    /// Temperature, top-p, stop strings, token limit.
    pub sampling: SamplingParams,
    /// Which stored KV may serve this request.
    pub reuse: Reuse,
    /// Which tokens of blended passages are recomputed; `None`, as the settings have it, but where the choice is measured.
    pub selection: Option<Selection>,
    /// What counts as the root; `Whole` but where that is measured.
    pub root: RootCut,
    /// Separates tenants: it is part of every KV key, so one tenant's entries never serve another.
    pub tenant: String,
    /// How long the whole request may take.
    pub deadline: Duration,
}

/// What of a prompt over passages counts as its root, which passages' entries for blending stand behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RootCut {
    /// Everything before the passages: the system prompt.
    #[default]
    Whole,
    /// Its first token alone; the rest of the system prompt is taken for a passage. The prompt's tokens are the same.
    FirstToken,
}

/// The text to continue.
#[derive(Debug, Clone)]
pub enum Input {
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
    /// Plain text, tokenized with the model's special tokens.
    Text(String),
    /// A conversation; with a [`Context`], the last user message is answered from passages.
    Chat {
        /// Oldest first; the last one is the user's.
        messages: Vec<ChatMessage>,
        /// Where passages come from; `None` for plain chat.
        context: Option<Context>,
    },
}

/// Where the passages of an answer come from. Inline documents come first, in their order, then what was retrieved.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Context {
    /// Search this collection with the last user message.
    pub collection: Option<String>,
    /// How many passages to retrieve; `None` takes the configured number.
    pub top_k: Option<usize>,
    /// Documents given in the request; each is one passage.
    pub documents: Vec<InlineDocument>,
}

/// A document given in the request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InlineDocument {
    /// Shown in citations.
    pub title: String,
    /// The passage.
    pub text: String,
}

/// Which stored KV may serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// Exact entries first; passages elsewhere are blended at the configured ratio.
    #[default]
    Auto,
    /// Exact entries only: the answer equals that of a full prefill.
    Exact,
    /// No stored KV at all; nothing is kept either.
    Off,
    /// As `Auto`, at this recompute ratio in `0.0..=1.0`.
    Ratio(f32),
}
