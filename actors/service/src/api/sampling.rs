//! What the requests of chats and of plain completions have in common.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat::Extension;
use super::embeddings::OneOrMany;

/// How tokens are chosen, when the answer ends, and how it is sent. OpenAI's fields, and those of vLLM and llama.cpp that mean the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GenerationRequest {
    /// The language model's name, or `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Passages, reuse, tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<Extension>,
    /// Whether the answer comes as server-sent events, the last of which is `[DONE]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// The longest answer, in tokens; of plain completions also 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// As `max_tokens`; counts where both are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<usize>,
    /// No end before so many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<usize>,
    /// Texts that end the answer, 16 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<OneOrMany>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Go on after an end token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// True where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_special_tokens: Option<bool>,
    /// The same seed draws the same tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// 0 always takes the likeliest token; where nothing is said, 1, or as `ragstone.sampling` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// -1 or 0: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<LogitBias>,
    /// Most tokens of a draft by look-up; without effect on the answer.
    #[serde(rename = "speculative.n_max", skip_serializing_if = "Option::is_none")]
    pub speculative_n_max: Option<usize>,
    /// Answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    /// Answers that the `n` likeliest are chosen from; of plain completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_of: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_beam_search: Option<bool>,
    /// Of a beam search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_penalty: Option<f32>,
    /// Of a beam search: true, false or `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<Value>,
    /// `{"type": "text" | "json_object" | "json_schema", "json_schema"?: {"schema": …}}`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// `{"json" | "regex" | "choice" | "grammar" | "json_object": …}`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_outputs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_regex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_choice: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_grammar: Option<String>,
    /// What the model thought of the prompt: alternatives beside each of its tokens, 20 at most. Not streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<u8>,
    /// Go on with the last message, which is the assistant's; of chats. So where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continue_final_message: Option<bool>,
    /// The opposite of `continue_final_message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Functions that the model may call; of chats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// `none`, `auto`, `required`, or a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
}

/// What holds of temperature, `top_p`, `top_k`, `min_p`, penalties and seed where a request says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unsaid {
    /// What OpenAI's API has: temperature 1, everything else off, a seed that is drawn.
    #[default]
    OpenAi,
    /// What the model's makers say; where they say nothing, the likeliest token, and no penalty. The seed
    /// is 0, so that the same question gets the same answer.
    Model,
}

/// Whether it is what is meant where nothing is said of it, either.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub fn is_openai(unsaid: &Unsaid) -> bool {
    *unsaid == Unsaid::OpenAi
}

/// How a stream is sent.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StreamOptions {
    /// Send the token counts in a chunk of their own, the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_usage: Option<bool>,
}

/// OpenAI's map from token ids, which JSON makes texts, or llama.cpp's list of pairs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LogitBias {
    Map(BTreeMap<String, f32>),
    Pairs(Vec<(u32, f32)>),
}
