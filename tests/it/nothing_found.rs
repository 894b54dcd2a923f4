//! Questions about which a collection has nothing: what is said, in all protocols; fixed bounds; names, places and times of files as filters.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const SEARCH: &str = "/v1/collections/house/search";
const SAID: &str = "The documents do not say anything about this.";
const FAR: &str = "How many moons does the planet Saturn have?";
const NEAR: &str = "Who services the boiler each October?";

async fn house(folder: &Folder) -> Service {
    let service = folder.serve(&["--set", "calibrate_when_idle=false", "--set", "on_nothing_found=say"]).await;
    let boiler = "The boiler is serviced by Hoff and Sons each October. Part PPR-1670 is its pump.";
    service.add("house", &[("boiler", boiler), ("roof", "We take slate for the roof, and Mara pays for it.")]).await;
    service
}

async fn asked(service: &Service, messages: Value, fields: Value) -> Value {
    let mut extension = json!({ "collection": "house" });
    extension.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    service.ask(CHAT, &json!({ "messages": messages, "max_tokens": 8, "temperature": 0, "ragstone": extension })).await
}

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

fn mark(answer: &Value) -> &Value {
    &answer["ragstone"]["report"]["nothing_found"]["answered"]
}

#[tokio::test]
async fn that_nothing_was_found_is_said_in_the_questions_language_and_every_protocol() {
    let folder = Folder::new();
    let service = house(&folder).await;
    let answer = asked(&service, user(FAR), json!({})).await;
    assert_eq!((text(&answer), mark(&answer)), (SAID, &json!("said")), "{answer}");
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["ragstone"]["citations"]), (&json!(0), &json!([])));
    assert_eq!(answer["ragstone"]["grounding"]["state"], "not_in_passages");
    let others = [
        ("de", "Die Heizung wartet die Firma Hoff jedes Jahr im Oktober."),
        ("es", "La caldera la revisa la empresa Hoff cada año en octubre."),
        ("zh", "锅炉由霍夫公司每年十月维修。"),
        ("th", "บริษัทฮอฟฟ์ตรวจหม้อต้มน้ำทุกเดือนตุลาคม"),
    ];
    service.add("house", &others).await;
    for (question, said) in [
        ("Wie viele Monde hat der Planet Saturn?", "Dazu steht nichts in den Dokumenten."),
        ("¿Cuántas lunas tiene Saturno?", "Los documentos no dicen nada sobre esto."),
        ("土星有多少颗卫星？", "文档中没有关于这个问题的内容。"),
        ("ดาวเสาร์มีดวงจันทร์กี่ดวง", "ในเอกสารไม่มีข้อมูลเกี่ยวกับเรื่องนี้"),
    ] {
        assert_eq!(text(&asked(&service, user(question), json!({})).await), said, "{question}");
    }
    let known = asked(&service, user(NEAR), json!({})).await;
    assert_eq!((mark(&known), known["ragstone"]["citations"].as_array().unwrap().is_empty()), (&json!(null), false));
    assert!(known["ragstone"]["citations"][0]["similarity"].as_f64().unwrap() > 0.3, "{known}");
    let code = asked(&service, user("Saturn moons PPR-1670"), json!({})).await;
    assert_eq!(mark(&code), &json!(null), "an identifier is enough");

    let extension = json!({ "collection": "house" });
    let response = service.ask("/v1/responses", &json!({ "input": FAR, "ragstone": extension })).await;
    assert_eq!(response["output"][0]["content"][0]["text"], SAID, "{response}");
    assert_eq!(response["ragstone"]["report"]["nothing_found"]["answered"], "said");
    let message = json!({ "model": "default", "max_tokens": 8, "messages": user(FAR), "ragstone": extension });
    let message = service.ask("/v1/messages", &message).await;
    assert_eq!((&message["content"][0]["text"], &message["stop_reason"]), (&json!(SAID), &json!("end_turn")));
    let lines = json!({ "stream": false, "messages": user(FAR), "ragstone": extension });
    assert_eq!(service.ask("/api/chat", &lines).await["message"]["content"], SAID);
    let streamed = json!({ "stream": true, "messages": user(FAR), "ragstone": extension, "n": 2 });
    let events = service.stream(CHAT, &streamed).await;
    let chunks: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    for index in 0..2 {
        let pieces = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default());
        let pieces: Vec<Value> = pieces.filter(|piece| piece["index"] == index).collect();
        let said: String = pieces.iter().filter_map(|piece| piece["delta"]["content"].as_str()).collect();
        assert_eq!(said, SAID, "{chunks:?}");
        assert_eq!(pieces.last().unwrap()["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn who_asks_decides_and_what_is_more_than_a_sentence_is_answered() {
    let folder = Folder::new();
    let service = house(&folder).await;
    let own = asked(&service, user(FAR), json!({ "on_nothing_found": "answer" })).await;
    assert!(
        text(&own).starts_with("(The documents do not say anything about this; the answer is the model's own.)\n\n")
    );
    assert_eq!((mark(&own), &own["ragstone"]["citations"]), (&json!("without_passages"), &json!([])));
    assert!(own["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    let usual = asked(&service, user(FAR), json!({ "on_nothing_found": "as_usual" })).await;
    assert_eq!((mark(&usual), usual["ragstone"]["citations"].as_array().unwrap().len()), (&json!("as_usual"), 2));
    let off = asked(&service, user(FAR), json!({ "min_similarity": "off" })).await;
    assert_eq!(mark(&off), &json!(null));
    let rounds = asked(&service, user(FAR), json!({ "rounds": 2 })).await;
    assert_eq!((text(&rounds), mark(&rounds)), (SAID, &json!("said")));

    // A conversation may have the answer itself, a form is waited for, and so is a call.
    let said = json!([{ "role": "user", "content": "Hello" }, { "role": "assistant", "content": "Hello." }, { "role": "user", "content": FAR }]);
    assert_eq!(mark(&asked(&service, said, json!({})).await), &json!("as_usual"));
    let formed = json!({ "messages": user(FAR), "max_tokens": 8, "guided_choice": ["a", "b"], "ragstone": { "collection": "house" } });
    let formed = service.ask(CHAT, &formed).await;
    assert!(["a", "b"].contains(&text(&formed)) && mark(&formed) == "as_usual", "{formed}");
    // What came with the question was found.
    let given = json!({ "documents": [{ "title": "", "text": "Saturn has many moons." }] });
    assert_eq!(mark(&asked(&service, user(FAR), given).await), &json!(null));

    // A number is an absolute bound.
    let bound = |min: f64| json!({ "query": NEAR, "min_similarity": min });
    let all = service.ask(SEARCH, &bound(-1.0)).await;
    assert_eq!((all["data"].as_array().unwrap().len(), &all["nothing_found"]), (2, &json!(null)));
    let best = all["data"][0]["similarity"].as_f64().unwrap();
    assert_eq!(service.ask(SEARCH, &bound(best - 0.001)).await["data"].as_array().unwrap().len(), 1);
    let none = service.ask(SEARCH, &bound(1.0)).await;
    assert_eq!((&none["data"], &none["nothing_found"]), (&json!([]), &json!(true)));
    let code = service.ask(SEARCH, &json!({ "query": "where is ppr1670", "min_similarity": 1 })).await;
    assert_eq!(code["data"][0]["passage"]["title"], "boiler", "an identifier is never left out");
    let mode = service.ask(SEARCH, &json!({ "query": NEAR, "mode": "full_text", "min_similarity": 1 })).await;
    assert_eq!(mode["data"], json!([]));
    let judged = service.ask(SEARCH, &json!({ "query": FAR })).await;
    assert_eq!((judged["data"].as_array().unwrap().len(), &judged["nothing_found"]), (2, &json!(true)));
    for wrong in [json!(1.5), json!(-1.01), json!("nan"), json!("high"), json!([])] {
        let (status, body) = service.post(SEARCH, &json!({ "query": "x", "min_similarity": wrong })).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(error_message(&body).contains("min_similarity") || error_message(&body).contains("-1 to 1"), "{body}");
        let asking = json!({ "messages": user("x"), "ragstone": { "collection": "house", "min_similarity": wrong } });
        assert_eq!(service.post(CHAT, &asking).await.0, 400, "{wrong}");
    }
    let nowhere = json!({ "messages": user("x"), "ragstone": { "on_nothing_found": "say" } });
    let (status, body) = service.post(CHAT, &nowhere).await;
    assert!(status == 400 && error_message(&body).contains("name a collection"), "{body}");
}

#[tokio::test]
async fn the_command_line_and_agents_say_it() {
    let folder = Folder::new();
    let service = house(&folder).await;
    let said = folder.run(&["ask", FAR]).succeeded();
    assert!(said.stdout.contains(SAID) && said.stdout.contains("no model was asked"), "{said:?}");
    let usual = folder.run(&["ask", FAR, "--on-nothing-found", "as-usual", "--max-tokens", "4"]).succeeded();
    assert!(usual.stdout.contains("Sources") && usual.stdout.contains("nearest ones"), "{usual:?}");
    let found = folder.run(&["search", FAR]).succeeded().stdout;
    assert!(found.starts_with("nothing in `house` seems to be about this; the nearest passages:\n[1] "), "{found}");
    assert!(found.contains("(similarity "), "{found}");
    let none = folder.run(&["search", FAR, "--min-similarity", "0.9"]).succeeded().stdout;
    assert_eq!(none, "nothing in `house` was found\n");
    let wrong = folder.run(&["search", FAR, "--min-similarity", "2"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("a number from -1 to 1"), "{wrong:?}");
    let shown = folder.run(&["explain", FAR]).succeeded().stdout;
    assert!(
        shown.contains("similarity to the question: [1] ") && shown.contains("no passage seems to be about"),
        "{shown}"
    );

    let call = |tool: &str, arguments: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } });
    let found = service.ask("/mcp", &call("search", json!({ "query": FAR }))).await;
    assert_eq!(found["result"]["structuredContent"]["nothing_found"], true, "{found}");
    let answer = service.ask("/mcp", &call("ask", json!({ "question": FAR }))).await;
    let told = &answer["result"]["structuredContent"];
    assert_eq!((&told["answer"], &told["nothing_found"]), (&json!(SAID), &json!("said")), "{answer}");
}

#[tokio::test]
async fn files_are_found_by_name_place_time_and_what_was_noted() {
    let folder = Folder::new();
    let write = |name: &str, content: &str, time: u64| {
        let path = folder.write(name, content);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(time)).unwrap();
    };
    write("papers/House/roof.md", "# Roof\n\nWe take slate for the roof.", 1_735_689_600);
    write("papers/Old papers/roof.txt", "The roof was made of tiles.", 1_546_300_800);
    let papers = folder.path().join("papers");
    let papers = papers.to_str().unwrap();
    let noted = [
        "ingest",
        papers,
        "--collection",
        "house",
        "--metadata",
        "owner=ruth",
        "--metadata",
        "tag=a",
        "--metadata",
        "tag=b",
    ];
    folder.run(&noted).succeeded();
    folder.run(&["ingest", papers, "--metadata", "path=x"]).failed_with(&["told by the file itself"]);
    let wrong = folder.run(&["ingest", papers, "--metadata", "x"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("KEY=VALUE"), "{wrong:?}");

    let service = folder.serve(&["--set", "calibrate_when_idle=false", "--set", "on_nothing_found=say"]).await;
    let found = async |query: &str| {
        let found = service.ask(SEARCH, &json!({ "query": query, "qualifiers": true })).await;
        let names = found["data"].as_array().unwrap().iter();
        let mut names: Vec<String> =
            names.map(|hit| hit["passage"]["metadata"]["path"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let (new, old) = ("House/roof.md", "Old papers/roof.txt");
    for (query, expected) in [
        ("roof", &[new, old][..]),
        ("roof path:House/", &[new]),
        ("folder:\"Old papers\" roof", &[old]),
        ("roof file:roof", &[new, old]),
        ("roof name:roof.md", &[new]),
        ("roof file:*.txt", &[old]),
        ("roof after:2025", &[new]),
        ("roof before:2025-01-01", &[old]),
        ("roof after:2019 before:2019-01-02", &[old]),
        ("roof folder:Nowhere", &[]),
    ] {
        assert_eq!(found(query).await, expected, "{query}");
    }
    let tagged = json!({ "query": "roof", "filter": { "type": "eq", "key": "tag", "value": "b" } });
    let tagged = service.ask(SEARCH, &tagged).await;
    let metadata = &tagged["data"][0]["passage"]["metadata"];
    assert_eq!((&metadata["owner"], &metadata["tag"]), (&json!("ruth"), &json!(["a", "b"])));
    let plain = service.ask(SEARCH, &json!({ "query": "roof path:House/" })).await;
    assert_eq!(plain["data"].as_array().unwrap().len(), 2, "nobody asked for filters");
    let read = service.ask(SEARCH, &json!({ "query": "roof path:House/", "qualifiers": true })).await;
    assert_eq!(read["read_as"]["query"], "roof");
    for (query, words) in [("roof after:soon", "has no date"), ("folder:House", "nothing but filters")] {
        let (status, body) = service.post(SEARCH, &json!({ "query": query, "qualifiers": true })).await;
        assert!(status == 400 && error_message(&body).contains(words), "{body}");
    }
    let asked = asked(&service, user("What is the roof made of? folder:House"), json!({ "qualifiers": true })).await;
    let cited = asked["ragstone"]["citations"].as_array().unwrap();
    assert_eq!((cited.len(), &cited[0]["changed"]), (1, &json!("2025-01-01T00:00:00Z")), "{asked}");

    // A new time is noted, and nothing embedded for it; a later ingest without notes takes them away.
    write("papers/House/roof.md", "# Roof\n\nWe take slate for the roof.", 1_767_225_600);
    let (_, before) = service.get("/v1/cache/status").await;
    folder.run(&["ingest", papers, "--collection", "house"]).succeeded();
    assert_eq!(found("roof after:2026").await, [new]);
    let (_, after) = service.get("/v1/cache/status").await;
    let embedded = |status: &Value| status["corpus"]["texts_embedded"].as_u64().unwrap();
    assert!(embedded(&after) <= embedded(&before) + 1, "the query alone");
    let untagged = service.ask(SEARCH, &json!({ "query": "roof", "filter": { "type": "exists", "key": "tag" } })).await;
    assert_eq!(untagged["data"], json!([]));
}

#[tokio::test]
async fn uploads_are_told_metadata_and_time() {
    let folder = Folder::new();
    let service = house(&folder).await;
    let put =
        "/v1/collections/house/files/cellar.md?metadata=%7B%22owner%22%3A%22ida%22%7D&changed_unix_ms=1735689600000";
    assert_eq!(service.put(put, b"# Cellar\n\nThe cellar is dry.").await.0, 200);
    let cellar = json!({ "query": "cellar", "filter": { "type": "eq", "key": "owner", "value": "ida" } });
    let cellar = service.ask(SEARCH, &cellar).await;
    let metadata = &cellar["data"][0]["passage"]["metadata"];
    assert_eq!((&metadata["changed"], &metadata["file"]), (&json!("2025-01-01T00:00:00Z"), &json!("cellar.md")));
    for wrong in [
        "metadata=x",
        "metadata=%7B%22file%22%3A1%7D",
        "changed_unix_ms=x",
        "changed_unix_ms=99999999999999999",
        "other=1",
    ] {
        let (status, body) = service.put(&format!("/v1/collections/house/files/a.md?{wrong}"), b"x").await;
        assert_eq!(status, 400, "{wrong}: {body}");
    }
}
