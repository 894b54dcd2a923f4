//! `/openapi.json`: the HTTP surface as OpenAPI 3.1 has it, made from the types and from who may use what.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use schemars::generate::{Contract, SchemaSettings};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::TOKEN_HEADER;
use super::error::ErrorBody;
use super::operations::{Answer, Body, Make, Operation, all};
use super::permissions::{RULES, Rank, Rule};

const COMPONENTS: &str = "#/components/schemas/";
/// Stands behind the name of a type that requests may write otherwise than answers do: with fewer fields, mostly.
const INPUT: &str = "Input";
const DESCRIPTION: &str = "ragstone answers questions over a knowledge base and keeps the KV cache of every passage it has read. \
    The OpenAI-shaped paths take what OpenAI's clients send. Errors have OpenAI's shape everywhere; events are server-sent, one JSON \
    object each.";

/// The document, as text.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| document().to_string())
}

/// The document.
pub fn document() -> Value {
    let (mut requests, mut answers) = (generator(Contract::Deserialize), generator(Contract::Serialize));
    let error = answers.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for operation in all() {
        let described = describe(operation, &mut requests, &mut answers);
        let path = paths.entry(plain(operation.path)).or_insert_with(|| json!({}));
        path[operation.method.to_lowercase()] = described;
    }
    let schemas = merge(&mut paths, requests.take_definitions(true), answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ragstone", "version": env!("CARGO_PKG_VERSION"), "description": DESCRIPTION,
            "license": { "name": "Apache 2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": { "Error": {
                "description": "What went wrong, with the matching status", "content": json_content(&error),
            } },
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "An API key, as `ragstone keys add` makes it" },
                "owner": {
                    "type": "apiKey", "in": "header", "name": TOKEN_HEADER,
                    "description": "The token in the data folder's service.json: whoever can read the folder",
                },
            },
        },
    })
}

fn generator(contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        settings.contract = contract;
    });
    settings.into_generator()
}

/// `{document:.+}` of the router is `{document}`.
fn plain(path: &str) -> String {
    path.replace(":.+}", "}")
}

fn describe(operation: &Operation, requests: &mut SchemaGenerator, answers: &mut SchemaGenerator) -> Value {
    let Operation { method, path, id, summary, query, body, answer } = operation;
    let mut described = json!({
        "operationId": id, "summary": summary, "tags": [tag(path)],
        "responses": { "200": answered(answer, answers), "default": { "$ref": "#/components/responses/Error" } },
    });
    let rule = RULES.iter().find(|rule| rule.path == *path && rule.method == *method);
    described["security"] = rule.map_or_else(|| json!([{ "owner": [] }]), security);
    let parameters: Vec<Value> = path_parameters(path).chain(query_parameters(*query, requests)).collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    match body {
        Body::Nothing => {}
        Body::Json(make) => {
            described["requestBody"] = json!({ "required": true, "content": json_content(&make(requests)) });
        }
        Body::Bytes => {
            let content = json!({ "application/octet-stream": {} });
            described["requestBody"] = json!({ "required": true, "content": content });
        }
    }
    described
}

/// The first part of a path that says what it is about.
fn tag(path: &str) -> &str {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && !matches!(*part, "v1" | "v2"));
    match parts.next() {
        None | Some("page") => "page",
        Some("healthz" | "health" | "readyz" | "metrics" | "settings" | "events" | "openapi.json") => "service",
        Some(part) => part,
    }
}

/// What is needed: nothing, an API key, or the owner's token. Where the service asks for no keys, nothing is needed more often.
fn security(rule: &Rule) -> Value {
    let mut ways = Vec::new();
    if rule.without_keys == Rank::Anyone {
        ways.push(json!({}));
    }
    if rule.with_keys == Rank::Anyone {
        return ways.into();
    }
    if rule.with_keys < Rank::Owner {
        ways.push(json!({ "bearer": [] }));
    }
    ways.push(json!({ "owner": [] }));
    ways.into()
}

fn path_parameters(path: &str) -> impl Iterator<Item = Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split(['}', ':']).next());
    names.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
}

/// The fields of a query's type.
fn query_parameters(query: Option<Make>, requests: &mut SchemaGenerator) -> Vec<Value> {
    let Some(make) = query else { return Vec::new() };
    let schema = make(requests);
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
    let fields = name.and_then(|name| requests.definitions().get(name)?.get("properties")?.as_object().cloned());
    let parameter = |(name, schema): (String, Value)| json!({ "name": name, "in": "query", "schema": schema });
    fields.unwrap_or_default().into_iter().map(parameter).collect()
}

fn json_content(schema: &Schema) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn answered(answer: &Answer, answers: &mut SchemaGenerator) -> Value {
    let events = |schema: &Schema| {
        json!({ "text/event-stream": {
            "schema": { "type": "string", "contentMediaType": "application/json", "contentSchema": schema },
        } })
    };
    let (content, description) = match answer {
        Answer::Json(make) => (json_content(&make(answers)), "The answer"),
        Answer::Events(make) => (events(&make(answers)), "Server-sent events; each one's data is this"),
        Answer::Either(whole, event) => {
            let (mut content, stream) = (json_content(&whole(answers)), events(&event(answers)));
            content["text/event-stream"] = stream["text/event-stream"].clone();
            (content, "The answer, or server-sent events: each one's data is this")
        }
        Answer::Lines(make) => {
            let schema = make(answers);
            let mut content = json_content(&schema);
            content["application/x-ndjson"] = json!({ "schema": schema });
            (content, "The answer, or JSON lines, each of which is this")
        }
        Answer::Other(kind) => (json!({ *kind: {} }), "What is there"),
    };
    json!({ "description": description, "content": content })
}

/// The definitions of requests and answers in one map. Where they differ by name, the requests' is called `…Input`.
fn merge(paths: &mut Map<String, Value>, mut requests: Map<String, Value>, mut answers: Map<String, Value>) -> Value {
    let mut renamed: BTreeSet<String> = requests
        .iter()
        .filter(|(name, schema)| answers.get(*name).is_some_and(|other| other != *schema))
        .map(|(name, _)| name.clone())
        .collect();
    // What refers to one of them differs, too.
    loop {
        let refers = |schema: &Value| renamed.iter().any(|name| refers_to(schema, name));
        let more: Vec<String> = requests
            .iter()
            .filter(|(name, schema)| !renamed.contains(*name) && answers.contains_key(*name) && refers(schema))
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        renamed.extend(more);
    }
    requests.values_mut().for_each(|schema| rename(schema, &renamed));
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        for part in ["requestBody", "parameters"] {
            if let Some(part) = operation.get_mut(part) {
                rename(part, &renamed);
            }
        }
    }
    for (name, schema) in requests {
        let name = if renamed.contains(&name) { name + INPUT } else { name };
        answers.insert(name, schema);
    }
    answers.into()
}

fn refers_to(schema: &Value, name: &str) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match value.as_str() {
            Some(path) if key == "$ref" => path.strip_prefix(COMPONENTS) == Some(name),
            _ => refers_to(value, name),
        }),
        Value::Array(values) => values.iter().any(|value| refers_to(value, name)),
        _ => false,
    }
}

fn rename(schema: &mut Value, renamed: &BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().and_then(|path| path.strip_prefix(COMPONENTS)) {
                    Some(name) if key == "$ref" && renamed.contains(name) => {
                        *value = format!("{COMPONENTS}{name}{INPUT}").into();
                    }
                    _ => rename(value, renamed),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, renamed)),
        _ => {}
    }
}
