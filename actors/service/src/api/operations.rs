//! Every path with every method: what it is for, what it takes, what it answers. `/openapi.json` is made from this table; a test
//! compares it with the table of who may use what (`crate::api::permissions`), which another one compares with the router.

use ragstone_actors::ragstone::entries::{Evicted, Pinned};
use ragstone_actors::upkeep::calibration::{Calibrate, CalibrationEvent};
use ragstone_actors::upkeep::ingests::UnfinishedIngest;
use ragstone_actors::upkeep::renewal::RenewalStatus;
use ragstone_actors::upkeep::schemas::Added;
use ragstone_actors::upkeep::warm::WarmStatus;
use ragstone_corpus::{CollectionInfo, DocumentInfo};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use super::anthropic::{CountTokensRequest, CountedTokens, MessagesAnswer, MessagesEvent, MessagesRequest};
use super::cache::{
    CacheStatus, CancelledJob, ChangeEntries, CollectGarbage, CollectedGarbage, CopiedEntries, CopyEntries, Entries,
    EntriesQuery, Invalidate, InvalidatedText, KnownCalibration, Plans, Verified, Verify, WarmUp, WarmUpEstimate,
    WarmUpEvent, Watched,
};
use super::chat::{ChatChunk, ChatCompletion, ChatRequest, CompletionRequest, TextChunk, TextCompletion};
use super::collections::{
    DeleteQuery, Deleted, DocumentsQuery, FileQuery, FoundPassages, Ingest, Search, Upsert, Upserted, WholeDocument,
};
use super::embeddings::{EmbeddingRequest, Embeddings};
use super::events::ServiceEvent;
use super::keys::{AddKey, AddedKey, Key, RevokedKey};
use super::models::{Health, Props, Ready, ServedModel, Slot};
use super::ollama::{
    OllamaAnswer, OllamaChat, OllamaEmbed, OllamaEmbedOne, OllamaEmbedding, OllamaEmbeddings, OllamaGenerate,
    OllamaModels, OllamaShow, OllamaShown, OllamaVersion,
};
use super::pml::{AddSchema, EncodeSchema, ListedSchema, RemovedSchema, SchemaQuery, ShownSchema};
use super::quotas::{ChangeQuotas, TenantQuotas};
use super::rerank::{RerankRequest, Reranking, ScoreRequest, Scores};
use super::responses::{
    AddItems, BeginConversation, ChangeConversation, Conversation, DeletedResponse, ItemList, ItemsQuery, Response,
    ResponseEvent, ResponsesRequest, TurnList,
};
use super::tokenize::{DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized, TokenizerInfo};
use super::{List, Page};
use crate::config::Setting;
use crate::ingest::IngestEvent;

/// Makes a type's schema.
pub type Make = fn(&mut SchemaGenerator) -> Schema;

/// A path's method.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub method: &'static str,
    /// As the router has it.
    pub path: &'static str,
    /// What clients that are made from the document call it.
    pub id: &'static str,
    pub summary: &'static str,
    pub query: Option<Make>,
    pub body: Body,
    pub answer: Answer,
}

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub enum Body {
    Nothing,
    Json(Make),
    /// A file as it is.
    Bytes,
}

/// What comes back.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    Json(Make),
    /// Server-sent events, each of which is this.
    Events(Make),
    /// An answer, or events where the request asks for a stream; of a warm-up, where it is no dry run.
    Either(Make, Make),
    /// An answer, or JSON lines unless the request wants none, each of which is this.
    Lines(Make),
    /// Something else, by its type.
    Other(&'static str),
}

use Answer::{Either, Events, Json, Lines, Other};

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn operation(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation { method, path, id, summary, query: None, body: Body::Nothing, answer: Other("text/plain") }
}

const fn get(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("GET", path, id, summary)
}

const fn post(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("POST", path, id, summary)
}

const fn delete(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("DELETE", path, id, summary)
}

impl Operation {
    const fn takes(mut self, body: Make) -> Self {
        self.body = Body::Json(body);
        self
    }

    const fn asks(mut self, query: Make) -> Self {
        self.query = Some(query);
        self
    }

    const fn answers(mut self, answer: Answer) -> Self {
        self.answer = answer;
        self
    }
}

const HTML: Answer = Other("text/html");
const RESPONSE: &str = "/v1/responses/{response}";
const CONVERSATION: &str = "/v1/conversations/{conversation}";
const TURNS: &str = "/v1/conversations/{conversation}/turns";
const ITEMS: &str = "/v1/conversations/{conversation}/items";
const ITEM: &str = "/v1/conversations/{conversation}/items/{item}";
const PML: &str = "/v1/pml/schemas/{name}";
const DOCUMENT: &str = "/v1/collections/{collection}/documents/{document:.+}";
const DOCUMENTS: &str = "/v1/collections/{collection}/documents";
const RENEWAL: &str = "/v1/collections/{collection}/renewal";

/// What `/v1/cache` has.
const CACHE: &[Operation] = &[
    get("/v1/cache/status", "cacheStatus", "What every tier holds, what the start found, what is on its way")
        .answers(Json(schema::<CacheStatus>)),
    get("/v1/cache/plans", "cachePlans", "The last prompts' plans, the latest first").answers(Json(schema::<Plans>)),
    get("/v1/cache/calibration", "calibration", "How the model's prompts are blended, and what that rests on")
        .answers(Json(schema::<KnownCalibration>)),
    post("/v1/cache/calibration", "calibrate", "Find out how the model's prompts may be blended")
        .takes(schema::<Calibrate>)
        .answers(Events(schema::<CalibrationEvent>)),
    get("/v1/cache/entries", "listEntries", "Entries, last used first")
        .asks(schema::<EntriesQuery>)
        .answers(Json(schema::<Entries>)),
    post("/v1/cache/evict", "evictEntries", "Take entries out of the tiers; they are computed again when needed")
        .takes(schema::<ChangeEntries>)
        .answers(Json(schema::<Evicted>)),
    post("/v1/cache/pin", "pinEntries", "Keep entries from being evicted")
        .takes(schema::<ChangeEntries>)
        .answers(Json(schema::<Pinned>)),
    post("/v1/cache/unpin", "unpinEntries", "Let pinned entries be evicted again")
        .takes(schema::<ChangeEntries>)
        .answers(Json(schema::<Pinned>)),
    post("/v1/cache/invalidate", "invalidateText", "Remove a document or collection from the corpus and every tier")
        .takes(schema::<Invalidate>)
        .answers(Json(schema::<InvalidatedText>)),
    post("/v1/cache/verify", "verifyEntries", "Compare every frame with its checksum; remove what is damaged")
        .takes(schema::<Verify>)
        .answers(Events(schema::<Watched<Verified>>)),
    post("/v1/cache/gc", "collectGarbage", "Free what deleted entries still take on disk and in the bucket")
        .takes(schema::<CollectGarbage>)
        .answers(Json(schema::<CollectedGarbage>)),
    post("/v1/cache/export", "exportEntries", "Copy entries into a folder or bucket")
        .takes(schema::<CopyEntries>)
        .answers(Events(schema::<Watched<CopiedEntries>>)),
    post("/v1/cache/import", "importEntries", "Copy entries from a folder or bucket to the disk")
        .takes(schema::<CopyEntries>)
        .answers(Events(schema::<Watched<CopiedEntries>>)),
    post("/v1/cache/warm", "warmUp", "Compute entries before anybody asks")
        .takes(schema::<WarmUp>)
        .answers(Either(schema::<WarmUpEstimate>, schema::<WarmUpEvent>)),
    get("/v1/cache/jobs", "listWarmUps", "Warm-ups that are not finished").answers(Json(schema::<List<WarmStatus>>)),
    delete("/v1/cache/jobs/{job}", "cancelWarmUp", "End a warm-up for good; what it computed stays")
        .answers(Json(schema::<CancelledJob>)),
];

/// What answers questions.
const MODELS: &[Operation] = &[
    post("/v1/chat/completions", "createChatCompletion", "Answer a conversation, from passages where it names some")
        .takes(schema::<ChatRequest>)
        .answers(Either(schema::<ChatCompletion>, schema::<ChatChunk>)),
    post("/v1/completions", "createCompletion", "Continue texts or token ids")
        .takes(schema::<CompletionRequest>)
        .answers(Either(schema::<TextCompletion>, schema::<TextChunk>)),
    post("/tokenize", "tokenize", "The token ids of a text or a conversation")
        .takes(schema::<TokenizeRequest>)
        .answers(Json(schema::<Tokenized>)),
    post("/detokenize", "detokenize", "The text of token ids")
        .takes(schema::<DetokenizeRequest>)
        .answers(Json(schema::<Detokenized>)),
    get("/tokenizer_info", "tokenizerInfo", "The language model's special tokens and chat template")
        .answers(Json(schema::<TokenizerInfo>)),
    post("/v1/responses", "createResponse", "Answer a text or a list of items, behind what was said before")
        .takes(schema::<ResponsesRequest>)
        .answers(Either(schema::<Response>, schema::<ResponseEvent>)),
    get(RESPONSE, "getResponse", "A response that is kept")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<Response>)),
    delete(RESPONSE, "deleteResponse", "Delete a response that is kept")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<DeletedResponse>)),
    get("/v1/responses/{response}/input_items", "listInputItems", "What a response's own request sent")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<ItemList>)),
    post("/v1/responses/{response}/cancel", "cancelResponse", "Refused: no response is made in the background")
        .answers(Json(schema::<Response>)),
    get("/v1/conversations", "listConversations", "A tenant's conversations, the newest first")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<ItemList>)),
    post("/v1/conversations", "createConversation", "Begin a conversation")
        .asks(schema::<ItemsQuery>)
        .takes(schema::<BeginConversation>)
        .answers(Json(schema::<Conversation>)),
    get(CONVERSATION, "getConversation", "A conversation")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<Conversation>)),
    post(CONVERSATION, "updateConversation", "Change what a conversation says of itself")
        .asks(schema::<ItemsQuery>)
        .takes(schema::<ChangeConversation>)
        .answers(Json(schema::<Conversation>)),
    delete(CONVERSATION, "deleteConversation", "Delete a conversation; its responses stay, unless they are named, too")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<DeletedResponse>)),
    get(TURNS, "listTurns", "Questions of a conversation, their answers and what these stand on; the newest first")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<TurnList>)),
    get(ITEMS, "listItems", "What was said in a conversation, the newest first")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<ItemList>)),
    post(ITEMS, "createItems", "Append items to a conversation")
        .asks(schema::<ItemsQuery>)
        .takes(schema::<AddItems>)
        .answers(Json(schema::<ItemList>)),
    get(ITEM, "getItem", "An item of a conversation").asks(schema::<ItemsQuery>).answers(Other("application/json")),
    delete(ITEM, "deleteItem", "Delete an item of a conversation")
        .asks(schema::<ItemsQuery>)
        .answers(Json(schema::<Conversation>)),
    post("/v1/messages", "createMessage", "Answer a conversation, as Anthropic's API has it")
        .takes(schema::<MessagesRequest>)
        .answers(Either(schema::<MessagesAnswer>, schema::<MessagesEvent>)),
    post("/v1/messages/count_tokens", "countTokens", "The tokens of a conversation's prompt, without passages")
        .takes(schema::<CountTokensRequest>)
        .answers(Json(schema::<CountedTokens>)),
    post("/v1/embeddings", "createEmbedding", "One unit vector a text")
        .takes(schema::<EmbeddingRequest>)
        .answers(Json(schema::<Embeddings>)),
    post("/v1/rerank", "rerank", "Put documents in the order of how well they answer a query")
        .takes(schema::<RerankRequest>)
        .answers(Json(schema::<Reranking>)),
    post("/v2/rerank", "rerankV2", "As /v1/rerank").takes(schema::<RerankRequest>).answers(Json(schema::<Reranking>)),
    post("/v1/score", "score", "How well texts answer a text, or each another one, as vLLM has it")
        .takes(schema::<ScoreRequest>)
        .answers(Json(schema::<Scores>)),
    post("/score", "scoreText", "As /v1/score").takes(schema::<ScoreRequest>).answers(Json(schema::<Scores>)),
    get("/props", "props", "What the language model is and takes, as llama.cpp has it").answers(Json(schema::<Props>)),
    get("/slots", "slots", "Places of answers, and whether they are taken, as llama.cpp has it")
        .answers(Json(schema::<Vec<Slot>>)),
    get("/v1/models", "listModels", "The language model, the embedding model and the cross-encoder")
        .answers(Json(schema::<List<ServedModel>>)),
    get("/v1/models/{model:.+}", "getModel", "One of the models").answers(Json(schema::<ServedModel>)),
];

/// Ollama's.
const OLLAMA: &[Operation] = &[
    post("/api/chat", "ollamaChat", "Answer a conversation, as Ollama's API has it")
        .takes(schema::<OllamaChat>)
        .answers(Lines(schema::<OllamaAnswer>)),
    post("/api/generate", "ollamaGenerate", "Answer a prompt, as Ollama's API has it")
        .takes(schema::<OllamaGenerate>)
        .answers(Lines(schema::<OllamaAnswer>)),
    post("/api/embed", "ollamaEmbed", "One unit vector a text, as Ollama's API has it")
        .takes(schema::<OllamaEmbed>)
        .answers(Json(schema::<OllamaEmbeddings>)),
    post("/api/embeddings", "ollamaEmbedOne", "The vector of one text, as Ollama's API had it")
        .takes(schema::<OllamaEmbedOne>)
        .answers(Json(schema::<OllamaEmbedding>)),
    get("/api/tags", "ollamaTags", "The models, as Ollama's API has it").answers(Json(schema::<OllamaModels>)),
    get("/api/ps", "ollamaRunning", "The loaded models, as Ollama's API has it").answers(Json(schema::<OllamaModels>)),
    post("/api/show", "ollamaShow", "What a model is and can, as Ollama's API has it")
        .takes(schema::<OllamaShow>)
        .answers(Json(schema::<OllamaShown>)),
    get("/api/version", "ollamaVersion", "The version of Ollama whose API this is")
        .answers(Json(schema::<OllamaVersion>)),
];

/// What knows documents, schemas and keys.
const CORPUS: &[Operation] = &[
    get("/v1/collections", "listCollections", "Collections with their sizes")
        .answers(Json(schema::<List<CollectionInfo>>)),
    delete("/v1/collections/{collection}", "deleteCollection", "Remove a collection, and its KV")
        .asks(schema::<DeleteQuery>)
        .answers(Json(schema::<Deleted>)),
    get(DOCUMENTS, "listDocuments", "A page of a collection's documents")
        .asks(schema::<DocumentsQuery>)
        .answers(Json(schema::<Page<DocumentInfo>>)),
    post(DOCUMENTS, "upsertDocuments", "Add or replace documents")
        .takes(schema::<Upsert>)
        .answers(Json(schema::<Upserted>)),
    get(DOCUMENT, "getDocument", "A document with its passages").answers(Json(schema::<WholeDocument>)),
    delete(DOCUMENT, "deleteDocument", "Remove a document, and its KV")
        .asks(schema::<DeleteQuery>)
        .answers(Json(schema::<Deleted>)),
    Operation {
        body: Body::Bytes,
        ..operation("PUT", "/v1/collections/{collection}/files/{file}", "putFile", "Add or replace a file's documents")
            .asks(schema::<FileQuery>)
            .answers(Json(schema::<Upserted>))
    },
    post("/v1/collections/{collection}/search", "search", "The passages that answer a query best")
        .takes(schema::<Search>)
        .answers(Json(schema::<FoundPassages>)),
    get(
        RENEWAL,
        "renewal",
        "Whether a collection is built with the embedding model in use, and how far it is on its way to it",
    )
    .answers(Json(schema::<RenewalStatus>)),
    post(RENEWAL, "renew", "Embed a collection again that was built with another embedding model")
        .answers(Json(schema::<RenewalStatus>)),
    delete(RENEWAL, "cancelRenewal", "Let a collection be as it was built").answers(Json(schema::<RenewalStatus>)),
    post("/v1/collections/{collection}/ingest", "ingest", "Ingest files of the service's machine")
        .takes(schema::<Ingest>)
        .answers(Events(schema::<IngestEvent>)),
    get("/v1/ingests", "listIngests", "Ingests that are not finished").answers(Json(schema::<List<UnfinishedIngest>>)),
    delete("/v1/ingests/{job}", "cancelIngest", "End an ingest for good; what it stored stays")
        .answers(Json(schema::<CancelledJob>)),
    get("/v1/pml/schemas", "listSchemas", "A tenant's schemas")
        .asks(schema::<SchemaQuery>)
        .answers(Json(schema::<List<ListedSchema>>)),
    post("/v1/pml/schemas", "addSchema", "Keep a schema under its name")
        .takes(schema::<AddSchema>)
        .answers(Json(schema::<Added>)),
    get(PML, "getSchema", "A schema, and where its modules stand")
        .asks(schema::<SchemaQuery>)
        .answers(Json(schema::<ShownSchema>)),
    delete(PML, "removeSchema", "Forget a schema, and its KV")
        .asks(schema::<SchemaQuery>)
        .answers(Json(schema::<RemovedSchema>)),
    post("/v1/pml/schemas/{name}/encode", "encodeSchema", "Compute a schema's modules before anybody asks")
        .takes(schema::<EncodeSchema>)
        .answers(Events(schema::<WarmUpEvent>)),
    get("/v1/keys", "listKeys", "All keys, without the keys themselves").answers(Json(schema::<List<Key>>)),
    post("/v1/keys", "addKey", "Make a key, and show it this once")
        .takes(schema::<AddKey>)
        .answers(Json(schema::<AddedKey>)),
    delete("/v1/keys/{key}", "revokeKey", "Revoke a key at once").answers(Json(schema::<RevokedKey>)),
    get("/v1/quotas", "listQuotas", "Quotas of tenants, and what is used of them; a key's own tenant's")
        .answers(Json(schema::<List<TenantQuotas>>)),
    post("/v1/quotas", "changeQuotas", "Set quotas of a tenant, or take some away")
        .takes(schema::<ChangeQuotas>)
        .answers(Json(schema::<TenantQuotas>)),
];

/// What looks after the service, and the page.
const SERVICE: &[Operation] = &[
    get("/", "page", "The page").answers(HTML),
    operation("HEAD", "/", "pageHead", "Whether the page is there").answers(HTML),
    get("/page/{name}", "pageFile", "A file of the page").answers(Other("application/octet-stream")),
    operation("HEAD", "/page/{name}", "pageFileHead", "Whether a file of the page is there")
        .answers(Other("application/octet-stream")),
    get("/openapi.json", "openapi", "This document").answers(Json(schema::<Value>)),
    get("/healthz", "healthz", "The process is up").answers(Json(schema::<Health>)),
    get("/health", "health", "As /healthz").answers(Json(schema::<Health>)),
    get("/readyz", "readyz", "The models are loaded, and the service takes questions").answers(Json(schema::<Ready>)),
    get("/metrics", "metrics", "Prometheus's text format"),
    get("/v1/settings", "listSettings", "Every setting, and where it comes from")
        .answers(Json(schema::<List<Setting>>)),
    get("/v1/events", "events", "What happens: answers' reports, jobs, evictions, the tiers' figures")
        .answers(Events(schema::<ServiceEvent>)),
    post("/mcp", "mcp", "The Model Context Protocol: JSON-RPC, answered as JSON or as events")
        .takes(schema::<Value>)
        .answers(Either(schema::<Value>, schema::<Value>)),
];

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Operation> {
    [SERVICE, MODELS, OLLAMA, CORPUS, CACHE].into_iter().flatten()
}
