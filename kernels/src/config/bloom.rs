//! BLOOM ("BLOOM: A 176B-Parameter Open-Access Multilingual Language Model"): layer norms, one of them behind the embedding, ALiBi, a
//! plain feed-forward part.

use super::family::{Architecture, ExpertNames, Qkv, TensorNames, Up};
use super::fields::Fields;
use super::{
    FeedForwardKind, MOST_FEATURES, MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_TOKENS, ModelConfig, NormKind,
    Positions, WeightDtype, heads_of, optional_size, refuse_flag, size, size_of, usual_scale,
};
use crate::error::Result;

pub(super) const TENSORS: TensorNames = TensorNames {
    embedding: "transformer.word_embeddings",
    positions: "",
    embedding_norm: "transformer.word_embeddings_layernorm",
    layers: "transformer.h",
    input_norm: "input_layernorm",
    qkv: Qkv::ByHead("self_attention.query_key_value"),
    q_norm: "",
    k_norm: "",
    o: "self_attention.dense",
    post_norm: "post_attention_layernorm",
    output_norms: [""; 2],
    up: Up::One("mlp.dense_h_to_4h"),
    down: "mlp.dense_4h_to_h",
    experts: ExpertNames::NONE,
    final_norm: "transformer.ln_f",
    head: "lm_head",
    is_inputs_first: false,
};

/// Positions of the training: ALiBi itself knows no end.
const TRAINED_POSITIONS: usize = 2048;

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    refuse_flag(fields, "apply_residual_connection_post_layernorm", false)?;
    let hidden_size = size_of(fields, &["n_embed", "hidden_size"], MOST_FEATURES)?;
    let heads = size_of(fields, &["n_head", "num_attention_heads"], MOST_HEADS)?;
    let layers = size_of(fields, &["n_layer", "num_hidden_layers"], MOST_LAYERS)?;
    Ok(ModelConfig {
        architecture,
        vocab_size: size(fields, "vocab_size", MOST_TOKENS)?,
        hidden_size,
        intermediate_size: 4 * hidden_size,
        layers,
        heads,
        kv_heads: heads,
        head_dim: heads_of(hidden_size, heads)?,
        norm: NormKind::Layer,
        norm_eps: fields.optional::<f64>("layer_norm_epsilon", "a number")?.unwrap_or(1e-5) as f32,
        positions: Positions::Alibi,
        positions_skipped: 0,
        max_positions: optional_size(fields, "seq_length", MOST_POSITIONS)?.unwrap_or(TRAINED_POSITIONS),
        feed_forward: FeedForwardKind::Plain,
        experts: None,
        embedding_norm: true,
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
