//! The same text under several titles.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_under_two_titles_is_one_hit_that_names_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let mut copy = document("copy", "The old bridge was built of granite.");
    copy.source = Some("/copies/bridge.txt".into());
    let documents = [
        document("bridge", "The old bridge was built of granite."),
        copy,
        document("other", "A granite quarry lies beside the bridge."),
    ];
    upsert(&corpus, &documents).await;
    for mode in MODES {
        let options = SearchOptions { top_k: 2, mode, ..SearchOptions::default() };
        let hits = corpus.search("c", "granite bridge", &options).await.unwrap();
        let ids: Vec<_> = hits.iter().map(|hit| hit.passage.document_id.as_str()).collect();
        assert_eq!(ids.len(), 2, "{mode:?}");
        assert!(ids.contains(&"other"), "{mode:?}: {ids:?}");
        let hit = hits.iter().find(|hit| hit.passage.document_id != "other").unwrap();
        assert_eq!(hit.passage.document_id, "bridge", "whose title says more");
        let elsewhere = Elsewhere {
            document_id: "copy".into(),
            title: "About copy".into(),
            source: Some("/copies/bridge.txt".into()),
            ordinal: 0,
        };
        assert_eq!(hit.also_in, [elsewhere], "{mode:?}");
        let json = serde_json::to_value(&hits).unwrap();
        assert_eq!(json.as_array().unwrap().iter().filter(|hit| hit.get("also_in").is_some()).count(), 1);
    }
    let staged =
        corpus.search_in_stages("c", "granite bridge", &SearchOptions::default(), true, &mut |_| {}).await.unwrap();
    assert_eq!(staged.hits.iter().map(|hit| hit.also_in.len()).sum::<usize>(), 1);
}

/// A footer on every page: it takes one place of the top k, however many candidates it fills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_all_documents_have_takes_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let mut documents: Vec<_> =
        (0..450).map(|n| document(&format!("d{n:03}"), "Granite bridge, granite bridge.")).collect();
    documents.push(document("far", "One bridge among many other things that are told in here."));
    upsert(&corpus, &documents).await;
    for mode in MODES {
        let options = SearchOptions { top_k: 2, mode, ..SearchOptions::default() };
        let hits = corpus.search("c", "granite bridge", &options).await.unwrap();
        assert_eq!(hits.len(), 2, "{mode:?}");
        assert_eq!(hits[0].also_in.len(), 8);
        assert_eq!(hits[1].passage.document_id, "far", "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_equal_documents_the_one_that_was_there_first_is_cited() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    for id in ["zebra", "ape", "cow"] {
        upsert(&corpus, &[Document { title: "Cellar".into(), ..document(id, "The cellar is dry.") }]).await;
    }
    for mode in MODES {
        let options = SearchOptions { mode, ..SearchOptions::default() };
        let hits = corpus.search("c", "dry cellar", &options).await.unwrap();
        assert_eq!((hits.len(), hits[0].passage.document_id.as_str()), (1, "zebra"), "{mode:?}");
        let mut others: Vec<_> = hits[0].also_in.iter().map(|place| place.document_id.as_str()).collect();
        others.sort_unstable();
        assert_eq!(others, ["ape", "cow"], "{mode:?}");
    }
}
