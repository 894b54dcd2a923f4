//! What a calibration found of a model, and what follows: whether its prompts are blended, how, and by what right.

use std::sync::{Arc, PoisonError, RwLock};

use ragstone_storage::prompt::primer::Primer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prefill::{Rule, Selection};
use crate::question::primer::{MOST_PASSAGES, UNCALIBRATED_PASSAGES};
use crate::report::Blending;
use crate::settings::Settings;

/// The share that is recomputed where nobody calibrated and the owner blends all the same: the paper's.
pub const UNCALIBRATED_RATIO: f32 = 0.15;

/// A budget of so many nats allows everything.
pub(crate) const MOST_BUDGET: f64 = 1.0;

/// The budget by default: about five times what keeping weights in four bits does by itself. What it does to the share of right answers was
/// not measured.
pub const BALANCED: f64 = 0.03;

/// Fewer prompts say nothing.
pub(crate) const LEAST_PROMPTS: usize = 8;

/// One way of blending.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Way {
    /// How what is recomputed is chosen.
    pub selection: Selection,
    /// The share that is.
    pub ratio: f32,
    /// Passages of the primer that standalone entries are computed behind.
    #[serde(default)]
    pub primer: usize,
    /// What a prompt over stored passages takes so, of what its full prefill takes, as predicted on the machine that calibrated.
    pub cost: f64,
}

/// What was seen of one way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The way.
    #[serde(flatten)]
    pub way: Way,
    /// Prompts that it was tried on.
    pub prompts: usize,
    /// Prompts whose answers have a token that a full prefill tells apart from its own by more than rounding does.
    pub differ: usize,
    /// Kullback-Leibler divergence of the next token's distribution from a full prefill's, in nats, at most 1 of each token: the mean
    /// over an answer's tokens, and over the prompts.
    pub divergence: f64,
    /// Half of its interval of 95 %.
    #[serde(default)]
    pub interval: f64,
    /// The divergence that 1 in 100 tokens exceeds.
    #[serde(default)]
    pub p99: f64,
    /// What was decided about it.
    #[serde(default)]
    pub verdict: Verdict,
}

/// What a calibration decided about a way of blending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing: others were ahead when all were tried on the same prompts, or it was only measured.
    #[default]
    Left,
    /// Its divergence is within the budget, at an error rate of 5 % for all that was tested.
    Certified,
    /// Its divergence is over the budget, as sure as that.
    Refused,
    /// The prompts ran out before either was sure.
    Undecided,
}

/// What a calibration found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// Digest of the model's weights, with how they are kept behind it (`.q8`, `.q4`, `.native-3`) where products round activations to 8 bits.
    pub weights: String,
    /// When.
    pub measured_unix_ms: u64,
    /// Whose passages: `bundled`, `questions`, or a collection.
    pub passages: String,
    /// Prompts.
    pub prompts: usize,
    /// The longest answer, in tokens.
    pub tokens: usize,
    /// The divergence that was allowed, in nats a token. 0: found by an earlier version, which counted answers that differ.
    #[serde(default)]
    pub budget: f64,
    /// The cheapest way that keeps within it; `None`: none does, and the model is not blended.
    pub chosen: Option<Way>,
    /// Ways to be tried in all.
    pub ways: usize,
    /// What was seen of every way that was tried, cheapest first.
    pub evidence: Vec<Evidence>,
}

impl Calibration {
    /// Whether it can be what a calibration found, and rests on enough.
    pub(crate) fn is_sane(&self) -> bool {
        let chosen = self.chosen.is_none_or(|way| (0.0..1.0).contains(&way.ratio) && way.primer <= MOST_PASSAGES);
        chosen && self.prompts >= LEAST_PROMPTS && (0.0..=MOST_BUDGET).contains(&self.budget)
    }
}

/// How prompts are blended now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Blend {
    /// Whether, and by what right.
    pub blending: Blending,
    /// How what is recomputed is chosen.
    pub selection: Selection,
    /// The least share that is (CacheBlend's r*).
    pub ratio: f32,
    /// Passages of the primer that standalone entries are computed behind, as far as they fit the model's context.
    pub primer: usize,
}

impl Blend {
    /// What follows from the settings and what was found of the model.
    pub fn of(settings: &Settings, calibration: Option<&Calibration>) -> Self {
        let found = calibration.map(|calibration| calibration.chosen);
        let (selection, ratio, primer) = match found.flatten() {
            Some(way) => (way.selection, way.ratio, way.primer),
            None => (Selection::default(), UNCALIBRATED_RATIO, UNCALIBRATED_PASSAGES),
        };
        let primer = settings.primer_passages.unwrap_or(primer);
        let rule = settings.selector.unwrap_or(selection.rule);
        let selection = if rule == selection.rule { selection } else { Selection::by(rule) };
        let layer = settings.selection_layer.unwrap_or(selection.layer);
        let is_configured = settings.primer_passages.is_some()
            || (settings.selector, settings.selection_layer, settings.recompute_ratio) != (None, None, None);
        let blending = match found {
            Some(Some(_)) if is_configured => Blending::Configured,
            Some(Some(_)) => Blending::Calibrated,
            Some(None) => Blending::NotGoodEnough,
            None if settings.blend_uncalibrated => Blending::Uncalibrated,
            None => Blending::NotCalibrated,
        };
        let own = Selection { layer, ..selection };
        // A ratio is worth what it was measured with.
        let is_as_found = found.flatten().is_none_or(|way| (way.selection, way.primer) == (own, primer));
        let ratio = if is_as_found { ratio } else { UNCALIBRATED_RATIO };
        let ratio = settings.recompute_ratio.unwrap_or(ratio);
        // Plain reuse is worth what it was measured with, too: where something is to be recomputed, a rule says what.
        let selection = match own.rule {
            Rule::None if settings.selector.is_none() && ratio > 0.0 => {
                let default = Selection::default();
                Selection { layer: settings.selection_layer.unwrap_or(default.layer), ..default }
            }
            _ => own,
        };
        Self { blending, selection, ratio, primer }
    }
}

/// What is known of the model in use.
#[derive(Debug)]
pub(crate) struct Known {
    learned: RwLock<(Blend, Option<Arc<Calibration>>)>,
    can_move: bool,
    /// All passages that a primer can have.
    fillers: Primer,
}

impl Known {
    /// `can_move` says whether the model's KV can be moved to other positions: what cannot is not blended, whatever the settings say.
    /// `fillers` are all passages that a primer can have.
    pub fn new(settings: &Settings, calibration: Option<Calibration>, can_move: bool, fillers: Primer) -> Self {
        let learned = (Blend::of(settings, calibration.as_ref()), calibration.map(Arc::new));
        Self { learned: RwLock::new(learned), can_move, fillers }
    }

    /// Whether the model's KV can be moved to other positions.
    pub fn can_move(&self) -> bool {
        self.can_move
    }

    pub fn blend(&self) -> Blend {
        let blend = self.learned.read().unwrap_or_else(PoisonError::into_inner).0;
        let blending = if self.can_move { blend.blending } else { Blending::CannotMove };
        Blend { blending, ..blend }
    }

    /// What standalone entries are computed behind.
    pub fn primer(&self) -> Primer {
        self.fillers.first(self.blend().primer)
    }

    /// All passages that a primer can have.
    pub fn fillers(&self) -> &Primer {
        &self.fillers
    }

    pub fn calibration(&self) -> Option<Arc<Calibration>> {
        self.learned.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    pub fn learn(&self, settings: &Settings, calibration: Calibration) {
        let learned = (Blend::of(settings, Some(&calibration)), Some(Arc::new(calibration)));
        *self.learned.write().unwrap_or_else(PoisonError::into_inner) = learned;
    }
}
