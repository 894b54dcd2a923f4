//! GGUF files: the same bits as the same weights in safetensors, the log-probabilities of llama.cpp, the token ids of the tokenizers
//! that their vocabularies were trained with. `ops/fixtures/make_gguf.py` made the files.

use std::fs;
use std::path::{Path, PathBuf};

use ragstone_kernels::ErrorKind;
use ragstone_kernels::chat::calls::CallForm;
use ragstone_kernels::chat::{ChatMessage, Date, Told};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::gguf::Gguf;
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::{LoadOptions, Model};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::fixtures::{Expected, floats, folder, integers};
use crate::forward::{Sequence, counted};

/// Those that the tree has as folders, too.
const TWINS: [&str; 17] = [
    "gemma3_usual",
    "granite",
    "granite_4_dense",
    "llama_bf16",
    "llama_biases",
    "llama_f16",
    "llama_gqa_tied",
    "mixtral",
    "mixtral_bf16",
    "phi3_longrope",
    "phi3_partial",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "rope_linear",
    "rope_llama3",
    "smollm3_fourth",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf").join(name)
}

fn load(path: &Path, weights: Option<WeightFormat>) -> Model {
    let options = LoadOptions {
        kv_dtype: Some(KvDtype::F32),
        weights,
        compute: Some(ComputeDtype::F32),
        adapter: None,
        progress: None,
    };
    Model::load(path, options).unwrap()
}

fn logits(model: &Model, tokens: &[u32]) -> Matrix {
    Sequence::new(model, tokens.len()).append(tokens, &counted(tokens.len()))
}

/// The prompt, and what others compute for it.
fn expected(name: &str, what: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = fs::read(path(&format!("{name}.expected.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    (integers(&tensors, "tokens"), floats(&tensors, what))
}

fn greatest_difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
    differences.map(|d| if d.is_nan() { f32::INFINITY } else { d }).fold(0.0, f32::max)
}

fn log_softmax(logits: &Matrix) -> Vec<f32> {
    let row = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let log = sum.ln() as f32 + most;
        row.iter().map(|logit| logit - log).collect::<Vec<_>>()
    };
    logits.as_slice().chunks(logits.cols()).flat_map(row).collect()
}

/// A copy of a file with each of `from` replaced by as many bytes.
fn edited(name: &str, from: &[u8], to: &[u8]) -> tempfile::NamedTempFile {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(path(name)).unwrap();
    let found: Vec<usize> = (0..bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    assert!(!found.is_empty(), "{} in {name}", from.escape_ascii());
    found.into_iter().for_each(|at| bytes[at..at + from.len()].copy_from_slice(to));
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    fs::write(file.path(), bytes).unwrap();
    file
}

/// What everything that a start asks of a file says first.
fn refusal(path: &Path) -> (ErrorKind, String) {
    let all = || {
        let files = ModelFiles::open(path)?;
        files.tokenizer()?;
        files.chat_template()?;
        Model::from_files(&files, LoadOptions::default())
    };
    let error = all().expect_err("the file should be refused");
    let text = error.to_string();
    assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "no name in {text}");
    (error.kind(), text)
}

#[test]
fn the_same_weights_give_the_same_bits() {
    for name in TWINS {
        let tokens = Expected::of(name).tokens;
        for weights in [WeightFormat::Stored, WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4] {
            let [file, folder] = [path(&format!("{name}.gguf")), folder(name)].map(|path| load(&path, Some(weights)));
            let [file, folder] = [&file, &folder].map(|model| logits(model, &tokens));
            if name == "rope_llama3" {
                // The file has factors where the folder has the rule they follow from.
                assert!(greatest_difference(file.as_slice(), folder.as_slice()) < 1e-4, "{name} {weights:?}");
            } else {
                assert_eq!(file.as_slice(), folder.as_slice(), "{name} {weights:?}");
            }
        }
    }
}

#[test]
fn the_metadata_say_what_config_json_says() {
    for name in TWINS {
        let mut stated = ModelFiles::open(&path(&format!("{name}.gguf"))).unwrap().config().unwrap();
        let mut expected = ModelConfig::from_folder(&folder(name)).unwrap();
        // The converter adds the one, and writes Granite 4.0 as Granite.
        expected.norm_weights_less_one = false;
        expected.architecture = if name == "granite_4_dense" { stated.architecture } else { expected.architecture };
        // The file has factors where the folder has the rule they follow from.
        if ["rope_llama3", "phi3_longrope"].contains(&name) {
            let [(ours, factor), (theirs, other)] = [&stated, &ModelConfig::from_folder(&folder(name)).unwrap()]
                .map(|config| config.rope().unwrap().inverse_frequencies(config.rotated));
            assert!((factor - other).abs() < 1e-6, "{name}: {factor}, {other}");
            expected.positions = stated.positions.clone();
            assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()), "{ours:?} {theirs:?}");
        }
        // Which token ends an answer is the tokenizer's matter here; Gemma's configuration has one of its own.
        [&mut stated, &mut expected].into_iter().for_each(|config| config.eos_token_ids.clear());
        assert_eq!(stated, expected, "{name}");
    }
}

#[test]
fn log_probabilities_are_llama_cpp_s() {
    // llama.cpp multiplies f16, bf16 and quantized weights with activations that it rounds to as few bits, and has its GELU from a table in f16.
    let tolerances =
        [("gemma3_usual", 0.02), ("llama_bf16", 0.1), ("mixtral_bf16", 0.1), ("llama_f16", 0.03), ("mixed", 0.3)];
    for name in TWINS.into_iter().chain(["yarn", "mixed"]) {
        let (tokens, theirs) = expected(name, "llama_cpp");
        let ours = log_softmax(&logits(&load(&path(&format!("{name}.gguf")), Some(WeightFormat::Stored)), &tokens));
        let tolerance = tolerances.iter().find(|(other, _)| *other == name).map_or(1e-4, |(_, tolerance)| *tolerance);
        let difference = greatest_difference(&ours, &theirs);
        println!("{name}: {difference:.1e}");
        assert!(difference < tolerance, "{name}: {difference}");
        let pairs = ours.iter().zip(&theirs);
        let divergence: f32 =
            pairs.map(|(ours, theirs)| theirs.exp() * (theirs - ours)).sum::<f32>() / tokens.len() as f32;
        assert!(divergence < 1e-3, "{name}: {divergence}");
    }
}

#[test]
fn logits_are_transformers_of_what_gguf_py_unpacks() {
    for name in ["yarn", "mixed"] {
        let (tokens, theirs) = expected(name, "logits");
        let ours = logits(&load(&path(&format!("{name}.gguf")), Some(WeightFormat::F32)), &tokens);
        let difference = greatest_difference(ours.as_slice(), &theirs);
        println!("{name}: {difference:.1e}");
        assert!(difference < 1e-4, "{name}: {difference}");
    }
}

/// The blocks of `mixed` stay as they are, but for gate and up, which are of two types and are rounded to 8 bits: what else differs from the same
/// weights in f32 is that activations have 8 bits.
#[test]
fn quantized_weights_stay_as_they_are_unless_asked_otherwise() {
    let file = path("mixed.gguf");
    let model = Model::load(&file, LoadOptions::default()).unwrap();
    assert_eq!((model.arithmetic().weights, model.kv_layout().dtype), (WeightFormat::Native, KvDtype::F16));
    assert!(
        model.arithmetic().to_string().starts_with("weights native-3, "),
        "another fingerprint than of other forms"
    );
    let sizes =
        [Some(WeightFormat::F32), Some(WeightFormat::Bf16), None].map(|weights| load(&file, weights).size_in_bytes());
    // Gate and up are of two types, which takes 8.5 bits a weight; most of what else there is has 6.625, as Q6_K.
    assert!(sizes[0] > sizes[1] && 10 * sizes[2] < 6 * sizes[1], "{sizes:?}");
    let (tokens, theirs) = expected("mixed", "logits");
    let vocab = theirs.len() / tokens.len();
    let spread = (theirs.iter().map(|logit| logit * logit).sum::<f32>() / theirs.len() as f32).sqrt();
    let mut errors = Vec::new();
    for weights in [None, Some(WeightFormat::Q8), Some(WeightFormat::Q4)] {
        let ours = logits(&load(&file, weights), &tokens);
        let squares: f32 = ours.as_slice().iter().zip(&theirs).map(|(a, b)| (a - b) * (a - b)).sum();
        let error = (squares / theirs.len() as f32).sqrt();
        let top = |row: &[f32]| (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        let same = ours.as_slice().chunks(vocab).zip(theirs.chunks(vocab)).filter(|(a, b)| top(a) == top(b)).count();
        println!("{weights:?}: error {error:.1e} of {spread:.1}, {same} of {} greatest logits", tokens.len());
        let most = if weights == Some(WeightFormat::Q4) { 0.25 } else { 0.05 } * spread;
        assert!(error > 0.0 && error < most, "{weights:?}: {error} of {spread}");
        errors.push(error);
    }
    assert!(errors[0] < 0.03 * spread && errors[0] < errors[1], "{errors:?} of {spread}");
}

#[test]
fn token_ids_are_those_of_the_tokenizer_that_was_trained() {
    for name in ["gpt-2", "gpt-4o", "llama", "llama-bpe", "qwen2", "refact", "smollm", "tekken"] {
        let files = ModelFiles::open(&path(&format!("tokenizers/{name}.gguf"))).unwrap();
        let tokenizer = files.tokenizer().unwrap();
        let cases: Value =
            serde_json::from_slice(&fs::read(path(&format!("tokenizers/{name}.json"))).unwrap()).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() > 8);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids = |key: &str| -> Vec<u32> {
                case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
            };
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids("ids"), "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids("ids_with_special"), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids("ids")).unwrap(), case["decoded"].as_str().unwrap(), "{name}: {text:?}");
        }
        let bos =
            (name == "llama").then_some("<s>").or(["llama-bpe", "tekken"].contains(&name).then_some("<|endoftext|>"));
        assert_eq!(tokenizer.bos_id().map(|id| tokenizer.token(id).unwrap()).as_deref(), bos, "{name}");
        let ends: Vec<String> = tokenizer.eos_ids().iter().map(|id| tokenizer.token(*id).unwrap()).collect();
        let expected: &[&str] = if name == "llama" { &["</s>"] } else { &["<|endoftext|>", "<|im_end|>"] };
        assert_eq!(ends, expected, "{name}");
        // Text from elsewhere cannot become a control token.
        let hostile = "a<|im_end|> b</s>";
        let ids = tokenizer.encode_text(hostile).unwrap();
        assert!(!ids.iter().any(|id| tokenizer.control_ids().contains(id)), "{name}: {ids:?}");
        // SentencePiece puts a space before each of the two halves that a control token's text is cut into.
        let is_prefixed = name == "llama";
        let decoded = tokenizer.decode(&ids).unwrap();
        assert_eq!(if is_prefixed { decoded.replace("< /", "</") } else { decoded }, hostile, "{name}");
    }
}

#[test]
fn conversations_become_prompts_by_the_file_s_template() {
    let prompt = |name: &str| {
        let template = Gguf::open(&path(name)).unwrap().chat_template().unwrap()?;
        let messages = [ChatMessage::new("user", "Hello"), ChatMessage::new("user", "Bye")];
        Some(template.render(&messages, true, Date::from_unix_ms(0)).unwrap())
    };
    let expected = "<|im_start|>Hello<|im_end|><|im_start|>Bye<|im_end|>";
    assert_eq!(prompt("tokenizers/qwen2.gguf").as_deref(), Some(expected));
    assert_eq!(prompt("tokenizers/llama.gguf").as_deref(), Some("<s>[INST] Hello [/INST][INST] Bye [/INST]"));
    assert_eq!(prompt("yarn.gguf"), None);
}

/// A copy of a file whose metadata have one pair more.
fn with_pair(name: &str, key: &str, kind: u32, value: &[u8]) -> tempfile::NamedTempFile {
    let pair = |key: &str, kind: u32, value: &[u8]| {
        [&(key.len() as u64).to_le_bytes(), key.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    let mut more = pair(key, kind, value);
    // Another one fills up, so that tensors stay aligned: 8 bytes of length, a name, a kind, the length of a text, the text.
    let filler = (more.len() + 8 + 1 + 4 + 8).next_multiple_of(32) - (more.len() + 8 + 1 + 4 + 8);
    more.extend(pair("~", 8, &[&(filler as u64).to_le_bytes()[..], &vec![b' '; filler]].concat()));
    let mut bytes = fs::read(path(name)).unwrap();
    let pairs = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 2;
    bytes[16..24].copy_from_slice(&pairs.to_le_bytes());
    bytes.splice(24..24, more);
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn conversations_with_tools_have_a_template_of_their_own() {
    let source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>";
    let value = [&(source.len() as u64).to_le_bytes()[..], source.as_bytes()].concat();
    let file = with_pair("tokenizers/qwen2.gguf", "tokenizer.chat_template.tool_use", 8, &value);
    let template = Gguf::open(file.path()).unwrap().chat_template().unwrap().unwrap();
    assert_eq!(template.call_form(), Some(CallForm::Hermes));
    let messages = [ChatMessage::new("user", "Hello")];
    let tool = serde_json::json!({ "type": "function", "name": "find" });
    let told = Told { today: Date::from_unix_ms(0), enable_thinking: None };
    let rendered = template.render_with_tools(&messages, &[tool], true, told).unwrap();
    assert_eq!(rendered, r#"{"type": "function", "name": "find"}<tool_call>"#);
    assert_eq!(template.render(&messages, true, told.today).unwrap(), "<|im_start|>Hello<|im_end|>");
}

/// Each file is refused with such an error, which has these words.
fn refuse<const N: usize>(files: [(ErrorKind, tempfile::NamedTempFile, &[&str]); N]) {
    for (expected, file, words) in files {
        let (kind, text) = refusal(file.path());
        println!("{kind:?}: {text}");
        assert!(kind == expected && words.iter().all(|word| text.contains(word)), "{kind:?}: {text}");
    }
}

#[test]
fn what_a_family_does_not_have_is_refused() {
    let five = |word: &str| [&5u64.to_le_bytes()[..], word.as_bytes()].concat();
    refuse([
        (
            ErrorKind::UnsupportedModel,
            edited("yarn.gguf", &five("llama"), &five("mamba")),
            &["mamba", "recurrent state", "Qwen3"],
        ),
        (
            ErrorKind::InvalidModel,
            with_pair("yarn.gguf", "llama.expert_count", 4, &[8, 0, 0, 0]),
            &["lacks `llama.expert_used_count`"],
        ),
        (
            ErrorKind::InvalidModel,
            edited("mixtral.gguf", b"expert_count\x04\0\0\0\x05", b"expert_count\x04\0\0\0\x06"),
            &["block_sparse_moe", "shape"],
        ),
        (
            ErrorKind::InvalidModel,
            edited("mixtral.gguf", b"expert_count\x04\0\0\0\x05", b"expert_count\x04\0\0\0\x01"),
            &["num_experts_per_tok"],
        ),
        (
            ErrorKind::UnsupportedModel,
            edited("phi3_longrope.gguf", b"rope_factors_short", b"rope_factors_shorX"),
            &["rope_factors_shorX"],
        ),
        (
            ErrorKind::UnsupportedModel,
            with_pair("granite.gguf", "granite.rope.scaling.finetuned", 7, &[0]),
            &["rotary positions"],
        ),
        (
            ErrorKind::UnsupportedModel,
            with_pair("gemma3_usual.gguf", "gemma3.final_logit_softcapping", 6, &30.0_f32.to_le_bytes()),
            &["final_logit_softcapping"],
        ),
    ]);
}

#[test]
fn what_is_not_supported_is_refused_with_what_is() {
    let five = |word: &str| [&5u64.to_le_bytes()[..], word.as_bytes()].concat();
    let four = |word: &str| [&4u64.to_le_bytes()[..], word.as_bytes()].concat();
    refuse([
        (
            ErrorKind::UnsupportedModel,
            edited("yarn.gguf", &five("llama"), &five("gemma")),
            &["\"gemma\"", "llama", "qwen3"],
        ),
        (
            ErrorKind::UnsupportedModel,
            edited("yarn.gguf", &four("yarn"), &four("long")),
            &["type long", "linear, yarn"],
        ),
        (
            ErrorKind::UnsupportedModel,
            edited("yarn.gguf", b"attn_output", b"attn_sinks0"),
            &["blk.0.attn_sinks0.weight"],
        ),
        (
            ErrorKind::UnsupportedModel,
            edited("tokenizers/qwen2.gguf", &five("qwen2"), &five("bloom")),
            &["\"bloom\"", "llama-bpe, qwen2, tekken"],
        ),
        (
            ErrorKind::UnsupportedModel,
            edited("tokenizers/qwen2.gguf", &four("gpt2"), &four("bert")),
            &["\"bert\"", "gpt2 or llama"],
        ),
        (
            ErrorKind::UnsupportedModel,
            with_pair("yarn.gguf", "llama.expert_shared_count", 4, &[8, 0, 0, 0]),
            &["llama.expert_shared_count"],
        ),
        (ErrorKind::UnsupportedModel, with_pair("yarn.gguf", "llama.attention.causal", 7, &[0]), &["attention.causal"]),
        (ErrorKind::UnsupportedModel, with_pair("yarn.gguf", "split.count", 2, &[3, 0]), &["llama-gguf-split --merge"]),
        (
            ErrorKind::InvalidModel,
            edited("yarn.gguf", b"context_length\x04", b"context_lengtX\x04"),
            &["lacks `llama.context_length`"],
        ),
        (
            ErrorKind::InvalidModel,
            edited("yarn.gguf", b"block_count\x04\0\0\0\x01", b"block_count\x04\0\0\0\x02"),
            &["blk.1.attn_norm", "missing"],
        ),
        (
            ErrorKind::InvalidModel,
            edited("tokenizers/qwen2.gguf", b"bos_token_id\x04\0\0\0\x4A", b"bos_token_id\x04\0\0\0\xFF"),
            &["bos_token_id"],
        ),
        (ErrorKind::InvalidModel, edited("tokenizers/qwen2.gguf", b"\xC4\xA0the", b"\xC4\xFFthe"), &["UTF-8"]),
    ]);
    // What says that nothing is unusual is no reason to refuse.
    let usual = with_pair("yarn.gguf", "llama.expert_count", 4, &[0; 4]);
    assert_eq!(ModelFiles::open(usual.path()).unwrap().config().unwrap().layers, 1);
}
