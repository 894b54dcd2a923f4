//! Chooses the next token from a row of logits.

mod beams;
mod history;
mod params;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::error::{Error, ErrorKind, Result};
use crate::grammar::Constraint;
pub use beams::{BeamRow, BeamSearch, Beams, Continuation, EarlyStopping, Hypothesis};
use history::History;
pub use params::{MAX_LOGPROBS, SamplingParams};

/// A chosen token. Log-probabilities are natural and those of the model's own distribution, before penalties, temperature,
/// top-k, top-p and min-p.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub id: u32,
    pub logprob: f32,
    /// The most likely tokens, best first, equal ones by id; empty unless `logprobs` asks for some. Or those of `logprob_token_ids`, in
    /// their order.
    pub top: Vec<(u32, f32)>,
}

/// A token that was given, as those of a prompt are, and what the model thought of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    pub token: Sampled,
    /// Its place among all tokens, the likeliest being the first; equal ones go by id.
    pub rank: u32,
}

/// What the model thought of `id` where these are the logits, `[vocab]`, before it; with the `count` likeliest tokens. Its values have
/// the bits that [`Sampler::sample`] reports.
pub fn score(logits: &[f32], id: u32, count: u8) -> Scored {
    let normalizer = normalizer(logits);
    let top = likeliest(logits, normalizer, count);
    let own = id as usize;
    let before = |other: &usize| by_likelihood(logits, *other, own) == Ordering::Less;
    let rank = if own < logits.len() { (0..logits.len()).filter(before).count() + 1 } else { logits.len() + 1 };
    Scored { token: Sampled { id, logprob: probability_of(logits, normalizer, id), top }, rank: rank as u32 }
}

/// The random stream and the rules of one answer, and what was chosen so far.
///
/// Each call of [`sample`](Self::sample) chooses one token and notes it. Whoever has logits behind drafted tokens calls it row by
/// row, as long as it chooses what was drafted: the tokens, and for a seed the values, are those of one token a step. A clone
/// goes on independently from where the original stands.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    random: fastrand::Rng,
    history: History,
    constraint: Option<Constraint>,
}

impl Sampler {
    /// The same parameters give the same choices over the same logits.
    pub fn new(params: SamplingParams) -> Self {
        let random = fastrand::Rng::with_seed(params.seed);
        Self { params, random, history: History::default(), constraint: None }
    }

    /// The sampler of an answer to `prompt`, whose tokens a repetition penalty counts, too; `end_tokens` end it, but not
    /// before `min_tokens`.
    pub fn answering(params: SamplingParams, prompt: &[u32], end_tokens: &[u32]) -> Self {
        let history = History::new(&params, prompt, end_tokens);
        Self { history, ..Self::new(params) }
    }

    /// Only what `constraint` allows is chosen.
    #[must_use]
    pub fn constrained(mut self, constraint: Option<Constraint>) -> Self {
        self.constraint = constraint;
        self
    }

    /// Whether a constraint allows nothing more: the answer ends without an end token.
    pub fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constraint::is_complete)
    }

    /// The rules this sampler follows.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses from one row of logits, `[vocab]`. NaN counts as impossible.
    ///
    /// # Errors
    /// `Internal` when no logit is a finite number, which no input should cause; `InvalidInput` when a grammar takes too much to
    /// follow.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled> {
        let likeliest = finite_argmax(logits)?;
        let adjusted = adjust(&self.history, self.constraint.as_ref(), &self.params, logits)?;
        let best = match &adjusted {
            Cow::Borrowed(_) => likeliest,
            Cow::Owned(adjusted) => finite_argmax(adjusted)?,
        };
        let is_greedy = self.params.temperature <= 0.0;
        let id = if is_greedy { best } else { draw(&self.params, &mut self.random, &adjusted, adjusted[best]) };
        drop(adjusted);
        self.choose(id as u32)?;
        Ok(self.describe(logits, id as u32))
    }

    /// What a beam search ranks tokens by: log-probabilities, then all rules, as transformers has them there. `-inf` for NaN. Chooses
    /// nothing.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn scores(&self, logits: &[f32]) -> Result<Vec<f32>> {
        let normalizer = log_sum_exp(logits, logits[finite_argmax(logits)?]);
        let scores: Vec<f32> = logits.iter().map(|logit| log_probability(*logit, normalizer)).collect();
        Ok(adjust(&self.history, self.constraint.as_ref(), &self.params, &scores)?.into_owned())
    }

    /// Notes a token that was chosen.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn choose(&mut self, id: u32) -> Result<()> {
        self.history.note(id);
        self.constraint.iter_mut().try_for_each(|constraint| constraint.note(id))
    }

    /// A token as it is reported, with the alternatives that were asked for.
    pub fn describe(&self, logits: &[f32], id: u32) -> Sampled {
        let normalizer = normalizer(logits);
        let top = match &self.params.logprob_token_ids[..] {
            [] => likeliest(logits, normalizer, self.params.logprobs.unwrap_or(0)),
            named => named.iter().map(|id| (*id, probability_of(logits, normalizer, *id))).collect(),
        };
        Sampled { id, logprob: probability_of(logits, normalizer, id), top }
    }

    /// What the next token is drawn from: the tokens that all rules leave, and their probabilities, which add up to 1. Chooses
    /// nothing.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn distribution(&self, logits: &[f32]) -> Result<Vec<(u32, f64)>> {
        let adjusted = adjust(&self.history, self.constraint.as_ref(), &self.params, logits)?;
        let best = finite_argmax(&adjusted)?;
        if self.params.temperature <= 0.0 {
            return Ok(vec![(best as u32, 1.0)]);
        }
        let candidates = candidates(&self.params, &adjusted, adjusted[best]);
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let left = candidates.into_iter().filter(|(_, weight)| *weight > 0.0);
        Ok(left.map(|(id, weight)| (id as u32, weight / total)).collect())
    }
}

/// Bias, penalties, the end that may not come yet, then what a grammar allows. Nothing is copied where nothing is asked for.
fn adjust<'l>(
    history: &History,
    constraint: Option<&Constraint>,
    params: &SamplingParams,
    logits: &'l [f32],
) -> Result<Cow<'l, [f32]>> {
    let mut adjusted = history.adjust(params, logits);
    if let Some(constraint) = constraint {
        constraint.mask(adjusted.to_mut())?;
    }
    Ok(adjusted)
}

fn finite_argmax(logits: &[f32]) -> Result<usize> {
    argmax(logits)
        .filter(|best| logits[*best].is_finite())
        .ok_or_else(|| Error::new(ErrorKind::Internal, "the model's logits are not finite; report this"))
}

/// What temperature, top-k, top-p, then min-p leave, as in transformers, and how much each weighs: the likeliest 1. Of tokens as
/// likely as the last of the top k, those with the lower ids are among them (transformers keeps all of them).
fn candidates(params: &SamplingParams, logits: &[f32], max: f32) -> Vec<(usize, f64)> {
    let weight = |logit: f32| match logit.is_nan() {
        true => 0.0,
        false => f64::from((logit - max) / params.temperature).exp(),
    };
    let mut candidates: Vec<(usize, f64)> = match params.top_k {
        0 => (0..logits.len()).map(|id| (id, weight(logits[id]))).collect(),
        count => most_likely(logits, count).into_iter().map(|id| (id, weight(logits[id]))).collect(),
    };
    if params.top_p < 1.0 {
        keep_nucleus(&mut candidates, f64::from(params.top_p));
    }
    if params.min_p > 0.0 {
        // The likeliest token weighs 1.
        candidates.retain(|(_, weight)| *weight >= f64::from(params.min_p));
    }
    candidates
}

/// One draw from what the rules leave.
fn draw(params: &SamplingParams, random: &mut fastrand::Rng, logits: &[f32], max: f32) -> usize {
    let candidates = candidates(params, logits, max);
    let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    let mut left = random.f64() * total;
    for (id, weight) in &candidates {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    // Rounding can leave a remainder behind the last candidate.
    candidates.iter().rev().find(|(_, weight)| *weight > 0.0).map_or(0, |(id, _)| *id)
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

fn normalizer(logits: &[f32]) -> f64 {
    log_sum_exp(logits, argmax(logits).map_or(0.0, |best| logits[best]))
}

/// The log-probability of a token; `-inf` for one that there is not.
fn probability_of(logits: &[f32], normalizer: f64, id: u32) -> f32 {
    logits.get(id as usize).map_or(f32::NEG_INFINITY, |logit| log_probability(*logit, normalizer))
}

/// The `count` likeliest tokens and their log-probabilities, likeliest first, equal ones by id. In one pass over the vocabulary: a prompt
/// has many rows.
fn likeliest(logits: &[f32], normalizer: f64, count: u8) -> Vec<(u32, f32)> {
    let count = usize::from(count);
    let mut best: Vec<usize> = Vec::with_capacity(count);
    for id in 0..logits.len() {
        let is_better = |other: &usize| by_likelihood(logits, id, *other) == Ordering::Less;
        if best.len() < count || best.last().is_some_and(is_better) {
            best.truncate(count - 1);
            best.insert(best.partition_point(|other| !is_better(other)), id);
        }
    }
    best.into_iter().map(|id| (id as u32, log_probability(logits[id], normalizer))).collect()
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
