//! What a node sees of a corpus while others write.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Gives a document a second row, as it has for a moment where two nodes add it at once.
async fn add_beside(corpus: &Corpus, id: &str) {
    let text = format!("Another text of {id}.");
    let passage = Passage {
        id: crate::document::passage_id("", &text),
        document_id: id.to_owned(),
        collection: "c".to_owned(),
        text: text.clone(),
        ..Passage::default()
    };
    let row = crate::schema::Row {
        passage,
        version: "other".to_owned(),
        passages: 1,
        tokenizer: ENCODER.tokenizer_identity(),
        vector: ENCODER.embed_query(&text).unwrap(),
        generation: 1,
    };
    let collection = corpus.find("c").await.unwrap();
    let columns = collection.table.schema().await.unwrap();
    let batch = crate::schema::encode(&[row], &columns, collection.dimension()).unwrap();
    // Past the commit of ours, which takes the earlier one out.
    collection.table.add(batch).execute().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_stand_twice_in_the_table_end_no_listing() {
    let corpus = node(&Shaky::new()).await;
    let all: Vec<String> = (0..6).map(|n| format!("d{n}")).collect();
    let documents: Vec<Document> = all.iter().map(|id| document(id, &format!("The text of {id}."))).collect();
    upsert(&corpus, &documents).await;
    add_beside(&corpus, "d1").await;
    add_beside(&corpus, "d3").await;
    assert_eq!(rows(&corpus).await, 8);
    assert_eq!(all_ids(&corpus).await, all);
    assert_eq!(corpus.documents("c", 0, 6).await.unwrap().len(), 6, "as many as were asked for");
    for limit in 1..8 {
        let (mut listed, mut offset) = (Vec::new(), 0);
        loop {
            let page = corpus.documents("c", offset, limit).await.unwrap();
            let is_last = page.len() < limit;
            offset += page.len();
            listed.extend(page.into_iter().map(|document| document.id));
            if is_last {
                break;
            }
        }
        // What comes behind one that stands twice may be in two pages.
        listed.sort();
        listed.dedup();
        assert_eq!(listed, all, "pages of {limit}");
    }
}

/// In two collections: whoever commits to one sees what others did there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_passage_whose_last_two_documents_two_nodes_delete_at_once_is_absent() {
    let store = Shaky::new();
    let maker = node(&store).await;
    let same = |id: &str| Document { title: String::new(), ..document(id, "The same words.") };
    for (collection, id) in [("c", "one"), ("e", "two")] {
        maker.upsert(collection, vec![same(id)], &(), &|_| Ok(())).await.unwrap();
    }
    let passage = maker.document("c", "one").await.unwrap().passages[0].id.clone();
    // What they see of others' commits may be as old as that.
    let options = BucketOptions { interval: Duration::from_secs(600), ..BucketOptions::default() };
    let open = || node_with(store.clone(), options.clone(), Env::system());
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    assert_eq!(a.delete("c", "one", &()).await.unwrap(), 1);
    assert_eq!(b.delete("e", "two", &()).await.unwrap(), 1);
    for node in [&a, &b] {
        let mut absent = HashSet::from([passage.clone()]);
        node.retain_absent(&|_| true, &mut absent).await.unwrap();
        assert_eq!(absent.len(), 1);
    }
    // Of a collection that a node has not heard of it knows what it holds.
    maker.upsert("new", vec![same("three")], &(), &|_| Ok(())).await.unwrap();
    let mut absent = HashSet::from([passage.clone()]);
    a.retain_absent(&|_| true, &mut absent).await.unwrap();
    assert!(absent.is_empty());
    store.is_down.store(true, Ordering::Relaxed);
    let error = a.retain_absent(&|_| true, &mut HashSet::from([passage])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_that_is_younger_than_the_list_of_them_stays() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    upsert(&a, &[document("bridge", "Built of granite.")]).await;
    let table = a.find("c").await.unwrap();
    // A look that listed them before it was made comes to its end.
    let (listed, unreadable) = (BTreeMap::new(), BTreeSet::new());
    a.forget_all_but(a.bucket().unwrap(), &listed, &unreadable).await.unwrap();
    assert!(!table.is_gone());
    assert_eq!(a.names().await, ["c"]);
    // As does one that saw the table of before.
    let listed = BTreeMap::from([("c".to_owned(), "before".to_owned())]);
    a.forget_all_but(a.bucket().unwrap(), &listed, &unreadable).await.unwrap();
    assert!(!table.is_gone());
    b.delete_collection("c", &()).await.unwrap();
    a.forget_all_but(a.bucket().unwrap(), &listed, &unreadable).await.unwrap();
    assert!(table.is_gone());
    assert_eq!(a.names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vector_index_that_another_node_builds_or_drops_is_noticed() {
    let store = Shaky::new();
    let (a, b) = (node(&store).await, node(&store).await);
    let all: Vec<Document> = (0..30).map(|n| document(&format!("d{n}"), &format!("The text number {n}."))).collect();
    upsert(&a, &all).await;
    let (of_a, of_b) = (a.find("c").await.unwrap(), b.find("c").await.unwrap());
    for table in [&of_a, &of_b] {
        assert!(!table.has_vector_index().await.unwrap());
    }
    of_a.create_vector_index().await.unwrap();
    for table in [&of_a, &of_b] {
        assert!(table.has_vector_index().await.unwrap());
    }
    let indexes = of_b.table.list_indices().await.unwrap();
    let index = indexes.iter().find(|index| index.columns == ["vector"]).unwrap();
    of_b.table.drop_index(&index.name).await.unwrap();
    for table in [&of_a, &of_b] {
        assert!(!table.has_vector_index().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_of_an_earlier_model_that_another_node_makes_later_is_searched_with_that_model() {
    let store = Shaky::new();
    let a = node(&store).await;
    upsert(&a, &[document("bridge", "Built of granite.")]).await;
    let earlier = |identity: &str| (identity == ENCODER.model).then(|| Arc::new(ENCODER) as Arc<dyn PassageEncoder>);
    let bucket = Bucket::open(store.clone(), Name::from("a/b c"), at_once(), Env::system()).await.unwrap();
    let encoder = Arc::new(WordEncoder { model: "words-2", ..ENCODER });
    let b = Corpus::open_shared(bucket, encoder, &earlier, CorpusOptions::default()).await.unwrap();
    a.upsert("later", vec![document("bakery", "It sells rye bread.")], &(), &|_| Ok(())).await.unwrap();
    for collection in ["c", "later"] {
        let wanted = BuiltWith { collection: collection.into(), embedder: ENCODER.model.into(), words_only: false };
        assert_eq!(b.built_with(collection).await.unwrap(), wanted);
    }
}
