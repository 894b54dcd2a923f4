//! OLMo 2 ("2 OLMo 2 Furious"): norms of what a layer's two parts add instead of what they take, and of whole rows of queries and keys; OLMoE
//! ("OLMoE: Open Mixture-of-Experts Language Models") has experts, and the usual norms beside those of Q and K.

use super::family::{Architecture, TensorNames};
use super::fields::Fields;
use super::{ModelConfig, experts, llama};
use crate::error::{Error, Result};

pub(super) const TENSORS: TensorNames = TensorNames {
    input_norm: "",
    post_norm: "",
    output_norms: ["post_attention_layernorm", "post_feedforward_layernorm"],
    ..llama::TENSORS
};

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    let config = llama::read(architecture, fields)?;
    Ok(ModelConfig { qk_norm: true, qk_norm_of_rows: true, input_norms: false, output_norms: true, ..config })
}

pub(super) fn read_experts(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    if fields.has("clip_qkv") {
        return Err(Error::unsupported("`clip_qkv` is not supported; take an OLMoE without it"));
    }
    let config = experts::read_olmoe(architecture, fields)?;
    Ok(ModelConfig { qk_norm: true, qk_norm_of_rows: true, ..config })
}
