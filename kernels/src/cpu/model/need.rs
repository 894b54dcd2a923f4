//! What a model's weights take in memory, from the shapes of its tensors alone: known before the weights are here.

use super::LoadOptions;
use super::load::{arithmetic, kv_dtype, precision, table_precision};
use crate::config::ModelConfig;
use crate::dtype::WeightFormat;
use crate::gguf;
use crate::linear::{GATE_COLUMNS, Precision, grouped_bytes, packed_bytes};
use crate::pool::KvLayout;
use crate::weights::TensorShape;

/// Bytes of the weights of a model of these tensors in memory, once it is loaded with `options`: matrices as they are packed, tables and
/// biases as they are kept. [`Model::size_in_bytes`](super::Model::size_in_bytes) of the loaded model is within some percent of it, as
/// matrices that are packed together share their padding.
pub fn weights_in_memory(config: &ModelConfig, tensors: &[TensorShape], options: &LoadOptions<'_>) -> u64 {
    let arithmetic = arithmetic(config, options);
    let is_native = arithmetic.weights == WeightFormat::Native;
    let rounds_to_bf16 = is_native || arithmetic.weights == WeightFormat::Bf16;
    let bytes = |tensor: &TensorShape| {
        let elements = tensor.elements();
        let is_bf16 = tensor.is_bf16() || rounds_to_bf16;
        let role = Role::of(&tensor.name);
        if role == Role::Head && config.tie_embeddings {
            return 0;
        }
        if tensor.shape.len() < 2 || role == Role::Positions {
            return 4 * elements;
        }
        if role == Role::Tokens && !config.tie_embeddings {
            return elements * if is_bf16 { 2 } else { 4 };
        }
        let precision = match role {
            Role::Tokens | Role::Head => table_precision(arithmetic),
            Role::Positions | Role::Half | Role::Other => precision(arithmetic),
        };
        let precision = if precision == Precision::F32 && is_bf16 { Precision::Bf16 } else { precision };
        let grouping = if is_native { gguf::grouping(&tensor.dtype) } else { None };
        let packed = |outputs, inputs| match grouping {
            Some(grouping) => grouped_bytes(outputs, inputs, grouping),
            None => packed_bytes(outputs, inputs, precision),
        };
        // Experts may be packed as one tensor: its rows are all of theirs.
        let inputs = tensor.shape[tensor.shape.len() - 1];
        let outputs = elements as usize / inputs.max(1);
        // Gate and up are packed together, in columns of either in turn.
        if role == Role::Half {
            return packed(2 * outputs.next_multiple_of(GATE_COLUMNS), inputs) / 2;
        }
        packed(outputs, inputs)
    };
    tensors.iter().map(bytes).sum()
}

/// How the weights of a model that is loaded with `options` are kept.
pub fn weight_format(config: &ModelConfig, options: &LoadOptions<'_>) -> WeightFormat {
    arithmetic(config, options).weights
}

/// The shape of the keys and values of a model that is loaded with `options`.
pub fn kv_layout(config: &ModelConfig, options: &LoadOptions<'_>) -> KvLayout {
    KvLayout {
        layers: config.layers,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        dtype: kv_dtype(config, options),
    }
}

/// What a tensor is, where it is no matrix of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Tokens,
    Positions,
    Head,
    /// Gate or up.
    Half,
    Other,
}

impl Role {
    /// By the names of all families, and those of GGUF files.
    fn of(name: &str) -> Self {
        const NAMES: [(&str, Role); 9] = [
            ("embed_tokens.weight", Role::Tokens),
            ("word_embeddings.weight", Role::Tokens),
            ("wte.weight", Role::Tokens),
            ("token_embd.weight", Role::Tokens),
            ("embed_positions.weight", Role::Positions),
            ("wpe.weight", Role::Positions),
            ("position_embd.weight", Role::Positions),
            ("lm_head.weight", Role::Head),
            ("output.weight", Role::Head),
        ];
        let is = |end: &str| name.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('.'));
        let halves =
            ["gate_proj.weight", "up_proj.weight", "ffn_gate.weight", "ffn_up.weight", "w1.weight", "w3.weight"];
        // A layer's output projection may be called as the head is.
        let is_layer =
            name.contains("layers.") || name.contains("blk.") || name.starts_with("h.") || name.contains(".h.");
        if is_layer && halves.iter().any(|end| is(end)) {
            return Self::Half;
        }
        NAMES.iter().find(|(end, _)| is(end) && !is_layer).map_or(Self::Other, |(_, role)| *role)
    }
}
