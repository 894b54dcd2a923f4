//! OPT ("OPT: Open Pre-trained Transformer Language Models"): as GPT-2, with three projections, a ReLU, and a table of learned positions whose
//! first two rows are no position's.

use super::family::{Architecture, ExpertNames, Qkv, TensorNames, Up};
use super::fields::Fields;
use super::{
    FeedForwardKind, MOST_FEATURES, MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_TOKENS, ModelConfig, NormKind,
    Positions, WeightDtype, heads_of, refuse_flag, size, usual_scale,
};
use crate::error::{Error, Result};

pub(super) const TENSORS: TensorNames = TensorNames {
    embedding: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    embedding_norm: "",
    layers: "model.decoder.layers",
    input_norm: "self_attn_layer_norm",
    qkv: Qkv::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    q_norm: "",
    k_norm: "",
    o: "self_attn.out_proj",
    post_norm: "final_layer_norm",
    output_norms: [""; 2],
    up: Up::One("fc1"),
    down: "fc2",
    experts: ExpertNames::NONE,
    final_norm: "model.decoder.final_layer_norm",
    head: "lm_head",
    is_inputs_first: false,
};

/// Rows of the table before that of position 0: where its training had padding.
const POSITIONS_SKIPPED: usize = 2;

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    // Of OPT-350m alone, which has the two next to each other.
    refuse_flag(fields, "do_layer_norm_before", true)?;
    refuse_flag(fields, "_remove_final_layer_norm", false)?;
    refuse_flag(fields, "layer_norm_elementwise_affine", true)?;
    let activation: Option<String> = fields.optional("activation_function", "a string")?;
    if let Some(activation) = activation.filter(|name| name != "relu") {
        return Err(Error::unsupported(format!(
            "activation_function \"{activation}\" is not supported of OPT; take a model with relu"
        )));
    }
    let hidden_size = size(fields, "hidden_size", MOST_FEATURES)?;
    let embedded = fields.optional::<usize>("word_embed_proj_dim", "a positive integer")?.unwrap_or(hidden_size);
    if embedded != hidden_size {
        return Err(Error::unsupported(format!(
            "`word_embed_proj_dim` {embedded} beside `hidden_size` {hidden_size} (OPT-350m) is not supported; take another OPT"
        )));
    }
    let heads = size(fields, "num_attention_heads", MOST_HEADS)?;
    let layers = size(fields, "num_hidden_layers", MOST_LAYERS)?;
    let head_dim = heads_of(hidden_size, heads)?;
    let has_biases = fields.flag("enable_bias", true)?;
    Ok(ModelConfig {
        architecture,
        vocab_size: size(fields, "vocab_size", MOST_TOKENS)?,
        hidden_size,
        intermediate_size: size(fields, "ffn_dim", MOST_FEATURES)?,
        layers,
        heads,
        kv_heads: heads,
        head_dim,
        norm: NormKind::Layer,
        norm_eps: 1e-5,
        positions: Positions::Learned,
        positions_skipped: POSITIONS_SKIPPED,
        max_positions: size(fields, "max_position_embeddings", MOST_POSITIONS)?,
        feed_forward: FeedForwardKind::PlainRelu,
        experts: None,
        embedding_norm: false,
        embedding_scale: 1.0,
        input_norms: true,
        output_norms: false,
        norm_weights_less_one: false,
        attention_scale: usual_scale(head_dim),
        residual_scale: 1.0,
        logits_scale: 1.0,
        tie_embeddings: fields.flag("tie_word_embeddings", true)?,
        qkv_bias: has_biases,
        o_bias: has_biases,
        mlp_bias: has_biases,
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
