//! Bounds before work: what one request can make the service do follows from the model's context, whatever it sends.

use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

fn chat(content: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 2 })
}

async fn refused(service: &Service, path: &str, body: &Value, code: Option<&str>) -> String {
    let (status, error) = service.post(path, body).await;
    assert_eq!((status, error["error"]["code"].as_str()), (400, code), "{error}");
    error_message(&error)
}

#[tokio::test]
async fn max_tokens_is_cut_to_what_the_context_leaves() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for wanted in [json!(1_000_000), json!(4_611_686_018_427_387_904_u64), json!(u64::MAX)] {
        let body = json!({ "prompt": vec![5; 4090], "max_tokens": wanted, "ignore_eos": true, "temperature": 0 });
        let answer = service.ask(TEXT, &body).await;
        assert_eq!(answer["usage"]["completion_tokens"], 6);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    let prompt = json!({ "prompt": vec![5; 4096] });
    assert!(refused(&service, TEXT, &prompt, Some("context_length_exceeded")).await.contains("4096"));
    // A device tier smaller than the context bounds it, too.
    let folder = Folder::new();
    let service = folder.serve(&["--set", "device_bytes=2MiB"]).await;
    let body = json!({ "prompt": vec![5; 1500], "max_tokens": 100_000, "ignore_eos": true });
    let answer = service.ask(TEXT, &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < 1000, "{answer}");
}

#[tokio::test]
async fn what_cannot_fit_is_refused_before_it_is_read() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let exceeded = Some("context_length_exceeded");
    let long = "</s>".repeat(2 << 20);
    let documents = |texts: Vec<&str>| {
        let documents: Vec<Value> = texts.iter().map(|text| json!({ "text": text })).collect();
        let mut body = chat("What?");
        body["ragstone"] = json!({ "documents": documents });
        body
    };
    let begun = Stopwatch::start();
    for (path, body) in [
        (CHAT, chat(&long)),
        (TEXT, json!({ "prompt": long })),
        (CHAT, documents(vec![&long])),
        (CHAT, documents(vec!["a"; 5000])),
        (CHAT, json!({ "messages": vec![json!({ "role": "user", "content": "a" }); 5000] })),
    ] {
        let message = refused(&service, path, &body, exceeded).await;
        assert!(message.contains("4096"), "{message}");
    }
    // 8 MiB each; tokenizing one of them takes seconds.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(refused(&service, TEXT, &json!({ "prompt": long }), exceeded).await.contains("bytes a token"));
}

/// The service's own answers stay quick beside somebody who sends what is slow to tokenize.
#[tokio::test]
async fn hostile_text_keeps_nobody_else_waiting() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let control = "</s>".repeat(50_000);
    let body = json!({ "input": [&control[..60_000], &control[..60_000], &control[..60_000]] });
    let hostile = |path: &'static str, body: Value| {
        let url = service.url(path);
        tokio::spawn(
            async move { reqwest::Client::new().post(url).json(&body).send().await.unwrap().status().as_u16() },
        )
    };
    let mut running = Vec::new();
    for _ in 0..4 {
        running.push(hostile(EMBEDDINGS, body.clone()));
        running.push(hostile(TEXT, json!({ "prompt": &control[..80_000], "max_tokens": 1 })));
        running.push(hostile(CHAT, chat(&control[..80_000])));
    }
    let mut slowest = Duration::ZERO;
    while running.iter().any(|request| !request.is_finished()) {
        let begun = Stopwatch::start();
        assert_eq!(service.get("/healthz").await.0, 200);
        slowest = slowest.max(begun.elapsed());
    }
    for request in running {
        assert!(matches!(request.await.unwrap(), 200 | 400), "an attack is answered as any other request");
    }
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}

#[tokio::test]
async fn embeddings_are_bounded() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "deadline_s=3", "--set", "max_queued=1", "--set", "threads=1"]).await;
    let long = "a".repeat((64 << 10) + 1);
    for (input, words) in
        [(json!(vec!["a"; 2049]), "2049 texts"), (json!([long]), "65536"), (json!(vec![&long[1..]; 33]), "2097152")]
    {
        let (status, error) = service.post(EMBEDDINGS, &json!({ "input": input })).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("input")), "{error}");
        assert!(error_message(&error).contains(words), "{error}");
    }
    // As much as is taken, which is more than three seconds of work: the deadline ends it, and meanwhile others are told to wait.
    let much = json!({ "input": vec!["lantern ".repeat(120); 2000] });
    let first = async {
        loop {
            // The other one's request may have the only place just now.
            let (status, error) = service.post(EMBEDDINGS, &much).await;
            if status != 429 {
                return (status, error);
            }
        }
    };
    let second = async {
        loop {
            let (status, error) = service.post(EMBEDDINGS, &json!({ "input": "a" })).await;
            if status == 429 {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ((status, error), shed) = tokio::join!(first, second);
    assert_eq!((status, &error["error"]["code"]), (504, &json!("deadline_exceeded")), "{error}");
    assert_eq!(shed["error"]["code"], "rate_limit_exceeded");
    // Its place is free again, and tokens are counted as the embedding model counts them.
    let answer = service.ask(EMBEDDINGS, &json!({ "input": ["a lute", "[SEP]"] })).await;
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() >= 6, "{answer}");
}

#[tokio::test]
async fn names_stops_and_queries_are_bounded() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", &[("A", "A lamp.")]).await;
    for tenant in ["x".repeat(65), " a".into(), "a\u{1b}[2J".into(), "é".into(), "a\n".into()] {
        let mut body = chat("Hi");
        body["ragstone"] = json!({ "tenant": tenant });
        let (status, error) = service.post(CHAT, &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("ragstone.tenant")), "{error}");
        // The command goes the same way as the request.
        folder
            .run(&["cache", "warm", "--collection", "world", "--dry-run", "--tenant", &tenant])
            .failed_with(&["tenant"]);
    }
    let mut body = chat("Hi");
    body["ragstone"] = json!({ "tenant": "x".repeat(64) });
    service.ask(CHAT, &body).await;
    for stop in [json!(vec!["a"; 17]), json!(["a".repeat(1025)])] {
        let mut body = chat("Hi");
        body["stop"] = stop;
        let (status, error) = service.post(CHAT, &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("stop")), "{error}");
    }
    let search = "/v1/collections/world/search";
    let (status, error) = service.post(search, &json!({ "query": "lamp ".repeat(2000) })).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("query")), "{error}");
    service.ask(search, &json!({ "query": "lamp ".repeat(1600) })).await;
    let name = format!("/v1/collections/{}/documents", "x".repeat(65));
    assert_eq!(service.post(&name, &json!({ "documents": [{ "text": "a" }] })).await.0, 400);
}

/// Numbers at the ends of their types, one after the other: an answer or a clear refusal, never a 500.
#[tokio::test]
async fn extreme_numbers_are_answered_or_refused() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let numbers = [
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(1e300),
        json!(-1e300),
        json!(1e-300),
        json!("x"),
    ];
    for field in [
        "max_tokens",
        "min_tokens",
        "top_k",
        "top_p",
        "min_p",
        "temperature",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "seed",
        "logprobs",
        "n",
        "best_of",
    ] {
        for number in &numbers {
            let mut body = json!({ "prompt": [5, 6], "stop_token_ids": (0..1000).collect::<Vec<_>>() });
            body["max_tokens"] = json!(2);
            body[field] = number.clone();
            let (status, error) = service.post(TEXT, &body).await;
            assert!(matches!(status, 200 | 400), "{field} {number} {error}");
        }
    }
    for (field, number) in
        ["top_k", "deadline_s"].iter().flat_map(|field| numbers.iter().map(move |number| (field, number)))
    {
        let mut body = chat("Hi");
        body["ragstone"] = json!({ *field: number, "documents": [{ "text": "a" }] });
        let (status, error) = service.post(CHAT, &body).await;
        assert!(matches!(status, 200 | 400), "{field} {number} {error}");
    }
}
