//! What a model folder's `config.json` says, in one typed form whichever transformers release wrote it.

mod fields;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::folder;
use fields::Fields;
pub use rope::{Llama3Scaling, RopeConfig, RopeScaling, YarnScaling};

/// Upper bounds of the sizes in a `config.json`. Real models stay far below; a damaged file must not make the program reserve
/// gigabytes before a tensor's shape contradicts it, and their products stay far below 2^63.
const MOST_LAYERS: usize = 1 << 12;
const MOST_HEADS: usize = 1 << 12;
const MOST_HEAD_DIM: usize = 1 << 12;
const MOST_FEATURES: usize = 1 << 22;
const MOST_TOKENS: usize = 1 << 24;
/// Positions, those that scaling adds included: angles are kept for each.
const MOST_POSITIONS: usize = 1 << 26;

/// The decoder families that the forward covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Architecture {
    const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The class name in `architectures`.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The value of `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// `architectures` decides, because several classes share a `model_type`; `model_type` is for folders that
    /// leave it out.
    fn read(fields: &Fields<'_>) -> Result<Self> {
        let classes: Vec<String> = fields.optional("architectures", "a list of class names")?.unwrap_or_default();
        if let Some(found) = classes.iter().find_map(|class| Self::ALL.into_iter().find(|a| a.class_name() == class)) {
            return Ok(found);
        }
        let model_type: Option<String> = fields.optional("model_type", "a string")?;
        if classes.is_empty()
            && let Some(found) = Self::ALL.into_iter().find(|a| Some(a.model_type()) == model_type.as_deref())
        {
            return Ok(found);
        }
        let name = match (classes.first(), model_type) {
            (Some(class), _) => class.clone(),
            (None, Some(model_type)) => format!("model_type \"{model_type}\""),
            (None, None) => {
                return Err(Error::invalid_model(
                    "config.json names neither `architectures` nor `model_type`; is this a language model's folder? \
                     Fetch it again",
                ));
            }
        };
        let supported = Self::ALL.map(Self::class_name).join(", ");
        Err(Error::unsupported(format!("{name} is not supported; take a model of one of these kinds: {supported}")))
    }
}

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
    pub rms_norm_eps: f32,
    pub rope: RopeConfig,
    /// Longest context in tokens, RoPE scaling included.
    pub max_positions: usize,
    /// The output head is the embedding table.
    pub tie_embeddings: bool,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    /// RMS norm over each query and key head before the rotation (Qwen3).
    pub qk_norm: bool,
    /// Attention window in tokens, one a layer; `None` sees everything before it.
    pub windows: Vec<Option<u32>>,
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
        refuse_what_changes_the_forward(&fields)?;

        let hidden_size = size(&fields, "hidden_size", MOST_FEATURES)?;
        let heads = size(&fields, "num_attention_heads", MOST_HEADS)?;
        let layers = size(&fields, "num_hidden_layers", MOST_LAYERS)?;
        let kv_heads = optional_size(&fields, "num_key_value_heads", MOST_HEADS)?.unwrap_or(match architecture {
            // The class default of transformers, which the published files rely on.
            Architecture::Mistral => 8,
            _ => heads,
        });
        let head_dim = optional_size(&fields, "head_dim", MOST_HEAD_DIM)?.unwrap_or(match architecture {
            Architecture::Qwen3 => 128,
            _ => hidden_size / heads,
        });
        let stated_positions =
            optional_size(&fields, "max_position_embeddings", MOST_POSITIONS)?.unwrap_or(match architecture {
                Architecture::Llama => 2048,
                Architecture::Mistral => 131_072,
                Architecture::Qwen2 | Architecture::Qwen3 => 32_768,
            });
        let rope = RopeConfig::read(&fields, stated_positions)?;
        let attention_bias = match architecture {
            Architecture::Llama | Architecture::Qwen3 => fields.flag("attention_bias", false)?,
            Architecture::Mistral | Architecture::Qwen2 => false,
        };
        let config = Self {
            architecture,
            vocab_size: size(&fields, "vocab_size", MOST_TOKENS)?,
            hidden_size,
            intermediate_size: size(&fields, "intermediate_size", MOST_FEATURES)?,
            layers,
            heads,
            kv_heads,
            head_dim,
            rms_norm_eps: fields.optional::<f64>("rms_norm_eps", "a number")?.unwrap_or(1e-6) as f32,
            max_positions: rope.max_positions(stated_positions)?,
            rope,
            tie_embeddings: fields.flag("tie_word_embeddings", false)?,
            qkv_bias: attention_bias || architecture == Architecture::Qwen2,
            o_bias: attention_bias,
            mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias", false)?,
            qk_norm: architecture == Architecture::Qwen3,
            windows: windows(&fields, architecture, layers)?,
            torch_dtype: WeightDtype::read(&fields)?,
            bos_token_id: fields.token_ids("bos_token_id")?.first().copied(),
            eos_token_ids: fields.token_ids("eos_token_id")?,
        };
        config.validate()?;
        Ok(config)
    }

    /// The window of one layer in tokens: a query at position p sees keys at positions greater than p - window.
    /// `None` for full attention, and for a layer that the model does not have.
    pub fn window(&self, layer: usize) -> Option<u32> {
        self.windows.get(layer).copied().flatten()
    }

    /// Elements of one row of Q: `heads * head_dim`.
    pub fn query_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of one row of K, and of V: `kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
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
                "config.json: `head_dim` {} is not even and in 2..={MOST_HEAD_DIM}, as rotary embedding needs; fetch the model \
                 again",
                self.head_dim
            )));
        }
        if !(0.0..=1.0).contains(&self.rms_norm_eps) {
            return Err(Error::invalid_model(
                "config.json: `rms_norm_eps` is not a small positive number; fetch the model again",
            ));
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
        self.rope.check(self.head_dim)
    }
}

/// What no weight's shape would betray, but would make every answer wrong.
fn refuse_what_changes_the_forward(fields: &Fields<'_>) -> Result<()> {
    let activation: Option<String> = fields.optional("hidden_act", "a string")?;
    if let Some(activation) = activation.filter(|name| name != "silu" && name != "swish") {
        return Err(Error::unsupported(format!(
            "activation hidden_act \"{activation}\" is not supported; take a model with silu"
        )));
    }
    if fields.has("quantization_config") {
        return Err(Error::unsupported(
            "the checkpoint is quantized (quantization_config); take the f32, f16 or bf16 weights of the same model",
        ));
    }
    Ok(())
}

fn size(fields: &Fields<'_>, key: &str, most: usize) -> Result<usize> {
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

/// The attention window of every layer, by the rules of each transformers class.
///
/// Mistral: every layer, unless `sliding_window` is null. Qwen2 and Qwen3: only with `use_sliding_window`, and
/// then the layers from `max_window_layers` on, or those that `layer_types` names. Llama has none.
fn windows(fields: &Fields<'_>, architecture: Architecture, layers: usize) -> Result<Vec<Option<u32>>> {
    let stated: Option<u32> = match fields.optional::<u32>("sliding_window", "a positive integer or null")? {
        Some(0) => return Err(Error::invalid_model("config.json: `sliding_window` is 0; fetch the model again")),
        // The classes' default where the key is left out; null switches it off.
        None if !fields.mentions("sliding_window") => Some(4096),
        stated => stated,
    };
    let kinds = fields.optional::<Vec<String>>("layer_types", "a list of strings")?;
    match architecture {
        Architecture::Llama | Architecture::Mistral => {
            let window = stated.filter(|_| architecture == Architecture::Mistral);
            let expected = if window.is_some() { "sliding_attention" } else { "full_attention" };
            // These classes treat all layers alike and ignore `layer_types`; a file that says otherwise was made for
            // a class that this is not.
            if let Some(other) = kinds.iter().flatten().find(|kind| *kind != expected) {
                return Err(Error::unsupported(format!(
                    "{} with layers of type {other} is not supported",
                    architecture.class_name()
                )));
            }
            Ok(vec![window; layers])
        }
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let window = if fields.flag("use_sliding_window", false)? { stated } else { None };
            if let Some(kinds) = kinds {
                return windows_by_kind(&kinds, layers, window);
            }
            let first: usize = fields.optional("max_window_layers", "an integer")?.unwrap_or(28);
            Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
        }
    }
}

fn windows_by_kind(kinds: &[String], layers: usize, window: Option<u32>) -> Result<Vec<Option<u32>>> {
    if kinds.len() != layers {
        return Err(Error::invalid_model(format!(
            "config.json: `layer_types` has {} entries for {layers} layers; fetch the model again",
            kinds.len()
        )));
    }
    kinds
        .iter()
        .map(|kind| match kind.as_str() {
            "full_attention" => Ok(None),
            "sliding_attention" if window.is_some() => Ok(window),
            "sliding_attention" => Err(Error::invalid_model(
                "config.json: `layer_types` asks for sliding attention, but `sliding_window` is off; fetch the model \
                 again",
            )),
            other => Err(Error::unsupported(format!("layers of type {other} are not supported"))),
        })
        .collect()
}
