//! Nodes that share a bucket.

use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD};
use crate::s3_server::S3Server;

/// A bucket that nodes share.
pub struct Bucket(S3Server);

impl Bucket {
    pub fn start() -> Option<Self> {
        S3Server::start().map(Self)
    }

    /// The address of one of its objects, for requests that say who they are.
    pub fn address(&self, path: &str) -> String {
        format!("{}/bucket/{path}", self.0.endpoint)
    }

    /// A node on a folder of its own, with the sample documents, that keeps and loads everything.
    async fn node(&self, folder: &Folder) -> Service {
        self.node_with(folder, &["--set", "kv_admission=always"]).await
    }

    pub async fn node_with(&self, folder: &Folder, more: &[&str]) -> Service {
        let endpoint = format!("object_options.endpoint={}", self.0.endpoint);
        // Without the device's cache, whose hits would hide the slower tiers'.
        let no_cache = "device_cache=false";
        let arguments = [&["--set", "object_url=s3://bucket/kv", "--set", &endpoint, "--set", no_cache], more].concat();
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        let service = folder.serve_with(&arguments, &variables).await;
        service.add("world", WORLD).await;
        service
    }
}

pub async fn ask(service: &Service) -> (Value, Value) {
    let body = json!({
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "temperature": 0, "max_tokens": 16,
        "ragstone": { "collection": "world", "top_k": 4, "reuse": "exact" },
    });
    let answer = service.ask("/v1/chat/completions", &body).await;
    (answer["choices"][0]["message"]["content"].clone(), answer["ragstone"]["report"].clone())
}

/// The tier of every load; there must be some.
pub fn tiers(report: &Value) -> Vec<&str> {
    let loads = report["loads"].as_array().unwrap();
    assert!(!loads.is_empty(), "{report}");
    loads.iter().map(|load| load["tier"].as_str().unwrap()).collect()
}

pub async fn store_status(service: &Service) -> Value {
    service.get("/v1/cache/status").await.1["store"].clone()
}

/// Waits until everything that is to go to the bucket is there.
pub async fn uploaded(service: &Service) {
    let begun = Stopwatch::start();
    loop {
        let status = store_status(service).await;
        let waiting = &status["to_object"]["entries"];
        if status["object"]["entries"].as_u64().unwrap() > 0 && waiting == &json!(0) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_node_with_an_empty_disk_answers_from_the_bucket() {
    let Some(bucket) = Bucket::start() else { return };
    let (a, b, again) = (Folder::new(), Folder::new(), Folder::new());
    let first = bucket.node(&a).await;
    let (answer, report) = ask(&first).await;
    assert_eq!(report["tokens"]["exact"], 0, "{report}");
    uploaded(&first).await;
    for folder in [&b, &again] {
        let node = bucket.node(folder).await;
        let (same, report) = ask(&node).await;
        assert_eq!(same, answer);
        assert!(tiers(&report).iter().all(|tier| *tier == "object"), "{report}");
        assert!(report["tokens"]["exact"].as_u64().unwrap() > 50, "{report}");
        let (same, report) = ask(&node).await;
        assert_eq!(same, answer);
        assert!(tiers(&report).iter().all(|tier| *tier == "host"), "promoted: {report}");
        node.kill();
    }
    let status = first.get("/v1/cache/status").await.1.to_string();
    assert!(!status.contains("hunter2"), "{status}");
}

/// As the service comes: a node that has timed no load yet takes what the bucket has; later ones load what is worth it. Answers are
/// the same either way.
#[tokio::test]
async fn with_the_default_admission_the_bucket_still_serves() {
    let Some(bucket) = Bucket::start() else { return };
    let (a, b) = (Folder::new(), Folder::new());
    let first = bucket.node_with(&a, &[]).await;
    let (answer, _) = ask(&first).await;
    uploaded(&first).await;
    let second = bucket.node_with(&b, &[]).await;
    let (same, report) = ask(&second).await;
    assert_eq!(same, answer);
    assert!(tiers(&report).contains(&"object") && report["tokens"]["exact"].as_u64().unwrap() > 50, "{report}");
    for _ in 0..5 {
        assert_eq!(ask(&second).await.0, answer);
    }
    assert_eq!(second.stop(), 0);
    let again = bucket.node_with(&b, &[]).await;
    let (same, report) = ask(&again).await;
    assert_eq!(same, answer);
    assert!(report["tokens"]["exact"].as_u64().unwrap() > 50, "from the disk, or from the bucket: {report}");
}

#[tokio::test]
async fn a_bucket_that_goes_away_costs_reuse_and_nothing_else() {
    let Some(bucket) = Bucket::start() else { return };
    let (a, b) = (Folder::new(), Folder::new());
    let first = bucket.node(&a).await;
    let (answer, _) = ask(&first).await;
    uploaded(&first).await;
    let second = bucket.node(&b).await;
    drop(bucket);
    let (same, report) = ask(&second).await;
    assert_eq!((same, &report["tokens"]["exact"]), (answer, &json!(0)), "{report}");
    assert!(store_status(&second).await["object"]["failed"].as_u64().unwrap() > 0);
}
