//! What it brings that prompts with more cached go first (RAGCache, section 5.2): the same questions at the same moments, a little
//! faster than they can be answered, of a service that reorders and of one that does not.

use serde::Serialize;
use serde_json::{Value, json};

use super::clients::Clients;
use super::load::{Endpoint, Fate, arrive};
use super::rag::{self, Corpus};
use crate::bench::{Machine, Spread};
use crate::error::Result;

/// What one service gave.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// [`reorder_window`](ragstone_actors::settings::Settings::reorder_window)
    pub window: u32,
    pub answered: usize,
    pub refused: usize,
    /// The mean over those answered.
    pub ttft_ms: f64,
    /// The share of the prompts' tokens whose KV was there.
    pub cached: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Questions a second, in the mean.
    pub arrivals_per_s: f64,
    /// Two of each round: in the order of arrival, then reordered.
    pub sides: Vec<Side>,
    /// Mean TTFT in the order of arrival beside that of reordered prompts; the median of the rounds.
    pub speedup: f64,
}

impl Report {
    pub fn new(arrivals_per_s: f64, sides: Vec<Side>) -> Self {
        let pairs = sides.as_chunks::<2>().0.iter();
        let speedup = Spread::of(pairs.map(|[fifo, reordered]| fifo.ttft_ms / reordered.ttft_ms)).median;
        Self { machine: Machine::here(), arrivals_per_s, sides, speedup }
    }
}

/// Questions a second that clients who wait for each other get answered.
pub async fn capacity(clients: Clients, options: rag::Options) -> Result<f64> {
    let report = rag::measure_modes(clients, options, &[rag::EXACT]).await?;
    Ok(report.results.iter().map(|result| result.requests_per_s).fold(0.0, f64::max))
}

/// The questions of a round, of a service that nobody asked before. Equal seeds give equal questions at equal moments.
pub async fn measure(clients: Clients, options: rag::Options, per_s: f64, window: u32) -> Result<Side> {
    let corpus = Corpus::new(&clients, &options);
    let questions = |count: usize| (0..count).map(|_| question(&corpus, &clients)).collect::<Vec<Value>>();
    let (warm_up, questions) = (questions(options.warm_up), questions(options.requests));
    for question in &warm_up {
        clients.chat(question).await?;
    }
    clients.settle().await?;
    let fates = arrive(&clients, Endpoint::Chat, questions, per_s).await?.ends().await?;
    let (mut ttft_ms, mut prompt_tokens, mut cached_tokens) = (0.0, 0, 0);
    let mut answered = 0;
    for fate in &fates {
        if let Fate::Answered { answer, .. } = fate {
            ttft_ms += answer.first_ms;
            prompt_tokens += answer.prompt_tokens;
            cached_tokens += answer.cached_tokens;
            answered += 1;
        }
    }
    Ok(Side {
        window,
        answered,
        refused: fates.len() - answered,
        ttft_ms: ttft_ms / answered as f64,
        cached: cached_tokens as f64 / prompt_tokens as f64,
    })
}

fn question(corpus: &Corpus, clients: &Clients) -> Value {
    let mut question = corpus.question(clients);
    // Prefixes, as in the paper: a prompt has much cached or nothing.
    question["ragstone"]["reuse"] = json!("exact");
    question
}
