//! How fast documents come into a collection, beside the embedding of their passages alone in the same run: what is between the two is what
//! cutting, tokenizing, committing and indexing cost, as far as embedding does not hide it.
//!
//! Passages are tokenized once more, as they are for a language model, by the embedding model's tokenizer, so that none has to be loaded.

use std::path::PathBuf;
use std::sync::Arc;

use ragstone_corpus::{Corpus, CorpusOptions, PassageEncoder};
use ragstone_documents::Document;
use ragstone_env::Stopwatch;
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use super::search::texts::{Texts, of_folder};
use super::{Machine, Spread};
use crate::error::{Error, Result};

/// Texts and bytes of one call of the embedding model, as an ingest makes them.
const EMBED_TEXTS: usize = 32;
const EMBED_BYTES: usize = 4 << 10;
/// Made documents have so many passages, about.
const PASSAGES: usize = 8;
/// Bytes of a folder's text for a passage.
const PASSAGE_BYTES: usize = 1024;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Passages, about.
    pub passages: usize,
    /// Text files instead of made texts.
    pub folder: Option<PathBuf>,
    /// Rounds; each measures both once.
    pub runs: usize,
    pub seed: u64,
    pub chunk_tokens: usize,
    pub chunk_overlap_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub documents: usize,
    pub passages: usize,
    /// Of the embedding model, in all passages.
    pub tokens: usize,
    /// Documents to a collection that is on the disk and indexed.
    pub whole: Rates,
    /// The same passages through the embedding model alone.
    pub embedding: Rates,
    /// The rate of the whole by that of embedding, round by round.
    pub of_embedding: Spread,
}

#[derive(Debug, Clone, Serialize)]
pub struct Rates {
    pub passages_per_s: Spread,
    pub tokens_per_s: Spread,
}

/// Measures in a temporary folder.
///
/// # Errors
/// `InvalidInput` for a folder without text; the corpus's.
pub async fn measure(embedder: SentenceEncoder, options: Options) -> Result<Report> {
    let documents = documents(&options)?;
    let encoder = Arc::new(IngestEncoder(embedder));
    let progress = Progress::new("measuring", Unit::Items);
    let (mut whole_s, mut embedding_s, mut passages) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..options.runs {
        progress.set(run as u64, options.runs as u64);
        let folder = tempfile::tempdir().map_err(|error| Error::internal(format!("no temporary folder: {error}")))?;
        let corpus_options = CorpusOptions {
            chunk_tokens: options.chunk_tokens,
            chunk_overlap_tokens: options.chunk_overlap_tokens,
            ..CorpusOptions::default()
        };
        let corpus = Corpus::open(folder.path(), encoder.clone(), corpus_options).await?;
        let watch = Stopwatch::start();
        corpus.upsert("bench", documents.clone(), &(), &|_| Ok(())).await?;
        whole_s.push(watch.elapsed_s());
        if passages.is_empty() {
            passages = contents(&corpus, &documents).await?;
        }
        let (encoder, texts) = (encoder.clone(), passages.clone());
        let alone = tokio::task::spawn_blocking(move || embed(&encoder, &texts)).await;
        embedding_s.push(alone.map_err(|error| Error::internal(format!("the benchmark failed: {error}")))??);
    }
    let count = |text: &String| encoder.0.token_count(text);
    let tokens: usize = passages.iter().map(count).sum::<std::result::Result<usize, _>>()?;
    let rates = |seconds: &[f64]| Rates {
        passages_per_s: Spread::of(seconds.iter().copied()).rate(passages.len() as f64),
        tokens_per_s: Spread::of(seconds.iter().copied()).rate(tokens as f64),
    };
    Ok(Report {
        machine: Machine::here(),
        documents: documents.len(),
        passages: passages.len(),
        tokens,
        whole: rates(&whole_s),
        embedding: rates(&embedding_s),
        of_embedding: Spread::of(whole_s.iter().zip(&embedding_s).map(|(whole, embedding)| embedding / whole)),
    })
}

fn documents(options: &Options) -> Result<Vec<Document>> {
    if let Some(folder) = &options.folder {
        return of_folder(folder, options.passages.saturating_mul(PASSAGE_BYTES));
    }
    let made = Texts::new(options.seed);
    let document = |number: usize| {
        let parts: Vec<Document> = (0..PASSAGES).map(|part| made.document(number * PASSAGES + part)).collect();
        let text = parts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n\n");
        Document { text, ..parts.into_iter().next().unwrap_or_default() }
    };
    Ok((0..options.passages.div_ceil(PASSAGES)).map(document).collect())
}

/// What was embedded of the documents.
async fn contents(corpus: &Corpus, documents: &[Document]) -> Result<Vec<String>> {
    let mut contents = Vec::new();
    for document in documents {
        let id = document.identity()?;
        if !corpus.has_document("bench", &id).await? {
            continue;
        }
        let passages = corpus.document("bench", &id).await?.passages;
        contents.extend(passages.into_iter().map(|passage| match passage.title.is_empty() {
            true => passage.text,
            false => format!("{}\n\n{}", passage.title, passage.text),
        }));
    }
    Ok(contents)
}

/// What the model alone takes, in seconds. BLOCKS.
fn embed(encoder: &IngestEncoder, mut texts: &[String]) -> Result<f64> {
    let watch = Stopwatch::start();
    while !texts.is_empty() {
        let mut bytes = 0;
        let fitting = texts.iter().take(EMBED_TEXTS).take_while(|text| {
            bytes += text.len();
            bytes <= EMBED_BYTES
        });
        let (batch, rest) = texts.split_at(fitting.count().max(1));
        encoder.embed_passages(batch)?;
        texts = rest;
    }
    Ok(watch.elapsed_s())
}

/// The embedding model, whose tokenizer also stands for a language model's.
struct IngestEncoder(SentenceEncoder);

impl PassageEncoder for IngestEncoder {
    fn embed_passages(&self, texts: &[String]) -> ragstone_storage::Result<Vec<Vec<f32>>> {
        self.0.encode_passages(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn embed_query(&self, text: &str) -> ragstone_storage::Result<Vec<f32>> {
        self.0.encode_query(text)
    }

    fn dimension(&self) -> usize {
        self.0.dimension()
    }

    fn identity(&self) -> String {
        self.0.identity().to_owned()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> ragstone_storage::Result<Vec<u32>> {
        let count = self.0.token_count(&format!("{title}\n\n{text}"))?;
        Ok(vec![0; count])
    }

    fn tokenizer_identity(&self) -> String {
        "bench: counts".to_owned()
    }

    fn count_tokens(&self, text: &str) -> usize {
        self.0.token_count(text).map_or(text.len(), |count| count.saturating_sub(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::serve::random_model::write_embedder;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_whole_is_measured_beside_embedding() {
        let folder = tempfile::tempdir().unwrap();
        let embedder = SentenceEncoder::load(&write_embedder(folder.path(), 1, 100).unwrap()).unwrap();
        let options =
            Options { passages: 40, folder: None, runs: 2, seed: 1, chunk_tokens: 256, chunk_overlap_tokens: 0 };
        let report = measure(embedder, options).await.unwrap();
        assert_eq!(report.documents, 5);
        assert!(report.passages >= 20 && report.tokens > 20 * report.passages, "{report:?}");
        for rates in [&report.whole, &report.embedding] {
            assert!(rates.passages_per_s.least > 0.0 && rates.tokens_per_s.median > rates.passages_per_s.median);
        }
        assert!(report.of_embedding.least > 0.0, "{report:?}");
    }
}
