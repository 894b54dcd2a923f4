//! What was measured of answers: means by mode and by type of question, and one line for each answer.

use std::collections::BTreeMap;

use ragstone_actors::report::TokenAccount;
use ragstone_actors::{Rule, Schedule, Selection};
use serde::Serialize;

use super::score::Score;

/// Where the KV of a question's passages comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// No passages at all: what can be guessed
    #[value(name = "none")]
    #[serde(rename = "none")]
    NoPassages,
    /// Everything is computed
    Full,
    /// Loaded, computed earlier in the same order: the same answers as full
    Exact,
    /// Loaded, each passage computed without the others (see --behind), nothing recomputed
    Reuse,
    /// As reuse, and of their tokens those that --selector chooses recomputed
    Blend,
}

impl Mode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoPassages => "none",
            Self::Full => "full",
            Self::Exact => "exact",
            Self::Reuse => "reuse",
            Self::Blend => "blend",
        }
    }

    /// Whether each passage's KV was computed without the others.
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Reuse | Self::Blend)
    }
}

/// When tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Once
    OneShot,
    /// On every layer from then on, fewer each time, the ratio on average
    Gradual,
}

/// What a passage stood behind as its KV was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Behind {
    /// The system prompt
    Root,
    /// The prompt's first token alone (the beginning-of-sequence token, where the model has one)
    Bos,
}

/// A mode, with what makes a difference to it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Variant {
    pub mode: Mode,
    /// Of `blend`.
    pub ratio: Option<f32>,
    /// Of `blend`: the rule that chooses what is recomputed.
    pub selector: Option<Rule>,
    /// Of rules that can choose more than once.
    pub choice: Option<Choice>,
    /// Of rules that have one: the first layer that chooses, or the one that is looked at.
    pub layer: Option<usize>,
    /// Of modes whose passages were computed by themselves.
    pub behind: Option<Behind>,
}

/// The values to measure of each thing that makes a difference.
#[derive(Debug, Clone)]
pub struct Axes {
    pub ratios: Vec<f32>,
    pub selectors: Vec<Rule>,
    pub choices: Vec<Choice>,
    /// None given: each rule's own.
    pub layers: Vec<usize>,
    pub behind: Vec<Behind>,
}

impl Variant {
    /// Every mode at each combination of what makes a difference to it, once, in the order given.
    pub fn of(modes: &[Mode], axes: &Axes) -> Vec<Self> {
        let mut variants: Vec<Self> = Vec::new();
        for &mode in modes {
            let blends = mode == Mode::Blend;
            let mut of_mode = vec![Self { mode, ratio: None, selector: None, choice: None, layer: None, behind: None }];
            spread(&mut of_mode, |_| some_if(mode.is_alone(), &axes.behind), |it, behind| it.behind = behind);
            spread(&mut of_mode, |_| some_if(blends, &axes.selectors), |it, selector| it.selector = selector);
            let layers = |it: &Self| match it.selector {
                Some(rule) if axes.layers.is_empty() => some_if(rule.has_layer(), &[rule.default_layer()]),
                rule => some_if(rule.is_some_and(Rule::has_layer), &axes.layers),
            };
            spread(&mut of_mode, layers, |it, layer| it.layer = layer);
            let choices = |it: &Self| some_if(it.selector.is_some_and(Rule::can_be_gradual), &axes.choices);
            spread(&mut of_mode, choices, |it, choice| it.choice = choice);
            let has_ratio = |it: &Self| blends && !matches!(it.selector, Some(Rule::None | Rule::All));
            spread(&mut of_mode, |it| some_if(has_ratio(it), &axes.ratios), |it, ratio| it.ratio = ratio);
            for variant in of_mode {
                if !variants.contains(&variant) {
                    variants.push(variant);
                }
            }
        }
        variants
    }

    /// The mode's name and whatever is not as the rules have it by themselves: "blend cacheblend-k gradual @1 bos".
    pub fn name(&self) -> String {
        let mut name = self.mode.name().to_owned();
        let selection = self.selection(0);
        if selection.rule != Rule::default() {
            name += &format!(" {}", selection.rule.name());
        }
        name += if selection.schedule == Schedule::Gradual { " gradual" } else { "" };
        if self.layer.is_some_and(|layer| layer != selection.rule.default_layer()) {
            name += &format!(" @{}", selection.layer);
        }
        name += if self.behind == Some(Behind::Bos) { " bos" } else { "" };
        name
    }

    /// How what is recomputed is chosen.
    pub fn selection(&self, seed: u64) -> Selection {
        let own = Selection::by(self.selector.unwrap_or_default());
        let schedule = if self.choice == Some(Choice::Gradual) { Schedule::Gradual } else { Schedule::OneShot };
        Selection { schedule, layer: self.layer.unwrap_or(own.layer), seed, ..own }
    }
}

/// Each variant once for each value that makes a difference to it.
fn spread<T: Copy>(variants: &mut Vec<Variant>, values: impl Fn(&Variant) -> Vec<T>, set: impl Fn(&mut Variant, T)) {
    let each = |variant: Variant| {
        let with = |value| {
            let mut variant = variant;
            set(&mut variant, value);
            variant
        };
        values(&variant).into_iter().map(with).collect::<Vec<_>>()
    };
    *variants = variants.drain(..).flat_map(each).collect();
}

fn some_if<T: Copy>(matters: bool, values: &[T]) -> Vec<Option<T>> {
    if matters { values.iter().copied().map(Some).collect() } else { vec![None] }
}

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
    pub tokens: TokenAccount,
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
    /// Of the random mode.
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
    /// The same by type of question; of questions that have one.
    pub types: BTreeMap<String, Mean>,
    /// Sums over all prompts.
    pub tokens: Tokens,
    /// Answers whose text is not that of mode `full`; null where `full` was not asked for.
    pub differ_from_full: Option<usize>,
}

/// Means over questions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Mean {
    pub questions: usize,
    pub f1: f64,
    pub exact_match: f64,
}

impl Mean {
    fn add(&mut self, score: Score) {
        self.questions += 1;
        let share = 1.0 / self.questions as f64;
        self.f1 += (score.f1 - self.f1) * share;
        self.exact_match += (score.exact_match - self.exact_match) * share;
    }
}

/// Where the prompts' KV came from, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Reused as computing them again would give them.
    pub exact: u64,
    /// Reused from behind the system prompt.
    pub blended: u64,
    /// Of blended passages, computed again.
    pub recomputed: u64,
    /// Computed in full.
    pub computed: u64,
}

impl Tokens {
    fn add(&mut self, account: &TokenAccount) {
        self.exact += u64::from(account.exact);
        self.blended += u64::from(account.blended);
        self.recomputed += u64::from(account.recomputed);
        self.computed += u64::from(account.computed);
    }
}

impl ModeReport {
    /// Nothing measured yet.
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            mean: Mean::default(),
            types: BTreeMap::new(),
            tokens: Tokens::default(),
            differ_from_full: None,
        }
    }

    /// Counts one answer; `full` is that of mode `full` to the same question.
    pub fn add(&mut self, answered: &Answered, full: Option<&str>) {
        let score = Score { f1: answered.f1, exact_match: answered.em };
        self.mean.add(score);
        if let Some(kind) = &answered.kind {
            self.types.entry(kind.clone()).or_default().add(score);
        }
        self.tokens.add(&answered.tokens);
        if let Some(full) = full {
            *self.differ_from_full.get_or_insert(0) += usize::from(full != answered.answer);
        }
    }
}

impl AnswersReport {
    /// One line a mode: scores over all and by type, tokens of a mean prompt.
    pub fn table(&self) -> Vec<String> {
        let left_out = match self.left_out.len() {
            0 => String::new(),
            count => format!(", {count} more too long for its context"),
        };
        let mut lines = vec![format!("{} questions, {}{left_out}", self.questions, self.model)];
        let types: Vec<&String> = self.modes.first().map_or_else(Vec::new, |mode| mode.types.keys().collect());
        let mut head = format!("{:<28}{:>6}{:>8}{:>8}", "mode", "ratio", "F1", "EM");
        for kind in &types {
            head += &format!("{:>11}{:>11}", format!("{kind} F1"), format!("{kind} EM"));
        }
        head += &format!("{:>9}{:>9}{:>12}{:>10}{:>13}", "exact", "blended", "recomputed", "computed", "not as full");
        lines.push(head);
        let each = |tokens: u64| tokens as f64 / self.questions.max(1) as f64;
        for mode in &self.modes {
            let ratio = mode.variant.ratio.map_or_else(String::new, |ratio| ratio.to_string());
            let mut line = format!("{:<28}{ratio:>6}", mode.variant.name());
            line += &format!("{:>8.3}{:>8.3}", mode.mean.f1, mode.mean.exact_match);
            for mean in types.iter().map(|kind| mode.types.get(*kind).copied().unwrap_or_default()) {
                line += &format!("{:>11.3}{:>11.3}", mean.f1, mean.exact_match);
            }
            let Tokens { exact, blended, recomputed, computed } = mode.tokens;
            let differ = mode.differ_from_full.map_or_else(String::new, |count| count.to_string());
            line += &format!("{:>9.1}{:>9.1}", each(exact), each(blended));
            line += &format!("{:>12.1}{:>10.1}{differ:>13}", each(recomputed), each(computed));
            lines.push(line);
        }
        lines.push("tokens are those of a mean prompt".into());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_difference_is_measured_once() {
        let axes = Axes {
            ratios: vec![0.15, 0.2],
            selectors: vec![Rule::Cacheblend, Rule::FirstK],
            choices: vec![Choice::OneShot, Choice::Gradual],
            layers: vec![],
            behind: vec![Behind::Root, Behind::Bos],
        };
        let of = |modes: &[Mode], axes| Variant::of(modes, axes).iter().map(Variant::name).collect::<Vec<_>>();
        assert_eq!(
            of(&[Mode::Full, Mode::Exact, Mode::Full, Mode::Reuse], &axes),
            ["full", "exact", "reuse", "reuse bos"]
        );
        assert_eq!(of(&[Mode::Blend], &axes).len(), 12, "first-k is never gradual");
        let production = Axes { selectors: vec![Rule::Cacheblend], choices: vec![Choice::OneShot], ..axes.clone() };
        assert_eq!(of(&[Mode::Blend], &production), ["blend", "blend", "blend bos", "blend bos"]);
        let by_values = Axes { selectors: vec![Rule::CacheblendV], ..axes.clone() };
        let all = of(&[Mode::Blend], &by_values);
        assert!(all.contains(&"blend cacheblend-v gradual bos".to_owned()), "{all:?}");
        let others = vec![Rule::Random, Rule::TwoStage, Rule::None];
        let early = Axes { layers: vec![1], selectors: others, behind: vec![Behind::Root], ..production.clone() };
        assert_eq!(
            of(&[Mode::Blend, Mode::Reuse], &early),
            ["blend random @1", "blend random @1", "blend two-stage", "blend two-stage", "blend none @1", "reuse"]
        );
        assert!(Variant::of(&[Mode::Blend], &Axes { ratios: vec![], ..axes }).is_empty());
    }

    #[test]
    fn means_are_over_all_and_by_type() {
        let variant =
            Variant { mode: Mode::Exact, ratio: None, selector: None, choice: None, layer: None, behind: None };
        let mut report = ModeReport::new(variant);
        for (item, kind, f1, em) in [(0, Some("T1"), 1.0, 1.0), (1, Some("T2"), 0.5, 0.0), (2, None, 0.0, 0.0)] {
            let tokens = TokenAccount { exact: 5, blended: 0, recomputed: 0, computed: 2 };
            let kind = kind.map(str::to_owned);
            let answered = Answered {
                item,
                kind,
                question: "q".into(),
                gold: vec!["a".into()],
                variant,
                answer: "a".into(),
                f1,
                em,
                tokens,
            };
            report.add(&answered, Some(if item == 1 { "b" } else { "a" }));
        }
        assert_eq!((report.mean.questions, report.mean.f1), (3, 0.5));
        assert!((report.mean.exact_match - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(report.types["T2"], Mean { questions: 1, f1: 0.5, exact_match: 0.0 });
        assert_eq!((report.types.len(), report.differ_from_full), (2, Some(1)));
        assert_eq!(report.tokens, Tokens { exact: 15, blended: 0, recomputed: 0, computed: 6 });
    }
}
