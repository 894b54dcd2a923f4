//! A model from the tensors of a Hugging Face folder or a GGUF file.

use std::cell::Cell;

use rayon::prelude::*;

use super::{Arithmetic, Embedding, Layer, LoadOptions, Model};
use crate::config::{ModelConfig, WeightDtype};
use crate::dtype::{ComputeDtype, KvDtype, WeightFormat, bf16_bits};
use crate::error::Result;
use crate::linear::{Linear, Precision, Weights};
use crate::rope::Rope;
use crate::simd;
use crate::weights::{Tensor, TensorSource};

/// The tensors still to be packed, and how many bytes of them are.
struct Loader<'a> {
    tensors: &'a dyn TensorSource,
    done: Cell<u64>,
    arithmetic: Arithmetic,
    options: LoadOptions<'a>,
}

pub(super) fn load(config: ModelConfig, tensors: &dyn TensorSource, options: LoadOptions<'_>) -> Result<Model> {
    let loader = Loader { tensors, done: Cell::new(0), arithmetic: arithmetic(&config, &options), options };
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let mut layers = Vec::new();
    for layer in 0..config.layers {
        layers.push(loader.layer(&config, layer)?);
    }
    let (embedding, head) = if config.tie_embeddings {
        (Embedding::Tied, loader.linear("model.embed_tokens", vocab, hidden, false)?)
    } else {
        let embedding = match loader.take("model.embed_tokens.weight", &[vocab, hidden])? {
            Tensor::F32(values) => Embedding::F32(values.into_owned()),
            Tensor::Bf16(bits) => Embedding::Bf16(bits.into_owned()),
        };
        (embedding, loader.linear("lm_head", vocab, hidden, false)?)
    };
    let final_norm = loader.vector("model.norm.weight", hidden)?;
    loader.report(loader.tensors.size_in_bytes());
    let kv_dtype = kv_dtype(&config, &options);
    Ok(Model {
        arithmetic: loader.arithmetic,
        rope: Rope::new(&config),
        kv_dtype,
        embedding,
        layers,
        final_norm,
        head,
        scratch: Default::default(),
        config,
    })
}

/// Weights as they are, but quantized ones in bf16, which loses far less than their blocks did and takes half of f32's memory;
/// products in bf16 where that loses nothing of the weights and saves time.
pub(super) fn arithmetic(config: &ModelConfig, options: &LoadOptions<'_>) -> Arithmetic {
    let weights = options.weights.unwrap_or(match config.torch_dtype {
        WeightDtype::Quantized => WeightFormat::Bf16,
        _ => WeightFormat::Stored,
    });
    let is_bf16 = config.torch_dtype == WeightDtype::Bf16 || weights != WeightFormat::Stored;
    let compute = options.compute.unwrap_or(match is_bf16 && simd::Path::best().has_bf16_products() {
        true => ComputeDtype::Bf16,
        false => ComputeDtype::F32,
    });
    Arithmetic { weights, compute }
}

/// What a layer's products are made in.
pub(super) fn precision(arithmetic: Arithmetic) -> Precision {
    match (arithmetic.weights, arithmetic.compute) {
        (WeightFormat::Q8, _) => Precision::Q8,
        (_, ComputeDtype::Bf16) => Precision::Bf16,
        (_, ComputeDtype::F32) => Precision::F32,
    }
}

/// K and V are as precise as the weights they come from, unless asked otherwise; f16 where those are quantized, as in llama.cpp.
pub(super) fn kv_dtype(config: &ModelConfig, options: &LoadOptions<'_>) -> KvDtype {
    options.kv_dtype.unwrap_or(match config.torch_dtype {
        WeightDtype::F32 => KvDtype::F32,
        WeightDtype::F16 | WeightDtype::Quantized => KvDtype::F16,
        WeightDtype::Bf16 => KvDtype::Bf16,
    })
}

impl Loader<'_> {
    fn layer(&self, config: &ModelConfig, layer: usize) -> Result<Layer> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_dim(), config.kv_dim());
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let head_norm = |part: &str| -> Result<Option<Vec<f32>>> {
            if !config.qk_norm {
                return Ok(None);
            }
            self.vector(&name(part), config.head_dim).map(Some)
        };
        let q_norm = head_norm("self_attn.q_norm.weight")?;
        let k_norm = head_norm("self_attn.k_norm.weight")?;
        Ok(Layer {
            input_norm: self.vector(&name("input_layernorm.weight"), hidden)?,
            q: self.linear(&name("self_attn.q_proj"), query, hidden, config.qkv_bias)?,
            k: self.linear(&name("self_attn.k_proj"), kv, hidden, config.qkv_bias)?,
            v: self.linear(&name("self_attn.v_proj"), kv, hidden, config.qkv_bias)?,
            o: self.linear(&name("self_attn.o_proj"), hidden, query, config.o_bias)?,
            q_norm,
            k_norm,
            post_norm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up: self.gate_up([&name("mlp.gate_proj"), &name("mlp.up_proj")], inner, hidden, config.mlp_bias)?,
            down: self.linear(&name("mlp.down_proj"), hidden, inner, config.mlp_bias)?,
        })
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize, has_bias: bool) -> Result<Linear> {
        let bias = self.bias(name, outputs, has_bias)?;
        let tensor = self.take(&format!("{name}.weight"), &[outputs, inputs])?;
        Ok(Linear::new(outputs, inputs, weights(&tensor), bias.as_deref(), precision(self.arithmetic)))
    }

    fn gate_up(&self, names: [&str; 2], outputs: usize, inputs: usize, has_bias: bool) -> Result<Linear> {
        let biases = [self.bias(names[0], outputs, has_bias)?, self.bias(names[1], outputs, has_bias)?];
        let tensor = |name: &str| self.take(&format!("{name}.weight"), &[outputs, inputs]);
        let (gate, up) = (tensor(names[0])?, tensor(names[1])?);
        let bias = match &biases {
            [Some(gate), Some(up)] => Some([gate.as_slice(), up.as_slice()]),
            _ => None,
        };
        let precision = precision(self.arithmetic);
        Ok(Linear::gate_up(outputs, inputs, [weights(&gate), weights(&up)], bias, precision))
    }

    fn bias(&self, name: &str, len: usize, is_there: bool) -> Result<Option<Vec<f32>>> {
        if is_there { self.vector(&format!("{name}.bias"), len).map(Some) } else { Ok(None) }
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.take(name, &[len])?;
        Ok(tensor.into_f32())
    }

    /// A tensor, with matrices in bf16 if that is how weights are to be kept.
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        // What was taken before is packed by now, or will be at once.
        self.report(self.done.get());
        let is_rounded = shape.len() == 2 && self.arithmetic.weights == WeightFormat::Bf16;
        let tensor = match is_rounded {
            true => self.tensors.tensor_bf16(name, shape)?,
            false => self.tensors.tensor(name, shape)?,
        };
        let size = if matches!(tensor, Tensor::Bf16(_)) { 2 } else { 4 };
        self.done.set(self.done.get() + (tensor.len() * size) as u64);
        Ok(match tensor {
            Tensor::F32(values) if is_rounded => {
                Tensor::Bf16(values.par_iter().map(|value| bf16_bits(*value)).collect::<Vec<_>>().into())
            }
            tensor => tensor,
        })
    }

    fn report(&self, done: u64) {
        if let Some(progress) = self.options.progress {
            let total = self.tensors.size_in_bytes();
            progress(done.min(total), total);
        }
    }
}

fn weights<'a>(tensor: &'a Tensor<'_>) -> Weights<'a> {
    match tensor {
        Tensor::F32(values) => Weights::F32(values),
        Tensor::Bf16(bits) => Weights::Bf16(bits),
    }
}
