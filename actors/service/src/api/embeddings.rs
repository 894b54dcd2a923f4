//! `/v1/embeddings`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ListObject;

/// Texts to embed. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EmbeddingRequest {
    /// The embedding model's name, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub input: OneOrMany,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding_format: Option<EncodingFormat>,
    /// The model's own number, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// Without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A text, or a list of texts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// How vectors are written.
#[derive(Debug, Default, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Little-endian f32: what the official Python client asks for by default.
    Base64,
}

/// One unit vector a text.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Embeddings {
    pub object: ListObject,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

/// A text's vector.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Embedding {
    /// `embedding`
    pub object: String,
    /// The text's place among those that were sent.
    pub index: usize,
    pub embedding: Vector,
}

/// As was asked for.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

/// Tokens that were read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct EmbeddingUsage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
}
