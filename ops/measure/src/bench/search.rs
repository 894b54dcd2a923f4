//! How fast a collection is searched: by meaning, by words and by both, for one client and for several.
//!
//! Texts are made, or a folder's. Their vectors are made too, unless they are to be the embedding model's: sums of directions that hashes of words
//! give, so that passages of like words are near each other, as a model has them. Then a hundred thousand are indexed in minutes and not in
//! hours. A question goes through the embedding model all the same: what that takes is part of a search. Its result is used where the passages'
//! vectors are the model's.

pub mod texts;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use ragstone_corpus::{Corpus, CorpusOptions, Hit, PassageEncoder, SearchMode, SearchOptions};
use ragstone_documents::Document;
use ragstone_env::Stopwatch;
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use self::texts::{Texts, of_folder, question, random};
use super::{Machine, Spread};
use crate::error::{Error, Result};

/// Documents that are added in one call.
const TOGETHER: usize = 4096;
/// A made text has about four tokens for three words.
const TOKENS: usize = 4;
const OF_WORDS: usize = 3;
/// The vocabulary that made token ids are of.
const VOCABULARY: u64 = 150_000;
/// Bytes of a folder's text for a passage.
const PASSAGE_BYTES: usize = 1024;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Made texts have so many; of a folder's, as many as it has, and about so many at the most.
    pub passages: usize,
    /// Text files to search instead of made texts.
    pub folder: Option<PathBuf>,
    /// Where the collection is kept, and used again; `None`: it goes away with the benchmark.
    pub keep: Option<PathBuf>,
    /// Whether passages have the embedding model's vectors.
    pub embeds: bool,
    pub modes: Vec<SearchMode>,
    /// Searches at once, each number by itself.
    pub clients: Vec<usize>,
    /// Searches of each mode and number of clients in a round.
    pub queries: usize,
    /// Rounds; each measures everything once.
    pub runs: usize,
    pub top_k: usize,
    pub seed: u64,
    pub vector_index_rows: usize,
    /// Bytes of indexes that stay in memory.
    pub index_cache_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub passages: usize,
    /// What the texts are of: `made`, or a folder.
    pub texts: String,
    /// What the passages' vectors are of: `words`, which is no model's, or the embedding model.
    pub vectors: String,
    /// What it took to add what was not there yet.
    pub built_s: f64,
    pub results: Vec<ModeResult>,
}

/// What clients met.
#[derive(Debug, Clone, Serialize)]
pub struct ModeResult {
    pub mode: SearchMode,
    pub clients: usize,
    pub searches: usize,
    /// From a question's text to its hits.
    pub p50_ms: f64,
    pub p95_ms: f64,
    /// The rounds' medians.
    pub median_ms: Spread,
    /// Of all clients together, by rounds.
    pub per_s: Spread,
    /// The median of `per_s`, by that of one client; none where one client was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_one_client: Option<f64>,
    /// The median of each part. Vectors and words are searched at the same time.
    pub parts_ms: Parts,
}

/// Where the time goes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Parts {
    pub embedding: f64,
    pub vectors: f64,
    pub words: f64,
    /// Candidates' texts, and the hits.
    pub reading: f64,
}

/// One search.
struct Sample {
    ms: f64,
    parts: Parts,
}

/// Measures a collection, which is made first where it is not there.
///
/// # Errors
/// `InvalidInput` for a folder without text; the corpus's.
pub async fn measure(embedder: SentenceEncoder, options: Options) -> Result<Report> {
    let temporary = match &options.keep {
        Some(_) => None,
        None => Some(tempfile::tempdir().map_err(|error| Error::internal(format!("no temporary folder: {error}")))?),
    };
    let folder = match (&options.keep, &temporary) {
        (Some(keep), _) => keep.clone(),
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => PathBuf::new(),
    };
    let encoder = Arc::new(BenchEncoder { model: embedder, embeds: options.embeds });
    let vectors = if options.embeds { encoder.model.identity().to_owned() } else { "words".to_owned() };
    let texts = options.folder.as_ref().map_or_else(|| "made".to_owned(), |folder| folder.display().to_string());
    let Options { vector_index_rows, index_cache_bytes, .. } = options;
    let corpus_options = CorpusOptions { vector_index_rows, index_cache_bytes, ..CorpusOptions::default() };
    let corpus = Corpus::open(&folder.join(folder_of(&vectors)), encoder, corpus_options).await?;
    let collection = collection_of(&options);
    let (asked, built_s) = build(&corpus, &collection, &options).await?;
    let passages = corpus.collections().await?.into_iter().find(|info| info.name == collection);
    let passages = passages.map_or(0, |info| info.passages);
    let bench = Bench { corpus, collection, asked, options: &options };
    let results = bench.run().await?;
    Ok(Report { machine: Machine::here(), passages, texts, vectors, built_s, results })
}

/// A corpus is one embedding model's.
fn folder_of(vectors: &str) -> String {
    format!("search-{:016x}", hash(&vectors))
}

/// Of other texts, another collection.
fn collection_of(options: &Options) -> String {
    let texts = (&options.folder, options.seed, options.passages);
    format!("bench-{:016x}", hash(&texts))
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Adds what is missing of a collection; questions about it, and what it took.
async fn build(corpus: &Corpus, collection: &str, options: &Options) -> Result<(Vec<String>, f64)> {
    let (made, watch) = (Texts::new(options.seed), Stopwatch::start());
    let read = match &options.folder {
        Some(folder) => Some(of_folder(folder, options.passages.saturating_mul(PASSAGE_BYTES))?),
        None => None,
    };
    let count = read.as_ref().map_or(options.passages, Vec::len);
    let document = |number: usize| match &read {
        Some(read) => read[number].clone(),
        None => made.document(number),
    };
    let progress = Progress::new("adding passages", Unit::Items);
    for first in (0..count).step_by(TOGETHER) {
        progress.set(first as u64, count as u64);
        let some: Vec<Document> = (first..count.min(first + TOGETHER)).map(document).collect();
        corpus.upsert(collection, some, &(), &|_| Ok(())).await?;
    }
    let built_s = watch.elapsed_s();
    // As a service does once nobody writes.
    corpus.compact(collection).await?;
    let mut random = random(options.seed);
    let asked = (0..options.queries).map(|_| {
        let document = document(random.usize(..count));
        question(&document.text, &mut random)
    });
    Ok((asked.collect(), built_s))
}

struct Bench<'a> {
    corpus: Corpus,
    collection: String,
    asked: Vec<String>,
    options: &'a Options,
}

impl Bench<'_> {
    async fn run(&self) -> Result<Vec<ModeResult>> {
        let Options { modes, clients, runs, .. } = self.options;
        let cells: Vec<(SearchMode, usize)> =
            modes.iter().flat_map(|mode| clients.iter().map(move |clients| (*mode, *clients))).collect();
        let mut rounds: Vec<Vec<(f64, Vec<Sample>)>> = cells.iter().map(|_| Vec::new()).collect();
        // What is read first is in memory then.
        for mode in modes {
            self.ask_all(*mode, 1).await?;
        }
        let progress = Progress::new("searching", Unit::Items);
        for run in 0..*runs {
            for (at, (mode, clients)) in cells.iter().enumerate() {
                progress.set((run * cells.len() + at) as u64, (runs * cells.len()) as u64);
                rounds[at].push(self.ask_all(*mode, *clients).await?);
            }
        }
        let mut results: Vec<ModeResult> =
            cells.into_iter().zip(rounds).map(|(cell, rounds)| ModeResult::of(cell, &rounds)).collect();
        let alone: Vec<(SearchMode, f64)> = results
            .iter()
            .filter(|result| result.clients == 1)
            .map(|result| (result.mode, result.per_s.median))
            .collect();
        for result in &mut results {
            let one = alone.iter().find(|(mode, _)| *mode == result.mode);
            result.of_one_client = one.map(|(_, per_s)| result.per_s.median / per_s);
        }
        Ok(results)
    }

    /// All questions, by so many clients; each asks the next one when it has an answer. Searches a second, and what each met.
    async fn ask_all(&self, mode: SearchMode, clients: usize) -> Result<(f64, Vec<Sample>)> {
        let watch = Stopwatch::start();
        let clients = (0..clients).map(|client| {
            let asked: Vec<String> = self.asked.iter().skip(client).step_by(clients).cloned().collect();
            let (corpus, collection, top_k) = (self.corpus.clone(), self.collection.clone(), self.options.top_k);
            // On the runtime's threads, as the service's are.
            tokio::spawn(async move {
                let mut samples = Vec::with_capacity(asked.len());
                for question in asked {
                    samples.push(ask(&corpus, (&collection, &question), mode, top_k).await?);
                }
                Ok::<_, Error>(samples)
            })
        });
        let mut samples = Vec::new();
        for client in clients.collect::<Vec<_>>() {
            let asked = client.await.map_err(|error| Error::internal(format!("the benchmark failed: {error}")))?;
            samples.extend(asked?);
        }
        Ok((samples.len() as f64 / watch.elapsed_s(), samples))
    }
}

async fn ask(corpus: &Corpus, (collection, question): (&str, &str), mode: SearchMode, top_k: usize) -> Result<Sample> {
    let options = SearchOptions { top_k, mode, ..SearchOptions::default() };
    let watch = Stopwatch::start();
    let found = corpus.search_in_stages(collection, question, &options, false, &mut |_: Vec<Hit>| {}).await?;
    let ms = watch.elapsed_ms();
    let took = found.took;
    let parts = Parts {
        embedding: took.embedding_ms,
        vectors: took.vectors_ms,
        words: took.words_ms,
        reading: took.reading_ms,
    };
    Ok(Sample { ms, parts })
}

impl ModeResult {
    fn of((mode, clients): (SearchMode, usize), rounds: &[(f64, Vec<Sample>)]) -> Self {
        let all = || rounds.iter().flat_map(|(_, samples)| samples);
        let median = |of: &dyn Fn(&Sample) -> f64| Spread::of(all().map(of)).median;
        let mut times: Vec<f64> = all().map(|sample| sample.ms).collect();
        times.sort_by(f64::total_cmp);
        Self {
            mode,
            clients,
            searches: times.len(),
            p50_ms: at_rank(&times, 50),
            p95_ms: at_rank(&times, 95),
            median_ms: Spread::of(
                rounds.iter().map(|(_, samples)| Spread::of(samples.iter().map(|sample| sample.ms)).median),
            ),
            per_s: Spread::of(rounds.iter().map(|(per_s, _)| *per_s)),
            of_one_client: None,
            parts_ms: Parts {
                embedding: median(&|sample| sample.parts.embedding),
                vectors: median(&|sample| sample.parts.vectors),
                words: median(&|sample| sample.parts.words),
                reading: median(&|sample| sample.parts.reading),
            },
        }
    }
}

/// Of sorted samples, by the nearest rank; NaN of none.
fn at_rank(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.wrapping_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The embedding model, and what stands for it where a hundred thousand passages would take it an hour.
pub struct BenchEncoder {
    pub model: SentenceEncoder,
    /// Whether passages' vectors are the model's, and not made of words.
    pub embeds: bool,
}

impl BenchEncoder {
    /// The sum of its words' directions, of unit length.
    fn of_words(&self, text: &str) -> Vec<f32> {
        let mut vector = vec![1e-3_f32; self.model.dimension()];
        for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            let mut random = fastrand::Rng::with_seed(hash(&word));
            // Few numbers each, which is as good as all of them: other words have others.
            for _ in 0..16 {
                let at = random.usize(..vector.len());
                vector[at] += if random.bool() { 1.0 } else { -1.0 };
            }
        }
        let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
        vector.iter().map(|number| number / length).collect()
    }
}

impl PassageEncoder for BenchEncoder {
    fn embed_passages(&self, texts: &[String]) -> ragstone_storage::Result<Vec<Vec<f32>>> {
        if !self.embeds {
            return Ok(texts.iter().map(|text| self.of_words(text)).collect());
        }
        self.model.encode_passages(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn embed_query(&self, text: &str) -> ragstone_storage::Result<Vec<f32>> {
        let vector = self.model.encode_query(text)?;
        Ok(if self.embeds { vector } else { self.of_words(text) })
    }

    fn dimension(&self) -> usize {
        self.model.dimension()
    }

    fn identity(&self) -> String {
        if self.embeds { self.model.identity().to_owned() } else { "bench: sums of words".to_owned() }
    }

    /// As many ids as a language model's tokenizer gives, about.
    fn tokenize_passage(&self, title: &str, text: &str) -> ragstone_storage::Result<Vec<u32>> {
        let words = title.split_whitespace().chain(text.split_whitespace());
        Ok(words.map(|word| (hash(&word) % VOCABULARY) as u32).collect())
    }

    fn tokenizer_identity(&self) -> String {
        "bench: words".to_owned()
    }

    fn count_tokens(&self, text: &str) -> usize {
        if self.embeds {
            return self.model.token_count(text).map_or(text.len(), |count| count.saturating_sub(2));
        }
        text.split_whitespace().count() * TOKENS / OF_WORDS
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::serve::random_model::write_embedder;

    async fn measured(folder: &Path, options: &Options) -> Report {
        let models = tempfile::tempdir_in(folder).unwrap();
        let embedder = SentenceEncoder::load(&write_embedder(models.path(), 1, 100).unwrap()).unwrap();
        measure(embedder, options.clone()).await.unwrap()
    }

    fn options() -> Options {
        Options {
            passages: 300,
            folder: None,
            keep: None,
            embeds: false,
            modes: vec![SearchMode::Vector, SearchMode::FullText, SearchMode::Fused],
            clients: vec![1, 3],
            queries: 6,
            runs: 2,
            top_k: 5,
            seed: 1,
            vector_index_rows: 50_000,
            index_cache_bytes: 64 << 20,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_collection_is_made_once_and_every_mode_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { keep: Some(folder.path().join("kept")), ..options() };
        let report = measured(folder.path(), &options).await;
        assert_eq!((report.passages, &*report.texts, &*report.vectors), (300, "made", "words"));
        let cells: Vec<_> = report.results.iter().map(|result| (result.mode, result.clients)).collect();
        let both = |mode| [(mode, 1), (mode, 3)];
        assert_eq!(cells, [SearchMode::Vector, SearchMode::FullText, SearchMode::Fused].map(both).concat());
        for result in &report.results {
            assert_eq!(result.searches, 12);
            assert!(result.p50_ms > 0.0 && result.p95_ms >= result.p50_ms && result.per_s.least > 0.0, "{result:?}");
            assert!(result.of_one_client.is_some() && result.parts_ms.reading > 0.0, "{result:?}");
            let Parts { embedding, vectors, words, .. } = result.parts_ms;
            // By words nothing is embedded; what its part has is a look at the clock.
            assert!(embedding > 0.0 || result.mode == SearchMode::FullText, "{result:?}");
            assert_eq!(vectors > 0.0, result.mode != SearchMode::FullText);
            assert_eq!(words > 0.0, result.mode != SearchMode::Vector);
        }
        let again = measured(folder.path(), &options).await;
        assert!(again.passages == 300 && again.built_s < report.built_s, "{} s, {} s", again.built_s, report.built_s);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_folders_texts_are_searched_with_the_models_vectors() {
        let folder = tempfile::tempdir().unwrap();
        let texts = folder.path().join("texts");
        std::fs::create_dir(&texts).unwrap();
        for (name, text) in
            [("bridge.md", "The old bridge is of granite."), ("mill.txt", "The mill is old, too."), ("no.csv", "a,b")]
        {
            std::fs::write(texts.join(name), text).unwrap();
        }
        let options =
            Options { folder: Some(texts.clone()), embeds: true, modes: vec![SearchMode::Fused], ..options() };
        let report = measured(folder.path(), &options).await;
        assert_eq!((report.passages, report.texts), (2, texts.display().to_string()));
        assert_ne!(report.vectors, "words");
        let empty = Options { folder: Some(folder.path().join("kept")), ..options };
        std::fs::create_dir(folder.path().join("kept")).unwrap();
        let embedder = SentenceEncoder::load(&write_embedder(folder.path(), 1, 100).unwrap()).unwrap();
        let refused = measure(embedder, empty).await.unwrap_err();
        assert!(refused.to_string().contains("there is no text"), "{refused}");
    }

    #[test]
    fn ranks_are_the_nearest() {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([50, 95].map(|percent| at_rank(&samples, percent)), [50.0, 95.0]);
        assert!(at_rank(&[], 50).is_nan());
    }
}
