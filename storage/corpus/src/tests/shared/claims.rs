//! Claims to documents: what becomes of those that became empty, and of those that were not all to be had.

use ragstone_env::FailMode;

use super::*;
use crate::bucket::{Claims, Held};
use crate::table::Leaving;

/// Makes the claims that are there old, by the clock of this node too.
async fn two_minutes_later(store: &Shaky, corpus: &Corpus) {
    store.ahead_ms.store(121_000, Ordering::Relaxed);
    corpus.bucket().unwrap().look_at_clock().await.unwrap();
}

async fn bucket(store: &Arc<Shaky>, env: &Env) -> Bucket {
    Bucket::open(store.clone(), Name::default(), at_once(), env.clone()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_became_empty_leaves_and_what_is_given_with_it_is_stored() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("x", "Some words."), document("stays", "Other words.")]).await;
    let report = upsert(&a, &[document("x", " \n"), document("y", "New words.")]).await;
    assert_eq!((report.documents_empty, report.documents_added, report.passages_removed), (1, 1, 1), "{report:?}");
    for corpus in [&a, &b] {
        assert_eq!(all_ids(corpus).await, ["stays", "y"]);
        assert_eq!(rows(corpus).await, 2);
    }
    // Another node gives it words again, and waits for nobody; then it becomes empty alone.
    upsert(&b, &[document("x", "Words again.")]).await;
    assert_eq!(all_ids(&a).await, ["stays", "x", "y"]);
    upsert(&a, &[document("x", "")]).await;
    assert_eq!(all_ids(&b).await, ["stays", "y"]);
}

/// Behind its commit it takes out what it added, as where the document was deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_slept_through_a_claim_hears_that_the_document_became_empty() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("x", "Some words.")]).await;
    let ids = ["x".to_owned()];
    let asleep = Claims::take(b.bucket().unwrap(), "c", &ids).await.unwrap().unwrap();
    two_minutes_later(&store, &a).await;
    upsert(&a, &[document("x", "")]).await;
    assert_eq!(all_ids(&a).await, [""; 0]);
    assert_eq!(asleep.look(b.bucket().unwrap()).await.unwrap(), Held::Deleted("x".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_slept_takes_out_nothing_that_was_added_by_a_later_claim() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("x", "Some words.")]).await;
    let ids = ["x".to_owned()];
    let mut asleep = Claims::take(a.bucket().unwrap(), "c", &ids).await.unwrap().unwrap();
    let leaving = Leaving { id: "x".to_owned(), up_to: Some(asleep.generation("x")) };
    two_minutes_later(&store, &b).await;
    upsert(&b, &[document("x", "Words of another node.")]).await;
    // It looked at its claims before it slept, and goes on behind the other one.
    let table = a.find("c").await.unwrap();
    table.write().await.unwrap().take_out(vec![leaving]).await.unwrap();
    assert_eq!(b.document("c", "x").await.unwrap().passages[0].text, "Words of another node.");
    assert_eq!(asleep.end(a.bucket().unwrap(), &ids).await.unwrap(), Some("x".to_owned()), "it was taken over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_takes_out_documents_itself_is_not_told_that_they_were_deleted() {
    let store = Shaky::new();
    let (a, b) = (bucket(&store, &Env::system()).await, bucket(&store, &Env::system()).await);
    let ids: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
    let mut claims = Claims::take(&a, "c", &ids).await.unwrap().unwrap();
    assert_eq!(claims.end(&a, &ids[..20]).await.unwrap(), None);
    assert_eq!(claims.look(&a).await.unwrap(), Held::Still);
    // Another node may have those at once, and the others once they are given back.
    assert!(Claims::take(&b, "c", &ids[..20]).await.unwrap().is_ok());
    assert!(Claims::take(&b, "c", &ids[20..]).await.unwrap().is_err());
    claims.give_back(&a).await;
    assert!(Claims::take(&b, "c", &ids[20..]).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_given_back_where_one_of_them_fails() {
    let (store, env) = (Shaky::new(), Env::system());
    let (a, b) = (bucket(&store, &env).await, bucket(&store, &Env::system()).await);
    let ids: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
    env.set_fail_point("corpus.bucket.create", FailMode::Error(ErrorKind::Unavailable), 20);
    assert_eq!(Claims::take(&a, "c", &ids).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.names().await, [""; 0]);
    assert!(Claims::take(&b, "c", &ids).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_given_back_that_could_not_be_read_behind_its_making() {
    let store = Shaky::new();
    let (a, b) = (bucket(&store, &Env::system()).await, bucket(&store, &Env::system()).await);
    let ids = ["d".to_owned()];
    store.refused_gets.store(1, Ordering::Relaxed);
    assert_eq!(Claims::take(&a, "c", &ids).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(Claims::take(&b, "c", &ids).await.unwrap().is_ok());
}
