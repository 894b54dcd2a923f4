//! GPT-2 ("Language Models are Unsupervised Multitask Learners"): layer norms, a table of learned positions, a plain feed-forward part;
//! matrices the other way round.

use super::family::{Architecture, ExpertNames, Qkv, TensorNames, Up};
use super::fields::Fields;
use super::{
    FeedForwardKind, MOST_FEATURES, MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_TOKENS, ModelConfig, NormKind,
    Positions, WeightDtype, heads_of, optional_size, refuse_flag, size, size_of, usual_scale,
};
use crate::error::{Error, Result};

pub(super) const TENSORS: TensorNames = TensorNames {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    embedding_norm: "",
    layers: "transformer.h",
    input_norm: "ln_1",
    qkv: Qkv::InTurn("attn.c_attn"),
    q_norm: "",
    k_norm: "",
    o: "attn.c_proj",
    post_norm: "ln_2",
    output_norms: [""; 2],
    up: Up::One("mlp.c_fc"),
    down: "mlp.c_proj",
    experts: ExpertNames::NONE,
    final_norm: "transformer.ln_f",
    head: "lm_head",
    is_inputs_first: true,
};

/// Names of the GELU's approximation by tanh.
const ACTIVATIONS: [&str; 2] = ["gelu_new", "gelu_pytorch_tanh"];

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    refuse_flag(fields, "scale_attn_weights", true)?;
    refuse_flag(fields, "scale_attn_by_inverse_layer_idx", false)?;
    refuse_flag(fields, "add_cross_attention", false)?;
    let activation: Option<String> = fields.optional("activation_function", "a string")?;
    if let Some(activation) = activation.filter(|name| !ACTIVATIONS.contains(&name.as_str())) {
        return Err(Error::unsupported(format!(
            "activation_function \"{activation}\" is not supported; take a model with {}",
            ACTIVATIONS.join(" or ")
        )));
    }
    let hidden_size = size_of(fields, &["n_embd", "hidden_size"], MOST_FEATURES)?;
    let heads = size_of(fields, &["n_head", "num_attention_heads"], MOST_HEADS)?;
    let layers = size_of(fields, &["n_layer", "num_hidden_layers"], MOST_LAYERS)?;
    Ok(ModelConfig {
        architecture,
        vocab_size: size(fields, "vocab_size", MOST_TOKENS)?,
        hidden_size,
        intermediate_size: optional_size(fields, "n_inner", MOST_FEATURES)?.unwrap_or(4 * hidden_size),
        layers,
        heads,
        kv_heads: heads,
        head_dim: heads_of(hidden_size, heads)?,
        norm: NormKind::Layer,
        norm_eps: fields.optional::<f64>("layer_norm_epsilon", "a number")?.unwrap_or(1e-5) as f32,
        positions: Positions::Learned,
        positions_skipped: 0,
        max_positions: size_of(fields, &["n_positions", "max_position_embeddings"], MOST_POSITIONS)?,
        feed_forward: FeedForwardKind::Plain,
        experts: None,
        embedding_norm: false,
        embedding_scale: 1.0,
        input_norms: true,
        output_norms: false,
        norm_weights_less_one: false,
        attention_scale: usual_scale(heads_of(hidden_size, heads)?),
        residual_scale: 1.0,
        logits_scale: 1.0,
        tie_embeddings: fields.flag("tie_word_embeddings", true)?,
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        qk_norm: false,
        qk_norm_of_rows: false,
        windows: vec![None; layers],
        rotated: 0,
        unrotated: Vec::new(),
        local_rope: None,
        torch_dtype: WeightDtype::read(fields)?,
        bos_token_id: fields.token_ids("bos_token_id")?.first().copied(),
        eos_token_ids: fields.token_ids("eos_token_id")?,
    })
}
