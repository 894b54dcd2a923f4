//! Whether a model's prompts are blended, how, and by what right.

use std::sync::{Arc, PoisonError, RwLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Calibration;
use crate::prefill::Selection;
use crate::settings::Settings;

/// The share that is recomputed where nobody calibrated and the owner blends all the same: the paper's.
pub const UNCALIBRATED_RATIO: f32 = 0.15;

/// Whether prompts are blended, and by what right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Blending {
    /// As the calibration found.
    Calibrated,
    /// As the settings say, on a model that was calibrated.
    Configured,
    /// On a model that was not calibrated, because the settings permit it.
    Uncalibrated,
    /// Not: the model was not calibrated.
    #[default]
    NotCalibrated,
    /// Not: no way of blending keeps the model's answers.
    NotGoodEnough,
    /// Not: the model's KV has its positions in it, and cannot be moved to others.
    CannotMove,
}

impl Blending {
    /// Whether prompts are blended.
    pub fn blends(self) -> bool {
        matches!(self, Self::Calibrated | Self::Configured | Self::Uncalibrated)
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
