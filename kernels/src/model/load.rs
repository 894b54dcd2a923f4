//! A model from the tensors of a Hugging Face folder.

use std::path::Path;

use super::{Embedding, Layer, LoadOptions, Model};
use crate::config::{ModelConfig, WeightDtype};
use crate::dtype::KvDtype;
use crate::error::Result;
use crate::linear::Linear;
use crate::rope::Rope;
use crate::weights::{Checkpoint, Tensor};

/// The tensors still to be packed, and how many bytes of them are.
struct Loader<'a> {
    checkpoint: Checkpoint,
    done: u64,
    options: LoadOptions<'a>,
}

pub(super) fn load(folder: &Path, options: LoadOptions<'_>) -> Result<Model> {
    let config = ModelConfig::from_folder(folder)?;
    let mut loader = Loader { checkpoint: Checkpoint::open(folder)?, done: 0, options };
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
    loader.report(loader.checkpoint.size_in_bytes());
    let kv_dtype = kv_dtype(&config, &options);
    Ok(Model {
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

/// K and V are as precise as the weights they come from, unless asked otherwise.
pub(super) fn kv_dtype(config: &ModelConfig, options: &LoadOptions<'_>) -> KvDtype {
    options.kv_dtype.unwrap_or(match config.torch_dtype {
        WeightDtype::F32 => KvDtype::F32,
        WeightDtype::F16 => KvDtype::F16,
        WeightDtype::Bf16 => KvDtype::Bf16,
    })
}

impl Loader<'_> {
    fn layer(&mut self, config: &ModelConfig, layer: usize) -> Result<Layer> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_dim(), config.kv_dim());
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut head_norm = |part: &str| -> Result<Option<Vec<f32>>> {
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
            gate: self.linear(&name("mlp.gate_proj"), inner, hidden, config.mlp_bias)?,
            up: self.linear(&name("mlp.up_proj"), inner, hidden, config.mlp_bias)?,
            down: self.linear(&name("mlp.down_proj"), hidden, inner, config.mlp_bias)?,
        })
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, has_bias: bool) -> Result<Linear> {
        let bias = if has_bias { Some(self.vector(&format!("{name}.bias"), outputs)?) } else { None };
        let bias = bias.as_deref();
        Ok(match self.take(&format!("{name}.weight"), &[outputs, inputs])? {
            Tensor::F32(values) => Linear::from_f32(outputs, inputs, &values, bias),
            Tensor::Bf16(bits) => Linear::from_bf16(outputs, inputs, &bits, bias),
        })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.take(name, &[len]).map(Tensor::into_f32)
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        // What was taken before is packed by now.
        self.report(self.done);
        let tensor = self.checkpoint.tensor(name, shape)?;
        let size = if matches!(tensor, Tensor::Bf16(_)) { 2 } else { 4 };
        self.done += (tensor.len() * size) as u64;
        Ok(tensor)
    }

    fn report(&self, done: u64) {
        if let Some(progress) = self.options.progress {
            let total = self.checkpoint.size_in_bytes();
            progress(done.min(total), total);
        }
    }
}
