//! No request costs more than its size times a constant: the worst of each kind, and valid requests of every path, multiplied.

mod multiplied;
mod process;
mod requests;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use self::process::{Cost, Costs};
use self::requests::Request;
use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

/// What a request may take of memory, beyond what a plain one of its path does: so much, and so much for each byte of it. Well above what
/// is measured (docs/results/attacks.md).
const MOST_BYTES: u64 = 128 << 20;
const MOST_BYTES_PER_BYTE: u64 = 300;
/// And of processor time: so many seconds, and for each byte what embedding so many tokens takes, which is measured beside. A figure in
/// seconds would be one of the machine, and of what else runs on it.
const MOST_SECONDS: f64 = 5.0;
const MOST_TOKENS_PER_BYTE: f64 = 4.0;

fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 });
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

fn with_schema(schema: Value) -> Value {
    chat(json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } }))
}

fn names(count: usize, value: Value) -> Map<String, Value> {
    (0..count).map(|index| (format!("n{index}"), value.clone())).collect()
}

/// Each of them ended the program.
#[tokio::test]
async fn schemas_and_grammars_that_call_themselves_too_often_are_refused() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let required: Vec<String> = (0..4000).map(|index| format!("n{index}")).collect();
    let definitions: Map<String, Value> =
        (0..1500).map(|at| (format!("d{at}"), json!({ "$ref": format!("#/$defs/d{}", at + 1) }))).collect();
    let rules: String = (0..1800).map(|index| format!("r{index}: r{}\n", index + 1)).collect();
    let (rules, groups) = (format!("start: r0\n{rules}r1800: \"a\"\n"), "(".repeat(20_000));
    for body in [
        with_schema(json!({ "type": "object", "required": required })),
        with_schema(json!({ "type": "object", "properties": names(4000, json!({ "type": "null" })) })),
        with_schema(json!({ "$ref": "#/$defs/d0", "$defs": definitions })),
        chat(json!({ "guided_grammar": rules })),
        chat(json!({ "guided_grammar": format!("start: {groups}\"a\"{}", groups.replace('(', ")")) })),
    ] {
        let (status, answer) = service.post(CHAT, &body).await;
        assert_eq!(status, 400, "{answer}");
    }
    service.ask(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).await;
}

/// They were refused with "report this", in the middle of an answer.
#[tokio::test]
async fn a_schema_of_many_properties_is_followed() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for count in [500, 1000] {
        let properties = names(count, json!({ "type": "null" }));
        let mut body =
            with_schema(json!({ "type": "object", "properties": properties, "additionalProperties": false }));
        body["max_tokens"] = json!(12);
        service.ask(CHAT, &body).await;
    }
}

/// Two of them stopped all of HTTP: they were read on its threads, in the square of their size.
#[tokio::test]
async fn prompts_of_many_modules_are_refused_or_read_beside_others() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let schema = "<schema name='a'><module name='b'>x</module></schema>";
    let pml = |prompt: String| {
        let messages = json!([{ "role": "user", "content": prompt }]);
        chat(json!({ "messages": messages, "ragstone": { "pml": { "schema": schema } } }))
    };
    let attributes: String = (0..2000).map(|index| format!(" a{index}=''")).collect();
    let namespaces: String = (0..2000).map(|index| format!("<c xmlns:x{index}='y'/>")).collect();
    for (prompt, words) in [
        (format!("<prompt schema='a'>{}</prompt>", "<b/>".repeat(99_000)), "nodes"),
        (format!("<prompt schema='a'><b{attributes}/></prompt>"), "attributes"),
        (format!("<prompt schema='a'>{namespaces}</prompt>"), "namespaces"),
        (format!("<prompt schema='a'><{}/></prompt>", "b".repeat(200)), "a name has"),
        (format!("<prompt schema='a'>{}</prompt>", "<b/>".repeat(10_000)), "imported already"),
    ] {
        let (status, error) = service.post(CHAT, &pml(prompt)).await;
        assert!(status == 400 && error_message(&error).contains(words), "{words}: {error}");
    }
    let (status, error) = service.post("/v1/pml/schemas", &json!({ "schema": parameters(40, 65_536) })).await;
    assert!(status == 400 && error_message(&error).contains("parameters have at most"), "{error}");
}

/// A schema of a union whose members all reserve the same positions.
fn parameters(members: usize, length: usize) -> String {
    let member = |index| format!("<module name='m{index}'><parameter name='p' length='{length}'/></module>");
    format!("<schema name='p'><union>{}</union></schema>", (0..members).map(member).collect::<String>())
}

/// 1.1 MB took 6 GB: everything that stands beside a text was kept with each of its passages.
#[tokio::test]
async fn what_stands_beside_a_text_is_bounded_by_its_length() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let path = "/v1/collections/c/documents";
    let dense = "!?;:,.".repeat((1 << 20) / 6);
    let metadata = json!({ "a": vec![0; 32_000] });
    for (document, words) in [
        (json!({ "text": dense, "metadata": metadata }), "stored with each passage"),
        (json!({ "text": dense, "title": "x".repeat(1 << 20) }), "the title"),
        (json!({ "text": "a", "title": "x".repeat(305_000) }), "the title"),
        (json!({ "text": "a", "source": "x".repeat(305_000) }), "the source"),
    ] {
        let (status, error) = service.post(path, &json!({ "documents": [document] })).await;
        assert!(status == 400 && error_message(&error).contains(words), "{words}: {error}");
    }
    // As much as is taken.
    let costs = Costs::begin(service.pid());
    let taken = json!({ "documents": [{ "text": &dense[..(16 << 10)], "metadata": metadata }] });
    service.ask(path, &taken).await;
    let (bytes, memory) = (taken.to_string().len() as u64, costs.end().memory);
    // The embedding model is loaded for it, too.
    assert!(memory < (192 << 20) + MOST_BYTES_PER_BYTE * bytes, "{memory} bytes");
}

/// A document whose passages fill the context made every question that found it fail.
#[tokio::test]
async fn a_passage_that_fits_no_prompt_is_left_out_of_it() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    // Words of 101 letters are unknown to the embedding model, a token each, and a token a byte to the language model.
    let letter = |at: u32| char::from_u32(0x10d0 + at * 7 % 33).unwrap();
    let word = |from: u32| (from..from + 101).map(letter).collect::<String>();
    let words: Vec<String> = (0..13).map(word).collect();
    service.add("c", &[("Lanterns", "Copper lanterns are made in Orvik."), ("Copper", &words.join(" "))]).await;
    let body = chat(json!({
        "messages": [{ "role": "user", "content": "Who makes copper lanterns?" }], "ragstone": { "collection": "c", "top_k": 20 }
    }));
    let answer = service.ask(CHAT, &body).await;
    assert_eq!(answer["ragstone"]["citations"][0]["title"], "Lanterns", "{answer}");
}

/// 100 passages with 64 KiB of metadata each were 6.4 MB of answer.
#[tokio::test]
async fn answers_are_bounded_in_bytes() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let document = |at: usize| json!({ "id": format!("d{at:03}"), "text": format!("Lantern {at}."), "metadata": { "k": "x".repeat(63 << 10) } });
    let documents: Vec<Value> = (0..100).map(document).collect();
    service.ask("/v1/collections/c/documents", &json!({ "documents": documents })).await;
    let found = service.ask("/v1/collections/c/search", &json!({ "query": "lantern", "top_k": 100 })).await;
    let hits = found["data"].as_array().unwrap().len();
    assert!((50..=66).contains(&hits), "{hits}");
    let (mut offset, mut ids) = (0, Vec::new());
    loop {
        let (status, page) = service.get(&format!("/v1/collections/c/documents?offset={offset}&limit=100")).await;
        let data = page["data"].as_array().unwrap();
        assert!(status == 200 && (1..=66).contains(&data.len()), "{}", data.len());
        ids.extend(data.iter().map(|document| document["id"].as_str().unwrap().to_owned()));
        offset += data.len();
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!(ids, (0..100).map(|at| format!("d{at:03}")).collect::<Vec<_>>());
}

/// A body that is small, and becomes large.
#[tokio::test]
async fn a_body_counts_as_what_it_becomes() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_bytes=4MiB", "--set", "bodies_bytes=16MiB"]).await;
    let body = chat(json!({ "metadata": vec![0; 1 << 20] }));
    let (status, error) = service.post(CHAT, &body).await;
    assert!(status == 413 && error_message(&error).contains("once it is read"), "{error}");
    service.ask(CHAT, &chat(json!({ "metadata": vec![0; 1 << 16] }))).await;
}

/// Valid requests of every path, each of their values repeated, nested and widened: none ends the service, or takes more memory and processor
/// time than its path's plain requests and its size times a constant. Prints what each path took at the most (`--nocapture`).
#[tokio::test]
async fn multiplied_requests_cost_no_more_than_their_size_times_a_constant() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("c", &[("Lanterns", "Copper lanterns are made in Orvik.")]).await;
    requests::check_complete(&service.get("/openapi.json").await.1);
    let (mut plain, mut table) = (BTreeMap::<String, Cost>::new(), process::Table::default());
    // The first ones load what they need; what the second take is what a path takes for itself.
    for is_counted in [false, true] {
        for request in requests::plain() {
            let (_, cost) = send(&service, &folder, &request).await;
            if is_counted {
                let most = plain.entry(request.route).or_default();
                *most = most.or(cost);
            }
        }
    }
    let a_token = seconds_a_token(&service, &folder).await;
    // An eighth of what the table in docs/results/attacks.md was made with, which takes minutes.
    let size = std::env::var("COSTS_BYTES").ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(16 << 10);
    for request in requests::all(size) {
        let (status, cost) = send(&service, &folder, &request).await;
        let Request { method, route, path, text, how } = request;
        let bytes = (text.len() + path.len()) as u64;
        assert_ne!(status, 500, "{method} {path} {how}");
        table.note(&format!("{method} {route}"), &how, status, bytes, cost);
        let most = most(plain.get(&route).copied().unwrap_or_default(), bytes, a_token);
        assert!(cost.memory < most.memory, "{method} {path} {how}: {} bytes of memory for {bytes}", cost.memory);
        assert!(cost.seconds < most.seconds, "{method} {path} {how}: {} s for {bytes} bytes", cost.seconds);
    }
    assert_eq!(service.get("/healthz").await.0, 200);
    println!("{table}");
}

/// What a request of `bytes` bytes may take, where a plain one of its path takes `plain` and to embed a token `a_token` seconds.
fn most(plain: Cost, bytes: u64, a_token: f64) -> Cost {
    Cost {
        memory: 2 * plain.memory + MOST_BYTES + MOST_BYTES_PER_BYTE * bytes,
        seconds: 2.0 * plain.seconds + MOST_SECONDS + MOST_TOKENS_PER_BYTE * a_token * bytes as f64,
    }
}

/// Seconds of processor time that embedding a token takes here and now, in passages as documents are cut into: the most of three.
async fn seconds_a_token(service: &Service, folder: &Folder) -> f64 {
    // Each of these characters is a token.
    let passage = "!?;:,.".repeat(40);
    let text = json!({ "input": vec![&passage; 16] }).to_string();
    let embeddings =
        Request { method: "POST", route: EMBEDDINGS.into(), path: EMBEDDINGS.into(), text, how: "measure".into() };
    let mut most = 0.0_f64;
    for _ in 0..3 {
        let (status, cost) = send(service, folder, &embeddings).await;
        assert_eq!(status, 200);
        most = most.max(cost.seconds / (16 * passage.len()) as f64);
    }
    println!("a token is embedded in {:.0} us of processor time", most * 1e6);
    most
}

/// The status of the answer, 0 where it did not come in time; what it took.
async fn send(service: &Service, folder: &Folder, request: &Request) -> (u16, Cost) {
    let Request { method, path, text, how, .. } = request;
    let client = reqwest::Client::new();
    let mut call = client.request(method.parse().unwrap(), service.url(path)).timeout(process::PATIENCE);
    if path.starts_with("/mcp") {
        call = call.header("accept", "application/json, text/event-stream");
    }
    let call = call.header("content-type", "application/json").header("x-ragstone-token", folder.token());
    let costs = Costs::begin(service.pid());
    let status = match call.body(text.clone()).send().await {
        Ok(response) => {
            let status = response.status().as_u16();
            // An answer that is told as it comes may take its time.
            drop(response.bytes().await);
            status
        }
        Err(error) if error.is_timeout() => 0,
        Err(error) => panic!("{method} {path} {how}: {error}"),
    };
    (status, costs.end())
}
