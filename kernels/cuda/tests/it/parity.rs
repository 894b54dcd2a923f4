//! Logits agree with transformers for every family, and a row's bits do not depend on what is computed beside it.

use ragstone_cuda::{CudaModel, gpus};
use ragstone_kernels::ErrorKind;
use ragstone_kernels::backend::{Backend, RowGroup, SequenceView};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::BlockId;

use crate::fixtures::{Expected, names};
use crate::forward::{Sequence, counted};
use crate::standin::StandIn;

/// Of f32, as on the CPU.
const TOLERANCE: f32 = 1e-4;

fn difference(ours: &Matrix, theirs: &[f32]) -> f32 {
    assert_eq!(ours.as_slice().len(), theirs.len());
    let differences = ours.as_slice().iter().zip(theirs).map(|(a, b)| (a - b).abs());
    differences.map(|d| if d.is_nan() { f32::INFINITY } else { d }).fold(0.0, f32::max)
}

#[test]
fn every_family_agrees_with_transformers() {
    let standin = StandIn::new(1);
    let (mut run, mut wrong) = (0, Vec::new());
    for name in names() {
        let model = standin.model(&name, KvDtype::F32, ComputeDtype::F32).unwrap();
        let expected = Expected::of(&name);
        let count = expected.tokens.len();
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        let mut differs = difference(&logits, &expected.logits);
        if let Some((positions, logits)) = &expected.gap {
            let ours = Sequence::new(&model, count).append(&expected.tokens, positions);
            differs = differs.max(difference(&ours, logits));
        }
        println!("{name}: {differs:.1e}");
        if differs > TOLERANCE {
            wrong.push((name, differs));
        }
        run += 1;
    }
    standin.assert_clean();
    assert!(wrong.is_empty(), "differ by more than {TOLERANCE}: {wrong:?}");
    assert!(run >= 35, "{run} run");
}

/// bf16 as transformers computes it in bf16, no further from f32 than that is.
#[test]
fn bf16_is_as_close_as_transformers_is() {
    let standin = StandIn::new(2);
    for name in ["llama_bf16", "qwen2", "qwen3", "gemma3"] {
        let options = LoadOptions {
            kv_dtype: Some(KvDtype::Bf16),
            weights: Some(WeightFormat::Bf16),
            compute: Some(ComputeDtype::Bf16),
            ..Default::default()
        };
        let model = CudaModel::load(&crate::fixtures::folder(name), 0, options).unwrap();
        let expected = Expected::of(name);
        let count = expected.tokens.len();
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        let mean = |logits: &[f32]| {
            let differences = logits.iter().zip(&expected.logits).map(|(a, b)| f64::from((a - b).abs()));
            differences.sum::<f64>() / logits.len() as f64
        };
        let (ours, theirs) = (mean(logits.as_slice()), mean(&expected.logits_bf16));
        println!("{name}: {ours:.1e}, transformers {theirs:.1e}");
        assert!(ours <= 1.5 * theirs + 1e-4, "{name}: {ours} from f32, transformers' bf16 is {theirs}");
    }
    standin.assert_clean();
}

pub fn config(head_dim: usize) -> ModelConfig {
    let config = format!(
        r#"{{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": {head_dim},
        "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16"}}"#
    );
    ModelConfig::from_json(&config).unwrap()
}

/// A row goes through two of five experts, in the second of three layers through none.
pub fn mixture(bias: bool) -> ModelConfig {
    let config = r#"{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": 8,
        "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36,
        "norm_topk_prob": true, "mlp_only_layers": [1]}"#;
    ModelConfig { mlp_bias: bias, ..ModelConfig::from_json(config).unwrap() }
}

pub fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 7 + i * 13) % 96).collect()
}

#[test]
fn a_prompt_in_pieces_has_the_same_bits() {
    let standin = StandIn::new(3);
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let options = LoadOptions { kv_dtype: Some(dtype), ..Default::default() };
        assert_same_in_pieces(&CudaModel::random(config(8), 7, 0, options).unwrap(), &format!("{dtype:?}"));
    }
    standin.assert_clean();
}

/// 83 rows or 17, five experts: those of an expert are in one tile or in several, of one shape or another.
#[test]
fn a_prompt_in_pieces_has_the_same_bits_from_experts() {
    let standin = StandIn::new(8);
    for (weights, bias) in [(WeightFormat::Bf16, false), (WeightFormat::F32, true)] {
        let options = LoadOptions { weights: Some(weights), ..Default::default() };
        let model = CudaModel::random(mixture(bias), 7, 0, options).unwrap();
        assert_same_in_pieces(&model, &format!("{weights:?}"));
    }
    standin.assert_clean();
}

pub fn assert_same_in_pieces(model: &CudaModel, what: &str) {
    let tokens = tokens(83);
    let whole = Sequence::new(model, 83).append(&tokens, &counted(83));
    for piece in [1, 17, 40] {
        let mut sequence = Sequence::new(model, 83);
        let mut rows = Vec::new();
        for (tokens, positions) in tokens.chunks(piece).zip(counted(83).chunks(piece)) {
            rows.extend_from_slice(sequence.append(tokens, positions).as_slice());
        }
        let same = rows.iter().zip(whole.as_slice()).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same && rows.len() == whole.as_slice().len(), "{what}: pieces of {piece}");
    }
}

/// In f32, so that no score is rounded to that of another expert; biases are in no family's experts, but may be.
#[test]
fn experts_give_the_logits_of_the_cpu() {
    let standin = StandIn::new(9);
    for bias in [false, true] {
        let options =
            LoadOptions { weights: Some(WeightFormat::F32), kv_dtype: Some(KvDtype::F32), ..Default::default() };
        let model = CudaModel::random(mixture(bias), 11, 0, options).unwrap();
        let cpu = Model::random(mixture(bias), 11, options);
        assert_eq!(model.size_in_bytes(), expected_bytes(), "bias {bias}");
        let tokens = tokens(70);
        let ours = Sequence::new(&model, 70).append(&tokens, &counted(70));
        let theirs = Sequence::new(&cpu, 70).append(&tokens, &counted(70));
        assert!(difference(&ours, theirs.as_slice()) < TOLERANCE, "{}", difference(&ours, theirs.as_slice()));
    }
    standin.assert_clean();
}

/// Of the matrices of [`mixture`] in f32.
fn expected_bytes() -> usize {
    let (hidden, attention) = (48, 2 * 48 * 48 + 2 * 48 * 16);
    let experts = 5 * hidden + 5 * 3 * hidden * 36;
    4 * (96 * hidden + 3 * attention + 2 * experts + 3 * hidden * 80)
}

/// Behind 512 slots a single row's context is split, a long prompt's is not.
#[test]
fn a_context_that_is_split_has_the_same_bits_and_those_logits_of_the_cpu() {
    let standin = StandIn::new(4);
    let options = LoadOptions { kv_dtype: Some(KvDtype::Bf16), ..Default::default() };
    let (model, cpu) = (CudaModel::random(config(8), 7, 0, options).unwrap(), Model::random(config(8), 7, options));
    let tokens = tokens(600);
    let whole = Sequence::new(&model, 600).append(&tokens, &counted(600));
    let mut sequence = Sequence::new(&model, 600);
    sequence.append(&tokens[..599], &counted(599));
    let last = sequence.append(&tokens[599..], &[599]);
    assert!(last.row(0).iter().zip(whole.row(599)).all(|(a, b)| a.to_bits() == b.to_bits()));
    let expected = Sequence::new(&cpu, 600).append(&tokens, &counted(600));
    let scale = expected.as_slice().iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    assert!(difference(&whole, expected.as_slice()) < 0.03 * scale, "{}", difference(&whole, expected.as_slice()));
    standin.assert_clean();
}

/// The same rows on both devices, whatever way they came there.
#[test]
fn what_rows_look_at_is_what_it_is_on_the_cpu() {
    fn weights<B: Backend>(model: &B, tokens: &[u32]) -> Matrix {
        let count = tokens.len();
        let blocks: Vec<BlockId> = (0..count.div_ceil(16) as u32).rev().map(BlockId).collect();
        let mut pool = model.new_pool(blocks.len());
        let positions = counted(count);
        let places = Places { slots: positions.clone(), positions: positions.clone() };
        Forward::new(model, &mut pool).logits(tokens, places, Wanted::Last, &blocks, &positions).unwrap();
        let rows = model.embed(tokens, &positions).unwrap();
        let mut keys = positions.clone();
        keys[5] = u32::MAX;
        let sequence = SequenceView { blocks: &blocks, key_positions: &keys };
        let group = RowGroup { rows: 30..count, positions: &positions[30..], sequence };
        model.attention_weights(0, &rows, &group, &pool)
    }
    let standin = StandIn::new(5);
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let options = LoadOptions { kv_dtype: Some(dtype), compute: Some(ComputeDtype::F32), ..Default::default() };
        let (model, cpu) = (CudaModel::random(config(8), 7, 0, options).unwrap(), Model::random(config(8), 7, options));
        let (ours, theirs) = (weights(&model, &tokens(41)), weights(&cpu, &tokens(41)));
        assert_eq!((ours.rows(), ours.cols()), (11, 41));
        let most = if dtype == KvDtype::F32 { 1e-5 } else { 1e-2 };
        assert!(difference(&ours, theirs.as_slice()) < most, "{dtype:?}: {}", difference(&ours, theirs.as_slice()));
        assert!(ours.row(0)[5] == 0.0, "a hidden slot");
    }
    standin.assert_clean();
}

#[test]
fn no_gpu_and_an_old_driver_are_told() {
    let standin = StandIn::new(6);
    assert_eq!(gpus().unwrap().len(), 1);
    standin.set("driver", "12040");
    let error = gpus().unwrap_err().to_string();
    assert!(error.contains("12.4") && error.contains("driver 580"), "{error}");
    standin.set("driver", "13000");
    standin.set("devices", "0");
    standin.set("reset", "");
    let error = standin.model("qwen2", KvDtype::F32, ComputeDtype::F32).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("--device cpu"), "{error}");
}

#[test]
fn what_the_backend_does_not_keep_is_refused_with_what_to_do() {
    let standin = StandIn::new(7);
    let options = LoadOptions { weights: Some(WeightFormat::Q4), ..Default::default() };
    let error = CudaModel::load(&crate::fixtures::folder("qwen2"), 0, options).unwrap_err();
    assert!(error.kind() == ErrorKind::UnsupportedModel && error.to_string().contains("`weights` to q8"), "{error}");
    let error = CudaModel::load(&crate::fixtures::folder("qwen2"), 3, LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("GPU 3"), "{error}");
    standin.set("memory", "10000");
    standin.set("reset", "");
    let error = CudaModel::load(&crate::fixtures::folder("qwen2"), 0, LoadOptions::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("MiB free"), "{error}");
}
