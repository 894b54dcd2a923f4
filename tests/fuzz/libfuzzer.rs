//! One property under libFuzzer, which mutates what reaches new code. `RAGSTONE_FUZZ_TARGET` names it.

#![no_main]

#[path = "kernels.rs"]
mod properties;

use std::sync::LazyLock;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/tests/fixtures");

static PROPERTY: LazyLock<fn(&[u8]) -> bool> =
    LazyLock::new(|| match std::env::var("RAGSTONE_FUZZ_TARGET").unwrap_or_default().as_str() {
        "config" => properties::config,
        "template" => properties::template,
        "message" => properties::message,
        "text" => properties::text,
        "gguf" => properties::gguf,
        other => panic!("RAGSTONE_FUZZ_TARGET is '{other}'; use config, template, message, text or gguf"),
    });

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    PROPERTY(bytes);
});
