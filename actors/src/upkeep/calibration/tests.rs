//! What follows from a calibration.

use super::*;
use crate::answer::blend::UNCALIBRATED_RATIO;
use crate::prefill::Selection;
use crate::question::primer::UNCALIBRATED_PASSAGES;
use crate::settings::Settings;

fn found(chosen: Option<Way>) -> Calibration {
    Calibration {
        weights: "w".into(),
        measured_unix_ms: 5,
        passages: "bundled".into(),
        prompts: 10,
        tokens: 16,
        budget: 0.03,
        chosen,
        ways: 3,
        evidence: Vec::new(),
    }
}

fn way() -> Way {
    Way {
        selection: Selection { layer: 4, ..Selection::by(Rule::QuestionAttention) },
        ratio: 0.05,
        primer: 4,
        cost: 0.2,
    }
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
        (calibrated.blending, calibrated.selection, calibrated.ratio, calibrated.primer),
        (Blending::Calibrated, way().selection, 0.05, 4)
    );
    assert_eq!(of(&permitted, Some(&good)), calibrated, "what was found counts");
    assert_eq!((of(&settings, None).blending, of(&settings, None).blending.blends()), (Blending::NotCalibrated, false));
    let uncalibrated = of(&permitted, None);
    assert_eq!((uncalibrated.blending, uncalibrated.ratio), (Blending::Uncalibrated, UNCALIBRATED_RATIO));
    assert_eq!(uncalibrated.selection, Selection::default());
    assert_eq!(uncalibrated.primer, UNCALIBRATED_PASSAGES);
    // No setting blends what was found to be no good; and a ratio alone is no permission.
    assert_eq!(of(&permitted, Some(&bad)).blending, Blending::NotGoodEnough);
    assert_eq!(of(&configured, None).blending, Blending::NotCalibrated);
    let own = of(&configured, Some(&good));
    assert_eq!((own.blending, own.selection, own.ratio), (Blending::Configured, way().selection, 0.3));
    let unprimed = of(&Settings { primer_passages: Some(0), ..Settings::default() }, Some(&good));
    assert_eq!((unprimed.blending, unprimed.primer, unprimed.ratio), (Blending::Configured, 0, UNCALIBRATED_RATIO));
    // Another rule brings its own layer, unless that is given, too.
    let rule = Settings { selector: Some(Rule::Cacheblend), ..Settings::default() };
    assert_eq!(of(&rule, Some(&good)).selection, Selection::default());
    let layer = Settings { selection_layer: Some(3), ..Settings::default() };
    assert_eq!(of(&layer, Some(&good)).selection, Selection { layer: 3, ..way().selection });
    assert_eq!(of(&layer, Some(&good)).ratio, UNCALIBRATED_RATIO, "what was measured on another layer says nothing");
}

#[test]
fn where_plain_reuse_was_found_a_share_that_is_configured_is_recomputed_all_the_same() {
    let plain = found(Some(Way { selection: Selection::by(Rule::None), ratio: 0.0, primer: 4, cost: 0.1 }));
    let of = |settings: Settings| Blend::of(&settings, Some(&plain));
    let shown = |blend: Blend| (blend.blending, blend.selection, blend.ratio, blend.primer);
    let none = Selection::by(Rule::None);
    assert_eq!(shown(of(Settings::default())), (Blending::Calibrated, none, 0.0, 4));
    let (by, default) = (Blending::Configured, Selection::default());
    let ratio = Settings { recompute_ratio: Some(0.3), ..Settings::default() };
    assert_eq!(shown(of(ratio.clone())), (by, default, 0.3, 4));
    // Nobody certified plain reuse behind another primer.
    let unprimed = Settings { primer_passages: Some(0), ..Settings::default() };
    assert_eq!(shown(of(unprimed)), (by, default, UNCALIBRATED_RATIO, 0));
    let layer = Settings { selection_layer: Some(3), ..Settings::default() };
    assert_eq!(shown(of(layer)), (by, Selection { layer: 3, ..default }, UNCALIBRATED_RATIO, 4));
    // Whoever asks for plain reuse has it, and so has who asks for no share.
    assert_eq!(of(Settings { selector: Some(Rule::None), ..ratio }).selection, none);
    assert_eq!(shown(of(Settings { recompute_ratio: Some(0.0), ..Settings::default() })), (by, none, 0.0, 4));
}

#[test]
fn a_calibration_is_recalled_from_the_catalog_or_the_models_folder_and_not_for_other_weights() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&folder.path().join("catalog"), &ragstone_env::Env::seeded(1, 0)).unwrap();
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
    // What an earlier version refused may be tried again; what it permitted holds.
    let earlier = |chosen| {
        serde_json::json!({ "weights": "w", "measured_unix_ms": 8, "passages": "bundled", "prompts": 64, "tokens": 16,
        "fidelity": 0.99, "chosen": chosen, "ways": 9, "evidence": [] })
    };
    let way = serde_json::json!({ "selection": way().selection, "ratio": 0.05, "cost": 0.2 });
    for (chosen, kept) in [(serde_json::Value::Null, false), (way, true)] {
        let earlier: Calibration = serde_json::from_value(earlier(chosen)).unwrap();
        catalog.note_calibration("earlier", &earlier).unwrap();
        assert_eq!(recall(&catalog, "earlier", "other", folder.path()).unwrap().is_some(), kept);
    }
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
        (Calibrate { budget: f64::NAN, ..Calibrate::default() }, "budget"),
        (Calibrate { budget: 1.5, ..Calibrate::default() }, "budget"),
        (Calibrate { questions: vec![asked.clone()], ..Calibrate::default() }, "passage"),
    ] {
        let error = wanted.check().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(word), "{error}");
    }
    Calibrate::default().check().unwrap();
}
