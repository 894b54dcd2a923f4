//! `/openapi.json` of a live service: every path that is probed is in it, and what the service answers is as it says.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::Folder;
use crate::keys::paths::PROBES;

/// What of JSON Schema the document uses. Says where a value is not as described.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(path) = schema["$ref"].as_str() {
        let meant = document.pointer(path.trim_start_matches('#')).ok_or_else(|| format!("{path} is nowhere"))?;
        check(document, meant, value, at)?;
    }
    if let Some(options) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let failed: Vec<String> =
            options.iter().filter_map(|option| check(document, option, value, at).err()).collect();
        if failed.len() == options.len() {
            return Err(format!("{at} fits nothing: {failed:?}"));
        }
    }
    if let Some(one) = schema.get("const").filter(|one| *one != value) {
        return Err(format!("{at}: {value} is not {one}"));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Err(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_of = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        _ => false,
    };
    if !kinds.is_empty() && !kinds.iter().any(is_of) {
        return Err(format!("{at}: {value} is no {kinds:?}"));
    }
    if let Value::Object(fields) = value {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            fields.get(name).ok_or_else(|| format!("{at}.{name} is required, and not there"))?;
        }
        let described = schema["properties"].as_object();
        for (name, value) in fields {
            let own = described.and_then(|described| described.get(name)).or(schema.get("additionalProperties"));
            match own {
                Some(Value::Bool(false)) => return Err(format!("{at}.{name} is not described")),
                Some(own) => check(document, own, value, &format!("{at}.{name}"))?,
                None => {}
            }
        }
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        check(document, &schema["items"], value, &format!("{at}[{index}]"))?;
    }
    Ok(())
}

#[test]
fn the_check_checks() {
    let document =
        json!({ "a": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } } });
    let whole = json!({ "type": "array", "items": { "anyOf": [{ "$ref": "#/a" }, { "type": "null" }] } });
    let is_fit = |value: Value| check(&document, &whole, &value, "").is_ok();
    assert!(is_fit(json!([{ "n": 1 }, null])));
    assert!(!is_fit(json!([{ "n": "1" }])) && !is_fit(json!([{}])) && !is_fit(json!({})));
}

/// What is asked: the method, the path as it is described, as it is sent, and the body.
fn asked(question: Value) -> Vec<(&'static str, &'static str, &'static str, Value)> {
    vec![
        ("POST", "/v1/chat/completions", "/v1/chat/completions", question),
        ("POST", "/v1/completions", "/v1/completions", json!({ "prompt": "Mara", "max_tokens": 2 })),
        ("POST", "/v1/responses", "/v1/responses", json!({ "input": "Hello", "max_output_tokens": 2, "store": false })),
        (
            "POST",
            "/v1/messages",
            "/v1/messages",
            json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 2 }),
        ),
        (
            "POST",
            "/v1/messages/count_tokens",
            "/v1/messages/count_tokens",
            json!({ "messages": [{ "role": "user", "content": "a" }] }),
        ),
        (
            "POST",
            "/api/chat",
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "Hello" }], "stream": false, "options": { "num_predict": 2 } }),
        ),
        (
            "POST",
            "/api/generate",
            "/api/generate",
            json!({ "prompt": "Hello", "stream": false, "options": { "num_predict": 2 } }),
        ),
        ("POST", "/api/embed", "/api/embed", json!({ "input": ["a", "b"] })),
        ("POST", "/api/embeddings", "/api/embeddings", json!({ "prompt": "a" })),
        ("GET", "/api/tags", "/api/tags", Value::Null),
        ("GET", "/api/ps", "/api/ps", Value::Null),
        ("POST", "/api/show", "/api/show", json!({ "model": "default" })),
        ("GET", "/api/version", "/api/version", Value::Null),
        ("POST", "/v1/embeddings", "/v1/embeddings", json!({ "input": ["a", "b"] })),
        ("POST", "/v1/rerank", "/v1/rerank", json!({ "query": "roof", "documents": ["slate", { "text": "gates" }] })),
        ("POST", "/v1/collections/{collection}/search", "/v1/collections/notes/search", json!({ "query": "roof" })),
        ("GET", "/v1/collections", "/v1/collections", Value::Null),
        ("GET", "/v1/collections/{collection}/renewal", "/v1/collections/notes/renewal", Value::Null),
        ("GET", "/v1/collections/{collection}/documents", "/v1/collections/notes/documents", Value::Null),
        (
            "GET",
            "/v1/collections/{collection}/documents/{document}",
            "/v1/collections/notes/documents/roof",
            Value::Null,
        ),
        ("GET", "/v1/models", "/v1/models", Value::Null),
        ("GET", "/healthz", "/healthz", Value::Null),
        ("GET", "/v1/settings", "/v1/settings", Value::Null),
        ("GET", "/v1/cache/status", "/v1/cache/status", Value::Null),
        ("GET", "/v1/cache/plans", "/v1/cache/plans", Value::Null),
        ("GET", "/v1/cache/calibration", "/v1/cache/calibration", Value::Null),
        ("GET", "/v1/cache/entries", "/v1/cache/entries?limit=5", Value::Null),
        ("POST", "/v1/cache/pin", "/v1/cache/pin", json!({ "collection": "notes" })),
        ("POST", "/v1/cache/evict", "/v1/cache/evict", json!({ "all": true, "dry_run": true })),
        ("POST", "/v1/cache/invalidate", "/v1/cache/invalidate", json!({ "collection": "notes", "dry_run": true })),
        ("POST", "/v1/cache/warm", "/v1/cache/warm", json!({ "collection": "notes", "dry_run": true })),
        ("POST", "/v1/cache/gc", "/v1/cache/gc", json!({ "dry_run": true })),
    ]
}

#[tokio::test]
async fn the_service_answers_as_its_document_says() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "kv_admission=always", "--set", "calibrate_when_idle=false"]).await;
    let (status, document) = service.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let plain = |route: &str| route.replace(":.+}", "}");
    let probed: BTreeSet<(String, String)> =
        PROBES.iter().map(|probe| (plain(probe.route), probe.method.to_lowercase())).collect();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|method| (path.clone(), method.clone())))
        .collect();
    assert_eq!(described, probed);

    let text = |id: &str, text: &str| json!({ "id": id, "title": id, "text": text });
    let documents = [text("roof", "We take slate for the roof."), text("garden", "The garden has two gates.")];
    service.ask("/v1/collections/notes/documents", &json!({ "documents": documents })).await;
    let question = json!({
        "messages": [{ "role": "user", "content": "Who mends the roof?" }], "temperature": 0, "max_tokens": 4,
        "logprobs": true, "top_logprobs": 1, "ragstone": { "collection": "notes", "explain": true },
    });
    let token = folder.token();
    let client = reqwest::Client::new();
    for (method, path, target, body) in asked(question) {
        let request = client.request(method.parse().unwrap(), service.url(target)).header("x-ragstone-token", &token);
        let request = if body.is_null() { request } else { request.json(&body) };
        let response = request.send().await.unwrap();
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{target}: {answer}");
        let described = &document["paths"][path][method.to_lowercase()];
        let content = |of: &Value| of["content"]["application/json"]["schema"].clone();
        check(&document, &content(&described["responses"]["200"]), &answer, target).unwrap();
        if !body.is_null() {
            check(&document, &content(&described["requestBody"]), &body, "request").unwrap();
        }
    }
    let (status, error) = service.get("/v1/collections/nowhere/documents").await;
    let schema = &document["components"]["responses"]["Error"]["content"]["application/json"]["schema"];
    assert_eq!(status, 404);
    check(&document, schema, &error, "error").unwrap();
}
