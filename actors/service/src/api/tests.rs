//! The types against recorded answers (those of `docs/http.md`, which a whole-system test compares with a live service), and the
//! document against the table of who may use what.

use std::collections::BTreeSet;

use ragstone_actors::ragstone::entries::{Evicted, Pinned};
use ragstone_actors::upkeep::schemas::Added;
use ragstone_actors::upkeep::warm::WarmStatus;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cache::{
    CacheStatus, ChangeEntries, CollectedGarbage, CopiedEntries, HowToChange, InvalidatedText, Plans, Verified,
    WarmUpEstimate, Watched, WholeStatus,
};
use super::chat::{ChatRequest, Extension, GenerationRequest};
use super::collections::Upserted;
use super::error::ErrorBody;
use super::events::ServiceEvent;
use super::keys::{AddedKey, Key, RevokedKey};
use super::pml::{ListedSchema, RemovedSchema};
use super::rerank::Reranking;
use super::{List, openapi, operations};
use crate::api::permissions::RULES;
use crate::config::Setting;

const DOCUMENTATION: &str = include_str!("../../../../docs/http.md");
/// Stands for "and more" in a documented object.
const MORE: &str = "…";

/// The answer behind the first command that has these words; of events, all of them.
fn documented(command: &str) -> Vec<Value> {
    let mut blocks = DOCUMENTATION.split("\n```").skip(1).step_by(2);
    let is_meant = |block: &&str| block.starts_with("sh\n") && format!("{block}\n").contains(command);
    blocks.find(is_meant).unwrap_or_else(|| panic!("{command} is not documented"));
    let answer = blocks.next().expect("an answer behind it");
    let (kind, text) = answer.split_once('\n').expect("a block has lines");
    let read = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    match kind {
        "json" => vec![read(text)],
        "events" => text.lines().filter_map(|line| line.strip_prefix("data: ")).map(read).collect(),
        other => panic!("{other} behind {command}"),
    }
}

/// The same names with the same kinds of values.
fn compare(documented: &Value, typed: &Value, at: &str) {
    match (documented, typed) {
        (Value::Object(documented), Value::Object(typed)) => {
            for (name, value) in documented.iter().filter(|(name, _)| *name != MORE) {
                let found =
                    typed.get(name).unwrap_or_else(|| panic!("{at}.{name} is documented, and no field of the type"));
                compare(value, found, &format!("{at}.{name}"));
            }
            let is_known = |name: &String| documented.contains_key(name) || documented.contains_key(MORE);
            let unknown: Vec<_> = typed.keys().filter(|name| !is_known(name)).collect();
            assert!(unknown.is_empty(), "{at}: the type adds {unknown:?}");
        }
        (Value::Array(documented), Value::Array(typed)) => {
            assert_eq!(documented.len(), typed.len(), "{at}");
            documented.iter().zip(typed).for_each(|(documented, typed)| compare(documented, typed, at));
        }
        // `f32` writes other digits than what it was read from.
        (Value::Number(documented), Value::Number(typed)) => {
            let (documented, typed) = (documented.as_f64().unwrap(), typed.as_f64().unwrap());
            assert!((documented - typed).abs() <= 1e-6 * documented.abs(), "{at}: {documented} {typed}");
        }
        _ => assert_eq!(documented, typed, "{at}"),
    }
}

/// Reads what is documented as a type, and writes it again.
fn round_trip<T: DeserializeOwned + Serialize>(command: &str) {
    for documented in documented(command) {
        let typed: T = serde_json::from_value(documented.clone()).unwrap_or_else(|error| panic!("{command}: {error}"));
        compare(&documented, &serde_json::to_value(&typed).unwrap(), command);
    }
}

#[test]
fn recorded_answers_are_read_and_written_as_they_were() {
    round_trip::<WholeStatus>("/v1/cache/status");
    round_trip::<CacheStatus>("/v1/cache/status");
    round_trip::<WarmUpEstimate>("\"dry_run\": true}");
    round_trip::<List<WarmStatus>>("/v1/cache/jobs\"");
    round_trip::<ErrorBody>("-X DELETE -H \"x-ragstone-token: $TOKEN\" \"$RAGSTONE/v1/cache/jobs/7");
    round_trip::<Pinned>("/v1/cache/pin");
    round_trip::<Evicted>("/v1/cache/evict\" -d '{\"collection\"");
    round_trip::<Watched<Verified>>("/v1/cache/verify");
    round_trip::<Watched<CopiedEntries>>("/v1/cache/export");
    round_trip::<CollectedGarbage>("/v1/cache/gc");
    round_trip::<InvalidatedText>("/v1/cache/invalidate");
    round_trip::<Reranking>("/v1/rerank");
    round_trip::<Added>("/v1/pml/schemas\" -d");
    round_trip::<List<ListedSchema>>("/v1/pml/schemas\"\n");
    round_trip::<RemovedSchema>("-X DELETE \"$RAGSTONE/v1/pml/schemas/greeting");
    round_trip::<Upserted>("/v1/collections/notes/files/cellar.md");
    round_trip::<AddedKey>("/v1/keys\" -d");
    round_trip::<List<Key>>("/v1/keys\"\n");
    round_trip::<RevokedKey>("/v1/keys/ci");
    round_trip::<List<Setting>>("/v1/settings");
    round_trip::<Plans>("/v1/cache/plans");
}

/// What an earlier or later version leaves out or adds is no reason to fail.
#[test]
fn reports_are_read_with_less_and_with_more() {
    let status: WholeStatus = serde_json::from_value(json!({ "model": { "id": "m", "new": 1 }, "other": {} })).unwrap();
    assert_eq!((status.status.model.id.as_str(), status.status.store.host.entries), ("m", 0));
    let key = json!({ "name": "k", "role": "read", "tenant": "acme", "collections": [] });
    let status = serde_json::from_value(json!({ "model": { "id": "m" }, "key": key })).unwrap();
    assert!(matches!(status, CacheStatus::OfKey(status) if status.key.tenant == "acme"));
}

#[test]
fn requests_say_no_more_than_what_was_asked() {
    let extension = Extension { collection: Some("notes".into()), ..Extension::default() };
    let generation =
        GenerationRequest { ragstone: Some(extension), max_tokens: Some(1), ..GenerationRequest::default() };
    let expected = json!({
        "messages": [{ "role": "user", "content": "who?" }], "max_tokens": 1,
        "ragstone": { "collection": "notes", "reuse": "auto" },
    });
    assert_eq!(serde_json::to_value(ChatRequest::ask("who?", generation)).unwrap(), expected);
    let all = ChangeEntries { how: HowToChange { all: true, dry_run: false }, ..ChangeEntries::default() };
    assert_eq!(serde_json::to_value(all).unwrap(), json!({ "all": true }));
}

#[test]
fn events_say_what_they_are() {
    for event in [
        json!({ "type": "missed", "events": 3 }),
        json!({ "type": "evictions", "tiers": { "host": 2 } }),
        json!({ "type": "job", "kind": "ingest", "id": 1, "collection": "notes", "state": "running", "done": 1, "total": 2 }),
    ] {
        let read: ServiceEvent = serde_json::from_value(event.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), event);
    }
}

#[test]
fn every_path_is_in_the_document_and_no_other() {
    let rules: BTreeSet<(&str, &str)> = RULES.iter().map(|rule| (rule.method, rule.path)).collect();
    let described: Vec<(&str, &str)> = operations::all().map(|operation| (operation.method, operation.path)).collect();
    assert_eq!(rules, described.iter().copied().collect(), "see actors/service/src/api/operations.rs");
    assert_eq!(rules.len(), described.len(), "twice");
    let document = openapi::document();
    let written = document["paths"].as_object().unwrap();
    let written: BTreeSet<(String, String)> = written
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let plain = |(method, path): &(&str, &str)| ((*method).to_owned(), path.replace(":.+}", "}"));
    assert_eq!(written, rules.iter().map(plain).collect());
}

/// Calls `each` with every object of a document.
fn objects(value: &Value, each: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            each(fields);
            fields.values().for_each(|value| objects(value, each));
        }
        Value::Array(values) => values.iter().for_each(|value| objects(value, each)),
        _ => {}
    }
}

#[test]
fn what_the_document_refers_to_is_there_and_used() {
    let document = openapi::document();
    let mut used = BTreeSet::new();
    objects(&document, &mut |fields| {
        if let Some(path) = fields.get("$ref").and_then(Value::as_str) {
            assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path} is nowhere");
            used.insert(path.to_owned());
        }
        // What is flattened into a type must not bring a field that is there already.
        let required: Vec<&Value> = fields.get("required").and_then(Value::as_array).into_iter().flatten().collect();
        let twice = required.iter().enumerate().find(|(at, name)| required[..*at].contains(name));
        assert!(twice.is_none(), "{twice:?} is required twice: {required:?}");
    });
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        // Of a query the fields are taken, and not the type.
        let is_query = name.ends_with("Query");
        assert!(is_query || used.contains(&format!("#/components/schemas/{name}")), "{name} is used by nothing");
        assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric()), "{name}: clients make a type of it");
        assert!(!name.ends_with(|last: char| last.is_ascii_digit()), "two types are called {name}");
    }
    let mut ids = BTreeSet::new();
    for operation in operations::all() {
        assert!(ids.insert(operation.id), "{} is two operations", operation.id);
        let path = operation.path.replace(":.+}", "}");
        let described = &document["paths"][&path][operation.method.to_lowercase()];
        let named: Vec<&str> = described["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let wanted: Vec<&str> = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
        assert_eq!(named, wanted, "{path}");
    }
}

#[test]
fn the_document_says_who_may_and_what_is_streamed() {
    let document = openapi::document();
    let at = |path: &str, method: &str| document["paths"][path][method].clone();
    assert_eq!(at("/healthz", "get")["security"], json!([{}]));
    assert_eq!(at("/v1/models", "get")["security"], json!([{}, { "bearer": [] }, { "owner": [] }]));
    assert_eq!(at("/v1/cache/entries", "get")["security"], json!([{ "bearer": [] }, { "owner": [] }]));
    assert_eq!(at("/v1/keys", "post")["security"], json!([{ "owner": [] }]));
    let chat = at("/v1/chat/completions", "post");
    let kinds: Vec<&String> = chat["responses"]["200"]["content"].as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["application/json", "text/event-stream"]);
    let limit = at("/v1/cache/entries", "get")["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == "limit")
        .cloned();
    assert_eq!(limit.unwrap()["in"], "query");
    // A request may leave out what an answer has in any case.
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["InlineDocumentInput"]["required"], Value::Null);
    assert_eq!(schemas["InlineDocument"]["required"], json!(["title", "text"]));
}
