//! What a caller gets: tokens as they come, then the account of what was reused and where the time went.

pub mod citation;
pub mod events;
pub mod grounding;
pub mod nothing_found;
pub(crate) mod plans;
pub mod progress;
pub mod read_prompt;
mod rerank;

use ragstone_storage::cost::Prediction;
use ragstone_storage::prompt::plan::{InTier, LoadPlan, SegmentPlan, SegmentPrediction, Source, Why};
use ragstone_storage::segment::SegmentKind;
use ragstone_storage::tier::Tier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::rerank::{RerankReport, RerankedBy};
use self::{citation::Citation, grounding::Grounding, nothing_found::NothingFound};
use crate::speculation::Speculation;

/// One item of an answer's stream.
#[derive(Debug, Clone)]
pub enum Event {
    /// A generated token.
    Token(TokenEvent),
    /// Text that was held back (an unfinished character, the start of a stop string that did not come), without a token.
    Tail(String),
    /// The end; always the last event.
    Finished(Box<Finish>),
}

/// A generated token. `text` may be empty while a character is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenEvent {
    /// Its id in the model's vocabulary.
    pub id: u32,
    /// The text that became complete with it.
    pub text: String,
    /// Natural logarithm of its probability before temperature and truncation.
    pub logprob: f32,
    /// The likeliest tokens at this place, likeliest first.
    pub top: Vec<Alternative>,
}

/// A token that could have stood at a place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// Its id in the model's vocabulary.
    pub id: u32,
    /// What it stands for in a text; possibly part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability before temperature and truncation.
    pub logprob: f32,
}

/// How an answer ended.
#[derive(Debug, Clone, Serialize)]
pub struct Finish {
    /// Why generation stopped.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// What was reused, and the times.
    pub report: ReuseReport,
    /// The stop text that ended it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Whether it stands on its passages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grounding: Option<Grounding>,
    /// The token that ended it, its name for its text, where log-probabilities of the prompt were asked for. It is not part of the answer.
    #[serde(skip)]
    pub end_token: Option<TokenEvent>,
}

/// Why generation stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit.
    Length,
}

impl FinishReason {
    /// Its name in answers and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Token counts of one answer.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
}

/// A whole answer.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The generated text.
    pub text: String,
    /// The passages that stood in the prompt, in prompt order, in which a small model has the best one last; `number` says how good each is.
    pub citations: Vec<Citation>,
    /// The generated tokens.
    #[serde(skip)]
    pub tokens: Vec<TokenEvent>,
    /// How it ended.
    #[serde(flatten)]
    pub finish: Finish,
}

/// What was reused and where the time went. The four token counts add up to the prompt.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReuseReport {
    /// Where each prompt token's KV came from.
    pub tokens: TokenAccount,
    /// What was loaded, by tier. What was on the device was not: see the segments.
    pub loads: Vec<TierLoad>,
    /// Loads that failed and were recomputed.
    pub late_misses: u32,
    /// Whether passages may be blended, and by what right.
    pub blending: Blending,
    /// Share of the blended passages' tokens that was recomputed behind the choosing layer.
    pub ratio: f32,
    /// The choosing layer: those before it compute every token of what is blended. `None` where nothing is.
    pub selection_layer: Option<u32>,
    /// What the plan was predicted to take; `None` where nothing was known of what things cost.
    pub predicted: Option<Prediction>,
    /// What would have been predicted if a tier had had nothing, where that was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Without>,
    /// What it was predicted to take if all that it loads were in one tier, and what keeping that there costs a month: the tiers that are
    /// known, the fastest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_tiers: Vec<InTier>,
    /// Tokens of the answer that were drafted by look-up; `None` before it ended, and where none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafts: Option<Drafts>,
    /// Segment by segment, in prompt order.
    pub segments: Vec<SegmentReport>,
    /// The engine that answered, where it is not this process's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    /// How what was found was put in order, where that was asked for; of several rounds, all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerank: Option<RerankReport>,
    /// How passages were put in order for what is stored, where they could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrangement: Option<ArrangementReport>,
    /// Nothing that was found is about the question, and what was done; absent where something is, and where that cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nothing_found: Option<NothingFound>,
    /// Words alone were searched: the collection was built with an embedding model that cannot be loaded, and is not embedded again yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub words_only: bool,
    /// How the search and the prefill overlapped, where the search was cut into stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// Every search and what came of it, where more than one was asked for; the last one is the answer's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<RoundReport>,
    /// Where the time to the first token went; of several rounds, the prompts of all. What the model said in between is in `total_ms` alone.
    pub ttft: Ttft,
}

/// What an engine elsewhere says of an answer; what was found in its cache counts as exact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineReport {
    /// The model that it answered with.
    pub model: String,
    /// Which of several engines it is, from 1 on, in the order of the setting.
    pub number: u32,
    /// Tokens of the prompt that were in its cache; `None`: it has not said, or does not.
    pub cached_tokens: Option<u32>,
}

/// How passages were put in order so that more of the prompt is stored.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArrangementReport {
    /// Passages that could change places.
    pub passages: u32,
    /// Of these, so many were stored behind the very passages before them.
    pub stored: u32,
    /// What that was predicted to save, in milliseconds.
    pub saved_ms: f64,
    /// Its price: pairs of passages that do not stand as they were ranked.
    pub turned: u32,
}

/// One search of several, and the prompt over what it and those before it found.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RoundReport {
    /// What was searched for: the question, then what the model began to answer.
    pub query: String,
    /// The passages that were new, by their numbers among the citations.
    pub passages: Vec<usize>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, what was stored bit for bit or on the device already.
    pub cached_tokens: u32,
    /// From the search to the end of what the model said to it; of the last round, to the first token.
    pub ms: f64,
}

/// Where each prompt token's KV came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TokenAccount {
    /// Loaded or on the device already, computed earlier behind the same tokens: equal to computing them again.
    pub exact: u32,
    /// Loaded, computed earlier behind other tokens: approximate.
    pub blended: u32,
    /// Tokens of blended passages that were chosen for recomputation.
    pub recomputed: u32,
    /// Not stored anywhere: computed in full. The question always is.
    pub computed: u32,
}

impl TokenAccount {
    /// The prompt's tokens.
    pub fn total(&self) -> u32 {
        self.exact + self.blended + self.recomputed + self.computed
    }
}

/// What came of drafting an answer's tokens (see [`Settings::num_speculative_tokens`](crate::Settings::num_speculative_tokens)).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drafts {
    /// Tokens that were verified beside those that were drawn.
    pub drafted: u32,
    /// Those that were right: so many steps of the engine were saved.
    pub accepted: u32,
    /// Their share.
    pub accepted_share: f32,
}

impl Drafts {
    /// Of so many tokens that were drafted, and those of them that were right; `None` where nothing was drafted.
    pub(crate) fn of((drafted, accepted): (u32, u32)) -> Option<Self> {
        (drafted > 0).then(|| Self { drafted, accepted, accepted_share: accepted as f32 / drafted as f32 })
    }
}

/// What was loaded from one tier.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct TierLoad {
    /// Which tier.
    pub tier: Tier,
    /// Bytes of frames read.
    pub bytes: u64,
    /// Time spent reading and verifying, most of it hidden behind computation; of entries that were read at the same time, that of those
    /// that took longest.
    pub ms: f64,
}

/// What would have happened without a tier.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct Without {
    /// The tier.
    pub tier: Tier,
    /// What the prompt would have been predicted to take.
    #[serde(flatten)]
    pub predicted: Prediction,
}

/// Where a segment's KV comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KvSource {
    /// Stored, or on the device already: equal to computing it again.
    Exact,
    /// Stored, computed after other tokens; part of it is recomputed.
    Blend,
    /// Computed in full.
    Compute,
}

impl KvSource {
    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Blend => "blend",
            Self::Compute => "compute",
        }
    }
}

/// One segment of the prompt.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SegmentReport {
    /// What part of the prompt it is.
    pub kind: SegmentKind,
    /// Its length.
    pub tokens: u32,
    /// Where its KV comes from.
    pub source: KvSource,
    /// Where it was loaded from, or where it was already: the device.
    pub tier: Option<Tier>,
    /// Why from there.
    pub why: Why,
    /// The tiers that are known to have it; of what was slow to load, where it was.
    pub tiers: Vec<Tier>,
    /// What was to be read for it, in bytes.
    pub bytes: u64,
    /// What it was predicted to take, by itself.
    pub predicted: Option<SegmentPrediction>,
}

impl SegmentReport {
    /// What a plan says of a segment.
    fn of(planned: &SegmentPlan) -> Self {
        let source = match planned.source {
            Source::Load { .. } => KvSource::Exact,
            Source::Blend { .. } => KvSource::Blend,
            Source::Compute => KvSource::Compute,
        };
        Self {
            kind: planned.kind,
            tokens: planned.range.len() as u32,
            source,
            tier: planned.source.tier(),
            why: planned.why,
            tiers: planned.tiers.clone(),
            bytes: planned.bytes,
            predicted: planned.predicted,
        }
    }

    /// Whether it is text as `next` is, from where that is: where text is cut is of no interest.
    fn goes_on_with(&self, next: &Self) -> bool {
        let place = |it: &Self| (it.kind, it.source, it.tier, it.why);
        next.kind == SegmentKind::Text && place(self) == place(next)
    }

    fn append(&mut self, next: &Self) {
        self.tokens += next.tokens;
        self.bytes += next.bytes;
        if let (Some(all), Some(more)) = (&mut self.predicted, next.predicted) {
            all.load_ms += more.load_ms;
            all.compute_ms += more.compute_ms;
            all.recompute_ms += more.recompute_ms;
        }
    }

    /// What a plan says of a prompt, segment by segment.
    pub(crate) fn all(plan: &LoadPlan) -> Vec<Self> {
        let mut segments: Vec<Self> = Vec::new();
        for segment in plan.segments.iter().map(Self::of) {
            match segments.last_mut() {
                Some(last) if last.goes_on_with(&segment) => last.append(&segment),
                _ => segments.push(segment),
            }
        }
        segments
    }
}

/// Time to the first token, in milliseconds, and its parts in order.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Ttft {
    /// From the arrival of the question to its first token.
    pub total_ms: f64,
    /// Embedding the question and searching.
    pub retrieve_ms: f64,
    /// Putting what was found in order, where that was asked for.
    pub rerank_ms: f64,
    /// Joining token ids.
    pub assemble_ms: f64,
    /// Looking for stored KV.
    pub look_up_ms: f64,
    /// Deciding.
    pub plan_ms: f64,
    /// Waiting for the engine.
    pub queue_ms: f64,
    /// Computation, and KV placement into blocks.
    pub compute_ms: f64,
    /// Waiting for a layer that was not loaded in time: what the overlap did not hide.
    pub load_wait_ms: f64,
}

impl Ttft {
    /// Adds the parts of an earlier round's prompt.
    pub(crate) fn add_prompt(&mut self, earlier: &Self) {
        self.assemble_ms += earlier.assemble_ms;
        self.look_up_ms += earlier.look_up_ms;
        self.plan_ms += earlier.plan_ms;
        self.queue_ms += earlier.queue_ms;
        self.compute_ms += earlier.compute_ms;
        self.load_wait_ms += earlier.load_wait_ms;
    }
}

/// Whether prompts are blended, and by what right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Blending {
    /// As the calibration found.
    Calibrated,
    /// As the settings say, on a model that was calibrated.
    Configured,
    /// On a model that was not calibrated, because the settings permit it.
    Uncalibrated,
    /// Not: the model was not calibrated.
    #[default]
    NotCalibrated,
    /// Not: no way of blending keeps the model's answers.
    NotGoodEnough,
    /// Not: the model's KV has its positions in it, and cannot be moved to others.
    CannotMove,
}

impl Blending {
    /// Whether prompts are blended.
    pub fn blends(self) -> bool {
        matches!(self, Self::Calibrated | Self::Configured | Self::Uncalibrated)
    }
}
