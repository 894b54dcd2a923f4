//! What warm-ups say of themselves.

use std::time::Duration;

use futures::StreamExt;
use ragstone_documents::Document;
use ragstone_env::{Env, FailMode};
use ragstone_storage::catalog::{WarmProgress, WarmSubject};
use ragstone_storage::store::AdmissionRule;
use tempfile::TempDir;

use super::tests::{close, open_with};
use crate::admission::caller::Caller;
use crate::error::{ErrorKind, Result};
use crate::ragstone::Ragstone;
use crate::settings::Settings;
use crate::upkeep::warm::{Warm, WarmEvent};

fn settings(object_url: Option<&str>) -> Settings {
    Settings {
        object_url: object_url.map(str::to_owned),
        disk_bytes: 64 << 20,
        host_bytes: 64 << 20,
        kv_admission: AdmissionRule::Always,
        ..Settings::default()
    }
}

/// A node with so many documents of a passage each.
async fn filled(folder: &TempDir, settings: Settings, env: &Env, documents: usize) -> Ragstone {
    let ragstone = open_with(folder, "llama_3_2", settings, env).await;
    let document = |number: usize| Document {
        title: format!("Lantern {number}"),
        text: format!("Lantern {number} burns with a flame of colour {number}."),
        ..Document::default()
    };
    let all = (0..documents).map(document).collect();
    ragstone.library().upsert("c", all, (None, Caller::default()), || true).await.unwrap();
    ragstone
}

fn wanted() -> Warm {
    let subject = WarmSubject::Passages { collection: "c".into(), document: None };
    Warm { subject, tenants: Vec::new() }
}

/// What a warm-up told last.
async fn warm(ragstone: &Ragstone) -> Result<WarmProgress> {
    let job = ragstone.warmer().begin(wanted()).await.unwrap();
    let events: Vec<Result<WarmEvent>> = ragstone.warmer().run(job).collect().await;
    match events.into_iter().last().unwrap()? {
        WarmEvent::Finished(progress) | WarmEvent::Progress(progress) => Ok(progress),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dry_run_finds_what_another_node_has_put_into_the_bucket() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let bucket = Some("memory://dry-run/kv");
    let first = filled(&folders[0], settings(bucket), &Env::seeded(1, 0), 2).await;
    let there_and_missing = async |node: &Ragstone| {
        let estimate = node.warmer().estimate(&wanted()).await.unwrap();
        assert_eq!(estimate.tokens_missing > 0, estimate.entries_missing > 0);
        (estimate.entries_there, estimate.entries_missing)
    };
    assert_eq!(there_and_missing(&first).await, (0, 2));
    let done = warm(&first).await.unwrap();
    assert_eq!((done.entries_computed, done.entries_skipped), (2, 0));
    assert!(tokio::task::block_in_place(|| first.store().drain(Duration::from_secs(60))));
    let second = filled(&folders[1], settings(bucket), &Env::seeded(2, 0), 2).await;
    assert_eq!(there_and_missing(&second).await, (2, 0));
    let done = warm(&second).await.unwrap();
    assert_eq!((done.entries_computed, done.entries_skipped), (0, 2), "as the dry run said");
    for (node, folder) in [first, second].into_iter().zip(&folders) {
        close(node, folder).await;
    }
}

/// The disk takes the first sixteen, and then nothing more: the next run begins behind those, and counts the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_warm_up_that_goes_on_counts_nothing_twice() {
    let (folder, env) = (TempDir::new().unwrap(), Env::seeded(1, 0));
    let ragstone = filled(&folder, settings(None), &env, 40).await;
    // With the system prompt and the primer.
    env.set_fail_point("disk.before_write", FailMode::Error(ErrorKind::Full), 25);
    assert_eq!(warm(&ragstone).await.unwrap_err().kind(), ErrorKind::Full);
    let jobs = ragstone.warmer().unfinished().await.unwrap();
    let noted = &jobs[0].job.progress;
    assert_eq!((noted.passages_done, noted.entries_computed, noted.last_passage.is_empty()), (16, 16, false));
    assert!(noted.entries_lost > 0);
    close(ragstone, &folder).await;
    env.set_fail_point("disk.before_write", FailMode::Off, 1);
    let ragstone = open_with(&folder, "llama_3_2", settings(None), &env).await;
    let done = warm(&ragstone).await.unwrap();
    assert_eq!((done.passages_done, done.entries_computed + done.entries_skipped), (40, 40));
    close(ragstone, &folder).await;
}
