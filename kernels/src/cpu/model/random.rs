//! A model of random weights, for measurements and tests.

use rayon::prelude::*;

use super::elementwise::Norm;
use super::feed_forward::{Expand, FeedForward, Mixture, Part};
use super::load::{arithmetic, kv_dtype, precision, table_precision};
use super::parts::{InMemory, Packer, Parts};
use super::{Arithmetic, Embedding, Layer, LoadOptions, Model};
use crate::activation::Activation;
use crate::config::{FeedForwardKind, ModelConfig, NormKind, Positions, WeightDtype};
use crate::dtype::{WeightFormat, bf16_bits};
use crate::error::Result;
use crate::linear::{Precision, Weights};

/// Values that one generator makes.
const VALUES_PER_SEED: usize = 1 << 14;

/// A matrix as a checkpoint would have it.
enum Values {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Values {
    fn view(&self) -> Weights<'_> {
        match self {
            Self::F32(values) => Weights::F32(values),
            Self::Bf16(bits) => Weights::Bf16(bits),
        }
    }
}

struct Source<'a, P> {
    packer: &'a P,
    arithmetic: Arithmetic,
    bf16: bool,
    seed: u64,
    /// Tensors made so far: each has its own stream.
    tensors: u64,
    done: u64,
    total: u64,
    options: LoadOptions<'a>,
}

pub(super) fn random(config: ModelConfig, seed: u64, options: LoadOptions<'_>) -> Model {
    let arithmetic = arithmetic(&config, &options);
    let parts = random_parts(&config, seed, &InMemory, arithmetic, options).expect("host memory takes every matrix");
    let kv_dtype = kv_dtype(&config, &options);
    Model::of_parts(config, parts, arithmetic, kv_dtype)
}

/// Random weights, each packed by `packer`: the same values for every packer.
///
/// # Errors
/// Those of the packer.
pub fn random_parts<P: Packer>(
    config: &ModelConfig,
    seed: u64,
    packer: &P,
    arithmetic: Arithmetic,
    options: LoadOptions<'_>,
) -> Result<Parts<P::Linear>> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let (query, kv) = (config.query_dim(), config.kv_dim());
    let bf16 = config.torch_dtype == WeightDtype::Bf16 || options.weights == Some(WeightFormat::Bf16);
    let attention = config.layers * hidden * (2 * query + 2 * kv);
    let feed_forward: usize = (0..config.layers).map(|layer| feed_forward_values(config, layer)).sum();
    let tables = if config.tie_embeddings { 1 } else { 2 };
    let values = attention + feed_forward + tables * vocab * hidden;
    let total = (values * if bf16 { 2 } else { 4 }) as u64;
    let mut source = Source { packer, arithmetic, bf16, seed, tensors: 0, done: 0, total, options };
    // Each layer adds two parts to the residual stream; together they weigh as much as the embedding.
    let part = 1.0 / (2.0 * config.layers as f32).sqrt() / config.residual_scale;
    let layers = (0..config.layers)
        .map(|layer| {
            Ok(Layer {
                input_norm: source.norm_of_input(config),
                q: source.linear(query, hidden, 1.0, config.qkv_bias)?,
                k: source.linear(kv, hidden, 1.0, config.qkv_bias)?,
                v: source.linear(kv, hidden, 1.0, config.qkv_bias)?,
                o: source.linear(hidden, query, part, config.o_bias)?,
                q_norm: source.qk_norm(config, query),
                k_norm: source.qk_norm(config, kv),
                post_norm: source.norm_of_input(config),
                // What they norm would have variance 1 otherwise, whatever its matrices' scale.
                output_norms: config.output_norms.then(|| [(); 2].map(|()| source.scaled_norm(hidden, part))),
                feed_forward: source.feed_forward(config, layer, part)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    // An embedding row has values of about 1, as the residual stream does, whether or not it is the output head too.
    // The final norm brings the logits back to a few units; its signs keep a tied model from repeating its input.
    let unit = (hidden as f32).sqrt() / config.embedding_scale;
    let head_unit = unit * config.logits_scale;
    let embedding = if config.tie_embeddings {
        Embedding::Tied
    } else {
        source.table(vocab * hidden, 1.0 / config.embedding_scale)
    };
    let head = source.matrix(vocab, hidden, unit);
    let head = packer.linear(vocab, hidden, head.view(), None, table_precision(arithmetic))?;
    let final_norm: Vec<f32> =
        source.f32(hidden, 1.0).into_iter().map(|sign| (2.0 / head_unit).copysign(sign)).collect();
    let final_norm = match config.norm {
        NormKind::Rms => Norm::Rms(final_norm),
        NormKind::Layer => Norm::Layer { weight: final_norm, bias: source.f32(hidden, 0.1 / head_unit) },
    };
    // As far from each other as a token's embeddings are.
    let position_rows = config.max_positions + config.positions_skipped;
    let position_table = (config.positions == Positions::Learned).then(|| source.f32(position_rows * hidden, 0.5));
    let embedding_norm = config.embedding_norm.then(|| source.norm(config.norm, hidden));
    Ok(Parts { embedding, position_table, embedding_norm, layers, final_norm, head })
}

/// Values of a layer's matrices after its attention.
fn feed_forward_values(config: &ModelConfig, layer: usize) -> usize {
    let matrices = if config.feed_forward.gate().is_some() { 3 } else { 2 };
    let hidden = config.hidden_size;
    match config.experts_of(layer) {
        Some(experts) => experts.count * hidden * (1 + matrices * experts.intermediate_size),
        None => matrices * hidden * config.intermediate_size,
    }
}

impl<P: Packer> Source<'_, P> {
    /// Weights that turn inputs of variance 1 into outputs of variance `gain` squared.
    fn linear(&mut self, outputs: usize, inputs: usize, gain: f32, has_bias: bool) -> Result<P::Linear> {
        let bias = has_bias.then(|| self.f32(outputs, 0.1));
        let weights = self.matrix(outputs, inputs, gain);
        self.packer.linear(outputs, inputs, weights.view(), bias.as_deref(), precision(self.arithmetic))
    }

    /// What adds values of variance `gain` squared to each row.
    fn feed_forward(&mut self, config: &ModelConfig, layer: usize, gain: f32) -> Result<FeedForward<P::Linear>> {
        let Some(experts) = config.experts_of(layer) else {
            return self.part(config, config.intermediate_size, gain).map(FeedForward::One);
        };
        let (count, hidden) = (experts.count, config.hidden_size);
        let router = self.matrix(count, hidden, 1.0);
        let router = self.packer.linear(count, hidden, router.view(), None, Precision::F32)?;
        // Of the mean of some that have nothing to do with each other.
        let gain = gain * (experts.per_row as f32).sqrt();
        let parts = (0..count).map(|_| self.part(config, experts.intermediate_size, gain)).collect::<Result<_>>()?;
        Ok(FeedForward::Experts(Mixture { router, parts: self.packer.experts(parts)? }))
    }

    fn part(&mut self, config: &ModelConfig, inner: usize, gain: f32) -> Result<Part<P::Linear>> {
        let (hidden, has_bias) = (config.hidden_size, config.mlp_bias);
        let expand = self.expand(config.feed_forward, inner, hidden, has_bias)?;
        Ok(Part { expand, down: self.linear(hidden, inner, 2.0 * gain, has_bias)? })
    }

    fn expand(
        &mut self,
        kind: FeedForwardKind,
        outputs: usize,
        inputs: usize,
        has_bias: bool,
    ) -> Result<Expand<P::Linear>> {
        Ok(match kind.gate() {
            Some(activation) => Expand::Gated(self.gate_up(outputs, inputs, has_bias, activation)?),
            None => Expand::Plain(self.linear(outputs, inputs, 1.0, has_bias)?),
        })
    }

    fn gate_up(&mut self, outputs: usize, inputs: usize, has_bias: bool, activation: Activation) -> Result<P::Linear> {
        let biases = has_bias.then(|| [self.f32(outputs, 0.1), self.f32(outputs, 0.1)]);
        let bias = biases.as_ref().map(|[gate, up]| [gate.as_slice(), up.as_slice()]);
        let [gate, up] = [self.matrix(outputs, inputs, 1.0), self.matrix(outputs, inputs, 1.0)];
        let weights = [gate.view(), up.view()];
        self.packer.gate_up(outputs, inputs, weights, bias, precision(self.arithmetic), activation)
    }

    fn matrix(&mut self, outputs: usize, inputs: usize, gain: f32) -> Values {
        let deviation = gain / (inputs as f32).sqrt();
        let len = outputs * inputs;
        let values =
            if self.bf16 { Values::Bf16(self.bf16(len, deviation)) } else { Values::F32(self.f32(len, deviation)) };
        self.report(len);
        values
    }

    /// The embedding table, where it is not the output head.
    fn table(&mut self, len: usize, deviation: f32) -> Embedding {
        let table = match self.bf16 {
            true => Embedding::Bf16(self.bf16(len, deviation)),
            false => Embedding::F32(self.f32(len, deviation)),
        };
        self.report(len);
        table
    }

    fn report(&mut self, values: usize) {
        self.done += (values * if self.bf16 { 2 } else { 4 }) as u64;
        if let Some(progress) = self.options.progress {
            progress(self.done, self.total);
        }
    }

    fn norm(&mut self, kind: NormKind, len: usize) -> Norm {
        let weight = self.around_one(len);
        match kind {
            NormKind::Rms => Norm::Rms(weight),
            NormKind::Layer => Norm::Layer { weight, bias: self.f32(len, 0.1) },
        }
    }

    fn norm_of_input(&mut self, config: &ModelConfig) -> Norm {
        match config.input_norms {
            true => self.norm(config.norm, config.hidden_size),
            false => Norm::None { width: config.hidden_size },
        }
    }

    /// `row`: elements of one of Q, or of K.
    fn qk_norm(&mut self, config: &ModelConfig, row: usize) -> Option<Vec<f32>> {
        let len = if config.qk_norm_of_rows { row } else { config.head_dim };
        config.qk_norm.then(|| self.around_one(len))
    }

    fn scaled_norm(&mut self, len: usize, scale: f32) -> Norm {
        Norm::Rms(self.around_one(len).into_iter().map(|weight| weight * scale).collect())
    }

    /// Norm weights.
    fn around_one(&mut self, len: usize) -> Vec<f32> {
        self.f32(len, 0.05).into_iter().map(|value| 1.0 + value).collect()
    }

    fn f32(&mut self, len: usize, deviation: f32) -> Vec<f32> {
        self.values(len, deviation, |value| value)
    }

    fn bf16(&mut self, len: usize, deviation: f32) -> Vec<u16> {
        self.values(len, deviation, bf16_bits)
    }

    /// Uniform values with mean 0 and standard deviation `deviation`.
    fn values<T: Copy + Default + Send>(&mut self, len: usize, deviation: f32, store: fn(f32) -> T) -> Vec<T> {
        self.tensors += 1;
        let stream = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(self.tensors << 32);
        let mut values = vec![T::default(); len];
        values.par_chunks_mut(VALUES_PER_SEED).enumerate().for_each(|(chunk, values)| {
            let mut rng = fastrand::Rng::with_seed(stream.wrapping_add(chunk as u64));
            let half_width = deviation * 3.0_f32.sqrt();
            values.iter_mut().for_each(|value| *value = store((2.0 * rng.f32() - 1.0) * half_width));
        });
        values
    }
}
