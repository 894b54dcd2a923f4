#[path = "../../../tests/outside/mod.rs"]
mod outside;

use std::fs;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertModel;
use safetensors::SafeTensors;

use self::outside::from_outside;
use super::*;
use crate::error::ErrorKind;
use crate::numa::tests::divided;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/embedding")
}

fn texts() -> Vec<String> {
    serde_json::from_str(&fs::read_to_string(fixtures().join("texts.json")).unwrap()).unwrap()
}

fn reference(file: &str) -> Vec<Vec<f32>> {
    let bytes = fs::read(fixtures().join(file)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let vectors = tensors.tensor("vectors").unwrap();
    let values: Vec<f32> = vectors.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    values.chunks_exact(vectors.shape()[1]).map(<[f32]>::to_vec).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Both precisions, beside transformers and each other; the one in f32.
fn check(folder: &Path, expected: &str) -> SentenceEncoder {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let expected = reference(expected);
    let [exact, rounded] = [Precision::F32, Precision::Bf16].map(|precision| {
        let encoder = SentenceEncoder::load_in(folder, precision).unwrap();
        let vectors = encoder.encode(&texts).unwrap();
        assert_eq!(vectors.len(), expected.len());
        for ((text, ours), theirs) in texts.iter().zip(&vectors).zip(&expected) {
            assert_eq!(ours.len(), encoder.dimension());
            let likeness = cosine(ours, theirs);
            println!("{precision:?}: cosine {likeness:.9} against transformers");
            assert!(likeness >= 0.9999, "{precision:?}: cosine {likeness} for {text:?}");
            let length: f32 = ours.iter().map(|v| v * v).sum();
            assert!((length - 1.0).abs() < 1e-5, "length {length} for {text:?}");
        }
        // A vector does not depend on what else is encoded with it.
        for (text, vector) in texts.iter().zip(&vectors) {
            assert_eq!(encoder.encode(&[text]).unwrap()[0], *vector);
        }
        encoder
    });
    // What one has stored the other finds.
    assert_eq!(exact.identity(), rounded.identity());
    exact
}

fn candle_config(folder: &Path) -> candle_transformers::models::bert::Config {
    serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap_or(MINILM_CONFIG.into())).unwrap()
}

/// Candle's BERT is the slow reference.
fn check_candle(folder: &Path, encoder: &SentenceEncoder) {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let model = BertModel::load(weights, &candle_config(folder)).unwrap();
    for (text, ours) in texts.iter().zip(encoder.encode(&texts).unwrap()) {
        let ids = Tensor::new(encoder.text.sequence(text).unwrap().ids, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let hidden = model.forward(&ids, &ids.zeros_like().unwrap(), None).unwrap();
        let likeness = cosine(&ours, &hidden.mean(1).unwrap().to_vec2().unwrap()[0]);
        println!("cosine {likeness:.9} against candle");
        assert!(likeness >= 0.99999, "cosine {likeness} for {text:?}");
    }
}

#[test]
fn a_tiny_model_agrees_with_transformers() {
    let folder = fixtures().join("tiny");
    check_candle(&folder, &check(&folder, "tiny/expected.safetensors"));
}

/// Other positions and names, the first token's state, and the length that its files say.
#[test]
fn an_xlm_roberta_agrees_with_transformers() {
    let encoder = check(&fixtures().join("roberta"), "roberta/expected.safetensors");
    assert_eq!(encoder.max_tokens(), 48);
}

#[test]
fn minilm_agrees_with_transformers() {
    if let Some(folder) = from_outside("RAGSTONE_EMBEDDER", "folder of all-MiniLM-L6-v2") {
        let folder = Path::new(&folder);
        check_candle(folder, &check(folder, "minilm.safetensors"));
    }
}

/// What both precisions say of each other is what decides which passage is nearer: similarities, and who is among the first.
#[test]
fn minilm_in_bf16_finds_what_it_finds_in_f32() {
    let Some(folder) = from_outside("RAGSTONE_EMBEDDER", "folder of all-MiniLM-L6-v2") else { return };
    let [exact, rounded] = [Precision::F32, Precision::Bf16]
        .map(|precision| SentenceEncoder::load_in(Path::new(&folder), precision).unwrap());
    let mut rng = fastrand::Rng::with_seed(3);
    let words: Vec<String> =
        texts().iter().flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    let mut text = |most: usize| {
        let len = 3 + rng.usize(..most);
        (0..len).map(|_| words[rng.usize(..words.len())].as_str()).collect::<Vec<_>>().join(" ")
    };
    let (passages, questions): (Vec<String>, Vec<String>) =
        ((0..120).map(|_| text(150)).collect(), (0..40).map(|_| text(12)).collect());
    let encode = |encoder: &SentenceEncoder, texts: &[String]| {
        encoder.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let nearest = |question: &[f32], passages: &[Vec<f32>]| {
        let mut order: Vec<usize> = (0..passages.len()).collect();
        order.sort_by(|a, b| dot(question, &passages[*b]).total_cmp(&dot(question, &passages[*a])));
        order.truncate(10);
        order
    };
    let [ours, theirs] = [&exact, &rounded].map(|encoder| (encode(encoder, &questions), encode(encoder, &passages)));
    let (mut least, mut furthest, mut same, mut mixed) = (1.0_f64, 0.0_f32, 0, 0);
    for (a, b) in ours.0.iter().chain(&ours.1).zip(theirs.0.iter().chain(&theirs.1)) {
        least = least.min(cosine(a, b));
    }
    for (a, b) in ours.0.iter().zip(&theirs.0) {
        for (p, q) in ours.1.iter().zip(&theirs.1) {
            furthest = furthest.max((dot(a, p) - dot(b, q)).abs()).max((dot(a, p) - dot(b, p)).abs());
        }
        let first = nearest(a, &ours.1);
        same += nearest(b, &theirs.1).iter().filter(|index| first.contains(index)).count();
        // A question of one machine over passages of another.
        mixed += nearest(b, &ours.1).iter().filter(|index| first.contains(index)).count();
    }
    let of = 10 * questions.len();
    println!(
        "cosine {least:.6} at least, similarities {furthest:.5} apart at most, {same} and {mixed} of {of} among the first ten"
    );
    assert!(least >= 0.9999, "{least}");
    assert!(furthest < 0.01, "{furthest}");
    // Random words are harder to tell apart than texts.
    assert!(same * 100 >= of * 95 && mixed * 100 >= of * 95, "{same} and {mixed} of {of}");
}

#[test]
fn bf16_is_taken_where_it_is_multiplied_faster() {
    use crate::simd::Path as Kernels;
    for (path, precision) in [
        (Kernels::Amx, Precision::Bf16),
        (Kernels::Avx512Vnni, Precision::F32),
        (Kernels::Avx512, Precision::F32),
        (Kernels::Avx2, Precision::F32),
        (Kernels::Portable, Precision::F32),
    ] {
        assert_eq!(fastest(&Paths::all(path)), precision, "{path:?}");
    }
}

#[test]
fn no_texts_are_no_vectors() {
    let encoder = SentenceEncoder::load(&fixtures().join("tiny")).unwrap();
    assert!(encoder.encode(&[]).unwrap().is_empty());
}

#[test]
fn lengths_are_counted_before_the_cut() {
    let encoder = SentenceEncoder::load(&fixtures().join("tiny")).unwrap();
    assert_eq!(encoder.token_count("").unwrap(), 2);
    let long = texts().into_iter().max_by_key(String::len).unwrap();
    assert!(encoder.token_count(&long).unwrap() > MAX_TOKENS);
    let ids = |text: &str| encoder.text.sequence(text).unwrap().ids;
    assert_eq!(ids(&long).len(), MAX_TOKENS);
    assert_eq!(ids(&long).last(), ids("").last());
}

/// A copy of the tiny model to damage.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(fixtures().join("tiny").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn refusal(folder: &Path) -> (ErrorKind, String) {
    let error = SentenceEncoder::load(folder).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn identity_follows_the_files() {
    let folder = copy();
    let first = SentenceEncoder::load(folder.path()).unwrap().identity().to_owned();
    assert!(first.starts_with("bert-16-"));
    assert_eq!(SentenceEncoder::load(&fixtures().join("tiny")).unwrap().identity(), first);
    // What would give other vectors has another name, what says the same has not.
    let said = folder.path().join("sentence_bert_config.json");
    for (length, is_same) in [(256, true), (128, false)] {
        fs::write(&said, format!(r#"{{"max_seq_length": {length}}}"#)).unwrap();
        assert_eq!(SentenceEncoder::load(folder.path()).unwrap().identity() == first, is_same);
    }
    fs::remove_file(&said).unwrap();
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_ne!(SentenceEncoder::load(folder.path()).unwrap().identity(), first);
}

#[test]
fn tensors_may_be_named_after_the_body() {
    let folder = copy();
    let path = folder.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let renamed = tensors.into_iter().map(|(name, tensor)| (format!("bert.{name}"), tensor)).collect();
    candle_core::safetensors::save(&renamed, &path).unwrap();
    let encode = |folder: &Path| SentenceEncoder::load(folder).unwrap().encode(&["a text"]).unwrap();
    assert_eq!(encode(folder.path()), encode(&fixtures().join("tiny")));
}

#[test]
fn other_activations_are_refused() {
    let folder = copy();
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"gelu\"", "\"relu\"")).unwrap();
    assert_eq!(refusal(folder.path()).0, ErrorKind::UnsupportedModel);
    fs::write(&config, text.replace("\"num_attention_heads\": 2", "\"num_attention_heads\": 3")).unwrap();
    assert_eq!(refusal(folder.path()).0, ErrorKind::InvalidModel);
}

#[test]
fn damaged_folders_say_what_to_do() {
    let folder = copy();
    let weights = folder.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
    assert!(refusal(folder.path()).1.contains("truncated: fetch it again"));
    fs::write(&weights, &bytes).unwrap();

    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")).unwrap();
    let (kind, message) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(message.contains("encoder.layer.2"), "{message}");
    fs::write(&config, text.replace("\"bert\"", "\"mpnet\"")).unwrap();
    assert_eq!(refusal(folder.path()).0, ErrorKind::UnsupportedModel);
    fs::write(&config, "{}").unwrap();
    assert!(refusal(folder.path()).1.contains("config.json"));
    // Without one it is taken for MiniLM, which these weights are not.
    fs::remove_file(&config).unwrap();
    assert_eq!(refusal(folder.path()).0, ErrorKind::InvalidModel);
    fs::write(&config, &text).unwrap();

    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    let pooling = folder.path().join("1_Pooling/config.json");
    for other in [
        r#"{"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": false}"#,
        r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#,
    ] {
        fs::write(&pooling, other).unwrap();
        assert_eq!(refusal(folder.path()).0, ErrorKind::UnsupportedModel);
    }
    fs::remove_file(&pooling).unwrap();
    fs::write(folder.path().join("modules.json"), r#"[{"type": "sentence_transformers.models.Dense"}]"#).unwrap();
    assert!(refusal(folder.path()).1.contains("`Dense`"));
    fs::remove_file(folder.path().join("modules.json")).unwrap();

    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(refusal(folder.path()).1.contains("tokenizer.json"));
}

/// A copy of the tiny model with another `1_Pooling/config.json`.
fn pooled(config: &str) -> tempfile::TempDir {
    let folder = copy();
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    fs::write(folder.path().join("1_Pooling/config.json"), config).unwrap();
    folder
}

/// Since 5.4 sentence-transformers names the mode where it had a flag for each.
#[test]
fn the_pooling_is_named_or_flagged() {
    let identity = |config: &str| SentenceEncoder::load(pooled(config).path()).unwrap().identity().to_owned();
    let mean = SentenceEncoder::load(copy().path()).unwrap().identity().to_owned();
    let cls = identity(r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#);
    assert_ne!(mean, cls);
    for (config, expected) in [
        (r#"{"embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": true}"#, &mean),
        (r#"{"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": true}"#, &cls),
        (r#"{"pooling_mode": ["cls"]}"#, &cls),
        (r#"{"pooling_mode": "cls", "pooling_mode_mean_tokens": true}"#, &cls),
        (r#"{"pooling_mode": "mean", "pooling_mode_max_tokens": true}"#, &mean),
        (r#"{"pooling_mode": null, "pooling_mode_cls_token": true}"#, &cls),
        (r#"{"word_embedding_dimension": 16}"#, &mean),
    ] {
        assert_eq!(identity(config), *expected, "{config}");
    }
    let encoder = SentenceEncoder::load(pooled(r#"{"pooling_mode": "cls"}"#).path()).unwrap();
    let rows: Vec<f32> = [[1.0_f32; 16], [-1.0; 16]].concat();
    assert_eq!(encoder.pool(&rows), [0.25; 16], "the first row, at length 1");
    for other in [r#""max""#, r#""lasttoken""#, r#""weightedmean""#, r#"["cls", "mean"]"#, "[]", "1"] {
        let folder =
            pooled(&format!(r#"{{"embedding_dimension": 16, "pooling_mode": {other}, "include_prompt": true}}"#));
        let (kind, message) = refusal(folder.path());
        assert_eq!(kind, ErrorKind::UnsupportedModel, "{other}");
        assert!(message.contains("1_Pooling"), "{message}");
    }
}

#[test]
fn a_prompt_that_is_to_be_left_out_of_the_vector_is_refused() {
    let folder = pooled(r#"{"pooling_mode": "mean", "include_prompt": false}"#);
    let encoder = SentenceEncoder::load(folder.path()).unwrap();
    let query = Prompts { query: "ask ".into(), passage: String::new() };
    let error = encoder.with_prompts(query).unwrap_err();
    assert!(error.kind() == ErrorKind::UnsupportedModel && error.to_string().contains("include_prompt"), "{error}");
    fs::write(folder.path().join("config_sentence_transformers.json"), r#"{"prompts": {"document": "On day "}}"#)
        .unwrap();
    assert_eq!(refusal(folder.path()).0, ErrorKind::UnsupportedModel);
}

/// Since 5.4 the length stands in the tokenizer's configuration, where the tokenizer of all-MiniLM-L6-v2 has another one than the model.
#[test]
fn the_length_is_the_models_or_its_tokenizers() {
    let length = |files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        stated::read_max_tokens(folder.path()).unwrap()
    };
    let (sentence, tokenizer, modules) = ("sentence_bert_config.json", "tokenizer_config.json", "modules.json");
    let task = r#"{"transformer_task": "feature-extraction"}"#;
    let cases: [(&[(&str, &str)], usize); 9] = [
        (&[], 256),
        (&[(tokenizer, r#"{"model_max_length": 512}"#)], 256),
        (&[(sentence, r#"{"max_seq_length": 128}"#), (tokenizer, r#"{"model_max_length": 512}"#)], 128),
        (&[(sentence, task), (tokenizer, r#"{"model_max_length": 384}"#)], 384),
        (&[(sentence, r#"{"max_seq_length": null}"#), (tokenizer, r#"{"model_max_length": 384}"#)], 384),
        (&[(modules, "[]"), (tokenizer, r#"{"model_max_length": 8192}"#)], 512),
        (&[(sentence, task), (tokenizer, r#"{"model_max_length": 1000000000000000019884624838656}"#)], 512),
        (&[(sentence, task), (tokenizer, r#"{"model_max_length": 0}"#)], 512),
        (&[(sentence, task)], 512),
    ];
    for (files, expected) in cases {
        assert_eq!(length(files), expected, "{files:?}");
    }
    // A model of fewer positions reads as many as it has.
    let folder = copy();
    fs::write(folder.path().join(sentence), task).unwrap();
    assert_eq!(SentenceEncoder::load(folder.path()).unwrap().max_tokens(), 260);
}

#[test]
fn an_encoder_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<SentenceEncoder>();
    shared::<crate::tokenizer::Tokenizer>();
    shared::<crate::tokenizer::StreamDecoder>();
    shared::<crate::chat::ChatTemplate>();
}

#[test]
fn sizes_that_no_model_has_are_named() {
    let whole: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(fixtures().join("tiny/config.json")).unwrap()).unwrap();
    for key in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
        "layer_norm_eps",
    ] {
        for value in [serde_json::json!(0), (-1).into(), (1u64 << 60).into(), u64::MAX.into(), 1e300.into()] {
            let folder = copy();
            let mut config = whole.clone();
            config[key] = value.clone();
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            match SentenceEncoder::load(folder.path()) {
                // It divides by more than nothing, which is what it is for.
                Ok(encoder) => assert!(key == "layer_norm_eps" && encoder.encode(&["a"]).is_ok()),
                Err(error) => assert!(error.to_string().contains("config.json"), "{key} {value}: {error}"),
            }
        }
    }
}

/// The ids that stand around a text are stated beside the vocabulary, and need not be in it.
#[test]
fn ids_beyond_the_embeddings_are_refused_and_no_panic() {
    let folder = copy();
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let special = tokenizer["post_processor"]["special_tokens"].as_object_mut().unwrap();
    for token in special.values_mut() {
        token["ids"] = serde_json::json!([u32::MAX]);
    }
    fs::write(&path, tokenizer.to_string()).unwrap();
    let (kind, message) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(message.contains("4294967295"), "{message}");
}

/// The library panics over them.
#[test]
fn tokenizers_that_contradict_themselves_are_refused_and_no_panic() {
    let folder = copy();
    let path = folder.path().join("tokenizer.json");
    let whole: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut undescribed = whole.clone();
    undescribed["post_processor"]["special_tokens"] = serde_json::json!({});
    let mut merged = whole;
    merged["post_processor"] = serde_json::Value::Null;
    merged["model"] = serde_json::json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "##", "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": [["a", "b"]],
    });
    for (tokenizer, words) in [(undescribed, "contradicts itself"), (merged, "merges do not fit")] {
        fs::write(&path, tokenizer.to_string()).unwrap();
        let (kind, message) = refusal(folder.path());
        assert_eq!(kind, ErrorKind::InvalidModel);
        assert!(message.contains("tokenizer.json") && message.contains(words), "{message}");
    }
}

/// What a model's files want before questions and passages is read with them, and names other vectors.
#[test]
fn prompts_stand_before_texts() {
    let folder = copy();
    let plain = SentenceEncoder::load(folder.path()).unwrap();
    let stated = r#"{"prompts": {"query": "How many ", "document": "On day "}, "default_prompt_name": null}"#;
    fs::write(folder.path().join("config_sentence_transformers.json"), stated).unwrap();
    let prompted = SentenceEncoder::load(folder.path()).unwrap();
    let encode = |text: &str| plain.encode(&[text]).unwrap().remove(0);
    assert_eq!(prompted.encode_query("ships?").unwrap(), encode("How many ships?"));
    assert_eq!(prompted.encode_passages(&["3", "4"]).unwrap(), [encode("On day 3"), encode("On day 4")]);
    assert_eq!(prompted.encode(&["3"]).unwrap(), [encode("3")]);
    assert_ne!(prompted.identity(), plain.identity());
    // Stored vectors do not depend on what stands before questions.
    let query = Prompts { query: "ask ".into(), passage: String::new() };
    let other = prompted.with_prompts(query).unwrap();
    assert_eq!((other.identity(), other.encode_query("x").unwrap()), (plain.identity(), encode("ask x")));
    let long = Prompts { query: "gull ".repeat(200), passage: String::new() };
    let error = other.with_prompts(long).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("before questions"), "{error}");
}

#[test]
fn numa_nodes_change_no_bits_of_a_vector() {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let with = |nodes| {
        divided(nodes).install(|| SentenceEncoder::load(&fixtures().join("tiny")).unwrap().encode(&texts).unwrap())
    };
    let one = with(1);
    assert!([2, 3].into_iter().all(|nodes| with(nodes) == one));
}
