use std::fs;
use std::path::PathBuf;

use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::error::ErrorKind;

#[derive(Deserialize)]
struct Pairs {
    queries: Vec<String>,
    documents: Vec<String>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cross_encoder")
}

fn pairs() -> Pairs {
    serde_json::from_str(&fs::read_to_string(fixtures().join("pairs.json")).unwrap()).unwrap()
}

fn values<const SIZE: usize, T>(file: &[u8], name: &str, read: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    tensor.data().chunks_exact(SIZE).map(|bytes| read(bytes.try_into().unwrap())).collect()
}

/// Logits and lengths of every pair are those of transformers, the cut ones' too; a pair's bits do not depend on the others.
#[test]
fn tiny_models_agree_with_transformers() {
    let Pairs { queries, documents } = pairs();
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    for name in ["bert", "roberta"] {
        let encoder = CrossEncoder::load(&fixtures().join(name)).unwrap();
        let file = fs::read(fixtures().join(name).join("expected.safetensors")).unwrap();
        let (logits, tokens) =
            (values(&file, "logits", f32::from_le_bytes), values(&file, "tokens", u32::from_le_bytes));
        assert!(tokens.iter().filter(|tokens| **tokens == 96).count() >= 4, "some are cut: {tokens:?}");
        let expected = logits.chunks_exact(documents.len()).zip(tokens.chunks_exact(documents.len()));
        for (query, (logits, tokens)) in queries.iter().zip(expected) {
            let ours = encoder.scores(query, &documents).unwrap();
            assert_eq!(ours.tokens, tokens.iter().sum::<u32>() as usize, "{name} {query:?}");
            for ((document, ours), theirs) in documents.iter().zip(&ours.logits).zip(logits) {
                assert!((ours - theirs).abs() < 1e-4, "{name} {query:?} {document:?}: {ours} and {theirs}");
                assert_eq!(encoder.scores(query, &[document]).unwrap().logits, [*ours]);
            }
        }
    }
}

#[test]
fn no_texts_have_no_scores() {
    let encoder = CrossEncoder::load(&fixtures().join("bert")).unwrap();
    assert_eq!(encoder.scores("a query", &[]).unwrap(), Scores { logits: Vec::new(), tokens: 0 });
}

/// A copy of a tiny model to damage.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(fixtures().join(name).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn refusal(folder: &Path) -> (ErrorKind, String) {
    let error = CrossEncoder::load(folder).unwrap_err();
    (error.kind(), error.to_string())
}

fn change(folder: &Path, key: &str, value: serde_json::Value) {
    let path = folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config[key] = value;
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn what_is_no_cross_encoder_is_refused_and_the_message_says_why() {
    for (key, value, kind, words) in [
        ("id2label", json!({"0": "no", "1": "yes"}), ErrorKind::UnsupportedModel, "2 labels"),
        ("id2label", json!(null), ErrorKind::UnsupportedModel, "2 labels"),
        ("model_type", json!("deberta-v2"), ErrorKind::UnsupportedModel, "deberta-v2"),
        ("hidden_act", json!("relu"), ErrorKind::UnsupportedModel, "relu"),
        ("position_embedding_type", json!("relative_key"), ErrorKind::UnsupportedModel, "relative_key"),
        ("max_position_embeddings", json!(1), ErrorKind::InvalidModel, "max_position_embeddings"),
        ("hidden_size", json!(18), ErrorKind::InvalidModel, "embeddings"),
        ("type_vocab_size", json!(1), ErrorKind::InvalidModel, "token_type"),
    ] {
        let folder = copy("bert");
        change(folder.path(), key, value);
        let (found, message) = refusal(folder.path());
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let folder = copy("roberta");
    change(folder.path(), "pad_token_id", json!(97));
    assert!(refusal(folder.path()).1.contains("max_position_embeddings"));
    // A body without a head, which a sentence encoder is.
    let embedder = fixtures().join("../embedding/tiny");
    let folder = copy("bert");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(embedder.join(file), folder.path().join(file)).unwrap();
    }
    change(folder.path(), "id2label", json!({"0": "LABEL_0"}));
    let (kind, message) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(message.contains("pooler.dense"), "{message}");
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(refusal(folder.path()).1.contains("config.json"));
}

/// A tokenizer that knows no pairs, or gives what the weights have no rows for.
#[test]
fn tokenizers_that_do_not_fit_are_refused_and_no_panic() {
    let folder = copy("bert");
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    tokenizer["post_processor"]["special_tokens"]["[SEP]"]["ids"] = json!([70_000]);
    fs::write(&path, tokenizer.to_string()).unwrap();
    assert!(refusal(folder.path()).1.contains("70000"));
    tokenizer["post_processor"] = json!(null);
    fs::write(&path, tokenizer.to_string()).unwrap();
    let (kind, message) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(message.contains("tokenizer"), "{message}");
}
