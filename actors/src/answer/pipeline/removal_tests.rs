//! Collections that are removed while they are ingested: whatever the ingest is in the middle of, nothing of it is written behind the
//! removal.

mod nodes;

use std::time::Duration;

use ragstone_documents::Document;
use ragstone_env::{Env, FailMode};
use ragstone_storage::catalog::IngestOptions;
use tempfile::TempDir;

use super::tests::{close, open};
use crate::admission::caller::Caller;
use crate::error::ErrorKind;
use crate::question::prompt::PromptDate;
use crate::ragstone::Ragstone;
use crate::upkeep::ingests::Begun;

fn documents(names: &[&str]) -> Vec<Document> {
    let document = |name: &&str| Document {
        title: (*name).to_owned(),
        text: format!("The {name} of Orvik."),
        source: Some(format!("/notes/{name}.md")),
        ..Document::default()
    };
    names.iter().map(document).collect()
}

async fn begin(ragstone: &Ragstone, collection: &str, path: &str) -> Begun {
    ragstone.ingests().begin(collection, vec![path.into()], IngestOptions::default(), 0).await.unwrap().0
}

async fn collections(ragstone: &Ragstone) -> Vec<(String, usize)> {
    let all = ragstone.corpus().collections().await.unwrap();
    all.into_iter().map(|collection| (collection.name, collection.documents)).collect()
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_ingest_in_the_middle_of_a_commit_writes_nothing_behind_a_removal() {
    let (folder, env) = (TempDir::new().unwrap(), Env::seeded(1, 0));
    let ragstone = open(&folder, "llama_3_2", PromptDate::default(), &env).await;
    let library = ragstone.library();
    for has_collection in [true, false] {
        let begun = begin(&ragstone, "c", "/notes").await;
        if has_collection {
            library.take_in(&begun, documents(&["lamp"])).await.unwrap();
        }
        // It has asked for the last time whether it is wanted.
        env.set_fail_point("corpus.before_commit", FailMode::Hang, 1);
        let hits = env.fail_point_hits("corpus.before_commit");
        let (theirs, own) = (library.clone(), begun.clone());
        let writing = tokio::spawn(async move { theirs.take_in(&own, documents(&["mill", "heron"])).await });
        until(|| env.fail_point_hits("corpus.before_commit") > hits).await;
        let theirs = library.clone();
        let removing = tokio::spawn(async move { theirs.delete_collection("c", None).await });
        begun.cancelled.cancelled().await;
        env.set_fail_point("corpus.before_commit", FailMode::Off, 1);
        let written = writing.await.unwrap().unwrap_err();
        let removed = removing.await.unwrap().unwrap();
        assert_eq!((written.kind(), removed.jobs_cancelled), (ErrorKind::Cancelled, 1));
        assert_eq!(removed.passages_removed, 2 + usize::from(has_collection), "what was written before went along");
        assert!(collections(&ragstone).await.is_empty());
        let late = library.take_in(&begun, documents(&["owl"])).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Cancelled);
        // Somebody makes it anew: that is not the ingest's.
        library.upsert("c", documents(&["rye"]), (None, Caller::default()), || true).await.unwrap();
        assert!(library.take_in(&begun, documents(&["owl"])).await.is_err());
        assert!(library.remove_gone(&begun, "any").await.is_err());
        assert_eq!(collections(&ragstone).await, [("c".to_owned(), 1)]);
        assert!(ragstone.ingests().listed().await.unwrap().is_empty());
        library.delete_collection("c", None).await.unwrap();
    }
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_document_goes_with_the_ingests_into_its_collection_and_no_others() {
    let (folder, env) = (TempDir::new().unwrap(), Env::seeded(1, 0));
    let ragstone = open(&folder, "llama_3_2", PromptDate::default(), &env).await;
    let library = ragstone.library();
    let ingest = begin(&ragstone, "c", "/notes").await;
    let others = [begin(&ragstone, "c", "/mail").await, begin(&ragstone, "d", "/notes").await];
    let all = documents(&["lamp", "mill", "owl"]);
    library.take_in(&ingest, all.clone()).await.unwrap();
    let id = |at: usize| all[at].identity().unwrap();
    // Its file is gone: no ingest brings it back.
    assert_eq!(library.remove_gone(&ingest, &id(2)).await.unwrap().passages_removed, 1);
    let preview = library.preview_removal("c", Some(&id(0))).await.unwrap();
    assert_eq!((preview.passages_removed, preview.jobs_cancelled), (1, 2));
    assert!(!ingest.cancelled.is_cancelled(), "a preview changes nothing");
    assert_eq!(library.delete_document("c", "no such", None).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!ingest.cancelled.is_cancelled(), "nor does a removal of nothing");
    let removed = library.delete_document("c", &id(0), None).await.unwrap();
    assert_eq!((removed.passages_removed, removed.jobs_cancelled), (1, 2));
    // A record of any file may have been this document.
    assert!(ingest.cancelled.is_cancelled() && others[0].cancelled.is_cancelled());
    assert!(!others[1].cancelled.is_cancelled(), "into another collection");
    assert_eq!(library.delete_document("c", &id(1), None).await.unwrap().jobs_cancelled, 0);
    assert_eq!(library.delete_document("c", &id(1), None).await.unwrap_err().kind(), ErrorKind::NotFound);
    // A collection that is still to come.
    assert_eq!(library.preview_removal("d", None).await.unwrap().jobs_cancelled, 1);
    let removed = library.delete_collection("d", None).await.unwrap();
    assert_eq!((removed.passages_removed, removed.jobs_cancelled), (0, 1));
    assert_eq!(library.delete_collection("d", None).await.unwrap_err().kind(), ErrorKind::NotFound);
    close(ragstone, &folder).await;
}

/// What fails after the ingests were forgotten is not done: the collection stays, without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removal_that_fails_can_be_repeated() {
    let (folder, env) = (TempDir::new().unwrap(), Env::seeded(1, 0));
    let ragstone = open(&folder, "llama_3_2", PromptDate::default(), &env).await;
    let library = ragstone.library();
    let ingest = begin(&ragstone, "c", "/notes").await;
    library.take_in(&ingest, documents(&["lamp"])).await.unwrap();
    env.set_fail_point("removal.forgot_ingests", FailMode::Error(ErrorKind::Unavailable), 1);
    let failed = library.delete_collection("c", None).await.unwrap_err().to_string();
    assert!(failed.contains("unfinished ingests into the collection were cancelled before (1)"), "{failed}");
    env.set_fail_point("removal.forgot_ingests", FailMode::Off, 1);
    assert!(ingest.cancelled.is_cancelled());
    assert_eq!(collections(&ragstone).await.len(), 1);
    assert!(ragstone.catalog().removals().unwrap().is_empty(), "its caller knows");
    assert_eq!(library.delete_collection("c", None).await.unwrap().passages_removed, 1);
    close(ragstone, &folder).await;
}

/// The service stops while a batch is embedded: what has its vectors is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_keeps_what_is_embedded() {
    let (folder, env) = (TempDir::new().unwrap(), Env::seeded(1, 0));
    let ragstone = open(&folder, "llama_3_2", PromptDate::default(), &env).await;
    let ingest = begin(&ragstone, "c", "/notes").await;
    let names: Vec<String> = (0..40).map(|number| format!("lamp{number:02}")).collect();
    let all = documents(&names.iter().map(String::as_str).collect::<Vec<_>>());
    env.set_fail_point("corpus.embed", FailMode::Hang, 1);
    let (library, own, given) = (ragstone.library().clone(), ingest.clone(), all.clone());
    let writing = tokio::spawn(async move { library.take_in(&own, given).await });
    until(|| env.fail_point_hits("corpus.embed") > 0).await;
    ragstone.jobs().stop();
    env.set_fail_point("corpus.embed", FailMode::Off, 1);
    let taken = writing.await.unwrap().unwrap();
    assert_eq!((taken.documents, taken.report.documents_added), (32, 32), "one call of the embedding model");
    assert_eq!(collections(&ragstone).await, [("c".to_owned(), 32)]);
    assert_eq!(ragstone.library().take_in(&ingest, all).await.unwrap().documents, 32, "they are there already");
    close(ragstone, &folder).await;
}
