//! Nodes that share a bucket of 8-bit KV: what comes from there is blended, and never passed off as exact.

use serde_json::{Value, json};

use crate::cache::{cache, settle};
use crate::harness::{Folder, Service, WORLD};

/// A node on a folder of its own. Nothing hides what the bucket does: the device keeps nothing.
async fn node(folder: &Folder, bucket: &Folder) -> Service {
    let url = format!("object_url=file://{}", bucket.path().display());
    let set = [&*url, "object_codec=q8", "kv_admission=always", "device_cache=false"];
    let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
    let service = folder.serve(&arguments).await;
    service.add("world", WORLD).await;
    service
}

async fn ask(service: &Service, reuse: &str) -> (String, Value) {
    let body = json!({
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "temperature": 0, "max_tokens": 16,
        "ragstone": { "collection": "world", "top_k": 3, "reuse": reuse, "arrange": false },
    });
    let answer = service.ask("/v1/chat/completions", &body).await;
    let report = answer["ragstone"]["report"].clone();
    (answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), report)
}

/// Source and tier of each passage.
fn passages(report: &Value) -> Vec<(&str, Option<&str>)> {
    let segments = report["segments"].as_array().unwrap().iter().filter(|segment| segment["kind"] == "passage");
    segments.map(|segment| (segment["source"].as_str().unwrap(), segment["tier"].as_str())).collect()
}

#[tokio::test]
async fn eight_bits_of_the_bucket_are_blended_and_exact_reuse_computes() {
    let bucket = Folder::new();
    let [a, b, c] = [Folder::new(), Folder::new(), Folder::new()];
    let first = node(&a, &bucket).await;
    let (answer, report) = ask(&first, "exact").await;
    assert_eq!(report["tokens"]["exact"], 0, "{report}");
    settle(&first).await;
    assert!(!bucket.path().join("v1").exists(), "nothing exact is in the bucket");

    // Who wants exact reuse computes; the bits are those of the node that computed them first.
    let strict = node(&c, &bucket).await;
    let (same, report) = ask(&strict, "exact").await;
    assert_eq!(same, answer);
    assert_eq!((&report["tokens"]["exact"], &report["tokens"]["blended"]), (&json!(0), &json!(0)), "{report}");
    assert_eq!(report["loads"], json!([]), "{report}");

    let second = node(&b, &bucket).await;
    let (text, report) = ask(&second, "auto").await;
    assert!(!text.is_empty());
    assert_eq!(passages(&report), [("blend", Some("object")); 3], "{report}");
    assert_eq!((&report["tokens"]["exact"], &report["late_misses"]), (&json!(0), &json!(0)), "{report}");
    // How many are recomputed follows from what loading took on this machine.
    assert!(report["tokens"]["blended"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["loads"][0]["tier"], "object", "{report}");
    settle(&second).await;
    let store = second.get("/v1/cache/status").await.1["store"].clone();
    assert_eq!((&store["lossy_hits"], &store["promoted"]), (&json!(3), &json!(0)), "{store}");
    // What was blended is not kept; it was computed exactly once nobody waited.
    let (_, report) = ask(&second, "auto").await;
    let host = Some("host");
    assert_eq!(passages(&report), [("exact", host), ("blend", host), ("blend", host)], "{report}");
    // With all of it lossy, its exact mode answers what the first node answered.
    assert_eq!(ask(&second, "exact").await.0, answer);
    let report = cache(&b, &["verify", "--tier", "object"]);
    assert!(report["entries"].as_u64().unwrap() > 3 && report["damaged"] == json!([]), "{report}");
}
