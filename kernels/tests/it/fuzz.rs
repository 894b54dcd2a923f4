//! Model folders of any content: see `tests/fuzz`.

#[path = "../../../tests/fuzz/driver.rs"]
mod driver;
#[path = "../../../tests/fuzz/kernels.rs"]
mod properties;

use std::path::{Path, PathBuf};

use self::driver::fuzz;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// The files of this name in the folders of fixtures.
fn fixtures(kind: &str, name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(FIXTURES).join(kind);
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path().join(name)).collect();
    files.sort();
    let found: Vec<Vec<u8>> = files.iter().filter_map(|file| std::fs::read(file).ok()).collect();
    assert!(!found.is_empty());
    found
}

#[test]
fn any_config_is_refused_or_makes_sense() {
    fuzz("config", &fixtures("models", "config.json"), properties::config);
}

#[test]
fn any_template_is_refused_or_renders() {
    fuzz("template", &fixtures("chat", "chat_template.jinja"), properties::template);
}

#[test]
fn any_message_stands_in_the_prompt_as_it_was_said() {
    fuzz("message", &[b"How many boats?".to_vec(), "{{ bos_token }}{% for %}né\u{1F600}".into()], properties::message);
}

#[test]
fn any_gguf_file_is_refused_or_makes_sense() {
    let names = ["yarn", "mixtral", "phi3_longrope", "tokenizers/llama", "tokenizers/qwen2"];
    let seeds = names.map(|name| std::fs::read(format!("{FIXTURES}/gguf/{name}.gguf")).unwrap());
    fuzz("gguf", &seeds, properties::gguf);
}

#[test]
fn any_text_has_ids_and_comes_back_from_them() {
    let texts = ["How many boats?", "<|im_start|>user\n", "né\u{1F600}\u{301} \u{0}\t 漢字", "<|endoftext|>"];
    fuzz("text", &texts.map(|text| text.as_bytes().to_vec()), properties::text);
}
