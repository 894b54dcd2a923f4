//! What stands beside passages, many times over.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::identifiers::Identifiers;
use crate::query::{Briefs, named};

fn with_metadata(id: &str, text: &str, bytes: usize) -> Document {
    let mut given = document(id, text);
    given.metadata.insert("k".into(), "x".repeat(bytes).into());
    given
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_answers_with_so_many_bytes_and_with_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let all: Vec<Document> =
        (0..120).map(|n| with_metadata(&format!("d{n:03}"), &format!("Same words and number{n}."), 60 << 10)).collect();
    upsert(&corpus, &all).await;
    let search = async |top_k| {
        let options = SearchOptions { top_k, ..SearchOptions::default() };
        corpus.search("c", "same words and number7", &options).await.unwrap()
    };
    let few = search(10).await;
    assert_eq!(few.len(), 10);
    // Those are read without metadata first.
    for top_k in [60, 120, 1000] {
        let many = search(top_k).await;
        assert!(many.len() >= 60 && many.len() <= 68, "{}", many.len());
        // Scores are relative to what else was found.
        let passages = |hits: &[Hit]| hits.iter().map(|hit| hit.passage.clone()).collect::<Vec<_>>();
        assert_eq!(passages(&many[..10]), passages(&few));
        assert!(many.iter().all(|hit| hit.passage.metadata.json().len() > 60 << 10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_comes_with_many_hits_as_with_few() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let numbered = |n: usize| {
        let mut given = document(&format!("d{n}"), &format!("Same words and number{n}."));
        given.metadata.insert("n".into(), n.into());
        given
    };
    upsert(&corpus, &(0..150).map(numbered).collect::<Vec<_>>()).await;
    let options = SearchOptions { top_k: 150, ..SearchOptions::default() };
    let hits = corpus.search("c", "same words", &options).await.unwrap();
    assert_eq!(hits.len(), 150);
    for hit in hits {
        let n: usize = hit.passage.document_id[1..].parse().unwrap();
        assert_eq!(hit.passage.metadata.entries().unwrap()["n"], json!(n));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passages_of_a_document_share_what_is_known_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[with_metadata("a", &"Seven words are in this one sentence. ".repeat(40), 60 << 10)]).await;
    let stored = corpus.document("c", "a").await.unwrap();
    assert!(stored.passages.len() > 10);
    let first = stored.passages[0].metadata.json().as_ptr();
    assert!(stored.passages.iter().all(|passage| std::ptr::eq(passage.metadata.json().as_ptr(), first)));
}

/// Counts nothing before the gate is open.
struct Gated(WordEncoder, Arc<Gate>);

#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    /// Not for ever, so that a test fails and does not hang.
    fn pass(&self) {
        let waiting = self.1.wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), |open| !*open);
        *waiting.unwrap().0 = true;
    }
}

impl PassageEncoder for Gated {
    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        self.0.embed_query(text)
    }

    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        self.0.embed_passages(texts)
    }

    fn dimension(&self) -> usize {
        self.0.dimension()
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>> {
        self.0.tokenize_passage(title, text)
    }

    fn tokenizer_identity(&self) -> String {
        self.0.tokenizer_identity()
    }

    fn count_tokens(&self, text: &str) -> usize {
        self.1.pass();
        self.0.count_tokens(text)
    }
}

/// Nothing but who wants it ends the cutting here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_cut_only_as_long_as_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let long = document("a", &"Seven words are in this one sentence. ".repeat(200));
    for fails in [false, true] {
        let gate = Arc::new(Gate::default());
        let options = CorpusOptions { chunk_tokens: 18, ..CorpusOptions::default() };
        let corpus = Corpus::open(folder.path(), Arc::new(Gated(ENCODER, gate.clone())), options).await.unwrap();
        let asked = AtomicUsize::new(0);
        // Before the collection is made, before the first document, and while that is cut.
        let going = |_| {
            let collections_before = usize::from(!fails);
            if asked.fetch_add(1, Ordering::Relaxed) < 1 + collections_before {
                return Ok(Going::On);
            }
            gate.open();
            if fails { Err(crate::Error::new(crate::ErrorKind::Cancelled, "gone")) } else { Ok(Going::Enough) }
        };
        let taken = corpus.upsert_while("c", vec![long.clone()], &(), &going).await;
        match taken {
            Ok(taken) => assert!(!fails && taken == Taken::default(), "{taken:?}"),
            Err(error) => assert!(fails && error.kind() == crate::ErrorKind::Cancelled, "{error}"),
        }
        assert_eq!(corpus.collections().await.unwrap()[0].documents, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_found_behind_many_addresses_that_have_its_letters() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let address = |n: usize| document(&format!("host{n}"), &format!("The host 10.1.2.3{n} answers."));
    let mut all: Vec<Document> = (100..220).map(address).collect();
    all.push(document("release", "Version 1.2.3 is out."));
    upsert(&corpus, &all).await;
    let table = corpus.find("c").await.unwrap();
    let (snapshot, briefs) = (table.snapshot().await.unwrap(), Briefs::default());
    let identifiers = Identifiers::of("What changed in 1.2.3?");
    let found = named(&table, (&snapshot, &briefs), (&identifiers, None)).await.unwrap();
    let found: Vec<&str> = found.iter().map(|(brief, _)| brief.document_id.as_str()).collect();
    assert_eq!(found, ["release"]);
}
