//! `/v1/chat/completions` and `/v1/completions`: requests, whole answers, and the chunks of streams.

use ragstone_actors::{Citation, Grounding, InlineDocument, MinSimilarity, OnNothingFound, Reuse, ReuseReport};
use ragstone_corpus::Filter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::is_false;
use super::pml::Pml;
use super::sampling::is_openai;
pub use super::sampling::{GenerationRequest, LogitBias, StreamOptions, Unsaid};

/// A conversation to answer. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ChatRequest {
    pub messages: Vec<RequestMessage>,
    /// `{"enable_thinking": false}`: the model answers at once, where its chat template knows how it is kept from thinking first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// `none` says the same. Other efforts have no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Whether the chosen tokens' log-probabilities are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Alternatives beside each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u8>,
    #[serde(flatten)]
    pub generation: GenerationRequest,
}

impl ChatRequest {
    /// One question.
    pub fn ask(question: &str, generation: GenerationRequest) -> Self {
        let message = RequestMessage { role: "user".to_owned(), content: question.into(), ..RequestMessage::default() };
        Self { messages: vec![message], generation, ..Self::default() }
    }
}

/// A message of a conversation.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestMessage {
    /// `system` or `developer`, `user`, `assistant`, `tool`.
    pub role: String,
    /// A text, or a list of parts of the type `text`; null where an assistant called tools.
    #[serde(default)]
    pub content: Value,
    /// What the assistant called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<SentCall>>,
    /// Which call a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call that an assistant made, as clients send it back.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SentCall {
    #[serde(default)]
    pub id: String,
    pub function: SentFunction,
}

/// What was called.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SentFunction {
    pub name: String,
    /// The text of a JSON object.
    #[serde(default)]
    pub arguments: Value,
}

/// Texts or token ids to continue. Other fields are ignored, and named in the header `x-ragstone-ignored`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CompletionRequest {
    pub prompt: Prompt,
    /// Alternatives beside each token, 20 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u64>,
    /// Whether each answer begins with its prompt, and with that one's log-probabilities where they are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    #[serde(flatten)]
    pub generation: GenerationRequest,
}

/// A text, its token ids, or a list of either: prompts that are answered each for itself, 128 at most.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// `"ragstone": {…}` of a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Extension {
    /// Answer from this collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// Passages to retrieve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Which documents of the collection may be found, by their metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Whether the question's `path:`, `folder:`, `file:`, `name:`, `after:` and `before:` are filters.
    #[serde(skip_serializing_if = "is_false")]
    pub qualifiers: bool,
    /// How similar a passage must be to the question; the setting's where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_similarity: Option<MinSimilarity>,
    /// What is done where nothing is about the question; the setting's where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_nothing_found: Option<OnNothingFound>,
    /// Searches at the most: what the model begins to answer is searched for next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Tokens that it says between two searches, at the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_tokens: Option<usize>,
    /// Passages that the search finds to be put in order by the reranker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerank: Option<usize>,
    /// Whether the prefill may begin before the search has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculate: Option<bool>,
    /// Whether passages may stand in the order in which more of them is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrange: Option<bool>,
    /// Passages given in the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<InlineDocument>,
    /// Which stored KV may serve this request.
    pub reuse: Reuse,
    /// What holds of sampling where the request says nothing.
    #[serde(skip_serializing_if = "is_openai")]
    pub sampling: Unsaid,
    /// Whether sentences of the answer end with the numbers of the passages that they stand on: `[2]`. Not where it has a form, tools or
    /// log-probabilities.
    #[serde(skip_serializing_if = "is_false")]
    pub cite: bool,
    /// Whether the report says what would have happened without each tier.
    #[serde(skip_serializing_if = "is_false")]
    pub explain: bool,
    /// Keeps this tenant's KV apart; a key's own where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The schema of which the prompt is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pml: Option<Pml>,
    /// Seconds this request may take; at most the configured deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<u64>,
}

/// `"ragstone": {…}` of an answer; of a stream, in the chunk that ends a choice.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AnswerExtension {
    /// The passages that stood in the prompt, in prompt order, in which a small model has the best one last; `number` says how good each is.
    pub citations: Vec<Citation>,
    /// Whether the answer stands on them; absent where there are none, and where nothing in it could be looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grounding: Option<Grounding>,
    /// What was reused, and the times.
    pub report: ReuseReport,
}

/// Token counts of all answers; each prompt counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokens,
}

/// Where the prompt's tokens came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PromptTokens {
    /// Stored, or on the device already: equal to computing them again.
    pub cached_tokens: u32,
    /// Of blended passages.
    pub blended_tokens: u32,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishedBy {
    /// An end token or a stop text.
    Stop,
    /// The token limit.
    Length,
    /// The model called tools.
    ToolCalls,
}

/// A whole answer: `C` is a choice of a chat or of a plain completion.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{C}Answer")]
pub struct Completion<C> {
    pub id: String,
    /// `chat.completion` or `text_completion`
    pub object: String,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Null.
    #[serde(default)]
    pub system_fingerprint: Option<String>,
    /// Of several prompts, the first one's, then the next one's.
    pub choices: Vec<C>,
    pub usage: Usage,
    /// Of the first prompt.
    pub ragstone: AnswerExtension,
    /// Of a chat, where that was asked for: for each token of the prompt null or `{"ID": {"logprob", "rank", "decoded_token"}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Value>,
}

/// An answer to a chat.
pub type ChatCompletion = Completion<ChatChoice>;
/// A continuation.
pub type TextCompletion = Completion<TextChoice>;

/// One of the answers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub finish_reason: FinishedBy,
    /// `{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}`, where that was asked for.
    #[serde(default)]
    pub logprobs: Option<Value>,
    pub message: AnswerMessage,
}

/// What the model said.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AnswerMessage {
    /// `assistant`
    pub role: String,
    /// Null where it only called tools.
    pub content: Option<String>,
    /// Null.
    #[serde(default)]
    pub refusal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
}

/// One of the continuations.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TextChoice {
    pub index: usize,
    pub finish_reason: FinishedBy,
    /// `{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`, where that was asked for.
    #[serde(default)]
    pub logprobs: Option<Value>,
    pub text: String,
    /// Where that was asked for: for each token of the prompt null or `{"ID": {"logprob", "rank", "decoded_token"}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Value>,
}

/// A chunk of a stream: `C` is a choice's part.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "{C}Chunk", bound = "C: JsonSchema + Default")]
pub struct Chunk<C> {
    pub id: String,
    /// `chat.completion.chunk` or `text_completion`
    pub object: String,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Null.
    pub system_fingerprint: Option<String>,
    /// Empty in the chunk that has the token counts.
    pub choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// With the end of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<AnswerExtension>,
}

/// A chunk of an answer to a chat.
pub type ChatChunk = Chunk<ChatPiece>;
/// A chunk of a continuation.
pub type TextChunk = Chunk<TextPiece>;

/// A piece of an answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatPiece {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<Value>,
    /// In the last piece.
    pub finish_reason: Option<FinishedBy>,
}

/// What is added to the message.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Delta {
    /// `assistant`, in the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
}

/// A piece of a continuation.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TextPiece {
    pub index: usize,
    pub text: String,
    pub logprobs: Option<Value>,
    /// In the last piece.
    pub finish_reason: Option<FinishedBy>,
}
