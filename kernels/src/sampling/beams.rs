//! Beam search as transformers has it (`GenerationMixin._beam_search`, 5.x), one step at a time: which beams go on, and with which
//! tokens. Pure: rows of scores come in, continuations come out; whoever holds the beams' K and V forks and frees them by it.

use std::cmp::Ordering;

use super::Sampled;
use crate::error::{Error, Result};

/// The greatest exponent either way: scores stay within f32.
const MOST_PENALTY: f32 = 10.0;

/// When a search ends that has as many ended answers as beams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EarlyStopping {
    /// Where the best beam, at the length that it has now, would not be among them.
    #[default]
    Heuristic,
    /// At once.
    Immediate,
    /// Where no beam could be among them at any length that may still come.
    Never,
}

/// What a beam search asks for beside its width.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BeamSearch {
    /// A score is the sum of log-probabilities divided by the length to this power: above 0 longer answers are better, below 0 shorter
    /// ones, as transformers has it. 1 is its default.
    pub length_penalty: f32,
    /// When it ends.
    pub early_stopping: EarlyStopping,
}

impl BeamSearch {
    /// Checks the range; the message names the parameter as the HTTP surface spells it.
    pub fn validate(&self) -> Result<()> {
        if !(-MOST_PENALTY..=MOST_PENALTY).contains(&self.length_penalty) {
            let penalty = self.length_penalty;
            return Err(Error::invalid_input(format!(
                "length_penalty is {penalty}; use {} to {MOST_PENALTY}",
                -MOST_PENALTY
            )));
        }
        Ok(())
    }
}

/// An answer that a search has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Without the end token.
    pub tokens: Vec<Sampled>,
    /// Whether an end token ended it; else the greatest length did.
    pub ended: bool,
    /// What it is ranked by.
    pub score: f32,
}

/// How a beam of the next step comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continuation {
    /// Which of the beams that there were it goes on from.
    pub parent: usize,
    /// The token behind it.
    pub token: u32,
}

/// What is known of the tokens behind a beam.
pub struct BeamRow<'l> {
    /// Log-probabilities after all rules, `[vocab]`: what decides.
    pub scores: &'l [f32],
    /// Describes a chosen token.
    pub sampled: &'l dyn Fn(u32) -> Sampled,
}

#[derive(Debug, Clone)]
struct Beam {
    /// The sum of its tokens' scores.
    score: f32,
    tokens: Vec<Sampled>,
}

/// One search on its way.
#[derive(Debug, Clone)]
pub struct Beams {
    width: usize,
    search: BeamSearch,
    max_tokens: usize,
    ends: Vec<u32>,
    /// Best first. One before the first step, then as many as the search is wide.
    live: Vec<Beam>,
    /// Best first, at most as many.
    finished: Vec<Hypothesis>,
    /// Whether a beam may still come among them.
    can_improve: bool,
}

impl Beams {
    /// A search of `width` beams, for answers of at most `max_tokens` tokens that `ends` end.
    pub fn new(width: usize, search: BeamSearch, max_tokens: usize, ends: &[u32]) -> Self {
        let (width, max_tokens) = (width.max(1), max_tokens.max(1));
        let live = vec![Beam { score: 0.0, tokens: Vec::new() }];
        Self { width, search, max_tokens, ends: ends.to_vec(), live, finished: Vec::new(), can_improve: true }
    }

    /// Takes each beam's row, in their order; before the first step there is one. The beams that go on, best first; none where the
    /// search is over.
    pub fn step(&mut self, rows: &[BeamRow<'_>]) -> Vec<Continuation> {
        let length = self.live.first().map_or(0, |beam| beam.tokens.len()) + 1;
        let candidates = self.candidates(rows);
        let is_last = length >= self.max_tokens;
        let ends = |token: u32| is_last || self.ends.contains(&token);
        let next: Vec<(f32, Continuation)> =
            candidates.iter().filter(|(_, next)| !ends(next.token)).take(self.width).copied().collect();

        // Only the best candidates may end; those behind them are there so that enough go on.
        let is_full = self.finished.len() >= self.width;
        let may_end = self.can_improve && !(is_full && self.search.early_stopping == EarlyStopping::Immediate);
        for (score, Continuation { parent, token }) in candidates.iter().take(self.width) {
            if !ends(*token) || !may_end {
                continue;
            }
            let ended = self.ends.contains(token);
            let mut tokens = self.live[*parent].tokens.clone();
            if !ended {
                tokens.push((rows[*parent].sampled)(*token));
            }
            self.finished.push(Hypothesis { tokens, ended, score: self.normalized(*score, length) });
        }
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(self.width);

        let best_length = match self.search.early_stopping {
            EarlyStopping::Never if self.search.length_penalty > 0.0 => self.max_tokens,
            _ => length,
        };
        let is_full = self.finished.len() >= self.width;
        let worst = self.finished.last().map_or(f32::NEG_INFINITY, |worst| worst.score);
        let best = next.first().map_or(f32::NEG_INFINITY, |(score, _)| self.normalized(*score, best_length));
        self.can_improve &= !is_full || best > worst;
        let stops_now = is_full && self.search.early_stopping == EarlyStopping::Immediate;
        if is_last || stops_now || !self.can_improve || next.is_empty() {
            return Vec::new();
        }
        let beam = |(score, Continuation { parent, token }): &(f32, Continuation)| {
            let mut tokens = self.live[*parent].tokens.clone();
            tokens.push((rows[*parent].sampled)(*token));
            Beam { score: *score, tokens }
        };
        self.live = next.iter().map(beam).collect();
        next.into_iter().map(|(_, next)| next).collect()
    }

    /// What was found, best first.
    pub fn into_hypotheses(self) -> Vec<Hypothesis> {
        self.finished
    }

    /// The likeliest continuations of all beams: enough that as many as the search is wide go on, whatever ends.
    fn candidates(&self, rows: &[BeamRow<'_>]) -> Vec<(f32, Continuation)> {
        let kept = (1 + self.ends.len()).max(2) * self.width;
        let mut best: Vec<(f32, Continuation)> = Vec::new();
        for (parent, (beam, row)) in self.live.iter().zip(rows).enumerate() {
            let possible = row.scores.iter().enumerate().filter(|(_, score)| score.is_finite());
            let of_row =
                possible.map(|(token, score)| (beam.score + score, Continuation { parent, token: token as u32 }));
            best.extend(of_row);
            // Of each row no more are wanted than of all.
            if best.len() > kept {
                best.select_nth_unstable_by(kept - 1, better);
                best.truncate(kept);
            }
        }
        best.sort_unstable_by(better);
        best
    }

    fn normalized(&self, score: f32, length: usize) -> f32 {
        score / (length as f32).powf(self.search.length_penalty)
    }
}

/// The greater score; of equal ones, the earlier beam's, and then the lower id.
fn better(a: &(f32, Continuation), b: &(f32, Continuation)) -> Ordering {
    let place = |next: &Continuation| (next.parent, next.token);
    b.0.total_cmp(&a.0).then_with(|| place(&a.1).cmp(&place(&b.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: usize = 4;

    /// Log-probabilities behind a text, the same for the same text.
    fn row(tokens: &[u32]) -> Vec<f32> {
        let seed = tokens.iter().fold(7, |seed, token| seed * 31 + u64::from(*token) + 1);
        let mut random = fastrand::Rng::with_seed(seed);
        let weights: Vec<f32> = (0..VOCABULARY).map(|_| random.f32() + 0.01).collect();
        let sum: f32 = weights.iter().sum();
        weights.iter().map(|weight| (weight / sum).ln()).collect()
    }

    fn sampled(id: u32) -> Sampled {
        Sampled { id, logprob: 0.0, top: Vec::new() }
    }

    fn search(width: usize, search: BeamSearch, max_tokens: usize, ends: &[u32]) -> Vec<(Vec<u32>, bool, f32)> {
        let mut beams = Beams::new(width, search, max_tokens, ends);
        let mut live: Vec<Vec<u32>> = vec![Vec::new()];
        while !live.is_empty() {
            let rows: Vec<Vec<f32>> = live.iter().map(|tokens| row(tokens)).collect();
            let rows: Vec<BeamRow<'_>> = rows.iter().map(|scores| BeamRow { scores, sampled: &sampled }).collect();
            let next = beams.step(&rows);
            live = next.iter().map(|next| [&live[next.parent][..], &[next.token]].concat()).collect();
        }
        let ids = |hypothesis: &Hypothesis| hypothesis.tokens.iter().map(|token| token.id).collect();
        let found = beams.into_hypotheses();
        found.iter().map(|hypothesis| (ids(hypothesis), hypothesis.ended, hypothesis.score)).collect()
    }

    /// Every text of up to so many tokens, with what it would be ranked by, best first.
    fn all(max_tokens: usize, end: u32, penalty: f32) -> Vec<(Vec<u32>, bool, f32)> {
        let (mut open, mut found) = (vec![(Vec::new(), 0.0)], Vec::new());
        for length in 1..=max_tokens {
            let mut longer = Vec::new();
            for (tokens, score) in open {
                for (token, log) in row(&tokens).into_iter().enumerate() {
                    let (token, score): (u32, f32) = (token as u32, score + log);
                    let with: Vec<u32> = [&tokens[..], &[token]].concat();
                    let rank = score / (length as f32).powf(penalty);
                    if token == end {
                        found.push((tokens.clone(), true, rank));
                    } else if length == max_tokens {
                        found.push((with, false, rank));
                    } else {
                        longer.push((with, score));
                    }
                }
            }
            open = longer;
        }
        found.sort_by(|a, b| b.2.total_cmp(&a.2));
        found
    }

    #[test]
    fn a_search_as_wide_as_all_texts_finds_the_best() {
        for penalty in [-1.0, 0.0, 1.0, 2.0] {
            let never = BeamSearch { length_penalty: penalty, early_stopping: EarlyStopping::Never };
            let wide = search(300, never, 4, &[2]);
            let expected = all(4, 2, penalty);
            assert_eq!(wide.len(), expected.len(), "nothing is missing");
            assert_eq!(wide[..20], expected[..20], "{penalty}");
        }
    }

    #[test]
    fn one_beam_takes_the_likeliest_token_each_time() {
        let (found, mut greedy) = (search(1, BeamSearch::default(), 9, &[]), Vec::new());
        while greedy.len() < 9 {
            let row = row(&greedy);
            greedy.push((0..VOCABULARY).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32);
        }
        assert_eq!(found[0].0, greedy);
    }

    #[test]
    fn what_is_impossible_is_never_chosen() {
        let mut beams = Beams::new(3, BeamSearch::default(), 2, &[]);
        let scores = [f32::NEG_INFINITY, -1.0, f32::NAN, f32::NEG_INFINITY];
        let row = || BeamRow { scores: &scores, sampled: &sampled };
        assert_eq!(beams.step(&[row()]), [Continuation { parent: 0, token: 1 }]);
        assert_eq!(beams.step(&[row()]), []);
        assert_eq!(beams.into_hypotheses().len(), 1);
    }

    #[test]
    fn a_penalty_beyond_all_sense_is_refused() {
        for penalty in [f32::NAN, f32::INFINITY, -11.0] {
            let search = BeamSearch { length_penalty: penalty, ..BeamSearch::default() };
            assert!(search.validate().unwrap_err().to_string().contains("length_penalty"));
        }
    }
}
