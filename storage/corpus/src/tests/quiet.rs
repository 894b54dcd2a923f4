//! Collections that nobody changes any more.

use std::time::Duration;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// What a search pays for: files, and vectors in no index.
async fn left(corpus: &Corpus) -> (usize, u64) {
    let table = corpus.find("c").await.unwrap();
    let indexes = table.table.list_indices().await.unwrap();
    let vectors = indexes.iter().find(|index| index.columns == ["vector"]).unwrap();
    (table.table.as_native().unwrap().count_fragments().await.unwrap(), vectors.num_unindexed_rows.unwrap())
}

async fn found(corpus: &Corpus) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for query in ["stone7 bridge", "stone1199 bridge", "stone1396 bridge"] {
        for mode in MODES {
            found.push(find(corpus, query, mode, 3).await);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_upserts_left_is_merged_once_nobody_writes_and_found_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::seeded(1, 1_700_000_000_000);
    let options = CorpusOptions { vector_index_rows: 1000, env: env.clone(), ..CorpusOptions::default() };
    let corpus = open_with(folder.path(), ENCODER, options).await.unwrap();
    let texts: Vec<Document> =
        (0..1420).map(|n| document(&format!("d{n:04}"), &format!("The bridge of stone{n} at mile {n}."))).collect();
    upsert(&corpus, &texts[..1136]).await;
    assert!(corpus.uncompacted().await.is_empty(), "it was seen for the first time");
    upsert(&corpus, &texts[1136..1396]).await;
    let mut one_by_one = texts[1396..].iter();
    while left(&corpus).await.0 < 17 {
        upsert(&corpus, std::slice::from_ref(one_by_one.next().unwrap())).await;
    }
    let (_, unindexed) = left(&corpus).await;
    assert!(unindexed > 257, "what is in proportion to what was written: {unindexed}");
    let before = found(&corpus).await;
    env.advance(MINUTE);
    assert!(corpus.uncompacted().await.is_empty(), "somebody wrote");
    env.advance(MINUTE);
    assert_eq!(corpus.uncompacted().await, ["c"]);
    corpus.compact("c").await.unwrap();
    let (files, unindexed) = left(&corpus).await;
    // LanceDB merges neighbours that the same segments of an index have.
    assert!(files <= 8 && unindexed == 0, "{files}, {unindexed}");
    assert_eq!(found(&corpus).await, before);
    assert!(corpus.uncompacted().await.is_empty(), "it is done");
    corpus.compact("other").await.unwrap_err();
    // Whoever changes it next, and goes, has it merged again.
    corpus.delete("c", "d0007", &()).await.unwrap();
    assert!(corpus.uncompacted().await.is_empty());
    env.advance(MINUTE);
    assert_eq!(corpus.uncompacted().await, ["c"]);
    corpus.compact("c").await.unwrap();
    assert!(!find(&corpus, "stone7 bridge", SearchMode::FullText, 1).await.contains(&"d0007".to_owned()));
}
