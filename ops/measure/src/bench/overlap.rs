//! How much of a search hides behind the prefill of what it finds (RAGCache, section 5.3 and table 3), and what that costs others.
//!
//! The whole program but for HTTP: corpus, search, pipeline and engine, with a random model and random documents of some topics.
//! Cells of the vector index are read as slowly as makes a search take as long as a prefill: `corpus.probe` delays each.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use ragstone_actors::{
    Caller, Context, Folders, Input, MinSimilarity, Question, Ragstone, Reuse, ReuseReport, RootCut, Settings,
};
use ragstone_documents::Document;
use ragstone_env::{Env, FailMode, Stopwatch};
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use super::serve::random_model::{word, write_embedder, write_model};
use super::{Machine, Percentiles, Shape, Spread};
use crate::error::{Error, Result};

const COLLECTION: &str = "bench";
/// Cells that a search looks into.
const PROBES: u32 = 32;
/// Words that a topic has to itself.
const TOPIC_WORDS: usize = 24;
const QUESTION_WORDS: usize = 12;
/// Questions that show what a prefill takes.
const FIRST: usize = 6;
const DEADLINE: Duration = Duration::from_secs(3600);

/// What to measure. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct Options {
    pub shape: Shape,
    pub seed: u64,
    /// Questions with speculation, and as many without.
    pub questions: usize,
    /// Questions at once of the busy engine.
    pub clients: usize,
    pub documents: usize,
    pub document_tokens: usize,
    pub topics: usize,
    pub passages: usize,
    pub answer_tokens: usize,
    /// What a search takes, in times of a prefill.
    pub search: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// What a prefill took by itself.
    pub prefill_ms: f64,
    /// What looking into a cell was made to take.
    pub probe_ms: f64,
    /// One question at a time: without speculation, then with it.
    pub alone: [Side; 2],
    /// Non-overlapped search time without speculation beside that with it.
    pub non_overlapped_ratio: f64,
    /// Questions at once, without speculation and with it.
    pub clients: usize,
    pub busy: [Side; 2],
}

/// What questions met.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    pub speculates: bool,
    pub questions: usize,
    pub questions_per_s: f64,
    pub ttft_ms: Percentiles,
    pub search_ms: Spread,
    /// Of the time to the first token, what was not spent on the prompt that was answered, nor in the queue.
    pub non_overlapped_ms: Spread,
    /// The mean of that.
    pub non_overlapped_ms_mean: f64,
    pub confirmed: usize,
    pub cancelled: usize,
    pub not_started: usize,
    /// Prefills that were begun beside searches.
    pub started: u32,
}

/// Measures in a temporary folder.
pub async fn measure(settings: Settings, options: Options) -> Result<Report> {
    let folder = tempfile::tempdir().map_err(|error| Error::internal(format!("no temporary folder: {error}")))?;
    let (env, path, written) = (Env::system(), folder.path().to_owned(), options.clone());
    let folders = tokio::task::spawn_blocking(move || write(&path, &written)).await;
    let folders = folders.map_err(|error| Error::internal(format!("the benchmark failed: {error}")))??;
    let settings = Settings {
        calibrate_when_idle: false,
        object_url: None,
        corpus_url: None,
        object_options: Default::default(),
        object_ttl_s: 0,
        object_max_bytes: 0,
        vector_index_rows: 1,
        top_k: Some(options.passages),
        chunk_tokens: settings.chunk_tokens.max(2 * options.document_tokens),
        max_queued: settings.max_queued.max(2 * options.clients),
        ..settings
    };
    let ragstone = Ragstone::open(settings, &folders, env.clone(), |_| {}).await?;
    let measured = Bench { ragstone: ragstone.clone(), env, random: Env::seeded(options.seed, 0), options }.run().await;
    ragstone.close().await?;
    measured
}

fn write(folder: &Path, options: &Options) -> Result<Folders> {
    Ok(Folders {
        data: folder.join("data"),
        model: write_model(folder, options.shape, options.seed)?,
        adapter: None,
        model_id: "random".into(),
        embedder: write_embedder(folder, options.seed, options.words())?,
        reranker: None,
    })
}

impl Options {
    /// Words that texts are made of: those of topics, and as many of none.
    fn words(&self) -> usize {
        2 * self.topics * TOPIC_WORDS
    }
}

struct Bench {
    ragstone: Ragstone,
    env: Env,
    random: Env,
    options: Options,
}

impl Bench {
    async fn run(self) -> Result<Report> {
        self.fill().await?;
        let progress = Progress::new("measuring", Unit::Items);
        progress.set(0, 4);
        let mut prefill_ms = Vec::new();
        for _ in 0..FIRST {
            prefill_ms.push(working_ms(&self.ask(false).await?));
        }
        let prefill_ms = Spread::of(prefill_ms).median;
        let probe_ms = self.options.search * prefill_ms / f64::from(PROBES);
        self.env.set_fail_point("corpus.probe", FailMode::Delay(Duration::from_secs_f64(probe_ms / 1e3)), 1);
        // The first search shows what the next ones take.
        self.ask(true).await?;
        let (mut alone, mut seconds) = ([Vec::new(), Vec::new()], [0.0; 2]);
        for _ in 0..self.options.questions {
            for (speculates, (reports, seconds)) in [false, true].into_iter().zip(alone.iter_mut().zip(&mut seconds)) {
                let watch = Stopwatch::start();
                reports.push(self.ask(speculates).await?);
                *seconds += watch.elapsed_s();
            }
        }
        progress.set(1, 4);
        let [off, on] = alone;
        let alone = [Side::of(false, &off, seconds[0]), Side::of(true, &on, seconds[1])];
        // Twice each, the other way round the second time: whatever changes with time meets both.
        let (mut busy, mut seconds) = ([Vec::new(), Vec::new()], [0.0; 2]);
        for (at, speculates) in [false, true, true, false].into_iter().enumerate() {
            let watch = Stopwatch::start();
            busy[usize::from(speculates)].extend(self.ask_at_once(speculates).await?);
            seconds[usize::from(speculates)] += watch.elapsed_s();
            progress.set(1 + (at as u64).min(2), 4);
        }
        let [off, on] = busy;
        let ratio = alone[0].non_overlapped_ms_mean / alone[1].non_overlapped_ms_mean;
        Ok(Report {
            machine: Machine::here(),
            prefill_ms,
            probe_ms,
            non_overlapped_ratio: ratio,
            alone,
            clients: self.options.clients,
            busy: [Side::of(false, &off, seconds[0]), Side::of(true, &on, seconds[1])],
        })
    }

    /// Puts the documents into the corpus.
    async fn fill(&self) -> Result<()> {
        let documents: Vec<Document> = (0..self.options.documents).map(|number| self.document(number)).collect();
        let progress = Progress::new("adding documents", Unit::Items);
        for (done, some) in documents.chunks(1024).enumerate() {
            progress.set(1024 * done as u64, documents.len() as u64);
            self.ragstone.library().upsert(COLLECTION, some.to_vec(), (None, Caller::default()), || true).await?;
        }
        Ok(())
    }

    fn document(&self, number: usize) -> Document {
        let topic = number % self.options.topics;
        let words: Vec<String> = (0..self.options.document_tokens)
            .map(|_| match self.below(10) {
                0..7 => self.topic_word(topic),
                _ => word(self.below(self.options.words()) as u32),
            })
            .collect();
        Document {
            id: Some(format!("document-{number}")),
            title: word(number as u32),
            text: words.join(" "),
            ..Document::default()
        }
    }

    fn topic_word(&self, topic: usize) -> String {
        word((topic * TOPIC_WORDS + self.below(TOPIC_WORDS)) as u32)
    }

    fn below(&self, bound: usize) -> usize {
        (self.random.random_u64() % bound.max(1) as u64) as usize
    }

    /// A question about a topic; nothing stored serves it, so that prefills are of one length.
    async fn ask(&self, speculates: bool) -> Result<ReuseReport> {
        let topic = self.below(self.options.topics);
        let words: Vec<String> = (0..QUESTION_WORDS).map(|_| self.topic_word(topic)).collect();
        // Random words are about nothing.
        let context = Context {
            collection: Some(COLLECTION.into()),
            speculate: Some(speculates),
            min_similarity: Some(MinSimilarity::Off),
            ..Context::default()
        };
        let max_tokens = self.options.answer_tokens;
        let question = Question {
            input: Input::Chat {
                messages: vec![ChatMessage::new("user", words.join(" "))],
                context: Some(context),
                tools: Vec::new(),
                thinks: None,
            },
            sampling: SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() },
            answers: 1,
            reuse: Reuse::Off,
            ends_at_repeat: false,
            cites: false,
            drafts: None,
            selection: None,
            explain: false,
            root: RootCut::Whole,
            said: None,
            tenant: String::new(),
            caller: Caller::default(),
            deadline: DEADLINE,
        };
        Ok(self.ragstone.answer(question).await?.collect().await?.finish.report)
    }

    /// As many questions as when they are asked alone, so many at once.
    async fn ask_at_once(&self, speculates: bool) -> Result<Vec<ReuseReport>> {
        let asked = (0..self.options.questions).map(|_| self.ask(speculates));
        let answered: Vec<Result<ReuseReport>> =
            futures::stream::iter(asked).buffer_unordered(self.options.clients).collect().await;
        answered.into_iter().collect()
    }
}

/// What was done about the prompt that was answered.
fn working_ms(report: &ReuseReport) -> f64 {
    let ttft = &report.ttft;
    ttft.assemble_ms + ttft.look_up_ms + ttft.plan_ms + ttft.compute_ms + ttft.load_wait_ms
}

impl Side {
    fn of(speculates: bool, reports: &[ReuseReport], seconds: f64) -> Self {
        use ragstone_actors::speculation::Outcome;
        let count = |wanted: Outcome| {
            reports.iter().filter(|report| report.speculation.is_some_and(|it| it.outcome == wanted)).count()
        };
        let non_overlapped =
            |report: &ReuseReport| (report.ttft.total_ms - working_ms(report) - report.ttft.queue_ms).max(0.0);
        Self {
            speculates,
            questions: reports.len(),
            questions_per_s: reports.len() as f64 / seconds,
            ttft_ms: Percentiles::of(reports.iter().map(|report| report.ttft.total_ms).collect()),
            search_ms: Spread::of(reports.iter().map(|report| report.ttft.retrieve_ms)),
            non_overlapped_ms: Spread::of(reports.iter().map(non_overlapped)),
            non_overlapped_ms_mean: reports.iter().map(non_overlapped).sum::<f64>() / reports.len() as f64,
            confirmed: count(Outcome::Confirmed),
            cancelled: count(Outcome::Cancelled),
            not_started: count(Outcome::NotStarted),
            started: reports.iter().filter_map(|report| report.speculation).map(|it| it.started).sum(),
        }
    }
}
