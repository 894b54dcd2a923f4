//! Requests and documents that are wrong: each ends in one clear message in OpenAI's error shape, and nothing else suffers.

use serde_json::{Value, json};

use crate::harness::{Folder, WORLD, error_message};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn hello() -> Value {
    json!([{ "role": "user", "content": "Hello" }])
}

#[tokio::test]
async fn bodies_that_are_no_requests() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_bytes=20000"]).await;
    let bodies: [(&[u8], u16, &str); 6] = [
        (b"", 400, "empty"),
        (b"{\"messages\":", 400, "not valid JSON"),
        (b"[]", 400, "JSON object"),
        (b"{\"messages\": \"\xff\xfe\"}", 400, "UTF-8"),
        (b"{\"messages\": \"\\ud8\"}", 400, "not valid JSON"),
        (&[b' '; 30_000], 413, "20000 bytes"),
    ];
    for path in [CHAT, TEXT, "/v1/embeddings", "/v1/collections/c/documents", "/v1/collections/c/search"] {
        for (body, status, words) in bodies {
            let (answered, error) = service.post_bytes(path, body).await;
            assert_eq!(answered, status, "{path} {error}");
            assert!(error_message(&error).contains(words), "{path} {error}");
        }
    }
    // Nothing was lost.
    service.ask(CHAT, &json!({ "messages": hello(), "max_tokens": 2 })).await;
}

#[tokio::test]
async fn fields_that_are_wrong_are_named() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let chat = [
        (json!({}), "messages"),
        (json!({ "messages": [] }), ""),
        (json!({ "messages": [{ "role": "robot", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }), "messages[0].content"),
        (json!({ "messages": hello(), "n": 0 }), "n"),
        (json!({ "messages": hello(), "tools": [{ "type": "function" }] }), "tools"),
        (json!({ "messages": hello(), "response_format": { "type": "xml" } }), "response_format"),
        (json!({ "messages": hello(), "temperature": "hot" }), "temperature"),
        (json!({ "messages": hello(), "temperature": 9 }), "temperature"),
        (json!({ "messages": hello(), "top_p": 1.1 }), "top_p"),
        (json!({ "messages": hello(), "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": hello(), "max_tokens": -2 }), "max_tokens"),
        (json!({ "messages": hello(), "stop": [""] }), "stop"),
        (json!({ "messages": hello(), "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "messages": hello(), "ragstone": { "colection": "x" } }), "ragstone"),
        (json!({ "messages": hello(), "ragstone": { "collection": "x", "top_k": 0 } }), "ragstone.top_k"),
        (json!({ "messages": hello(), "ragstone": { "reuse": { "ratio": 2 } } }), "ragstone.reuse.ratio"),
        (json!({ "messages": hello(), "ragstone": { "reuse": "never" } }), "ragstone"),
        (json!({ "messages": [{ "role": "user", "content": " \n" }], "ragstone": { "collection": "x" } }), ""),
    ];
    let text = [
        (json!({}), "prompt"),
        (json!({ "prompt": [["a"]] }), "prompt"),
        (json!({ "prompt": { "a": 1 } }), "prompt"),
        (json!({ "prompt": "a", "suffix": "b" }), "suffix"),
        (json!({ "prompt": "a", "best_of": 3, "stream": true }), "best_of"),
        (json!({ "prompt": "a", "logprobs": 21 }), "logprobs"),
        (json!({ "prompt": "a", "ragstone": { "collection": "x" } }), "ragstone.collection"),
        (json!({ "prompt": [4_000_000_000_u32] }), ""),
    ];
    let all = chat.iter().map(|case| (CHAT, case)).chain(text.iter().map(|case| (TEXT, case)));
    for (path, (body, param)) in all {
        let (status, error) = service.post(path, body).await;
        assert_eq!(status, 400, "{body} {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error", "{body} {error}");
        assert_eq!(error["error"]["param"].as_str().unwrap_or_default(), *param, "{body} {error}");
        assert!(error_message(&error).len() > 10, "{error}");
    }
    let (status, error) = service.post(CHAT, &json!({ "model": "gpt-9", "messages": hello() })).await;
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn paths_methods_and_collections_that_are_not_there() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let (status, error) = service.get("/v1/nothing").await;
    assert_eq!(status, 404);
    assert!(error_message(&error).contains("/v1/nothing"));
    let (status, error) = service.get(CHAT).await;
    assert_eq!((status, &error["error"]["param"]), (405, &Value::Null));
    assert!(error_message(&error).contains("POST"));
    let response = reqwest::get(service.url(CHAT)).await.unwrap();
    assert_eq!(response.headers()["allow"], "POST");
    let asked = json!({ "messages": hello(), "ragstone": { "collection": "nowhere" } });
    let (status, error) = service.post(CHAT, &asked).await;
    assert_eq!(status, 404);
    assert!(error_message(&error).contains("nowhere"));
    let (status, error) =
        service.post("/v1/collections/..%2F..%2Fx%20y/documents", &json!({ "documents": [{ "text": "a" }] })).await;
    assert_eq!(status, 400, "{error}");
    // Only who can read the data folder may have files of this machine read.
    let (status, error) = service.post("/v1/collections/c/ingest", &json!({ "paths": ["/etc/passwd"] })).await;
    assert_eq!((status, &error["error"]["code"]), (403, &json!("forbidden")));
    // A web page cannot post without the browser asking first.
    let page = reqwest::Client::new().post(service.url(CHAT)).header("origin", "http://evil.example").body("{}");
    assert_eq!(page.send().await.unwrap().status(), 403);
}

#[tokio::test]
async fn a_prompt_longer_than_the_context() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let long = "lantern ".repeat(20_000);
    for (path, body) in [
        (CHAT, json!({ "messages": [{ "role": "user", "content": long }] })),
        (TEXT, json!({ "prompt": vec![5; 5000] })),
    ] {
        let (status, error) = service.post(path, &body).await;
        assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")), "{error}");
    }
    service.ask(CHAT, &json!({ "messages": hello(), "max_tokens": 2 })).await;
}

#[tokio::test]
async fn files_that_cannot_be_read_are_named_and_the_others_are_ingested() {
    let folder = Folder::new();
    folder.write("corpus/good.txt", WORLD[0].1);
    folder.write("corpus/binary.txt", b"\x7fELF\x02\x01\x00\x00 no text");
    folder.write("corpus/broken.jsonl", "{\"text\": \"fine\"}\n{\"text\": ");
    folder.write("corpus/broken.pdf", "no pdf");
    folder.write("corpus/empty.md", "");
    let corpus = folder.path().join("corpus");
    let ran = folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "c", "--json"]);
    let ran = ran.succeeded();
    for words in ["binary.txt", "broken.jsonl", "broken.pdf", "line 2", "other documents are ingested"] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["documents_added"], 2, "the good line, too: {report}");
    let listed = folder.json(&["documents", "list", "--collection", "c", "--json"]);
    assert!(listed.as_array().unwrap().iter().any(|document| document["title"] == "good"), "{listed}");
    folder.run(&["ingest", "/nowhere/at/all", "--collection", "c"]).failed_with(&["/nowhere/at/all"]);
    // Where nothing at all is taken, that is the error, in one line.
    folder.write("lone.exe", "MZ");
    std::fs::create_dir(folder.path().join("bare")).unwrap();
    for (name, why) in [
        ("corpus/binary.txt", "not text"),
        ("corpus/empty.md", "it has no text"),
        ("lone.exe", "not a format that ragstone reads"),
        ("bare", "no file of a kind that ragstone reads is in"),
    ] {
        let path = folder.path().join(name);
        let ran = folder.run(&["ingest", path.to_str().unwrap(), "--collection", "c"]);
        let ran = ran.failed_with(&["nothing was taken: ", why, path.to_str().unwrap()]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (Some(1), "", 1), "{ran:?}");
    }
}

/// What other services take, and clients send.
#[tokio::test]
async fn what_clients_send_to_others_is_taken_here() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for (path, body) in [
        (CHAT, json!({ "messages": hello(), "max_tokens": -1, "stop": ["."] })),
        (CHAT, json!({ "messages": [{ "role": "system", "content": "Hello" }], "max_tokens": 2 })),
        (CHAT, json!({ "messages": [{ "role": "developer", "content": "Hello" }], "max_tokens": 2 })),
    ] {
        let (status, answer) = service.post(path, &body).await;
        assert_eq!(status, 200, "{body} {answer}");
    }
    let body = b"{\"messages\": [{\"role\": \"user\", \"content\": \"Hello \\ud83d\"}], \"max_tokens\": 2}";
    assert_eq!(service.post_bytes(CHAT, body).await.0, 200);
    let schema = json!({ "type": "object", "properties": { "a": { "const": 7 } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_object", "schema": schema });
    let (status, answer) = service
        .post(CHAT, &json!({ "messages": hello(), "max_tokens": 300, "temperature": 0, "response_format": format }))
        .await;
    let said = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    assert_eq!((status, serde_json::from_str::<Value>(said).ok()), (200, Some(json!({ "a": 7 }))), "{answer}");
}
