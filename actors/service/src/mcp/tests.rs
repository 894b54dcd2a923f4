//! Every tool against scripted paths: which requests it makes, and what becomes of their answers.

use std::sync::Mutex;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use rmcp::model::JsonObject;
use serde_json::{Value, json};

use super::resources;
use super::tools::{self, Call};
use super::*;
use crate::client::routes::{Reply, Request};

/// Answers from a list, and keeps what it was asked.
#[derive(Default)]
struct Script {
    answers: Mutex<Vec<(u16, String)>>,
    asked: Mutex<Vec<Request>>,
}

impl Script {
    fn new(answers: &[(u16, Value)]) -> Self {
        let answers = answers.iter().rev().map(|(status, body)| (*status, body.to_string())).collect();
        Self { answers: Mutex::new(answers), ..Self::default() }
    }

    fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

impl Routes for Script {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Reply>> {
        self.asked.lock().unwrap().push(request);
        let (status, body) = self.answers.lock().unwrap().pop().expect("nothing more is asked");
        let body = futures::stream::iter([Ok(Bytes::from(body))]).boxed();
        async move { Ok(Reply { status, body }) }.boxed()
    }
}

fn arguments(value: Value) -> JsonObject {
    value.as_object().unwrap().clone()
}

async fn run(script: &Script, tool: &str, given: Value) -> Result<CallToolResult> {
    let call = Call::read(tool, arguments(given)).expect("a tool")?;
    tools::run(script, call, None).await
}

fn text(result: &CallToolResult) -> String {
    match &result.content[0] {
        ContentBlock::Text(text) => text.text.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_search_is_a_request_and_its_hits_are_passages() {
    let hit = json!({ "passage": {
        "id": "1f", "document_id": "a/b", "collection": "notes", "ordinal": 0, "title": "Roof", "text": " We take slate. ",
        "source": "/n/roof.md", "metadata": {} }, "score": 0.5 });
    let there = |names: &[&str]| {
        let row = |name: &&str| json!({ "name": name, "documents": 1, "passages": 1 });
        (200, json!({ "data": names.iter().map(row).collect::<Vec<_>>() }))
    };
    let answers = [(200, json!({ "data": [hit] })), there(&["only"]), (200, json!({ "data": [] })), there(&["a", "b"])];
    let script = Script::new(&answers);
    let result = run(&script, "search", json!({ "query": "roof", "collection": "notes", "top_k": 2 })).await.unwrap();
    assert_eq!(
        text(&result),
        "1 passage of collection `notes`, best first:\n\n[1] Roof (document `a/b`, from /n/roof.md)\nWe take slate."
    );
    let passage = &result.structured_content.unwrap()["passages"][0];
    assert_eq!((&passage["uri"], &passage["score"]), (&json!("ragstone://notes/a%2Fb"), &json!(0.5)));
    let result = run(&script, "search", json!({ "query": "x", "collection": null, "top_k": null })).await.unwrap();
    assert!(text(&result).contains("No passage of collection `only`"));
    let error = run(&script, "search", json!({ "query": "x" })).await.unwrap_err();
    assert!(error.to_string().contains("several collections") && error.to_string().contains("`a`, `b`"), "{error}");
    let asked = script.asked();
    assert_eq!(
        asked[0],
        Request::post(&["v1", "collections", "notes", "search"], json!({ "query": "roof", "top_k": 2 }))
    );
    assert_eq!(asked[2].path[2], "only");
}

#[tokio::test]
async fn a_document_is_added_under_the_name_that_is_told() {
    let report = |outcome: &str| {
        let mut report = json!({ "documents_added": 0, "documents_replaced": 0, "documents_unchanged": 0, "documents_empty": 0,
            "passages_added": 2, "passages_removed": 1 });
        report[format!("documents_{outcome}")] = 1.into();
        (200, report)
    };
    let script = Script::new(&[report("added"), report("replaced"), report("unchanged"), report("empty")]);
    for (outcome, words) in [
        ("added", "was added"),
        ("replaced", "2 passages"),
        ("unchanged", "nothing was changed"),
        ("empty", "no words"),
    ] {
        let result = run(&script, "add", json!({ "text": "We take slate.", "id": "roof" })).await.unwrap();
        assert!(text(&result).contains(words), "{}", text(&result));
        let structured = result.structured_content.unwrap();
        assert_eq!((&structured["outcome"], &structured["document"]), (&json!(outcome), &json!("roof")));
    }
    let sent = script.asked()[0].body.clone().unwrap();
    assert_eq!(sent, json!({ "documents": [{ "id": "roof", "title": "", "text": "We take slate." }] }));
    let script = Script::new(&[report("added")]);
    let result = run(&script, "add", json!({ "text": "We take slate.", "title": "Roof" })).await.unwrap();
    let id = result.structured_content.as_ref().unwrap()["document"].as_str().unwrap().to_owned();
    assert!(id.len() == 32 && text(&result).contains(&id), "the corpus's own name: {id}");
}

#[tokio::test]
async fn the_status_leaves_out_what_its_caller_may_not_see() {
    let collections = (200, json!({ "data": [{ "name": "notes", "documents": 2, "passages": 3 }] }));
    let tier = json!({ "entries": 1, "bytes": 1_048_576, "capacity_bytes": 0, "hits": 2, "misses": 3 });
    let store = json!({ "model": { "id": "m" }, "device": { "cache": tier }, "store": { "host": tier, "disk": tier, "object": null } });
    let script = Script::new(&[collections.clone(), (200, store)]);
    let result = run(&script, "status", json!({})).await.unwrap();
    let shown = text(&result);
    assert!(shown.contains("- notes: 2 documents, 3 passages") && shown.contains("disk: 1 entry, 1.0 MiB"), "{shown}");
    assert_eq!(result.structured_content.unwrap()["tiers"].as_array().unwrap().len(), 3, "no bucket");
    let refused = json!({ "error": { "message": "not for you", "code": "forbidden" } });
    let script = Script::new(&[collections, (403, refused.clone())]);
    let structured = run(&script, "status", json!({})).await.unwrap().structured_content.unwrap();
    assert_eq!((&structured["tiers"], &structured["collections"][0]["name"]), (&Value::Null, &json!("notes")));
    let script = Script::new(&[(403, refused)]);
    assert_eq!(run(&script, "status", json!({})).await.unwrap_err().kind(), ErrorKind::Forbidden);
}

/// Every bound of the schemas is one of the calls, too: what is just inside is read, what is just outside is not.
#[test]
fn the_schemas_say_what_the_calls_take() {
    for tool in tools::all() {
        let properties = tool.input_schema["properties"].as_object().unwrap();
        let required: Vec<&str> =
            tool.input_schema["required"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        let mut least = JsonObject::new();
        required.iter().for_each(|name| drop(least.insert((*name).to_owned(), "x".into())));
        let reads = |name: &str, value: Value| {
            let mut given = least.clone();
            given.insert(name.to_owned(), value);
            Call::read(&tool.name, given).unwrap().is_ok()
        };
        assert!(Call::read(&tool.name, least.clone()).unwrap().is_ok(), "{}: what is required is enough", tool.name);
        for name in &required {
            let mut given = least.clone();
            given.remove(*name);
            assert!(Call::read(&tool.name, given).unwrap().is_err(), "{}: `{name}` is required", tool.name);
        }
        for (name, schema) in properties {
            let at = format!("{}.{name}", tool.name);
            assert!(schema["description"].as_str().is_some_and(|text| text.len() > 10), "{at} is not described");
            if let (Some(least), Some(most)) = (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
                assert!(reads(name, least.into()) && reads(name, most.into()), "{at}: the bounds themselves");
                assert!(!reads(name, (least - 1).into()) && !reads(name, (most + 1).into()), "{at}: beyond the bounds");
                assert!(!reads(name, "5".into()) && !reads(name, 1.5.into()), "{at}: another type");
            } else if name == "min_similarity" {
                let taken = [json!("auto"), json!("off"), json!(-1), json!(0.4), json!(1)];
                assert!(taken.into_iter().all(|value| reads(name, value)), "{at}");
                let refused = [json!("high"), json!(1.1), json!(-1.1), json!([])];
                assert!(!refused.into_iter().any(|value| reads(name, value)), "{at}");
            } else if let Some(words) = schema["enum"].as_array() {
                assert!(words.iter().all(|word| reads(name, word.clone())), "{at}");
                assert!(!reads(name, "never".into()) && !reads(name, 1.into()), "{at}");
            } else if name == "filter" {
                assert!(reads(name, json!({ "type": "exists", "key": "a" })), "{at}");
                assert!(!reads(name, json!({ "type": "like" })) && !reads(name, "a".into()), "{at}");
            } else if name != "collection" {
                let most = schema["maxLength"].as_u64().unwrap() as usize;
                assert!(reads(name, "x".repeat(most).into()), "{at}: the longest");
                assert!(
                    !reads(name, "x".repeat(most + 1).into()) && !reads(name, " ".into()),
                    "{at}: beyond the bounds"
                );
                assert!(!reads(name, 5.into()) && !reads(name, json!(["x"])), "{at}: another type");
            } else {
                assert!(reads(name, "notes".into()) && !reads(name, "".into()) && !reads(name, "..".into()), "{at}");
            }
        }
        assert!(!reads("colection", "notes".into()), "{}: a field that nobody knows", tool.name);
        assert!(tool.output_schema.is_some() && tool.title.is_some(), "{}", tool.name);
        assert!(tool.description.as_ref().is_some_and(|text| text.len() > 60), "{}", tool.name);
    }
    assert!(Call::read("delete_everything", JsonObject::new()).is_none());
}

#[tokio::test]
async fn resources_are_listed_page_by_page_over_all_collections() {
    let named = |name: &str| json!({ "name": name, "documents": 1, "passages": 1 });
    let collections = (200, json!({ "data": [named("b"), named("a")] }));
    let documents = |id: &str, has_more: bool| {
        (200, json!({ "data": [{ "id": id, "title": "", "source": "/n/x" }], "has_more": has_more }))
    };
    let script = Script::new(&[
        collections.clone(),
        documents("one", true),
        collections.clone(),
        documents("two", false),
        collections.clone(),
        documents("three", false),
    ]);
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let page = resources::list(&script, cursor).await.unwrap();
        seen.extend(page.resources.iter().map(|resource| resource.uri.clone()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["ragstone://a/one", "ragstone://a/two", "ragstone://b/three"]);
    assert_eq!(script.asked()[3].query, [("offset", "1".to_owned()), ("limit", "100".to_owned())]);
    let script = Script::new(&[(200, json!({ "data": [] }))]);
    assert!(resources::list(&script, None).await.unwrap().resources.is_empty());
    assert_eq!(resources::list(&script, Some("what".into())).await.unwrap_err().code.0, -32602);
}

#[tokio::test]
async fn a_resource_is_its_documents_text() {
    let document = json!({ "id": "a b", "title": "T", "passages": [{ "text": "one" }, { "text": "two" }] });
    let missing = json!({ "error": { "message": "there is no document", "code": "not_found" } });
    let script = Script::new(&[(200, document), (404, missing)]);
    let read = resources::read(&script, "ragstone://notes/a%20b").await.unwrap();
    assert_eq!(serde_json::to_value(&read.contents[0]).unwrap()["text"], "one\n\ntwo");
    assert_eq!(script.asked()[0].path.last().unwrap(), "a b");
    assert_eq!(resources::read(&script, "ragstone://notes/gone").await.unwrap_err().code.0, -32002);
    assert_eq!(resources::read(&script, "file:///etc/passwd").await.unwrap_err().code.0, -32002);
}

#[tokio::test]
async fn one_client_has_so_many_calls_at_once() {
    let server = Server::new(Script::new(&[]));
    let _all = server.calls.clone().try_acquire_many_owned(MAX_CALLS as u32).unwrap();
    let call = Call::read("status", JsonObject::new()).unwrap().unwrap();
    assert_eq!(server.call(call, None).await.unwrap_err().kind(), ErrorKind::Overloaded);
}

/// Arguments of any content, for every tool: a call within its bounds, or a message that says what is wrong.
#[test]
fn any_arguments_are_read_or_refused() {
    let seeds = [
        r#"{"query":"roof","collection":"notes","top_k":3}"#,
        r#"{"question":"Whose boats?","collection":null,"top_k":5,"max_tokens":12}"#,
        r#"{"text":"We take slate.","title":"Roof","id":"roof/1"}"#,
        "{}",
    ];
    crate::fuzz::fuzz("tool arguments", &seeds.map(|seed| seed.as_bytes().to_vec()), |body| {
        let Ok(given) = serde_json::from_slice::<JsonObject>(body) else { return false };
        let mut is_understood = false;
        for tool in tools::all() {
            match Call::read(&tool.name, given.clone()).expect("a tool") {
                Ok(_) => is_understood = true,
                Err(error) => assert!(!error.to_string().is_empty() && error.kind() == ErrorKind::InvalidInput),
            }
        }
        is_understood
    });
}

#[test]
fn any_resource_is_a_document_or_refused() {
    let seeds = ["ragstone://notes/a%2Fb", "ragstone://n/x", "ragstone://notes/%F0%9F%98%80"];
    crate::fuzz::fuzz("mcp resource", &seeds.map(|seed| seed.as_bytes().to_vec()), |uri| {
        let Some((collection, document)) = std::str::from_utf8(uri).ok().and_then(resources::parse) else {
            return false;
        };
        let again = resources::uri(&collection, &document);
        // What is escaped is longer than what is not.
        assert!(resources::parse(&again).is_none_or(|parsed| parsed == (collection, document)), "{again}");
        true
    });
}
