//! Chooses the next token from a row of logits.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use crate::error::{Error, ErrorKind, Result};

/// The most alternatives that a caller may ask for beside each token.
pub const MAX_LOGPROBS: u8 = 20;

/// How tokens of one answer are chosen, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by this; 0 takes the most likely token.
    pub temperature: f32,
    /// The smallest set of most likely tokens that holds this much probability; 1 keeps all.
    pub top_p: f32,
    /// The most likely tokens that are kept; 0 keeps all.
    pub top_k: usize,
    /// Of the random stream. The caller draws one where the request names none: this crate has no randomness.
    pub seed: u64,
    /// The longest answer in tokens.
    pub max_tokens: usize,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Alternatives to report beside each token; `None` reports no log-probabilities.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    /// Greedy, 256 tokens.
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0, max_tokens: 256, stop: Vec::new(), logprobs: None }
    }
}

impl SamplingParams {
    /// Checks the ranges; the message names the parameter as the HTTP surface spells it.
    pub fn validate(&self) -> Result<()> {
        if !(0.0..=2.0).contains(&self.temperature) {
            return Err(Error::invalid_input(format!("temperature is {}; use 0 to 2", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::invalid_input(format!("top_p is {}; use more than 0, at most 1", self.top_p)));
        }
        if let Some(count) = self.logprobs.filter(|count| *count > MAX_LOGPROBS) {
            return Err(Error::invalid_input(format!("{count} logprobs asked for; use at most {MAX_LOGPROBS}")));
        }
        Ok(())
    }
}

/// A chosen token. Log-probabilities are natural and those of the model's own distribution, before temperature,
/// top-k and top-p.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub id: u32,
    pub logprob: f32,
    /// The most likely tokens, best first, equal ones by id; empty unless `logprobs` asks for some.
    pub top: Vec<(u32, f32)>,
}

/// The random stream and the rules of one answer.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    random: fastrand::Rng,
}

impl Sampler {
    /// The same parameters give the same choices over the same logits.
    pub fn new(params: SamplingParams) -> Self {
        let random = fastrand::Rng::with_seed(params.seed);
        Self { params, random }
    }

    /// The rules this sampler follows.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses from one row of logits, `[vocab]`. NaN counts as impossible.
    ///
    /// # Errors
    /// `Internal` when no logit is a finite number, which no input should cause.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled> {
        let best = argmax(logits)
            .filter(|best| logits[*best].is_finite())
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the model's logits are not finite; report this"))?;
        let normalizer = log_sum_exp(logits, logits[best]);
        let id = if self.params.temperature <= 0.0 { best } else { self.draw(logits, logits[best]) };
        let top = match self.params.logprobs {
            None | Some(0) => Vec::new(),
            Some(count) => most_likely(logits, usize::from(count))
                .into_iter()
                .map(|id| (id as u32, log_probability(logits[id], normalizer)))
                .collect(),
        };
        Ok(Sampled { id: id as u32, logprob: log_probability(logits[id], normalizer), top })
    }

    /// Temperature, then top-k, then top-p, as in transformers; then one draw.
    fn draw(&mut self, logits: &[f32], max: f32) -> usize {
        let SamplingParams { temperature, top_p, top_k, .. } = self.params;
        let weight = |logit: f32| match logit.is_nan() {
            true => 0.0,
            false => f64::from((logit - max) / temperature).exp(),
        };
        let mut candidates: Vec<(usize, f64)> = match top_k {
            0 => (0..logits.len()).map(|id| (id, weight(logits[id]))).collect(),
            count => most_likely(logits, count).into_iter().map(|id| (id, weight(logits[id]))).collect(),
        };
        if top_p < 1.0 {
            keep_nucleus(&mut candidates, f64::from(top_p));
        }
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = self.random.f64() * total;
        for (id, weight) in &candidates {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        // Rounding can leave a remainder behind the last candidate.
        candidates.iter().rev().find(|(_, weight)| *weight > 0.0).map_or(0, |(id, _)| *id)
    }
}

/// Index of the greatest logit, the lower one of equals; `None` when all are NaN or there are none.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (id, logit) in logits.iter().enumerate() {
        if !logit.is_nan() && best.is_none_or(|best| *logit > logits[best]) {
            best = Some(id);
        }
    }
    best
}

fn log_sum_exp(logits: &[f32], max: f32) -> f64 {
    let sum: f64 = logits.iter().filter(|logit| !logit.is_nan()).map(|logit| f64::from((logit - max).exp())).sum();
    f64::from(max) + sum.ln()
}

fn log_probability(logit: f32, normalizer: f64) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { (f64::from(logit) - normalizer) as f32 }
}

/// Greater logits first, equal ones by id, NaN last.
fn by_likelihood(logits: &[f32], a: usize, b: usize) -> Ordering {
    let rank = |id: usize| if logits[id].is_nan() { f32::NEG_INFINITY } else { logits[id] };
    rank(b).total_cmp(&rank(a)).then(a.cmp(&b))
}

/// The ids of the `count` greatest logits, greatest first.
fn most_likely(logits: &[f32], count: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    if count < ids.len() && count > 0 {
        ids.select_nth_unstable_by(count - 1, |a, b| by_likelihood(logits, *a, *b));
        ids.truncate(count);
    }
    ids.sort_unstable_by(|a, b| by_likelihood(logits, *a, *b));
    ids
}

/// Keeps the fewest candidates, most likely first, that hold `share` of the weight; at least one.
fn keep_nucleus(candidates: &mut Vec<(usize, f64)>, share: f64) {
    let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    // All candidates below this bound together weigh less than what may be dropped, so none of them is in the
    // nucleus: most of a large vocabulary need not be sorted.
    let bound = (1.0 - share) * total / candidates.len() as f64;
    candidates.retain(|(_, weight)| *weight >= bound);
    candidates.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut kept = 0.0;
    let mut count = 0;
    for (_, weight) in candidates.iter() {
        kept += weight;
        count += 1;
        if kept >= share * total {
            break;
        }
    }
    candidates.truncate(count);
}
