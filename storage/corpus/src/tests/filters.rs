//! Metadata, and searches among the documents that it chooses.

use serde_json::{Value, json};

use super::*;

fn with(document: Document, metadata: Value) -> Document {
    let Value::Object(metadata) = metadata else { panic!("no object") };
    Document { metadata, ..document }
}

fn filter(given: Value) -> Filter {
    Filter::parse(&given).unwrap()
}

async fn found(corpus: &Corpus, query: &str, mode: SearchMode, top_k: usize, given: Value) -> Vec<String> {
    let options = SearchOptions { top_k, mode, filter: Some(filter(given)), ..SearchOptions::default() };
    let hits = corpus.search("c", query, &options).await.unwrap();
    let staged = corpus.search_in_stages("c", query, &options, true, &mut |_| {}).await.unwrap();
    assert_eq!(staged.hits, hits);
    for hit in &hits {
        assert!(options.filter.as_ref().unwrap().matches(&hit.passage.metadata.entries().unwrap()));
    }
    hits.into_iter().map(|hit| hit.passage.document_id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_chooses_before_the_best_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    // More documents that fit better than a search has candidates.
    let mut documents: Vec<_> = (0..300)
        .map(|n| {
            with(document(&format!("en{n}"), &format!("Granite bridge number{n}.")), json!({ "lang": "en", "n": n }))
        })
        .collect();
    documents.push(with(
        document("de", "A bridge in the far north, and much else of little interest here."),
        json!({
            "lang": "de", "it's \"odd\"; --": "x' OR '1'='1", "date": "2024-02-29", "tags": ["stone", "north"],
        }),
    ));
    documents.push(document("bare", "A bridge without any metadata."));
    upsert(&corpus, &documents).await;
    for corpus in [corpus.clone(), open(folder.path()).await] {
        for mode in MODES {
            let de = json!({ "type": "eq", "key": "lang", "value": "de" });
            assert_eq!(found(&corpus, "granite bridge", mode, 5, de).await, ["de"], "{mode:?}");
            let odd = json!({ "type": "eq", "key": "it's \"odd\"; --", "value": "x' OR '1'='1" });
            assert_eq!(found(&corpus, "granite bridge", mode, 5, odd).await, ["de"], "{mode:?}");
            for nothing in ["x", "' OR 1=1 --", "{}", "*", "%", "\u{0}", "日本", "\\"] {
                let nothing = json!({ "type": "eq", "key": "lang", "value": nothing });
                assert_eq!(found(&corpus, "granite bridge", mode, 5, nothing).await, [""; 0]);
            }
            let bare = json!({ "type": "not", "filter": { "type": "exists", "key": "lang" } });
            assert_eq!(found(&corpus, "granite bridge", mode, 5, bare).await, ["bare"], "{mode:?}");
            let few = json!({ "type": "and", "filters": [
                { "type": "gte", "key": "n", "value": 297 }, { "type": "lt", "key": "n", "value": "299" } ] });
            let mut found_few = found(&corpus, "granite bridge", mode, 5, few).await;
            found_few.sort();
            assert_eq!(found_few, ["en297", "en298"], "{mode:?}");
            let dated = json!({ "type": "or", "filters": [
                { "type": "lt", "key": "date", "value": "2024-03-01" }, { "type": "in", "key": "n", "value": [7] } ] });
            let mut found_dated = found(&corpus, "granite bridge", mode, 5, dated).await;
            found_dated.sort();
            assert_eq!(found_dated, ["de", "en7"], "{mode:?}");
            let tagged = json!({ "type": "prefix", "key": "tags", "value": "nor" });
            assert_eq!(found(&corpus, "granite bridge", mode, 1, tagged).await, ["de"], "{mode:?}");
        }
    }
}

/// Whatever filter and metadata: what is found is what fits, as the filter judges the documents one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_agree_with_the_filter_over_all_documents() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let values = [
        json!("a"),
        json!("10"),
        json!(9),
        json!(true),
        json!(null),
        json!(["a", 10]),
        json!({ "a": 1 }),
        json!("2024-01-31"),
    ];
    let documents: Vec<_> = (0..64)
        .map(|n| {
            let metadata = json!({ "x": values[n % 8], "y": values[n / 8] });
            with(document(&format!("d{n:02}"), &format!("Same words and number{n}.")), metadata)
        })
        .collect();
    upsert(&corpus, &documents).await;
    let mut random = fastrand_like(7);
    for _ in 0..40 {
        let given = random_filter(&mut random, 3, &values);
        let judge = filter(given.clone());
        let wanted: Vec<_> = documents
            .iter()
            .filter(|document| judge.matches(&document.metadata))
            .map(|document| document.id.clone().unwrap())
            .collect();
        for mode in MODES {
            let mut found = found(&corpus, "same words", mode, 100, given.clone()).await;
            found.sort();
            assert_eq!(found, wanted, "{given}");
        }
    }
}

/// A small generator of its own: the crate has none among its dependencies.
fn fastrand_like(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

fn random_filter(random: &mut impl FnMut(usize) -> usize, depth: usize, values: &[Value]) -> Value {
    let key = ["x", "y", "z"][random(3)];
    let scalars: Vec<&Value> = values.iter().filter(|value| value.is_string() || value.is_number()).collect();
    let value = scalars[random(scalars.len())].clone();
    match random(if depth == 0 { 9 } else { 13 }) {
        kind @ 0..6 => json!({ "type": (["eq", "ne", "gt", "gte", "lt", "lte"][kind]), "key": key, "value": value }),
        6 => json!({ "type": "in", "key": key, "value": [value, scalars[random(scalars.len())]] }),
        7 => json!({ "type": "exists", "key": key }),
        8 => json!({ "type": "prefix", "key": key, "value": (["", "1", "2024"][random(3)]) }),
        9 => json!({ "type": "not", "filter": random_filter(random, depth - 1, values) }),
        kind => {
            let filters: Vec<Value> = (0..2 + random(2)).map(|_| random_filter(random, depth - 1, values)).collect();
            json!({ "type": (["and", "or", "or"][kind - 10]), "filters": filters })
        }
    }
}

/// Through the index the filter comes first, too: what it leaves may be in any cell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_looks_into_as_many_cells_as_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let options = CorpusOptions { chunk_tokens: 18, vector_index_rows: 1000, ..CorpusOptions::default() };
    let corpus = open_with(folder.path(), ENCODER, options).await.unwrap();
    let words = |n: usize| format!("Animal{} eats plant{} near place{}.", n % 37, n % 61, n);
    let documents: Vec<_> =
        (0..1500).map(|n| with(document(&format!("d{n:04}"), &words(n)), json!({ "rare": n % 300 == 7 }))).collect();
    upsert(&corpus, &documents).await;
    // Not in the index yet.
    upsert(&corpus, &[with(document("fresh", "Animal9 sleeps."), json!({ "rare": true }))]).await;
    let rare = json!({ "type": "eq", "key": "rare", "value": true });
    for mode in [SearchMode::Vector, SearchMode::Fused] {
        let mut found = found(&corpus, &words(700), mode, 10, rare.clone()).await;
        found.sort();
        assert_eq!(found, ["d0007", "d0307", "d0607", "d0907", "d1207", "fresh"], "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_metadata_costs_no_embedding_and_announces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let text =
        "One sentence of the document has quite some words in it. Another sentence has as many words, or a few more.";
    let noted = Noted::default();
    let put = |document: Document| corpus.upsert("c", vec![document], &noted, &|_| Ok(()));
    put(with(document("a", text), json!({ "state": "draft" }))).await.unwrap();
    let before = corpus.document("c", "a").await.unwrap();
    let embedded = corpus.counters().texts_embedded;
    assert!(embedded > 1);
    let report = put(with(document("a", text), json!({ "state": "final" }))).await.unwrap();
    assert_eq!((report.documents_replaced, report.passages_added), (1, before.passages.len()));
    assert_eq!(corpus.counters().texts_embedded, embedded);
    assert_eq!(noted.take(), [""; 0], "all of it is still there, and so is its KV");
    let after = corpus.document("c", "a").await.unwrap();
    assert_eq!(after.info.metadata.entries().unwrap()["state"], "final");
    assert_eq!(
        after.passages.iter().map(|passage| &passage.id).collect::<Vec<_>>(),
        before.passages.iter().map(|passage| &passage.id).collect::<Vec<_>>()
    );
    let state = |state: &str| json!({ "type": "eq", "key": "state", "value": state });
    assert_eq!(found(&corpus, "sentence", SearchMode::Fused, 1, state("final")).await, ["a"]);
    assert_eq!(found(&corpus, "sentence", SearchMode::Fused, 1, state("draft")).await, [""; 0]);
    assert_eq!(find(&corpus, "another sentence", SearchMode::Vector, 1).await, ["a"]);
    // One sentence more: that passage alone is embedded, and the one that it takes the place of goes.
    let longer = format!("{text} And a third one that is about something else entirely, which makes it a passage.");
    put(document("a", &longer)).await.unwrap();
    let grown = corpus.document("c", "a").await.unwrap();
    let fresh = grown.passages.iter().filter(|passage| before.passages.iter().all(|old| old.id != passage.id)).count();
    assert_eq!(corpus.counters().texts_embedded, embedded + fresh as u64 + 5, "and five questions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_metadata_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let huge = with(document("b", "Two."), json!({ "k": "x".repeat(65 << 10) }));
    let error = corpus.upsert("c", vec![document("a", "One."), huge], &(), &|_| Ok(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(corpus.collections().await.unwrap().is_empty());
}
