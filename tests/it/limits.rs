//! Bounds: overload is shed with 429, a deadline ends a request with 504, a caller that goes away frees its place.

use std::time::Duration;

use futures::StreamExt;
use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};

const TEXT: &str = "/v1/completions";

/// As long as the model's context allows: greedy, on tokens without sense, the embedded model repeats itself for ever.
fn endless() -> Value {
    json!({ "prompt": [5, 6], "max_tokens": 4000, "temperature": 0, "stream": true })
}

/// What was cancelled frees its place soon.
async fn wait_for_an_answer(service: &Service) {
    let begun = Stopwatch::start();
    while service.post(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).await.0 != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the place was not freed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn start(service: &Service) -> reqwest::Response {
    reqwest::Client::new().post(service.url(TEXT)).json(&endless()).send().await.unwrap()
}

/// How many answers are being made.
async fn decoding(service: &Service) -> u64 {
    service.get("/v1/cache/status").await.1["device"]["sequences"]["decoding"].as_u64().unwrap()
}

#[tokio::test]
async fn overload_is_shed_and_a_caller_that_leaves_frees_its_place() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "max_queued=1"]).await;
    let mut running = start(&service).await.bytes_stream();
    assert!(running.next().await.unwrap().is_ok());
    let refused = reqwest::Client::new().post(service.url(TEXT)).json(&json!({ "prompt": "a" })).send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["code"], "rate_limit_exceeded");
    drop(running);
    wait_for_an_answer(&service).await;
    // Also one that waits for whole answers: several, so that they are still being made when its place is seen to be taken.
    let mut whole = endless();
    whole["stream"] = json!(false);
    whole["n"] = json!(8);
    let impatient = tokio::spawn(reqwest::Client::new().post(service.url(TEXT)).json(&whole).send());
    while decoding(&service).await == 0 {
        assert!(!impatient.is_finished(), "the answers came before they were seen to be made");
    }
    impatient.abort();
    wait_for_an_answer(&service).await;
}

#[tokio::test]
async fn a_deadline_ends_a_request() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "deadline_s=1"]).await;
    // One answer of this length takes longer than the deadline, or several beside each other do.
    let body = json!({ "prompt": vec![5; 2000], "max_tokens": 2000, "temperature": 0 });
    let all = (0..48).map(|_| service.post(TEXT, &body));
    let answers = futures::future::join_all(all).await;
    let (status, error) = answers.iter().find(|(status, _)| *status != 200).expect("no deadline passed");
    assert_eq!((*status, &error["error"]["code"]), (504, &json!("deadline_exceeded")), "{error}");
    // Nothing of what was given up is in the way: neither its places nor its work.
    service.ask(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).await;
}

#[tokio::test]
async fn a_stop_lets_the_running_answer_end() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let body = json!({ "prompt": [5, 6], "max_tokens": 200, "temperature": 1, "stream": true });
    let mut running = reqwest::Client::new().post(service.url(TEXT)).json(&body).send().await.unwrap().bytes_stream();
    let mut text = running.next().await.unwrap().unwrap().to_vec();
    let stopped = tokio::task::spawn_blocking(|| service.stop());
    while let Some(bytes) = running.next().await {
        text.extend_from_slice(&bytes.unwrap());
    }
    assert!(String::from_utf8(text).unwrap().trim_end().ends_with("[DONE]"));
    assert_eq!(stopped.await.unwrap(), 0);
}
