//! A generator of retrieval workloads.

use serde::{Deserialize, Serialize};

use super::Workload;
use super::random::{Random, cumulative_zipf, draw};
use crate::{Error, Result};
use ragstone_env::Env;

/// Labels of system prompts stand behind those of documents.
const SYSTEM_LABELS: u64 = 1 << 40;

/// Questions over a collection of documents, as a retriever answers them. Read from TOML; the seed replays it.
///
/// A question is about one document, drawn by popularity (Zipf). The retriever gives that one first, and then of its
/// neighbours, the nearer the likelier; now and then it gives the same ones in another order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RagWorkload {
    pub seed: u64,
    pub requests: usize,
    pub documents: usize,
    /// Lengths of documents.
    pub lengths: Lengths,
    /// How popular documents are.
    pub skew: Skew,
    /// Documents a question: each question draws one of these.
    pub top_k: Vec<usize>,
    /// Documents that the ones behind the first are drawn from: this many nearest to the first.
    pub neighbours: usize,
    /// Share of the questions whose documents come in any order.
    pub shuffled: f64,
    /// How popularity changes.
    pub drift: Drift,
    /// System prompts; each question has one of them.
    pub system_prompts: usize,
    pub system_tokens: u32,
    /// The question itself, from and to, evenly.
    pub question_tokens: [u32; 2],
}

/// Log-normal lengths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    pub mean_tokens: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    pub min_tokens: u32,
    pub max_tokens: u32,
}

/// The `top` share of the documents is what the share `serves` of the questions is about; in between and beyond, Zipf.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skew {
    pub top: f64,
    pub serves: f64,
}

/// Every `every` questions, the share `share` of the documents changes its popularity with documents drawn evenly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    pub every: usize,
    pub share: f64,
}

impl RagWorkload {
    /// Generates the requests.
    ///
    /// # Errors
    /// `InvalidInput` that names the key whose value cannot be.
    pub fn generate(&self) -> Result<Workload> {
        self.validate()?;
        let mut random = Random(Env::seeded(self.seed, 0));
        let lengths: Vec<u32> = (0..self.documents).map(|_| self.lengths.draw(&mut random)).collect();
        let mut popular = random.permutation(self.documents);
        // Documents of one topic stand beside each other on this ring.
        let ring = random.permutation(self.documents);
        let mut place = vec![0; self.documents];
        ring.iter().enumerate().for_each(|(at, document)| place[*document] = at);
        let ranks = cumulative_zipf(self.documents, self.skew.exponent(self.documents));
        let mut workload = Workload::new(self.system_prompts > 0);
        for request in 0..self.requests {
            if request > 0 && self.drift.every > 0 && request.is_multiple_of(self.drift.every) {
                for _ in 0..(self.drift.share * self.documents as f64).round() as usize {
                    let (one, other) = (random.below(self.documents), random.below(self.documents));
                    popular.swap(one, other);
                }
            }
            let first = popular[draw(&ranks, &mut random)];
            let top_k = self.top_k[random.below(self.top_k.len())];
            let found = self.retrieve(first, top_k, &ring, place[first], &mut random);
            let system = (self.system_prompts > 0)
                .then(|| (SYSTEM_LABELS + random.below(self.system_prompts) as u64, self.system_tokens));
            let documents = found.into_iter().map(|document| (document as u64, lengths[document]));
            let segments: Vec<(u64, u32)> = system.into_iter().chain(documents).collect();
            let [least, most] = self.question_tokens;
            workload.push(&segments, least + random.below((most - least) as usize + 1) as u32)?;
        }
        Ok(workload)
    }

    /// The document at `place` on the ring, and `top_k - 1` of its neighbours: the n-th nearest by weight `1 / n`.
    fn retrieve(&self, first: usize, top_k: usize, ring: &[usize], place: usize, random: &mut Random) -> Vec<usize> {
        let mut near: Vec<usize> = (0..self.neighbours)
            .map(|n| {
                let away = n / 2 + 1;
                let at = if n % 2 == 0 { place + away } else { place + ring.len() - away };
                ring[at % ring.len()]
            })
            .collect();
        let mut weights: Vec<f64> = (1..=self.neighbours).map(|n| 1.0 / n as f64).collect();
        let mut found = vec![first];
        while found.len() < top_k {
            let mut sum = 0.0;
            let sums: Vec<f64> = weights
                .iter()
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect();
            let drawn = draw(&sums, random);
            found.push(near.remove(drawn));
            weights.remove(drawn);
        }
        if random.unit() < self.shuffled {
            random.shuffle(&mut found);
        }
        found
    }

    fn validate(&self) -> Result<()> {
        let most_k = self.top_k.iter().copied().max().unwrap_or(0);
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let lengths = &self.lengths;
        let checks = [
            ("requests", (1..=10_000_000).contains(&self.requests), "must lie between 1 and 10000000"),
            ("documents", (2..=1_000_000).contains(&self.documents), "must lie between 2 and 1000000"),
            ("top_k", most_k > 0 && !self.top_k.contains(&0), "must hold at least one number, each at least 1"),
            ("neighbours", self.neighbours + 1 >= most_k, "must be at least the greatest top_k less one"),
            ("neighbours", self.neighbours < self.documents.min(1000), "must be less than documents, and than 1000"),
            ("shuffled", share(self.shuffled), "must lie between 0 and 1"),
            ("drift.share", share(self.drift.share), "must lie between 0 and 1"),
            ("skew.top", self.skew.top > 0.0 && self.skew.top < 1.0, "must lie between 0 and 1"),
            (
                "skew.serves",
                self.skew.serves >= self.skew.top && self.skew.serves <= 0.99,
                "must lie between skew.top and 0.99",
            ),
            ("lengths.mean_tokens", (1.0..=1e6).contains(&lengths.mean_tokens), "must lie between 1 and 1000000"),
            ("lengths.sigma", (0.0..=4.0).contains(&lengths.sigma), "must lie between 0 and 4"),
            ("lengths.min_tokens", lengths.min_tokens > 0, "must be at least 1"),
            (
                "lengths.max_tokens",
                (lengths.min_tokens..=1 << 20).contains(&lengths.max_tokens),
                "must lie between min_tokens and 1048576",
            ),
            ("system_prompts", self.system_prompts <= 1_000_000, "must be at most 1000000"),
            ("system_tokens", (1..=1 << 20).contains(&self.system_tokens), "must lie between 1 and 1048576"),
            (
                "question_tokens",
                self.question_tokens[0] > 0
                    && self.question_tokens[0] <= self.question_tokens[1]
                    && self.question_tokens[1] <= 1 << 20,
                "must be two ascending numbers between 1 and 1048576",
            ),
        ];
        match checks.iter().find(|(_, is_right, _)| !is_right) {
            Some((key, _, why)) => Err(Error::invalid_input(format!("`{key}` {why}"))),
            None => Ok(()),
        }
    }
}

impl Lengths {
    /// Whether its numbers can be.
    pub(super) fn are_right(&self) -> bool {
        (1.0..=1e6).contains(&self.mean_tokens)
            && (0.0..=4.0).contains(&self.sigma)
            && self.min_tokens > 0
            && (self.min_tokens..=1 << 20).contains(&self.max_tokens)
    }

    pub(super) fn draw(&self, random: &mut Random) -> u32 {
        let mu = self.mean_tokens.ln() - self.sigma * self.sigma / 2.0;
        let tokens = (mu + self.sigma * random.normal()).exp().round();
        // The bounds are below 2^20.
        tokens.clamp(f64::from(self.min_tokens), f64::from(self.max_tokens)) as u32
    }
}

impl Skew {
    /// The Zipf exponent that gives the top documents their share: bisection, as the share grows with the exponent.
    pub(super) fn exponent(&self, documents: usize) -> f64 {
        let top = ((self.top * documents as f64).round() as usize).clamp(1, documents);
        let (mut low, mut high) = (0.0, 8.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            let sums = cumulative_zipf(documents, middle);
            if sums[top - 1] / sums[documents - 1] < self.serves {
                low = middle;
            } else {
                high = middle;
            }
        }
        f64::midpoint(low, high)
    }
}
