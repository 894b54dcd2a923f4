//! An engine elsewhere answers (`--engine`): a ragstone in the place of one, and one whose answers are written here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::harness::{Folder, Ran, Service, WORLD, error_message};

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "Who is the director of Calbet Works?";

/// A service whose answers come from `engine`.
async fn front(folder: &Folder, engine: &str, more: &[&str]) -> Service {
    let mut command = folder.serve_command(&[]);
    command.env_remove("RAGSTONE_MODEL").args(["--engine", engine]).args(more);
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    service
}

fn asked(question: &str, extension: Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": question }], "max_tokens": 12, "temperature": 0, "ragstone": extension })
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn an_engine_elsewhere_answers_over_our_passages() {
    let (behind, before) = (Folder::new(), Folder::new());
    let engine = behind.serve(&["--set", "calibrate_when_idle=false"]).await;
    let service = front(&before, &engine.address, &[]).await;
    service.add("world", WORLD).await;

    let body = asked(QUESTION, json!({ "collection": "world", "top_k": 2 }));
    let answer = service.ask(CHAT, &body).await;
    let citations = answer["ragstone"]["citations"].as_array().unwrap();
    assert_eq!(citations[0]["title"], "Calbet Works", "{answer}");
    // What the engine itself says to these passages in this order.
    let passages: String = citations
        .iter()
        .map(|hit| format!("Passage: {} | {}\n", hit["title"].as_str().unwrap(), hit["text"].as_str().unwrap()))
        .collect();
    let direct = json!({ "max_tokens": 12, "temperature": 0, "messages": [
        { "role": "system", "content": "Answer each question from the passages." },
        { "role": "user", "content": format!("{passages}Question: {QUESTION}\nAnswer:") },
    ] });
    let own = engine.ask(CHAT, &direct).await;
    assert_eq!((text(&answer), &answer["model"]), (text(&own), &own["model"]));
    assert_eq!(answer["usage"]["prompt_tokens"], own["usage"]["prompt_tokens"]);
    assert_eq!(answer["ragstone"]["report"]["engine"]["model"], "ragstone-demo");

    // It says that it had the prompt, and so do we; as whole answer and as stream.
    let again = service.ask(CHAT, &body).await;
    assert_eq!(text(&again), text(&answer));
    assert!(cached(&again) > 0, "{again}");
    assert_eq!(again["ragstone"]["report"]["engine"]["cached_tokens"], cached(&again));
    let mut streamed = body.clone();
    (streamed["stream"], streamed["stream_options"]) = (true.into(), json!({ "include_usage": true }));
    let events: Vec<Value> =
        service.stream(CHAT, &streamed).await.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let said: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, text(&answer));
    assert_eq!(events.last().unwrap()["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    assert!(events.iter().any(|event| event["ragstone"]["citations"][0]["title"] == "Calbet Works"), "{events:?}");

    // Every other way to ask, and what is watched.
    let plain =
        service.ask("/v1/completions", &json!({ "prompt": "Nine boats lay", "max_tokens": 4, "temperature": 0 })).await;
    let own =
        engine.ask("/v1/completions", &json!({ "prompt": "Nine boats lay", "max_tokens": 4, "temperature": 0 })).await;
    assert_eq!(plain["choices"][0]["text"], own["choices"][0]["text"]);
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let claude =
        service.ask("/v1/messages", &json!({ "model": "ragstone-demo", "messages": messages, "max_tokens": 4 })).await;
    assert_eq!(claude["content"][0]["type"], "text", "{claude}");
    let ollama =
        service.ask("/api/chat", &json!({ "model": "ragstone-demo", "messages": messages, "stream": false })).await;
    assert_eq!(ollama["message"]["role"], "assistant", "{ollama}");
    let response =
        service.ask("/v1/responses", &json!({ "input": QUESTION, "ragstone": { "collection": "world" } })).await;
    assert_eq!(response["status"], "completed", "{response}");
    let ran = before.run(&["ask", "--collection", "world", QUESTION]).succeeded();
    assert!(ran.stdout.contains("Calbet Works"), "{ran:?}");
    let (_, models) = service.get("/v1/models").await;
    assert_eq!(models["data"][0]["id"], "ragstone-demo");
    let plans = reqwest::get(service.url("/v1/plans")).await.unwrap().status();
    assert!(plans.as_u16() < 500);
    let metrics = reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("ragstone_engine_requests_total{outcome=\"taken\"}"), "{metrics}");
}

#[tokio::test]
async fn what_needs_the_model_in_this_process_is_refused() {
    let (behind, before) = (Folder::new(), Folder::new());
    let engine = behind.serve(&["--set", "calibrate_when_idle=false"]).await;
    let service = front(&before, &engine.address, &[]).await;
    service.add("world", WORLD).await;
    let chat = |fields: Value| {
        let mut body = asked(QUESTION, json!({ "collection": "world" }));
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    for (path, body) in [
        ("/tokenize", json!({ "prompt": "x" })),
        ("/detokenize", json!({ "tokens": [1] })),
        ("/v1/rerank", json!({ "query": "x", "documents": ["y"] })),
        (CHAT, chat(json!({ "prompt_logprobs": 1 }))),
        (CHAT, chat(json!({ "n": 2, "use_beam_search": true }))),
        (CHAT, chat(json!({ "ragstone": { "collection": "world", "rounds": 2 } }))),
        (CHAT, chat(json!({ "ragstone": { "collection": "world", "rerank": 3 } }))),
        ("/v1/completions", json!({ "prompt": "x", "logprobs": 2 })),
    ] {
        let (status, answer) = service.post(path, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(error_message(&answer).contains("engine"), "{path}: {answer}");
    }
    before.run(&["cache", "warm", "--collection", "world"]).failed_with(&["engine"]);
    before.run(&["calibrate"]).failed_with(&["engine"]);
    let mut both = before.ragstone(&["serve", "--engine", &engine.address, "--model", "demo"]);
    Ran::of(both.output().unwrap()).failed_with(&["engine_model"]);
}

#[tokio::test]
async fn passages_stand_in_the_order_that_the_engine_has() {
    let (behind, before) = (Folder::new(), Folder::new());
    let engine = behind.serve(&["--set", "calibrate_when_idle=false"]).await;
    let service = front(&before, &engine.address, &[]).await;
    let documents = |order: &[usize]| -> Value {
        order.iter().map(|index| json!({ "title": WORLD[*index].0, "text": WORLD[*index].1 })).collect()
    };
    let ask =
        |order: &[usize], arrange: bool| asked(QUESTION, json!({ "documents": documents(order), "arrange": arrange }));
    let first = service.ask(CHAT, &ask(&[0, 1, 2, 3], true)).await;
    assert_eq!(first["ragstone"]["report"]["arrangement"]["stored"], 0, "{first}");
    let as_it_came = service.ask(CHAT, &ask(&[3, 2, 1, 0], false)).await;
    let arranged = service.ask(CHAT, &ask(&[1, 2, 0, 3], true)).await;
    assert_eq!(arranged["ragstone"]["report"]["arrangement"]["stored"], 4, "{arranged}");
    let titles: Vec<&str> = arranged["ragstone"]["citations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hit| hit["title"].as_str().unwrap())
        .collect();
    assert!(
        titles == WORLD.iter().map(|(title, _)| *title).collect::<Vec<_>>() || titles[0] == WORLD[3].0,
        "{titles:?}"
    );
    assert!(cached(&arranged) > cached(&as_it_came), "{} and {}", cached(&arranged), cached(&as_it_came));
    // Another tenant's passages are nobody else's business.
    let mut other = ask(&[1, 2, 0, 3], true);
    other["ragstone"]["tenant"] = "other".into();
    let other = service.ask(CHAT, &other).await;
    assert_eq!(other["ragstone"]["report"]["arrangement"]["stored"], 0, "{other}");
}

#[tokio::test]
async fn an_engine_that_goes_and_comes_back() {
    let (behind, before) = (Folder::new(), Folder::new());
    let engine = behind.serve(&["--set", "calibrate_when_idle=false"]).await;
    let address = engine.address.clone();
    let service = front(&before, &address, &[]).await;
    service.add("world", WORLD).await;
    let body = asked(QUESTION, json!({ "collection": "world" }));
    let answer = service.ask(CHAT, &body).await;
    engine.kill();
    let (status, failed) = service.post(CHAT, &body).await;
    assert_eq!(status, 503, "{failed}");
    assert!(error_message(&failed).contains(&address), "{failed}");
    let found = service.ask("/v1/collections/world/search", &json!({ "query": QUESTION })).await;
    assert!(!found["data"].as_array().unwrap_or_else(|| panic!("{found}")).is_empty());
    let mut doctor = before.ragstone(&["doctor", "--engine", &address]);
    let doctor = Ran::of(doctor.env_remove("RAGSTONE_MODEL").output().unwrap());
    assert!(doctor.stdout.contains("PROBLEM  engine") && doctor.stdout.contains("does not answer"), "{doctor:?}");

    let listen = address.strip_prefix("http://").unwrap().to_owned();
    let mut again = behind.ragstone(&["serve", "--listen", &listen, "--set", "calibrate_when_idle=false"]);
    again.env("RAGSTONE_MODEL", "demo");
    let engine = Service::start_unready(again);
    engine.wait_until_ready().await;
    assert_eq!(text(&service.ask(CHAT, &body).await), text(&answer));
    // Who names the model need not wait for the engine to start.
    drop(engine);
    let other = Folder::new();
    let service = front(&other, &address, &["--set", "engine_model=ragstone-demo"]).await;
    assert_eq!(service.post(CHAT, &asked("x", json!({}))).await.0, 503);
    let third = Folder::new();
    let mut unnamed = third.serve_command(&[]);
    let unnamed = Ran::of(unnamed.env_remove("RAGSTONE_MODEL").args(["--engine", &address]).output().unwrap());
    unnamed.failed_with(&["does not answer", &address]);
}

#[tokio::test]
async fn of_two_engines_each_keeps_what_it_has_and_one_answers_for_both() {
    let (one, two, before) = (Folder::new(), Folder::new(), Folder::new());
    let settings = ["--set", "calibrate_when_idle=false"];
    let (first, second) = (one.serve(&settings).await, two.serve(&settings).await);
    let service = front(&before, &format!("{},{}", first.address, second.address), &[]).await;
    let about = |index: usize| {
        // Long enough that a cache of blocks is worth something.
        let text = format!("{} ", WORLD[index].1).repeat(6);
        asked(QUESTION, json!({ "documents": [{ "title": WORLD[index].0, "text": text }] }))
    };
    let number = |answer: &Value| {
        answer["ragstone"]["report"]["engine"]["number"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    let (a, b) = (service.ask(CHAT, &about(0)).await, service.ask(CHAT, &about(1)).await);
    assert_ne!(number(&a), number(&b), "equals take turns");
    for _ in 0..3 {
        let again = service.ask(CHAT, &about(0)).await;
        assert_eq!(number(&again), number(&a));
        assert!(cached(&again) > 0, "{again}");
        assert_eq!(number(&service.ask(CHAT, &about(1)).await), number(&b));
    }
    // The one that had it is gone: the other one answers.
    let (gone, left) = if number(&a) == 1 { (first, second) } else { (second, first) };
    gone.kill();
    let moved = service.ask(CHAT, &about(0)).await;
    assert_eq!((number(&moved), text(&moved)), (number(&b), text(&a)));
    drop(left);
    assert_eq!(service.post(CHAT, &about(0)).await.0, 503);
}

/// What is answered to one request for an answer.
struct Scripted {
    status: u16,
    body: String,
    /// Whether the connection then stays open and silent.
    hangs: bool,
}

/// An engine whose answers are written before it is asked.
struct Engine {
    address: String,
    script: Arc<Mutex<VecDeque<Scripted>>>,
    asked: Arc<Mutex<Vec<Value>>>,
    /// A connection that was to hang was closed by whoever asked.
    left: Arc<Notify>,
}

impl Engine {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let engine = Self { address, script: Arc::default(), asked: Arc::default(), left: Arc::default() };
        let (script, asked, left) = (engine.script.clone(), engine.asked.clone(), engine.left.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, script.clone(), asked.clone(), left.clone()));
            }
        });
        engine
    }

    fn say(&self, status: u16, body: impl Into<String>, hangs: bool) {
        self.script.lock().unwrap().push_back(Scripted { status, body: body.into(), hangs });
    }

    /// An answer of these events.
    fn events(&self, events: &[Value]) {
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        self.say(200, format!("{text}data: [DONE]\n\n"), false);
    }

    fn last_asked(&self) -> Value {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

async fn answer(
    mut stream: TcpStream,
    script: Arc<Mutex<VecDeque<Scripted>>>,
    asked: Arc<Mutex<Vec<Value>>>,
    left: Arc<Notify>,
) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let (head, length) = loop {
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        bytes.extend_from_slice(&buffer[..read]);
        let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let length = length.unwrap_or(0);
        if bytes.len() >= at + 4 + length {
            break (head, bytes[at + 4..at + 4 + length].to_vec());
        }
    };
    let scripted = if head.starts_with("get /v1/models") {
        let list = json!({ "object": "list", "data": [{ "id": "big", "owned_by": "vllm", "max_model_len": 4096 }] });
        Scripted { status: 200, body: list.to_string(), hangs: false }
    } else {
        asked.lock().unwrap().push(serde_json::from_slice(&length).unwrap());
        script.lock().unwrap().pop_front().unwrap()
    };
    let head =
        format!("HTTP/1.1 {} X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n", scripted.status);
    let sent = stream.write_all(format!("{head}{}", scripted.body).as_bytes()).await;
    if scripted.hangs && sent.is_ok() {
        // Ends when the other side does.
        while stream.read(&mut buffer).await.unwrap_or(0) > 0 {}
        left.notify_one();
    }
}

fn delta(delta: Value, finish: Option<&str>) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

#[tokio::test]
async fn calls_thoughts_and_what_was_asked_pass_through() {
    let (engine, folder) = (Engine::start().await, Folder::new());
    let service = front(&folder, &engine.address, &[]).await;
    assert_eq!(service.get("/v1/models").await.1["data"][0]["id"], "big");
    let tools = json!([{ "type": "function", "function": { "name": "find", "parameters": { "type": "object", "properties": { "q": { "type": "string" } } } } }]);
    engine.events(&[
        delta(json!({ "role": "assistant", "reasoning_content": "Let me look." }), None),
        delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "find", "arguments": "{\"q\": " } }] }), None),
        delta(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "\"tarn\"}" } }] }), Some("tool_calls")),
        json!({ "choices": [], "usage": { "prompt_tokens": 30, "completion_tokens": 9, "prompt_tokens_details": { "cached_tokens": 16 } } }),
    ]);
    let messages = json!([{ "role": "user", "content": "Find Tarn." }]);
    let answer = service
        .ask(CHAT, &json!({ "model": "big", "messages": messages, "tools": tools, "tool_choice": "required", "top_k": 7, "seed": 3 }))
        .await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Let me look.", "{answer}");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "find", "{answer}");
    let arguments: Value =
        serde_json::from_str(message["tool_calls"][0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!((&arguments["q"], &answer["choices"][0]["finish_reason"]), (&json!("tarn"), &json!("tool_calls")));
    assert_eq!((cached(&answer), &answer["usage"]["completion_tokens"]), (16, &json!(9)));
    let asked = engine.last_asked();
    assert_eq!((&asked["tool_choice"], &asked["top_k"], &asked["seed"]), (&json!("required"), &json!(7), &json!(3)));
    assert!(
        asked.get("temperature").is_none() && asked.get("max_tokens").is_none(),
        "the engine's own defaults: {asked}"
    );
    assert_eq!(asked["tools"], tools);

    // What the tool said goes back with the call.
    let call = &message["tool_calls"][0];
    engine.events(&[
        json!({ "choices": [{ "delta": { "content": "Tarn." }, "finish_reason": "stop",
            "logprobs": { "content": [{ "token": "Tarn", "logprob": -0.5, "bytes": [84, 97, 114, 110], "top_logprobs": [] },
                { "token": ".", "logprob": -0.1, "bytes": [46], "top_logprobs": [] }] } }] }),
    ]);
    let turns = json!([messages[0], { "role": "assistant", "tool_calls": [call] }, { "role": "tool", "tool_call_id": call["id"], "content": "a town" }]);
    let body = json!({ "messages": turns, "tools": tools, "logprobs": true, "response_format": { "type": "text" } });
    let answer = service.ask(CHAT, &body).await;
    assert_eq!(text(&answer), "Tarn.");
    assert_eq!(answer["choices"][0]["logprobs"]["content"][1]["token"], ".", "{answer}");
    let asked = engine.last_asked();
    assert_eq!(asked["messages"][1]["tool_calls"][0]["function"]["arguments"], "{\"q\":\"tarn\"}");
    assert_eq!(
        (&asked["messages"][2]["content"], &asked["messages"][2]["tool_call_id"]),
        (&json!("a town"), &call["id"])
    );
    // A stop text that the engine names, in the words of who asked; and no bound where none was meant.
    engine.events(&[
        json!({ "choices": [{ "delta": { "content": "Tarn" }, "finish_reason": "stop", "stop_reason": "</a>" }] }),
    ]);
    let body = json!({ "messages": messages, "max_tokens": 9, "stop_sequences": ["</a>"] });
    let answer = service.ask("/v1/messages", &body).await;
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!("</a>")));
    engine.events(&[delta(json!({ "content": "Tarn" }), Some("stop"))]);
    service.ask("/api/chat", &json!({ "messages": messages, "stream": false })).await;
    assert!(engine.last_asked().get("max_tokens").is_none(), "{}", engine.last_asked());
    // A call that was cut off is none.
    engine.events(&[
        delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "find", "arguments": "{\"q\": \"ta" } }] }), Some("length")),
    ]);
    let answer = service.ask(CHAT, &json!({ "messages": messages, "tools": tools, "max_tokens": 3 })).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["tool_calls"], &choice["finish_reason"]), (&Value::Null, &json!("length")));
    // Several answers are several requests, each with a seed of its own.
    for said in ["a", "b"] {
        engine.events(&[delta(json!({ "content": said }), Some("stop"))]);
    }
    let answer = service.ask(CHAT, &json!({ "messages": messages, "n": 2, "seed": 5 })).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2, "{answer}");
    let seeds: Vec<Value> =
        engine.asked.lock().unwrap().iter().rev().take(2).map(|asked| asked["seed"].clone()).collect();
    assert!(seeds.contains(&json!(5)) && seeds.contains(&json!(6)), "{seeds:?}");
}

#[tokio::test]
async fn what_an_engine_refuses_breaks_off_or_holds_up_is_one_clear_error() {
    let (engine, folder) = (Engine::start().await, Folder::new());
    let service = front(&folder, &engine.address, &[]).await;
    let error = |text: &str| json!({ "error": { "message": text, "type": "x" } }).to_string();
    let body = asked("x", json!({}));
    for (status, text, becomes, word) in [
        (400, error("This model's maximum context length is 4096 tokens"), 400, "4096"),
        (400, error("top_k must be positive"), 400, "top_k must be positive"),
        (401, error("invalid key"), 503, "engine_key"),
        (404, "{\"detail\":\"Not Found\"}".to_owned(), 503, "engine_model"),
        (429, error("queue is full"), 429, "queue is full"),
        (500, "<html>oops".to_owned(), 503, "oops"),
        (200, "data: {\"choices\":[{\"delta\":{}}]}\n\n".to_owned(), 503, "broke"),
        (200, "data: nonsense\n\n".to_owned(), 503, "JSON"),
    ] {
        engine.say(status, text, false);
        let (told, answer) = service.post(CHAT, &body).await;
        assert_eq!(told, becomes, "{answer}");
        assert!(error_message(&answer).contains(word), "{word}: {answer}");
    }
    // A stream that breaks off says so at its end, and never that it is done.
    let begun = format!("data: {}\n\n", delta(json!({ "content": "Half" }), None));
    engine.say(200, begun.clone(), false);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = service.stream(CHAT, &streamed).await;
    assert!(
        events.iter().any(|event| event.contains("Half")) && events.last().unwrap().contains("broke"),
        "{events:?}"
    );
    // One that says nothing more is left when its time is up, and its engine hears of it.
    engine.say(200, begun.clone(), true);
    let mut brief = body.clone();
    brief["ragstone"]["deadline_s"] = 1.into();
    let (status, answer) = service.post(CHAT, &brief).await;
    assert_eq!(status, 504, "{answer}");
    engine.left.notified().await;
    // Also where it stalls within an error.
    engine.say(503, "{\"error\": {", true);
    assert_eq!(service.post(CHAT, &brief).await.0, 504);
    engine.left.notified().await;
    // So it does when whoever asked leaves.
    engine.say(200, begun, true);
    let mut response = reqwest::Client::new().post(service.url(CHAT)).json(&streamed).send().await.unwrap();
    assert!(!response.chunk().await.unwrap().unwrap().is_empty());
    drop(response);
    engine.left.notified().await;
    engine.events(&[delta(json!({ "content": "fine" }), Some("stop"))]);
    assert_eq!(text(&service.ask(CHAT, &body).await), "fine");
}
