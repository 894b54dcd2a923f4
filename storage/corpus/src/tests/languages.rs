//! Words of eight languages: `ops/fixtures/languages`, whose passages this project wrote.

use ragstone_env::Stopwatch;
use std::collections::{BTreeMap, HashMap};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt;
use lancedb::index::Index;
use lancedb::index::scalar::{BooleanQuery, FtsIndexBuilder, FtsQuery, FullTextSearchQuery, MatchQuery, Occur};
use lancedb::query::{ExecutableQuery, QueryBase};
use serde::Deserialize;

use super::*;
use crate::schema::{scores, strings};
use crate::scripts;
use crate::table::{term_index, text_index};

#[derive(Deserialize)]
pub(super) struct Set {
    pub language: String,
    /// By what they are called.
    pub passages: BTreeMap<String, String>,
    /// The passage that answers each.
    pub keywords: BTreeMap<String, String>,
    pub questions: BTreeMap<String, String>,
}

pub(super) fn sets() -> Vec<Set> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/fixtures/languages");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

/// All passages, without titles.
fn documents(sets: &[Set]) -> Vec<Document> {
    let of = |set: &Set| {
        let document = |(id, text): (&String, &String)| Document {
            id: Some(format!("{} {id}", set.language)),
            text: text.clone(),
            ..Document::default()
        };
        set.passages.iter().map(document).collect::<Vec<_>>()
    };
    sets.iter().flat_map(of).collect()
}

/// Questions whose passage is the first, and among the first five.
async fn recall(corpus: &Corpus, set: &Set, asked: &BTreeMap<String, String>, mode: SearchMode) -> (usize, usize) {
    let (mut first, mut five) = (0, 0);
    for (question, id) in asked {
        let found = find(corpus, question, mode, 5).await;
        let at = found.iter().position(|found| *found == format!("{} {id}", set.language));
        first += usize::from(at == Some(0));
        five += usize::from(at.is_some());
    }
    (first, five)
}

async fn filled(folder: &Path, sets: &[Set]) -> Corpus {
    let options = CorpusOptions { chunk_tokens: 200, ..CorpusOptions::default() };
    let corpus = open_with(folder, ENCODER, options).await.unwrap();
    upsert(&corpus, &documents(sets)).await;
    corpus
}

/// Takes the index of terms away, as a version had it that knew none, until something is written.
async fn without_terms(folder: &Path, corpus: Corpus) -> Corpus {
    let table = corpus.find("c").await.unwrap();
    table.table.drop_index(crate::table::TERM_INDEX).await.unwrap();
    acknowledge(&table).await;
    drop((table, corpus));
    open(folder).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_eight_languages_are_found() {
    let (folder, sets) = (tempfile::tempdir().unwrap(), sets());
    assert_eq!(sets.len(), 8);
    let corpus = filled(folder.path(), &sets).await;
    for set in &sets {
        let keywords = recall(&corpus, set, &set.keywords, SearchMode::FullText).await;
        let questions = recall(&corpus, set, &set.questions, SearchMode::FullText).await;
        let least = match set.language.as_str() {
            "Chinese" | "Japanese" | "Korean" | "Thai" => (12, 12),
            _ => (10, 11),
        };
        assert!(keywords >= least && questions >= least, "{}: {keywords:?} {questions:?}", set.language);
    }
    // Cut at blanks alone.
    let corpus = without_terms(folder.path(), corpus).await;
    for set in &sets {
        let (first, _) = recall(&corpus, set, &set.keywords, SearchMode::FullText).await;
        let expected = match set.language.as_str() {
            "Chinese" | "Japanese" => 0..=0,
            "Korean" | "Thai" => 0..=6,
            _ => 10..=12,
        };
        assert!(expected.contains(&first), "{}: {first}", set.language);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_an_earlier_version_gets_its_terms_while_it_is_searched() {
    let folder = tempfile::tempdir().unwrap();
    let texts = [
        ("bicycle", "みんなで自転車を修理しています。"),
        ("kiln", "窯は１０４０度で焼きます。"),
        ("gpu", "使用GPU加速"),
        ("roof", "The roof of the mill."),
        ("apart", "Alte Fahrra\u{308}der."),
    ];
    {
        let corpus = open(folder.path()).await;
        upsert(&corpus, &texts.map(|(id, text)| document(id, text))).await;
        // Rows that are marked as deleted must not shift the others' terms.
        upsert(&corpus, &[document("gone", "消えた文書。"), document("bicycle", "古い文。")]).await;
        upsert(&corpus, &[document("bicycle", texts[0].1)]).await;
        corpus.delete("c", "gone", &()).await.unwrap();
        // As that version made it.
        let table = corpus.find("c").await.unwrap();
        table.table.drop_index(crate::table::TERM_INDEX).await.unwrap();
        table.table.drop_columns(&["terms"]).await.unwrap();
        acknowledge(&table).await;
    }
    let corpus = open(folder.path()).await;
    let words = async |corpus: &Corpus, query: &str| find(corpus, query, SearchMode::FullText, 5).await;
    assert_eq!(words(&corpus, "自転車").await, [""; 0]);
    assert_eq!(words(&corpus, "mill").await, ["roof"]);
    // Its index has what a letter apart from its marks was cut into.
    assert_eq!(words(&corpus, "Fahrra\u{308}der").await, ["apart"]);
    assert_eq!(corpus.renew_word_indexes().await, 1);
    for corpus in [corpus, open(folder.path()).await] {
        assert_eq!(corpus.renew_word_indexes().await, 0);
        assert_eq!(words(&corpus, "自転車").await, ["bicycle"]);
        assert_eq!(words(&corpus, "1040").await, ["kiln"]);
        assert_eq!(words(&corpus, "gpu").await, ["gpu"]);
        assert_eq!(words(&corpus, "mill").await, ["roof"]);
        assert_eq!(words(&corpus, "Fahrräder").await, ["apart"]);
        // What comes later is found, and what is replaced is not.
        upsert(&corpus, &[document("piano", "ピアノは秋に調律します。"), document("kiln", "Empty.")]).await;
        assert_eq!(words(&corpus, "調律").await, ["piano"]);
        assert_eq!(words(&corpus, "1040").await, [""; 0]);
        corpus.delete("c", "piano", &()).await.unwrap();
        assert_eq!(words(&corpus, "調律").await, [""; 0]);
        upsert(&corpus, &texts.map(|(id, text)| document(id, text))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_passage_with_terms_is_found_in_a_collection_that_had_none() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    upsert(&corpus, &[document("roof", "The roof of the mill.")]).await;
    assert_eq!(find(&corpus, "水车", SearchMode::FullText, 5).await, [""; 0]);
    upsert(&corpus, &[document("mill", "旧水车已经修好了。")]).await;
    assert_eq!(find(&corpus, "水车", SearchMode::FullText, 5).await, ["mill"]);
    assert_eq!(find(&corpus, "roof", SearchMode::FullText, 5).await, ["roof"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_are_found_however_their_letters_are_written_and_texts_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = open(folder.path()).await;
    let bicycles = "Alte Fahrra\u{308}der im Keller.";
    let texts = [("bicycles", bicycles), ("steamer", "Donau\u{ad}dampf\u{ad}schiff"), ("ferry", "İstanbul vapuru")];
    upsert(&corpus, &texts.map(|(id, text)| document(id, text))).await;
    for (query, id) in [
        ("Fahrräder", "bicycles"),
        ("Fahrra\u{308}der", "bicycles"),
        ("fahrrader", "bicycles"),
        ("Donaudampfschiff", "steamer"),
        ("Donau\u{ad}dampfschiff", "steamer"),
        ("istanbul", "ferry"),
        ("Istanbul", "ferry"),
        ("İstanbul", "ferry"),
    ] {
        assert_eq!(find(&corpus, query, SearchMode::FullText, 5).await, [id], "{query}");
    }
    let hits = corpus.search("c", "Fahrräder", &SearchOptions::default()).await.unwrap();
    assert!(hits.iter().any(|hit| hit.passage.text == bicycles));
    // The other way round: what the text index has as it is searched.
    upsert(&corpus, &[document("bridge", "Die große Brücke.")]).await;
    assert_eq!(find(&corpus, "Bru\u{308}cke", SearchMode::FullText, 5).await, ["bridge"]);
}

/// Ways to find words: what is indexed beside the text, and how a query is asked of it.
type Beside = (fn(&str) -> Option<String>, fn(&str) -> String);

struct Candidate {
    name: &'static str,
    text: FtsIndexBuilder,
    beside: Option<Beside>,
}

fn candidates() -> Vec<Candidate> {
    let plain = |name, text| Candidate { name, text, beside: None };
    let based = |base: &str| text_index().base_tokenizer(base.to_owned());
    let pairs = based("ngram").ngram_min_length(2).ngram_max_length(2).stem(false).remove_stop_words(false);
    vec![
        plain("simple", text_index()),
        plain("icu", based("icu")),
        plain("icu/split", based("icu/split")),
        plain("pairs of all", pairs),
        Candidate { name: "simple, icu", text: text_index(), beside: Some((|text| Some(by_icu(text)), by_icu)) },
        Candidate { name: "simple, pairs", text: text_index(), beside: Some((scripts::stored, scripts::asked)) },
    ]
}

/// Words of dense scripts as ICU's dictionaries cut them.
fn by_icu(text: &str) -> String {
    let mut analyzer = term_index().base_tokenizer("icu".to_owned()).build().unwrap();
    let mut stream = analyzer.token_stream_for_search(text);
    let mut words = Vec::new();
    while stream.advance() {
        let word = stream.token().text.clone();
        words.extend(word.contains(scripts::is_dense).then_some(word));
    }
    words.join(" ")
}

async fn indexed(folder: &Path, candidate: &Candidate, texts: &[(String, String)]) -> (lancedb::Table, f64) {
    let schema = ["id", "content", "terms"].map(|name| Field::new(name, DataType::Utf8, true)).to_vec();
    let schema = Arc::new(Schema::new(schema));
    let begun = Stopwatch::start();
    let terms = texts.iter().map(|(_, text)| candidate.beside.and_then(|(stored, _)| stored(text)));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(texts.iter().map(|(id, _)| id))),
        Arc::new(StringArray::from_iter_values(texts.iter().map(|(_, text)| text))),
        Arc::new(terms.collect::<StringArray>()),
    ];
    let db = lancedb::connect(folder.to_str().unwrap()).execute().await.unwrap();
    let table = db.create_table("t", RecordBatch::try_new(schema, columns).unwrap()).execute().await.unwrap();
    table.create_index(&["content"], Index::FTS(candidate.text.clone())).execute().await.unwrap();
    if candidate.beside.is_some() {
        table.create_index(&["terms"], Index::FTS(term_index())).execute().await.unwrap();
    }
    (table, begun.elapsed().as_secs_f64())
}

async fn ask(table: &lancedb::Table, candidate: &Candidate, query: &str) -> Vec<String> {
    let of = |column: &str, words: String| MatchQuery::new(words).with_column(Some(column.to_owned()));
    let words = of("content", query.to_owned());
    let words = match candidate.beside.map(|(_, asked)| asked(query)).filter(|terms| !terms.is_empty()) {
        None => FtsQuery::from(words),
        Some(terms) => FtsQuery::from(BooleanQuery::new([
            (Occur::Should, words.into()),
            (Occur::Should, of("terms", terms).into()),
        ])),
    };
    let found =
        table.query().full_text_search(FullTextSearchQuery::new_query(words)).limit(100).execute().await.unwrap();
    let found: Vec<RecordBatch> = found.try_collect().await.unwrap();
    let mut scored: Vec<(f32, String)> = Vec::new();
    for batch in found {
        let scores = scores(&batch, "_score").unwrap();
        let ids = strings(&batch, "id").unwrap().iter().flatten().map(str::to_owned);
        scored.extend(scores.into_iter().zip(ids));
    }
    scored.sort_by(|(a, a_id), (b, b_id)| b.total_cmp(a).then_with(|| a_id.cmp(b_id)));
    scored.into_iter().map(|(_, id)| id).collect()
}

/// The table of docs/results/retrieval.md: of 12 keywords and 12 questions each, those whose passage is first and among the first five.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn ways_to_find_words_of_eight_languages() {
    let sets = sets();
    let texts: Vec<(String, String)> =
        documents(&sets).into_iter().map(|document| (document.id.unwrap(), document.text)).collect();
    let many: Vec<_> = (0..5000).map(|n| (n.to_string(), format!("{} {n}", texts[n % texts.len()].1))).collect();
    for candidate in candidates() {
        let folder = tempfile::tempdir().unwrap();
        let (table, _) = indexed(folder.path(), &candidate, &texts).await;
        for set in &sets {
            for (kind, asked) in [("keywords", &set.keywords), ("questions", &set.questions)] {
                let (mut first, mut five) = (0, 0);
                for (question, id) in asked {
                    let id = format!("{} {id}", set.language);
                    let at = ask(&table, &candidate, question).await.iter().position(|found| *found == id);
                    first += usize::from(at == Some(0));
                    five += usize::from(at.is_some_and(|at| at < 5));
                }
                println!("{:14} {:10} {kind:10} {first:3} {five:3}", candidate.name, set.language);
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (table, built) = indexed(folder.path(), &candidate, &many).await;
        let bytes = bytes_on_disk(&folder.path().join("t.lance/_indices"));
        let data = bytes_on_disk(&folder.path().join("t.lance/data"));
        for language in ["English", "Chinese"] {
            let set = sets.iter().find(|set| set.language == language).unwrap();
            let mut times = Vec::new();
            for question in set.keywords.keys().chain(set.questions.keys()).cycle().take(120) {
                let begun = Stopwatch::start();
                ask(&table, &candidate, question).await;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            println!("{:14} {language}: median {:.2} ms", candidate.name, times[times.len() / 2]);
        }
        println!(
            "{:14} 5,000 passages: built in {built:.2} s, indexes {bytes} bytes, data {data} bytes",
            candidate.name
        );
    }
}

/// Vectors that a model gave, by their texts without a number behind them.
struct Given(HashMap<String, Vec<f32>>);

impl Given {
    fn vector(&self, text: &str) -> Vec<f32> {
        let known = self.0.get(text).or_else(|| self.0.get(text.rsplit_once(" #")?.0));
        known.unwrap_or_else(|| panic!("no vector of {text}")).clone()
    }
}

impl PassageEncoder for Given {
    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        Ok(self.vector(text))
    }

    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        Ok(texts.iter().map(|text| self.vector(text)).collect())
    }

    fn dimension(&self) -> usize {
        self.0.values().next().map_or(1, Vec::len)
    }

    fn identity(&self) -> String {
        "given".to_owned()
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

/// Words, vectors and both, with a model's vectors: a JSON object of texts and vectors, in the file that `LANGUAGES_VECTORS` names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn words_and_vectors_of_eight_languages() {
    let (folder, sets) = (tempfile::tempdir().unwrap(), sets());
    let file = std::env::var("LANGUAGES_VECTORS").unwrap();
    let encoder = Arc::new(Given(serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()));
    let options = CorpusOptions { chunk_tokens: 200, ..CorpusOptions::default() };
    let corpus = Corpus::open(folder.path(), encoder.clone(), options.clone()).await.unwrap();
    upsert(&corpus, &documents(&sets)).await;
    recalls(&corpus, &sets, "with terms").await;
    corpus.find("c").await.unwrap().table.drop_index(crate::table::TERM_INDEX).await.unwrap();
    drop(corpus);
    let corpus = Corpus::open(folder.path(), encoder.clone(), options).await.unwrap();
    recalls(&corpus, &sets, "without").await;
    let folder = tempfile::tempdir().unwrap();
    let few = documents(&sets);
    let numbered = |n: usize| {
        let Document { id, text, .. } = few[n % few.len()].clone();
        Document { id: id.map(|id| format!("{id} {n}")), text: format!("{text} #{n}"), ..Document::default() }
    };
    let options = CorpusOptions { chunk_tokens: 200, ..CorpusOptions::default() };
    let corpus = Corpus::open(folder.path(), encoder.clone(), options.clone()).await.unwrap();
    upsert(&corpus, &(0..5000).map(numbered).collect::<Vec<_>>()).await;
    fused_times(&corpus, &sets, "with terms").await;
    corpus.find("c").await.unwrap().table.drop_index(crate::table::TERM_INDEX).await.unwrap();
    drop(corpus);
    let corpus = Corpus::open(folder.path(), encoder, options).await.unwrap();
    fused_times(&corpus, &sets, "without").await;
}

async fn recalls(corpus: &Corpus, sets: &[Set], name: &str) {
    for set in sets {
        for (kind, asked) in [("keywords", &set.keywords), ("questions", &set.questions)] {
            let mut row = format!("{name:10} {:10} {kind:10}", set.language);
            for mode in [SearchMode::FullText, SearchMode::Vector, SearchMode::Fused] {
                let (first, five) = recall(corpus, set, asked, mode).await;
                row += &format!(" {mode:?} {first:2} {five:2}");
            }
            println!("{row}");
        }
    }
}

async fn fused_times(corpus: &Corpus, sets: &[Set], name: &str) {
    for set in sets.iter().filter(|set| ["English", "Chinese"].contains(&set.language.as_str())) {
        let mut times = Vec::new();
        for question in set.keywords.keys().chain(set.questions.keys()).cycle().take(240) {
            let begun = Stopwatch::start();
            find(corpus, question, SearchMode::Fused, 5).await;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        println!("5,000 passages, fused, {name}: {} median {:.1} ms", set.language, times[times.len() / 2]);
    }
}
