//! What goes on while an upsert computes: others write, remove and search, and nobody waits for its embeddings.

use futures::FutureExt;

use super::*;
use ragstone_env::{Env, FailMode};

async fn open_in(folder: &Path, env: &Env) -> Corpus {
    open_with(folder, ENCODER, CorpusOptions { env: env.clone(), ..CorpusOptions::default() }).await.unwrap()
}

fn texts(names: &[&str]) -> Vec<Document> {
    names.iter().map(|name| document(name, &format!("The {name} of Orvik."))).collect()
}

async fn until_hit(env: &Env, point: &str) {
    while env.fail_point_hits(point) == 0 {
        tokio::task::yield_now().await;
    }
}

fn spawn_upsert(corpus: &Corpus, documents: Vec<Document>) -> tokio::task::JoinHandle<Result<UpsertReport>> {
    let corpus = corpus.clone();
    tokio::spawn(async move { corpus.upsert("c", documents, &(), &|_| Ok(())).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removal_waits_for_no_embedding_and_what_is_embedded_then_is_stored() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let corpus = open_in(folder.path(), &env).await;
    upsert(&corpus, &texts(&["lamp", "mill"])).await;
    env.set_fail_point("corpus.embed", FailMode::Hang, 1);
    let slow = spawn_upsert(&corpus, texts(&["heron", "mill"]));
    until_hit(&env, "corpus.embed").await;
    assert_eq!(corpus.delete("c", "lamp", &()).await.unwrap(), 1);
    // It was to be left alone, and is not there any more; it came first, as far as anybody can tell.
    assert_eq!(corpus.delete("c", "mill", &()).await.unwrap(), 1);
    assert!(!slow.is_finished());
    env.set_fail_point("corpus.embed", FailMode::Off, 1);
    assert_eq!(slow.await.unwrap().unwrap().documents_added, 1);
    let left = corpus.documents("c", 0, 10).await.unwrap();
    assert_eq!(left.into_iter().map(|document| document.id).collect::<Vec<_>>(), ["heron"]);
}

/// An upsert whose collection `c`, which has a lamp, is deleted, and where that is wanted made anew, while its first embeddings are made.
async fn deleted_meanwhile(documents: Vec<Document>, is_made_anew: bool) -> (Result<UpsertReport>, Vec<String>) {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let corpus = open_in(folder.path(), &env).await;
    upsert(&corpus, &texts(&["lamp"])).await;
    env.set_fail_point("corpus.embed", FailMode::Hang, 1);
    let slow = spawn_upsert(&corpus, documents);
    until_hit(&env, "corpus.embed").await;
    corpus.delete_collection("c", &()).await.unwrap();
    if is_made_anew {
        env.set_fail_point("corpus.embed", FailMode::Hang, 1_000);
        upsert(&corpus, &texts(&["owl"])).await;
    }
    env.set_fail_point("corpus.embed", FailMode::Off, 1);
    let ended = slow.await.unwrap();
    let left = corpus.documents("c", 0, 10).await.unwrap_or_default();
    (ended, left.into_iter().map(|document| document.id).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upsert_with_no_part_in_a_deleted_collection_comes_after_it_and_another_is_told() {
    let (ended, left) = deleted_meanwhile(texts(&["heron"]), false).await;
    assert_eq!((ended.unwrap().documents_added, left), (1, vec!["heron".to_owned()]));
    let (ended, left) = deleted_meanwhile(texts(&["heron"]), true).await;
    assert_eq!((ended.unwrap().documents_added, left), (1, vec!["heron".to_owned(), "owl".to_owned()]));
    // The lamp was to be left as it was.
    for (is_made_anew, there) in [(false, vec![]), (true, vec!["owl".to_owned()])] {
        let (ended, left) = deleted_meanwhile(texts(&["heron", "lamp"]), is_made_anew).await;
        assert_eq!((ended.unwrap_err().kind(), left), (ErrorKind::NotFound, there));
    }
}

/// The first group is committed after others wrote, and what they wrote is in the second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_group_of_an_upsert_sees_what_others_stored_meanwhile() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let corpus = open_in(folder.path(), &env).await;
    upsert(&corpus, &texts(&["lamp"])).await;
    env.set_fail_point("corpus.embed", FailMode::Hang, 1);
    let documents = (0..150).map(|n| document(&format!("d{n}"), &format!("Number {n}."))).collect();
    let slow = spawn_upsert(&corpus, documents);
    until_hit(&env, "corpus.embed").await;
    env.set_fail_point("corpus.embed", FailMode::Hang, 1_000);
    upsert(&corpus, &[document("d100", "Number 100."), document("d149", "Another number.")]).await;
    env.set_fail_point("corpus.embed", FailMode::Off, 1);
    let UpsertReport { documents_added, documents_replaced, documents_unchanged, .. } = slow.await.unwrap().unwrap();
    assert_eq!((documents_added, documents_replaced, documents_unchanged), (148, 1, 1));
    assert_eq!(corpus.collections().await.unwrap()[0].documents, 151);
    for id in ["d100", "d149"] {
        assert_eq!(corpus.document("c", id).await.unwrap().passages.len(), 1, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upsert_sees_what_others_stored_while_it_computed() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let corpus = open_in(folder.path(), &env).await;
    upsert(&corpus, &[document("owl", "An old text.")]).await;
    env.set_fail_point("corpus.embed", FailMode::Hang, 1);
    let slow = spawn_upsert(&corpus, texts(&["lamp", "mill", "owl"]));
    until_hit(&env, "corpus.embed").await;
    // Calls of the embedding model go through from here on, but for the one that hangs.
    env.set_fail_point("corpus.embed", FailMode::Hang, 1_000);
    upsert(&corpus, &[texts(&["lamp"]), vec![document("mill", "Another text.")]].concat()).await;
    env.set_fail_point("corpus.embed", FailMode::Off, 1);
    let slow = slow.await.unwrap().unwrap();
    // The lamp was stored in the same words, the mill in others; the owl is as it was when it was looked at.
    let UpsertReport { documents_unchanged, documents_replaced, documents_added, .. } = slow;
    assert_eq!((documents_unchanged, documents_replaced, documents_added), (1, 2, 0));
    let documents = corpus.documents("c", 0, 10).await.unwrap();
    assert_eq!(documents.iter().map(|document| &document.id[..]).collect::<Vec<_>>(), ["lamp", "mill", "owl"]);
    for id in ["lamp", "mill", "owl"] {
        let stored = corpus.document("c", id).await.unwrap();
        assert_eq!(stored.passages.len(), 1, "{id}");
        assert_eq!(stored.passages[0].text, format!("The {id} of Orvik."));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collection_that_is_deleted_between_two_commits_ends_the_upsert() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let corpus = open_in(folder.path(), &env).await;
    let documents: Vec<_> = (0..150).map(|n| document(&format!("d{n}"), &format!("Number {n}."))).collect();
    let writer = corpus.clone();
    let (commits, mut committed) = tokio::sync::mpsc::unbounded_channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let slow = tokio::spawn(async move {
        let after_one = move |progress: UpsertProgress| {
            if progress.documents_done > 0 && commits.send(()).is_ok() {
                // Until the test has deleted the collection.
                let _ = tokio::task::block_in_place(|| wait.lock().unwrap().recv());
            }
            Ok(())
        };
        writer.upsert("c", documents, &(), &after_one).await
    });
    committed.recv().await.unwrap();
    corpus.delete_collection("c", &()).await.unwrap();
    drop((go, committed));
    let error = slow.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("64 of 150 went with it"), "{error}");
    assert!(corpus.collections().await.unwrap().is_empty());
}

/// One table is made, with its index, or its readers are waited for: others are found, made and removed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn making_and_removing_a_collection_keeps_nobody_from_others() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let corpus = open_in(folder.path(), &env).await;
    upsert(&corpus, &texts(&["lamp"])).await;
    let reading = corpus.find("c").await.unwrap();
    let snapshot = reading.snapshot().await.unwrap();
    let remover = corpus.clone();
    let removing = tokio::spawn(async move { remover.delete_collection("c", &()).await });
    // It waits for its reader; its name is taken until then.
    while reading.write().now_or_never().is_some() {
        tokio::task::yield_now().await;
    }
    corpus.upsert("other", texts(&["mill"]), &(), &|_| Ok(())).await.unwrap();
    assert_eq!(corpus.names().await.len(), 2);
    corpus.delete_collection("other", &()).await.unwrap();
    assert!(!removing.is_finished());
    drop(snapshot);
    assert_eq!(removing.await.unwrap().unwrap(), 1);
    assert!(corpus.names().await.is_empty());
}

/// Everything below a folder that holds `bytes`, by name.
fn holding(folder: &Path, bytes: &[u8]) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path).unwrap().windows(bytes.len()).any(|window| window == bytes) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vacuum_takes_deleted_and_replaced_text_off_the_disk() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::system());
    let options = CorpusOptions { vector_index_rows: 20, env, ..CorpusOptions::default() };
    let corpus = open_with(folder.path(), ENCODER, options.clone()).await.unwrap();
    let mut documents: Vec<_> = (0..40).map(|n| document(&format!("d{n}"), &format!("Number {n}."))).collect();
    let mut secret = document("secret", "The quincewood lantern.");
    secret.metadata.insert("patient".to_owned(), "medlarberry".into());
    documents.push(secret.clone());
    documents.push(document("changed", "The rowanhedge burns."));
    upsert(&corpus, &documents).await;
    // Alone in its data file, which goes as a whole.
    upsert(&corpus, &[document("alone", "The elderthicket.")]).await;
    let words = ["quincewood", "medlarberry", "rowanhedge", "elderthicket"];
    for word in words {
        assert!(!holding(folder.path(), word.as_bytes()).is_empty(), "{word}");
    }
    corpus.delete("c", "secret", &()).await.unwrap();
    corpus.delete("c", "alone", &()).await.unwrap();
    upsert(&corpus, &[document("changed", "The hazel burns.")]).await;
    assert!(words.iter().any(|word| !holding(folder.path(), word.as_bytes()).is_empty()), "marked as deleted");
    corpus.vacuum("c").await.unwrap();
    for word in words {
        assert_eq!(holding(folder.path(), word.as_bytes()), [""; 0], "{word}");
    }
    assert!(!holding(folder.path(), b"hazel").is_empty());
    assert_eq!(find(&corpus, "hazel", SearchMode::Fused, 1).await, ["changed"]);
    drop(corpus);
    let corpus = open_with(folder.path(), ENCODER, options).await.unwrap();
    assert_eq!(corpus.documents("c", 0, 100).await.unwrap().len(), 41);
    for mode in [SearchMode::FullText, SearchMode::Vector] {
        assert_eq!(find(&corpus, "hazel burns", mode, 1).await, ["changed"]);
    }
    corpus.vacuum("nowhere").await.unwrap();
    // All of it gone.
    for id in corpus.documents("c", 0, 100).await.unwrap() {
        corpus.delete("c", &id.id, &()).await.unwrap();
    }
    corpus.vacuum("c").await.unwrap();
    assert_eq!(holding(folder.path(), b"hazel"), [""; 0]);
}
