//! The choice of tokens to recompute ("CacheBlend: Fast Large Language Model Serving for RAG with Cached Knowledge
//! Fusion", section 4.3), and the other rules that have been proposed. A new rule is one file and its lines in [`Rule`].
//!
//! How many tokens are recomputed is the ratio's alone; a rule says which. They differ in what they have to see first:
//!
//! ```text
//! nothing    [layer 0 .. last] over the chosen rows                            first-k, random, none, all
//! deviation  [0 .. layer) over all rows, fresh K and V against the stored      cacheblend, cacheblend-k, cacheblend-v
//! attention  [0 .. layer) over all rows, what the question looks at there      question-attention
//! a probe    the question alone over stored KV, then as for nothing            critical-layer, two-stage
//! ```

mod cacheblend;
mod constant;
mod first_k;
mod question;
mod random;

use std::ops::Range;

use ragstone_kernels::deviation::Compared;
use ragstone_storage::prompt::plan::Choosing;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::random::splitmix64;

/// The first layer whose fresh K and V can differ from stored ones: those of the layer before it come from the
/// embeddings alone.
const FIRST_SELECTION_LAYER: usize = 1;

/// The layer on which `cacheblend` chooses unless settings or a calibration say otherwise. K and V of layer 1 show only what layer
/// 0 attended to, which can be as little as the few tokens before; where passages first meet in layer 1, layer 2 is the first to
/// show it (docs/results/fusion.md, History). The paper chooses on layer 1, for one layer less of full computation.
pub const DEFAULT_SELECTION_LAYER: usize = 2;

/// Under [`Schedule::Gradual`] the first choice keeps this much more than the ratio, and the last this much less.
const GRADUAL_SLOPE: f32 = 0.5;

/// A rule that says which tokens of blended passages are recomputed. It has no state: what it saw is handed to it.
pub(super) trait TokenSelector: Sync {
    /// What it has to see before it can choose.
    fn looks_at(&self) -> Look;

    /// The candidates that are recomputed, as indices into them, ascending; `budget` of them, unless the rule knows better.
    fn choose(&self, candidates: &Candidates<'_>, budget: usize) -> Vec<usize>;
}

/// What a rule has to see before it can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// The prompt's plan, and no more.
    Nothing,
    /// How far the fresh K and V of the choosing layer are from the stored ones.
    Deviation(Compared),
    /// What the question looks at in the choosing layer, once all layers before it were computed.
    Attention,
    /// What the question looks at where nothing is recomputed: in this layer, or in all of them.
    Probe(Probed),
}

/// Layers whose attention a probe adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probed {
    /// The selection's.
    One,
    /// Every one.
    All,
}

/// Tokens of blended passages, and how much each wants to be recomputed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidates<'a> {
    /// Ascending.
    pub slots: &'a [u32],
    /// One a slot; zeros where a rule looks at nothing.
    pub scores: &'a [f32],
    /// The slots of each blended passage, in order.
    pub passages: &'a [Range<u32>],
    /// Of rules that draw.
    pub seed: u64,
}

/// The rules, by the names that settings and commands know them by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Tokens whose K and V deviate most from the stored ones (CacheBlend).
    #[default]
    Cacheblend,
    /// As `cacheblend`, by K alone.
    CacheblendK,
    /// As `cacheblend`, by V alone.
    CacheblendV,
    /// The first tokens of every passage, as many of each (EPIC's LegoLink).
    FirstK,
    /// Tokens that the question looks at in an early layer (A3).
    QuestionAttention,
    /// Tokens that the question, run ahead over stored KV, looks at in one layer that was found to matter (QCFuse).
    CriticalLayer,
    /// Tokens that the question, run ahead over stored KV, looks at in all layers together (ProphetKV).
    TwoStage,
    /// Any: the control that says what choosing is worth.
    Random,
    /// None: plain reuse, whatever the ratio.
    None,
    /// Every one: a full prefill, whatever the ratio.
    All,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 10] = [
        Self::Cacheblend,
        Self::CacheblendK,
        Self::CacheblendV,
        Self::FirstK,
        Self::QuestionAttention,
        Self::CriticalLayer,
        Self::TwoStage,
        Self::Random,
        Self::None,
        Self::All,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cacheblend => "cacheblend",
            Self::CacheblendK => "cacheblend-k",
            Self::CacheblendV => "cacheblend-v",
            Self::FirstK => "first-k",
            Self::QuestionAttention => "question-attention",
            Self::CriticalLayer => "critical-layer",
            Self::TwoStage => "two-stage",
            Self::Random => "random",
            Self::None => "none",
            Self::All => "all",
        }
    }

    /// The rule of that name.
    ///
    /// # Errors
    /// A message with the names there are.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|rule| rule.name()).collect();
            format!("no rule is called `{name}`; there are {}", names.join(", "))
        })
    }

    fn selector(self) -> &'static dyn TokenSelector {
        match self {
            Self::Cacheblend => &cacheblend::Deviation(Compared::Both),
            Self::CacheblendK => &cacheblend::Deviation(Compared::Keys),
            Self::CacheblendV => &cacheblend::Deviation(Compared::Values),
            Self::FirstK => &first_k::FirstK,
            Self::QuestionAttention => &question::Question(Look::Attention),
            Self::CriticalLayer => &question::Question(Look::Probe(Probed::One)),
            Self::TwoStage => &question::Question(Look::Probe(Probed::All)),
            Self::Random => &random::Random,
            Self::None => &constant::None,
            Self::All => &constant::All,
        }
    }

    /// The layer that it chooses on, or looks at, unless told otherwise.
    pub fn default_layer(self) -> usize {
        match self.selector().looks_at() {
            Look::Nothing => 0,
            Look::Deviation(_) | Look::Probe(_) => DEFAULT_SELECTION_LAYER,
            Look::Attention => FIRST_SELECTION_LAYER,
        }
    }

    /// Whether [`Selection::layer`] makes a difference to it.
    pub fn has_layer(self) -> bool {
        !matches!(self.selector().looks_at(), Look::Probe(Probed::All))
    }

    /// Whether it looks at anything of the model before it chooses.
    pub fn looks(self) -> bool {
        self.selector().looks_at() != Look::Nothing
    }

    /// Whether it can choose again on later layers ([`Schedule::Gradual`]).
    pub fn can_be_gradual(self) -> bool {
        matches!(self.selector().looks_at(), Look::Deviation(_)) || self == Self::Random
    }
}

/// How the tokens of blended passages that are recomputed are chosen. How many is the ratio's alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Selection {
    /// Which tokens.
    pub rule: Rule,
    /// On which layers.
    pub schedule: Schedule,
    /// The first layer that chooses, those before it computing every token; of rules that probe, the layer that is looked at. A
    /// model without this layer takes its last.
    pub layer: usize,
    /// Of rules that draw.
    #[serde(default)]
    pub seed: u64,
}

impl Default for Selection {
    fn default() -> Self {
        Self::by(Rule::default())
    }
}

/// On which layers tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Once, on the first layer that may.
    #[default]
    OneShot,
    /// On that layer and every one behind it, each time from those that are left: more than the ratio at first, less in the end,
    /// and the ratio on average (section 4.3's gradual filtering). Rules that cannot choose again choose once.
    Gradual,
}

impl Schedule {
    /// The share of the blended tokens that `layer` computes, of `layers`, if `first` is the first that chooses; `None` where
    /// nothing is chosen on this layer.
    fn share(self, ratio: f32, first: usize, layer: usize, layers: usize) -> Option<f32> {
        match self {
            Self::OneShot => (layer == first).then_some(ratio),
            Self::Gradual if layer < first => None,
            Self::Gradual => {
                let slope = GRADUAL_SLOPE.min(1.0 / ratio - 1.0);
                let last = (layers - 1 - first).max(1) as f32;
                Some(ratio * (1.0 + slope * (1.0 - 2.0 * (layer - first) as f32 / last)))
            }
        }
    }
}

impl Selection {
    /// A rule as it is by itself.
    pub fn by(rule: Rule) -> Self {
        Self { rule, schedule: Schedule::default(), layer: rule.default_layer(), seed: 0 }
    }

    /// As it is named in reports: "cacheblend-k gradual @1".
    pub fn name(&self) -> String {
        let gradual = if self.is_gradual() { " gradual" } else { "" };
        let layer = if self.rule.has_layer() { format!(" @{}", self.layer) } else { String::new() };
        format!("{}{gradual}{layer}", self.rule.name())
    }

    /// Whether `layer` is one that it can choose on, or look at.
    pub fn takes_layer(self, layer: usize) -> bool {
        layer >= FIRST_SELECTION_LAYER || !matches!(self.looks_at(), Look::Deviation(_))
    }

    /// What it costs beside the rows that are chosen, in a model of `layers`.
    pub fn choosing(self, layers: usize) -> Choosing {
        let (probed, looked) = match self.probed(layers) {
            Some(probed) => (probed.end, probed.len()),
            None => (0, usize::from(self.looks_at() == Look::Attention)),
        };
        // A model has fewer layers than that.
        Choosing { layer: self.first_layer(layers) as u32, probed: probed as u32, looked: looked as u32 }
    }

    pub(super) fn looks_at(self) -> Look {
        self.rule.selector().looks_at()
    }

    /// The first layer of `layers` that chooses.
    pub(super) fn first_layer(self, layers: usize) -> usize {
        let last = layers.saturating_sub(1);
        match self.looks_at() {
            Look::Nothing | Look::Attention => self.layer.min(last),
            Look::Deviation(_) => self.layer.clamp(FIRST_SELECTION_LAYER, last.max(FIRST_SELECTION_LAYER)),
            Look::Probe(_) => 0,
        }
    }

    /// The layers whose attention a probe adds up; `None` where there is none.
    pub(super) fn probed(self, layers: usize) -> Option<Range<usize>> {
        match self.looks_at() {
            Look::Probe(Probed::All) => Some(0..layers),
            Look::Probe(Probed::One) => {
                let layer = self.layer.min(layers.saturating_sub(1));
                Some(layer..layer + 1)
            }
            _ => None,
        }
    }

    /// Whether every layer behind the first that chooses does so, too.
    pub(super) fn is_gradual(self) -> bool {
        self.schedule == Schedule::Gradual && self.rule.can_be_gradual()
    }

    /// Of the slots `active` that go on to `layer`, of `layers`, those that still do after the choice, ascending: everything that is
    /// no candidate, and of the candidates the share of `blended` tokens that the ratio and the schedule give, counted over all
    /// passages together.
    pub(super) fn choose(
        self,
        (ratio, blended): (f32, u32),
        (layer, layers): (usize, usize),
        active: &[u32],
        candidates: &Candidates<'_>,
    ) -> Vec<u32> {
        let schedule = if self.is_gradual() { Schedule::Gradual } else { Schedule::OneShot };
        let Some(share) = schedule.share(ratio, self.first_layer(layers), layer, layers) else {
            return active.to_vec();
        };
        let budget = (share * blended as f32).ceil() as usize;
        let mut goes_on = vec![false; candidates.slots.len()];
        let chosen = self.rule.selector().choose(candidates, budget);
        chosen.into_iter().for_each(|index| goes_on[index] = true);
        let is_kept = |slot: &u32| candidates.slots.binary_search(slot).map_or(true, |index| goes_on[index]);
        active.iter().copied().filter(is_kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradual_shares_fall_and_have_the_ratio_as_their_mean() {
        for (ratio, layers) in [(0.15_f32, 5_usize), (0.5, 24), (0.9, 5), (0.3, 3), (0.2, 2)] {
            let shares: Vec<f32> =
                (1..layers).map(|layer| Schedule::Gradual.share(ratio, 1, layer, layers).unwrap()).collect();
            assert!(shares.is_sorted_by(|a, b| a >= b) && shares[0] <= 1.0, "{shares:?}");
            if layers > 2 {
                let mean = shares.iter().sum::<f32>() / shares.len() as f32;
                assert!((mean - ratio).abs() < 1e-5 && shares[0] > *shares.last().unwrap(), "{ratio}: {shares:?}");
            }
        }
        assert_eq!(Schedule::Gradual.share(0.15, 1, 0, 5), None);
        assert_eq!(
            (0..3).map(|layer| Schedule::OneShot.share(0.15, 1, layer, 3)).collect::<Vec<_>>(),
            [None, Some(0.15), None]
        );
    }

    #[test]
    fn every_rule_has_a_name_and_says_what_it_costs() {
        for rule in Rule::ALL {
            assert_eq!(Rule::from_name(rule.name()), Ok(rule));
            assert_eq!(serde_json::to_value(rule).unwrap(), rule.name(), "settings and catalog use it, too");
        }
        assert!(Rule::from_name("best").unwrap_err().contains("cacheblend-k, cacheblend-v, first-k"));
        let cost = |rule, layer| {
            let Choosing { layer, probed, looked } = Selection { layer, ..Selection::by(rule) }.choosing(6);
            (layer, probed, looked)
        };
        assert_eq!(cost(Rule::Cacheblend, 0), (1, 0, 0), "K and V of layer 0 never deviate");
        assert_eq!(cost(Rule::Cacheblend, 99), (5, 0, 0));
        assert_eq!((cost(Rule::QuestionAttention, 0), cost(Rule::QuestionAttention, 3)), ((0, 0, 1), (3, 0, 1)));
        assert_eq!((cost(Rule::CriticalLayer, 3), cost(Rule::CriticalLayer, 99)), ((0, 4, 1), (0, 6, 1)));
        assert_eq!((cost(Rule::TwoStage, 3), cost(Rule::FirstK, 0)), ((0, 6, 6), (0, 0, 0)));
    }
}
