//! What is measured beside each other: modes, and what makes a difference to each.

use ragstone_actors::{Rule, Schedule, Selection};
use serde::{Deserialize, Serialize};

/// Where the KV of a question's passages comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No passages at all: what can be guessed
    #[value(name = "none")]
    #[serde(rename = "none")]
    NoPassages,
    /// Everything is computed
    Full,
    /// Loaded, computed earlier in the same order: the same answers as full
    Exact,
    /// A prefix cache: the system prompt and the first passage are loaded, the others computed
    Prefix,
    /// Loaded, each passage computed without the others (see --after), nothing recomputed
    Reuse,
    /// As reuse, and of their tokens those that --selector chooses recomputed
    Blend,
    /// Each passage is asked about alone, then the question over what was answered (see --map-prompt)
    MapReduce,
    /// Each passage is asked about alone; the answer that the model is surest of, by the mean log-probability of its tokens
    MapRerank,
}

impl Mode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoPassages => "none",
            Self::Full => "full",
            Self::Exact => "exact",
            Self::Prefix => "prefix",
            Self::Reuse => "reuse",
            Self::Blend => "blend",
            Self::MapReduce => "map-reduce",
            Self::MapRerank => "map-rerank",
        }
    }

    /// Whether passages stand together in a prompt although each one's KV was computed without the others.
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Reuse | Self::Blend)
    }
}

/// When tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Once
    OneShot,
    /// On every layer from then on, fewer each time, the ratio on average
    Gradual,
}

/// What stood before a passage as its KV was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// The system prompt
    SystemPrompt,
    /// The prompt's first token alone (the beginning-of-sequence token, where the model has one)
    Bos,
}

/// A mode, with what makes a difference to it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
    pub after: Option<After>,
}

/// The values to measure of each thing that makes a difference.
#[derive(Debug, Clone)]
pub struct Axes {
    pub ratios: Vec<f32>,
    pub selectors: Vec<Rule>,
    pub choices: Vec<Choice>,
    /// None given: each rule's own.
    pub layers: Vec<usize>,
    pub after: Vec<After>,
}

impl Variant {
    /// A mode by itself.
    pub fn plain(mode: Mode) -> Self {
        Self { mode, ratio: None, selector: None, choice: None, layer: None, after: None }
    }

    /// Every mode at each combination of what makes a difference to it, once, in the order given.
    pub fn of(modes: &[Mode], axes: &Axes) -> Vec<Self> {
        let mut variants: Vec<Self> = Vec::new();
        for &mode in modes {
            let blends = mode == Mode::Blend;
            let mut of_mode = vec![Self::plain(mode)];
            spread(&mut of_mode, |_| some_if(mode.is_alone(), &axes.after), |it, after| it.after = after);
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
        name += if self.after == Some(After::Bos) { " bos" } else { "" };
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
            after: vec![After::SystemPrompt, After::Bos],
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
        let early = Axes { layers: vec![1], selectors: others, after: vec![After::SystemPrompt], ..production.clone() };
        assert_eq!(
            of(&[Mode::Blend, Mode::Reuse], &early),
            ["blend random @1", "blend random @1", "blend two-stage", "blend two-stage", "blend none @1", "reuse"]
        );
        assert!(Variant::of(&[Mode::Blend], &Axes { ratios: vec![], ..axes.clone() }).is_empty());
        let baselines = [Mode::Prefix, Mode::MapReduce, Mode::MapRerank];
        assert_eq!(of(&baselines, &axes), ["prefix", "map-reduce", "map-rerank"]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let axes = Axes {
            ratios: vec![0.02, 0.15, 0.3],
            selectors: Rule::ALL.to_vec(),
            choices: vec![Choice::OneShot, Choice::Gradual],
            layers: vec![],
            after: vec![After::SystemPrompt, After::Bos],
        };
        let modes = <Mode as clap::ValueEnum>::value_variants();
        for variant in Variant::of(modes, &axes) {
            let text = serde_json::to_string(&variant).expect("JSON");
            assert!(text.contains(&format!("\"mode\":\"{}\"", variant.mode.name())), "{text}");
            assert_eq!(serde_json::from_str::<Variant>(&text).expect("a variant"), variant);
        }
    }
}
