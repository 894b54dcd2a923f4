//! How the tools are described to clients. The bounds are those that the calls check.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::{
    MAX_ANSWER_TOKENS, MAX_ID_BYTES, MAX_PASSAGES, MAX_QUERY_CHARACTERS, MAX_TEXT_CHARACTERS, MAX_TITLE_CHARACTERS,
    MAX_TOP_K,
};
use crate::api::collections::DEFAULT_COLLECTION;

/// What a search and a question look into where nothing is said.
const UNNAMED: &str = "Where left out: `default`, or the only one there is.";

/// Every tool.
pub fn all() -> Vec<Tool> {
    vec![search(), ask(), add(), status()]
}

fn search() -> Tool {
    let description = "Finds the passages of a collection that answer a query best, by meaning and by words, best first. \
        Fast: no model writes anything. Use it to read the sources yourself; use `ask` for an answer from the local model.";
    let input = json!({
        "query": text("What to look for: a question or a few words.", MAX_QUERY_CHARACTERS),
        "collection": collection(&format!("Where to look. {UNNAMED}")),
        "top_k": number("How many passages at most; the service's setting (5) where left out.", MAX_TOP_K),
        "min_similarity": min_similarity(),
        "filter": filter(),
    });
    let nothing_found =
        "True where no passage is about the query: those that are there are the nearest, and do not answer it.";
    let output = json!({ "collection": { "type": "string" }, "nothing_found": { "type": "boolean", "description": nothing_found }, "passages": { "type": "array", "items": passage() } });
    tool(
        "search",
        "Search documents",
        description,
        object(input, &["query"]),
        object(output, &["collection", "passages"]),
    )
    .with_annotations(reading())
}

fn ask() -> Tool {
    let description = "Has the local language model answer a question from a collection's passages. The answer comes with the \
        passages that it was written from (`citations`), and with how many of the prompt's tokens were already computed \
        (`cached_tokens` exactly, `blended_tokens` approximately). Takes seconds to minutes.";
    let input = json!({
        "question": text("The question, in whole words.", MAX_QUERY_CHARACTERS),
        "collection": collection(&format!("Where to answer from. {UNNAMED}")),
        "top_k": number("How many passages the model reads; the service's setting (5) where left out.", MAX_PASSAGES),
        "max_tokens": number("The longest answer, in tokens; 256 or a quarter of the context where left out.", MAX_ANSWER_TOKENS),
        "min_similarity": min_similarity(),
        "on_nothing_found": {
            "enum": ["say", "answer", "as_usual"],
            "description": "Where no passage is about the question: say so without the model, let the model answer without passages, or answer \
                from the nearest ones. The service's setting (as_usual) where left out.",
        },
        "filter": filter(),
    });
    let count = json!({ "type": "integer", "minimum": 0 });
    let output = json!({
        "answer": { "type": "string" },
        "finish_reason": { "type": "string", "description": "`stop`: it ended; `length`: max_tokens or the context cut it off." },
        "model": { "type": "string" },
        "citations": { "type": "array", "items": passage() },
        "grounding": {
            "type": ["string", "null"], "enum": ["supported", "unsupported", "not_in_passages", null],
            "description": "Whether the answer's numbers, names and words were found in the passages; `not_in_passages`: the model says that \
                they have no answer. Null where nothing could be looked for.",
        },
        "nothing_found": {
            "type": ["string", "null"], "enum": ["said", "without_passages", "as_usual", null],
            "description": "Where no passage is about the question, what was done about it; else null.",
        },
        "prompt_tokens": count, "cached_tokens": count, "blended_tokens": count, "completion_tokens": count,
        "first_token_ms": { "type": ["number", "null"] },
    });
    let required = [
        "answer",
        "finish_reason",
        "citations",
        "prompt_tokens",
        "cached_tokens",
        "blended_tokens",
        "completion_tokens",
    ];
    tool("ask", "Ask a question", description, object(input, &["question"]), object(output, &required))
        .with_annotations(reading())
}

fn add() -> Tool {
    let description = "Stores a text as a document of a collection, which begins with its first document; later searches and \
        questions find it. The same `id` again replaces the document. For files and folders use `ragstone ingest`.";
    let mut goes_into = collection("Where it goes.");
    goes_into["default"] = DEFAULT_COLLECTION.into();
    let input = json!({
        "text": text("The document's text, plain or Markdown.", MAX_TEXT_CHARACTERS),
        "title": text("What it is called; stands before its passages.", MAX_TITLE_CHARACTERS),
        "id": text("Its name in the collection; made from title and text where left out.", MAX_ID_BYTES),
        "collection": goes_into,
    });
    let count = json!({ "type": "integer", "minimum": 0 });
    let output = json!({
        "collection": { "type": "string" }, "document": { "type": "string" }, "uri": { "type": "string" },
        "outcome": { "type": "string", "enum": ["added", "replaced", "unchanged", "empty"] },
        "passages_added": count, "passages_removed": count,
    });
    let required = ["collection", "document", "uri", "outcome"];
    tool("add", "Add a document", description, object(input, &["text"]), object(output, &required))
        .with_annotations(ToolAnnotations::new().read_only(false).destructive(true).idempotent(true).open_world(false))
}

fn status() -> Tool {
    let description = "Says which collections there are and how many documents and passages they have, which language model \
        answers, and what the tiers of stored KV cache hold. Call it first to learn the collections' names.";
    let output = json!({
        "collections": { "type": "array", "items": { "type": "object", "properties": {
            "name": { "type": "string" }, "documents": { "type": "integer" }, "passages": { "type": "integer" },
        } } },
        "model": { "type": ["string", "null"] },
        "tiers": { "type": ["array", "null"], "items": { "type": "object" } },
    });
    tool("status", "Show collections and state", description, object(json!({}), &[]), object(output, &["collections"]))
        .with_annotations(reading())
}

fn tool(name: &'static str, title: &str, description: &'static str, input: JsonObject, output: JsonObject) -> Tool {
    Tool::new(name, description, input).with_title(title).with_raw_output_schema(Arc::new(output))
}

/// It changes nothing, and reaches nothing outside.
fn reading() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).idempotent(true).open_world(false)
}

fn object(properties: Value, required: &[&str]) -> JsonObject {
    let mut schema = JsonObject::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties);
    schema.insert("required".into(), json!(required));
    schema.insert("additionalProperties".into(), false.into());
    schema
}

fn text(description: &str, most: usize) -> Value {
    json!({ "type": "string", "description": description, "minLength": 1, "maxLength": most })
}

fn number(description: &str, most: u64) -> Value {
    json!({ "type": "integer", "description": description, "minimum": 1, "maximum": most })
}

fn min_similarity() -> Value {
    json!({
        "description": "How similar passages must be: cosine similarity from -1 to 1, `auto` (the service's default) or `off`.",
        "anyOf": [{ "enum": ["auto", "off"] }, { "type": "number", "minimum": -1, "maximum": 1 }],
    })
}

fn filter() -> Value {
    json!({
        "type": "object",
        "description": "Which documents may be found, by their metadata, such as {\"type\": \"prefix\", \"key\": \"path\", \"value\": \"House/\"} \
            or {\"type\": \"gte\", \"key\": \"changed\", \"value\": \"2025-01\"}. Files have path, folder, file and changed.",
    })
}

fn collection(description: &str) -> Value {
    json!({
        "type": "string", "description": format!("{description} `status` lists the collections."),
        "pattern": "^(/|[A-Za-z0-9._-]+/)?[A-Za-z0-9._-]+$", "minLength": 1, "maxLength": 129,
    })
}

fn passage() -> Value {
    json!({ "type": "object", "properties": {
        "number": { "type": "integer", "description": "Its place, from 1." },
        "document": { "type": "string" }, "title": { "type": "string" }, "source": { "type": ["string", "null"] },
        "text": { "type": "string" }, "score": { "type": ["number", "null"] },
        "similarity": { "type": "number", "description": "Cosine similarity, which can be compared between queries." },
        "changed": { "type": "string", "description": "When its file was changed last." },
        "uri": { "type": "string", "description": "The whole document, as a resource." },
    } })
}
