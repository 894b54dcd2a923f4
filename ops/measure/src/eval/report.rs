//! What was measured of answers: one line for each, and what they come to by mode.

use std::collections::BTreeMap;

use ragstone_actors::report::TokenAccount;
use serde::{Deserialize, Serialize};

use super::bootstrap::{Interval, interval_of_mean, mean, quantile};
use super::variant::{Mode, Variant};

/// One answer, as `--answers` writes it.
#[derive(Debug, Clone, Serialize)]
pub struct Answered {
    /// The question's place in the data set; the first is 0.
    pub item: usize,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub question: String,
    pub gold: Vec<String>,
    #[serde(flatten)]
    pub variant: Variant,
    pub answer: String,
    pub f1: f64,
    pub em: f64,
    pub rouge_l: f64,
    /// From the question to the first token of the answer, everything included that it waits for.
    pub ttft_ms: f64,
    /// Of all prompts that it took.
    pub tokens: Tokens,
}

/// What was measured of a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnswersReport {
    /// The language model's name.
    pub model: String,
    /// Questions answered in every mode.
    pub questions: usize,
    /// Questions, by their place in the data set, that do not fit the model's context: answered in no mode.
    pub left_out: Vec<usize>,
    /// Of the rule `random`, and of the intervals.
    pub seed: u64,
    /// The longest answer.
    pub max_tokens: usize,
    /// Only what follows this in an answer was scored.
    pub answer_after: Option<String>,
    pub modes: Vec<ModeReport>,
}

/// What was measured of one mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModeReport {
    #[serde(flatten)]
    pub variant: Variant,
    #[serde(flatten)]
    pub mean: Mean,
    /// 95 %, by bootstrap over questions; null where there are none.
    pub f1_interval: Option<Interval>,
    pub rouge_l_interval: Option<Interval>,
    /// F1 less that of mode `full`, question by question; null where `full` was not asked for.
    pub against_full: Option<Difference>,
    /// What it recovers of what is lost without passages, and by plain reuse.
    pub recovered: Recovered,
    /// The means by type of question; of questions that have one.
    pub types: BTreeMap<String, Mean>,
    pub ttft_ms: Spread,
    /// Sums over all prompts.
    pub tokens: Tokens,
    /// Tokens of the prompts that were computed, recomputed ones included, of all tokens: 1 for `full`.
    pub recomputed_share: f64,
    /// Answers whose text is not that of mode `full`; null where `full` was not asked for.
    pub differ_from_full: Option<usize>,
}

/// Means over questions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Mean {
    pub questions: usize,
    pub f1: f64,
    pub exact_match: f64,
    pub rouge_l: f64,
}

/// A mean difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    pub f1: f64,
    /// 95 %, by bootstrap of the paired differences.
    pub interval: Interval,
}

/// The share of the gap between a floor and the ceiling `full` that a mode's F1 makes up for, as KVShareArena has it (floor without
/// sharing, ceiling with recompute): 0 at the floor, 1 at the ceiling. Null where the floor or `full` was not asked for, and where
/// the gap's own interval holds 0: a share of noise says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Recovered {
    /// Above mode `none`.
    pub of_none: Option<f64>,
    /// Above mode `reuse`, its passages computed after the same.
    pub of_reuse: Option<f64>,
}

/// The middle and the spread over questions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
}

/// Where the prompts' KV came from, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Reused as computing them again would give them.
    pub exact: u64,
    /// Reused as computed after the system prompt.
    pub blended: u64,
    /// Of blended passages, computed again.
    pub recomputed: u64,
    /// Computed in full.
    pub computed: u64,
}

impl From<TokenAccount> for Tokens {
    fn from(account: TokenAccount) -> Self {
        Self {
            exact: account.exact.into(),
            blended: account.blended.into(),
            recomputed: account.recomputed.into(),
            computed: account.computed.into(),
        }
    }
}

impl std::iter::Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            exact: sum.exact + one.exact,
            blended: sum.blended + one.blended,
            recomputed: sum.recomputed + one.recomputed,
            computed: sum.computed + one.computed,
        })
    }
}

impl Tokens {
    fn recomputed_share(&self) -> f64 {
        let computed = self.recomputed + self.computed;
        computed as f64 / (computed + self.exact + self.blended).max(1) as f64
    }
}

impl Mean {
    fn of<'a>(answers: impl Iterator<Item = &'a Answered>) -> Self {
        let mut mean = Self::default();
        for answered in answers {
            mean.questions += 1;
            let share = 1.0 / mean.questions as f64;
            mean.f1 += (answered.f1 - mean.f1) * share;
            mean.exact_match += (answered.em - mean.exact_match) * share;
            mean.rouge_l += (answered.rouge_l - mean.rouge_l) * share;
        }
        mean
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { p10: quantile(&values, 0.1), p50: quantile(&values, 0.5), p90: quantile(&values, 0.9) }
    }
}

/// The answers of all variants, question by question.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    pub variants: &'a [Variant],
    /// Of each question an answer a variant, in their order.
    pub questions: &'a [Vec<Answered>],
    /// Of the intervals.
    pub seed: u64,
}

impl Measured<'_> {
    /// What each variant comes to.
    pub fn modes(&self) -> Vec<ModeReport> {
        (0..self.variants.len()).map(|index| self.mode(index)).collect()
    }

    fn mode(&self, index: usize) -> ModeReport {
        let variant = self.variants[index];
        let answers = || self.questions.iter().map(|of_question| &of_question[index]);
        let full = self.find(|it| it.mode == Mode::Full);
        let against_full = full.and_then(|full| self.difference(index, full));
        let mut by_type: BTreeMap<String, Vec<&Answered>> = BTreeMap::new();
        for answered in answers() {
            if let Some(kind) = &answered.kind {
                by_type.entry(kind.clone()).or_default().push(answered);
            }
        }
        let interval = |of: fn(&Answered) -> f64| interval_of_mean(&answers().map(of).collect::<Vec<_>>(), self.seed);
        let differs = |full: usize| self.questions.iter().filter(|it| it[index].answer != it[full].answer).count();
        let tokens: Tokens = answers().map(|answered| answered.tokens).sum();
        ModeReport {
            variant,
            mean: Mean::of(answers()),
            f1_interval: interval(|answered| answered.f1),
            rouge_l_interval: interval(|answered| answered.rouge_l),
            against_full,
            recovered: self.recovered(index, full),
            types: by_type.into_iter().map(|(kind, answers)| (kind, Mean::of(answers.into_iter()))).collect(),
            ttft_ms: Spread::of(answers().map(|answered| answered.ttft_ms).collect()),
            tokens,
            recomputed_share: tokens.recomputed_share(),
            differ_from_full: full.filter(|_| !self.questions.is_empty()).map(differs),
        }
    }

    fn find(&self, wanted: impl Fn(&Variant) -> bool) -> Option<usize> {
        self.variants.iter().position(wanted)
    }

    /// F1 of one variant less that of another.
    fn difference(&self, index: usize, from: usize) -> Option<Difference> {
        let differences: Vec<f64> = self.questions.iter().map(|it| it[index].f1 - it[from].f1).collect();
        let interval = interval_of_mean(&differences, self.seed)?;
        Some(Difference { f1: mean(&differences), interval })
    }

    fn recovered(&self, index: usize, full: Option<usize>) -> Recovered {
        let Some(full) = full else { return Recovered::default() };
        let of = |floor: Option<usize>| {
            let floor = floor?;
            let gap = self.difference(full, floor).filter(|gap| gap.interval[0] > 0.0)?;
            Some(self.difference(index, floor)?.f1 / gap.f1)
        };
        let after = self.variants[index].after;
        let reuses = |it: &Variant| it.mode == Mode::Reuse && (after.is_none() || it.after == after);
        Recovered { of_none: of(self.find(|it| it.mode == Mode::NoPassages)), of_reuse: of(self.find(reuses)) }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An answer of which only what is given matters.
    pub fn answered(item: usize, variant: Variant, f1: f64, ttft_ms: f64) -> Answered {
        Answered {
            item,
            kind: None,
            question: "q".into(),
            gold: vec!["a".into()],
            variant,
            answer: "a".into(),
            f1,
            em: f1.floor(),
            rouge_l: f1 / 2.0,
            ttft_ms,
            tokens: Tokens { exact: 5, blended: 0, recomputed: 1, computed: 2 },
        }
    }

    /// Questions whose F1 is given by mode.
    fn modes(f1: &[(Mode, &[f64])]) -> Vec<ModeReport> {
        let variants: Vec<Variant> = f1.iter().map(|(mode, _)| Variant::plain(*mode)).collect();
        let question =
            |item: usize| f1.iter().map(move |(mode, f1)| answered(item, Variant::plain(*mode), f1[item], 1.0));
        let questions: Vec<Vec<Answered>> = (0..f1[0].1.len()).map(|item| question(item).collect()).collect();
        Measured { variants: &variants, questions: &questions, seed: 1 }.modes()
    }

    #[test]
    fn means_are_over_all_and_by_type() {
        let variants = [Mode::Full, Mode::Exact].map(Variant::plain);
        let question = |(item, kind, f1): (usize, Option<&str>, f64)| {
            let full = answered(item, variants[0], 1.0, 10.0);
            let mut exact = answered(item, variants[1], f1, [4.0, 2.0, 8.0][item]);
            exact.kind = kind.map(str::to_owned);
            exact.answer = if item == 1 { "b" } else { "a" }.into();
            vec![full, exact]
        };
        let questions: Vec<_> = [(0, Some("T1"), 1.0), (1, Some("T2"), 0.5), (2, None, 0.0)].map(question).into();
        let report = Measured { variants: &variants, questions: &questions, seed: 1 }.modes();
        let exact = &report[1];
        assert_eq!((exact.mean.questions, exact.mean.f1, exact.mean.rouge_l), (3, 0.5, 0.25));
        assert!((exact.mean.exact_match - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(exact.types["T2"], Mean { questions: 1, f1: 0.5, exact_match: 0.0, rouge_l: 0.25 });
        assert_eq!((exact.types.len(), exact.differ_from_full), (2, Some(1)));
        assert_eq!(exact.tokens, Tokens { exact: 15, blended: 0, recomputed: 3, computed: 6 });
        assert_eq!(exact.recomputed_share, 9.0 / 24.0);
        assert_eq!(exact.ttft_ms.p50, 4.0);
        assert!((exact.ttft_ms.p10 - 2.4).abs() < 1e-12 && (exact.ttft_ms.p90 - 7.2).abs() < 1e-12);
        assert_eq!(exact.against_full.map(|it| it.f1), Some(-0.5));
        let [low, high] = exact.f1_interval.expect("an interval");
        assert!((0.0..0.5).contains(&low) && (0.5..=1.0).contains(&high));
        assert_eq!(report[0].against_full, Some(Difference { f1: 0.0, interval: [0.0, 0.0] }));
    }

    #[test]
    fn the_gap_that_is_recovered() {
        let full: Vec<f64> = (0..40).map(|item| f64::from(u8::from(item % 20 != 0))).collect();
        let none = [0.0; 40];
        let reuse: Vec<f64> = (0..40).map(|item| f64::from(u8::from(item % 2 != 0))).collect();
        let blend: Vec<f64> = (0..40).map(|item| f64::from(u8::from(item % 4 != 0))).collect();
        let all =
            modes(&[(Mode::NoPassages, &none), (Mode::Full, &full), (Mode::Reuse, &reuse), (Mode::Blend, &blend)]);
        let of = |mode: usize| (all[mode].recovered.of_none.unwrap(), all[mode].recovered.of_reuse.unwrap());
        assert_eq!((of(1), of(2).1), ((1.0, 1.0), 0.0));
        // F1: full 0.95, reuse 0.5, blend 0.75.
        assert!((of(3).0 - 0.75 / 0.95).abs() < 1e-12 && (of(3).1 - 0.25 / 0.45).abs() < 1e-12);
        assert!(of(0).1 < 0.0, "worse than the floor");
    }

    #[test]
    fn a_gap_of_noise_and_one_without_a_floor_have_no_share() {
        // Full is better in two questions of forty and worse in one.
        let full: Vec<f64> = (0..40).map(|item| f64::from(u8::from(item < 2))).collect();
        let reuse: Vec<f64> = (0..40).map(|item| f64::from(u8::from(item == 2))).collect();
        let all = modes(&[(Mode::Full, &full), (Mode::Reuse, &reuse)]);
        assert_eq!((all[0].recovered, all[1].recovered), (Recovered::default(), Recovered::default()));
        let alone = modes(&[(Mode::Reuse, &reuse)]);
        assert_eq!(
            (alone[0].recovered, alone[0].against_full, alone[0].differ_from_full),
            (Recovered::default(), None, None)
        );
        let nothing = Measured { variants: &[Variant::plain(Mode::Full)], questions: &[], seed: 1 }.modes();
        assert_eq!((nothing[0].f1_interval, nothing[0].mean.questions), (None, 0));
    }
}
