//! Gemma 3, its language models: as Llama with norms of what is added, too, a GELU in the gate, norms of heads, and two bases of the rotation: layers that
//! see a window turn by another one than those that see everything ("Gemma 3 Technical Report").

use super::family::{Architecture, TensorNames};
use super::fields::Fields;
use super::llama::windows_by_kind;
use super::{
    FeedForwardKind, MOST_FEATURES, MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_TOKENS, ModelConfig,
    NormKind, Positions, RopeConfig, WeightDtype, llama, optional_size, refuse_flag, size,
};
use crate::error::{Error, Result};

pub(super) const TENSORS: TensorNames = TensorNames {
    post_norm: "pre_feedforward_layernorm",
    output_norms: ["post_attention_layernorm", "post_feedforward_layernorm"],
    ..llama::TENSORS
};

const ACTIVATION: &str = "gelu_pytorch_tanh";

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    refuse_flag(fields, "use_bidirectional_attention", false)?;
    for key in ["hidden_activation", "hidden_act"] {
        let activation: Option<String> = fields.optional(key, "a string")?;
        if let Some(activation) = activation.filter(|name| name != ACTIVATION) {
            let message = format!("{key} \"{activation}\" is not supported; take a model with {ACTIVATION}");
            return Err(Error::unsupported(message));
        }
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if fields.has(key) {
            return Err(Error::unsupported(format!("`{key}` (Gemma 2) is not supported; take a Gemma 3 model")));
        }
    }
    let hidden_size = size(fields, "hidden_size", MOST_FEATURES)?;
    let layers = size(fields, "num_hidden_layers", MOST_LAYERS)?;
    // The class defaults of transformers, which published files rely on.
    let number = |key, most, default| Ok::<_, Error>(optional_size(fields, key, most)?.unwrap_or(default));
    let head_dim = number("head_dim", MOST_HEAD_DIM, 256)?;
    let max_positions = number("max_position_embeddings", MOST_POSITIONS, 131_072)?;
    let (rope, local_rope) = ropes(fields, max_positions)?;
    let scalar = fields.optional::<f64>("query_pre_attn_scalar", "a number")?.unwrap_or(256.0);
    if !(scalar > 0.0 && scalar <= MOST_FEATURES as f64) {
        return Err(Error::invalid_model(format!(
            "config.json: `query_pre_attn_scalar` is {scalar}, not above 0 and at most {MOST_FEATURES}; fetch the model again"
        )));
    }
    let has_bias = fields.flag("attention_bias", false)?;
    Ok(ModelConfig {
        architecture,
        vocab_size: number("vocab_size", MOST_TOKENS, 262_208)?,
        hidden_size,
        intermediate_size: size(fields, "intermediate_size", MOST_FEATURES)?,
        layers,
        heads: number("num_attention_heads", MOST_HEADS, 8)?,
        kv_heads: number("num_key_value_heads", MOST_HEADS, 4)?,
        head_dim,
        norm: NormKind::Rms,
        norm_eps: fields.optional::<f64>("rms_norm_eps", "a number")?.unwrap_or(1e-6) as f32,
        positions: Positions::Rotary(rope),
        positions_skipped: 0,
        // Its files state the stretched length.
        max_positions,
        feed_forward: FeedForwardKind::GatedGelu,
        experts: None,
        embedding_norm: false,
        embedding_scale: (hidden_size as f32).sqrt(),
        input_norms: true,
        output_norms: true,
        norm_weights_less_one: true,
        attention_scale: (scalar as f32).powf(-0.5),
        residual_scale: 1.0,
        logits_scale: 1.0,
        tie_embeddings: fields.flag("tie_word_embeddings", true)?,
        qkv_bias: has_bias,
        o_bias: has_bias,
        mlp_bias: false,
        qk_norm: true,
        qk_norm_of_rows: false,
        windows: windows(fields, layers)?,
        rotated: head_dim,
        unrotated: Vec::new(),
        local_rope: Some(local_rope),
        torch_dtype: WeightDtype::read(fields)?,
        bos_token_id: Some(fields.token_ids("bos_token_id")?.first().copied().unwrap_or(2)),
        eos_token_ids: match fields.token_ids("eos_token_id")? {
            ids if ids.is_empty() => vec![1],
            ids => ids,
        },
    })
}

/// The rotation of layers that see everything, and that of layers with a window. transformers 5 writes one set of parameters for each; before, the
/// scaling was that of the first alone.
fn ropes(fields: &Fields<'_>, max_positions: usize) -> Result<(RopeConfig, RopeConfig)> {
    let local_theta = fields.optional::<f64>("rope_local_base_freq", "a number")?.unwrap_or(10_000.0);
    let by_layer = fields.object("rope_parameters")?;
    let parameters = |kind: &str| match &by_layer {
        Some(all) => all.object(kind),
        None => Ok(None),
    };
    let (full, local) = (parameters("full_attention")?, parameters("sliding_attention")?);
    let (rope, part) = match full {
        Some(full) => RopeConfig::read_of(Some(full), fields, max_positions, 1_000_000.0)?,
        None => RopeConfig::read(fields, max_positions, 1_000_000.0)?,
    };
    let local = match local {
        Some(local) => {
            let theta = local.optional::<f64>("rope_theta", "a number")?.unwrap_or(local_theta);
            RopeConfig { theta, ..RopeConfig::read_of(Some(local), fields, max_positions, theta)?.0 }
        }
        None => RopeConfig::plain(local_theta)?,
    };
    if part != 1.0 {
        return Err(Error::unsupported("rotary embedding of a part of each head is not supported of Gemma 3"));
    }
    Ok((rope, local))
}

/// `layer_types`, or every layer but each `sliding_window_pattern`-th.
fn windows(fields: &Fields<'_>, layers: usize) -> Result<Vec<Option<u32>>> {
    let window = match fields.optional::<u32>("sliding_window", "a positive integer")? {
        Some(0) => return Err(Error::invalid_model("config.json: `sliding_window` is 0; fetch the model again")),
        stated => stated.unwrap_or(4096),
    };
    match fields.optional::<Vec<String>>("layer_types", "a list of strings")? {
        Some(kinds) => windows_by_kind(&kinds, layers, Some(window)),
        None => {
            let pattern = optional_size(fields, "sliding_window_pattern", MOST_LAYERS)?.unwrap_or(6);
            Ok((0..layers).map(|layer| Some(window).filter(|_| !(layer + 1).is_multiple_of(pattern))).collect())
        }
    }
}
