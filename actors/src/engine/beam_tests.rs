//! Beam search through the engine, against transformers' (`ops/fixtures/make_beams.py`): alone, together, preempted; and what it holds.

use std::path::Path;

use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::sampling::{BeamSearch, EarlyStopping, SamplingParams};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::tier::device::DeviceOptions;
use serde_json::Value;

use super::tests::{env, job, options, wait_for_blocks};
use super::*;

type Whole = (Vec<u32>, Option<FinishReason>);

struct Case {
    model: String,
    prompt: Vec<u32>,
    width: usize,
    sampling: SamplingParams,
    ends: Vec<u32>,
    answers: Vec<Whole>,
}

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/tests/fixtures")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(fixtures().join("beams.json")).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.iter().map(case).collect()
}

fn case(value: &Value) -> Case {
    let number = |name: &str| value[name].as_f64().unwrap() as f32;
    let early_stopping = match &value["early_stopping"] {
        Value::Bool(true) => EarlyStopping::Immediate,
        Value::Bool(false) => EarlyStopping::Heuristic,
        _ => EarlyStopping::Never,
    };
    let sampling = SamplingParams {
        max_tokens: number("max_tokens") as usize,
        min_tokens: number("min_tokens") as usize,
        repetition_penalty: number("repetition_penalty"),
        beams: Some(BeamSearch { length_penalty: number("length_penalty"), early_stopping }),
        ..SamplingParams::default()
    };
    let answer = |answer: &Value| {
        let reason = if answer["ended"] == true { FinishReason::Stop } else { FinishReason::Length };
        (ids(&answer["tokens"]), Some(reason))
    };
    Case {
        model: value["model"].as_str().unwrap().to_owned(),
        prompt: ids(&value["prompt"]),
        width: number("width") as usize,
        sampling,
        ends: ids(&value["ends"]),
        answers: value["answers"].as_array().unwrap().iter().map(answer).collect(),
    }
}

fn start(model: &str, blocks: usize) -> Engine {
    let model = Arc::new(Model::load(&fixtures().join("models").join(model), LoadOptions::default()).unwrap());
    let block_bytes = model.kv_layout().block_bytes();
    let device = DeviceOptions { blocks, block_bytes, policy: PolicyKind::HitDensity, cache: true };
    let options = EngineOptions { max_batch: 80, ..options(80) };
    Engine::start(model, DeviceTier::new(device).unwrap(), options, env()).unwrap()
}

fn submit(engine: &Engine, case: &Case) -> Vec<mpsc::Receiver<Decoded>> {
    let max_tokens = case.sampling.max_tokens;
    let (mut group, reply, _) = job(1, case.prompt.len() as u32, max_tokens);
    std::mem::forget(reply);
    group.tokens = case.prompt.clone().into();
    group.decode.clear();
    let mut outputs = Vec::new();
    for _ in 0..case.width {
        let (one, _, decoded) = job(1, 1, max_tokens);
        let sampler = Sampler::answering(case.sampling.clone(), &case.prompt, &case.ends);
        let end_tokens: Arc<[u32]> = case.ends.clone().into();
        group.decode.extend(one.decode.into_iter().map(|spec| DecodeSpec {
            sampler: sampler.clone(),
            end_tokens: end_tokens.clone(),
            ..spec
        }));
        outputs.push(decoded);
    }
    engine.submit(group, Urgency::Answer).expect("queued");
    outputs
}

fn answers(outputs: Vec<mpsc::Receiver<Decoded>>) -> Vec<Whole> {
    outputs.into_iter().map(super::tests::drain).collect()
}

#[test]
fn a_search_finds_what_transformers_finds_alone_together_and_preempted() {
    let cases = cases();
    assert!(cases.len() > 50);
    for name in ["llama_gqa_tied", "qwen3"] {
        let of_model: Vec<&Case> = cases.iter().filter(|case| case.model == name).collect();
        let alone = start(name, 64);
        for (at, case) in of_model.iter().enumerate() {
            assert_eq!(answers(submit(&alone, case)), case.answers, "{name}, case {at}");
        }
        wait_for_blocks(&alone, 64);
        // Room for a few of the searches, and for one that is twice as wide.
        let crowded = start(name, 30);
        let running: Vec<_> = of_model.iter().map(|case| submit(&crowded, case)).collect();
        for (at, (case, outputs)) in of_model.iter().zip(running).enumerate() {
            assert_eq!(answers(outputs), case.answers, "{name}, case {at}, beside others");
        }
        assert!(crowded.status().preemptions > 0, "{name}: nobody was preempted");
        wait_for_blocks(&crowded, 30);
    }
}

#[test]
fn whoever_leaves_a_search_leaves_no_block() {
    let engine = start("qwen3", 64);
    let case = cases().into_iter().find(|case| case.model == "qwen3" && case.width == 8).unwrap();
    for _ in 0..4 {
        drop(submit(&engine, &case));
        // One of several answers is not enough: the others are of the same search.
        let mut outputs = submit(&engine, &case);
        drop(outputs.remove(0));
        assert_eq!(answers(outputs), case.answers[1..]);
        wait_for_blocks(&engine, 64);
    }
}

#[test]
fn a_search_for_more_answers_than_there_are_says_so() {
    let engine = start("llama_gqa_tied", 200);
    let sampling = SamplingParams {
        max_tokens: 1,
        beams: Some(BeamSearch { length_penalty: 1.0, early_stopping: EarlyStopping::Heuristic }),
        ..SamplingParams::default()
    };
    let (prompt, vocabulary) = (vec![1, 2, 3], 64);
    let case =
        Case { model: String::new(), prompt, width: vocabulary + 2, sampling, ends: Vec::new(), answers: Vec::new() };
    let mut outputs = submit(&engine, &case);
    for mut output in outputs.split_off(vocabulary) {
        let Some(Decoded::Failed(error)) = output.blocking_recv() else { panic!("an answer out of nothing") };
        assert!(error.to_string().contains("no more than 64 answers"), "{error}");
    }
    assert!(answers(outputs).iter().all(|(tokens, reason)| tokens.len() == 1 && reason.is_some()));
}

/// What the paper has in figures 15 and 16, for prompts and answers of some length: beams share more than samples.
#[test]
fn beams_and_samples_share_most_of_their_blocks() {
    let shared = |width: usize, beams: bool| {
        let engine = start("llama_gqa_tied", 400);
        let sampling = SamplingParams {
            temperature: if beams { 0.0 } else { 1.0 },
            max_tokens: 128,
            beams: beams.then_some(BeamSearch { length_penalty: 1.0, early_stopping: EarlyStopping::Heuristic }),
            ..SamplingParams::default()
        };
        let prompt = (0..256).map(|at| at * 7 % 64).collect();
        let case = Case { model: String::new(), prompt, width, sampling, ends: Vec::new(), answers: Vec::new() };
        answers(submit(&engine, &case));
        let groups = engine.status().groups;
        let (groups, others) = if beams { (groups.beams, groups.samples) } else { (groups.samples, groups.beams) };
        assert_eq!(others, Default::default());
        1.0 - groups.held as f64 / groups.apart as f64
    };
    let (four_beams, eight_samples) = (shared(4, true), shared(8, false));
    assert!(four_beams > 0.4, "{four_beams}");
    // Of eight copies of the prompt, seven are saved: 0.875 of it, and nothing of the answers.
    assert!(eight_samples > 0.6, "{eight_samples}");
    assert!(shared(4, false) < four_beams);
}
