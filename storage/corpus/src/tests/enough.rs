//! Upserts whose caller has enough before their end, beside those that go through.

use std::sync::atomic::AtomicUsize;

use super::*;

fn documents() -> Vec<Document> {
    (0..150).map(|n| document(&format!("d{n:03}"), &format!("Number {n}."))).collect()
}

async fn ids(corpus: &Corpus) -> Vec<String> {
    corpus.documents("c", 0, 1000).await.unwrap().into_iter().map(|document| document.id).collect()
}

/// Until so many passages have their vectors.
fn until(passages: usize) -> impl Fn(UpsertProgress) -> Result<Going> + Send + Sync {
    move |progress| Ok(if progress.passages_embedded < passages { Going::On } else { Going::Enough })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_its_vectors_is_kept_and_the_rest_makes_it_whole() {
    let (folder, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (corpus, reference) = (open(folder.path()).await, open(whole.path()).await);
    let all = documents();
    // In the middle of a group, and at the end of one.
    let mut before = 0;
    for (passages, expected) in [(1, 32), (33, 32 + 64)] {
        let taken = corpus.upsert_while("c", all.clone(), &(), &until(passages)).await.unwrap();
        assert_eq!(taken.documents, expected, "all of a call of the embedding model");
        assert_eq!((taken.report.documents_unchanged, taken.report.documents_added), (before, expected - before));
        assert_eq!(ids(&corpus).await, ids_of(&all[..expected]));
        before = expected;
    }
    let taken = corpus.upsert_while("c", all.clone(), &(), &until(usize::MAX)).await.unwrap();
    assert_eq!((taken.documents, taken.report.documents_unchanged), (150, before));
    upsert(&reference, &all).await;
    for query in ["number", "140"] {
        let found = find(&corpus, query, SearchMode::Fused, 5).await;
        assert_eq!(found, find(&reference, query, SearchMode::Fused, 5).await);
    }
    assert_eq!(ids(&corpus).await, ids(&reference).await);
}

fn ids_of(documents: &[Document]) -> Vec<String> {
    documents.iter().map(|document| document.identity().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_taken_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let long: String = (0..900).map(|n| format!("Word{n} stands here. ")).collect();
    upsert(&corpus, &[document("long", "Short."), document("gone", "Words.")]).await;
    let given = [document("first", "Stone."), document("gone", ""), document("long", &long), document("last", "Rye.")];
    let taken = corpus.upsert_while("c", given.to_vec(), &(), &until(2)).await.unwrap();
    assert_eq!((taken.documents, taken.report.documents_added, taken.report.documents_empty), (2, 1, 1));
    assert_eq!(ids(&corpus).await, ["first", "long"]);
    let stored = corpus.document("c", "long").await.unwrap();
    assert_eq!(stored.passages.len(), 1, "its older version stays");
    let report = upsert(&corpus, &given).await;
    assert_eq!((report.documents_unchanged, report.documents_replaced, report.documents_added), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_nothing_makes_no_collection_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let taken = corpus.upsert_while("c", documents(), &(), &|_| Ok(Going::Enough)).await.unwrap();
    assert_eq!(taken, Taken::default());
    let cancelled = |_| Err(Error::new(ErrorKind::Cancelled, "gone"));
    assert!(corpus.upsert_while("c", documents(), &(), &cancelled).await.is_err());
    assert!(corpus.collections().await.unwrap().is_empty());
    // What is embedded when it is cancelled is not written.
    let asked = AtomicUsize::new(0);
    let cancelled = |progress: UpsertProgress| {
        asked.fetch_add(1, Ordering::Relaxed);
        if progress.passages_embedded < 32 { Ok(Going::On) } else { cancelled(progress) }
    };
    assert!(corpus.upsert_while("c", documents(), &(), &cancelled).await.is_err());
    assert!(asked.into_inner() > 2 && ids(&corpus).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_document_is_here_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a", "Stone."), document("b", "Rye.")]).await;
    assert!(corpus.has_document("c", "a").await.unwrap());
    assert!(!corpus.has_document("c", "no").await.unwrap());
    assert_eq!(corpus.has_document("d", "a").await.unwrap_err().kind(), ErrorKind::NotFound);
}
