//! Llama and what follows it: RMS norms, rotary positions, a gated feed-forward part; and how Mistral, Qwen2, Qwen3, SmolLM3 and Phi-3 (with
//! Phi-4-mini, which has its class) differ.

use super::family::{Architecture, ExpertNames, Qkv, TensorNames, Up};
use super::fields::Fields;
use super::{
    FeedForwardKind, MOST_FEATURES, MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_TOKENS, ModelConfig,
    NormKind, Positions, RopeConfig, WeightDtype, optional_size, size, usual_scale,
};
use crate::error::{Error, Result};

pub(super) const TENSORS: TensorNames = TensorNames {
    embedding: "model.embed_tokens",
    positions: "",
    embedding_norm: "",
    layers: "model.layers",
    input_norm: "input_layernorm",
    qkv: Qkv::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    o: "self_attn.o_proj",
    post_norm: "post_attention_layernorm",
    output_norms: [""; 2],
    up: Up::Apart(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    experts: ExpertNames::NONE,
    final_norm: "model.norm",
    head: "lm_head",
    is_inputs_first: false,
};

pub(super) const PHI3_TENSORS: TensorNames =
    TensorNames { qkv: Qkv::InTurn("self_attn.qkv_proj"), up: Up::One("mlp.gate_up_proj"), ..TENSORS };

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    let activation: Option<String> = fields.optional("hidden_act", "a string")?;
    if let Some(activation) = activation.filter(|name| name != "silu" && name != "swish") {
        return Err(Error::unsupported(format!(
            "activation hidden_act \"{activation}\" is not supported; take a model with silu"
        )));
    }
    let hidden_size = size(fields, "hidden_size", MOST_FEATURES)?;
    let heads = size(fields, "num_attention_heads", MOST_HEADS)?;
    let layers = size(fields, "num_hidden_layers", MOST_LAYERS)?;
    let kv_heads = optional_size(fields, "num_key_value_heads", MOST_HEADS)?.unwrap_or(match architecture {
        // The class default of transformers, which the published files rely on.
        Architecture::Mistral | Architecture::Mixtral => 8,
        Architecture::SmolLm3 | Architecture::Qwen3Moe => 4,
        _ => heads,
    });
    let head_dim = optional_size(fields, "head_dim", MOST_HEAD_DIM)?.unwrap_or(match architecture {
        Architecture::Qwen3 => 128,
        _ => hidden_size / heads,
    });
    let stated_positions =
        optional_size(fields, "max_position_embeddings", MOST_POSITIONS)?.unwrap_or(match architecture {
            Architecture::Mistral | Architecture::Mixtral => 131_072,
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::SmolLm3 => 32_768,
            Architecture::Phi3 | Architecture::Olmoe => 4096,
            _ => 2048,
        });
    let (rope, part) = RopeConfig::read(fields, stated_positions, default_theta(architecture))?;
    if part != 1.0 && architecture != Architecture::Phi3 {
        return Err(Error::unsupported(
            "rotary embedding of a part of each head is supported of Phi3ForCausalLM alone",
        ));
    }
    let attention_bias = match architecture {
        Architecture::Mistral | Architecture::Mixtral | Architecture::Qwen2 | Architecture::Phi3 => false,
        _ => fields.flag("attention_bias", false)?,
    };
    Ok(ModelConfig {
        architecture,
        vocab_size: size(fields, "vocab_size", MOST_TOKENS)?,
        hidden_size,
        intermediate_size: size(fields, "intermediate_size", MOST_FEATURES)?,
        layers,
        heads,
        kv_heads,
        head_dim,
        norm: NormKind::Rms,
        norm_eps: fields.optional::<f64>("rms_norm_eps", "a number")?.unwrap_or(default_epsilon(architecture)) as f32,
        max_positions: rope.max_positions(stated_positions)?,
        positions: Positions::Rotary(rope),
        positions_skipped: 0,
        feed_forward: FeedForwardKind::Gated,
        experts: None,
        embedding_norm: false,
        embedding_scale: 1.0,
        input_norms: true,
        output_norms: false,
        norm_weights_less_one: false,
        attention_scale: usual_scale(head_dim),
        residual_scale: 1.0,
        logits_scale: 1.0,
        tie_embeddings: fields.flag("tie_word_embeddings", architecture == Architecture::SmolLm3)?,
        qkv_bias: attention_bias || architecture == Architecture::Qwen2,
        o_bias: attention_bias,
        mlp_bias: matches!(architecture, Architecture::Llama | Architecture::SmolLm3 | Architecture::Granite)
            && fields.flag("mlp_bias", false)?,
        qk_norm: matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe),
        qk_norm_of_rows: false,
        windows: windows(fields, architecture, layers)?,
        rotated: (head_dim as f64 * part) as usize,
        unrotated: unrotated(fields, architecture, layers)?,
        local_rope: None,
        torch_dtype: WeightDtype::read(fields)?,
        bos_token_id: fields.token_ids("bos_token_id")?.first().copied(),
        eos_token_ids: fields.token_ids("eos_token_id")?,
    })
}

/// The base of the frequencies where a file names none.
fn default_theta(architecture: Architecture) -> f64 {
    match architecture {
        Architecture::SmolLm3 => 2_000_000.0,
        Architecture::Mixtral => 1_000_000.0,
        _ => 10_000.0,
    }
}

/// A norm's epsilon where a file names none.
fn default_epsilon(architecture: Architecture) -> f64 {
    match architecture {
        Architecture::Mixtral | Architecture::Olmo2 | Architecture::Olmoe => 1e-5,
        _ => 1e-6,
    }
}

/// The layers that turn nothing. SmolLM3 has a list of 1 and 0 (`no_rope_layers`: 0 is a layer without), or leaves out every fourth.
fn unrotated(fields: &Fields<'_>, architecture: Architecture, layers: usize) -> Result<Vec<usize>> {
    if architecture != Architecture::SmolLm3 {
        return Ok(Vec::new());
    }
    let listed = fields.optional::<Vec<u8>>("no_rope_layers", "a list of 0 and 1")?;
    if let Some(listed) = listed {
        if listed.len() != layers {
            return Err(Error::invalid_model(format!(
                "config.json: `no_rope_layers` has {} entries for {layers} layers; fetch the model again",
                listed.len()
            )));
        }
        return Ok((0..layers).filter(|layer| listed[*layer] == 0).collect());
    }
    let interval = optional_size(fields, "no_rope_layer_interval", MOST_LAYERS)?.unwrap_or(4);
    Ok((0..layers).filter(|layer| (layer + 1) % interval == 0).collect())
}

/// The attention window of every layer, by the rules of each transformers class.
///
/// Mistral, Mixtral and Phi-3: every layer, unless `sliding_window` is null; Qwen3-MoE too, with `use_sliding_window`. Qwen2 and Qwen3: only with `use_sliding_window`, and
/// then the layers from `max_window_layers` on, or those that `layer_types` names. SmolLM3: the same of those that turn nothing. Llama has none.
fn windows(fields: &Fields<'_>, architecture: Architecture, layers: usize) -> Result<Vec<Option<u32>>> {
    let stated: Option<u32> = match fields.optional::<u32>("sliding_window", "a positive integer or null")? {
        Some(0) => return Err(Error::invalid_model("config.json: `sliding_window` is 0; fetch the model again")),
        // The classes' default where the key is left out; null switches it off.
        None if !fields.mentions("sliding_window") && has_default_window(architecture) => Some(4096),
        stated => stated,
    };
    let kinds = fields.optional::<Vec<String>>("layer_types", "a list of strings")?;
    match architecture {
        Architecture::Qwen2 | Architecture::Qwen3 | Architecture::SmolLm3 => {
            let window = if fields.flag("use_sliding_window", false)? { stated } else { None };
            if let Some(kinds) = kinds {
                return windows_by_kind(&kinds, layers, window);
            }
            if architecture == Architecture::SmolLm3 {
                let unrotated = unrotated(fields, architecture, layers)?;
                return Ok((0..layers).map(|layer| window.filter(|_| unrotated.contains(&layer))).collect());
            }
            let first: usize = fields.optional("max_window_layers", "an integer")?.unwrap_or(28);
            Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
        }
        _ => {
            let has_window = match architecture {
                Architecture::Mistral | Architecture::Mixtral | Architecture::Phi3 => true,
                Architecture::Qwen3Moe => fields.flag("use_sliding_window", false)?,
                _ => false,
            };
            let window = stated.filter(|_| has_window);
            let expected = if window.is_some() { "sliding_attention" } else { "full_attention" };
            // Another word for the same, in one class that has checked its list itself.
            let kinds = kinds.filter(|_| architecture != Architecture::GraniteMoeHybrid);
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
    }
}

fn has_default_window(architecture: Architecture) -> bool {
    !matches!(architecture, Architecture::SmolLm3 | Architecture::Phi3 | Architecture::Mixtral)
}

pub(super) fn windows_by_kind(kinds: &[String], layers: usize, window: Option<u32>) -> Result<Vec<Option<u32>>> {
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
