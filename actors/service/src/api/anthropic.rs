//! `/v1/messages`: Anthropic's Messages API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat::{AnswerExtension, Extension};

/// What to answer. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct MessagesRequest {
    /// The language model's name, or `default`; what begins with `claude-` means it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The longest answer, in tokens.
    pub max_tokens: usize,
    /// `{"role": "user" | "assistant", "content": text or blocks}`; blocks of text, tool uses, tool results and documents of text.
    pub messages: Vec<Value>,
    /// The system prompt: a text, or blocks of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Value>,
    /// Whether the answer comes as server-sent events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_sequences: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// `{"name", "description", "input_schema"}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// `{"type": "auto" | "any" | "none" | "tool", "name"?, "disable_parallel_tool_use"?}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<Extension>,
}

/// The conversation whose tokens are counted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CountTokensRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub messages: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
}

/// Its prompt's, without passages.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CountedTokens {
    pub input_tokens: usize,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct MessagesAnswer {
    pub id: String,
    /// `message`
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`
    pub role: String,
    pub model: String,
    /// Blocks of text, and tool uses.
    pub content: Vec<Value>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<String>,
    /// The one that ended it.
    pub stop_sequence: Option<String>,
    pub usage: MessagesUsage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<AnswerExtension>,
}

/// Token counts: the prompt has the sum of the first three.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct MessagesUsage {
    /// Not stored before.
    pub input_tokens: u32,
    /// 0: nothing is told of what is stored.
    pub cache_creation_input_tokens: u32,
    /// Stored, or on the device already: equal to computing them again.
    pub cache_read_input_tokens: u32,
    pub output_tokens: u32,
}

/// An event of a stream, by its `type`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct MessagesEvent {
    /// `message_start`, `ping`, `content_block_start`, `content_block_delta`, `content_block_stop`, `message_delta`, `message_stop` or `error`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}
