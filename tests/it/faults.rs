//! A disk that stops obeying while the service runs: its answers stay what they are.

use serde_json::{Value, json};

use crate::cache::settle;
use crate::harness::{Folder, Service, WORLD};

/// The disk is the only place to reuse anything from.
const DISK_ONLY: [&str; 6] = ["--set", "host_bytes=0", "--set", "device_cache=false", "--set", "kv_admission=always"];

async fn ask(service: &Service) -> (String, Value) {
    let body = json!({
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "temperature": 0, "max_tokens": 8,
        "ragstone": { "collection": "world", "top_k": 3, "reuse": "exact" },
    });
    let answer = service.ask("/v1/chat/completions", &body).await;
    let report = answer["ragstone"]["report"].clone();
    (answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), report)
}

/// Reads, rows, writes and deletions are refused from some moment on, as they are when a permission is lost.
#[tokio::test]
async fn a_disk_that_may_not_be_touched_any_more_changes_no_answer() {
    let folder = Folder::new();
    let lost = ["read_row", "read_frame", "before_write", "delete"]
        .map(|point| format!("disk.{point}=error:unavailable@40"))
        .join(";");
    let service = folder.serve_with(&DISK_ONLY, &[("RAGSTONE_FAILPOINTS", &lost)]).await;
    service.add("world", WORLD).await;
    let (answer, report) = ask(&service).await;
    assert_eq!(report["tokens"]["exact"], 0, "{report}");
    settle(&service).await;
    let (mut reused, mut late_misses) = (0, 0);
    for _ in 0..40 {
        let (same, report) = ask(&service).await;
        assert_eq!(same, answer, "{report}");
        reused += report["tokens"]["exact"].as_u64().unwrap();
        late_misses += report["late_misses"].as_u64().unwrap();
    }
    settle(&service).await;
    let store = service.get("/v1/cache/status").await.1["store"].clone();
    assert!(reused > 0, "it was reused before: {store}");
    assert!(late_misses > 0 && store["late_misses"] == late_misses, "{late_misses} {store}");
    assert!(store["disk"]["failed"].as_u64().unwrap() >= late_misses, "{store}");
    assert_eq!(ask(&service).await.1["tokens"]["exact"], 0, "nothing of the disk is of use any more");
}
