//! `/tokenize`, `/detokenize` and `/tokenizer_info`, in the forms that vLLM and llama.cpp have at the same paths.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat::RequestMessage;

/// A text or a conversation to make tokens of: one of `prompt`, `content` and `messages`. Other fields are ignored, and named in the header
/// `x-ragstone-ignored`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TokenizeRequest {
    /// The language model's name, or `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A text, as vLLM has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// A text, as llama.cpp has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// A conversation: the tokens are those of its prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<RequestMessage>>,
    /// Functions that the model may call, with `messages`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// Whether a `prompt` has the tokens that the model wants around a text; it has where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
    /// The same of `content`, which has none where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special: Option<bool>,
    /// Whether the text of a control token becomes that token; it does where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parse_special: Option<bool>,
    /// As of a chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continue_final_message: Option<bool>,
    /// As of a chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Whether the tokens are told as the vocabulary spells them, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_token_strs: Option<bool>,
    /// Whether each of `content`'s tokens is told with its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_pieces: Option<bool>,
}

/// Token ids. Of `content` there are `tokens` alone.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Tokenized {
    /// How many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Tokens that the model takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    pub tokens: Vec<Token>,
    /// As the vocabulary spells them, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

/// A token's id, or with `with_pieces` its id and its text.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Token {
    Id(u32),
    Piece { id: u32, piece: TokenText },
}

/// What a token stands for: a text, or bytes that are part of a character.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TokenText {
    Text(String),
    Bytes(Vec<u8>),
}

/// Token ids to make a text of. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DetokenizeRequest {
    /// The language model's name, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

/// The text of token ids, control tokens by their names: twice, as vLLM calls it and as llama.cpp does.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Detokenized {
    pub prompt: String,
    pub content: String,
}

/// What clients that render conversations themselves have to know; null where the model has none.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TokenizerInfo {
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    pub unk_token: Option<String>,
    pub pad_token: Option<String>,
    /// Whether a text begins with `bos_token`.
    pub add_bos_token: bool,
    pub chat_template: Option<String>,
    /// Tokens that the model takes.
    pub model_max_length: usize,
}
