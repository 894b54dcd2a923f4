//! A whole model: loading, prefill by length of the prompt, decode by length of what stands before.

mod shown;

use std::path::Path;

use ragstone_cuda::{CudaModel, Gpu, GpuList, usable};
use ragstone_env::Stopwatch;
use ragstone_kernels::backend::{Backend, Slots, StoredKv};
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::{Arithmetic, LoadOptions, Model};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};
use ragstone_kernels::profile::{Part, Profile};
use ragstone_kernels::sampling::argmax;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

pub use self::shown::print;
use crate::error::{Error, Result};
use crate::predicted;
use crate::{Machine, Shape, Spread};

/// Tokens that one decode sample generates.
const NEW_TOKENS: usize = 32;

/// Tokens of a pass that is not counted.
const WARM_UP_TOKENS: usize = 64;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of random weights, where no folder is given.
    pub shape: Shape,
    /// Lengths of prompts.
    pub prefill: Vec<usize>,
    /// Tokens that stand before the first decoded one.
    pub contexts: Vec<usize>,
    /// Rounds; each measures every case once.
    pub runs: usize,
    /// Whether each case runs once more, to see where its time goes; on the processor.
    pub profile: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// How weights are kept, what products are computed in, and what K and V are.
    pub weights: &'static str,
    pub compute: &'static str,
    pub kv_dtype: &'static str,
    pub weight_bytes: usize,
    /// From the folder to a model that can compute; of random weights, how long it took to make them up.
    pub load_seconds: f64,
    pub prefill: Vec<Prefill>,
    pub decode: Vec<Decode>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Prefill {
    pub tokens: usize,
    /// Where the time of one more run went; empty unless wanted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartOfTime>,
    /// To the logits behind the last token.
    pub seconds: Spread,
    pub tokens_per_second: Spread,
    /// On a single GPU: what its products take at their peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Decode {
    pub context: usize,
    pub new_tokens: usize,
    /// As of a prefill.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartOfTime>,
    /// Of all new tokens.
    pub seconds: Spread,
    pub tokens_per_second: Spread,
    /// Weights, keys and values read, by time.
    pub gbps: Spread,
    /// On a single GPU: what reading these bytes takes at its memory's peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
    /// On a single GPU: the same without CUDA graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_graphs: Option<WithoutGraphs>,
    /// On a GPU: kernels and graphs that are launched for the last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launches_per_token: Option<u64>,
}

/// Decoding operation by operation, in turns with that by graphs.
#[derive(Debug, Clone, Serialize)]
pub struct WithoutGraphs {
    /// Of all new tokens.
    pub seconds: Spread,
    /// How many times as long as with graphs.
    pub ratio: Spread,
    pub launches_per_token: u64,
}

/// What a part of the work took of a run; the last one is the rest.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PartOfTime {
    pub part: &'static str,
    pub seconds: f64,
    pub share: f64,
}

/// A model on its device.
struct Loaded<'a, B: Backend> {
    model: &'a B,
    machine: Machine,
    arithmetic: Arithmetic,
    weight_bytes: usize,
    load_seconds: f64,
    /// Where its time goes; of the processor.
    profile: Option<&'a Profile>,
    /// The model where it is on a GPU.
    cuda: Option<&'a CudaModel>,
    /// That GPU, where it is a single one.
    gpu: Option<Gpu>,
}

/// Measures the model in `folder`, or one of random weights; on the processor where no GPUs are named.
///
/// # Errors
/// Where it cannot be loaded, and `InvalidInput` for what does not go together.
pub fn measure(
    folder: Option<&Path>,
    gpus: Option<GpuList>,
    load: LoadOptions<'_>,
    options: &Options,
) -> Result<Report> {
    let progress = Progress::new("loading the model", Unit::Bytes);
    let show = |done, total| progress.set(done, total);
    let load = LoadOptions { progress: Some(&show), ..load };
    let started = Stopwatch::start();
    if let Some(gpus) = gpus {
        if options.profile {
            return Err(Error::invalid_input("--profile looks into the processor's kernels; leave it out"));
        }
        let gpu = gpus.only().map(usable).transpose()?;
        let model = match folder {
            Some(folder) => CudaModel::load(folder, gpus, load)?,
            None => CudaModel::random(options.shape.config()?, 1, gpus, load)?,
        };
        return report(
            &Loaded {
                machine: Machine::with_gpu(model.gpu()),
                arithmetic: model.arithmetic(),
                weight_bytes: model.size_in_bytes(),
                load_seconds: started.elapsed_s(),
                profile: None,
                cuda: Some(&model),
                gpu,
                model: &model,
            },
            options,
        );
    }
    let model = match folder {
        Some(folder) => Model::load(folder, load)?,
        None => Model::random(options.shape.config()?, 1, load),
    };
    report(
        &Loaded {
            machine: Machine::here(),
            arithmetic: model.arithmetic(),
            weight_bytes: model.size_in_bytes(),
            load_seconds: started.elapsed_s(),
            profile: Some(model.profile()),
            cuda: None,
            gpu: None,
            model: &model,
        },
        options,
    )
}

fn report<B: Backend>(loaded: &Loaded<'_, B>, options: &Options) -> Result<Report> {
    let (model, layout) = (loaded.model, loaded.model.kv_layout());
    let longest = options
        .prefill
        .iter()
        .copied()
        .chain(options.contexts.iter().map(|context| context.saturating_add(NEW_TOKENS)));
    let longest = longest.max().unwrap_or(0);
    if longest > model.config().max_positions {
        return Err(Error::invalid_input(format!(
            "{longest} tokens are beyond the model's context of {}; take shorter prompts",
            model.config().max_positions
        )));
    }
    let (prefill, decode) = samples(loaded, longest, options)?;
    let (prefill_parts, decode_parts) = match loaded.profile.filter(|_| options.profile) {
        Some(profile) => profiles(model, profile, longest, options)?,
        None => Default::default(),
    };
    let parts = |profiles: &[Vec<PartOfTime>], at: usize| profiles.get(at).cloned().unwrap_or_default();
    let prefill = options.prefill.iter().zip(prefill).enumerate().map(|(at, (tokens, seconds))| {
        let seconds = Spread::of(seconds);
        let parts = parts(&prefill_parts, at);
        let predicted_seconds = loaded.gpu.as_ref().and_then(|gpu| predicted::prefill(gpu, model.config(), *tokens));
        let tokens_per_second = seconds.rate(*tokens as f64);
        Prefill { tokens: *tokens, parts, seconds, tokens_per_second, predicted_seconds }
    });
    let decode = options.contexts.iter().zip(decode).enumerate().map(|(at, (context, decoded))| {
        let (without_graphs, launches_per_token) = (decoded.without_graphs(), decoded.launches_per_token);
        let seconds = Spread::of(decoded.seconds);
        let kv_bytes = (context + NEW_TOKENS / 2) * layout.token_bytes();
        let bytes = NEW_TOKENS * (loaded.weight_bytes + kv_bytes);
        Decode {
            context: *context,
            new_tokens: NEW_TOKENS,
            parts: parts(&decode_parts, at),
            seconds,
            tokens_per_second: seconds.rate(NEW_TOKENS as f64),
            gbps: seconds.rate(bytes as f64 / 1e9),
            predicted_seconds: loaded.gpu.as_ref().and_then(|gpu| predicted::reading(gpu, bytes as f64)),
            without_graphs,
            launches_per_token,
        }
    });
    Ok(Report {
        weights: loaded.arithmetic.weights.name(),
        compute: loaded.arithmetic.compute.name(),
        kv_dtype: layout.dtype.name(),
        weight_bytes: loaded.weight_bytes,
        load_seconds: loaded.load_seconds,
        prefill: prefill.collect(),
        decode: decode.collect(),
        machine: loaded.machine.clone(),
    })
}

/// Seconds by case and round.
type Samples = Vec<Vec<f64>>;

/// What decoding behind one context took, by round.
#[derive(Debug, Clone, Default)]
struct Decoded {
    seconds: Vec<f64>,
    launches_per_token: Option<u64>,
    /// The same without graphs; empty where there are none.
    plain_seconds: Vec<f64>,
    plain_launches: u64,
}

impl Decoded {
    fn without_graphs(&self) -> Option<WithoutGraphs> {
        let ratio = self.plain_seconds.iter().zip(&self.seconds).map(|(without, with)| without / with);
        (!self.plain_seconds.is_empty()).then(|| WithoutGraphs {
            seconds: Spread::of(self.plain_seconds.iter().copied()),
            ratio: Spread::of(ratio),
            launches_per_token: self.plain_launches,
        })
    }

    /// Decodes once more, on a single GPU with graphs and without.
    fn sample<B: Backend>(&mut self, sequence: &mut Sequence<'_, B>, context: usize) -> Result<()> {
        let (seconds, launches) = sequence.decode(context)?;
        self.seconds.push(seconds);
        self.launches_per_token = launches;
        if let Some(cuda) = sequence.cuda.filter(|cuda| cuda.replays_graphs()) {
            cuda.replay_graphs(false);
            let plain = sequence.decode(context);
            cuda.replay_graphs(true);
            let (seconds, launches) = plain?;
            self.plain_seconds.push(seconds);
            self.plain_launches = launches.unwrap_or_default();
        }
        Ok(())
    }
}

/// Every case once a round, so that a change of the machine's speed meets all of them.
fn samples<B: Backend>(loaded: &Loaded<'_, B>, longest: usize, options: &Options) -> Result<(Samples, Vec<Decoded>)> {
    let mut sequence = Sequence { cuda: loaded.cuda, ..Sequence::new(loaded.model, longest) };
    let (prefills, contexts) = (&options.prefill, &options.contexts);
    let (mut prefill, mut decode) = (vec![Vec::new(); prefills.len()], vec![Decoded::default(); contexts.len()]);
    let progress = Progress::new("measuring", Unit::Items);
    let total = (options.runs * (prefills.len() + contexts.len())) as u64;
    // The first pass allocates what later ones use again; graphs are made while the first tokens are decoded.
    sequence.prefill(longest.min(WARM_UP_TOKENS))?;
    for context in contexts.iter().filter(|_| loaded.cuda.is_some()) {
        sequence.decode(*context)?;
    }
    let mut done = 0;
    for _ in 0..options.runs {
        for (tokens, seconds) in prefills.iter().zip(&mut prefill) {
            progress.set(done, total);
            seconds.push(sequence.prefill(*tokens)?);
            done += 1;
        }
        for (context, decoded) in contexts.iter().zip(&mut decode) {
            progress.set(done, total);
            decoded.sample(&mut sequence, *context)?;
            done += 1;
        }
    }
    Ok((prefill, decode))
}

/// Parts by case.
type Profiles = Vec<Vec<PartOfTime>>;

/// Where the time of every case goes. Looking costs next to nothing, and is done apart from the samples all the same.
fn profiles<B: Backend>(
    model: &B,
    profile: &Profile,
    longest: usize,
    options: &Options,
) -> Result<(Profiles, Profiles)> {
    let mut sequence = Sequence::new(model, longest);
    sequence.prefill(longest.min(WARM_UP_TOKENS))?;
    let mut profiled = |run: &mut dyn FnMut(&mut Sequence<'_, B>) -> Result<f64>| {
        profile.start();
        let seconds = run(&mut sequence);
        Ok(parts_of(profile.stop(), seconds?))
    };
    let prefill = options.prefill.iter().map(|tokens| profiled(&mut |sequence| sequence.prefill(*tokens)));
    let prefill = prefill.collect::<Result<_>>()?;
    let decode = options.contexts.iter().map(|context| profiled(&mut |sequence| Ok(sequence.decode(*context)?.0)));
    Ok((prefill, decode.collect::<Result<_>>()?))
}

fn parts_of(timed: impl IntoIterator<Item = (Part, f64)>, all: f64) -> Vec<PartOfTime> {
    let mut parts: Vec<(&str, f64)> = timed.into_iter().map(|(part, seconds)| (part.name(), seconds)).collect();
    parts.push(("rest", all - parts.iter().map(|(_, seconds)| seconds).sum::<f64>()));
    parts.into_iter().map(|(part, seconds)| PartOfTime { part, seconds, share: seconds / all }).collect()
}

/// One sequence, computed as the engine does.
struct Sequence<'a, B: Backend> {
    model: &'a B,
    pool: B::Pool,
    blocks: Vec<BlockId>,
    positions: Vec<u32>,
    tokens: Vec<u32>,
    /// The model where it is on a GPU.
    cuda: Option<&'a CudaModel>,
}

impl<'a, B: Backend> Sequence<'a, B> {
    fn new(model: &'a B, longest: usize) -> Self {
        let blocks: Vec<BlockId> = (0..longest.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let vocabulary = model.config().vocab_size as u32;
        let mut random = fastrand::Rng::with_seed(1);
        Self {
            model,
            pool: model.new_pool(blocks.len()),
            blocks,
            positions: (0..longest as u32).collect(),
            tokens: (0..longest).map(|_| random.u32(0..vocabulary)).collect(),
            cuda: None,
        }
    }

    /// Seconds to the logits behind the last of `count` tokens.
    fn prefill(&mut self, count: usize) -> Result<f64> {
        if count == 0 {
            return Ok(0.0);
        }
        let started = Stopwatch::start();
        let tokens = self.tokens[..count].to_vec();
        self.logits(&tokens, 0)?;
        Ok(started.elapsed_s())
    }

    /// Seconds of [`NEW_TOKENS`] tokens behind `context` others, whose K and V are random; on a GPU also what is launched for the last one.
    fn decode(&mut self, context: usize) -> Result<(f64, Option<u64>)> {
        let layout = self.model.kv_layout();
        let mut random = fastrand::Rng::with_seed(2);
        let kv: Vec<f32> = (0..context * layout.kv_dim()).map(|_| random.f32() - 0.5).collect();
        let kv = layout.dtype.encode(&kv);
        let slots = &self.positions[..context];
        for layer in 0..layout.layers {
            let to = Slots { blocks: &self.blocks, slots, positions: slots };
            let stored = StoredKv { dtype: layout.dtype, k: &kv, v: &kv };
            self.model.place_stored(&mut self.pool, layer, to, stored)?;
        }
        // What a device has queued is done when it has been read.
        self.model.read_block(&self.pool, self.blocks[0])?;
        let mut token = self.tokens[0];
        let launches = |cuda: &CudaModel| cuda.queued().kernels + cuda.queued().graphs;
        let mut before = None;
        let started = Stopwatch::start();
        for step in 0..NEW_TOKENS {
            before = self.cuda.map(launches);
            let logits = self.logits(&[token], context + step)?;
            let best = argmax(logits.row(0));
            let best = best.ok_or_else(|| Error::internal("the model's logits are not numbers"))?;
            token = best as u32;
        }
        let seconds = started.elapsed_s();
        Ok((seconds, self.cuda.map(launches).zip(before).map(|(all, before)| all - before)))
    }

    /// The logits behind the last of `tokens`, the first of which stands at `first`.
    fn logits(&mut self, tokens: &[u32], first: usize) -> Result<Matrix> {
        let end = first + tokens.len();
        let places = Places::of(first as u32..end as u32, &self.positions);
        let mut forward = Forward::new(self.model, &mut self.pool);
        let logits = forward.logits(tokens, places, Wanted::Last, &self.blocks, &self.positions[..end])?;
        self.model.check()?;
        Ok(logits)
    }
}
#[cfg(test)]
mod tests {
    use ragstone_kernels::config::ModelConfig;

    use super::*;

    #[test]
    fn the_parts_of_a_run_are_the_whole() {
        let config = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 300, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 256, "torch_dtype": "bfloat16"}"#;
        let model = Model::random(ModelConfig::from_json(config).unwrap(), 1, LoadOptions::default());
        let options = Options { shape: Shape::Tiny, prefill: vec![100], contexts: vec![20], runs: 1, profile: true };
        let (prefill, decode) = profiles(&model, model.profile(), 100, &options).unwrap();
        for parts in [&prefill[0], &decode[0]] {
            assert_eq!(parts.len(), Part::ALL.len() + 1);
            // Each was seen. What is left for the rest says nothing where the processor was somebody else's for a while.
            assert!(parts[..Part::ALL.len()].iter().all(|part| part.seconds > 0.0), "{parts:?}");
        }
    }
}
