//! What prompts with several answers and beam searches save by sharing blocks (PagedAttention, figures 15 and 16).

use serde::Serialize;
use serde_json::{Value, json};

use super::clients::Clients;
use crate::bench::Machine;
use crate::error::{Error, Result};

/// What to measure. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of each kind.
    pub prompts: usize,
    /// Of prompt and answer.
    pub lengths: Vec<(usize, usize)>,
    /// Answers of a prompt, and the width of a search.
    pub tails: Vec<usize>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub results: Vec<Shares>,
}

/// What groups of one size saved.
#[derive(Debug, Clone, Serialize)]
pub struct Shares {
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
    pub tails: usize,
    /// The share of blocks that were saved, over all of the engine's steps: of sampled answers, and of beams.
    pub samples: f64,
    pub beams: f64,
}

/// Measures one group at a time, so that none is preempted.
pub async fn measure(clients: Clients, options: Options) -> Result<Report> {
    let mut results = Vec::new();
    for (prompt_tokens, answer_tokens) in options.lengths {
        for tails in &options.tails {
            let [samples, beams] = ["samples", "beams"].map(async |kind| {
                let before = held_and_apart(&clients, kind).await?;
                for _ in 0..options.prompts {
                    let request = request(kind, clients.tokens(prompt_tokens), answer_tokens, *tails);
                    clients.post(&["v1", "completions"], &request).await?;
                }
                let after = held_and_apart(&clients, kind).await?;
                Ok::<f64, Error>(1.0 - (after.0 - before.0) / (after.1 - before.1))
            });
            let (samples, beams) = (samples.await?, beams.await?);
            results.push(Shares { prompt_tokens, answer_tokens, tails: *tails, samples, beams });
        }
    }
    Ok(Report { machine: Machine::here(), results })
}

fn request(kind: &str, prompt: Vec<u32>, answer_tokens: usize, tails: usize) -> Value {
    let mut request = json!({ "prompt": prompt, "max_tokens": answer_tokens, "min_tokens": answer_tokens, "n": tails, "ignore_eos": true });
    match kind {
        "beams" => request["use_beam_search"] = json!(true),
        _ => request["temperature"] = json!(1),
    }
    request
}

/// Blocks that groups of this kind held so far, and would have held apart.
async fn held_and_apart(clients: &Clients, kind: &str) -> Result<(f64, f64)> {
    let groups = &clients.status().await?["device"]["groups"][kind];
    match (groups["held"].as_f64(), groups["apart"].as_f64()) {
        (Some(held), Some(apart)) => Ok((held, apart)),
        _ => Err(Error::internal("the service does not tell what groups hold")),
    }
}
