//! Two nodes on one corpus: what one removes, the other forgets.

use ragstone_corpus::Scope;
use ragstone_storage::key::SegmentDigest;
use ragstone_storage::tier::Tier;

use super::*;
use crate::answer::pipeline::tests::{answer, open_with, question};
use crate::question::{Context, Input, Reuse};
use crate::settings::Settings;
use ragstone_kernels::chat::ChatMessage;
use ragstone_storage::store::AdmissionRule;

fn settings(name: &str) -> Settings {
    Settings {
        corpus_url: Some(format!("memory://{name}/corpus")),
        corpus_interval_ms: 100,
        disk_bytes: 64 << 20,
        host_bytes: 64 << 20,
        kv_admission: AdmissionRule::Always,
        ..Settings::default()
    }
}

/// Entries of segments in host memory, on disk and on the device.
fn stored(ragstone: &Ragstone, segments: &[SegmentDigest]) -> usize {
    let mut count = 0;
    let mut each = |entry: ragstone_storage::store::EntryInfo| {
        count += usize::from(segments.contains(&entry.summary.segment));
    };
    ragstone.store().entries(&[Tier::Device, Tier::Host, Tier::Disk], &mut each).unwrap();
    count
}

async fn ask(ragstone: &Ragstone) -> Vec<String> {
    ask_over(ragstone, "What is the lamp of Orvik?", 2).await
}

async fn ask_over(ragstone: &Ragstone, words: &str, passages: usize) -> Vec<String> {
    let context = Context { collection: Some("c".into()), top_k: Some(passages), ..Context::default() };
    let messages = vec![ChatMessage::new("user", words)];
    let input = Input::Chat { messages, tools: Vec::new(), thinks: None, context: Some(context) };
    let answer = answer(ragstone, question(input, Reuse::Auto, 2)).await;
    answer.citations.iter().map(|citation| citation.document_id.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_one_node_removes_leaves_every_tier_of_another() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let envs = [Env::seeded(1, 0), Env::seeded(2, 0)];
    let a = open_with(&folders[0], "llama_3_2", settings("two-nodes"), &envs[0]).await;
    let b = open_with(&folders[1], "llama_3_2", settings("two-nodes"), &envs[1]).await;
    until(|| a.is_up_to_date() && b.is_up_to_date()).await;
    let all = documents(&["lamp", "mill"]);
    a.library().upsert("c", all.clone(), (None, Caller::default()), || true).await.unwrap();
    for node in [&a, &b] {
        assert_eq!(ask(node).await.len(), 2);
    }
    let lamp = all[0].identity().unwrap();
    let scope = Scope { collection: Some("c"), document: Some(&lamp) };
    let segments: Vec<SegmentDigest> = b.library().segments(scope).await.unwrap().into_iter().collect();
    assert!(stored(&a, &segments) > 0 && stored(&b, &segments) > 0);
    assert_eq!(a.library().delete_document("c", &lamp, None).await.unwrap().passages_removed, 1);
    assert_eq!(stored(&a, &segments), 0);
    until(|| stored(&b, &segments) == 0).await;
    assert_eq!(ask(&b).await, [all[1].identity().unwrap()]);
    assert_eq!(stored(&b, &segments), 0);
    // One that cannot look for three intervals says so.
    envs[1].set_fail_point("corpus.bucket.list", FailMode::Error(ErrorKind::Unavailable), 1);
    envs[1].advance(Duration::from_millis(301));
    assert!(!b.is_up_to_date());
    envs[1].set_fail_point("corpus.bucket.list", FailMode::Off, 1);
    until(|| b.is_up_to_date()).await;
    for (node, folder) in [a, b].into_iter().zip(&folders) {
        close(node, folder).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_was_away_hears_at_its_start_what_was_removed() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let envs = [Env::seeded(1, 0), Env::seeded(2, 0)];
    let a = open_with(&folders[0], "llama_3_2", settings("away"), &envs[0]).await;
    let b = open_with(&folders[1], "llama_3_2", settings("away"), &envs[1]).await;
    until(|| a.is_up_to_date() && b.is_up_to_date()).await;
    let all = documents(&["lamp", "mill"]);
    a.library().upsert("c", all.clone(), (None, Caller::default()), || true).await.unwrap();
    ask(&b).await;
    // Behind nothing that goes.
    let (lamp, mill) = (all[0].identity().unwrap(), all[1].identity().unwrap());
    assert_eq!(ask_over(&b, &all[1].text, 1).await, [mill]);
    let of = |document| Scope { collection: Some("c"), document };
    let every: Vec<SegmentDigest> = b.library().segments(of(None)).await.unwrap().into_iter().collect();
    let gone: Vec<SegmentDigest> = b.library().segments(of(Some(&lamp))).await.unwrap().into_iter().collect();
    close(b, &folders[1]).await;
    a.library().delete_document("c", &lamp, None).await.unwrap();
    let b = open_with(&folders[1], "llama_3_2", settings("away"), &Env::seeded(3, 0)).await;
    until(|| b.is_up_to_date()).await;
    assert_eq!(stored(&b, &gone), 0);
    assert!(stored(&b, &every) > 0, "it kept the rest");
    for (node, folder) in [a, b].into_iter().zip(&folders) {
        close(node, folder).await;
    }
}

/// A cache's outage is not the service's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dead_bucket_of_kv_keeps_no_node_from_answering() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let envs = [Env::seeded(1, 0), Env::seeded(2, 0)];
    let settings = || Settings { object_url: Some("memory://dead-kv/kv".into()), ..settings("dead-kv") };
    let a = open_with(&folders[0], "llama_3_2", settings(), &envs[0]).await;
    let b = open_with(&folders[1], "llama_3_2", settings(), &envs[1]).await;
    until(|| a.is_up_to_date() && b.is_up_to_date()).await;
    let all = documents(&["lamp", "mill"]);
    a.library().upsert("c", all.clone(), (None, Caller::default()), || true).await.unwrap();
    assert_eq!(ask(&b).await.len(), 2);
    let lamp = all[0].identity().unwrap();
    let scope = Scope { collection: Some("c"), document: Some(&lamp) };
    let segments: Vec<SegmentDigest> = b.library().segments(scope).await.unwrap().into_iter().collect();
    assert!(stored(&b, &segments) > 0);
    let seen = || std::fs::read_to_string(folders[1].path().join("data/corpus-seen")).unwrap_or_default();
    until(|| !seen().is_empty()).await;
    envs[1].set_fail_point("object.list", FailMode::Error(ErrorKind::Unavailable), 1);
    let before = seen();
    a.library().delete_document("c", &lamp, None).await.unwrap();
    until(|| stored(&b, &segments) == 0).await;
    assert!(b.is_up_to_date());
    assert_eq!(ask(&b).await, [all[1].identity().unwrap()]);
    assert_eq!(seen(), before, "the log would tell it again after a start");
    envs[1].set_fail_point("object.list", FailMode::Off, 1);
    // It tries again half a minute after it failed, which may not have been yet.
    for _ in 0..60 {
        envs[1].advance(Duration::from_secs(31));
        if tokio::time::timeout(Duration::from_secs(1), until(|| seen() != before)).await.is_ok() {
            break;
        }
    }
    assert_ne!(seen(), before);
    until(|| b.is_up_to_date()).await;
    for (node, folder) in [a, b].into_iter().zip(&folders) {
        close(node, folder).await;
    }
}
