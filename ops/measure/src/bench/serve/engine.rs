//! What the engine makes clients wait: gaps in running answers while long prompts arrive, tokens a second of many answers,
//! prompts behind others that were given up, and how much of the KV memory that sequences hold has no token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use ragstone_env::Stopwatch;
use ragstone_kernels::pool::BLOCK_TOKENS;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;
use tokio::task::JoinSet;

use super::clients::Clients;
use crate::bench::{Machine, Percentiles, Spread};
use crate::error::{Error, Result};

/// A prompt that takes no time.
const SHORT_PROMPT: usize = 32;
/// Of the answers whose gaps are measured. One that ends is begun anew.
const LONG_ANSWER: usize = 2048;
/// How often figures are looked at.
const POLL: Duration = Duration::from_millis(5);
/// How often the metrics are looked at; the service counts for that.
const SAMPLE: Duration = Duration::from_millis(100);
/// What requests that will be given up take to arrive.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Mean lengths of the mixed load, in tokens: those of ShareGPT, with which PagedAttention's waste was measured (section 6.1).
const MIXED_PROMPT: usize = 161;
const MIXED_ANSWER: usize = 338;
/// Requests of the mixed load that run at once.
const MIXED_CLIENTS: usize = 8;

/// What to measure. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds; each measures everything once.
    pub runs: usize,
    /// Numbers of streams that run at once, and the length of each one's answer.
    pub streams: Vec<usize>,
    pub stream_tokens: usize,
    /// Running answers whose gaps are measured, and how many of each before the prompts arrive.
    pub answers: usize,
    pub gaps: usize,
    /// Prompts that arrive without pause.
    pub prompts: usize,
    pub prompt_tokens: usize,
    /// Prompts that are given up.
    pub abandoned: usize,
    pub abandoned_tokens: usize,
    /// Requests of the mixed load.
    pub mixed: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Between tokens of running answers, of all rounds.
    pub gap_ms: Gaps,
    pub streams: Vec<Streams>,
    /// From a short request behind abandoned long ones to its first token; the median.
    pub abandoned_ms: f64,
    /// The share of the KV memory that sequences hold and that has no token; the median. `None` where the service does not tell.
    pub kv_waste: Option<f64>,
    /// While prompts arrived, beside the same prompts alone; medians.
    pub busy: Throughput,
}

#[derive(Debug, Clone, Serialize)]
pub struct Gaps {
    pub quiet: Percentiles,
    /// While long prompts arrived.
    pub busy: Percentiles,
}

#[derive(Debug, Clone, Serialize)]
pub struct Streams {
    pub n: usize,
    /// Of all streams together, prefill included; the median.
    pub tokens_per_s: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Throughput {
    pub prompt_tokens_per_s: f64,
    /// Of the running answers.
    pub answer_tokens_per_s: f64,
    pub alone_prompt_tokens_per_s: f64,
}

/// What the rounds gave.
#[derive(Default)]
struct Samples {
    quiet_ms: Vec<f64>,
    busy_ms: Vec<f64>,
    streams: Vec<Vec<f64>>,
    abandoned_ms: Vec<f64>,
    kv_waste: Vec<f64>,
    prompt_rates: Vec<f64>,
    answer_rates: Vec<f64>,
    alone_rates: Vec<f64>,
}

/// Measures everything once a round.
pub async fn measure(clients: Clients, options: Options) -> Result<Report> {
    let progress = Progress::new("measuring", Unit::Items);
    let total = (options.runs * (options.streams.len() + 4)) as u64;
    let mut samples = Samples { streams: vec![Vec::new(); options.streams.len()], ..Samples::default() };
    // The first passes allocate what later ones use again.
    clients.complete(&clients.completion(SHORT_PROMPT, 4)).await?;
    let mut done = 0;
    let mut step = || {
        progress.set(done, total);
        done += 1;
    };
    for _ in 0..options.runs {
        for (count, rates) in options.streams.iter().zip(&mut samples.streams) {
            step();
            rates.push(streams(&clients, *count, options.stream_tokens).await?);
            clients.settle().await?;
        }
        step();
        gaps(&clients, &options, &mut samples).await?;
        clients.settle().await?;
        step();
        let alone = Stopwatch::start();
        prompts(&clients, &options).await?;
        samples.alone_rates.push(options.prompt_rate(alone.elapsed_s()));
        clients.settle().await?;
        step();
        samples.abandoned_ms.push(abandoned(&clients, &options).await?);
        clients.settle().await?;
        step();
        samples.kv_waste.extend(mixed(&clients, options.mixed).await?);
        clients.settle().await?;
    }
    Ok(samples.report(&options))
}

impl Options {
    fn prompt_rate(&self, seconds: f64) -> f64 {
        (self.prompts * self.prompt_tokens) as f64 / seconds
    }
}

impl Samples {
    fn report(self, options: &Options) -> Report {
        let median = |samples: Vec<f64>| Spread::of(samples).median;
        let streams = options.streams.iter().zip(self.streams);
        Report {
            machine: Machine::here(),
            gap_ms: Gaps { quiet: Percentiles::of(self.quiet_ms), busy: Percentiles::of(self.busy_ms) },
            streams: streams.map(|(n, rates)| Streams { n: *n, tokens_per_s: median(rates) }).collect(),
            abandoned_ms: median(self.abandoned_ms),
            kv_waste: (!self.kv_waste.is_empty()).then(|| median(self.kv_waste)),
            busy: Throughput {
                prompt_tokens_per_s: median(self.prompt_rates),
                answer_tokens_per_s: median(self.answer_rates),
                alone_prompt_tokens_per_s: median(self.alone_rates),
            },
        }
    }
}

/// So many answers at once. Tokens a second, of all together.
async fn streams(clients: &Clients, count: usize, tokens: usize) -> Result<f64> {
    let requests: Vec<_> = (0..count).map(|_| clients.completion(SHORT_PROMPT, tokens)).collect();
    let watch = Stopwatch::start();
    let answers = try_join_all(requests.iter().map(|request| clients.complete(request))).await?;
    Ok(answers.iter().map(|answer| answer.tokens).sum::<u64>() as f64 / watch.elapsed_s())
}

/// The long prompts, one after the other.
async fn prompts(clients: &Clients, options: &Options) -> Result<()> {
    for _ in 0..options.prompts {
        clients.prefill(options.prompt_tokens).await?;
    }
    Ok(())
}

/// Gaps of running answers: alone, then while prompts arrive.
async fn gaps(clients: &Clients, options: &Options, samples: &mut Samples) -> Result<()> {
    let mut running = Running::start(clients, options.answers);
    running.until(|gaps| !gaps.is_empty()).await?;
    let begin_ms = running.clock.elapsed_ms();
    let since = |gaps: &[Gap]| gaps.iter().filter(|gap| gap.from_ms >= begin_ms).count();
    running.until(|gaps| since(gaps) >= options.gaps).await?;
    let busy_ms = running.clock.elapsed_ms();
    tokio::select! {
        sent = prompts(clients, options) => sent?,
        error = running.failed() => return Err(error),
    }
    let end_ms = running.clock.elapsed_ms();
    // A gap that is open now ends with the next token; without it the longest ones would be missing.
    running.until(|gaps| gaps.last().is_some_and(|gap| gap.to_ms > end_ms)).await?;
    let gaps = running.gaps();
    let quiet = gaps.iter().filter(|gap| gap.from_ms >= begin_ms && gap.to_ms <= busy_ms);
    let busy = gaps.iter().filter(|gap| gap.to_ms > busy_ms && gap.from_ms < end_ms);
    samples.quiet_ms.extend(quiet.map(Gap::ms));
    samples.busy_ms.extend(busy.clone().map(Gap::ms));
    let seconds = (end_ms - busy_ms) / 1e3;
    samples.prompt_rates.push(options.prompt_rate(seconds));
    samples.answer_rates.push(busy.filter(|gap| gap.to_ms <= end_ms).count() as f64 / seconds);
    Ok(())
}

/// From one token to the next.
#[derive(Debug, Clone, Copy)]
struct Gap {
    from_ms: f64,
    to_ms: f64,
}

impl Gap {
    fn ms(&self) -> f64 {
        self.to_ms - self.from_ms
    }
}

/// Answers without end. Dropping it gives them up.
struct Running {
    /// They end only where one fails.
    tasks: JoinSet<Error>,
    /// Of each.
    gaps: Vec<Arc<Mutex<Vec<Gap>>>>,
    clock: Stopwatch,
}

impl Running {
    fn start(clients: &Clients, count: usize) -> Self {
        let clock = Stopwatch::start();
        let mut tasks = JoinSet::new();
        let gaps: Vec<Arc<Mutex<Vec<Gap>>>> = (0..count).map(|_| Arc::default()).collect();
        for seen in &gaps {
            let (clients, clock, gaps) = (clients.clone(), clock.clone(), seen.clone());
            tasks.spawn(async move {
                loop {
                    let mut last_ms = None;
                    let seen = || {
                        let to_ms = clock.elapsed_ms();
                        if let Some(from_ms) = last_ms.replace(to_ms) {
                            gaps.lock().unwrap_or_else(PoisonError::into_inner).push(Gap { from_ms, to_ms });
                        }
                    };
                    if let Err(error) =
                        clients.complete_seen(&clients.completion(SHORT_PROMPT, LONG_ANSWER), seen).await
                    {
                        return error;
                    }
                }
            });
        }
        Self { tasks, gaps, clock }
    }

    /// Waits until every answer has gaps enough.
    async fn until(&mut self, is_enough: impl Fn(&[Gap]) -> bool) -> Result<()> {
        let all = |gaps: &[Arc<Mutex<Vec<Gap>>>]| {
            gaps.iter().all(|gaps| is_enough(&gaps.lock().unwrap_or_else(PoisonError::into_inner)))
        };
        while !all(&self.gaps) {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                error = self.failed() => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for an answer to fail.
    async fn failed(&mut self) -> Error {
        match self.tasks.join_next().await {
            Some(Ok(error)) => error,
            _ => Error::internal("a client of the benchmark broke off"),
        }
    }

    fn gaps(&self) -> Vec<Gap> {
        self.gaps.iter().flat_map(|gaps| gaps.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }
}

/// How long a short prompt waits for its first token behind long ones whose clients closed their connections.
async fn abandoned(clients: &Clients, options: &Options) -> Result<f64> {
    let mut given_up = JoinSet::new();
    for _ in 0..options.abandoned {
        let (clients, request) = (clients.clone(), clients.completion(options.abandoned_tokens, 1));
        given_up.spawn(async move { clients.complete(&request).await.map(|_| ()) });
    }
    tokio::time::sleep(ARRIVAL).await;
    given_up.abort_all();
    while let Some(ended) = given_up.join_next().await {
        // What was answered already is no error; what was refused is.
        ended.unwrap_or(Ok(()))?;
    }
    Ok(clients.complete(&clients.completion(SHORT_PROMPT, 1)).await?.first_ms)
}

/// Prompts and answers of all lengths at once. The share of the blocks' room that no token took, over all of the time.
async fn mixed(clients: &Clients, requests: usize) -> Result<Option<f64>> {
    let mut running = JoinSet::new();
    let requests: Vec<_> = (0..requests)
        .map(|_| {
            let up_to_twice = |mean: usize| 1 + clients.below(2 * mean - 1);
            clients.completion(up_to_twice(MIXED_PROMPT), up_to_twice(MIXED_ANSWER))
        })
        .collect();
    let queue = Arc::new(Mutex::new(requests));
    for _ in 0..MIXED_CLIENTS {
        let (clients, queue) = (clients.clone(), queue.clone());
        let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
        running.spawn(async move {
            while let Some(request) = next() {
                clients.complete(&request).await?;
            }
            Ok::<_, Error>(())
        });
    }
    let (mut reserved, mut empty) = (0.0, 0.0);
    let mut often = tokio::time::interval(SAMPLE);
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok(done)) => done?,
                Some(Err(error)) => return Err(Error::internal(format!("a client broke off: {error}"))),
            },
            _ = often.tick() => {
                let metrics = clients.metrics().await?;
                let gauge = |name| Clients::gauge(&metrics, name);
                if let (Some(blocks), Some(slots)) =
                    (gauge("ragstone_kv_blocks_reserved"), gauge("ragstone_kv_slots_empty"))
                {
                    reserved += blocks * BLOCK_TOKENS as f64;
                    empty += slots;
                }
            }
        }
    }
    Ok((reserved > 0.0).then(|| empty / reserved))
}
