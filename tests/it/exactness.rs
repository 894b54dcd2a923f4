//! With trained weights: an answer and its log-probabilities have the same bits alone, among others, from stored KV, after leaving the device for
//! others, after a restart, and with drafts.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};
use crate::outside::from_outside;

/// What the prompts are about, and what they go on with.
const TEXT: &str = "The ferry Marigold leaves Tarn harbour at a quarter past seven every morning, and comes back at six. Its captain is Elka Dorman, who \
                    was born in Orvik and has sailed since she was twelve. A ticket to the island costs four crowns; children under six travel free, and \
                    so do dogs that can be carried. In winter the ferry leaves an hour later, when the ice allows it, and the ticket costs five crowns.";
const ENDS: [&str; 6] = [
    "The same text once more: The ferry Marigold",
    "In short:",
    "The captain's name is",
    "A ticket to the island costs",
    "The ferry leaves at a quarter past seven",
    "What a child of five pays:",
];

/// Greedily, and drawn.
fn asked(index: usize, reuse: &str, drafts: u64) -> Value {
    json!({
        "prompt": format!("{TEXT}\n\n{}", ENDS[index]), "max_tokens": 40, "ignore_eos": true, "logprobs": 5,
        "temperature": if index.is_multiple_of(2) { 0.0 } else { 1.0 }, "seed": index,
        "speculative.n_max": drafts, "ragstone": { "reuse": reuse },
    })
}

async fn ask(service: &Service, body: &Value) -> Value {
    service.ask("/v1/completions", body).await
}

/// How many tokens of the prompts came from stored KV.
fn reused(answers: &[Value]) -> u64 {
    answers.iter().map(|answer| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()).sum()
}

/// How many tokens of drafts were right.
fn accepted(answers: &[Value]) -> u64 {
    answers.iter().filter_map(|answer| answer["ragstone"]["report"]["drafts"]["accepted"].as_u64()).sum()
}

fn assert_same(answers: &[Value], expected: &[Value], how: &str) {
    assert_eq!(answers.len(), expected.len());
    for (index, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        assert_eq!(answer["choices"], expected["choices"], "{how}: prompt {index}");
    }
}

/// All prompts at once.
async fn together(service: &Service, reuse: &str, drafts: u64) -> Vec<Value> {
    let bodies: Vec<Value> = (0..ENDS.len()).map(|index| asked(index, reuse, drafts)).collect();
    join_all(bodies.iter().map(|body| ask(service, body))).await
}

#[tokio::test]
async fn a_trained_models_answers_have_the_same_bits_however_they_are_computed() {
    let Some(model) = from_outside("MODEL_TEST_FILE", "GGUF file of the default model") else { return };
    let model = model.to_str().unwrap();
    let folder = Folder::new();
    let serve = async |device_bytes: &str| {
        let small = ["--set", "calibrate_when_idle=false", "--set", device_bytes];
        folder.serve(&[&["--model", model, "--offline"], &small[..]].concat()).await
    };
    let preemptions =
        async |service: &Service| service.get("/v1/cache/status").await.1["device"]["preemptions"].as_u64().unwrap();
    let service = serve("device_bytes=512000000").await;
    let mut alone = Vec::new();
    for index in 0..ENDS.len() {
        alone.push(ask(&service, &asked(index, "off", 0)).await);
    }
    assert_eq!((reused(&alone), accepted(&alone)), (0, 0));
    assert_same(&together(&service, "off", 0).await, &alone, "batched");
    let answers = together(&service, "off", 7).await;
    assert_same(&answers, &alone, "batched, with drafts");
    assert!(accepted(&answers) > 0, "no draft was right");
    // What the first of these stores is used by the second.
    let first = together(&service, "exact", 0).await;
    assert_same(&first, &alone, "stored");
    let answers = together(&service, "exact", 7).await;
    assert_same(&answers, &alone, "reused");
    assert!(reused(&answers) > 0);
    assert_eq!(preemptions(&service).await, 0);
    assert_eq!(service.stop(), 0);
    // Room for less than half of them.
    let service = serve("device_bytes=10000000").await;
    let answers = together(&service, "exact", 0).await;
    assert_same(&answers, &alone, "restarted");
    assert!(reused(&answers) > 0);
    assert_same(&together(&service, "off", 7).await, &alone, "preempted, with drafts");
    assert_same(&together(&service, "off", 0).await, &alone, "preempted");
    assert!(preemptions(&service).await > 0);
    assert_eq!(service.stop(), 0);
}
