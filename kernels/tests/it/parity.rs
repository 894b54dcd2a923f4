//! Logits agree with transformers to 1e-4, for every architecture and variant, however the prompt is computed.

use ragstone_kernels::dtype::WeightFormat;
use ragstone_kernels::matrix::Matrix;

use crate::fixtures::{Expected, copy, edit_config, model, model_in, names, rounded};
use crate::forward::{Sequence, counted};

const TOLERANCE: f32 = 1e-4;

/// The greatest difference; NaN counts as infinite.
fn difference(ours: &Matrix, theirs: &[f32]) -> f32 {
    assert_eq!(ours.as_slice().len(), theirs.len());
    let differences = ours.as_slice().iter().zip(theirs).map(|(a, b)| (a - b).abs());
    differences.map(|d| if d.is_nan() { f32::INFINITY } else { d }).fold(0.0, f32::max)
}

/// Runs `check` over every tiny model, and reports all that differ at once.
fn over_all(check: impl Fn(&str) -> Option<f32>) {
    let measured: Vec<(String, f32)> =
        names().into_iter().filter_map(|name| Some((name.clone(), check(&name)?))).collect();
    for (name, difference) in &measured {
        println!("{name}: {difference:.1e}");
    }
    let wrong: Vec<_> = measured.iter().filter(|(_, difference)| *difference > TOLERANCE).collect();
    assert!(!measured.is_empty() && wrong.is_empty(), "differ by more than {TOLERANCE}: {wrong:?}");
}

#[test]
fn every_variant_is_there() {
    let expected = [
        "bloom",
        "bloom_six_heads",
        "gemma3",
        "gemma3_usual",
        "gemma3_version_4",
        "gpt2",
        "gpt2_untied",
        "granite",
        "granite_4_dense",
        "granite_moe",
        "llama_bf16",
        "llama_biases",
        "llama_f16",
        "llama_gqa_tied",
        "llama_mha",
        "mistral_full",
        "mistral_sliding",
        "mixtral",
        "mixtral_bf16",
        "olmo2",
        "olmoe",
        "opt",
        "opt_without_biases",
        "phi3_longrope",
        "phi3_partial",
        "qwen2",
        "qwen2_sliding",
        "qwen3",
        "qwen3_biases",
        "qwen3_moe",
        "qwen3_moe_sparse",
        "rope_linear",
        "rope_llama3",
        "rope_yarn",
        "rope_yarn_mscale",
        "smollm3",
        "smollm3_fourth",
    ];
    assert_eq!(names(), expected);
}

#[test]
fn a_prompt_in_one_pass() {
    over_all(|name| {
        let (model, expected) = (model(name), Expected::of(name));
        let count = expected.tokens.len();
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        Some(difference(&logits, &expected.logits))
    });
}

#[test]
fn a_prompt_at_positions_with_a_gap() {
    over_all(|name| {
        let expected = Expected::of(name);
        let (positions, gap_logits) = expected.gap?;
        let model = model(name);
        let logits = Sequence::new(&model, positions.len()).append(&expected.tokens, &positions);
        assert!(difference(&logits, &expected.logits) > 0.1, "{name}: the gap must matter");
        Some(difference(&logits, &gap_logits))
    });
}

#[test]
fn a_prompt_in_pieces_has_the_same_bits() {
    let in_a_row = |name: &String| (name.clone(), counted(Expected::of(name).tokens.len()));
    let with_a_gap = |name: &String| Some((name.clone(), Expected::of(name).gap?.0));
    let names = names();
    for (name, positions) in names.iter().map(in_a_row).chain(names.iter().filter_map(with_a_gap)) {
        let (model, tokens) = (model(&name), Expected::of(&name).tokens);
        let whole = Sequence::new(&model, tokens.len()).append(&tokens, &positions);
        for piece in [1, 5, 16] {
            let mut sequence = Sequence::new(&model, tokens.len());
            let mut row = 0;
            for (tokens, positions) in tokens.chunks(piece).zip(positions.chunks(piece)) {
                let logits = sequence.append(tokens, positions);
                for i in 0..logits.rows() {
                    assert_eq!(logits.row(i), whole.row(row), "{name}: pieces of {piece}, token {row}");
                    row += 1;
                }
            }
        }
    }
}

#[test]
fn a_prompt_in_shuffled_slots() {
    over_all(|name| {
        let (model, expected) = (model(name), Expected::of(name));
        // The attention sums in the order of slots, so the last bits may differ here.
        Some(difference(
            &Sequence::shuffled(&model, &expected.tokens[..39]),
            &expected.logits[..39 * model.config().vocab_size],
        ))
    });
}

/// Root mean square of the differences, and the share of rows with the same greatest logit.
fn agreement(ours: &[f32], truth: &[f32], vocab: usize) -> (f64, f64) {
    let squares: f64 = ours.iter().zip(truth).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let top = |logits: &[f32]| (0..vocab).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let rows = ours.chunks(vocab).zip(truth.chunks(vocab));
    let same = rows.clone().filter(|(a, b)| top(a) == top(b)).count();
    ((squares / ours.len() as f64).sqrt(), same as f64 / rows.len() as f64)
}

/// What bf16 allows is what transformers in bf16 reaches: our error against the f32 logits is no greater than its own,
/// model by model, and over all models the greatest logit is the right one as often, to within one row in a hundred. (Sums, norms and the residual stream
/// are f32 here, and bf16 there.)
#[test]
fn bf16_is_as_close_to_f32_as_transformers_in_bf16() {
    let (mut our_top, mut their_top) = (0.0, 0.0);
    for name in names() {
        let (model, expected) = (rounded(&name, WeightFormat::Bf16), Expected::of(&name));
        let count = expected.tokens.len();
        let vocab = model.config().vocab_size;
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        let (ours, top) = agreement(logits.as_slice(), &expected.logits, vocab);
        let (theirs, their) = agreement(&expected.logits_bf16, &expected.logits, vocab);
        println!("{name}: error {ours:.4} (transformers {theirs:.4}), same top {top:.3} ({their:.3})");
        assert!(ours < theirs, "{name}: error {ours}, transformers' own {theirs}");
        (our_top, their_top) = (our_top + top, their_top + their);
    }
    assert!(
        our_top >= their_top - 0.01 * names().len() as f64,
        "right top logits: {our_top} of models, transformers {their_top}"
    );
}

/// 8 bits cost more than bf16, but not much: a few hundredths of the logits' spread even in these tiny models, whose
/// weights are random and so lose the most.
#[test]
fn eight_bit_weights_stay_close() {
    for name in names() {
        let (model, expected) = (rounded(&name, WeightFormat::Q8), Expected::of(&name));
        let count = expected.tokens.len();
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        let (error, top) = agreement(logits.as_slice(), &expected.logits, model.config().vocab_size);
        let spread = agreement(&expected.logits, &vec![0.0; expected.logits.len()], model.config().vocab_size).0;
        println!("{name}: error {error:.4} of {spread:.2}, same top {top:.3}");
        // Rounding may choose another expert where two are as good, as a random router's often are.
        let most = if model.config().experts.is_some() { 0.15 } else { 0.06 };
        assert!(error < most * spread && top > 0.85, "{name}: error {error} of {spread}, same top {top}");
    }
}

/// 4 bits cost about eight times what 8 bits do: random weights lose the most by them.
#[test]
fn four_bit_weights_stay_recognisable() {
    for name in names() {
        let (model, expected) = (rounded(&name, WeightFormat::Q4), Expected::of(&name));
        let count = expected.tokens.len();
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        let (error, top) = agreement(logits.as_slice(), &expected.logits, model.config().vocab_size);
        let spread = agreement(&expected.logits, &vec![0.0; expected.logits.len()], model.config().vocab_size).0;
        println!("{name}: error {error:.4} of {spread:.2}, same top {top:.3}");
        assert!(error < 0.55 * spread && top > 0.4, "{name}: error {error} of {spread}, same top {top}");
    }
}

#[test]
fn a_small_mistake_would_show() {
    let mistakes = [
        ("mistral_sliding", "\"sliding_window\": 9", "\"sliding_window\": 10"),
        ("qwen2_sliding", "\"sliding_window\": 7", "\"sliding_window\": 6"),
        ("llama_mha", "\"rope_theta\": 10000.0", "\"rope_theta\": 9990.0"),
        ("rope_linear", "\"factor\": 4.0", "\"factor\": 4.01"),
        ("rope_llama3", "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 3.9"),
        ("rope_yarn", "\"factor\": 4.0", "\"factor\": 3.99"),
        ("rope_yarn_mscale", "\"truncate\": false", "\"truncate\": true"),
        ("qwen3", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-03"),
        ("phi3_partial", "\"partial_rotary_factor\": 0.75", "\"partial_rotary_factor\": 0.625"),
        ("phi3_longrope", "\"short_factor\": [", "\"attention_factor\": 1.1, \"short_factor\": ["),
        ("smollm3", "\"no_rope_layers\": [\n    1,\n    0", "\"no_rope_layers\": [\n    1,\n    1"),
        ("gemma3", "\"query_pre_attn_scalar\": 12", "\"query_pre_attn_scalar\": 13"),
        ("gemma3", "\"rope_theta\": 100.0", "\"rope_theta\": 120.0"),
        ("gemma3_version_4", "\"rope_local_base_freq\": 100.0", "\"rope_local_base_freq\": 120.0"),
        ("gemma3_version_4", "\"sliding_window_pattern\": 2", "\"sliding_window_pattern\": 3"),
        ("bloom", "\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 1e-03"),
        // Of the same shapes, and other slopes.
        ("bloom_six_heads", "\"n_head\": 6", "\"n_head\": 3"),
        ("gpt2", "\"layer_norm_epsilon\": 0.0001", "\"layer_norm_epsilon\": 0.002"),
        ("gpt2", "\"n_head\": 4", "\"n_head\": 2"),
        ("opt", "\"num_attention_heads\": 4", "\"num_attention_heads\": 2"),
        ("mixtral", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 1"),
        ("qwen3_moe", "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 4"),
        ("qwen3_moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"),
        ("qwen3_moe_sparse", "\"norm_topk_prob\": false", "\"norm_topk_prob\": true"),
        ("granite", "\"embedding_multiplier\": 3.0", "\"embedding_multiplier\": 3.01"),
        ("granite", "\"attention_multiplier\": 0.2", "\"attention_multiplier\": 0.201"),
        ("granite", "\"residual_multiplier\": 0.4", "\"residual_multiplier\": 0.401"),
        ("granite_4_dense", "\"logits_scaling\": 1.7", "\"logits_scaling\": 1.701"),
    ];
    for (name, right, wrong) in mistakes {
        let folder = copy(name);
        edit_config(folder.path(), right, wrong);
        let (model, expected) = (model_in(folder.path()), Expected::of(name));
        let count = expected.tokens.len();
        let logits = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        assert!(difference(&logits, &expected.logits) > 2.0 * TOLERANCE, "{name}: {wrong} goes unnoticed");
    }
}
