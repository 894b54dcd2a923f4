//! A request for every path, naming what another tenant may have.

use serde_json::{Value, json};

use super::{QUESTION, SCHEMA, TEXT, TITLE, chat};

/// A request.
pub struct Probe {
    pub method: &'static str,
    /// As the router has it.
    pub route: &'static str,
    /// What is asked.
    pub path: &'static str,
    /// Who may, at least: `a`nyone, a key that `r`eads or `w`rites, an a`d`min's, the `o`wner.
    pub least: char,
    /// A string is sent as it is.
    pub body: fn() -> Value,
}

const fn probe(
    least: char,
    method: &'static str,
    route: &'static str,
    path: &'static str,
    body: fn() -> Value,
) -> Probe {
    Probe { method, route, path, least, body }
}

const fn get(least: char, route: &'static str, path: &'static str) -> Probe {
    probe(least, "GET", route, path, || Value::Null)
}

const fn delete(least: char, route: &'static str, path: &'static str) -> Probe {
    probe(least, "DELETE", route, path, || Value::Null)
}

const fn post(least: char, route: &'static str, path: &'static str, body: fn() -> Value) -> Probe {
    probe(least, "POST", route, path, body)
}

const DOCUMENTS: &str = "/v1/collections/{collection}/documents";
const DOCUMENT: &str = "/v1/collections/{collection}/documents/{document:.+}";
const SEARCH: &str = "/v1/collections/{collection}/search";
const RENEWAL: &str = "/v1/collections/{collection}/renewal";
const CHAT: &str = "/v1/chat/completions";
const TEXTS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSE: &str = "/v1/responses/{response}";
const CONVERSATION: &str = "/v1/conversations/{conversation}";
const TURNS: &str = "/v1/conversations/{conversation}/turns";
const ITEMS: &str = "/v1/conversations/{conversation}/items";
const ITEM: &str = "/v1/conversations/{conversation}/items/{item}";
const SCHEMA_AT: &str = "/v1/pml/schemas/{name}";

fn query() -> Value {
    json!({ "query": QUESTION })
}

/// The very document of the other tenant.
fn upsert() -> Value {
    json!({ "documents": [{ "id": "ledger", "title": TITLE, "text": TEXT }] })
}

fn messages(collection: &str) -> Value {
    json!({
        "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 2, "ragstone": { "collection": collection },
    })
}

fn ollama(collection: &str) -> Value {
    json!({
        "messages": [{ "role": "user", "content": QUESTION }], "stream": false, "options": { "temperature": 0, "num_predict": 2 },
        "ragstone": { "collection": collection },
    })
}

/// The text of the other tenant's document in the request itself.
fn inline() -> Value {
    json!({
        "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 4,
        "ragstone": { "documents": [{ "title": TITLE, "text": TEXT }], "explain": true },
    })
}

/// The language model reads them after the system prompt, as it does passages.
fn rerank() -> Value {
    json!({ "query": QUESTION, "documents": [{ "title": TITLE, "text": TEXT }, "Something else."] })
}

fn named_schema() -> Value {
    let prompt = "<prompt schema=\"codex\">How many boats?</prompt>";
    json!({ "prompt": prompt, "max_tokens": 2, "temperature": 0, "ragstone": { "pml": { "name": "codex" } } })
}

/// A system prompt that the other tenant has, too.
fn plain() -> Value {
    json!({ "messages": [{ "role": "user", "content": TEXT.repeat(4) }], "temperature": 0, "max_tokens": 2 })
}

fn tool(name: &str, arguments: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": name, "arguments": arguments } })
}

/// In the order in which a tour asks them: what is made on the way is deleted on the way, so that every tour is the same.
pub const PROBES: &[Probe] = &[
    get('a', "/", "/"),
    probe('a', "HEAD", "/", "/", || Value::Null),
    get('a', "/page/{name}", "/page/api.js"),
    probe('a', "HEAD", "/page/{name}", "/page/api.js", || Value::Null),
    get('a', "/openapi.json", "/openapi.json"),
    get('a', "/healthz", "/healthz"),
    get('a', "/health", "/health"),
    get('a', "/readyz", "/readyz"),
    get('d', "/metrics", "/metrics"),
    get('r', "/v1/models", "/v1/models"),
    get('r', "/v1/models/{model:.+}", "/v1/models/none"),
    get('r', "/v1/collections", "/v1/collections"),
    // Another's, by its full name, and the same names of its own before it has them.
    post('r', SEARCH, "/v1/collections/acme%2Fvault/search", query),
    post('r', SEARCH, "/v1/collections/vault/search", query),
    get('r', DOCUMENTS, "/v1/collections/acme%2Fvault/documents"),
    get('r', DOCUMENTS, "/v1/collections/vault/documents"),
    get('r', DOCUMENT, "/v1/collections/acme%2Fvault/documents/ledger"),
    get('r', DOCUMENT, "/v1/collections/vault/documents/ledger"),
    get('r', RENEWAL, "/v1/collections/acme%2Fvault/renewal"),
    get('r', RENEWAL, "/v1/collections/vault/renewal"),
    post('w', RENEWAL, "/v1/collections/acme%2Fvault/renewal", || json!({})),
    delete('w', RENEWAL, "/v1/collections/acme%2Fvault/renewal"),
    post('w', DOCUMENTS, "/v1/collections/acme%2Fvault/documents", upsert),
    delete('w', DOCUMENT, "/v1/collections/acme%2Fvault/documents/ledger"),
    delete('w', DOCUMENT, "/v1/collections/vault/documents/ledger"),
    delete('w', "/v1/collections/{collection}", "/v1/collections/acme%2Fvault"),
    delete('w', "/v1/collections/{collection}", "/v1/collections/vault"),
    probe('w', "PUT", "/v1/collections/{collection}/files/{file}", "/v1/collections/acme%2Fvault/files/a.md", || {
        json!(TEXT)
    }),
    post(
        'o',
        "/v1/collections/{collection}/ingest",
        "/v1/collections/acme%2Fvault/ingest",
        || json!({ "paths": ["etc"] }),
    ),
    post('r', CHAT, CHAT, || chat("acme/vault")),
    post('r', CHAT, CHAT, || chat("vault")),
    post('r', CHAT, CHAT, inline),
    post('r', CHAT, CHAT, plain),
    post(
        'r',
        "/v1/responses",
        "/v1/responses",
        || json!({ "input": QUESTION, "store": false, "max_output_tokens": 2, "ragstone": { "collection": "acme/vault" } }),
    ),
    post('r', "/v1/responses", "/v1/responses", || json!({ "input": QUESTION, "previous_response_id": "resp_1" })),
    get('r', RESPONSE, "/v1/responses/resp_1"),
    get('r', RESPONSE, "/v1/responses/resp_1?tenant=acme"),
    delete('r', RESPONSE, "/v1/responses/resp_1"),
    get('r', "/v1/responses/{response}/input_items", "/v1/responses/resp_1/input_items"),
    post('r', "/v1/responses/{response}/cancel", "/v1/responses/resp_1/cancel", || json!({})),
    get('r', "/v1/conversations", "/v1/conversations?limit=1"),
    get('r', "/v1/conversations", "/v1/conversations?tenant=acme"),
    post('r', "/v1/conversations", "/v1/conversations", || json!({ "metadata": 7 })),
    get('r', CONVERSATION, "/v1/conversations/conv_1"),
    post('r', CONVERSATION, "/v1/conversations/conv_1", || json!({ "metadata": {} })),
    delete('r', CONVERSATION, "/v1/conversations/conv_1"),
    get('r', TURNS, "/v1/conversations/conv_1/turns"),
    get('r', ITEMS, "/v1/conversations/conv_1/items"),
    post('r', ITEMS, "/v1/conversations/conv_1/items", || json!({ "items": [] })),
    get('r', ITEM, "/v1/conversations/conv_1/items/msg_1"),
    delete('r', ITEM, "/v1/conversations/conv_1/items/msg_1"),
    post(
        'r',
        TEXTS,
        TEXTS,
        || json!({ "prompt": "Hello", "max_tokens": 1, "temperature": 0, "ragstone": { "tenant": "acme" } }),
    ),
    post('r', TEXTS, TEXTS, named_schema),
    post('r', TEXTS, TEXTS, || json!({ "prompt": ["a", TEXT], "max_tokens": 0, "logprobs": 1, "echo": true })),
    post('r', "/tokenize", "/tokenize", || json!({ "prompt": TEXT })),
    post('r', "/detokenize", "/detokenize", || json!({ "tokens": [5, 6] })),
    get('r', "/tokenizer_info", "/tokenizer_info"),
    post('r', MESSAGES, MESSAGES, || messages("acme/vault")),
    post('r', MESSAGES, MESSAGES, || messages("vault")),
    post(
        'r',
        "/v1/messages/count_tokens",
        "/v1/messages/count_tokens",
        || json!({ "messages": [{ "role": "user", "content": TEXT }] }),
    ),
    post('r', "/api/chat", "/api/chat", || ollama("acme/vault")),
    post('r', "/api/chat", "/api/chat", || ollama("vault")),
    post(
        'r',
        "/api/generate",
        "/api/generate",
        || json!({ "prompt": TEXT.repeat(4), "stream": false, "options": { "num_predict": 2 } }),
    ),
    post('r', "/api/embed", "/api/embed", || json!({ "input": "a" })),
    post('r', "/api/embeddings", "/api/embeddings", || json!({ "prompt": "a" })),
    get('r', "/api/tags", "/api/tags"),
    get('r', "/api/ps", "/api/ps"),
    post('r', "/api/show", "/api/show", || json!({ "model": "default" })),
    get('a', "/api/version", "/api/version"),
    post('r', "/v1/embeddings", "/v1/embeddings", || json!({ "input": "a" })),
    post('r', "/v1/rerank", "/v1/rerank", rerank),
    post('r', "/v2/rerank", "/v2/rerank", rerank),
    post('r', "/v1/score", "/v1/score", || json!({ "text_1": QUESTION, "text_2": TEXT })),
    post('r', "/score", "/score", || json!({ "text_1": [QUESTION, "Who?"], "text_2": [TEXT, TEXT] })),
    get('r', "/props", "/props"),
    get('d', "/slots", "/slots"),
    // Its own of the same names and words: made, asked, and deleted again, with reports of what went.
    post('w', DOCUMENTS, "/v1/collections/vault/documents", upsert),
    probe('w', "PUT", "/v1/collections/{collection}/files/{file}", "/v1/collections/vault/files/a.md", || json!(TEXT)),
    get('r', "/v1/collections", "/v1/collections"),
    post('r', CHAT, CHAT, || chat("vault")),
    post('r', SEARCH, "/v1/collections/vault/search", query),
    get('r', RENEWAL, "/v1/collections/vault/renewal"),
    post('w', RENEWAL, "/v1/collections/vault/renewal", || json!({})),
    delete('w', RENEWAL, "/v1/collections/vault/renewal"),
    delete('w', DOCUMENT, "/v1/collections/vault/documents/ledger"),
    delete('w', "/v1/collections/{collection}", "/v1/collections/vault"),
    get('r', "/v1/ingests", "/v1/ingests"),
    delete('w', "/v1/ingests/{job}", "/v1/ingests/7"),
    get('r', "/v1/pml/schemas", "/v1/pml/schemas"),
    get('r', SCHEMA_AT, "/v1/pml/schemas/codex"),
    get('r', SCHEMA_AT, "/v1/pml/schemas/codex?tenant=acme"),
    delete('w', SCHEMA_AT, "/v1/pml/schemas/codex?tenant=acme"),
    post('w', "/v1/pml/schemas/{name}/encode", "/v1/pml/schemas/codex/encode", || json!({ "tenant": "acme" })),
    post('w', "/v1/pml/schemas", "/v1/pml/schemas", || json!({ "schema": SCHEMA })),
    post('w', "/v1/pml/schemas/{name}/encode", "/v1/pml/schemas/codex/encode", || json!({})),
    post('r', TEXTS, TEXTS, named_schema),
    delete('w', SCHEMA_AT, "/v1/pml/schemas/codex"),
    post('r', "/mcp", "/mcp", || tool("search", json!({ "collection": "acme/vault", "query": QUESTION }))),
    post('r', "/mcp", "/mcp", || tool("search", json!({ "collection": "vault", "query": QUESTION }))),
    post('r', "/mcp", "/mcp", || tool("status", json!({}))),
    get('r', "/v1/events", "/v1/events"),
    get('d', "/v1/settings", "/v1/settings"),
    get('o', "/v1/keys", "/v1/keys"),
    post('o', "/v1/keys", "/v1/keys", || json!({})),
    delete('o', "/v1/keys/{key}", "/v1/keys/nobody"),
    get('r', "/v1/quotas", "/v1/quotas"),
    post('o', "/v1/quotas", "/v1/quotas", || json!({})),
    get('r', "/v1/cache/status", "/v1/cache/status"),
    get('r', "/v1/cache/plans", "/v1/cache/plans"),
    get('d', "/v1/cache/calibration", "/v1/cache/calibration"),
    post('d', "/v1/cache/calibration", "/v1/cache/calibration", || json!({ "prompts": "many" })),
    get('d', "/v1/cache/entries", "/v1/cache/entries?tenant=acme"),
    post('d', "/v1/cache/evict", "/v1/cache/evict", || json!({ "tenant": "acme", "dry_run": true })),
    post('d', "/v1/cache/pin", "/v1/cache/pin", || json!({ "tenant": "acme", "dry_run": true })),
    post('d', "/v1/cache/unpin", "/v1/cache/unpin", || json!({ "tenant": "acme", "dry_run": true })),
    post(
        'd',
        "/v1/cache/invalidate",
        "/v1/cache/invalidate",
        || json!({ "collection": "acme/vault", "all": true, "dry_run": true }),
    ),
    post('d', "/v1/cache/verify", "/v1/cache/verify", || json!({ "dry_run": true })),
    post('d', "/v1/cache/gc", "/v1/cache/gc", || json!({ "dry_run": true })),
    post('o', "/v1/cache/export", "/v1/cache/export", || json!({ "url": "memory:///" })),
    post('o', "/v1/cache/import", "/v1/cache/import", || json!({ "url": "memory:///" })),
    post('d', "/v1/cache/warm", "/v1/cache/warm", || json!({ "collection": "acme/vault", "dry_run": true })),
    get('d', "/v1/cache/jobs", "/v1/cache/jobs"),
    delete('d', "/v1/cache/jobs/{job}", "/v1/cache/jobs/none"),
];
