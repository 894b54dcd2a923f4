//! Writers and optimisers of several nodes at once.

use super::*;
use crate::bucket::{Claims, Held, Lease, end_claims};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_all_nodes_add_at_once_are_there_once() {
    let store = Shaky::new();
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(node(&store).await);
    }
    let documents: Vec<Document> = (0..6).map(|n| document(&format!("d{n}"), &format!("Text number {n}."))).collect();
    let adding = nodes.iter().map(|corpus| corpus.upsert("c", documents.clone(), &(), &|_| Ok(())));
    let reports: Vec<UpsertReport> = futures::future::try_join_all(adding).await.unwrap();
    assert_eq!(reports.iter().map(|report| report.documents_added).sum::<usize>(), 6, "{reports:?}");
    for corpus in &nodes {
        assert_eq!((all_ids(corpus).await.len(), rows(corpus).await), (6, 6));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_and_optimisers_at_once_lose_nothing_and_bring_nothing_back() {
    let store = Shaky::new();
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(node(&store).await);
    }
    upsert(&nodes[0], &[document("first", "It makes the collection.")]).await;
    let work = nodes.iter().enumerate().map(|(at, corpus)| async move {
        let (mut added, mut deleted) = (Vec::new(), Vec::new());
        for n in 0..8 {
            let id = format!("{at}-{n}");
            upsert(corpus, &[document(&id, &format!("Node {at} adds its text {n}."))]).await;
            added.push(id);
            if n % 3 == 2 {
                let id = added.swap_remove(n / 3);
                assert_eq!(corpus.delete("c", &id, &()).await.unwrap(), 1);
                deleted.push(id);
            }
            // Two of them rewrite the table by force, without a lease.
            if at < 2 && n % 2 == 0 {
                let table = corpus.find("c").await.unwrap();
                let options = lancedb::table::CompactionOptions::default();
                let action = lancedb::table::OptimizeAction::Compact { options, remap_options: None };
                // It fails where others wrote meanwhile, and that is all.
                let _ = table.table.optimize(action).await;
            }
        }
        (added, deleted)
    });
    let done = futures::future::join_all(work).await;
    let mut wanted: Vec<String> = done.iter().flat_map(|(added, _)| added.clone()).collect();
    wanted.push("first".to_owned());
    wanted.sort();
    for corpus in nodes.iter().chain([&node(&store).await]) {
        assert_eq!(all_ids(corpus).await, wanted);
        assert_eq!(rows(corpus).await, wanted.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_one_nodes_until_it_is_given_back_or_old_by_the_buckets_clock() {
    let store = Shaky::new();
    let open = || Bucket::open(store.clone(), Name::default(), at_once(), Env::system());
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    let first = Lease::to_optimise(&a, "t").await.unwrap().unwrap();
    assert!(Lease::to_optimise(&b, "t").await.unwrap().is_none());
    assert!(Lease::to_optimise(&b, "other").await.unwrap().is_some());
    first.give_back().await;
    let mut second = Lease::to_optimise(&b, "t").await.unwrap().unwrap();
    assert!(second.renew().await.unwrap());
    store.ahead_ms.store(59_000, Ordering::Relaxed);
    assert!(Lease::to_optimise(&a, "t").await.unwrap().is_none());
    store.ahead_ms.store(61_000, Ordering::Relaxed);
    let third = Lease::to_optimise(&a, "t").await.unwrap().unwrap();
    assert!(!second.renew().await.unwrap(), "it was taken over");
    second.give_back().await;
    assert!(Lease::to_optimise(&b, "t").await.unwrap().is_none(), "whoever lost it gives nothing back");
    third.give_back().await;
}

/// Google's client binds a replacement to a version, S3's to an ETag: without it no lease was ever given back, and no table vacuumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_claims_change_hands_where_objects_have_versions_and_no_etags() {
    let store = Shaky::new();
    store.is_googles.store(true, Ordering::Relaxed);
    let (a, b) = (node(&store).await, node(&store).await);
    let (of_a, of_b) = (a.bucket().unwrap(), b.bucket().unwrap());
    let mut first = Lease::to_optimise(of_a, "t").await.unwrap().unwrap();
    assert!(first.renew().await.unwrap());
    assert!(Lease::to_optimise(of_b, "t").await.unwrap().is_none());
    first.give_back().await;
    assert!(Lease::to_optimise(of_b, "t").await.unwrap().is_some());
    // Whoever deletes a document that another node is adding says so in its claim, and waits for nobody.
    let ids = ["d".to_owned()];
    let claims = Claims::take(of_a, "c", &ids).await.unwrap().unwrap();
    end_claims(of_b, "c", &ids).await.unwrap();
    assert!(matches!(claims.look(of_a).await.unwrap(), Held::Deleted(document) if document == "d"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_a_dead_node_is_taken_over_and_its_rows_lose() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("first", "It makes the collection.")]).await;
    let ids = ["d".to_owned()];
    let (of_a, of_b) = (a.bucket().unwrap(), b.bucket().unwrap());
    let dead = Claims::take(of_a, "c", &ids).await.unwrap().unwrap();
    assert_eq!(Claims::take(of_b, "c", &ids).await.unwrap().err(), Some("d".to_owned()));
    // It is old by the bucket's clock, which a node learns when it looks at it.
    store.ahead_ms.store(121_000, Ordering::Relaxed);
    of_b.look_at_clock().await.unwrap();
    upsert(&b, &[document("d", "The text of the living.")]).await;
    // The dead one wakes up behind its claim, and commits all the same.
    let table = a.find("c").await.unwrap();
    let encoder: Arc<dyn PassageEncoder> = Arc::new(ENCODER);
    let text = "The text of the dead.";
    let passage = Passage {
        id: crate::document::passage_id("", text),
        document_id: "d".into(),
        collection: "c".into(),
        text: text.into(),
        ..Passage::default()
    };
    let row = crate::schema::Row {
        passage,
        version: "older".into(),
        passages: 1,
        tokenizer: encoder.tokenizer_identity(),
        vector: encoder.embed_query(text).unwrap(),
        generation: dead.generation("d"),
    };
    table.write().await.unwrap().put(&[row], &[]).await.unwrap();
    assert_eq!(rows(&b).await, 2);
    assert_eq!(find(&b, "text of the", SearchMode::FullText, 5).await, ["d"]);
    assert_eq!(b.document("c", "d").await.unwrap().passages[0].text, "The text of the living.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_is_deleted_while_another_node_adds_it_does_not_come_back() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("d", "The first text."), document("other", "Another one.")]).await;
    let deleted = AtomicBool::new(false);
    let runtime = tokio::runtime::Handle::current();
    // Once its passages have their vectors, the other node deletes it.
    let progress = |progress: UpsertProgress| {
        if progress.passages_embedded > 0 && !deleted.swap(true, Ordering::Relaxed) {
            let deleting = b.delete("c", "d", &());
            assert_eq!(tokio::task::block_in_place(|| runtime.block_on(deleting)).unwrap(), 1);
        }
        Ok(())
    };
    let added = a.upsert("c", vec![document("d", "A second text.")], &(), &progress).await;
    assert_eq!(added.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!((all_ids(&a).await, all_ids(&b).await), (vec!["other".to_owned()], vec!["other".to_owned()]));
    // And is added again by whoever wants it.
    upsert(&a, &[document("d", "A second text.")]).await;
    assert_eq!(all_ids(&b).await, ["d", "other"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_one_interval_are_one_commit() {
    let store = Shaky::new();
    let options = BucketOptions { interval: Duration::from_millis(300), ..at_once() };
    let bucket = Bucket::open(store.clone(), Name::default(), options, Env::system()).await.unwrap();
    let corpus = Corpus::open_shared(bucket, Arc::new(ENCODER), &|_| None, CorpusOptions::default()).await.unwrap();
    upsert(&corpus, &[document("first", "It makes the collection.")]).await;
    let table = corpus.find("c").await.unwrap();
    let before = table.table.version().await.unwrap();
    let add = |n: usize| {
        let corpus = corpus.clone();
        async move { upsert(&corpus, &[document(&format!("d{n}"), &format!("Text number {n}."))]).await }
    };
    futures::future::join_all((0..12).map(add)).await;
    table.shared().unwrap().refresh().await.unwrap();
    let commits = table.table.version().await.unwrap() - before;
    assert!(commits <= 6, "12 upserts took {commits} commits");
    assert_eq!(all_ids(&corpus).await.len(), 13, "its own are seen at once");
}
