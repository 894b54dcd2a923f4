//! Measures retrieval on a question-answering data set whose questions come with their own passages.
//!
//! The data set is an array of `{"question", "ctxs": [{"title"?, "text"}]}` (MuSiQue and its relatives). All passages of all
//! questions are one collection; a question is answered well if its own passages come out on top of everybody else's.
//!
//! recall@k = |first k passages found ∩ the question's own| / min(k, number of its own), the mean over all questions. nDCG@k ("Cumulated
//! Gain-Based Evaluation of IR Techniques", section 2.2, with base 2 and gains of 0 and 1) counts earlier places for more. Passages of one
//! text are found at one place, and blank ones at none. A data set's passage is one document, found by whichever of its pieces is found first.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use ragstone_actors::{Caller, InlineDocument, Ragstone, Rerank, Reuse};
use ragstone_corpus::{Corpus, Hit, PassageEncoder, SearchMode, SearchOptions};
use ragstone_documents::Document;
use ragstone_env::Stopwatch;
use ragstone_kernels::embedding::SentenceEncoder;
use serde::Serialize;

use super::bootstrap::{Interval, interval_of_mean, mean};
use super::dataset::{self, Item, Passage};
use crate::error::Result;

/// Pieces of documents asked for, so that ten documents are among them although one may be found by several pieces.
const HITS: usize = 50;
/// The same draws for every way to search.
const SEED: u64 = 7;
/// How long one question's candidates may take to be put in order.
const PATIENCE: Duration = Duration::from_secs(600);

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetrievalReport {
    /// Distinct passages of the data set.
    pub passages: usize,
    pub questions: usize,
    pub modes: Vec<ModeReport>,
    /// What both searches together gain over each alone.
    pub fused_less: Vec<Difference>,
}

/// The fused search's nDCG@10 less another's, question by question.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The other.
    pub than: SearchMode,
    pub ndcg_at_10: f64,
    /// 95 %, by the paired bootstrap over questions.
    pub interval: Option<Interval>,
}

/// What was measured of one way to search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModeReport {
    pub mode: SearchMode,
    /// Passages that were then put in order; 0: none.
    pub rerank: usize,
    pub recall_at_5: f64,
    pub recall_at_10: f64,
    pub ndcg_at_10: f64,
    /// 95 % intervals, by the bootstrap over questions.
    pub recall_at_5_interval: Option<Interval>,
    pub ndcg_at_10_interval: Option<Interval>,
    /// From a question's text to passages, embedding and reranking included.
    pub query_ms_median: f64,
    /// Reranking alone.
    pub rerank_ms_median: f64,
}

/// What puts the first passages of each search in order.
#[derive(Clone, Copy)]
pub struct Reranker<'a> {
    /// Its cross-encoder, or its language model where it has none.
    pub ragstone: &'a Ragstone,
    /// Passages of each search, at most.
    pub candidates: usize,
}

impl Reranker<'_> {
    async fn order(&self, query: &str, mut hits: Vec<Hit>) -> Result<Vec<Hit>> {
        let others = hits.split_off(self.candidates.min(hits.len()));
        if hits.is_empty() {
            return Ok(hits);
        }
        let document = |hit: &Hit| InlineDocument { title: hit.passage.title.clone(), text: hit.passage.text.clone() };
        let asked = Rerank {
            query: query.to_owned(),
            documents: hits.iter().map(document).collect(),
            by: None,
            reuse: Reuse::Auto,
            tenant: String::new(),
            caller: Caller::default(),
            deadline: PATIENCE,
        };
        let order = self.ragstone.rerank(asked).await?.order();
        Ok(order.into_iter().map(|index| hits[index].clone()).chain(others).collect())
    }
}

/// How far a measurement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalProgress {
    /// Passages of the data set that are in the collection.
    Ingesting { done: usize, total: usize },
    /// Questions asked, in all modes together.
    Asking { done: usize, total: usize },
}

impl Passage {
    fn id(&self) -> String {
        Document::content_id(&self.title, &self.text)
    }
}

/// A corpus for measurements needs no language model: its passages never stand in a prompt.
pub struct RetrievalEncoder(pub SentenceEncoder);

impl PassageEncoder for RetrievalEncoder {
    fn embed_passages(&self, texts: &[String]) -> ragstone_storage::Result<Vec<Vec<f32>>> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        self.0.encode_passages(&texts)
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

    fn tokenize_passage(&self, _title: &str, _text: &str) -> ragstone_storage::Result<Vec<u32>> {
        Ok(Vec::new())
    }

    fn tokenizer_identity(&self) -> String {
        "none: this corpus is only searched".to_owned()
    }

    fn count_tokens(&self, text: &str) -> usize {
        // The two special tokens stand once in a passage, not once in each of its sentences.
        self.0.token_count(text).map_or(text.len(), |count| count.saturating_sub(2))
    }
}

/// Ingests the data set's passages into `collection` (what is there already is left alone) and asks all its questions; fused once more
/// where there is a reranker.
///
/// # Errors
/// `InvalidInput` for a file that is not such a data set; the corpus's errors.
pub async fn retrieval(
    corpus: &Corpus,
    dataset: &Path,
    collection: &str,
    reranker: Option<Reranker<'_>>,
    progress: &(dyn Fn(EvalProgress) + Send + Sync),
) -> Result<RetrievalReport> {
    let examples = dataset::read(dataset)?;
    let mut seen = HashSet::new();
    let contexts = examples.iter().flat_map(|example| &example.passages).filter(|context| seen.insert(context.id()));
    let documents: Vec<Document> = contexts
        .map(|context| Document { title: context.title.clone(), text: context.text.clone(), ..Document::default() })
        .collect();
    let passages = documents.len();
    let ingesting = |upsert: ragstone_corpus::UpsertProgress| {
        progress(EvalProgress::Ingesting { done: upsert.documents_done, total: upsert.documents_total });
        Ok(())
    };
    corpus.upsert(collection, documents, &(), &ingesting).await?;
    let mut modes = vec![(SearchMode::Vector, None), (SearchMode::FullText, None), (SearchMode::Fused, None)];
    modes.extend(reranker.map(|reranker| (SearchMode::Fused, Some(reranker))));
    let (mut reports, mut gains) = (Vec::with_capacity(modes.len()), Vec::with_capacity(modes.len()));
    for (at, mode) in modes.iter().copied().enumerate() {
        let asking = |done| {
            progress(EvalProgress::Asking { done: at * examples.len() + done, total: modes.len() * examples.len() });
        };
        let (report, of_questions) = ask(corpus, &examples, collection, mode, &asking).await?;
        reports.push(report);
        gains.push((mode.0, of_questions));
    }
    let fused_less = match &gains[..] {
        [vector, words, (_, fused), ..] => [vector, words].map(|alone| less(fused, alone)).to_vec(),
        _ => Vec::new(),
    };
    Ok(RetrievalReport { passages, questions: examples.len(), modes: reports, fused_less })
}

fn less(fused: &[f64], (than, alone): &(SearchMode, Vec<f64>)) -> Difference {
    let differences: Vec<f64> = fused.iter().zip(alone).map(|(fused, alone)| fused - alone).collect();
    Difference { than: *than, ndcg_at_10: mean(&differences), interval: interval_of_mean(&differences, SEED) }
}

/// What is measured of one way to search, and each question's nDCG@10.
async fn ask(
    corpus: &Corpus,
    examples: &[Item],
    collection: &str,
    (mode, reranker): (SearchMode, Option<Reranker<'_>>),
    asked: &(dyn Fn(usize) + Send + Sync),
) -> Result<(ModeReport, Vec<f64>)> {
    let (mut at_5, mut at_10, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    let (mut times, mut rerank_times) = (Vec::new(), Vec::new());
    for (done, example) in examples.iter().enumerate() {
        let begun = Stopwatch::start();
        let mut hits = corpus
            .search(collection, &example.question, &SearchOptions { top_k: HITS, mode, ..SearchOptions::default() })
            .await?;
        let found = begun.elapsed_ms();
        if let Some(reranker) = &reranker {
            hits = reranker.order(&example.question, hits).await?;
        }
        rerank_times.push(begun.elapsed_ms() - found);
        times.push(begun.elapsed_ms());
        let own = || example.passages.iter().filter(|passage| !passage.text.trim().is_empty());
        let texts: HashSet<&str> = own().map(|passage| passage.text.trim()).collect();
        let own: HashSet<String> = own().map(Passage::id).collect();
        let found = places(hits);
        at_5.push(recall(&found, &own, 5));
        at_10.push(recall(&found, &own, 10));
        gains.push(ndcg(&found, (&own, texts.len()), 10));
        asked(done + 1);
    }
    let report = ModeReport {
        mode,
        rerank: reranker.map_or(0, |reranker| reranker.candidates),
        recall_at_5: mean(&at_5),
        recall_at_10: mean(&at_10),
        ndcg_at_10: mean(&gains),
        recall_at_5_interval: interval_of_mean(&at_5, SEED),
        ndcg_at_10_interval: interval_of_mean(&gains, SEED),
        query_ms_median: median(times),
        rerank_ms_median: if reranker.is_some() { median(rerank_times) } else { 0.0 },
    };
    Ok((report, gains))
}

/// The documents of a search's hits, each place's together: a text that several documents have stands in one.
fn places(hits: Vec<Hit>) -> Vec<Vec<String>> {
    let mut seen = HashSet::new();
    let mut places: Vec<Vec<String>> = Vec::with_capacity(hits.len());
    for hit in hits {
        let ids =
            std::iter::once(hit.passage.document_id).chain(hit.also_in.into_iter().map(|place| place.document_id));
        let ids: Vec<String> = ids.filter(|id| seen.insert(id.clone())).collect();
        if !ids.is_empty() {
            places.push(ids);
        }
    }
    places
}

/// The share of `own` among the first `k` places, of as many as could be there.
fn recall(found: &[Vec<String>], own: &HashSet<String>, k: usize) -> f64 {
    let hits = found.iter().take(k).flatten().filter(|id| own.contains(*id)).count();
    (hits as f64 / own.len().min(k).max(1) as f64).min(1.0)
}

/// The gain of `own` among the first `k`, each place `i` from 1 for `1 / log2(i + 1)`, of as much as there could be: they have so many `texts`.
fn ndcg(found: &[Vec<String>], (own, texts): (&HashSet<String>, usize), k: usize) -> f64 {
    let gain = |place: usize| 1.0 / (place as f64 + 2.0).log2();
    let best: f64 = (0..texts.min(k).max(1)).map(gain).sum();
    let gained = found.iter().take(k).enumerate().filter(|(_, ids)| ids.iter().any(|id| own.contains(id)));
    gained.map(|(place, _)| gain(place)).sum::<f64>() / best
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &str) -> Vec<Vec<String>> {
        ids.chars().map(|id| vec![String::from(id)]).collect()
    }

    #[test]
    fn recall_is_of_what_could_be_there() {
        let own: HashSet<String> = ids("abc").into_iter().flatten().collect();
        assert_eq!(recall(&ids("axbyc"), &own, 5), 1.0);
        assert_eq!(recall(&ids("axbyc"), &own, 2), 0.5);
        assert_eq!(recall(&ids("xyzac"), &own, 4), 1.0 / 3.0);
        assert_eq!(recall(&[], &own, 5), 0.0);
        let together = [vec!["x".to_owned()], vec!["a".to_owned(), "b".to_owned()]];
        assert_eq!((recall(&together, &own, 2), recall(&together, &own, 5)), (1.0, 2.0 / 3.0));
    }

    /// By hand: places 1 and 3 of three that count, of the best that they could be.
    #[test]
    fn earlier_places_gain_more() {
        let own: HashSet<String> = ids("abc").into_iter().flatten().collect();
        let best = 1.0 + 1.0 / 3f64.log2() + 0.5;
        assert!((ndcg(&ids("axbyz"), (&own, 3), 5) - 1.5 / best).abs() < 1e-12);
        assert_eq!((ndcg(&ids("cab"), (&own, 3), 10), ndcg(&ids("xyz"), (&own, 3), 10)), (1.0, 0.0));
        assert_eq!(ndcg(&ids("ab"), (&own, 3), 2), 1.0);
        // Two of them have one text: no place is left that anything could be found at.
        let together = [vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]];
        assert_eq!(ndcg(&together, (&own, 2), 10), 1.0);
        assert_eq!((ndcg(&together, (&HashSet::new(), 0), 10), recall(&together, &HashSet::new(), 5)), (0.0, 0.0));
    }

    #[test]
    fn a_gain_is_that_of_each_question() {
        let gained = less(&[0.5, 1.0, 0.0], &(SearchMode::Vector, vec![0.25, 0.75, -0.25]));
        assert_eq!((gained.than, gained.ndcg_at_10, gained.interval), (SearchMode::Vector, 0.25, Some([0.25, 0.25])));
    }

    #[test]
    fn the_median_of_an_even_number_is_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
