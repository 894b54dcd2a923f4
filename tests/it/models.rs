//! Models that want to be blended otherwise than the demo model does: calibration finds for each what keeps its answers, where one setting
//! for all does not. How they were trained: ops/demo-model/README.md.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::Folder;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

/// A folder name of `tests/models`, the layer that chooses in the paper and in the demo model's calibration.
const FIXED_LAYERS: [&str; 2] = ["1", "2"];

/// Calibrates a model, and says what was chosen, of the two rules that win: all ten take minutes.
fn calibrated(folder: &Folder, model: &str) -> Value {
    let questions = file("calibration.json");
    let rules = "cacheblend,critical-layer";
    let arguments = [
        "calibrate",
        questions.to_str().unwrap(),
        "--model",
        model,
        "--selector",
        rules,
        "--budget",
        "0.015",
        "--prompts",
        "1000",
        "--json",
    ];
    folder.json(&arguments)["chosen"].clone()
}

/// F1 of blending by rule, layer and ratio, below F1 of a full prefill.
fn lost(folder: &Folder, model: &str, rule: &str, layer: &str, ratio: &str) -> f64 {
    let questions = file("questions.json");
    let report = folder.json(&[
        "eval",
        questions.to_str().unwrap(),
        "--model",
        model,
        "--mode",
        "full,blend",
        "--selector",
        rule,
        "--layer",
        layer,
        "--ratio",
        ratio,
        "--json",
    ]);
    let f1 = |mode: usize| report["modes"][mode]["f1"].as_f64().unwrap();
    assert!(f1(0) > 0.85, "the model answers: {report}");
    f1(0) - f1(1)
}

/// What calibration finds loses three answers at most of a hundred about worlds that it never saw (docs/results/fusion.md has three hundred); a
/// fixed layer, at 15 %, loses many on one model at least.
#[test]
fn calibration_finds_what_each_model_needs() {
    let mut fixed = [0.0_f64; FIXED_LAYERS.len()];
    let mut found = Vec::new();
    for name in ["deep", "wide"] {
        let (folder, model) = (Folder::new(), file(name));
        let model = model.to_str().unwrap();
        let chosen = calibrated(&folder, model);
        let rule = chosen["selection"]["rule"].as_str().unwrap_or_else(|| panic!("{name}: nothing was found"));
        let (layer, ratio) = (chosen["selection"]["layer"].to_string(), chosen["ratio"].to_string());
        let off = lost(&folder, model, rule, &layer, &ratio);
        assert!(off <= 0.03, "{name} loses {off} by {chosen}");
        for (worst, layer) in fixed.iter_mut().zip(FIXED_LAYERS) {
            *worst = worst.max(lost(&folder, model, "cacheblend", layer, "0.15"));
        }
        found.push(format!("{rule} {layer}"));
    }
    assert!(fixed.iter().all(|lost| *lost > 0.1), "one setting would do: {fixed:?}");
    assert_ne!(found[0], found[1]);
}
