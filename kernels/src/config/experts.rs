//! Mixtures of experts: layers whose feed-forward part is several, of which a router chooses some for each row ("Outrageously Large Neural
//! Networks: The Sparsely-Gated Mixture-of-Experts Layer"). Mixtral and Qwen3-MoE are as Mistral and Qwen3 otherwise.

use serde::{Deserialize, Serialize};

use super::family::{Architecture, ExpertNames, TensorNames, Up};
use super::fields::Fields;
use super::{MOST_FEATURES, MOST_LAYERS, ModelConfig, llama, optional_size, size, size_of};
use crate::error::{Error, Result};

/// The experts of a layer. Published models have 512 at most.
const MOST_EXPERTS: usize = 1 << 12;

pub(super) const QWEN3_TENSORS: TensorNames = TensorNames {
    experts: ExpertNames {
        router: "mlp.gate",
        each: "mlp.experts",
        up: Up::Apart(["gate_proj", "up_proj"]),
        down: "down_proj",
    },
    ..llama::TENSORS
};

pub(super) const MIXTRAL_TENSORS: TensorNames = TensorNames {
    experts: ExpertNames {
        router: "block_sparse_moe.gate",
        each: "block_sparse_moe.experts",
        up: Up::Apart(["w1", "w3"]),
        down: "w2",
    },
    ..llama::TENSORS
};

/// A model's experts, and how they are chosen: a row's scores, one an expert, go through a softmax over all of them; the greatest
/// [`per_row`](Self::per_row) are its weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Of each layer that has some.
    pub count: usize,
    /// How many of them a row goes through.
    pub per_row: usize,
    /// Features inside of one.
    pub intermediate_size: usize,
    /// The weights of the chosen ones are divided by their sum.
    pub is_normalized: bool,
    /// Layers that have one feed-forward part instead, of [`ModelConfig::intermediate_size`].
    pub dense_layers: Vec<usize>,
}

pub(super) fn read_qwen3(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    let config = llama::read(architecture, fields)?;
    let step = optional_size(fields, "decoder_sparse_step", MOST_LAYERS)?.unwrap_or(1);
    let listed = fields.optional::<Vec<usize>>("mlp_only_layers", "a list of layers")?.unwrap_or_default();
    let has_experts = |layer: &usize| !listed.contains(layer) && (layer + 1).is_multiple_of(step);
    let experts = Experts {
        count: size_of(fields, &["num_experts", "num_local_experts"], MOST_EXPERTS)?,
        per_row: size(fields, "num_experts_per_tok", MOST_EXPERTS)?,
        intermediate_size: size(fields, "moe_intermediate_size", MOST_FEATURES)?,
        is_normalized: fields.flag("norm_topk_prob", false)?,
        dense_layers: (0..config.layers).filter(|layer| !has_experts(layer)).collect(),
    };
    experts.in_model(config)
}

pub(super) fn read_olmoe(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    let config = llama::read(architecture, fields)?;
    let experts = Experts {
        count: size_of(fields, &["num_experts", "num_local_experts"], MOST_EXPERTS)?,
        per_row: size(fields, "num_experts_per_tok", MOST_EXPERTS)?,
        intermediate_size: config.intermediate_size,
        is_normalized: fields.flag("norm_topk_prob", false)?,
        dense_layers: Vec::new(),
    };
    experts.in_model(config)
}

pub(super) fn read_mixtral(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    let config = llama::read(architecture, fields)?;
    let number = |key, default| Ok::<_, Error>(optional_size(fields, key, MOST_EXPERTS)?.unwrap_or(default));
    let experts = Experts {
        // The class defaults of transformers, which published files state all the same.
        count: number("num_local_experts", 8)?,
        per_row: number("num_experts_per_tok", 2)?,
        intermediate_size: config.intermediate_size,
        is_normalized: true,
        dense_layers: Vec::new(),
    };
    experts.in_model(config)
}

impl Experts {
    fn in_model(self, config: ModelConfig) -> Result<ModelConfig> {
        if self.per_row > self.count {
            return Err(Error::invalid_model(format!(
                "config.json: `num_experts_per_tok` is {}, more than the {} experts; fetch the model again",
                self.per_row, self.count
            )));
        }
        Ok(ModelConfig { experts: Some(self), ..config })
    }
}
