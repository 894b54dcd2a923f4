//! What a calibration found of a model, and what follows: whether its prompts are blended, how, and by what right.

use std::sync::{Arc, PoisonError, RwLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prefill::Selection;
use crate::report::Blending;
use crate::settings::Settings;

/// The share that is recomputed where nobody calibrated and the owner blends all the same: the paper's.
pub const UNCALIBRATED_RATIO: f32 = 0.15;

/// Fewer prompts say nothing.
pub(crate) const LEAST_PROMPTS: usize = 8;

/// One way of blending.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Way {
    /// How what is recomputed is chosen.
    pub selection: Selection,
    /// The share that is.
    pub ratio: f32,
    /// What a prompt over stored passages takes so, of what its full prefill takes, as predicted on the machine that calibrated.
    pub cost: f64,
}

/// What was seen of one way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The way.
    #[serde(flatten)]
    pub way: Way,
    /// Prompts that it was tried on; it is given up where too many have differed.
    pub prompts: usize,
    /// Prompts whose answers differ from a full prefill's.
    pub differ: usize,
    /// The mean over those prompts, in nats.
    pub divergence: f64,
    /// Whether it is good enough.
    pub keeps: bool,
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
    /// The share of the answers that had to be a full prefill's.
    pub fidelity: f64,
    /// The cheapest way that keeps them; `None`: none does, and the model is not blended.
    pub chosen: Option<Way>,
    /// Ways to be tried in all.
    pub ways: usize,
    /// Every way that was tried, cheapest first.
    pub evidence: Vec<Evidence>,
}

impl Calibration {
    /// Whether it can be what a calibration found, and rests on enough.
    pub(crate) fn is_sane(&self) -> bool {
        let chosen = self.chosen.is_none_or(|way| (0.0..1.0).contains(&way.ratio));
        chosen && self.prompts >= LEAST_PROMPTS && (0.5..=1.0).contains(&self.fidelity)
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
}

impl Blend {
    /// What follows from the settings and what was found of the model.
    pub fn of(settings: &Settings, calibration: Option<&Calibration>) -> Self {
        let found = calibration.map(|calibration| calibration.chosen);
        let (selection, ratio) = match found.flatten() {
            Some(way) => (way.selection, way.ratio),
            None => (Selection::default(), UNCALIBRATED_RATIO),
        };
        let rule = settings.selector.unwrap_or(selection.rule);
        let selection = if rule == selection.rule { selection } else { Selection::by(rule) };
        let layer = settings.selection_layer.unwrap_or(selection.layer);
        let is_configured =
            (settings.selector, settings.selection_layer, settings.recompute_ratio) != (None, None, None);
        let blending = match found {
            Some(Some(_)) if is_configured => Blending::Configured,
            Some(Some(_)) => Blending::Calibrated,
            Some(None) => Blending::NotGoodEnough,
            None if settings.blend_uncalibrated => Blending::Uncalibrated,
            None => Blending::NotCalibrated,
        };
        let own = Selection { layer, ..selection };
        // A ratio is worth what it was measured with.
        let is_as_found = found.flatten().is_none_or(|way| way.selection == own);
        let ratio = if is_as_found { ratio } else { UNCALIBRATED_RATIO };
        Self { blending, selection: own, ratio: settings.recompute_ratio.unwrap_or(ratio) }
    }
}

/// What is known of the model in use.
#[derive(Debug)]
pub(crate) struct Known {
    learned: RwLock<(Blend, Option<Arc<Calibration>>)>,
    can_move: bool,
}

impl Known {
    /// `can_move` says whether the model's KV can be moved to other positions: what cannot is not blended, whatever the settings say.
    pub fn new(settings: &Settings, calibration: Option<Calibration>, can_move: bool) -> Self {
        let learned = (Blend::of(settings, calibration.as_ref()), calibration.map(Arc::new));
        Self { learned: RwLock::new(learned), can_move }
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

    pub fn calibration(&self) -> Option<Arc<Calibration>> {
        self.learned.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    pub fn learn(&self, settings: &Settings, calibration: Calibration) {
        let learned = (Blend::of(settings, Some(&calibration)), Some(Arc::new(calibration)));
        *self.learned.write().unwrap_or_else(PoisonError::into_inner) = learned;
    }
}
