//! The corpus against a real LanceDB, with an encoder of hashed words.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use super::ingest::GROUP_PASSAGES;
use super::*;
use ragstone_documents::Document;
use ragstone_env::{Env, FailMode};

mod beside;
mod bounds;
mod damage;
mod enough;
mod filters;
mod languages;
mod quiet;
mod reading;
mod relevant;
mod renewal;
mod shared;
mod speed;
mod twice;
mod week;

const DIMENSION: usize = 64;

/// Counts words; a text's vector is the sum of its words' hashed directions.
#[derive(Clone)]
struct WordEncoder {
    model: &'static str,
    tokenizer: &'static str,
}

const ENCODER: WordEncoder = WordEncoder { model: "words-1", tokenizer: "tokens-1" };

fn hash(word: &str, salt: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (word.to_lowercase().trim_matches(|c: char| !c.is_alphanumeric()), salt).hash(&mut hasher);
    hasher.finish()
}

impl PassageEncoder for WordEncoder {
    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        Ok(self.embed_passages(&[text.to_owned()])?.remove(0))
    }

    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let embed = |text: &String| {
            let mut vector = vec![1e-3_f32; DIMENSION];
            for word in text.split_whitespace() {
                for salt in 0..4 {
                    let hash = hash(word, salt);
                    vector[hash as usize % DIMENSION] += if hash >> 32 & 1 == 0 { 1.0 } else { -1.0 };
                }
            }
            let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            vector.iter().map(|x| x / norm).collect()
        };
        Ok(texts.iter().map(embed).collect())
    }

    fn dimension(&self) -> usize {
        DIMENSION
    }

    fn identity(&self) -> String {
        self.model.to_owned()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>> {
        let salt = self.tokenizer.len() + self.tokenizer.ends_with('2') as usize;
        Ok(title.split_whitespace().chain(text.split_whitespace()).map(|word| hash(word, salt) as u32).collect())
    }

    fn tokenizer_identity(&self) -> String {
        self.tokenizer.to_owned()
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }
}

fn document(id: &str, text: &str) -> Document {
    Document { id: Some(id.to_owned()), title: format!("About {id}"), text: text.to_owned(), ..Document::default() }
}

async fn open(folder: &Path) -> Corpus {
    open_with(folder, ENCODER, CorpusOptions { chunk_tokens: 18, ..CorpusOptions::default() }).await.unwrap()
}

async fn open_with(folder: &Path, encoder: WordEncoder, options: CorpusOptions) -> Result<Corpus> {
    Corpus::open(folder, Arc::new(encoder), options).await
}

async fn upsert(corpus: &Corpus, documents: &[Document]) -> UpsertReport {
    corpus.upsert("c", documents.to_vec(), &(), &|_| Ok(())).await.unwrap()
}

async fn find(corpus: &Corpus, query: &str, mode: SearchMode, top_k: usize) -> Vec<String> {
    let hits = corpus.search("c", query, &SearchOptions { top_k, mode, ..SearchOptions::default() }).await.unwrap();
    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
    hits.into_iter().map(|hit| hit.passage.document_id).collect()
}

/// What a test did to a table past its writer is as good as what a writer did: a start does not undo it.
async fn acknowledge(table: &Collection) {
    table.write().await.unwrap().sync().await.unwrap();
}

fn bytes_on_disk(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| if entry.path().is_dir() { bytes_on_disk(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

const MODES: [SearchMode; 3] = [SearchMode::Vector, SearchMode::FullText, SearchMode::Fused];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_found_by_words_and_by_meaning_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let documents = [
        document("bridge", "The old bridge over the river was built of granite."),
        document("bakery", "The bakery opens at dawn and sells rye bread."),
        document("observatory", "Astronomers watch comets from the observatory."),
    ];
    let report = upsert(&corpus, &documents).await;
    assert_eq!(report, UpsertReport { documents_added: 3, passages_added: 3, ..UpsertReport::default() });
    for reopened in [false, true] {
        let corpus = if reopened { open(folder.path()).await } else { corpus.clone() };
        for mode in MODES {
            assert_eq!(find(&corpus, "who sells rye bread", mode, 1).await, ["bakery"], "{mode:?}");
            assert_eq!(find(&corpus, "comets", mode, 1).await, ["observatory"], "{mode:?}");
        }
        // The title is searched, too.
        assert_eq!(find(&corpus, "observatory", SearchMode::FullText, 5).await, ["observatory"]);
        let info = CollectionInfo { name: "c".into(), documents: 3, passages: 3, damaged: None };
        assert_eq!(corpus.collections().await.unwrap(), [info]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingesting_the_same_again_embeds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let documents = [document("a", "One sentence here. Another sentence there."), document("b", "Some words.")];
    upsert(&corpus, &documents).await;
    let embedded = corpus.counters().texts_embedded;
    let corpus = open(folder.path()).await;
    let report = upsert(&corpus, &documents).await;
    assert_eq!(report, UpsertReport { documents_unchanged: 2, ..UpsertReport::default() });
    assert_eq!(corpus.counters().texts_embedded, 0);
    assert_eq!(embedded, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_document_replaces_all_passages_of_the_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let long = "Elephants walk to the lake in the dry season every year. ".repeat(8);
    upsert(&corpus, &[document("it's", &long), document("b", "Quiet words about glass.")]).await;
    let before = corpus.document("c", "it's").await.unwrap();
    assert!(before.passages.len() > 3);
    assert_eq!(before.info.passages, before.passages.len());
    let report = upsert(&corpus, &[document("it's", "Zebras now.")]).await;
    let wanted = UpsertReport {
        documents_replaced: 1,
        passages_added: 1,
        passages_removed: before.passages.len(),
        ..UpsertReport::default()
    };
    assert_eq!(report, wanted);
    assert_eq!(find(&corpus, "elephants", SearchMode::FullText, 5).await, [""; 0]);
    assert_eq!(find(&corpus, "zebras", SearchMode::FullText, 5).await, ["it's"]);
    assert_eq!(find(&corpus, "glass", SearchMode::Fused, 1).await, ["b"]);
    assert_eq!(corpus.collections().await.unwrap()[0].passages, 2);
    // An empty text leaves nothing to find.
    let report = upsert(&corpus, &[document("it's", " \n")]).await;
    assert_eq!(report, UpsertReport { documents_empty: 1, passages_removed: 1, ..UpsertReport::default() });
    assert_eq!(corpus.document("c", "it's").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_documents_with_one_identity_the_later_wins() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let report = upsert(&corpus, &[document("a", "First."), document("b", "Other."), document("a", "Second.")]).await;
    assert_eq!((report.documents_added, report.documents_unchanged), (2, 1));
    assert_eq!(corpus.document("c", "a").await.unwrap().passages[0].text, "Second.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passages_carry_everything_and_together_are_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let text = "The first sentence has seven words inside. ".repeat(9);
    let mut metadata = serde_json::Map::new();
    metadata.insert("page".into(), 7.into());
    let given = Document {
        id: None,
        title: "A title".into(),
        text: text.clone(),
        source: Some("/tmp/it's \"here\".txt".into()),
        metadata: metadata.clone(),
        ..Document::default()
    };
    upsert(&corpus, std::slice::from_ref(&given)).await;
    let stored = corpus.document("c", &given.identity().unwrap()).await.unwrap();
    assert_eq!((stored.info.title.as_str(), stored.info.source.clone()), ("A title", given.source.clone()));
    let texts: Vec<&str> = stored.passages.iter().map(|passage| passage.text.as_str()).collect();
    assert_eq!(texts.join(" "), text.trim());
    for (ordinal, passage) in stored.passages.iter().enumerate() {
        assert_eq!(passage.ordinal as usize, ordinal);
        assert_eq!((&passage.source, passage.metadata.entries().unwrap()), (&given.source, metadata.clone()));
        assert_eq!(passage.token_ids[..], ENCODER.tokenize_passage("A title", &passage.text).unwrap());
        assert!(ENCODER.count_tokens(&passage.text) <= 14, "the title's tokens count");
    }
    let infos = corpus.documents("c", 0, 10).await.unwrap();
    assert_eq!(infos, [stored.info]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_listed_in_pages_by_id() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let documents: Vec<_> = (0..9).rev().map(|n| document(&format!("d{n}"), &format!("Text {n}."))).collect();
    upsert(&corpus, &documents).await;
    let ids = |infos: Vec<DocumentInfo>| infos.into_iter().map(|info| info.id).collect::<Vec<_>>();
    assert_eq!(ids(corpus.documents("c", 0, 4).await.unwrap()), ["d0", "d1", "d2", "d3"]);
    assert_eq!(ids(corpus.documents("c", 7, 4).await.unwrap()), ["d7", "d8"]);
    assert_eq!(ids(corpus.documents("c", 20, 4).await.unwrap()), [""; 0]);
    assert_eq!(ids(corpus.documents("c", 0, 0).await.unwrap()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_only_words() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a", "Granite bridges stand."), document("b", "Rye bread.")]).await;
    let hostile = [
        "\"granite",
        "granite AND (",
        "content:granite^2 ~",
        "granite* OR 1=1; --",
        "'granite'",
        "{granite:[}",
        "+granite -rye\\",
        "granite\u{0}\u{7f}",
        "granite \u{202e} ",
    ];
    for query in hostile {
        assert_eq!(find(&corpus, query, SearchMode::FullText, 1).await, ["a"], "{query:?}");
        for mode in MODES {
            assert_eq!(find(&corpus, query, mode, 1).await.len(), 1, "{query:?} {mode:?}");
        }
    }
    for nothing in ["", " \n", "?!", "the of and", "\u{1F980}"] {
        for mode in MODES {
            let hits = find(&corpus, nothing, mode, 2).await;
            assert!(hits.is_empty() || mode != SearchMode::FullText, "{nothing:?} {mode:?} {hits:?}");
        }
    }
    assert!(find(&corpus, "", SearchMode::Fused, 2).await.is_empty());
    assert!(find(&corpus, "granite", SearchMode::Fused, 0).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_contents_are_given_once_and_ties_go_by_id() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let same = |id: &str| Document { title: String::new(), ..document(id, "Identical words here.") };
    let tie = |id: &str, text: &str| Document { title: String::new(), ..document(id, text) };
    upsert(&corpus, &[same("z"), same("m"), tie("b", "Here words identical."), tie("a", "Words here identical.")])
        .await;
    for mode in MODES {
        // Of the two that are the same "z" was there first.
        assert_eq!(find(&corpus, "identical words", mode, 10).await, ["a", "b", "z"], "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collections_are_worlds_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    for collection in ["one", "two.two", "__x"] {
        let document = document("same", &format!("Only {collection} knows this."));
        corpus.upsert(collection, vec![document], &(), &|_| Ok(())).await.unwrap();
    }
    let hits = corpus.search("two.two", "knows", &SearchOptions::default()).await.unwrap();
    assert_eq!(hits.len(), 1);
    assert_eq!(
        (hits[0].passage.collection.as_str(), hits[0].passage.text.as_str()),
        ("two.two", "Only two.two knows this.")
    );
    assert_eq!(corpus.delete_collection("two.two", &()).await.unwrap(), 1);
    let corpus = open(folder.path()).await;
    let names: Vec<_> = corpus.collections().await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["__x", "one"]);
    let unknown = corpus.search("two.two", "x", &SearchOptions::default()).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("two.two"), "{unknown}");
    for bad in ["", "a b", "a/", "/a", "../", "\n/up", "ünï", &"x".repeat(65), "a\"; DROP"] {
        let error = corpus.upsert(bad, vec![], &(), &|_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = corpus.search(bad, "x", &SearchOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_takes_a_document_out_and_leaves_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a' OR '1'='1", "Granite bridge."), document("b", "Granite wall.")]).await;
    assert_eq!(corpus.delete("c", "nobody", &()).await.unwrap(), 0);
    assert_eq!(corpus.delete("c", "a' OR '1'='1", &()).await.unwrap(), 1);
    assert_eq!(find(&corpus, "granite", SearchMode::Fused, 5).await, ["b"]);
    assert_eq!(corpus.delete("c", "b", &()).await.unwrap(), 1);
    for mode in MODES {
        assert!(find(&corpus, "granite", mode, 5).await.is_empty(), "an empty collection has no hits");
    }
    upsert(&corpus, &[document("b", "Granite wall.")]).await;
    assert_eq!(find(&corpus, "granite", SearchMode::Fused, 5).await, ["b"]);
    assert_eq!(corpus.delete("nowhere", "b", &()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_embedding_model_is_refused_and_another_tokenizer_is_made_good() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a", "Granite bridge.")]).await;
    let other = WordEncoder { model: "words-2", ..ENCODER };
    let error = open_with(folder.path(), other, CorpusOptions::default()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    for part in ["words-1", "words-2", "`c`", "ingest"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let other = WordEncoder { tokenizer: "tokens-2", ..ENCODER };
    let corpus = open_with(folder.path(), other.clone(), CorpusOptions::default()).await.unwrap();
    let hits = corpus.search("c", "granite", &SearchOptions::default()).await.unwrap();
    assert_eq!(hits[0].passage.token_ids[..], other.tokenize_passage("About a", "Granite bridge.").unwrap());
    assert_ne!(hits[0].passage.token_ids[..], ENCODER.tokenize_passage("About a", "Granite bridge.").unwrap());
    assert_eq!(corpus.counters().passages_retokenized, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_creation_cut_off_left_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("passages-c.lance/data")).unwrap();
    std::fs::create_dir_all(folder.path().join("somebody-elses")).unwrap();
    let corpus = open(folder.path()).await;
    assert!(corpus.collections().await.unwrap().is_empty());
    assert!(folder.path().join("somebody-elses").exists());
    upsert(&corpus, &[document("a", "Granite bridge.")]).await;
    assert_eq!(find(&corpus, "granite", SearchMode::Fused, 5).await, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_counts_up_to_everything() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let documents: Vec<_> = (0..150).map(|n| document(&format!("d{n}"), &format!("Number {n}."))).collect();
    let seen = std::sync::Mutex::new(Vec::new());
    corpus
        .upsert("c", documents, &(), &|progress| {
            seen.lock().unwrap().push(progress);
            Ok(())
        })
        .await
        .unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].documents_done <= pair[1].documents_done));
    let bytes_cut = (0..150).map(|n| format!("Number {n}.").len()).sum();
    let (documents, passages) = (150, 150);
    let last = UpsertProgress {
        documents_done: documents,
        documents_total: documents,
        passages_embedded: passages,
        passages_cut: passages,
        bytes_cut,
    };
    assert_eq!(seen.last(), Some(&last));
    assert!(seen.iter().any(|progress| progress.documents_done == GROUP_PASSAGES));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upsert_that_nobody_wants_any_more_ends_between_commits() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let documents: Vec<_> = (0..150).map(|n| document(&format!("d{n}"), &format!("Number {n}."))).collect();
    let until_one_commit = |progress: UpsertProgress| match progress.documents_done {
        0 => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled, "gone")),
    };
    let ended = corpus.upsert("c", documents.clone(), &(), &until_one_commit).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    let there = corpus.documents("c", 0, 1000).await.unwrap().len();
    assert_eq!(there, GROUP_PASSAGES);
    upsert(&corpus, &documents).await;
    assert_eq!(corpus.documents("c", 0, 1000).await.unwrap().len(), 150);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_keep_makes_no_collection() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let report = corpus.upsert("c", vec![document("a", " \n")], &(), &|_| Ok(())).await.unwrap();
    assert_eq!((report.documents_empty, report.documents_added), (1, 0));
    corpus.upsert("c", vec![], &(), &|_| Ok(())).await.unwrap();
    assert!(corpus.collections().await.unwrap().is_empty());
    upsert(&corpus, &[document("a", "Words.")]).await;
    // An older version with words goes.
    upsert(&corpus, &[document("a", "")]).await;
    assert!(corpus.documents("c", 0, 10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_upserts_do_not_grow_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let words = |n: usize| format!("Word{} and number{n} meet.", n * 7919 % 1000);
    let documents: Vec<_> = (0..300).map(|n| document(&format!("d{n:03}"), &words(n))).collect();
    upsert(&corpus, &documents).await;
    let mut sizes = Vec::new();
    for round in 0..80 {
        let report = upsert(&corpus, &[document("changing", &format!("Round{round} of it."))]).await;
        assert_eq!(report.passages_added, 1);
        sizes.push(bytes_on_disk(folder.path()));
    }
    let files = |folder: &str| {
        std::fs::read_dir(corpus.inner.home.folder().unwrap().join("passages-c.lance").join(folder)).unwrap().count()
    };
    assert!(files("_versions") <= 40 && files("data") <= 60, "{} {}", files("_versions"), files("data"));
    assert!(sizes[79] < sizes[39] * 3 / 2 && sizes[79] < 3_000_000, "{sizes:?}");
    for mode in MODES {
        assert_eq!(find(&corpus, "round79", mode, 1).await, ["changing"], "{mode:?}");
        assert_eq!(find(&corpus, "number123", mode, 1).await, ["d123"], "{mode:?}");
    }
    assert!(find(&corpus, "round78", SearchMode::FullText, 5).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upsert_that_was_cut_off_leaves_whole_documents_and_is_finished_by_the_next() {
    let text = |n: usize, version: &str| format!("{version} number{n} walks to the lake every year. ").repeat(4);
    let documents = |version: &str| -> Vec<Document> {
        (0..60).map(|n| document(&format!("d{n:02}"), &text(n, version))).collect()
    };
    let mut cut_off = 0;
    for delay in [1, 10, 20, 40, 80, 160] {
        let folder = tempfile::tempdir().unwrap();
        upsert(&open(folder.path()).await, &documents("old")).await;
        let (path, new) = (folder.path().to_owned(), documents("new"));
        let upserting = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            // What was begun on its threads has ended when it is dropped, as with a process: nobody writes there any more.
            runtime.block_on(async move {
                let corpus = open(&path).await;
                let upserting = corpus.upsert("c", new, &(), &|_| Ok(()));
                tokio::time::timeout(std::time::Duration::from_millis(delay), upserting).await.is_err()
            })
        });
        cut_off += usize::from(upserting.await.unwrap());
        let corpus = open(folder.path()).await;
        for info in corpus.documents("c", 0, 100).await.unwrap() {
            let stored = corpus.document("c", &info.id).await.unwrap();
            let whole: Vec<_> = stored.passages.iter().map(|passage| passage.text.as_str()).collect();
            let n = info.id[1..].parse().unwrap();
            assert!(["old", "new"].iter().any(|version| whole.join(" ") == text(n, version).trim()), "{whole:?}");
        }
        upsert(&corpus, &documents("new")).await;
        assert!(find(&corpus, "old", SearchMode::FullText, 5).await.is_empty());
        assert_eq!(corpus.collections().await.unwrap()[0].documents, 60);
    }
    assert!(cut_off > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a", "Granite bridge version0."), document("b", "Rye bread.")]).await;
    let reading = tokio::spawn({
        let corpus = corpus.clone();
        async move {
            for _ in 0..150 {
                // At every instant exactly one version of the document is there.
                assert_eq!(
                    find(&corpus, "granite", SearchMode::Fused, 5).await.iter().filter(|id| *id == "a").count(),
                    1
                );
            }
        }
    });
    let mut round = 0;
    while !reading.is_finished() {
        round += 1;
        upsert(&corpus, &[document("a", &format!("Granite bridge version{round}."))]).await;
    }
    reading.await.unwrap();
    assert_eq!(corpus.document("c", "a").await.unwrap().passages[0].text, format!("Granite bridge version{round}."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_collection_is_searched_through_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let options = CorpusOptions { chunk_tokens: 18, vector_index_rows: 1000, ..CorpusOptions::default() };
    let corpus = open_with(folder.path(), ENCODER, options).await.unwrap();
    let words = |n: usize| format!("Animal{} eats plant{} near place{}.", n % 37, n % 61, n);
    let documents: Vec<_> = (0..1500).map(|n| document(&format!("d{n:04}"), &words(n))).collect();
    upsert(&corpus, &documents).await;
    let indexes =
        std::fs::read_dir(corpus.inner.home.folder().unwrap().join("passages-c.lance/_indices")).unwrap().count();
    assert!(indexes >= 2, "full-text and vector");
    upsert(&corpus, &[document("fresh", "Animal0 sings opera near place2000.")]).await;
    for (query, id) in [("about d0777 animal0 eats plant45 near place777", "d0777"), ("sings opera", "fresh")] {
        for mode in MODES {
            assert_eq!(find(&corpus, query, mode, 3).await[0], id, "{mode:?}");
        }
    }
    assert_eq!(corpus.delete("c", "d0777", &()).await.unwrap(), 1);
    assert_ne!(find(&corpus, "about d0777 animal0 eats plant45 near place777", SearchMode::Vector, 1).await, ["d0777"]);
}

/// In stages and without, over an index: what is told in the end is the same, and what is told before comes from fewer cells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_in_stages_ends_where_the_search_does() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::seeded(1, 0);
    // So long that the words are found before the last stage ends, on a busy machine, too.
    env.set_fail_point("corpus.probe", FailMode::Delay(std::time::Duration::from_millis(20)), 1);
    let options = CorpusOptions { chunk_tokens: 18, vector_index_rows: 1000, env, ..CorpusOptions::default() };
    let corpus = open_with(folder.path(), ENCODER, options).await.unwrap();
    let search = async |query: &str, top_k: usize, staged: bool| {
        let (options, mut stages) = (SearchOptions { top_k, ..SearchOptions::default() }, Vec::new());
        let mut stage = |hits: Vec<Hit>| stages.push(hits);
        let found = corpus.search_in_stages("c", query, &options, staged, &mut stage).await.unwrap();
        let (hits, ms) = (found.hits, found.search_ms);
        assert_eq!(hits, corpus.search("c", query, &options).await.unwrap(), "{query}");
        assert!(ms > 0.0 || query.is_empty());
        (hits, stages)
    };
    let words = |n: usize| format!("Animal{} eats plant{} near place{}.", n % 37, n % 61, n);
    let documents: Vec<_> = (0..500).map(|n| document(&format!("d{n:04}"), &words(n))).collect();
    upsert(&corpus, &documents).await;
    assert!(
        search("animal3 eats plant5", 5, true).await.1.is_empty(),
        "without an index all vectors are compared at once"
    );
    // Enough for more cells than the first stages look into.
    let documents: Vec<_> = (500..10_000).map(|n| document(&format!("d{n:05}"), &words(n))).collect();
    for some in documents.chunks(5000) {
        upsert(&corpus, some).await;
    }
    let mut early = 0;
    // The cells are another index's at each run: of ten, one at least is found early.
    for n in (0..10_000).step_by(1111) {
        let (hits, stages) = search(&words(n), 1, true).await;
        assert!((1..=2).contains(&stages.len()), "{}", stages.len());
        assert!(stages.iter().all(|stage| stage.len() == 1));
        early += usize::from(stages[0] == hits);
        assert!(search(&words(n), 3, false).await.1.is_empty(), "nobody asked for stages");
    }
    assert!(early > 0, "the best are often found early");
    assert!(search("", 3, true).await.0.is_empty());
}

/// Notes who was said to leave.
#[derive(Default)]
struct Noted(std::sync::Mutex<Vec<PassageTokens>>);

impl Departures for Noted {
    fn departing(&self, passages: Vec<PassageTokens>) -> Result<()> {
        self.0.lock().unwrap().extend(passages);
        Ok(())
    }

    fn leaving(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

impl Noted {
    fn take(&self) -> Vec<String> {
        let mut noted: Vec<_> = self.0.lock().unwrap().drain(..).map(|passage| passage.document_id).collect();
        noted.sort();
        noted
    }
}

/// Document, title and place of every passage.
async fn places(corpus: &Corpus, scope: Scope<'_>) -> Vec<(String, String, u32)> {
    let mut found = Vec::new();
    let mut each = |passages: Vec<PassageTokens>| {
        found.extend(passages.into_iter().map(|passage| (passage.document_id, passage.title, passage.ordinal)));
        Ok(())
    };
    corpus.scan(scope, &mut each).await.unwrap();
    found.sort();
    found
}

async fn tokens(corpus: &Corpus, scope: Scope<'_>) -> Vec<(String, Vec<u32>)> {
    let mut found = Vec::new();
    let mut each = |passages: Vec<PassageTokens>| {
        found.extend(passages.into_iter().map(|passage| (passage.document_id, passage.token_ids.to_vec())));
        Ok(())
    };
    corpus.scan(scope, &mut each).await.unwrap();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passages_are_scanned_by_collection_and_document_in_the_own_tokenizers_ids() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a", "Granite bridge."), document("it's", "Rye bread.")]).await;
    corpus.upsert("other", vec![document("a", "Glass lamp.")], &(), &|_| Ok(())).await.unwrap();
    let wanted =
        |id: &str, text: &str| (id.to_owned(), ENCODER.tokenize_passage(&format!("About {id}"), text).unwrap());
    let c = Scope { collection: Some("c"), document: None };
    assert_eq!(tokens(&corpus, c).await, [wanted("a", "Granite bridge."), wanted("it's", "Rye bread.")]);
    let one = Scope { collection: Some("c"), document: Some("it's") };
    assert_eq!(tokens(&corpus, one).await, [wanted("it's", "Rye bread.")]);
    let place = [("it's".to_owned(), "About it's".to_owned(), 0)];
    assert_eq!(places(&corpus, one).await, place);
    let mut anywhere = vec![wanted("a", "Granite bridge."), wanted("a", "Glass lamp.")];
    anywhere.sort();
    assert_eq!(tokens(&corpus, Scope { collection: None, document: Some("a") }).await, anywhere);
    assert_eq!(tokens(&corpus, Scope::default()).await.len(), 3);
    let error = corpus.passage_ids(Scope { collection: Some("nowhere"), document: None }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    drop(corpus);
    // Another tokenizer: its ids, and those of the earlier one beside them.
    let encoder = WordEncoder { tokenizer: "tokens-2", ..ENCODER };
    let corpus = open_with(folder.path(), encoder.clone(), CorpusOptions::default()).await.unwrap();
    assert_eq!(places(&corpus, one).await, place);
    let ids = corpus.passage_ids(one).await.unwrap();
    let [passage] = &corpus.passages_of("c", &ids).await.unwrap()[..] else { panic!("not one passage") };
    assert_eq!(*passage.token_ids, *encoder.tokenize_passage("About it's", "Rye bread.").unwrap());
    assert_eq!(passage.earlier_token_ids.as_deref(), Some(&wanted("it's", "Rye bread.").1[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distinct_passages_are_found_by_id_and_absent_ones_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let same = |id: &str| Document { title: String::new(), ..document(id, "The same words.") };
    upsert(&corpus, &[same("a"), same("b"), document("c", "Other words.")]).await;
    let ids = corpus.passage_ids(Scope { collection: Some("c"), document: None }).await.unwrap();
    assert_eq!(ids.len(), 2);
    assert!(ids.is_sorted());
    assert_eq!(corpus.passages_of("c", &ids).await.unwrap().len(), 2);
    let shared = corpus.document("c", "a").await.unwrap().passages[0].id.clone();
    assert_eq!(corpus.delete("c", "a", &()).await.unwrap(), 1);
    let mut absent = HashSet::from([shared.clone(), "0f".to_owned()]);
    corpus.retain_absent(&|_| true, &mut absent).await.unwrap();
    assert_eq!(absent, HashSet::from(["0f".to_owned()]), "document b still has it");
    assert_eq!(corpus.delete("c", "b", &()).await.unwrap(), 1);
    let mut absent = HashSet::from([shared.clone()]);
    corpus.retain_absent(&|_| true, &mut absent).await.unwrap();
    assert_eq!(absent, HashSet::from([shared]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collections_of_one_name_are_each_tenants_own_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["notes", "acme/notes", "Team_7.blue/notes"];
    let same = Document { title: String::new(), ..document("a", "The same words.") };
    {
        let corpus = open(folder.path()).await;
        for name in names {
            corpus.upsert(name, vec![same.clone()], &(), &|_| Ok(())).await.unwrap();
        }
        let error = corpus.upsert("/notes", vec![same.clone()], &(), &|_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let corpus = open(folder.path()).await;
    let listed: Vec<String> = corpus.collections().await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(listed, [names[2], names[1], names[0]]);
    assert_eq!(corpus.delete("acme/notes", "a", &()).await.unwrap(), 1);
    assert_eq!(corpus.documents("notes", 0, 9).await.unwrap().len(), 1);
    let passage = corpus.document("notes", "a").await.unwrap().passages[0].id.clone();
    for (tenant, is_absent) in [(None, false), (Some(""), false), (Some("acme"), true), (Some("Team_7.blue"), false)] {
        let mut absent = HashSet::from([passage.clone()]);
        corpus.retain_absent(&|name| tenant.is_none_or(|tenant| tenant == tenant_of(name)), &mut absent).await.unwrap();
        assert_eq!(!absent.is_empty(), is_absent, "{tenant:?}");
    }
    corpus.delete_collection("acme/notes", &()).await.unwrap();
    assert_eq!(open(folder.path()).await.collections().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_leaves_is_announced_before_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let noted = Noted::default();
    let put = |documents: Vec<Document>| corpus.upsert("c", documents, &noted, &|_| Ok(()));
    put(vec![document("a", "One."), document("b", "Two."), document("c", "Three."), document("d", "Four.")])
        .await
        .unwrap();
    assert_eq!(noted.take(), [""; 0], "nothing left");
    put(vec![document("a", "One."), document("b", "Changed."), document("c", " ")]).await.unwrap();
    assert_eq!(noted.take(), ["b", "c"], "replaced and emptied");
    corpus.delete("c", "a", &noted).await.unwrap();
    assert_eq!(noted.take(), ["a"]);
    corpus.delete_collection("c", &noted).await.unwrap();
    assert_eq!(noted.take(), ["b", "d"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_noted_stays() {
    struct Unable;
    impl Departures for Unable {
        fn departing(&self, _: Vec<PassageTokens>) -> Result<()> {
            Err(Error::new(ErrorKind::Full, "no room for the journal"))
        }

        fn leaving(&self, _: &str) -> Result<()> {
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("a", "Granite bridge.")]).await;
    assert_eq!(corpus.delete("c", "a", &Unable).await.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(corpus.delete_collection("c", &Unable).await.unwrap_err().kind(), ErrorKind::Full);
    let changed = corpus.upsert("c", vec![document("a", "Zebras.")], &Unable, &|_| Ok(())).await;
    assert_eq!(changed.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(find(&corpus, "granite", SearchMode::FullText, 5).await, ["a"]);
}

/// Where a text's pages begin, and what a search says of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passages_know_their_page() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let pages = ["Granite bridges stand long. ", "Zebras graze at night. ", "Lanterns burn green. "]
        .map(|page| page.repeat(40));
    let mut starts = vec![0, pages[0].len(), pages[0].len() + pages[1].len()];
    let text = pages.concat();
    upsert(&corpus, &[Document { pages: starts.clone(), ..document("a", &text) }, document("b", "Herons fish.")]).await;
    for (query, page) in [("granite", Some(1)), ("lanterns", Some(3)), ("herons", None)] {
        let options = SearchOptions { top_k: 9, mode: SearchMode::FullText, ..SearchOptions::default() };
        let hits = corpus.search("c", query, &options).await.unwrap();
        assert_eq!(hits.iter().map(|hit| hit.passage.page).max().flatten(), page, "{query}");
    }
    // Another beginning of pages is another version.
    starts[1] += 1;
    let report = upsert(&corpus, &[Document { pages: starts, ..document("a", &text) }]).await;
    assert_eq!(report.documents_replaced, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identifier_is_found_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let hash = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c";
    let mut documents: Vec<Document> = ["1.2.3", "1.3.2", "2.1.3", "2.3.1", "3.1.2", "3.2.1"]
        .iter()
        .map(|version| document(version, &format!("Version {version} of the controller changes the buffer.")))
        .collect();
    documents.extend(
        (0..30).map(|n| {
            document(&format!("h{n}"), &format!("Commit {}{n:02} was merged.", &hash[..38].replace('f', "e")))
        }),
    );
    documents.push(document("hash", &format!("Commit {hash} was merged.")));
    documents.push(document("part", "Part PPR-1670 is made of brass."));
    upsert(&corpus, &documents).await;
    for mode in [SearchMode::FullText, SearchMode::Fused] {
        for (query, expected) in [
            ("What changes in version 3.1.2?", "3.1.2"),
            (&*format!("Who merged commit {hash}?"), "hash"),
            ("Who merged 0f1e2d3c4?", "hash"),
            ("What is ppr1670 made of?", "part"),
        ] {
            assert_eq!(find(&corpus, query, mode, 1).await, [expected], "{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_of_an_earlier_version_is_searched_until_it_is_built_anew() {
    let folder = tempfile::tempdir().unwrap();
    let name = "abstractcustomersynchronizationrepositoryfactory";
    {
        let corpus = open(folder.path()).await;
        upsert(&corpus, &[document("a", &format!("Commit {name} on granite.")), document("b", "Commit on zebras.")])
            .await;
        // As that version made it.
        let table = corpus.find("c").await.unwrap();
        table.table.drop_index(crate::table::TEXT_INDEX).await.unwrap();
        let index = lancedb::index::Index::FTS(lancedb::index::scalar::FtsIndexBuilder::default());
        table.table.create_index(&["content"], index).execute().await.unwrap();
        acknowledge(&table).await;
    }
    let corpus = open(folder.path()).await;
    assert_eq!(find(&corpus, "granite", SearchMode::FullText, 5).await, ["a"]);
    assert_eq!(find(&corpus, name, SearchMode::FullText, 5).await, [""; 0]);
    assert_eq!(corpus.renew_word_indexes().await, 1);
    assert_eq!(find(&corpus, name, SearchMode::FullText, 5).await, ["a"]);
    assert_eq!(find(&corpus, "zebras", SearchMode::FullText, 5).await, ["b"]);
    assert_eq!((corpus.renew_word_indexes().await, open(folder.path()).await.renew_word_indexes().await), (0, 0));
}
