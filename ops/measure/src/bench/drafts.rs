//! Decoding with drafts by look-up and without, through the engine.
//!
//! A model of random weights quotes nothing, so its answers are prescribed: behind the model's own logits, which are computed as
//! always, stands [`Prescribed`], which makes the prescribed token the likeliest. What a step takes is thus the model's; what the answer
//! is, the benchmark's.

mod prescribed;

use std::sync::Arc;
use std::time::Duration;

use ragstone_actors::Caller;
use ragstone_actors::admission::turns::ComputeTime;
use ragstone_actors::engine::{DecodeSpec, Decoded, Engine, EngineOptions, Job, Lookup, Urgency};
use ragstone_actors::fusion::LayerLoads;
use ragstone_actors::prefill::Selection;
use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::backend::Backend;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::BLOCK_TOKENS;
use ragstone_kernels::sampling::{Sampler, SamplingParams};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::prompt::plan::{Choosing, LoadPlan, SegmentPlan, Source, Why};
use ragstone_storage::segment::SegmentKind;
use ragstone_storage::tier::device::{DeviceOptions, DeviceTier};
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use self::prescribed::Prescribed;
use super::{Machine, QWEN_05B, Spread};
use crate::error::{Error, Result};

const TINY: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 8192, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32768, "tie_word_embeddings": true,
    "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

/// Tokens of a quotation, and of what stands between two.
const QUOTED: usize = 32;
const BETWEEN: usize = 8;

/// What to measure. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct Options {
    pub prompt: usize,
    pub answer: usize,
    /// Numbers of answers that run at once.
    pub streams: Vec<usize>,
    /// Rounds; each measures every case with drafts and without.
    pub runs: usize,
    pub tiny: bool,
    pub lookup: Lookup,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub cases: Vec<Case>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// What the answer is.
    pub answer: &'static str,
    pub streams: usize,
    /// Tokens a second of all answers together, from their first token on.
    pub without: Spread,
    pub with: Spread,
    /// How many times as fast, round by round.
    pub times: Spread,
    /// Tokens that were verified, and those that were right; of all rounds.
    pub drafted: u32,
    pub accepted: u32,
}

/// What an answer is.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// Quotations of the prompt, four fifths of it, and new words between.
    Extractive,
    /// No two tokens that stand together in prompt or answer before.
    New,
    /// Every two tokens stand in the prompt, and go on otherwise there: each draft is wrong.
    Misleading,
}

impl Answer {
    const ALL: [Self; 3] = [Self::Extractive, Self::New, Self::Misleading];

    fn name(self) -> &'static str {
        match self {
            Self::Extractive => "extractive",
            Self::New => "new",
            Self::Misleading => "misleading",
        }
    }

    /// An answer to `prompt`, whose tokens are all below half of `vocabulary`.
    fn tokens(self, prompt: &[u32], length: usize, vocabulary: u32, random: &mut fastrand::Rng) -> Vec<u32> {
        let mut answer = Vec::with_capacity(length + QUOTED + BETWEEN);
        while answer.len() < length {
            match self {
                Self::Extractive => {
                    answer.extend((0..BETWEEN).map(|_| random.u32(vocabulary / 2..vocabulary)));
                    let begin = random.usize(..prompt.len() - QUOTED);
                    answer.extend(&prompt[begin..begin + QUOTED]);
                }
                Self::New => answer.push(random.u32(vocabulary / 2..vocabulary)),
                Self::Misleading => {
                    let begin = random.usize(..prompt.len() - 2);
                    answer.extend(&prompt[begin..begin + 2]);
                }
            }
        }
        answer.truncate(length);
        answer
    }
}

/// What the rounds of one case gave.
#[derive(Default)]
struct Samples {
    without: Vec<f64>,
    with: Vec<f64>,
    drafted: u32,
    accepted: u32,
}

/// Measures every case once a round, with drafts and without in turn. BLOCKS.
pub fn measure(load: LoadOptions<'_>, options: &Options) -> Result<Report> {
    let config = ModelConfig::from_json(if options.tiny { TINY } else { QWEN_05B })?;
    let most = options.streams.iter().copied().max().unwrap_or(1);
    let backend = Arc::new(Prescribed::new(Model::random(config, 1, load)));
    let engine = start(&backend, options, most)?;
    let cases: Vec<(Answer, usize)> =
        Answer::ALL.iter().flat_map(|answer| options.streams.iter().map(|streams| (*answer, *streams))).collect();
    let mut samples: Vec<Samples> = cases.iter().map(|_| Samples::default()).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let progress = Progress::new("measuring", Unit::Items);
    let total = (options.runs * cases.len()) as u64;
    let mut done = 0;
    for round in 0..options.runs {
        for ((answer, streams), samples) in cases.iter().zip(&mut samples) {
            progress.set(done, total);
            done += 1;
            let vocabulary = backend.config().vocab_size as u32;
            let prompt: Vec<u32> = (0..options.prompt).map(|_| random.u32(..vocabulary / 2)).collect();
            let answer = answer.tokens(&prompt, options.answer, vocabulary, &mut random);
            backend.prescribe(&prompt, &answer);
            let none = Lookup::default();
            let with = Lookup { counts: Arc::default(), ..options.lookup.clone() };
            // Whoever is first in one round is second in the next.
            let order = if round % 2 == 0 { [&none, &with] } else { [&with, &none] };
            for lookup in order {
                let rate = rate(&engine, &prompt, &answer, *streams, lookup)?;
                if lookup.most == 0 { samples.without.push(rate) } else { samples.with.push(rate) }
            }
            let (drafted, accepted) = with.counts.get();
            samples.drafted += drafted;
            samples.accepted += accepted;
        }
    }
    let cases = cases.into_iter().zip(samples).map(|((answer, streams), samples)| {
        let Samples { without, with, drafted, accepted } = samples;
        let times = Spread::of(with.iter().zip(&without).map(|(with, without)| with / without));
        let (without, with) = (Spread::of(without), Spread::of(with));
        Case { answer: answer.name(), streams, without, with, times, drafted, accepted }
    });
    Ok(Report { machine: Machine::here(), cases: cases.collect() })
}

fn start(backend: &Arc<Prescribed>, options: &Options, streams: usize) -> Result<Engine> {
    let sequence = (options.prompt + options.answer).div_ceil(BLOCK_TOKENS) + 1;
    let block_bytes = backend.kv_layout().block_bytes();
    let device =
        DeviceOptions { blocks: sequence * streams + 8, block_bytes, policy: PolicyKind::HitDensity, cache: false };
    let engine = EngineOptions {
        max_queued: streams,
        max_batch: streams + 1,
        inter_token_ms: 0.0,
        reorder_window: 32,
        load_deadline: Duration::from_secs(60),
    };
    Engine::start(backend.clone(), DeviceTier::new(device)?, engine, Env::system())
}

/// Tokens a second of so many equal answers, each from the moment when all have their first token to its last one.
fn rate(engine: &Engine, prompt: &[u32], answer: &[u32], streams: usize, lookup: &Lookup) -> Result<f64> {
    let broke = || Error::internal("an answer broke off");
    // One group: all begin to decode in the same step.
    let (specs, mut outputs): (Vec<DecodeSpec>, Vec<_>) = (0..streams)
        .map(|_| {
            let (output, decoded) = mpsc::channel(answer.len() + 1);
            let params = SamplingParams { max_tokens: answer.len(), ..SamplingParams::default() };
            let sampler = Sampler::new(params);
            let (max_tokens, end_tokens) = (answer.len(), [].into());
            let (lookup, file, resume, is_begun) = (lookup.clone(), None, None, false);
            (DecodeSpec { sampler, max_tokens, end_tokens, lookup, file, resume, is_begun, output }, decoded)
        })
        .unzip();
    let (reply, prefilled) = oneshot::channel();
    let job = Job {
        tokens: prompt.into(),
        plan: compute_all(prompt.len() as u32),
        loads: LayerLoads::none(),
        device: None,
        selection: Selection::default(),
        decode: specs,
        caller: Caller::default(),
        tenant: "bench".into(),
        reply,
        queued: Stopwatch::start(),
        within: Duration::from_secs(3600),
        hold: None,
        computed: ComputeTime::default(),
    };
    engine.submit(job, Urgency::Answer)?;
    prefilled.blocking_recv().map_err(|_| broke())?.map_err(|_| broke())?;
    let watch = Stopwatch::start();
    for output in &mut outputs {
        for expected in answer {
            match output.blocking_recv() {
                Some(Decoded::Token(sampled)) if sampled.id == *expected => {}
                Some(Decoded::Failed(error)) => return Err(error),
                _ => return Err(Error::internal("an answer is not what was prescribed")),
            }
        }
    }
    Ok((streams * (answer.len() - 1)) as f64 / watch.elapsed_s())
}

fn compute_all(tokens: u32) -> LoadPlan {
    let segment = SegmentPlan {
        segment: 0,
        kind: SegmentKind::Question,
        range: 0..tokens,
        position: 0,
        source: Source::Compute,
        why: Why::NotStored,
        tiers: Vec::new(),
        bytes: 0,
        predicted: None,
        store_as: None,
        exact_key: None,
        device_key: None,
        parent: None,
    };
    LoadPlan {
        segments: vec![segment],
        epoch: 0,
        ratio: 0.0,
        choosing: Choosing { layer: 1, probed: 0, looked: 0 },
        prediction: None,
        in_tiers: Vec::new(),
        total_tokens: tokens,
        exact_tokens: 0,
        blended_tokens: 0,
        computed_tokens: tokens,
        root_key: None,
        files_answer: false,
        missing_standalone: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_what_was_prescribed_and_quotations_come_by_drafts() {
        let load = LoadOptions { kv_dtype: None, weights: None, compute: None, adapter: None, progress: None };
        let lookup = Lookup { most: 7, least_match: 2, most_match: 5, counts: Arc::default() };
        let options = Options { prompt: 160, answer: 60, streams: vec![1, 2], runs: 1, tiny: true, lookup };
        let report = measure(load, &options).unwrap();
        assert_eq!(report.cases.len(), 6);
        for case in report.cases {
            match case.answer {
                "extractive" => assert!(case.accepted > 0 && case.accepted <= case.drafted, "{case:?}"),
                "new" => assert_eq!(case.drafted, 0, "{case:?}"),
                // A machine on which it never paid may have given drafting up before the first.
                _ => assert!(case.drafted == 0 || case.accepted < case.drafted, "{case:?}"),
            }
            assert!(case.with.median > 0.0 && case.without.median > 0.0);
        }
    }
}
