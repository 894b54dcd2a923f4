//! `kill -9` at any instant: the next start is clean, ingest goes on, the answer is the same.

use std::time::Duration;

use futures::StreamExt;
use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};

/// More documents than fit into one commit.
const DOCUMENTS: usize = 100;

fn corpus(folder: &Folder) -> String {
    for number in 0..DOCUMENTS {
        folder.write(
            &format!("corpus/{number:03}.txt"),
            format!("Lantern {number} burns with a flame of colour {number}."),
        );
    }
    folder.path().join("corpus").to_str().unwrap().to_owned()
}

async fn wait_for_documents(service: &Service) {
    let begun = Stopwatch::start();
    loop {
        let (_, collections) = service.get("/v1/collections").await;
        if collections["data"][0]["documents"] == DOCUMENTS {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{collections}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_ingest_that_was_killed_goes_on_at_the_next_start() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let mut command = folder.ragstone(&["ingest", &corpus, "--collection", "c"]);
    let output = command.env("RAGSTONE_FAILPOINTS", "ingest.after_commit=kill@2").output().unwrap();
    assert_eq!(output.status.code(), None, "not killed: {output:?}");
    // Nobody asks again: the service goes on by itself.
    let service = folder.serve(&[]).await;
    wait_for_documents(&service).await;
    let again = folder.json(&["ingest", &corpus, "--collection", "c", "--json"]);
    assert_eq!((&again["documents_unchanged"], &again["documents_added"]), (&json!(DOCUMENTS), &json!(0)));
}

#[tokio::test]
async fn a_service_killed_while_it_ingests_goes_on_when_the_command_is_repeated() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", "ingest.after_commit=kill@1")]).await;
    let ran = folder.run(&["ingest", &corpus, "--collection", "c"]).failed_with(&["again"]);
    assert_eq!(ran.code, Some(1));
    service.wait();
    let done = folder.json(&["ingest", &corpus, "--collection", "c", "--json"]);
    let (added, unchanged) = (done["documents_added"].as_u64().unwrap(), done["documents_unchanged"].as_u64().unwrap());
    assert_eq!((added + unchanged) as usize, DOCUMENTS, "{done}");
    assert!(unchanged > 0, "what was committed is kept: {done}");
}

#[tokio::test]
async fn a_service_killed_while_it_answers_gives_the_same_answer_after_the_next_start() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("c", &[("Lamp", "The lamp of Orvik is made of green glass."), ("Mill", "The mill grinds rye.")]).await;
    let body = |stream: bool| {
        json!({
            "messages": [{ "role": "user", "content": "What is the lamp made of?" }],
            "temperature": 0, "max_tokens": 600, "stream": stream, "ragstone": { "collection": "c" },
        })
    };
    let whole = service.ask("/v1/chat/completions", &body(false)).await;
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    let request = reqwest::Client::new().post(service.url("/v1/chat/completions")).json(&body(true));
    let mut events = request.send().await.unwrap().bytes_stream();
    assert!(events.next().await.unwrap().is_ok());
    service.kill();
    while let Some(Ok(_)) = events.next().await {}
    let service = folder.serve(&[]).await;
    assert_eq!(text(&service.ask("/v1/chat/completions", &body(false)).await), text(&whole));
}
