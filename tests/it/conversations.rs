//! Responses that go on from others, and conversations: also after a restart, by tenant, deletable, and with their KV.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};
use crate::keys::{self, As, new_key};

const RESPONSES: &str = "/v1/responses";
const CONVERSATIONS: &str = "/v1/conversations";
const FACT: &str =
    "The mill of Orbas has nine wheels, and Tessa keeps the books of the mill in the upper room by the bridge.";

fn asked(input: &str, more: Value) -> Value {
    let mut body = json!({ "input": input, "max_output_tokens": 6, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tokens(answer: &Value) -> (u64, u64) {
    let usage = &answer["usage"];
    (usage["input_tokens"].as_u64().unwrap(), usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap())
}

async fn send(service: &Service, method: Method, path: &str, who: As<'_>, body: &Value) -> (u16, Value) {
    let (status, text) = keys::send(service, method, path, who, body).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// The data of a stream's events.
async fn stream(service: &Service, body: &Value) -> Vec<Value> {
    let (status, text) = keys::send(service, Method::POST, RESPONSES, As::Nobody, body).await;
    assert_eq!(status, 200, "{text}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn delete(service: &Service, path: &str) -> (u16, Value) {
    send(service, Method::DELETE, path, As::Nobody, &Value::Null).await
}

#[tokio::test]
async fn a_response_goes_on_from_one_before_also_after_a_restart() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let first = service.ask(RESPONSES, &asked(&FACT.repeat(4), json!({ "metadata": { "a": "b" } }))).await;
    assert_eq!((&first["store"], &first["metadata"]), (&json!(true), &json!({ "a": "b" })), "{first}");
    let first_id = first["id"].as_str().unwrap();
    service.stop();

    let service = folder.serve(&[]).await;
    let goes_on = json!({ "previous_response_id": first_id });
    let second = service.ask(RESPONSES, &asked("How many wheels?", goes_on.clone())).await;
    assert_eq!(second["previous_response_id"], first_id);
    let ((before, _), (after, cached)) = (tokens(&first), tokens(&second));
    assert!(after > before, "the first turn is not in the prompt: {second}");
    assert!(cached >= before / 64 * 64, "its KV is computed again: {cached} of {before}");
    // The same as sending all of it.
    let whole = json!([
        { "role": "user", "content": FACT.repeat(4) },
        first["output"][0],
        { "role": "user", "content": "How many wheels?" },
    ]);
    let sent = service
        .ask(RESPONSES, &json!({ "input": whole, "max_output_tokens": 6, "temperature": 0, "store": false }))
        .await;
    assert_eq!(sent["output"][0]["content"], second["output"][0]["content"]);
    assert_eq!(tokens(&sent).0, after);

    let (status, listed) = service.get(&format!("{RESPONSES}/{first_id}/input_items")).await;
    assert_eq!((status, listed["data"].as_array().map(Vec::len)), (200, Some(1)), "{listed}");
    assert_eq!(service.get(&format!("{RESPONSES}/{first_id}")).await, (200, first.clone()));
    // Streamed, it is there when its last event is.
    let events = stream(&service, &asked("And the room?", json!({ "stream": true, "conversation": null }))).await;
    let streamed = events.last().unwrap()["response"]["id"].as_str().unwrap();
    assert_eq!(service.get(&format!("{RESPONSES}/{streamed}")).await.1["id"], streamed);

    assert_eq!(delete(&service, &format!("{RESPONSES}/{first_id}")).await.0, 200);
    assert_eq!(delete(&service, &format!("{RESPONSES}/{first_id}")).await.0, 404);
    let second_id = second["id"].as_str().unwrap();
    for gone in [first_id, second_id] {
        let body = asked("And now?", json!({ "previous_response_id": gone }));
        let (status, error) = service.post(RESPONSES, &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("previous_response_id")), "{error}");
    }
    let unkept = service.ask(RESPONSES, &asked("Hm?", json!({ "store": false }))).await;
    assert_eq!(service.get(&format!("{RESPONSES}/{}", unkept["id"].as_str().unwrap())).await.0, 404);
    service.stop();
    let files = std::fs::read_dir(folder.data().join("responses")).unwrap();
    let kept: Vec<String> = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    assert!(
        kept.len() == 2 && !kept.iter().any(|text| text.contains("Tessa")),
        "a deleted text is in a file: {kept:?}"
    );
}

#[tokio::test]
async fn a_conversation_grows_is_listed_and_deleted() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let begun = service.ask(CONVERSATIONS, &json!({ "metadata": { "topic": "mill" } })).await;
    let id = begun["id"].as_str().unwrap();
    for input in ["Hello", "And again"] {
        let answer = service.ask(RESPONSES, &asked(input, json!({ "conversation": id }))).await;
        assert_eq!(answer["conversation"]["id"], id);
    }
    let at = format!("{CONVERSATIONS}/{id}/items");
    let (_, listed) = service.get(&format!("{at}?order=asc")).await;
    let roles: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|item| &item["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    let (_, page) = service.get(&format!("{at}?limit=1")).await;
    assert_eq!((&page["has_more"], &page["data"][0]), (&json!(true), &listed["data"][3]), "the newest first");
    let (_, rest) = service.get(&format!("{at}?after={}", page["last_id"].as_str().unwrap())).await;
    assert_eq!(rest["data"].as_array().map(Vec::len), Some(3));
    let item = listed["data"][0]["id"].as_str().unwrap();
    assert_eq!(service.get(&format!("{at}/{item}")).await, (200, listed["data"][0].clone()));
    assert_eq!(delete(&service, &format!("{at}/{item}")).await.0, 200);
    assert_eq!(delete(&service, &format!("{at}/{item}")).await.0, 404);
    let added = service.ask(&at, &json!({ "items": [{ "role": "user", "content": "Kept" }] })).await;
    assert_eq!(added["data"][0]["content"], json!([{ "type": "input_text", "text": "Kept" }]));
    // Answers at once: no turn is lost.
    let both = asked("At once", json!({ "conversation": { "id": id } }));
    let (one, other) = tokio::join!(service.ask(RESPONSES, &both), service.ask(RESPONSES, &both));
    assert_ne!(one["id"], other["id"]);
    assert_eq!(service.get(&at).await.1["data"].as_array().map(Vec::len), Some(8));

    for (body, param) in [
        (asked("x", json!({ "conversation": "conv_1" })), "conversation"),
        (asked("x", json!({ "conversation": 7 })), "conversation"),
        (asked("x", json!({ "conversation": id, "previous_response_id": "resp_1" })), "previous_response_id"),
        (asked("x", json!({ "metadata": { "a": 1 } })), "metadata"),
        (asked("x", json!({ "previous_response_id": "../../catalog/db" })), "previous_response_id"),
    ] {
        let (status, error) = service.post(RESPONSES, &body).await;
        assert!([400, 404].contains(&status) && error["error"]["param"] == param, "{error}");
    }
    for (path, body) in [
        (at.as_str(), json!({ "items": [{ "type": "image" }] })),
        (at.as_str(), json!({ "items": vec![json!({ "role": "user", "content": "x" }); 21] })),
        (CONVERSATIONS, json!({ "metadata": { "x".repeat(65): "y" } })),
    ] {
        assert_eq!(service.post(path, &body).await.0, 400);
    }
    assert_eq!(service.get(&format!("{at}?limit=0")).await.0, 400);
    assert_eq!(service.get(&format!("{at}?after=nothing")).await.0, 400);
    assert_eq!(delete(&service, &format!("{CONVERSATIONS}/{id}")).await.0, 200);
    assert_eq!(service.get(&format!("{CONVERSATIONS}/{id}")).await.0, 404);
    service.stop();

    let service = folder.serve(&["--set", "responses_days=0"]).await;
    assert_eq!(service.ask(RESPONSES, &asked("x", json!({}))).await["store"], false);
    for (path, body) in [(RESPONSES, asked("x", json!({ "store": true }))), (CONVERSATIONS, json!({}))] {
        assert_eq!(service.post(path, &body).await.0, 400);
    }
}

/// As the page has them: what was asked and answered, what that stands on, and turns that take the place of others.
#[tokio::test]
async fn turns_have_their_sources_and_take_the_place_of_others() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("notes", &[("Mill", FACT)]).await;
    let begun = service.ask(CONVERSATIONS, &json!({})).await;
    assert_eq!(begun.get("title"), None, "{begun}");
    let id = begun["id"].as_str().unwrap().to_owned();
    let (at, all) = (format!("{CONVERSATIONS}/{id}"), format!("{CONVERSATIONS}/{id}/turns?order=asc"));
    let turns = async |service: &Service| service.get(&all).await.1["data"].as_array().unwrap().clone();
    let notes = json!({ "collection": "notes" });
    let ask = async |input: &str, place: Value| {
        service.ask(RESPONSES, &asked(input, json!({ "conversation": place, "ragstone": notes }))).await
    };
    let first = ask("How many\n wheels?", json!(id)).await;
    let second = ask("Who keeps the books?", json!({ "id": id })).await;
    assert_eq!(service.get(&at).await.1["title"], "How many wheels?");
    let told = turns(&service).await;
    assert_eq!(
        told.iter().map(|turn| turn["question"].as_str().unwrap()).collect::<Vec<_>>(),
        ["How many\n wheels?", "Who keeps the books?"]
    );
    for (turn, answer) in told.iter().zip([&first, &second]) {
        assert_eq!((&turn["response_id"], &turn["collection"]), (&answer["id"], &json!("notes")), "{turn}");
        assert_eq!(turn["citations"], answer["ragstone"]["citations"]);
        assert_eq!(turn["answer"], answer["output"][0]["content"][0]["text"]);
        assert_eq!(turn["status"], answer["status"]);
    }
    // Without what was said before the prompt is shorter, and the turn is appended all the same.
    let alone = ask("Who keeps the books?", json!({ "id": id, "earlier": false })).await;
    assert!(tokens(&alone).0 < tokens(&second).0, "{alone}");
    assert_eq!(turns(&service).await.len(), 3);

    // The second and what follows give way once another one is answered; not to one that is refused.
    let replaces = told[1]["id"].as_str().unwrap();
    let refused =
        asked("x", json!({ "conversation": { "id": id, "replaces": replaces }, "ragstone": { "collection": "none" } }));
    assert_eq!(service.post(RESPONSES, &refused).await.0, 404);
    assert_eq!(turns(&service).await.len(), 3);
    let third = ask("Where is the room?", json!({ "id": id, "replaces": replaces })).await;
    assert!(tokens(&third).0 < tokens(&second).0 + 8, "the turn that it replaces is not before it: {third}");
    let now = turns(&service).await;
    assert_eq!(now.iter().map(|turn| &turn["response_id"]).collect::<Vec<_>>(), [&first["id"], &third["id"]]);
    for gone in [&second, &alone] {
        assert_eq!(service.get(&format!("{RESPONSES}/{}", gone["id"].as_str().unwrap())).await.0, 404);
    }
    // So do items that are appended, such as those of an answer that was stopped.
    let items = json!([{ "role": "user", "content": "And?" }, { "role": "assistant", "content": "By the", "status": "incomplete" }]);
    service.ask(&format!("{at}/items"), &json!({ "items": items, "replaces": now[1]["id"] })).await;
    let now = turns(&service).await;
    assert_eq!(
        (now.len(), &now[1]["status"], &now[1]["citations"]),
        (2, &json!("incomplete"), &Value::Null),
        "{now:?}"
    );
    for (path, body, param) in [
        (RESPONSES, asked("x", json!({ "conversation": { "id": id, "replaces": "msg_1" } })), "conversation.replaces"),
        (&*format!("{at}/items"), json!({ "items": items, "replaces": "msg_1" }), "replaces"),
    ] {
        let (status, error) = service.post(path, &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    let named = service.ask(&at, &json!({ "metadata": { "title": "The mill" } })).await;
    assert_eq!(named["title"], "The mill");
    service.stop();

    let service = folder.serve(&[]).await;
    assert_eq!(turns(&service).await, now, "after a restart");
    let first = first["id"].as_str().unwrap();
    assert_eq!(delete(&service, &format!("{at}?responses=true")).await.0, 200);
    assert_eq!(service.get(&format!("{RESPONSES}/{first}")).await.0, 404);
}

#[tokio::test]
async fn responses_are_a_tenants_own_and_follow_its_collections() {
    let folder = Folder::new();
    let service = folder.serve(&["--keys", "required"]).await;
    let owner = folder.token();
    let key = async |name: &str, tenant: &str, collections: Value| {
        let body = json!({ "name": name, "role": "read", "tenant": tenant, "collections": collections });
        new_key(&service, &owner, body).await
    };
    let notes = json!({ "documents": [{ "id": "mill", "title": "Mill", "text": FACT }] });
    let at = "/v1/collections/acme%2Fnotes/documents";
    let (status, told) = send(&service, Method::POST, at, As::Owner(&owner), &notes).await;
    assert_eq!(status, 200, "{told}");
    let reader = key("reader", "globex", json!(["acme/notes"])).await;
    let narrow = key("narrow", "globex", json!([])).await;
    let stranger = key("stranger", "initech", json!([])).await;
    let body = asked("How many wheels?", json!({ "ragstone": { "collection": "acme/notes" } }));
    let (status, answer) = send(&service, Method::POST, RESPONSES, As::Key(&reader), &body).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["id"].as_str().unwrap();
    let at = format!("{RESPONSES}/{id}");
    for (key, expected) in [(&reader, 200), (&narrow, 404), (&stranger, 404)] {
        assert_eq!(send(&service, Method::GET, &at, As::Key(key), &Value::Null).await.0, expected);
        let body = asked("And?", json!({ "previous_response_id": id }));
        let (status, answer) = send(&service, Method::POST, RESPONSES, As::Key(key), &body).await;
        assert_eq!(status, if expected == 200 { 200 } else { 400 }, "{answer}");
    }
    let (status, _) =
        send(&service, Method::GET, &format!("{at}?tenant=globex"), As::Key(&stranger), &Value::Null).await;
    assert_eq!(status, 403);
    assert_eq!(send(&service, Method::DELETE, &at, As::Key(&stranger), &Value::Null).await.0, 404);
    let (_, begun) = send(&service, Method::POST, CONVERSATIONS, As::Key(&reader), &json!({})).await;
    for (key, expected) in [(&reader, 1), (&stranger, 0)] {
        let (status, listed) = send(&service, Method::GET, CONVERSATIONS, As::Key(key), &Value::Null).await;
        assert_eq!((status, listed["data"].as_array().map(Vec::len)), (200, Some(expected)), "{begun} {listed}");
    }
}

/// The name of a collection is kept with what is appended, also where there is no such collection.
#[tokio::test]
async fn what_is_appended_is_of_a_collection_that_can_be() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let begun = service.ask(CONVERSATIONS, &json!({})).await;
    let id = begun["id"].as_str().unwrap();
    let at = format!("{CONVERSATIONS}/{id}/items");
    let item = json!([{ "role": "user", "content": "a" }]);
    for name in ["x".repeat(100_000), "acme/".into(), "no name".into()] {
        let (status, error) = service.post(&at, &json!({ "items": item, "collection": name })).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("collection")), "{error}");
    }
    assert_eq!(service.get(&at).await.1["data"], json!([]), "nothing was appended");
    service.ask(&at, &json!({ "items": item, "collection": "acme/notes" })).await;
    assert_eq!(service.get(&at).await.1["data"].as_array().map(Vec::len), Some(1));
    let tenant = "x".repeat(65);
    let (status, error) = service.post(&format!("{CONVERSATIONS}?tenant={tenant}"), &json!({})).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tenant")), "{error}");
}

#[tokio::test]
async fn a_list_of_conversations_has_pages() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for topic in ["a", "b", "c"] {
        service.ask(CONVERSATIONS, &json!({ "metadata": { "topic": topic } })).await;
    }
    let list = async |query: &str| {
        let path = format!("{CONVERSATIONS}?{query}");
        send(&service, Method::GET, &path, As::Owner(&folder.token()), &Value::Null).await
    };
    let (_, all) = list("order=asc").await;
    let all = all["data"].as_array().unwrap();
    let (_, first) = list("limit=2").await;
    assert_eq!((&first["data"], &first["has_more"]), (&json!([all[2], all[1]]), &json!(true)), "the newest first");
    let (_, rest) = list(&format!("after={}", first["last_id"].as_str().unwrap())).await;
    assert_eq!((&rest["data"], &rest["has_more"]), (&json!([all[0]]), &json!(false)));
    for (query, field) in [("limit=0", "limit"), ("after=conv_1", "after")] {
        let (status, error) = list(query).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(field)), "{error}");
    }
}

/// What answers repeat stands in memory and in files: there is a bound, and within it they have what was sent.
#[tokio::test]
async fn an_answer_repeats_its_request_within_a_bound() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let said = json!({ "reasoning": { "effort": "none", "summary": "auto" }, "instructions": "Be brief." });
    let answer = service.ask(RESPONSES, &asked("Hello", said.clone())).await;
    assert_eq!((&answer["reasoning"], &answer["instructions"]), (&said["reasoning"], &said["instructions"]));
    for field in ["reasoning", "text"] {
        let (status, error) =
            service.post(RESPONSES, &asked("Hello", json!({ field: { "x": vec![0; 100_000] } }))).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(field)), "{error}");
    }
}

/// A disk that is full costs the keeping, and not the answer, unless keeping it was asked for.
#[cfg(unix)]
#[tokio::test]
async fn what_cannot_be_kept_is_answered() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    // No folder can be made where a file is.
    std::fs::write(folder.data().join("responses"), "").unwrap();
    let answer = service.ask(RESPONSES, &asked("Hello", json!({}))).await;
    assert_eq!(answer["store"], false, "{answer}");
    let events = stream(&service, &asked("Hello", json!({ "stream": true }))).await;
    assert_eq!(events.last().unwrap()["response"]["store"], false, "{events:?}");
    let (status, error) = service.post(RESPONSES, &asked("Hello", json!({ "store": true }))).await;
    assert!(status >= 500 && error["error"]["message"].is_string(), "{status} {error}");
}
