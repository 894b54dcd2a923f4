//! Similarity as it is told and bounded, and whether anything is about a question.

use super::*;

/// As [`WordEncoder`], of which it is known how alike unrelated texts are.
struct Known(WordEncoder);

impl PassageEncoder for Known {
    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        self.0.embed_passages(texts)
    }

    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        self.0.embed_query(text)
    }

    fn dimension(&self) -> usize {
        DIMENSION
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
        self.0.count_tokens(text)
    }

    fn unrelated(&self) -> Option<Arc<Unrelated>> {
        Some(Arc::new(Unrelated { mean: 0.0, deviation: 0.12, means: [(Language::English, 0.0)].into() }))
    }
}

const TEXTS: [(&str, &str); 4] = [
    ("roof", "Slate covers the roof of the mill since summer"),
    ("garden", "Poppies are watered at night by the gardener"),
    ("part", "Part PPR-1670 is made of brass and fits the pump"),
    ("river", "Nine boats lay in the harbour below the bridge"),
];

async fn filled(folder: &Path) -> Corpus {
    let options = CorpusOptions { chunk_tokens: 18, ..CorpusOptions::default() };
    let corpus = Corpus::open(folder, Arc::new(Known(ENCODER)), options).await.unwrap();
    upsert(&corpus, &TEXTS.map(|(id, text)| document(id, text))).await;
    corpus
}

async fn searched(corpus: &Corpus, query: &str, options: &SearchOptions) -> Searched {
    let found = corpus.search_in_stages("c", query, options, false, &mut |_| {}).await.unwrap();
    let staged = corpus.search_in_stages("c", query, options, true, &mut |_| {}).await.unwrap();
    let untimed = |found: Searched| Searched { search_ms: 0.0, took: Took::default(), ..found };
    assert_eq!(untimed(staged), untimed(found.clone()), "{query}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hit_tells_its_similarity_whatever_found_it() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = filled(folder.path()).await;
    let query = "slate on the roof of the mill";
    let vector = |mode| SearchOptions { mode, ..SearchOptions::default() };
    let by_vector = searched(&corpus, query, &vector(SearchMode::Vector)).await.hits;
    for hit in &by_vector {
        // The slow reference: the score of this mode is the similarity.
        assert!((hit.similarity.unwrap() - hit.score).abs() < 1e-3, "{hit:?}");
    }
    let fused = searched(&corpus, query, &SearchOptions::default()).await;
    for hit in &fused.hits {
        let same = by_vector.iter().find(|other| other.passage.id == hit.passage.id).unwrap();
        assert_eq!(hit.similarity, same.similarity);
    }
    assert_eq!(fused.best_similarity, by_vector[0].similarity);
    // Words compare no vectors, unless there is a bound.
    let by_words = searched(&corpus, query, &vector(SearchMode::FullText)).await;
    assert!(by_words.hits.iter().all(|hit| hit.similarity.is_none()) && by_words.is_relevant.is_none());
    let bounded = SearchOptions { mode: SearchMode::FullText, min_similarity: Some(-1.0), ..SearchOptions::default() };
    let bounded = searched(&corpus, query, &bounded).await.hits;
    assert_eq!(bounded.len(), by_words.hits.len());
    assert_eq!(bounded[0].similarity, by_vector[0].similarity);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_less_similar_is_left_out_but_for_what_has_the_code() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = filled(folder.path()).await;
    let bounded =
        |min_similarity, mode| SearchOptions { min_similarity: Some(min_similarity), mode, ..SearchOptions::default() };
    for mode in [SearchMode::Fused, SearchMode::Vector, SearchMode::FullText] {
        let query = "slate on the roof of the mill";
        let all = searched(&corpus, query, &bounded(-1.0, mode)).await.hits;
        for bound in [-1.0, 0.0, 0.2, 0.4, 0.6, 1.0] {
            let kept = searched(&corpus, query, &bounded(bound, mode)).await.hits;
            let expected: Vec<&str> = all
                .iter()
                .filter(|hit| hit.similarity.unwrap() >= bound)
                .map(|hit| hit.passage.document_id.as_str())
                .collect();
            assert_eq!(
                kept.iter().map(|hit| &*hit.passage.document_id).collect::<Vec<_>>(),
                expected,
                "{mode:?} {bound}"
            );
        }
    }
    let coded = searched(&corpus, "where does ppr1670 belong", &bounded(0.99, SearchMode::Fused)).await;
    assert_eq!(coded.hits.iter().map(|hit| &*hit.passage.document_id).collect::<Vec<_>>(), ["part"]);
    assert!(coded.hits[0].similarity.unwrap() < 0.99);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_told_whether_anything_is_about_the_question() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = filled(folder.path()).await;
    let judged = async |query: &str| searched(&corpus, query, &SearchOptions::default()).await.is_relevant;
    assert_eq!(judged("Which slate covers the roof of the mill?").await, Some(true));
    assert_eq!(judged("Kindly explain quantum chromodynamics thoroughly").await, Some(false));
    assert_eq!(judged("explain quantum PPR-1670").await, Some(true), "a code is enough");
    assert_eq!(judged("Ποιος πληρώνει;").await, None);
    // A filter that leaves nothing, and a collection in which there is nothing.
    let nobody = Filter::parse(&serde_json::json!({ "type": "exists", "key": "nobody" })).unwrap();
    let none = SearchOptions { filter: Some(nobody), ..SearchOptions::default() };
    let found = searched(&corpus, "Which slate covers the roof of the mill?", &none).await;
    assert_eq!((found.hits.len(), found.is_relevant, found.best_similarity), (0, Some(false), None));
    for (id, _) in TEXTS {
        corpus.delete("c", id, &()).await.unwrap();
    }
    assert_eq!(judged("Which slate covers the roof of the mill?").await, Some(false));
    // Of an unknown model nothing is told.
    let other = tempfile::tempdir().unwrap();
    let unknown = open(other.path()).await;
    upsert(&unknown, &[document("roof", "Slate covers the roof")]).await;
    assert_eq!(searched(&unknown, "quantum chromodynamics", &SearchOptions::default()).await.is_relevant, None);
}
