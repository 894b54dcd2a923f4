//! The demo model's greedy answers are those of transformers.

use std::path::Path;

use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::sampling::argmax;
use serde::Deserialize;

use crate::forward::{Sequence, counted};

const END: u32 = 2;
const NEW_TOKENS: usize = 16;

/// A held-out question with its passages, and what transformers answers; `ops/fixtures/make_answers.py` made them.
#[derive(Deserialize)]
struct Answers {
    prompt: Vec<u32>,
    f32: Vec<u32>,
    bf16: Vec<u32>,
}

fn answers() -> Vec<Answers> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/demo_answers.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn demo_model(kv_dtype: KvDtype, weights: WeightFormat, compute: ComputeDtype) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/demo-model/checkpoint");
    let (kv_dtype, weights, compute) = (Some(kv_dtype), Some(weights), Some(compute));
    Model::load(&folder, LoadOptions { kv_dtype, weights, compute, adapter: None, progress: None }).unwrap()
}

fn answer(model: &Model, prompt: &[u32]) -> Vec<u32> {
    let mut sequence = Sequence::new(model, prompt.len() + NEW_TOKENS);
    let mut logits = sequence.append(prompt, &counted(prompt.len()));
    let mut answer = Vec::new();
    while answer.len() < NEW_TOKENS {
        let token = argmax(logits.row(logits.rows() - 1)).unwrap() as u32;
        if token == END {
            break;
        }
        answer.push(token);
        logits = sequence.append(&[token], &[(prompt.len() + answer.len() - 1) as u32]);
    }
    answer
}

/// How many answers are those of transformers in f32.
fn same_as_f32(model: &Model) -> usize {
    answers().iter().filter(|expected| answer(model, &expected.prompt) == expected.f32).count()
}

#[test]
fn in_f32_every_answer_is_that_of_transformers() {
    let model = demo_model(KvDtype::F32, WeightFormat::Stored, ComputeDtype::F32);
    assert_eq!(same_as_f32(&model), answers().len());
}

/// bf16 may change an answer where two tokens are almost equally likely; not more often than transformers' bf16 does,
/// to within two answers.
#[test]
fn in_bf16_as_many_answers_stay_as_in_transformers() {
    let model = demo_model(KvDtype::Bf16, WeightFormat::Stored, ComputeDtype::Bf16);
    let (ours, all) = (same_as_f32(&model), answers());
    let theirs = all.iter().filter(|expected| expected.bf16 == expected.f32).count();
    println!("{ours} of {} answers as in f32, transformers {theirs}", all.len());
    assert!(ours + 2 >= theirs, "{ours} answers as in f32, transformers {theirs}");
}

#[test]
fn in_4_bits_nine_of_ten_answers_stay() {
    let model = demo_model(KvDtype::Bf16, WeightFormat::Q4, ComputeDtype::Bf16);
    let (ours, all) = (same_as_f32(&model), answers().len());
    println!("{ours} of {all} answers as in f32");
    assert!(10 * ours >= 9 * all, "{ours} of {all} answers as in f32");
}

#[test]
fn in_8_bits_nine_of_ten_answers_stay() {
    let model = demo_model(KvDtype::Bf16, WeightFormat::Q8, ComputeDtype::Bf16);
    let (ours, all) = (same_as_f32(&model), answers().len());
    println!("{ours} of {all} answers as in f32");
    assert!(10 * ours >= 9 * all, "{ours} of {all} answers as in f32");
}
