//! The encoder of "BERT: Pre-training of Deep Bidirectional Transformers" on the crate's own matrix products.

mod kernels;

use rayon::prelude::*;
use serde::Deserialize;

use crate::aligned::SharedMut;
use crate::error::{Error, Result};
use crate::linear::{Input, Linear, Output, Precision, Weights};
use crate::simd::{self, Path};
use crate::weights::{Checkpoint, Tensor};
use kernels::{AddNorm, Attend, Gelu};

/// Values that one thread takes at a time between the matrix products.
const VALUES_PER_TASK: usize = 1 << 15;

/// What `config.json` must say of a BERT; everything else in it is for training.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) intermediate_size: usize,
    pub(super) hidden_act: String,
    pub(super) max_position_embeddings: usize,
    pub(super) type_vocab_size: usize,
    pub(super) layer_norm_eps: f64,
}

impl Config {
    /// Whether a BERT can be like this; `path` is where it stands.
    ///
    /// # Errors
    /// `InvalidModel` if not, naming the key; `UnsupportedModel` for another activation than GELU.
    pub(super) fn check(&self, path: &std::path::Path) -> Result<()> {
        if self.hidden_act != "gelu" {
            return Err(Error::unsupported(
                "embedding models with another activation than gelu are not supported; take all-MiniLM-L6-v2",
            ));
        }
        let invalid = |what: String| {
            Err(Error::invalid_model(format!(
                "{}: {what}, so it describes no BERT; fetch the folder again, or take all-MiniLM-L6-v2",
                path.display()
            )))
        };
        // Tensors' shapes must agree later; these bounds keep the products of sizes far below 2^63.
        for (key, value, range) in [
            ("vocab_size", self.vocab_size, 1..=1 << 24),
            ("hidden_size", self.hidden_size, 1..=1 << 16),
            ("num_hidden_layers", self.num_hidden_layers, 1..=1 << 12),
            ("num_attention_heads", self.num_attention_heads, 1..=1 << 12),
            ("intermediate_size", self.intermediate_size, 1..=1 << 20),
            // The shortest text is two special tokens.
            ("max_position_embeddings", self.max_position_embeddings, 2..=1 << 24),
            ("type_vocab_size", self.type_vocab_size, 1..=1 << 16),
        ] {
            if !range.contains(&value) {
                return invalid(format!("`{key}` is {value}, outside {}..={}", range.start(), range.end()));
            }
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return invalid("`hidden_size` is not a multiple of `num_attention_heads`".to_owned());
        }
        if !(0.0..=1.0).contains(&self.layer_norm_eps) {
            return invalid("`layer_norm_eps` is not a small positive number".to_owned());
        }
        Ok(())
    }
}

/// The weights, f32 unless the file has bf16.
pub(super) struct Bert {
    /// `[vocabulary, hidden]`.
    words: Vec<f32>,
    /// `[positions, hidden]`, with the embedding of token type 0 added: every text is a first segment.
    positions: Vec<f32>,
    norm: Norm,
    layers: Vec<Layer>,
    hidden: usize,
    heads: usize,
}

struct Layer {
    /// Query, key and value one after the other: `[3 * hidden, hidden]`.
    qkv: Linear,
    attention_output: Linear,
    attention_norm: Norm,
    intermediate: Linear,
    output: Linear,
    output_norm: Norm,
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f32,
}

impl Bert {
    /// # Errors
    /// `InvalidModel` for tensors that are missing or do not fit `config`, which was checked.
    pub(super) fn load(checkpoint: &Checkpoint, config: &Config) -> Result<Self> {
        let loader = Loader {
            checkpoint,
            // Checkpoints saved with a head on top carry the name of the body.
            prefix: match checkpoint.contains("bert.embeddings.word_embeddings.weight") {
                true => "bert.",
                false => "",
            },
            hidden: config.hidden_size,
            epsilon: config.layer_norm_eps as f32,
        };
        let hidden = config.hidden_size;
        let kind = loader.values("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, hidden])?;
        let mut positions =
            loader.values("embeddings.position_embeddings.weight", &[config.max_position_embeddings, hidden])?;
        for position in positions.chunks_exact_mut(hidden) {
            position.iter_mut().zip(&kind).for_each(|(position, kind)| *position += kind);
        }
        Ok(Self {
            words: loader.values("embeddings.word_embeddings.weight", &[config.vocab_size, hidden])?,
            positions,
            norm: loader.norm("embeddings.LayerNorm")?,
            layers: (0..config.num_hidden_layers)
                .map(|layer| loader.layer(layer, config.intermediate_size))
                .collect::<Result<_>>()?,
            hidden,
            heads: config.num_attention_heads,
        })
    }

    /// The mean of a text's last hidden states, `[hidden]`, for each of `texts`. Ids and lengths must be within the
    /// vocabulary and the positions.
    ///
    /// All texts are the rows of one matrix, without padding; only attention looks at them one at a time.
    pub(super) fn forward(&self, texts: &[&[u32]]) -> Vec<Vec<f32>> {
        let rows = texts.iter().map(|text| text.len()).sum::<usize>();
        let mut hidden = self.embed(texts, rows);
        let mut qkv = vec![0.0; rows * 3 * self.hidden];
        let mut attended = vec![0.0; rows * self.hidden];
        let mut change = vec![0.0; rows * self.hidden];
        let mut inner = Vec::new();
        for layer in &self.layers {
            layer.qkv.forward(Input::f32(&hidden, rows), Output::Store(&mut qkv));
            self.attend(texts, &qkv, &mut attended);
            layer.attention_output.forward(Input::f32(&attended, rows), Output::Store(&mut change));
            layer.attention_norm.add_norm(&mut hidden, &change);
            inner.resize(rows * layer.intermediate.out_features(), 0.0);
            layer.intermediate.forward(Input::f32(&hidden, rows), Output::Store(&mut inner));
            inner.par_chunks_mut(VALUES_PER_TASK).for_each(|values| simd::dispatch(Path::best(), Gelu(values)));
            layer.output.forward(Input::f32(&inner, rows), Output::Store(&mut change));
            layer.output_norm.add_norm(&mut hidden, &change);
        }
        let mut rest = hidden.as_slice();
        let mean = |text: &&[u32]| {
            let (rows, behind) = rest.split_at(text.len() * self.hidden);
            rest = behind;
            let mut mean = vec![0.0; self.hidden];
            for row in rows.chunks_exact(self.hidden) {
                mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value);
            }
            mean.iter_mut().for_each(|mean| *mean /= text.len() as f32);
            mean
        };
        texts.iter().map(mean).collect()
    }

    fn embed(&self, texts: &[&[u32]], rows: usize) -> Vec<f32> {
        let mut words = Vec::with_capacity(rows * self.hidden);
        let mut positions = Vec::with_capacity(rows * self.hidden);
        for text in texts {
            for id in *text {
                words.extend_from_slice(&self.words[*id as usize * self.hidden..][..self.hidden]);
            }
            positions.extend_from_slice(&self.positions[..text.len() * self.hidden]);
        }
        self.norm.add_norm(&mut words, &positions);
        words
    }

    /// `out = softmax(q k^T / sqrt(head_dim)) v`, a text and a head at a time.
    fn attend(&self, texts: &[&[u32]], qkv: &[f32], out: &mut [f32]) {
        let starts = texts.iter().scan(0, |next, text| {
            let start = *next;
            *next += text.len();
            Some(start..*next)
        });
        let tasks: Vec<_> = starts.flat_map(|rows| (0..self.heads).map(move |head| (rows.clone(), head))).collect();
        // Tasks write disjoint places: each has its own rows or its own columns.
        let out = SharedMut::new(out);
        tasks.into_par_iter().for_each(|(rows, head)| {
            let head_dim = self.hidden / self.heads;
            simd::dispatch(Path::best(), Attend { qkv, rows, head, head_dim, hidden: self.hidden, out });
        });
    }
}

impl Norm {
    /// `rows = norm(rows + change)`.
    fn add_norm(&self, rows: &mut [f32], change: &[f32]) {
        let chunk = (VALUES_PER_TASK / self.weight.len()).max(1) * self.weight.len();
        let Self { weight, bias, epsilon } = self;
        rows.par_chunks_mut(chunk).zip(change.par_chunks(chunk)).for_each(|(rows, change)| {
            simd::dispatch(Path::best(), AddNorm { rows, change, weight, bias, epsilon: *epsilon });
        });
    }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'static str,
    hidden: usize,
    epsilon: f32,
}

impl Loader<'_> {
    fn layer(&self, layer: usize, inner: usize) -> Result<Layer> {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let square = [self.hidden, self.hidden];
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for part in ["query", "key", "value"] {
            let name = name(&format!("attention.self.{part}"));
            weights.append(&mut self.values(&format!("{name}.weight"), &square)?);
            biases.append(&mut self.values(&format!("{name}.bias"), &[self.hidden])?);
        }
        Ok(Layer {
            qkv: linear([3 * self.hidden, self.hidden], Weights::F32(&weights), &biases),
            attention_output: self.linear(&name("attention.output.dense"), square)?,
            attention_norm: self.norm(&name("attention.output.LayerNorm"))?,
            intermediate: self.linear(&name("intermediate.dense"), [inner, self.hidden])?,
            output: self.linear(&name("output.dense"), [self.hidden, inner])?,
            output_norm: self.norm(&name("output.LayerNorm"))?,
        })
    }

    fn linear(&self, name: &str, shape: [usize; 2]) -> Result<Linear> {
        let bias = self.values(&format!("{name}.bias"), &shape[..1])?;
        Ok(match self.checkpoint.tensor(&format!("{}{name}.weight", self.prefix), &shape)? {
            Tensor::F32(values) => linear(shape, Weights::F32(&values), &bias),
            Tensor::Bf16(bits) => linear(shape, Weights::Bf16(&bits), &bias),
        })
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        // Checkpoints converted from TensorFlow have kept its names.
        let (weight, bias) = match self.checkpoint.contains(&format!("{}{name}.gamma", self.prefix)) {
            true => ("gamma", "beta"),
            false => ("weight", "bias"),
        };
        Ok(Norm {
            weight: self.values(&format!("{name}.{weight}"), &[self.hidden])?,
            bias: self.values(&format!("{name}.{bias}"), &[self.hidden])?,
            epsilon: self.epsilon,
        })
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.checkpoint.tensor_f32(&format!("{}{name}", self.prefix), shape)
    }
}

/// Embeddings are compared with those of other runs: they are computed in f32 wherever they are.
fn linear([outputs, inputs]: [usize; 2], weights: Weights<'_>, bias: &[f32]) -> Linear {
    Linear::new(outputs, inputs, weights, Some(bias), Precision::F32)
}
