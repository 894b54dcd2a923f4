//! What follows from a calibration.

use super::*;
use crate::blend::UNCALIBRATED_RATIO;
use crate::prefill::Selection;
use crate::settings::Settings;

fn found(chosen: Option<Way>) -> Calibration {
    Calibration {
        weights: "w".into(),
        measured_unix_ms: 5,
        passages: "bundled".into(),
        prompts: 10,
        tokens: 16,
        fidelity: 0.99,
        chosen,
        ways: 3,
        evidence: Vec::new(),
    }
}

fn way() -> Way {
    Way { selection: Selection { layer: 4, ..Selection::by(Rule::QuestionAttention) }, ratio: 0.05, cost: 0.2 }
}

#[test]
fn a_model_is_blended_as_it_was_calibrated_and_otherwise_only_if_its_owner_says_so() {
    let settings = Settings::default();
    let permitted = Settings { blend_uncalibrated: true, ..Settings::default() };
    let configured = Settings { recompute_ratio: Some(0.3), ..Settings::default() };
    let (good, bad) = (found(Some(way())), found(None));
    let of = |settings: &Settings, calibration: Option<&Calibration>| Blend::of(settings, calibration);
    let calibrated = of(&settings, Some(&good));
    assert_eq!(
        (calibrated.blending, calibrated.selection, calibrated.ratio),
        (Blending::Calibrated, way().selection, 0.05)
    );
    assert_eq!(of(&permitted, Some(&good)), calibrated, "what was found counts");
    assert_eq!((of(&settings, None).blending, of(&settings, None).blending.blends()), (Blending::NotCalibrated, false));
    let uncalibrated = of(&permitted, None);
    assert_eq!((uncalibrated.blending, uncalibrated.ratio), (Blending::Uncalibrated, UNCALIBRATED_RATIO));
    assert_eq!(uncalibrated.selection, Selection::default());
    // No setting blends what was found to be no good; and a ratio alone is no permission.
    assert_eq!(of(&permitted, Some(&bad)).blending, Blending::NotGoodEnough);
    assert_eq!(of(&configured, None).blending, Blending::NotCalibrated);
    let own = of(&configured, Some(&good));
    assert_eq!((own.blending, own.selection, own.ratio), (Blending::Configured, way().selection, 0.3));
    // Another rule brings its own layer, unless that is given, too.
    let rule = Settings { selector: Some(Rule::Cacheblend), ..Settings::default() };
    assert_eq!(of(&rule, Some(&good)).selection, Selection::default());
    let layer = Settings { selection_layer: Some(3), ..Settings::default() };
    assert_eq!(of(&layer, Some(&good)).selection, Selection { layer: 3, ..way().selection });
    assert_eq!(of(&layer, Some(&good)).ratio, UNCALIBRATED_RATIO, "what was measured on another layer says nothing");
}

#[test]
fn a_calibration_is_recalled_from_the_catalog_or_the_models_folder_and_not_for_other_weights() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&folder.path().join("catalog"), &ragstone_storage::env::Env::seeded(1, 0)).unwrap();
    let recalled = |weights: &str| recall(&catalog, "model", weights, folder.path()).unwrap();
    assert_eq!(recalled("w"), None);
    let beside = found(None);
    std::fs::write(folder.path().join(FILE_NAME), serde_json::to_string_pretty(&beside).unwrap()).unwrap();
    assert_eq!((recalled("w"), recalled("other")), (Some(beside), None));
    std::fs::write(folder.path().join(FILE_NAME), "{").unwrap();
    assert_eq!(recalled("w"), None, "what cannot be read counts as nothing");
    // The later one counts, and floats come back as they went.
    let own = Calibration { measured_unix_ms: 6, ..found(Some(way())) };
    catalog.note_calibration("model", &own).unwrap();
    std::fs::write(folder.path().join(FILE_NAME), serde_json::to_string(&found(None)).unwrap()).unwrap();
    assert_eq!(recalled("w"), Some(own));
    let later = Calibration { measured_unix_ms: 7, ..found(None) };
    std::fs::write(folder.path().join(FILE_NAME), serde_json::to_string(&later).unwrap()).unwrap();
    assert_eq!(recalled("w"), Some(later));
    let senseless = Calibration { prompts: 1, measured_unix_ms: 8, ..found(None) };
    std::fs::write(folder.path().join(FILE_NAME), serde_json::to_string(&senseless).unwrap()).unwrap();
    assert_eq!(recalled("w").map(|it| it.measured_unix_ms), Some(6));
    assert_eq!(recall(&catalog, "another", "other", folder.path()).unwrap(), None);
}

#[test]
fn what_makes_no_sense_is_named() {
    let asked = Asked { question: "q".into(), passages: Vec::new() };
    for (wanted, word) in [
        (Calibrate { prompts: 7, ..Calibrate::default() }, "prompts"),
        (Calibrate { tokens: 999, ..Calibrate::default() }, "tokens"),
        (Calibrate { prompts: 1000, tokens: 256, ..Calibrate::default() }, "51200"),
        (Calibrate { fidelity: f64::NAN, ..Calibrate::default() }, "fidelity"),
        (Calibrate { questions: vec![asked.clone()], ..Calibrate::default() }, "passage"),
    ] {
        let error = wanted.check().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(word), "{error}");
    }
    Calibrate::default().check().unwrap();
}
