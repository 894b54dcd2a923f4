//! What a search reads, and what its indexes hold.

use serde_json::json;

use super::*;
use crate::candidates::StoredHit;
use crate::schema::StoredPassage;
use crate::search::reference;
use crate::table::{TERM_INDEX, TEXT_INDEX};

fn texts() -> Vec<Document> {
    let words = ["granite", "bridge", "river", "old", "mill", "stone", "rye", "bread", "comet", "night"];
    let text = |n: usize| (0..12).map(|at| words[(n * 7 + at * at * (n % 5 + 1)) % words.len()]).collect::<Vec<_>>();
    let mut documents: Vec<Document> = (0..160)
        .map(|n| Document {
            id: Some(format!("d{n:03}")),
            title: if n % 3 == 0 { String::new() } else { format!("Title {}", n % 7) },
            text: format!("{} part PPR-{}.", text(n).join(" "), 1000 + n),
            source: (n % 2 == 0).then(|| format!("/files/{n}")),
            metadata: json!({ "n": n }).as_object().cloned().unwrap_or_default(),
            ..Document::default()
        })
        .collect();
    // One text in several documents, and editions of one.
    let again = documents[..8]
        .iter()
        .map(|first| Document { id: first.id.as_ref().map(|id| format!("z{id}")), ..first.clone() });
    let again: Vec<Document> = again.collect();
    documents.extend(again);
    documents.extend((0..9).map(|year| {
        document(
            &format!("e{year}"),
            &format!("The leave of all staff of the old mill is thirty days a year, says the edition of 200{year}"),
        )
    }));
    documents
}

fn told(hit: &StoredHit) -> (Passage, String, u64, [String; 2], Vec<Elsewhere>) {
    let StoredPassage { passage, tokenizer, row, .. } = &hit.stored;
    let numbers = [Some(hit.score), hit.similarity].map(|number| format!("{number:.4?}"));
    (passage.clone(), tokenizer.clone(), *row, numbers, hit.also_in.clone())
}

/// Whatever is asked, what is read of the hits alone is what was read of all candidates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_reads_little_finds_what_one_finds_that_reads_everything() {
    let folder = tempfile::tempdir().unwrap();
    for vector_index_rows in [50_000, 100] {
        let data = folder.path().join(vector_index_rows.to_string());
        let options = CorpusOptions { chunk_tokens: 40, vector_index_rows, ..CorpusOptions::default() };
        let corpus = open_with(&data, ENCODER, options).await.unwrap();
        for some in texts().chunks(50) {
            upsert(&corpus, some).await;
        }
        let table = corpus.find("c").await.unwrap();
        let env = Env::system();
        for query in [
            "old granite bridge",
            "rye bread of the mill",
            "what about PPR-1040 and PPR-1007?",
            "leave of staff",
            "comet",
        ] {
            for mode in MODES {
                for (top_k, n, min_similarity) in
                    [(5, None, None), (60, None, None), (5, Some(40), None), (10, None, Some(0.2))]
                {
                    let filter = n.map(|n| Filter::parse(&json!({ "type": "lt", "key": "n", "value": n })).unwrap());
                    let options = SearchOptions { top_k, mode, filter, min_similarity };
                    let vector = ENCODER.embed_query(query).unwrap();
                    let vector = (mode != SearchMode::FullText || min_similarity.is_some()).then_some(vector);
                    let found = search::search(&table, query, vector.clone(), &options, &env).await.unwrap();
                    let expected = reference::search(&table, query, vector, &options).await.unwrap();
                    let [found_hits, expected_hits] =
                        [&found, &expected].map(|of| of.hits.iter().map(told).collect::<Vec<_>>());
                    assert_eq!(found_hits, expected_hits, "{query} {options:?}");
                    assert!(!found_hits.is_empty() || n.is_some() || min_similarity.is_some(), "{query} {options:?}");
                    assert_eq!(found.is_relevant, expected.is_relevant);
                    assert_eq!(found.best_similarity, expected.best_similarity);
                }
            }
        }
    }
}

async fn unindexed(table: &table::Collection) -> u64 {
    let indexes = table.table.list_indices().await.unwrap();
    let words = indexes.iter().filter(|index| index.name == TEXT_INDEX);
    words.map(|index| index.num_unindexed_rows.unwrap()).max().unwrap()
}

/// However documents came, a search cuts few of them into words, and the index is in few segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_words_are_indexed_soon_and_found_alike() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(&folder.path().join("small")).await;
    let documents = texts();
    for some in documents.chunks(5) {
        upsert(&corpus, some).await;
        let table = corpus.find("c").await.unwrap();
        assert!(unindexed(&table).await <= 32);
        let segments = table.segments(TEXT_INDEX).await.unwrap();
        assert!(segments.len() <= 4, "{segments:?}");
    }
    let at_once = open(&folder.path().join("at-once")).await;
    upsert(&at_once, &documents).await;
    for query in ["old granite bridge", "rye bread", "PPR-1040", "edition of 2004"] {
        for mode in MODES {
            let mut one = find(&corpus, query, mode, 8).await;
            let mut other = find(&at_once, query, mode, 8).await;
            if mode == SearchMode::Fused {
                // Of nine editions that are alike the order is nobody's: a few rows beside the index are scored by themselves.
                one.sort();
                other.sort();
            }
            assert_eq!(one, other, "{query} {mode:?}");
        }
    }
    // What is deleted is in no segment's answer, and a vacuum makes one of them.
    corpus.delete("c", "d040", &()).await.unwrap();
    assert!(!find(&corpus, "PPR-1040", SearchMode::FullText, 8).await.contains(&"d040".to_owned()));
    corpus.vacuum("c").await.unwrap();
    let table = corpus.find("c").await.unwrap();
    assert_eq!(table.segments(TEXT_INDEX).await.unwrap().len(), 1);
    assert_eq!(find(&corpus, "rye bread", SearchMode::FullText, 8).await.len(), 8);
}

/// Terms of scripts without blanks are indexed as soon, once there are some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_terms_are_indexed_soon_where_there_are_some() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let spaced: Vec<Document> = (0..60).map(|n| document(&format!("s{n}"), "An old bridge.")).collect();
    upsert(&corpus, &spaced).await;
    let table = corpus.find("c").await.unwrap();
    let before = table.segments(TERM_INDEX).await.unwrap();
    let dense: Vec<Document> = (0..60).map(|n| document(&format!("c{n}"), &format!("修理自行车 {n}"))).collect();
    upsert(&corpus, &dense).await;
    assert_ne!(table.segments(TERM_INDEX).await.unwrap(), before);
    assert_eq!(find(&corpus, "自行车", SearchMode::FullText, 3).await.len(), 3);
}
