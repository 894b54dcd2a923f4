//! Collections that are embedded again for another model.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Another model: half as many numbers.
#[derive(Clone)]
struct Narrow;

impl PassageEncoder for Narrow {
    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        Ok(self.embed_passages(&[text.to_owned()])?.remove(0))
    }

    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let fold = |wide: Vec<f32>| {
            let (low, high) = wide.split_at(DIMENSION / 2);
            let sum: Vec<f32> = low.iter().zip(high).map(|(a, b)| a - 0.5 * b).collect();
            let norm = sum.iter().map(|x| x * x).sum::<f32>().sqrt();
            sum.into_iter().map(|x| x / norm).collect()
        };
        Ok(ENCODER.embed_passages(texts)?.into_iter().map(fold).collect())
    }

    fn dimension(&self) -> usize {
        DIMENSION / 2
    }

    fn identity(&self) -> String {
        "narrow".to_owned()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>> {
        ENCODER.tokenize_passage(title, text)
    }

    fn tokenizer_identity(&self) -> String {
        ENCODER.tokenizer_identity()
    }

    fn count_tokens(&self, text: &str) -> usize {
        ENCODER.count_tokens(text)
    }
}

fn known(identity: &str) -> Option<Arc<dyn PassageEncoder>> {
    (identity == ENCODER.model).then(|| Arc::new(ENCODER) as Arc<dyn PassageEncoder>)
}

fn unknown(_: &str) -> Option<Arc<dyn PassageEncoder>> {
    None
}

/// Opened with the other model in use.
async fn narrow(folder: &Path, earlier: Earlier<'_>, env: Env) -> Corpus {
    let options = CorpusOptions { chunk_tokens: 18, env, ..CorpusOptions::default() };
    Corpus::open_with(folder, Arc::new(Narrow), earlier, options).await.unwrap()
}

fn numbered(n: usize) -> Document {
    document(
        &format!("d{n:03}"),
        &format!("Animal{} eats plant{} near place{n}. Then animal{n} sleeps in the shade.", n % 7, n % 11),
    )
}

async fn built(folder: &Path, count: usize) -> Vec<Document> {
    let documents: Vec<_> = (0..count).map(numbered).collect();
    upsert(&open(folder).await, &documents).await;
    documents
}

async fn renewed(corpus: &Corpus) -> RenewalProgress {
    corpus.renew("c", &|_| Ok(())).await.unwrap()
}

fn tables(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name.ends_with(".lance")).collect();
    names.sort();
    names
}

/// Asks for pages that the writer leaves alone, until it is over; how often.
async fn read(corpus: Corpus, mut n: usize, over: Arc<AtomicBool>) -> usize {
    let mut asked = 0;
    while !over.load(Ordering::Relaxed) || asked < 20 {
        n = (n + 7) % 200;
        let mode = MODES[n % 3];
        let found = find(&corpus, &numbered(n).text, mode, 3).await;
        assert!(found.contains(&format!("d{n:03}")), "{n} {mode:?} {found:?}");
        assert_eq!(corpus.document("c", &format!("d{n:03}")).await.unwrap().info.passages, 1);
        asked += 1;
    }
    asked
}

/// The whole of it under load: nobody who asks meanwhile misses anything, and nothing that is written is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collection_is_embedded_again_while_it_is_searched_and_changed() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path(), 300).await;
    let env = Env::seeded(1, 0);
    let corpus = narrow(folder.path(), &known, env).await;
    let before = tokens(&corpus, Scope { collection: Some("c"), document: None }).await;
    let stale = BuiltWith { collection: "c".into(), embedder: "words-1".into(), words_only: false };
    assert_eq!(corpus.stale().await, [stale]);
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3).map(|n| tokio::spawn(read(corpus.clone(), n, over.clone()))).collect();
    let writer = {
        let (corpus, over) = (corpus.clone(), over.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) || n < 10 {
                let text = format!("Version{n} of a page about gardens.");
                let fresh = document(&format!("fresh{n:04}"), "A page that came meanwhile.");
                upsert(&corpus, &[document("changing", &text), fresh]).await;
                corpus.delete("c", &format!("d{:03}", 200 + n % 100), &()).await.unwrap();
                n += 1;
            }
            n
        })
    };
    let (told, embedded) = (std::sync::Mutex::new(Vec::new()), corpus.counters().texts_embedded);
    let tell = |progress| {
        told.lock().unwrap().push(progress);
        Ok(())
    };
    let done = corpus.renew("c", &tell).await.unwrap();
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() >= 20);
    }
    let written = writer.await.unwrap();
    assert_eq!(done.passages_done, done.passages_total);
    assert!(told.lock().unwrap().len() > 4 && corpus.counters().texts_embedded > embedded + 200);
    assert!(corpus.stale().await.is_empty());
    for is_reopened in [false, true] {
        let corpus = if is_reopened { narrow(folder.path(), &unknown, Env::system()).await } else { corpus.clone() };
        for mode in MODES {
            let query = format!("Version{} of a page about gardens.", written - 1);
            assert_eq!(find(&corpus, &query, mode, 1).await, ["changing"], "{mode:?}");
        }
        let listed = corpus.documents("c", 0, 1000).await.unwrap();
        let deleted = written.min(100);
        assert_eq!(listed.len(), 300 - deleted + 1 + written);
        let after = tokens(&corpus, Scope { collection: Some("c"), document: None }).await;
        let kept = before.iter().filter(|(id, _)| after.iter().any(|(other, _)| other == id));
        assert!(
            kept.clone().count() >= 200 && kept.clone().all(|passage| after.contains(passage)),
            "KV keeps its tokens"
        );
    }
    drop(corpus);
    assert_eq!(tables(folder.path()), ["passages-c.lance"]);
    // The model that it was built with is another one now.
    assert_eq!(
        open_with(folder.path(), ENCODER, CorpusOptions::default()).await.err().unwrap().kind(),
        ErrorKind::Incompatible
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_embedded_before_it_was_cut_off_is_not_embedded_again() {
    let folder = tempfile::tempdir().unwrap();
    let documents = built(folder.path(), 300).await;
    let env = Env::seeded(1, 0);
    env.set_fail_point("renewal.after_commit", FailMode::Error(ErrorKind::Internal), 3);
    {
        let corpus = narrow(folder.path(), &known, env).await;
        corpus.renew("c", &|_| Ok(())).await.unwrap_err();
        assert_eq!(find(&corpus, &numbered(7).text, SearchMode::Vector, 1).await, ["d007"], "with the older model");
    }
    assert_eq!(tables(folder.path()), ["building-c.lance", "passages-c.lance"]);
    let corpus = narrow(folder.path(), &known, Env::system()).await;
    let done = renewed(&corpus).await;
    assert_eq!(done.passages_total, 300);
    let embedded = corpus.counters().texts_embedded;
    assert!((100..=200).contains(&embedded), "{embedded}");
    assert_eq!(upsert(&corpus, &documents).await.documents_unchanged, 300);
}

/// Ended before and behind the rename that is the switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_switch_is_done_or_undone() {
    for (point, is_done) in [("renewal.built", false), ("renewal.switched", true)] {
        let folder = tempfile::tempdir().unwrap();
        built(folder.path(), 20).await;
        let env = Env::seeded(1, 0);
        env.set_fail_point(point, FailMode::Error(ErrorKind::Internal), 1);
        narrow(folder.path(), &known, env).await.renew("c", &|_| Ok(())).await.unwrap_err();
        let corpus = narrow(folder.path(), &known, Env::system()).await;
        assert_eq!(corpus.stale().await.is_empty(), is_done, "{point}");
        for mode in MODES {
            assert_eq!(find(&corpus, &numbered(7).text, mode, 1).await, ["d007"], "{point} {mode:?}");
        }
        renewed(&corpus).await;
        assert_eq!(find(&corpus, &numbered(7).text, SearchMode::Vector, 1).await, ["d007"], "{point}");
        assert_eq!(
            corpus.counters().texts_embedded,
            3,
            "{point}: questions alone, as all passages were embedded before"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_goes_back_to_the_first_model_keeps_nothing_of_the_second() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path(), 300).await;
    let env = Env::seeded(1, 0);
    env.set_fail_point("renewal.after_commit", FailMode::Error(ErrorKind::Internal), 2);
    narrow(folder.path(), &known, env).await.renew("c", &|_| Ok(())).await.unwrap_err();
    assert_eq!(tables(folder.path()), ["building-c.lance", "passages-c.lance"]);
    let corpus = open_with(folder.path(), ENCODER, CorpusOptions::default()).await.unwrap();
    assert_eq!(tables(folder.path()), ["passages-c.lance"]);
    assert_eq!(find(&corpus, &numbered(7).text, SearchMode::Vector, 1).await, ["d007"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_model_is_loaded_once_for_all_collections() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path(), 2).await;
    {
        let corpus = open_with(folder.path(), ENCODER, CorpusOptions::default()).await.unwrap();
        corpus.upsert("d", vec![document("one", "One page.")], &(), &|_| Ok(())).await.unwrap();
    }
    let loads = std::sync::atomic::AtomicUsize::new(0);
    let counting = |identity: &str| {
        loads.fetch_add(1, Ordering::Relaxed);
        known(identity)
    };
    let corpus = narrow(folder.path(), &counting, Env::system()).await;
    assert_eq!((loads.load(Ordering::Relaxed), corpus.stale().await.len()), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_older_model_words_are_searched_until_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path(), 20).await;
    let corpus = narrow(folder.path(), &unknown, Env::system()).await;
    assert!(corpus.stale().await[0].words_only);
    for mode in MODES {
        assert_eq!(find(&corpus, &numbered(7).text, mode, 1).await, ["d007"], "{mode:?}");
    }
    let hits = corpus.search_in_stages("c", "place7", &SearchOptions::default(), true, &mut |_| {}).await.unwrap().hits;
    assert_eq!(hits.len(), 1, "no vector finds what the words do not");
    let add = async || corpus.upsert("c", vec![document("new", "Something new.")], &(), &|_| Ok(())).await;
    let error = add().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("once the collection is embedded again"), "{error}");
    assert_eq!(corpus.delete("c", "d003", &()).await.unwrap(), 1);
    assert_eq!(renewed(&corpus).await.passages_total, 19);
    add().await.unwrap();
    assert_eq!(find(&corpus, "something new", SearchMode::Vector, 1).await, ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_leaves_nothing_and_what_is_deleted_does_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path(), 200).await;
    let corpus = narrow(folder.path(), &known, Env::system()).await;
    let stop = |progress: RenewalProgress| match progress.passages_done {
        0 => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled, "enough")),
    };
    assert_eq!(corpus.renew("c", &stop).await.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(tables(folder.path()).len(), 2);
    corpus.abandon_renewal("c").await.unwrap();
    assert_eq!(tables(folder.path()), ["passages-c.lance"]);
    renewed(&corpus).await;
    assert_eq!(corpus.renew("c", &|_| Ok(())).await.unwrap(), RenewalProgress::default(), "nothing to do");
    assert_eq!(corpus.renew("nowhere", &|_| Ok(())).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(corpus.delete_collection("c", &()).await.unwrap(), 200);
    assert!(tables(folder.path()).is_empty());
    upsert(&corpus, &[document("again", "One page.")]).await;
    drop(corpus);
    let corpus = narrow(folder.path(), &unknown, Env::system()).await;
    assert_eq!(find(&corpus, "page", SearchMode::Fused, 3).await, ["again"]);
}
