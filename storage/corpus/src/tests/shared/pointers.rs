//! An object that says which table a collection has, and cannot be read: damage, and not "no such collection".

use super::*;
use crate::bucket::pointer_of;

/// Puts this into the place of what says which table `c` has.
async fn set_pointer(corpus: &Corpus, text: &str) {
    let (bucket, path) = (corpus.bucket().unwrap(), Name::from("collections/passages-c"));
    bucket.remove(&path).await.unwrap();
    assert!(bucket.create(&path, text).await.unwrap());
}

/// Makes what is in the bucket two hours old.
async fn two_hours_later(store: &Shaky, corpus: &Corpus) {
    store.ahead_ms.store(2 * 3600 * 1000, Ordering::Relaxed);
    corpus.bucket().unwrap().look_at_clock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_whose_table_nobody_can_say_is_kept_and_told() {
    for text in ["", "no name of a table"] {
        let store = Shaky::new();
        let (a, late) = (node(&store).await, node(&store).await);
        upsert(&a, &[document("bridge", "Built of granite.")]).await;
        a.upsert("other", vec![document("bakery", "It sells rye bread.")], &(), &|_| Ok(())).await.unwrap();
        let id = pointer_of(a.bucket().unwrap(), "c").await.unwrap().unwrap();
        set_pointer(&a, text).await;
        // Whoever has it open goes on with it, and acknowledges nothing that may be nobody's.
        a.refresh().await.unwrap();
        assert_eq!(all_ids(&a).await, ["bridge"]);
        let added = a.upsert("c", vec![document("new", "Another text.")], &(), &|_| Ok(())).await;
        assert_eq!(added.unwrap_err().kind(), ErrorKind::Unavailable);
        two_hours_later(&store, &a).await;
        assert_eq!(a.remove_orphans().await.unwrap(), 0);
        assert!(store.names().await.iter().any(|name| name.contains(&format!("tables/{id}.lance/"))));
        // The others say what is wrong and what to do, and make no second one.
        late.refresh().await.unwrap();
        for other in [&late, &node(&store).await] {
            assert_eq!(other.names().await, ["c", "other"]);
            assert_eq!(other.damages().len(), 1);
            for error in [
                other.documents("c", 0, 9).await.unwrap_err(),
                other.upsert("c", vec![document("new", "New.")], &(), &|_| Ok(())).await.unwrap_err(),
            ] {
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
                for part in ["`collections/passages-c`", "damaged", "backup", "collections delete c"] {
                    assert!(text.contains(part), "{text}");
                }
            }
            assert_eq!(other.documents("other", 0, 9).await.unwrap().len(), 1);
        }
        // Put back, it is found again.
        set_pointer(&a, &id).await;
        late.refresh().await.unwrap();
        assert!(late.damages().is_empty());
        for other in [&a, &late, &node(&store).await] {
            assert!(all_ids(other).await.contains(&"bridge".to_owned()));
        }
        assert_eq!(a.remove_orphans().await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_whose_table_nobody_can_say_can_be_deleted_and_begun_again() {
    for is_open in [true, false] {
        let store = Shaky::new();
        let a = node(&store).await;
        upsert(&a, &[document("bridge", "Built of granite.")]).await;
        set_pointer(&a, "").await;
        let deleting = if is_open { a.clone() } else { node(&store).await };
        assert_eq!(deleting.delete_collection("c", &()).await.unwrap(), usize::from(is_open));
        assert_eq!(deleting.names().await, [""; 0]);
        upsert(&deleting, &[document("new", "Another text.")]).await;
        a.refresh().await.unwrap();
        assert_eq!((all_ids(&a).await, all_ids(&deleting).await), (vec!["new".to_owned()], vec!["new".to_owned()]));
        // What nobody could name leaves once everything that is named can be.
        two_hours_later(&store, &a).await;
        assert_eq!(a.remove_orphans().await.unwrap(), usize::from(!is_open));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_collection_that_another_node_deletes_is_none() {
    let store = Shaky::new();
    let a = node(&store).await;
    upsert(&a, &[document("bridge", "Built of granite.")]).await;
    set_pointer(&a, "").await;
    let b = node(&store).await;
    a.delete_collection("c", &()).await.unwrap();
    b.refresh().await.unwrap();
    assert_eq!((b.names().await, b.damages().len()), (Vec::new(), 0));
    assert_eq!(b.documents("c", 0, 9).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn clocks(corpus: &Corpus) -> usize {
    corpus.bucket().unwrap().list(&Name::from("clock"), None).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_looked_at_the_clock_by_leaves_a_day_after_it_ran() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    for corpus in [&a, &b] {
        corpus.bucket().unwrap().look_at_clock().await.unwrap();
    }
    two_hours_later(&store, &a).await;
    a.remove_orphans().await.unwrap();
    assert_eq!(clocks(&a).await, 2);
    store.ahead_ms.store(25 * 3600 * 1000, Ordering::Relaxed);
    a.bucket().unwrap().look_at_clock().await.unwrap();
    a.remove_orphans().await.unwrap();
    assert_eq!(clocks(&a).await, 1, "the one that runs has just written its own");
    // Where the other one only slept, it looks as before.
    b.bucket().unwrap().look_at_clock().await.unwrap();
    assert_eq!(clocks(&b).await, 2);
}
