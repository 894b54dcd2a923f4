//! `/v1/responses`, and `/v1/conversations`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ListObject;
use super::chat::{AnswerExtension, Extension};
use crate::conversations::turns::Turn;
use crate::conversations::{ConversationHead, StoredConversation};

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
    /// `{"effort": "none"}`: the model answers at once, where its chat template knows how it is kept from thinking. Other efforts have no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Map<String, Value>>,
    /// Whether the response is kept, for `previous_response_id` and to be looked at; true where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// The response that this one goes on from: what was said up to it stands before `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_response_id: Option<String>,
    /// The conversation that this one goes on in: its id, or an object with an `id`. The turn is appended to it. Of such an object `replaces`, which
    /// is the id of an item, has the turn stand in the place of that and of all that follow it, once it is answered; `earlier: false` keeps earlier turns out
    /// of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Value>,
    /// Up to 16 texts by name, which the response repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
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

/// Which part of a list is wanted, and whose it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ItemsQuery {
    /// Behind the item of this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// 1 to 100; 20 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// The own tenant's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether a conversation that is deleted takes its answers along; false where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responses: Option<bool>,
}

/// How a list is ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The oldest first.
    Asc,
    /// The newest first.
    #[default]
    Desc,
}

/// A part of a list, as OpenAI's API has it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ItemList {
    #[serde(default)]
    pub object: ListObject,
    pub data: Vec<Value>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub has_more: bool,
}

impl ItemList {
    /// A part, and whether there is more behind it.
    pub fn of(data: Vec<Value>, has_more: bool) -> Self {
        let id = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
        Self { first_id: id(data.first()), last_id: id(data.last()), data, has_more, object: ListObject::List }
    }
}

/// That a response or a conversation was deleted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeletedResponse {
    pub id: String,
    /// `response`, or `conversation.deleted`.
    pub object: String,
    pub deleted: bool,
}

/// A conversation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Conversation {
    pub id: String,
    /// `conversation`
    pub object: String,
    /// In seconds since 1970.
    pub created_at: u64,
    pub metadata: Map<String, Value>,
    /// Its name: `title` of its metadata, or else the start of its first question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl From<&StoredConversation> for Conversation {
    fn from(stored: &StoredConversation) -> Self {
        let StoredConversation { id, created_unix_ms, metadata, asked, .. } = stored;
        Self::new(id, *created_unix_ms, metadata, asked)
    }
}

impl From<&ConversationHead> for Conversation {
    fn from(head: &ConversationHead) -> Self {
        let ConversationHead { id, created_unix_ms, metadata, asked, .. } = head;
        Self::new(id, *created_unix_ms, metadata, asked)
    }
}

impl Conversation {
    fn new(id: &str, created_unix_ms: u64, metadata: &Map<String, Value>, asked: &Option<String>) -> Self {
        let given = metadata.get("title").and_then(Value::as_str).filter(|title| !title.trim().is_empty());
        Self {
            id: id.to_owned(),
            object: "conversation".to_owned(),
            created_at: created_unix_ms / 1000,
            title: given.map(str::to_owned).or_else(|| asked.clone()),
            metadata: metadata.clone(),
        }
    }
}

/// A question of a conversation, its answer, and what that stands on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ConversationTurn {
    /// The first item of it.
    pub id: String,
    /// `conversation.turn`
    pub object: String,
    /// `completed`, or `incomplete` where the answer was stopped or cut off.
    pub status: String,
    pub question: String,
    pub answer: String,
    /// In seconds since 1970; null of items that no answer brought, as the next three.
    pub created_at: Option<u64>,
    pub response_id: Option<String>,
    /// The collection that was asked.
    pub collection: Option<String>,
    /// The passages that stood in the prompt, as the answer had them; null where there are none any more. A conversation keeps 4 MiB of them.
    pub citations: Option<Value>,
    /// Whether the answer stands on them, as it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grounding: Option<Value>,
}

/// A part of a conversation's turns.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TurnList {
    #[serde(default)]
    pub object: ListObject,
    pub data: Vec<ConversationTurn>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub has_more: bool,
}

impl ConversationTurn {
    /// A turn; `collection` as whoever asks calls it.
    pub fn of(turn: &Turn<'_>, collection: Option<String>) -> Self {
        let told = |value: &Value| (!value.is_null()).then(|| value.clone());
        Self {
            id: turn.items.first().and_then(|item| item["id"].as_str()).unwrap_or_default().to_owned(),
            object: "conversation.turn".to_owned(),
            status: if turn.is_whole() { "completed" } else { "incomplete" }.to_owned(),
            question: turn.question(),
            answer: turn.answer(),
            created_at: turn.sources.map(|sources| sources.created_unix_ms / 1000),
            response_id: turn.sources.map(|sources| sources.response.clone()),
            collection,
            citations: turn.sources.and_then(|sources| told(&sources.citations)),
            grounding: turn.sources.and_then(|sources| told(&sources.grounding)),
        }
    }
}

/// A conversation to begin.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BeginConversation {
    /// At most 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Value>>,
    /// Up to 16 texts by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// What a conversation is to say of itself.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ChangeConversation {
    /// Up to 16 texts by name, in the place of those before.
    pub metadata: Value,
}

/// Items to append.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AddItems {
    /// At most 20.
    pub items: Vec<Value>,
    /// The item in whose place they are, and of all that follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// What they were answered from: the conversation is for those who may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
}
