//! A model from the tensors of a Hugging Face folder or a GGUF file, on whatever device a [`Packer`] packs for.

mod tensors;

use std::cell::Cell;

use rayon::prelude::*;

use super::elementwise::Norm;
use super::feed_forward::{Expand, FeedForward, Mixture, Part};
use super::parts::{InMemory, Packer, Parts};
use super::{Arithmetic, Embedding, Layer, Model};
use crate::activation::Activation;
use crate::adapter::Adapter;
use crate::config::{Experts, ModelConfig, NormKind, Positions, Qkv, TensorNames, Up, WeightDtype, alibi_slopes};
use crate::dtype::{ComputeDtype, KvDtype, WeightFormat, bf16_bits};
use crate::error::Result;
use crate::linear::{GroupedRows, Precision, Weights};
use crate::simd;
use crate::weights::{Tensor, TensorSource};
pub(super) use tensors::weights;
use tensors::{both, part_of, rows_of, transposed};

/// How a model is built.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// What K and V are rounded to; the element type of the weights if not given.
    pub kv_dtype: Option<KvDtype>,
    /// How weights are kept; if not given, as the checkpoint has them.
    pub weights: Option<WeightFormat>,
    /// What products are computed in; if not given, bf16 where weights are bf16 (as config.json or `weights` says) and
    /// this machine multiplies that faster, else f32.
    pub compute: Option<ComputeDtype>,
    /// What is added to its products; the processor alone has that.
    pub adapter: Option<&'a Adapter>,
    /// Called with the bytes of weights done and in all.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

/// The tensors still to be packed, and how many bytes of them are.
struct Loader<'a, P> {
    packer: &'a P,
    tensors: &'a dyn TensorSource,
    names: &'static TensorNames,
    config: &'a ModelConfig,
    done: Cell<u64>,
    arithmetic: Arithmetic,
    options: LoadOptions<'a>,
}

pub(super) fn load(config: ModelConfig, tensors: &dyn TensorSource, options: LoadOptions<'_>) -> Result<Model> {
    let arithmetic = arithmetic(&config, &options);
    let parts = load_parts(&config, tensors, &InMemory, arithmetic, options)?;
    let kv_dtype = kv_dtype(&config, &options);
    let mut model = Model::of_parts(config, parts, arithmetic, kv_dtype);
    options.adapter.map_or(Ok(()), |adapter| model.adapt(adapter))?;
    Ok(model)
}

/// A model's weights, each packed by `packer`.
///
/// # Errors
/// As [`Model::load`], and those of the packer.
pub fn load_parts<P: Packer>(
    config: &ModelConfig,
    tensors: &dyn TensorSource,
    packer: &P,
    arithmetic: Arithmetic,
    options: LoadOptions<'_>,
) -> Result<Parts<P::Linear>> {
    let names = config.architecture.tensors();
    let loader = Loader { packer, tensors, names, config, done: Cell::new(0), arithmetic, options };
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let layers = (0..config.layers).map(|layer| loader.layer(layer)).collect::<Result<Vec<_>>>()?;
    // A table has a row for each token, whichever way round a layer's matrices are.
    let table = |name: &str| loader.take(&format!("{name}.weight"), &[vocab, hidden]);
    let head = |name: &str| match loader.grouped(&format!("{name}.weight"), vocab, hidden)? {
        Some(rows) => packer.grouped(vocab, hidden, &rows, None),
        None => packer.linear(vocab, hidden, weights(&table(name)?), None, table_precision(arithmetic)),
    };
    let (embedding, head) = if config.tie_embeddings {
        (Embedding::Tied, head(names.embedding)?)
    } else {
        let embedding = match table(names.embedding)? {
            Tensor::F32(values) => Embedding::F32(values.into_owned()),
            Tensor::Bf16(bits) => Embedding::Bf16(bits.into_owned()),
        };
        (embedding, head(names.head)?)
    };
    let position_table = match config.positions {
        Positions::Learned => {
            let rows = config.max_positions + config.positions_skipped;
            Some(loader.values(&format!("{}.weight", names.positions), &[rows, hidden])?)
        }
        Positions::Rotary(_) | Positions::Alibi => None,
    };
    let embedding_norm = config.embedding_norm.then(|| loader.norm(names.embedding_norm)).transpose()?;
    let final_norm = loader.norm(names.final_norm)?;
    loader.report(loader.tensors.size_in_bytes());
    Ok(Parts { embedding, position_table, embedding_norm, layers, final_norm, head })
}

/// ALiBi's slopes, of a model that has it.
pub fn slopes(config: &ModelConfig) -> Option<Vec<f32>> {
    (config.positions == Positions::Alibi).then(|| alibi_slopes(config.heads))
}

/// Weights as they are; products in bf16 where that loses nothing of the weights (or they are quantized) and saves time.
pub(super) fn arithmetic(config: &ModelConfig, options: &LoadOptions<'_>) -> Arithmetic {
    let is_quantized = config.torch_dtype == WeightDtype::Quantized;
    let weights = match options.weights.unwrap_or(WeightFormat::Stored) {
        WeightFormat::Stored if is_quantized => WeightFormat::Native,
        weights => weights,
    };
    let is_bf16 = match weights {
        WeightFormat::Stored => config.torch_dtype == WeightDtype::Bf16,
        WeightFormat::F32 => false,
        WeightFormat::Bf16 | WeightFormat::Q8 | WeightFormat::Q4 | WeightFormat::Native => true,
    };
    let compute = options.compute.unwrap_or(match is_bf16 && simd::Paths::in_use().compute_bf16() {
        true => ComputeDtype::Bf16,
        false => ComputeDtype::F32,
    });
    Arithmetic { weights, compute }
}

/// What a layer's products are made in, where its weights have no groups of their own.
pub(super) fn precision(arithmetic: Arithmetic) -> Precision {
    match (arithmetic.weights, arithmetic.compute) {
        (WeightFormat::Q8, _) => Precision::Q8,
        (WeightFormat::Q4, _) => Precision::Q4,
        (_, ComputeDtype::Bf16) => Precision::Bf16,
        (_, ComputeDtype::F32) => Precision::F32,
    }
}

/// Those of the output head, which may be the embedding table, too: an error there is in every token.
pub(super) fn table_precision(arithmetic: Arithmetic) -> Precision {
    match precision(arithmetic) {
        Precision::Q4 => Precision::Q8,
        precision => precision,
    }
}

/// K and V are as precise as the weights they come from, unless asked otherwise; f16 where those are quantized, as in llama.cpp.
pub fn kv_dtype(config: &ModelConfig, options: &LoadOptions<'_>) -> KvDtype {
    options.kv_dtype.unwrap_or(match config.torch_dtype {
        WeightDtype::F32 => KvDtype::F32,
        WeightDtype::F16 | WeightDtype::Quantized => KvDtype::F16,
        WeightDtype::Bf16 => KvDtype::Bf16,
    })
}

impl<P: Packer> Loader<'_, P> {
    fn layer(&self, layer: usize) -> Result<Layer<P::Linear>> {
        let (config, names) = (self.config, self.names);
        let hidden = config.hidden_size;
        let name = |part: &str| format!("{}.{layer}.{part}", names.layers);
        let qk_norm = |part: &str, row: usize| -> Result<Option<Vec<f32>>> {
            if !config.qk_norm {
                return Ok(None);
            }
            let len = if config.qk_norm_of_rows { row } else { config.head_dim };
            self.norm_weights(&name(part), len).map(Some)
        };
        let norm_of_input = |part: &str| match config.input_norms {
            true => self.norm(&name(part)),
            false => Ok(Norm::None { width: hidden }),
        };
        let input_norm = norm_of_input(names.input_norm)?;
        let [q, k, v] = match names.qkv {
            Qkv::Apart([q, k, v]) => {
                let linear = |part, outputs| self.linear(&name(part), outputs, hidden, config.qkv_bias);
                [linear(q, config.query_dim())?, linear(k, config.kv_dim())?, linear(v, config.kv_dim())?]
            }
            Qkv::ByHead(part) => {
                let head_dim = config.head_dim;
                let row = |part: usize, output: usize| (output / head_dim * 3 + part) * head_dim + output % head_dim;
                self.split(&name(part), row)?
            }
            Qkv::InTurn(part) => {
                let (query, kv) = (config.query_dim(), config.kv_dim());
                self.split(&name(part), |part, output| [0, query, query + kv][part] + output)?
            }
        };
        let output_norms = match config.output_norms {
            true => {
                let [attention, feed_forward] = names.output_norms.map(|part| self.norm(&name(part)));
                Some([attention?, feed_forward?])
            }
            false => None,
        };
        Ok(Layer {
            input_norm,
            q,
            k,
            v,
            o: self.linear(&name(names.o), hidden, config.query_dim(), config.o_bias)?,
            q_norm: qk_norm(names.q_norm, config.query_dim())?,
            k_norm: qk_norm(names.k_norm, config.kv_dim())?,
            post_norm: norm_of_input(names.post_norm)?,
            output_norms,
            feed_forward: self.feed_forward(layer)?,
        })
    }

    fn feed_forward(&self, layer: usize) -> Result<FeedForward<P::Linear>> {
        let (config, names) = (self.config, self.names);
        let layer_name = format!("{}.{layer}", names.layers);
        let Some(rule) = config.experts_of(layer) else {
            return self.part(&layer_name, (names.up, names.down), config.intermediate_size).map(FeedForward::One);
        };
        let experts = &names.experts;
        let router = format!("{layer_name}.{}.weight", experts.router);
        let router = self.values(&router, &[rule.count, config.hidden_size])?;
        let router = self.packer.linear(rule.count, config.hidden_size, Weights::F32(&router), None, Precision::F32)?;
        let part = |expert: usize| {
            let name = format!("{layer_name}.{}.{expert}", experts.each);
            self.part(&name, (experts.up, experts.down), rule.intermediate_size)
        };
        let parts = match experts.each.is_empty() {
            true => self.stacked_parts(&layer_name, rule)?,
            false => (0..rule.count).map(part).collect::<Result<_>>()?,
        };
        Ok(FeedForward::Experts(Mixture { router, parts: self.packer.experts(parts)? }))
    }

    /// Experts whose tensors are one each, of the gates and ups in turn.
    fn stacked_parts(&self, layer_name: &str, rule: &Experts) -> Result<Vec<Part<P::Linear>>> {
        let (hidden, inner, names) = (self.config.hidden_size, rule.intermediate_size, &self.names.experts);
        let (Up::One(up) | Up::Apart([_, up])) = names.up;
        let all = |name: &str, shape: [usize; 3]| self.take(&format!("{layer_name}.{name}.weight"), &shape);
        let ups = all(up, [rule.count, 2 * inner, hidden])?;
        let downs = all(names.down, [rule.count, hidden, inner])?;
        let activation = self.config.feed_forward.gate().unwrap_or(Activation::Silu);
        let (precision, size) = (precision(self.arithmetic), inner * hidden);
        let part = |expert: usize| {
            let [gate, up] = [2 * expert, 2 * expert + 1].map(|half| part_of(&ups, half * size, size));
            let gate_up = self.packer.gate_up(inner, hidden, [gate, up], None, precision, activation)?;
            let down = self.packer.linear(hidden, inner, part_of(&downs, expert * size, size), None, precision)?;
            Ok(Part { expand: Expand::Gated(gate_up), down })
        };
        (0..rule.count).map(part).collect()
    }

    /// A feed-forward part whose tensors' names begin with `stem`.
    fn part(&self, stem: &str, (up, down): (Up, &str), inner: usize) -> Result<Part<P::Linear>> {
        let (hidden, has_bias) = (self.config.hidden_size, self.config.mlp_bias);
        let expand = match self.config.feed_forward.gate() {
            Some(activation) => Expand::Gated(self.gate_up(stem, up, inner, activation)?),
            None => {
                let (Up::One(part) | Up::Apart([_, part])) = up;
                Expand::Plain(self.linear(&format!("{stem}.{part}"), inner, hidden, has_bias)?)
            }
        };
        Ok(Part { expand, down: self.linear(&format!("{stem}.{down}"), hidden, inner, has_bias)? })
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize, has_bias: bool) -> Result<P::Linear> {
        let bias = self.bias(name, outputs, has_bias)?;
        if let Some(rows) = self.grouped(&format!("{name}.weight"), outputs, inputs)? {
            return self.packer.grouped(outputs, inputs, &rows, bias.as_deref());
        }
        let tensor = self.matrix(name, outputs, inputs)?;
        self.packer.linear(outputs, inputs, weights(&tensor), bias.as_deref(), precision(self.arithmetic))
    }

    /// Q, K and V of a tensor that is all three. `row` says which of its rows is an output of the first, the second or the third.
    fn split(&self, name: &str, row: impl Fn(usize, usize) -> usize) -> Result<[P::Linear; 3]> {
        let (inputs, query, kv) = (self.config.hidden_size, self.config.query_dim(), self.config.kv_dim());
        let bias = self.bias(name, query + 2 * kv, self.config.qkv_bias)?;
        let all = self.matrix(name, query + 2 * kv, inputs)?;
        let part = |(part, outputs): (usize, usize)| {
            let rows: Vec<usize> = (0..outputs).map(|output| row(part, output)).collect();
            let bias: Option<Vec<f32>> = bias.as_ref().map(|bias| rows.iter().map(|row| bias[*row]).collect());
            let own = rows_of(&all, inputs, &rows);
            self.packer.linear(outputs, inputs, weights(&own), bias.as_deref(), precision(self.arithmetic))
        };
        Ok([part((0, query))?, part((1, kv))?, part((2, kv))?])
    }

    fn gate_up(&self, stem: &str, up: Up, outputs: usize, activation: Activation) -> Result<P::Linear> {
        let inputs = self.config.hidden_size;
        let name = |part: &str| format!("{stem}.{part}");
        let bias = |name: &str, outputs| self.bias(name, outputs, self.config.mlp_bias);
        let (biases, gate, up) = match up {
            Up::Apart(parts) => {
                let [gate, up] = parts.map(name);
                let biases = [bias(&gate, outputs)?, bias(&up, outputs)?];
                if let Some(linear) = self.grouped_gate_up([&gate, &up], outputs, &biases, activation)? {
                    return Ok(linear);
                }
                (biases, self.matrix(&gate, outputs, inputs)?, self.matrix(&up, outputs, inputs)?)
            }
            Up::One(part) => {
                let bias = bias(&name(part), 2 * outputs)?;
                let halves = |bias: Vec<f32>| (bias[..outputs].to_vec(), bias[outputs..].to_vec());
                let (of_gate, of_up) = bias.map(halves).unzip();
                let both = self.matrix(&name(part), 2 * outputs, inputs)?;
                let half = |first: usize| rows_of(&both, inputs, &(first..first + outputs).collect::<Vec<_>>());
                ([of_gate, of_up], half(0), half(outputs))
            }
        };
        let (bias, precision) = (both(&biases), precision(self.arithmetic));
        self.packer.gate_up(outputs, inputs, [weights(&gate), weights(&up)], bias, precision, activation)
    }

    /// Gate and up, if one of them at least is of quantized blocks. Where the two are grouped in two ways (or one is not), both are rounded
    /// to 8 bits in groups.
    fn grouped_gate_up(
        &self,
        names: [&str; 2],
        outputs: usize,
        biases: &[Option<Vec<f32>>; 2],
        activation: Activation,
    ) -> Result<Option<P::Linear>> {
        let inputs = self.config.hidden_size;
        let [gate, up] = names.map(|name| self.grouped(&format!("{name}.weight"), outputs, inputs));
        let pack = |rows| self.packer.grouped_gate_up(outputs, inputs, rows, both(biases), activation);
        match (gate?, up?) {
            (None, None) => Ok(None),
            (Some(gate), Some(up)) if gate.grouping == up.grouping => pack([&gate, &up]).map(Some),
            _ => {
                let [gate, up] = names.map(|name| self.values(&format!("{name}.weight"), &[outputs, inputs]));
                let (gate, up) = (gate?, up?);
                let rounded = [&gate, &up].map(|values| GroupedRows::rounded(values, inputs));
                pack([&rounded[0], &rounded[1]]).map(Some)
            }
        }
    }

    /// A matrix of quantized blocks, where those are to stay.
    fn grouped(&self, name: &str, outputs: usize, inputs: usize) -> Result<Option<GroupedRows<'_>>> {
        if self.arithmetic.weights != WeightFormat::Native || self.names.is_inputs_first {
            return Ok(None);
        }
        let rows = self.tensors.grouped(name, [outputs, inputs])?;
        if rows.is_some() {
            self.report(self.done.get());
            self.done.set(self.done.get() + (4 * outputs * inputs) as u64);
        }
        Ok(rows)
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        let values = |suffix: &str| self.values(&format!("{name}.{suffix}"), &[self.config.hidden_size]);
        Ok(match self.config.norm {
            NormKind::Rms => Norm::Rms(self.norm_weights(name, self.config.hidden_size)?),
            NormKind::Layer => Norm::Layer { weight: values("weight")?, bias: values("bias")? },
        })
    }

    /// The weights of a root mean square norm.
    fn norm_weights(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let mut weights = self.values(&format!("{name}.weight"), &[len])?;
        if self.config.norm_weights_less_one {
            weights.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(weights)
    }

    fn bias(&self, name: &str, len: usize, is_there: bool) -> Result<Option<Vec<f32>>> {
        if is_there { self.values(&format!("{name}.bias"), &[len]).map(Some) } else { Ok(None) }
    }

    /// A layer's matrix, `[outputs, inputs]`.
    fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Tensor<'_>> {
        let name = format!("{name}.weight");
        if self.names.is_inputs_first {
            return Ok(transposed(&self.take(&name, &[inputs, outputs])?, outputs));
        }
        self.take(&name, &[outputs, inputs])
    }

    /// A tensor's values, unrounded.
    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.report(self.done.get());
        let tensor = self.tensors.tensor(name, shape)?;
        self.count(&tensor);
        Ok(tensor.into_f32())
    }

    /// A matrix, in bf16 if that is how weights are to be kept.
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        // What was taken before is packed by now, or will be at once.
        self.report(self.done.get());
        // What is left of a quantized file, an embedding table say, loses far less by bf16 than by its blocks.
        let is_rounded = matches!(self.arithmetic.weights, WeightFormat::Bf16 | WeightFormat::Native);
        let tensor = match is_rounded {
            true => self.tensors.tensor_bf16(name, shape)?,
            false => self.tensors.tensor(name, shape)?,
        };
        self.count(&tensor);
        Ok(match tensor {
            Tensor::F32(values) if is_rounded => {
                Tensor::Bf16(values.par_iter().map(|value| bf16_bits(*value)).collect::<Vec<_>>().into())
            }
            tensor => tensor,
        })
    }

    fn count(&self, tensor: &Tensor<'_>) {
        let size = if matches!(tensor, Tensor::Bf16(_)) { 2 } else { 4 };
        self.done.set(self.done.get() + (tensor.len() * size) as u64);
    }

    fn report(&self, done: u64) {
        if let Some(progress) = self.options.progress {
            let total = self.tensors.size_in_bytes();
            progress(done.min(total), total);
        }
    }
}
