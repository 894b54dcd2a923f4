//! `/v1/responses`, without state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat::{AnswerExtension, Extension};

/// What to answer. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ResponsesRequest {
    /// The language model's name, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<Extension>,
    /// A text, or a list of items: messages, calls, and what tools answered.
    pub input: Value,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Whether the answer comes as server-sent events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The longest answer, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// `{"format": {"type": "text" | "json_object" | "json_schema", …}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Map<String, Value>>,
    /// Functions that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// `none`, `auto`, `required`, or a function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
}

/// A response. It repeats what its request said, too.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    pub id: String,
    /// `response`
    pub object: String,
    /// In seconds since 1970.
    pub created_at: u64,
    /// `in_progress`, `completed` or `incomplete`.
    pub status: String,
    pub model: String,
    /// Messages and calls.
    pub output: Vec<Value>,
    /// `{"reason": "max_output_tokens"}` where it is not complete.
    pub incomplete_details: Option<Value>,
    /// Null while it is in progress.
    pub usage: Option<ResponseUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<AnswerExtension>,
    /// What the request said, and OpenAI's other fields.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Token counts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ResponseUsage {
    pub input_tokens: u32,
    pub output_tokens: u32,
    pub total_tokens: u32,
    /// Of the prompt.
    pub input_tokens_details: super::chat::PromptTokens,
    /// `{"reasoning_tokens": 0}`
    pub output_tokens_details: Value,
}

/// An event of a response's stream; `type` says which fields it has.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ResponseEvent {
    /// Such as `response.output_text.delta`.
    #[serde(rename = "type")]
    pub kind: String,
    pub sequence_number: u64,
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
