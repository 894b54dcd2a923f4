//! What a model folder's `config.json` says, in one typed form whichever transformers release wrote it.

mod bloom;
mod experts;
mod family;
mod fields;
mod gemma3;
mod gpt2;
mod granite;
mod llama;
mod olmo;
mod opt;
mod positions;
pub(crate) mod recurrent;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::error::{Error, Result};
use crate::folder;
use fields::Fields;

pub use experts::Experts;
pub use family::Architecture;
pub(crate) use family::{Qkv, TensorNames, Up};
pub use positions::Positions;
pub(crate) use positions::alibi_slopes;
pub use rope::{Llama3Scaling, LongRopeScaling, RopeConfig, RopeScaling, YarnScaling};

/// Upper bounds of the sizes in a `config.json`. Real models stay far below; a damaged file must not make the program reserve
/// gigabytes before a tensor's shape contradicts it, and their products stay far below 2^63.
const MOST_LAYERS: usize = 1 << 12;
const MOST_HEADS: usize = 1 << 12;
const MOST_HEAD_DIM: usize = 1 << 12;
const MOST_FEATURES: usize = 1 << 22;
const MOST_TOKENS: usize = 1 << 24;
/// Positions, those that scaling adds included: angles are kept for each.
const MOST_POSITIONS: usize = 1 << 26;

/// The element type of a checkpoint's weights as `config.json` states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    F32,
    F16,
    Bf16,
    /// Blocks of integers with scales, of GGUF files.
    Quantized,
}

impl WeightDtype {
    fn read(fields: &Fields<'_>) -> Result<Self> {
        let name: Option<String> = match fields.optional("dtype", "a dtype's name")? {
            Some(name) => Some(name),
            None => fields.optional("torch_dtype", "a dtype's name")?,
        };
        match name.as_deref().map(|name| name.trim_start_matches("torch.")) {
            None | Some("float32" | "float" | "auto") => Ok(Self::F32),
            Some("float16" | "half") => Ok(Self::F16),
            Some("bfloat16") => Ok(Self::Bf16),
            Some(other) => {
                Err(Error::unsupported(format!("weights of dtype {other} are not supported; take f32, f16 or bf16")))
            }
        }
    }
}

/// How rows are normed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// Root mean square norm, with weights.
    Rms,
    /// Layer norm, with weights and biases.
    Layer,
}

impl NormKind {
    /// Its key of [`ModelConfig::norm_eps`].
    fn epsilon_key(self) -> &'static str {
        match self {
            Self::Rms => "rms_norm_eps",
            Self::Layer => "layer_norm_epsilon",
        }
    }
}

/// What a layer does to each row by itself, behind its attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForwardKind {
    /// `down(silu(gate(x)) * up(x))`
    Gated,
    /// `down(gelu(gate(x)) * up(x))`, with the GELU's approximation by tanh.
    GatedGelu,
    /// `down(gelu(up(x)))`, with the GELU's approximation by tanh.
    Plain,
    /// `down(relu(up(x)))`
    PlainRelu,
}

impl FeedForwardKind {
    /// What its gate goes through, if it has one.
    pub fn gate(self) -> Option<Activation> {
        match self {
            Self::Gated => Some(Activation::Silu),
            Self::GatedGelu => Some(Activation::Gelu),
            Self::Plain | Self::PlainRelu => None,
        }
    }
}

/// Shapes and rules of one decoder-only model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head; need not be `hidden_size / heads`.
    pub head_dim: usize,
    pub norm: NormKind,
    /// What is added to a norm's mean of squares.
    pub norm_eps: f32,
    pub positions: Positions,
    /// Rows of the table of learned positions before that of position 0 (OPT).
    pub positions_skipped: usize,
    /// Longest context in tokens, RoPE scaling included.
    pub max_positions: usize,
    pub feed_forward: FeedForwardKind,
    /// Several feed-forward parts in place of one (Mixtral, Qwen3-MoE).
    pub experts: Option<Experts>,
    /// A norm of embeddings, before the first layer.
    pub embedding_norm: bool,
    /// What embeddings are multiplied by; not rounded, as in llama.cpp and transformers in f32 (transformers in bf16 rounds it).
    pub embedding_scale: f32,
    /// Norms of what a layer's attention and its feed-forward part take (not of OLMo 2).
    pub input_norms: bool,
    /// Norms of what these two add (Gemma, OLMo 2).
    pub output_norms: bool,
    /// Weights of norms are kept less one (Gemma).
    pub norm_weights_less_one: bool,
    /// What the products of queries and keys are multiplied by; mostly `1 / sqrt(head_dim)`.
    pub attention_scale: f32,
    /// What a layer's attention and feed-forward part are multiplied by before they are added; mostly 1 (not of Granite).
    pub residual_scale: f32,
    /// What logits are multiplied by; mostly 1 (not of Granite).
    pub logits_scale: f32,
    /// The output head is the embedding table.
    pub tie_embeddings: bool,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    /// RMS norm over each query and key head before the rotation (Qwen3).
    pub qk_norm: bool,
    /// That norm is one over all heads (OLMo).
    pub qk_norm_of_rows: bool,
    /// Attention window in tokens, one a layer; `None` sees everything before it.
    pub windows: Vec<Option<u32>>,
    /// Elements of a head that are turned, from the first one on, where positions are rotary.
    pub rotated: usize,
    /// Layers that turn nothing though positions are rotary.
    pub unrotated: Vec<usize>,
    /// The rotation of layers that have a window, where it is another than that of the others.
    pub local_rope: Option<RopeConfig>,
    pub torch_dtype: WeightDtype,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads `config.json` of a Hugging Face folder.
    pub fn from_folder(model: &Path) -> Result<Self> {
        let path = model.join("config.json");
        let text = folder::read_text(&path, folder::CONFIG_BYTES).map_err(|error| {
            Error::invalid_model(format!(
                "cannot read {}: {error}; point --model at a folder that holds config.json, *.safetensors and \
                 tokenizer.json",
                path.display()
            ))
            .with_source(error)
        })?;
        Self::from_json(&text).map_err(|error| {
            let message = format!("{}: {error}", path.display());
            Error::new(error.kind(), message)
        })
    }

    /// Reads the text of a `config.json` in the form of transformers 4 (`rope_theta`, `rope_scaling`,
    /// `torch_dtype`) or 5 (`rope_parameters`, `dtype`, `layer_types`).
    pub fn from_json(text: &str) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
            Error::invalid_model(format!("not valid JSON ({error}); fetch the model again")).with_source(error)
        })?;
        let fields = Fields::new(&value)?;
        let architecture = Architecture::read(&fields)?;
        if fields.has("quantization_config") {
            return Err(Error::unsupported(
                "the checkpoint is quantized (quantization_config); take the f32, f16 or bf16 weights of the same model",
            ));
        }
        let config = architecture.read_config(&fields)?;
        config.validate()?;
        Ok(config)
    }

    /// The window of one layer in tokens: a query at position p sees keys at positions greater than p - window.
    /// `None` for full attention, and for a layer that the model does not have.
    pub fn window(&self, layer: usize) -> Option<u32> {
        self.windows.get(layer).copied().flatten()
    }

    /// The experts of one layer, where it has some.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| !experts.dense_layers.contains(&layer))
    }

    /// Features inside of the feed-forward parts that a row goes through in a layer; where layers differ, in one with experts.
    pub fn inner_features(&self) -> usize {
        let of_experts = self.experts.as_ref().map(|experts| experts.per_row * experts.intermediate_size);
        of_experts.unwrap_or(self.intermediate_size)
    }

    /// Elements of one row of Q: `heads * head_dim`.
    pub fn query_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of one row of K, and of V: `kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The rotation of its queries and keys, if it has one; of its layers without a window, where they differ.
    pub fn rope(&self) -> Option<&RopeConfig> {
        self.positions.rope()
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::invalid_model(format!(
                "num_attention_heads {} is not a multiple of num_key_value_heads {}; fetch the model again",
                self.heads, self.kv_heads
            )));
        }
        if self.head_dim < 2 || !self.head_dim.is_multiple_of(2) || self.head_dim > MOST_HEAD_DIM {
            return Err(Error::invalid_model(format!(
                "config.json: `head_dim` {} is not even and in 2..={MOST_HEAD_DIM}; fetch the model again",
                self.head_dim
            )));
        }
        if !(0.0..=1.0).contains(&self.norm_eps) {
            let key = self.norm.epsilon_key();
            return Err(Error::invalid_model(format!(
                "config.json: `{key}` is not a small positive number; fetch the model again"
            )));
        }
        let ids = [("bos_token_id", self.bos_token_id.as_slice()), ("eos_token_id", &self.eos_token_ids)];
        for (key, ids) in ids {
            if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab_size) {
                return Err(Error::invalid_model(format!(
                    "config.json: `{key}` is {id}, outside the vocabulary of {}; fetch the model again",
                    self.vocab_size
                )));
            }
        }
        let Some(rope) = self.positions.rope() else { return Ok(()) };
        if self.rotated < 2 || !self.rotated.is_multiple_of(2) || self.rotated > self.head_dim {
            return Err(Error::invalid_model(format!(
                "config.json: `partial_rotary_factor` turns {} of the {} elements of a head; fetch the model again",
                self.rotated, self.head_dim
            )));
        }
        let all = [Some(rope), self.local_rope.as_ref()];
        all.into_iter().flatten().try_for_each(|rope| rope.check(self.rotated))
    }
}

fn size(fields: &Fields<'_>, key: &str, most: usize) -> Result<usize> {
    size_of(fields, &[key], most)
}

/// A size that goes by several names: the first that is there.
fn size_of(fields: &Fields<'_>, keys: &[&str], most: usize) -> Result<usize> {
    let key = keys.iter().find(|key| fields.has(key)).unwrap_or(&keys[0]);
    optional_size(fields, key, most)?
        .ok_or_else(|| Error::invalid_model(format!("config.json lacks `{key}`; fetch the model again")))
}

fn optional_size(fields: &Fields<'_>, key: &str, most: usize) -> Result<Option<usize>> {
    match fields.optional::<usize>(key, "a positive integer")? {
        Some(value) if value == 0 || value > most => Err(Error::invalid_model(format!(
            "config.json: `{key}` is {value}, outside 1..={most}; fetch the model again"
        ))),
        value => Ok(value),
    }
}

/// Refuses a switch that changes the forward, and that no weight's shape would betray.
fn refuse_flag(fields: &Fields<'_>, key: &str, usual: bool) -> Result<()> {
    if fields.flag(key, usual)? == usual {
        return Ok(());
    }
    Err(Error::unsupported(format!("`{key}` {} is not supported; take another model", !usual)))
}

/// What scores are multiplied by, where a model says nothing else ("Attention Is All You Need", equation 1).
fn usual_scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// Elements of a head, where heads share the features evenly.
fn heads_of(hidden_size: usize, heads: usize) -> Result<usize> {
    if hidden_size.is_multiple_of(heads) {
        return Ok(hidden_size / heads);
    }
    Err(Error::invalid_model(format!(
        "config.json: {hidden_size} features are not a multiple of {heads} heads; fetch the model again"
    )))
}
