//! What is asked of the nodes: generated questions over collections, or a trace with its times.

use serde::{Deserialize, Serialize};

use crate::simulate::rag::{Lengths, Skew};
use crate::simulate::random::{Random, cumulative_zipf, draw};
use crate::{Error, Result};
use ragstone_env::Env;

/// Labels of system prompts stand behind those of documents.
const SYSTEM_LABELS: u64 = 1 << 40;
/// The bits of a label above those that name the document: how often it was changed.
const VERSION_BIT: u32 = 44;
/// Text that is another with every change has a length of its own.
const LENGTH_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Questions over collections of passages. Read from TOML; the seed replays it.
///
/// A question is asked of a collection, drawn by popularity (Zipf), and is about one of its passages, drawn likewise. The retriever gives
/// that one and its neighbours, now and then in another order, as in [`RagWorkload`](crate::simulate::RagWorkload).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    pub seed: u64,
    /// Questions that are asked, those of the warm-up among them.
    pub questions: usize,
    /// Questions a second, of all nodes together.
    pub rate: f64,
    /// Of the questions, the first that only warm the caches: they are answered, and not reported.
    pub warm_up: f64,
    /// Passages of all collections together.
    pub passages: u64,
    /// Lengths of passages.
    pub lengths: Lengths,
    /// Collections, each of as many passages; a question goes to one of them, which is what a load balancer hashes.
    pub collections: usize,
    /// The Zipf exponent of collections' popularity; 0: all alike.
    pub collection_skew: f64,
    /// How popular passages are within their collection.
    pub skew: Skew,
    /// Passages a question.
    pub top_k: usize,
    /// Share of the questions whose passages come in any order.
    pub shuffled: f64,
    pub system_tokens: u32,
    /// The question itself, from and to, evenly.
    pub question_tokens: [u32; 2],
    /// Its answer, from and to, evenly.
    pub answer_tokens: [u32; 2],
    /// Passages that get another text, a second.
    pub changes: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            seed: 1,
            questions: 2000,
            rate: 1.0,
            warm_up: 0.5,
            passages: 10_000,
            lengths: Lengths { mean_tokens: 256.0, sigma: 0.4, min_tokens: 32, max_tokens: 512 },
            collections: 100,
            collection_skew: 0.5,
            skew: Skew { top: 0.03, serves: 0.6 },
            top_k: 5,
            shuffled: 0.2,
            system_tokens: 64,
            question_tokens: [16, 64],
            answer_tokens: [32, 128],
            changes: 0.0,
        }
    }
}

/// A question before its passages have their versions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    /// When it is asked, in microseconds.
    pub at_us: f64,
    /// What the load balancer hashes.
    pub group: u64,
    /// Labels and lengths of what stands before it, the system prompt first.
    pub segments: Vec<(u64, u32)>,
    pub tokens: u32,
    pub answer_tokens: u32,
}

/// Some passage gets another text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    pub at_us: f64,
    pub label: u64,
    pub group: u64,
}

/// All that is asked and changed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Asked {
    pub(super) questions: Vec<Question>,
    pub(super) changes: Vec<Change>,
    /// From which question on it is reported.
    pub(super) warm: usize,
    pub(super) has_system_prompt: bool,
    /// Whether its segments are passages, or text, which is never blended.
    pub(super) of_text: bool,
}

impl Load {
    /// Draws the questions.
    ///
    /// # Errors
    /// `InvalidInput` that names the key whose value cannot be.
    pub fn generate(&self) -> Result<Asked> {
        self.validate()?;
        let mut random = Random(Env::seeded(self.seed, 0));
        let each = (self.passages / self.collections as u64).max(1);
        let ranked = usize::try_from(each).unwrap_or(usize::MAX);
        let ranks = cumulative_zipf(ranked, self.skew.exponent(ranked));
        let popular = cumulative_zipf(self.collections, self.collection_skew);
        let mut now = 0.0;
        let mut questions = Vec::with_capacity(self.questions);
        for _ in 0..self.questions {
            now += random.interval() * 1e6 / self.rate;
            let group = draw(&popular, &mut random) as u64;
            let rank = draw(&ranks, &mut random) as u64;
            let mut found = self.found(spread(rank, each, group), each, &mut random);
            if random.unit() < self.shuffled {
                random.shuffle(&mut found);
            }
            let system = (self.system_tokens > 0).then_some((SYSTEM_LABELS, self.system_tokens));
            let passages = found.into_iter().map(|at| {
                let label = group * each + at as u64;
                (label, self.length(label))
            });
            let segments = system.into_iter().chain(passages).collect();
            let between =
                |[least, most]: [u32; 2], random: &mut Random| least + random.below((most - least) as usize + 1) as u32;
            let (tokens, answer_tokens) =
                (between(self.question_tokens, &mut random), between(self.answer_tokens, &mut random));
            questions.push(Question { at_us: now, group, segments, tokens, answer_tokens });
        }
        let mut changes = Vec::new();
        let mut at_us = 0.0;
        loop {
            // Without changes the first one is never.
            at_us += random.interval() * 1e6 / self.changes;
            if at_us.is_nan() || at_us > now {
                break;
            }
            // What is asked for most is what changes most: a page that nobody reads is seldom edited.
            let group = draw(&popular, &mut random) as u64;
            let label = group * each + spread(draw(&ranks, &mut random) as u64, each, group);
            changes.push(Change { at_us, label, group });
        }
        let warm = (self.warm_up * self.questions as f64) as usize;
        Ok(Asked { questions, changes, warm, has_system_prompt: self.system_tokens > 0, of_text: false })
    }

    /// The passage and its neighbours within the collection, the nearest first.
    fn found(&self, first: u64, each: u64, random: &mut Random) -> Vec<usize> {
        let wanted = (self.top_k as u64).min(each) as usize;
        let mut found = vec![first as usize];
        let mut away = 1;
        while found.len() < wanted {
            // One in four neighbours is passed over, so that lists of the same passage differ.
            let near = [first + away, first + each - away % each].map(|at| (at % each) as usize);
            for at in near {
                let is_last = away >= each;
                if found.len() < wanted && !found.contains(&at) && (is_last || random.unit() < 0.75) {
                    found.push(at);
                }
            }
            away += 1;
        }
        found
    }

    /// The length of a passage, which its label decides.
    fn length(&self, label: u64) -> u32 {
        self.lengths.draw(&mut Random(Env::seeded(self.seed ^ label.wrapping_mul(LENGTH_SEED), 1)))
    }

    fn validate(&self) -> Result<()> {
        let ascending = |[least, most]: [u32; 2]| least > 0 && least <= most && most <= 1 << 20;
        let checks = [
            ("questions", (1..=10_000_000).contains(&self.questions), "must lie between 1 and 10000000"),
            ("rate", self.rate > 0.0 && self.rate <= 1e6, "must lie above 0 and at 1000000 at most"),
            ("warm_up", (0.0..1.0).contains(&self.warm_up), "must lie between 0 and 1"),
            ("passages", (2..=1 << 32).contains(&self.passages), "must lie between 2 and 4294967296"),
            (
                "collections",
                (1..=1_000_000).contains(&self.collections) && self.collections as u64 * 2 <= self.passages,
                "must lie between 1 and 1000000, with two passages each at least",
            ),
            ("collection_skew", (0.0..=8.0).contains(&self.collection_skew), "must lie between 0 and 8"),
            (
                "passages",
                self.passages / self.collections.max(1) as u64 <= 20_000_000,
                "must be 20000000 a collection at most",
            ),
            ("skew.top", self.skew.top > 0.0 && self.skew.top < 1.0, "must lie between 0 and 1"),
            (
                "skew.serves",
                self.skew.serves >= self.skew.top && self.skew.serves <= 0.99,
                "must lie between skew.top and 0.99",
            ),
            ("top_k", (1..=100).contains(&self.top_k), "must lie between 1 and 100"),
            ("shuffled", (0.0..=1.0).contains(&self.shuffled), "must lie between 0 and 1"),
            ("system_tokens", self.system_tokens <= 1 << 20, "must be at most 1048576"),
            ("question_tokens", ascending(self.question_tokens), "must be two ascending numbers between 1 and 1048576"),
            ("answer_tokens", ascending(self.answer_tokens), "must be two ascending numbers between 1 and 1048576"),
            ("changes", (0.0..=1e5).contains(&self.changes), "must lie between 0 and 100000"),
            ("lengths", self.lengths.are_right(), "must have a mean of 1 to 1000000, and ascending bounds below 2^20"),
        ];
        match checks.iter().find(|(_, is_right, _)| !is_right) {
            Some((key, _, why)) => Err(Error::invalid_input(format!("`{key}` {why}"))),
            None => Ok(()),
        }
    }
}

impl Asked {
    /// A trace with its times, which pass `speed` times as fast; the first prefix block of a request is its group.
    ///
    /// # Errors
    /// As [`read_trace`](crate::simulate::read_trace); `InvalidInput` for a speed that is not above 0.
    pub fn from_trace(text: &str, speed: f64, warm_up: f64) -> Result<Self> {
        if !(speed > 0.0 && speed.is_finite() && (0.0..1.0).contains(&warm_up)) {
            return Err(Error::invalid_input("a speed above 0 is wanted, and a warm-up between 0 and 1"));
        }
        let mut questions = Vec::new();
        crate::simulate::trace::each_line(text, |line| {
            let (segments, tokens) = line.segments()?;
            let group = segments.first().map_or(0, |(label, _)| *label);
            let at_us = line.timestamp * 1e3 / speed;
            questions.push(Question { at_us, group, segments, tokens, answer_tokens: line.output_length.max(1) });
            Ok(())
        })?;
        questions.sort_by(|one, other| one.at_us.total_cmp(&other.at_us));
        let warm = (warm_up * questions.len() as f64) as usize;
        Ok(Self { questions, changes: Vec::new(), warm, has_system_prompt: false, of_text: true })
    }

    /// Questions, those of the warm-up among them.
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// How long it takes until the last question is asked, in seconds.
    pub fn seconds(&self) -> f64 {
        self.questions.last().map_or(0.0, |last| last.at_us / 1e6)
    }

    /// Tokens of a prompt and of an answer, in the mean.
    pub(super) fn mean_tokens(&self) -> (f64, f64) {
        let of = |tokens: fn(&Question) -> u64| {
            let sum: u64 = self.questions.iter().map(tokens).sum();
            sum as f64 / self.questions.len().max(1) as f64
        };
        let prompt =
            of(|at| at.segments.iter().map(|(_, tokens)| u64::from(*tokens)).sum::<u64>() + u64::from(at.tokens));
        (prompt, of(|at| u64::from(at.answer_tokens)))
    }
}

/// The label of a passage that was changed so often.
pub(super) fn versioned(label: u64, version: u64) -> u64 {
    label | version << VERSION_BIT
}

/// Which passage of a collection has that rank: another one in each collection, and neighbours are not alike popular.
fn spread(rank: u64, each: u64, group: u64) -> u64 {
    // A prime far above any collection's size: multiplying by it is a permutation.
    const STRIDE: u128 = 2_305_843_009_213_693_951;
    ((u128::from(rank) * STRIDE + u128::from(group) * 7919) % u128::from(each)) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_seed_replays_it_and_it_is_what_it_claims() {
        let load = Load { questions: 4000, collections: 8, collection_skew: 1.0, changes: 0.5, ..Load::default() };
        let asked = load.generate().unwrap();
        assert_eq!(asked, load.generate().unwrap());
        assert_ne!(asked, Load { seed: 2, ..load.clone() }.generate().unwrap());
        assert!((asked.seconds() / 4000.0 - 1.0).abs() < 0.1, "{}", asked.seconds());
        assert!((asked.changes.len() as f64 / asked.seconds() - 0.5).abs() < 0.1);
        let mut groups: BTreeMap<u64, usize> = BTreeMap::new();
        for question in &asked.questions {
            *groups.entry(question.group).or_default() += 1;
            let passages: BTreeSet<u64> = question.segments[1..].iter().map(|(label, _)| *label).collect();
            assert_eq!(passages.len(), 5, "each passage once");
            assert!(passages.iter().all(|label| label / 1250 == question.group), "of one collection");
        }
        // Zipf with exponent 1: the first is asked eight times as often as the last.
        let (first, last) = (groups[&0] as f64, groups[&7] as f64);
        assert!((first / last - 8.0).abs() < 2.5, "{groups:?}");
    }

    #[test]
    fn small_collections_give_what_they_have() {
        let load = Load { passages: 6, collections: 2, questions: 50, ..Load::default() };
        assert!(load.generate().unwrap().questions.iter().all(|question| question.segments.len() == 4));
        for (bad, key) in [
            (Load { rate: 0.0, ..load.clone() }, "rate"),
            (Load { collections: 4, ..load.clone() }, "collections"),
            (Load { answer_tokens: [2, 1], ..load.clone() }, "answer_tokens"),
        ] {
            assert!(bad.generate().unwrap_err().to_string().contains(key));
        }
    }

    #[test]
    fn ranks_are_spread_and_each_passage_has_one() {
        for each in [2, 3, 10, 1000] {
            let all: BTreeSet<u64> = (0..each).map(|rank| spread(rank, each, 5)).collect();
            assert_eq!(all.len() as u64, each);
        }
    }
}
