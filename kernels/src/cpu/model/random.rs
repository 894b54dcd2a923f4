//! A model of random weights, for measurements and tests.

use rayon::prelude::*;

use super::elementwise::Norm;
use super::load::{arithmetic, kv_dtype, precision, slopes, table_precision};
use super::{Arithmetic, Embedding, Expand, Layer, LoadOptions, Model};
use crate::activation::Activation;
use crate::config::{FeedForwardKind, ModelConfig, NormKind, Positions, WeightDtype};
use crate::dtype::{WeightFormat, bf16_bits};
use crate::linear::{Linear, Weights};
use crate::rope::Rope;

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

struct Source<'a> {
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
    let (vocab, hidden, inner) = (config.vocab_size, config.hidden_size, config.intermediate_size);
    let (query, kv) = (config.query_dim(), config.kv_dim());
    let bf16 = config.torch_dtype == WeightDtype::Bf16 || options.weights == Some(WeightFormat::Bf16);
    let matrices = match config.feed_forward {
        FeedForwardKind::Gated | FeedForwardKind::GatedGelu => 3,
        FeedForwardKind::Plain => 2,
    };
    let layer_values = hidden * (2 * query + 2 * kv + matrices * inner);
    let tables = if config.tie_embeddings { 1 } else { 2 };
    let values = config.layers * layer_values + tables * vocab * hidden;
    let total = (values * if bf16 { 2 } else { 4 }) as u64;
    let mut source =
        Source { arithmetic: arithmetic(&config, &options), bf16, seed, tensors: 0, done: 0, total, options };
    // Each layer adds two parts to the residual stream; together they weigh as much as the embedding.
    let part = 1.0 / (2.0 * config.layers as f32).sqrt();
    let layers = (0..config.layers)
        .map(|_| Layer {
            input_norm: source.norm(config.norm, hidden),
            q: source.linear(query, hidden, 1.0, config.qkv_bias),
            k: source.linear(kv, hidden, 1.0, config.qkv_bias),
            v: source.linear(kv, hidden, 1.0, config.qkv_bias),
            o: source.linear(hidden, query, part, config.o_bias),
            q_norm: config.qk_norm.then(|| source.around_one(config.head_dim)),
            k_norm: config.qk_norm.then(|| source.around_one(config.head_dim)),
            post_norm: source.norm(config.norm, hidden),
            // What they norm would have variance 1 otherwise, whatever its matrices' scale.
            output_norms: config.output_norms.then(|| [(); 2].map(|()| source.scaled_norm(hidden, part))),
            expand: source.expand(config.feed_forward, inner, hidden, config.mlp_bias),
            down: source.linear(hidden, inner, 2.0 * part, config.mlp_bias),
        })
        .collect();
    // An embedding row has values of about 1, as the residual stream does, whether or not it is the output head too.
    // The final norm brings the logits back to a few units; its signs keep a tied model from repeating its input.
    let unit = (hidden as f32).sqrt() / config.embedding_scale;
    let embedding = if config.tie_embeddings {
        Embedding::Tied
    } else {
        source.table(vocab * hidden, 1.0 / config.embedding_scale)
    };
    let head = source.matrix(vocab, hidden, unit);
    let head = Linear::new(vocab, hidden, head.view(), None, table_precision(source.arithmetic));
    let final_norm: Vec<f32> = source.f32(hidden, 1.0).into_iter().map(|sign| (2.0 / unit).copysign(sign)).collect();
    let final_norm = match config.norm {
        NormKind::Rms => Norm::Rms(final_norm),
        NormKind::Layer => Norm::Layer { weight: final_norm, bias: source.f32(hidden, 0.1 / unit) },
    };
    // As far from each other as a token's embeddings are.
    let position_table =
        (config.positions == Positions::Learned).then(|| source.f32(config.max_positions * hidden, 0.5));
    let embedding_norm = config.embedding_norm.then(|| source.norm(config.norm, hidden));
    let kv_dtype = kv_dtype(&config, &options);
    Model {
        arithmetic: source.arithmetic,
        rope: Rope::new(&config),
        local_rope: config.local_rope.as_ref().map(|rope| Rope::of(rope, &config)),
        no_rope: Rope::none(config.head_dim),
        slopes: slopes(&config),
        kv_dtype,
        embedding,
        position_table,
        embedding_norm,
        layers,
        final_norm,
        head,
        scratch: Default::default(),
        config,
    }
}

impl Source<'_> {
    /// Weights that turn inputs of variance 1 into outputs of variance `gain` squared.
    fn linear(&mut self, outputs: usize, inputs: usize, gain: f32, has_bias: bool) -> Linear {
        let bias = has_bias.then(|| self.f32(outputs, 0.1));
        let weights = self.matrix(outputs, inputs, gain);
        Linear::new(outputs, inputs, weights.view(), bias.as_deref(), precision(self.arithmetic))
    }

    fn expand(&mut self, kind: FeedForwardKind, outputs: usize, inputs: usize, has_bias: bool) -> Expand {
        match kind.gate() {
            Some(activation) => Expand::Gated(self.gate_up(outputs, inputs, has_bias, activation)),
            None => Expand::Plain(self.linear(outputs, inputs, 1.0, has_bias)),
        }
    }

    fn gate_up(&mut self, outputs: usize, inputs: usize, has_bias: bool, activation: Activation) -> Linear {
        let biases = has_bias.then(|| [self.f32(outputs, 0.1), self.f32(outputs, 0.1)]);
        let bias = biases.as_ref().map(|[gate, up]| [gate.as_slice(), up.as_slice()]);
        let [gate, up] = [self.matrix(outputs, inputs, 1.0), self.matrix(outputs, inputs, 1.0)];
        Linear::gate_up(outputs, inputs, [gate.view(), up.view()], bias, precision(self.arithmetic), activation)
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
