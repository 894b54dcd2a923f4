//! Whether anything that a search found is about the question at all.
//!
//! The best passage of a search is the best of what there is, whatever is asked. Cosine similarity is an absolute measure, but its scale is the
//! embedding model's own: one gives unrelated texts .1, another .8. So each model is asked once about questions that have nothing to do with each
//! other (`relevance/unrelated.json`), and similarity is counted in standard deviations above what it gives to these. Words count beside it: a
//! passage that has all words of the question needs less similarity.
//!
//! A language that a model does not read shows in the same questions: all of them are alike to it. Of such a language the words alone judge.
//! Docs/decisions/0115 has the figures, and what was tried beside it.

mod content;
mod language;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::content::Content;
pub use self::language::Language;
use self::language::Letters;
pub(super) use self::language::{is_question_word, is_small_word};
use crate::Result;

/// The questions, by language: the same forty in each, of many topics.
const QUESTIONS: &str = include_str!("relevance/unrelated.json");
/// What is known of the embedding model that ragstone takes by itself: so that nobody measures it again.
const MEASURED: &str = include_str!("relevance/measured.json");

/// Standard deviations above unrelated texts from which on a passage is about the question: one pair of two hundred unrelated questions is as
/// similar.
const BOUND: f32 = 3.75;
/// What it counts for that a passage has all words of the question.
const ALL_WORDS: f32 = 6.0;
/// A language whose unrelated questions are so many standard deviations more alike than those of the language that the model reads best is one
/// that it does not read.
const UNREAD: f32 = 6.0;
/// Languages that the model reads so nearly as well as the best one are near to each other where they say the same.
const CROSSES: f32 = 2.0;
/// Bytes of a passage by which its language is told.
const TOLD_BY: usize = 400;
/// The share of the question's words that a passage has, where words alone judge.
const LEAST_SHARE: f32 = 0.15;
/// A model to which unrelated questions are so alike in every language tells nothing.
const TELLS_NOTHING: f32 = 0.95;

/// How alike unrelated texts are to an embedding model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unrelated {
    /// Cosine similarity in the language that it reads best, and its standard deviation.
    pub mean: f32,
    pub deviation: f32,
    /// In each language.
    pub means: BTreeMap<Language, f32>,
}

/// What judges whether a passage is about a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Similarity,
    Words,
    /// Nothing does.
    Nothing,
}

impl Unrelated {
    /// Asks an embedding model, which makes the vectors of questions. Takes a second or two.
    ///
    /// # Errors
    /// As the model's. `None` where it gives no numbers, or the same to all.
    pub fn measure(embed: &dyn Fn(&str) -> Result<Vec<f32>>) -> Result<Option<Self>> {
        let mut vectors = BTreeMap::new();
        for (language, questions) in questions() {
            let embedded = questions.iter().map(|question| embed(question));
            vectors.insert(language, embedded.collect::<Result<Vec<_>>>()?);
        }
        Ok(Self::of(&vectors))
    }

    /// What is known of the model of an identity without asking it.
    pub fn known(identity: &str) -> Option<Self> {
        let mut known: BTreeMap<String, Self> = serde_json::from_str(MEASURED).unwrap_or_default();
        known.remove(identity)
    }

    /// The hash of the questions: what was measured with others counts no more.
    pub fn questions() -> String {
        ragstone_documents::digest("ragstone unrelated questions v1", &[QUESTIONS.as_bytes()])
    }

    fn of(vectors: &BTreeMap<Language, Vec<Vec<f32>>>) -> Option<Self> {
        let (mut best, mut means): (Option<(f32, f32)>, BTreeMap<Language, f32>) = Default::default();
        for (language, vectors) in vectors {
            let (mean, deviation) = spread(vectors)?;
            means.insert(*language, mean);
            if best.is_none_or(|(least, _)| mean < least) {
                best = Some((mean, deviation));
            }
        }
        let (mean, deviation) = best?;
        let tells = mean < TELLS_NOTHING && deviation > f32::EPSILON;
        tells.then_some(Self { mean, deviation, means })
    }

    fn judges(&self, question: &str) -> By {
        let language = match Letters::of(question) {
            Letters::Of(language) => language,
            Letters::Latin => return By::Similarity,
            // Nothing is known of it.
            Letters::Others => return By::Nothing,
        };
        if self.above(language) < UNREAD { By::Similarity } else { By::Words }
    }

    /// How much more alike unrelated texts of a language are than those of the one that is read best, in standard deviations.
    fn above(&self, language: Language) -> f32 {
        self.means.get(&language).map_or(f32::INFINITY, |mean| (mean - self.mean) / self.deviation)
    }

    /// Whether all passages are in other languages than the question, and the model does not read both as well.
    fn cannot_compare(&self, question: &str, candidates: &[Candidate]) -> bool {
        let Some(asked) = Language::of(question) else { return false };
        let crosses = |other: Language| self.above(asked).max(self.above(other)) < CROSSES;
        let is_other = |passage: &Candidate| {
            Language::of(beginning(&passage.content)).is_some_and(|other| other != asked && !crosses(other))
        };
        !candidates.is_empty() && candidates.iter().all(is_other)
    }
}

/// Mean and standard deviation of the similarity of all pairs; `None` where there are none, or they are no numbers.
fn spread(vectors: &[Vec<f32>]) -> Option<(f32, f32)> {
    let (mut count, mut sum, mut squares) = (0_u32, 0.0_f64, 0.0_f64);
    for (at, one) in vectors.iter().enumerate() {
        for other in &vectors[at + 1..] {
            let similarity = f64::from(cosine(one, other)?);
            count += 1;
            sum += similarity;
            squares += similarity * similarity;
        }
    }
    let mean = sum / f64::from(count.max(1));
    let variance = (squares / f64::from(count.max(1)) - mean * mean).max(0.0);
    (count > 0).then_some((mean as f32, variance.sqrt() as f32))
}

/// Cosine similarity; `None` where it is no number.
pub(super) fn cosine(one: &[f32], other: &[f32]) -> Option<f32> {
    let (mut dot, mut a, mut b) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (x, y) in one.iter().zip(other) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        dot += x * y;
        a += x * x;
        b += y * y;
    }
    let similarity = dot / (a.sqrt() * b.sqrt());
    similarity.is_finite().then(|| similarity.clamp(-1.0, 1.0) as f32)
}

fn questions() -> BTreeMap<Language, Vec<String>> {
    serde_json::from_str(QUESTIONS).unwrap_or_default()
}

/// A passage as it is judged: how similar it is to the question, where that is known, and its words.
pub(super) struct Candidate {
    pub similarity: Option<f32>,
    pub content: String,
}

/// Whether one of the passages is about the question; `None` where that cannot be told, or it asks of no topic.
pub(super) fn is_any_relevant(question: &str, unrelated: Option<&Unrelated>, candidates: &[Candidate]) -> Option<bool> {
    let unrelated = unrelated?;
    let asked = Content::of(question);
    if asked.is_general() {
        return None;
    }
    let is_relevant = match unrelated.judges(question) {
        By::Nothing => return None,
        By::Words => candidates.iter().any(|passage| asked.share_in(&passage.content) >= LEAST_SHARE),
        By::Similarity => candidates.iter().any(|passage| {
            // What has no vector is not less similar than what unrelated texts are.
            let similarity = passage.similarity.unwrap_or(unrelated.mean);
            let above = (similarity - unrelated.mean) / unrelated.deviation;
            above + ALL_WORDS * asked.share_in(&passage.content) >= BOUND
        }),
    };
    // It may be there in another language, of which this model does not know what means the same.
    (is_relevant || !unrelated.cannot_compare(question, candidates)).then_some(is_relevant)
}

/// A text's beginning, by which its language is told.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(TOLD_BY)]
}

#[cfg(test)]
mod tests;
