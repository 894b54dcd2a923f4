//! `/api/…`: Ollama's API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat::{AnswerExtension, Extension};
use super::embeddings::OneOrMany;

/// A conversation to answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaChat {
    /// The language model's name, with `:latest` or without, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `{"role", "content", "tool_calls"?, "tool_name"?}`; none: nothing but the model's being loaded is told.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    #[serde(flatten)]
    pub common: OllamaCommon,
}

/// A prompt to answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaGenerate {
    /// The language model's name, with `:latest` or without, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default)]
    pub prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The prompt is continued as it stands, without the model's chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<bool>,
    #[serde(flatten)]
    pub common: OllamaCommon,
}

/// What both take.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaCommon {
    /// Whether the answer comes as JSON lines, as it does where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// `json`, or a JSON schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Value>,
    /// `temperature`, `top_p`, `top_k`, `min_p`, `seed`, `stop`, `num_predict`, `repeat_penalty`, `presence_penalty`, `frequency_penalty`;
    /// others are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<Extension>,
}

/// An answer, or a line of one.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaAnswer {
    pub model: String,
    /// As RFC 3339 has it.
    pub created_at: String,
    pub done: bool,
    /// Of a chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Value>,
    /// Of a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// `stop`, `length` or `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    /// In nanoseconds, as all its durations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<u32>,
    /// To the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<AnswerExtension>,
}

/// Texts to embed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaEmbed {
    /// The embedding model's name, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub input: OneOrMany,
}

/// A vector for each.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaEmbeddings {
    pub model: String,
    pub embeddings: Vec<Vec<f32>>,
    pub total_duration: u64,
    pub load_duration: u64,
    pub prompt_eval_count: usize,
}

/// A text to embed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaEmbedOne {
    /// The embedding model's name, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub prompt: String,
}

/// Its vector.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaEmbedding {
    pub embedding: Vec<f32>,
}

/// The models that are here.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaModels {
    /// `{"name", "model", "modified_at", "size", "digest", "details"}`
    pub models: Vec<Value>,
}

/// The model to tell of.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaShow {
    pub model: String,
}

/// What it is and can.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaShown {
    pub template: String,
    pub details: Value,
    /// With `general.architecture` and the context's length.
    pub model_info: Map<String, Value>,
    /// `completion`, `tools`, `embedding`.
    pub capabilities: Vec<String>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The version of Ollama whose API this is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OllamaVersion {
    pub version: String,
}
