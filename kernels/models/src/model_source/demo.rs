//! The demo model inside this program.

use super::bundle::{Bundle, files};

pub const DEMO: Bundle = Bundle {
    name: "demo",
    what: "the demo model",
    files: files![
        "demo-model/checkpoint":
        "MODEL_CARD.md",
        "config.json",
        "calibration.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ],
};
