//! Several nodes on one bucket.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt};
use ragstone_env::Env;

use self::store::Shaky;
use super::*;

mod claims;
mod gone;
mod looks;
mod moto;
#[path = "../../../../tests/outside/mod.rs"]
mod outside;
mod pointers;
#[path = "../../../../tests/s3_server/mod.rs"]
mod s3_server;
mod several;
mod store;

/// Without pauses between commits.
fn at_once() -> BucketOptions {
    BucketOptions { interval: Duration::ZERO, ..BucketOptions::default() }
}

async fn node(store: &Arc<Shaky>) -> Corpus {
    node_with(store.clone(), at_once(), Env::system()).await.unwrap()
}

async fn node_with(store: Arc<dyn ObjectStore>, options: BucketOptions, env: Env) -> Result<Corpus> {
    let bucket = Bucket::open(store, Name::from("a/b c"), options, env.clone()).await?;
    let options = CorpusOptions { chunk_tokens: 18, env, ..CorpusOptions::default() };
    Corpus::open_shared(bucket, Arc::new(ENCODER), &|_| None, options).await
}

async fn all_ids(corpus: &Corpus) -> Vec<String> {
    let documents = corpus.documents("c", 0, 10_000).await.unwrap();
    documents.into_iter().map(|document| document.id).collect()
}

/// Rows of documents, as the table has them: whoever reads them otherwise sees each document once.
async fn rows(corpus: &Corpus) -> usize {
    corpus.refresh().await.unwrap();
    corpus.find("c").await.unwrap().rows().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_adds_and_deletes_another_sees() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("bridge", "Built of granite."), document("bakery", "It sells rye bread.")]).await;
    for corpus in [&a, &b, &node(&store).await] {
        for mode in MODES {
            assert_eq!(find(corpus, "who sells rye bread", mode, 1).await, ["bakery"], "{mode:?}");
        }
        assert_eq!(all_ids(corpus).await, ["bakery", "bridge"]);
    }
    // The same again, and a new version, at the other one.
    let report = upsert(&b, &[document("bridge", "Built of granite."), document("bakery", "It sells cakes.")]).await;
    assert_eq!((report.documents_unchanged, report.documents_replaced), (1, 1), "{report:?}");
    assert_eq!(find(&a, "cakes", SearchMode::FullText, 1).await, ["bakery"]);
    assert_eq!(find(&a, "rye", SearchMode::FullText, 1).await, [""; 0]);
    assert_eq!(b.delete("c", "bakery", &()).await.unwrap(), 1);
    assert_eq!(all_ids(&a).await, ["bridge"]);
    assert_eq!(find(&a, "cakes", SearchMode::Fused, 2).await, ["bridge"]);
    assert_eq!(a.delete("c", "bakery", &()).await.unwrap(), 0);
    // Names are listed once an interval.
    assert_eq!(a.names().await, ["c"]);
    b.delete_collection("c", &()).await.unwrap();
    a.refresh().await.unwrap();
    assert_eq!(a.names().await, [""; 0]);
    assert_eq!(a.documents("c", 0, 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(store.names().await.iter().all(|name| !name.contains("tables/") && !name.contains("collections/")));
    // Made anew, it has nothing of the earlier one.
    upsert(&a, &[document("new", "Another text.")]).await;
    assert_eq!(all_ids(&b).await, ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_did_not_hear_of_a_deletion_writes_into_the_collection_that_is_there_now() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("one", "The first text.")]).await;
    upsert(&b, &[document("two", "The second text.")]).await;
    a.delete_collection("c", &()).await.unwrap();
    // Nothing that was not stored is acknowledged.
    let added = b.upsert("c", vec![document("three", "The third text.")], &(), &|_| Ok(())).await;
    assert!(added.is_err(), "{added:?}");
    b.refresh().await.unwrap();
    upsert(&b, &[document("three", "The third text.")]).await;
    assert_eq!((all_ids(&a).await, all_ids(&b).await), (vec!["three".to_owned()], vec!["three".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_creates_an_object_twice_is_refused() {
    let store = Shaky::new();
    store.ignores_create.store(true, Ordering::Relaxed);
    let error = node_with(store.clone(), at_once(), Env::system()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("If-None-Match") && error.to_string().contains("MinIO"), "{error}");
    assert_eq!(store.names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_replaces_what_has_changed_is_refused() {
    let store = Shaky::new();
    store.ignores_update.store(true, Ordering::Relaxed);
    let error = node_with(store.clone(), at_once(), Env::system()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("If-Match"), "{error}");
    assert_eq!(store.names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_there_where_answers_are_lost() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("before", "A text that is there.")]).await;
    store.loses_every.store(3, Ordering::Relaxed);
    let mut wanted = vec!["before".to_owned()];
    for n in 0..12 {
        let (corpus, id) = (if n % 2 == 0 { &a } else { &b }, format!("d{n:02}"));
        let documents = vec![document(&id, &format!("The text number {n}."))];
        if corpus.upsert("c", documents, &(), &|_| Ok(())).await.is_ok() {
            wanted.push(id);
        }
    }
    assert!(store.lost.load(Ordering::Relaxed) > 10);
    store.loses_every.store(0, Ordering::Relaxed);
    assert!(wanted.len() > 6, "{wanted:?}");
    let there = all_ids(&node(&store).await).await;
    assert!(wanted.iter().all(|id| there.contains(id)), "{wanted:?} {there:?}");
    assert_eq!(rows(&a).await, there.len(), "none is there twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_text_leaves_the_bucket() {
    let store = Shaky::new();
    // Nobody reads superseded versions here.
    let options = BucketOptions { readers: Duration::ZERO, ..at_once() };
    let open = || node_with(store.clone(), options.clone(), Env::system());
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    upsert(&a, &[document("keep", "A harmless text."), document("secret", "The password is zanzibar.")]).await;
    upsert(&b, &[document("other", "More of it, with another zanzibar.")]).await;
    assert!(store.has_text("zanzibar").await);
    a.delete("c", "secret", &()).await.unwrap();
    b.delete("c", "other", &()).await.unwrap();
    // The first call rewrites, and says that questions may be reading still; one that comes later removes what they read.
    let first = a.vacuum("c").await.unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Unavailable, "{first}");
    a.vacuum("c").await.unwrap();
    assert!(!store.has_text("zanzibar").await);
    assert_eq!(all_ids(&b).await, ["keep"]);
    assert_eq!(find(&b, "harmless", SearchMode::FullText, 2).await, ["keep"]);
}
