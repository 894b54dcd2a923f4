//! Questions over a corpus of which some documents are asked about far more than others, by reuse mode and number of clients.

use futures::{StreamExt, TryStreamExt};
use ragstone_env::Stopwatch;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;
use serde_json::{Value, json};

use super::clients::{Answer, Clients, streamed};
use crate::bench::{Machine, Percentiles, Spread};
use crate::error::Result;

/// The share of the documents that is asked about most, and the share of the questions that is about them: what RAGCache
/// (section 3.2) found in MMLU.
const TOP: f64 = 0.03;
const SERVES: f64 = 0.60;
/// Of the question itself, in tokens.
const QUESTION_TOKENS: usize = 16;
/// Questions at once before anything is measured.
const WARM_UP_CLIENTS: usize = 4;

/// Documents of a topic, of which a question wants some.
const TOPIC_DOCUMENTS: usize = 12;

/// How a question's documents are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Draws {
    /// Each by itself: 3 % of all are in 60 % of the questions
    Independent,
    /// Of one topic's twelve; topics are drawn by Zipf's law
    Topics,
}

/// A way to answer.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    pub name: &'static str,
    /// As the API names it.
    reuse: &'static str,
    /// Whether documents may change places.
    arranges: bool,
}

/// Exact reuse of documents in the order in which they were retrieved: what prefix caching does.
pub const EXACT: Mode = Mode { name: "exact", reuse: "exact", arranges: false };
const MODES: [Mode; 5] = [
    Mode { name: "auto", reuse: "auto", arranges: false },
    Mode { name: "auto arranged", reuse: "auto", arranges: true },
    EXACT,
    Mode { name: "exact arranged", reuse: "exact", arranges: true },
    Mode { name: "off", reuse: "off", arranges: false },
];

/// What to measure. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds; each begins with nothing stored.
    pub runs: usize,
    /// Questions at once.
    pub clients: Vec<usize>,
    /// Questions for each number of clients; as many as there are clients where that is more.
    pub requests: usize,
    /// Questions of each mode before the measured ones, so that popular documents are stored.
    pub warm_up: usize,
    pub documents: usize,
    pub draws: Draws,
    pub document_tokens: usize,
    /// Documents of a question.
    pub passages: usize,
    pub answer_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub documents: usize,
    pub draws: Draws,
    pub results: Vec<ModeResult>,
}

/// One mode with one number of clients.
#[derive(Debug, Clone, Serialize)]
pub struct ModeResult {
    pub mode: &'static str,
    pub clients: usize,
    /// Of all rounds.
    pub requests: usize,
    /// The median of the rounds.
    pub requests_per_s: f64,
    /// From a request to its first token.
    pub ttft_ms: Percentiles,
    /// Between tokens.
    pub gap_ms: Percentiles,
    /// The share of the prompts' tokens whose KV was there.
    pub cached: f64,
}

#[derive(Default, Clone)]
struct Samples {
    rates: Vec<f64>,
    answers: Vec<Answer>,
}

/// Measures every mode with every number of clients once a round. All modes are asked the same questions; each keeps its KV
/// apart, as a tenant of its own.
pub async fn measure(clients: Clients, options: Options) -> Result<Report> {
    measure_modes(clients, options, &MODES).await
}

/// [`measure`] of some modes.
pub async fn measure_modes(clients: Clients, options: Options, modes: &[Mode]) -> Result<Report> {
    let corpus = Corpus::new(&clients, &options);
    let mut samples = vec![vec![Samples::default(); modes.len()]; options.clients.len()];
    let progress = Progress::new("measuring", Unit::Items);
    let total = (options.runs * options.clients.len() * modes.len()) as u64;
    let mut done = 0;
    for run in 0..options.runs {
        let tenant = |mode: &Mode| format!("{} {run}", mode.name);
        let warm_up: Vec<Value> = (0..options.warm_up).map(|_| corpus.question(&clients)).collect();
        for mode in modes {
            ask(&clients, WARM_UP_CLIENTS, &warm_up, mode, &tenant(mode)).await?;
            clients.settle().await?;
        }
        for (count, samples) in options.clients.iter().zip(&mut samples) {
            let requests = options.requests.max(*count);
            let questions: Vec<Value> = (0..requests).map(|_| corpus.question(&clients)).collect();
            for (mode, samples) in modes.iter().zip(samples) {
                progress.set(done, total);
                done += 1;
                let watch = Stopwatch::start();
                let answers = ask(&clients, *count, &questions, mode, &tenant(mode)).await?;
                samples.rates.push(requests as f64 / watch.elapsed_s());
                samples.answers.extend(answers);
                clients.settle().await?;
            }
        }
    }
    let results = options.clients.iter().zip(samples).flat_map(|(count, samples)| {
        modes.iter().zip(samples).map(|(mode, samples)| samples.result(mode.name, *count))
    });
    let Options { documents, draws, .. } = options;
    Ok(Report { machine: Machine::here(), documents, draws, results: results.collect() })
}

/// Asks questions, so many at once.
async fn ask(clients: &Clients, count: usize, questions: &[Value], mode: &Mode, tenant: &str) -> Result<Vec<Answer>> {
    let answers = questions.iter().map(|question| {
        let mut question = question.clone();
        question["ragstone"]["reuse"] = json!(mode.reuse);
        question["ragstone"]["arrange"] = json!(mode.arranges);
        question["ragstone"]["tenant"] = json!(tenant);
        async move { clients.chat(&question).await }
    });
    futures::stream::iter(answers).buffer_unordered(count).try_collect().await
}

impl Samples {
    fn result(self, mode: &'static str, clients: usize) -> ModeResult {
        let sum = |of: fn(&Answer) -> u64| self.answers.iter().map(of).sum::<u64>() as f64;
        ModeResult {
            mode,
            clients,
            requests: self.answers.len(),
            requests_per_s: Spread::of(self.rates).median,
            ttft_ms: Percentiles::of(self.answers.iter().map(|answer| answer.first_ms).collect()),
            gap_ms: Percentiles::of(self.answers.iter().flat_map(|answer| answer.gaps_ms.iter().copied()).collect()),
            cached: sum(|answer| answer.cached_tokens) / sum(|answer| answer.prompt_tokens),
        }
    }
}

/// Documents, the most popular one first.
pub(super) struct Corpus {
    texts: Vec<String>,
    draws: Draws,
    /// Running sums of how often each is asked about, or each topic.
    popularity: Vec<f64>,
    passages: usize,
    answer_tokens: usize,
}

impl Corpus {
    pub(super) fn new(clients: &Clients, options: &Options) -> Self {
        let Options { documents, draws, .. } = *options;
        let popularity = match draws {
            Draws::Independent => zipf(documents, exponent(documents)),
            Draws::Topics => zipf(documents.div_ceil(TOPIC_DOCUMENTS), 1.0),
        };
        let most = if draws == Draws::Topics { documents.min(TOPIC_DOCUMENTS) } else { documents };
        Self {
            texts: (0..documents).map(|_| clients.text(options.document_tokens)).collect(),
            draws,
            popularity,
            passages: options.passages.min(most),
            answer_tokens: options.answer_tokens,
        }
    }

    /// The request of a question over different documents, drawn by popularity.
    pub(super) fn question(&self, clients: &Clients) -> Value {
        let popular = || draw(&self.popularity, clients.below(1 << 52) as f64 / (1u64 << 52) as f64);
        let topic = popular();
        let mut drawn: Vec<usize> = Vec::new();
        while drawn.len() < self.passages {
            let document = match self.draws {
                Draws::Independent => popular(),
                // The last topic has the first documents, too, where there are not enough.
                Draws::Topics => (topic * TOPIC_DOCUMENTS + clients.below(TOPIC_DOCUMENTS)) % self.texts.len(),
            };
            if !drawn.contains(&document) {
                drawn.push(document);
            }
        }
        let documents: Vec<Value> = drawn
            .into_iter()
            .map(|document| json!({ "title": format!("document-{document}"), "text": self.texts[document] }))
            .collect();
        let messages = json!([{ "role": "user", "content": clients.text(QUESTION_TOKENS) }]);
        streamed(json!({ "messages": messages, "ragstone": { "documents": documents } }), self.answer_tokens)
    }
}

/// The Zipf exponent that gives the top documents their share: bisection, as the share grows with the exponent.
fn exponent(documents: usize) -> f64 {
    let top = ((TOP * documents as f64).round() as usize).clamp(1, documents);
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if zipf(documents, middle)[top - 1] < SERVES {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Running sums of `1 / rank^exponent`, up to 1.
fn zipf(documents: usize, exponent: f64) -> Vec<f64> {
    let weights = (1..=documents).map(|rank| (rank as f64).powf(-exponent));
    let total: f64 = weights.clone().sum();
    let sums = weights.scan(0.0, |sum, weight| {
        *sum += weight / total;
        Some(*sum)
    });
    sums.collect()
}

/// An index by popularity; `at` is below 1.
fn draw(popularity: &[f64], at: f64) -> usize {
    popularity.partition_point(|sum| *sum <= at).min(popularity.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_percent_of_the_documents_serve_sixty_percent_of_the_questions() {
        for documents in [100, 200, 10_000] {
            let popularity = zipf(documents, exponent(documents));
            let top = (TOP * documents as f64).round() as usize;
            assert!((popularity[top - 1] - SERVES).abs() < 1e-6, "{documents}: {}", popularity[top - 1]);
            assert_eq!(draw(&popularity, 0.0), 0);
            assert_eq!(draw(&popularity, popularity[top - 1] - 1e-9), top - 1);
            assert_eq!(draw(&popularity, 0.9999999999), documents - 1);
        }
    }
}
