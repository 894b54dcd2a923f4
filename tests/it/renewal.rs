//! Another embedding model: collections are embedded again while they are searched.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, error_message};

const DOCUMENTS: usize = 260;
const RENEWAL: &str = "/v1/collections/c/renewal";
const SEARCH: &str = "/v1/collections/c/search";

/// A small embedding model of random weights.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/tests/fixtures/embedding/tiny")
}

fn lantern(number: usize) -> String {
    format!("Lantern{number} burns with a flame of colour{number}.")
}

async fn build(folder: &Folder, embedder: &Path) {
    let service = folder.serve(&["--embedder", embedder.to_str().unwrap()]).await;
    let documents: Vec<Value> =
        (0..DOCUMENTS).map(|number| json!({ "id": format!("d{number}"), "text": lantern(number) })).collect();
    service.ask("/v1/collections/c/documents", &json!({ "documents": documents })).await;
    ask(&service, 7).await;
    assert_eq!(service.get(RENEWAL).await.1["state"], "current");
    assert_eq!(service.stop(), 0);
}

/// Asks for an answer over the page that has the words, and says how many of the prompt's tokens were stored.
async fn ask(service: &Service, number: usize) -> u64 {
    let body = json!({
        "messages": [{ "role": "user", "content": lantern(number) }], "temperature": 0, "max_tokens": 2,
        "ragstone": { "collection": "c", "top_k": 1, "reuse": "exact" },
    });
    let answer = service.ask("/v1/chat/completions", &body).await;
    assert_eq!(answer["ragstone"]["citations"][0]["document_id"], format!("d{number}"), "{answer}");
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// The passage that was read before has its KV, and `fresh`, which nobody asked about, has none.
async fn keeps_kv(service: &Service, fresh: usize) {
    let (known, unknown) = (ask(service, 7).await, ask(service, fresh).await);
    assert!(known > unknown + 5, "{known} {unknown}");
}

async fn find(service: &Service, number: usize, mode: &str) {
    let found = service.ask(SEARCH, &json!({ "query": lantern(number), "top_k": 3, "mode": mode })).await;
    let ids: Vec<_> =
        found["data"].as_array().unwrap().iter().map(|hit| hit["passage"]["document_id"].clone()).collect();
    assert!(ids.contains(&json!(format!("d{number}"))), "{number} {mode} {ids:?}");
}

/// Searches until the collection is embedded again; how often it found it under way.
async fn search_until_current(service: &Service) -> usize {
    let (begun, mut under_way, mut number) = (Stopwatch::start(), 0, 0);
    loop {
        let (status, renewal) = service.get(RENEWAL).await;
        assert_eq!(status, 200, "{renewal}");
        for mode in ["vector", "full_text", "fused"] {
            find(service, number, mode).await;
            number = (number + 37) % 200;
        }
        match renewal["state"].as_str().unwrap() {
            "current" => return under_way,
            "waiting" | "running" => under_way += 1,
            other => panic!("{other}: {renewal}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{renewal}");
    }
}

#[tokio::test]
async fn a_collection_is_embedded_again_under_load_over_kills_and_keeps_its_kv() {
    let folder = Folder::new();
    build(&folder, &tiny()).await;
    // Killed in the middle, and as soon as it has taken the older one's place.
    for point in ["renewal.after_commit=kill@2", "renewal.switched=kill@1"] {
        let service = folder.serve_command(&[("RAGSTONE_FAILPOINTS", point)]);
        Service::start_unready(service).wait();
    }
    let service = folder.serve(&[]).await;
    assert_eq!(search_until_current(&service).await, 0, "it was done before the last kill");
    keeps_kv(&service, 20).await;
    assert_eq!(service.stop(), 0);

    // And back to the first, slowly, while somebody searches, adds and deletes.
    let slow = [("RAGSTONE_FAILPOINTS", "renewal.after_commit=delay:300")];
    let embedder = tiny();
    let service = folder.serve_with(&["--embedder", embedder.to_str().unwrap()], &slow).await;
    let (_, running) = service.get(RENEWAL).await;
    assert_eq!(running["words_only"], false, "{running}");
    service
        .ask("/v1/collections/c/documents", &json!({ "documents": [{ "id": "fresh", "text": "Poppies are blue." }] }))
        .await;
    let changed = json!({ "id": "d230", "text": "Lantern230 went out." });
    service.ask("/v1/collections/c/documents", &json!({ "documents": [changed] })).await;
    assert!(search_until_current(&service).await > 0);
    find(&service, 11, "vector").await;
    let found = service.ask(SEARCH, &json!({ "query": "Lantern230 went out.", "mode": "full_text", "top_k": 1 })).await;
    assert_eq!(found["data"][0]["passage"]["text"], "Lantern230 went out.");
    let (_, listed) = service.get("/v1/collections").await;
    assert_eq!(listed["data"][0]["documents"], DOCUMENTS + 1);
    keeps_kv(&service, 21).await;
    assert_eq!(service.stop(), 0);
}

#[tokio::test]
async fn it_can_be_cancelled_and_begun_again_and_words_serve_where_the_older_model_is_gone() {
    let folder = Folder::new();
    let own = folder.path().join("embedder");
    std::fs::create_dir(&own).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(tiny().join(file), own.join(file)).unwrap();
    }
    build(&folder, &own).await;
    let slow = [("RAGSTONE_FAILPOINTS", "renewal.after_commit=delay:2000")];
    let service = folder.serve_with(&[], &slow).await;
    let token = folder.token();
    let send = async |method: reqwest::Method| {
        let request = reqwest::Client::new().request(method, service.url(RENEWAL)).header("x-ragstone-token", &token);
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    assert_eq!(service.post(RENEWAL, &json!({})).await.0, 403, "for the owner");
    assert_eq!(send(reqwest::Method::DELETE).await["state"], "stale");
    find(&service, 5, "vector").await;
    assert_eq!(service.get("/v1/collections/nowhere/renewal").await.0, 404);
    assert_eq!(service.stop(), 0);

    // It stays cancelled.
    let service = folder.serve(&[]).await;
    assert_eq!(service.get(RENEWAL).await.1["state"], "stale");
    find(&service, 5, "vector").await;
    assert_eq!(service.stop(), 0);

    std::fs::remove_dir_all(&own).unwrap();
    let service = folder.serve(&[]).await;
    let (_, stale) = service.get(RENEWAL).await;
    assert_eq!((&stale["state"], &stale["words_only"]), (&json!("stale"), &json!(true)), "{stale}");
    let found = service.ask(SEARCH, &json!({ "query": lantern(9), "top_k": 1 })).await;
    assert_eq!((&found["words_only"], &found["data"][0]["passage"]["document_id"]), (&json!(true), &json!("d9")));
    keeps_kv(&service, 22).await;
    let fresh = json!({ "documents": [{ "id": "fresh", "text": "Poppies are blue." }] });
    let (status, error) = service.post("/v1/collections/c/documents", &fresh).await;
    assert!(status == 409 && error_message(&error).contains("ragstone collections reembed"), "{error}");
    assert_eq!(service.stop(), 0);

    let done = folder.json(&["collections", "reembed", "c", "--json"]);
    assert_eq!((&done["state"], &done["words_only"]), (&json!("current"), &json!(false)), "{done}");
    let service = folder.serve(&[]).await;
    service.ask("/v1/collections/c/documents", &fresh).await;
    find(&service, 9, "vector").await;
    keeps_kv(&service, 23).await;
}
