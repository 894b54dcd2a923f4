//! Granite ("Granite 3.0 Language Models"): as Llama, with factors on embeddings, attention, what layers add, and logits.

use super::family::{Architecture, ExpertNames, TensorNames, Up};
use super::fields::Fields;
use super::{MOST_FEATURES, ModelConfig, experts, llama, recurrent, size};
use crate::error::{Error, Result};

/// Granite 3's small mixtures.
pub(super) const EXPERTS_TENSORS: TensorNames = TensorNames {
    experts: ExpertNames {
        router: "block_sparse_moe.router.layer",
        each: "",
        up: Up::One("block_sparse_moe.input_linear"),
        down: "block_sparse_moe.output_linear",
    },
    ..llama::TENSORS
};

/// Granite 4.0's class, whose layers may be Mamba's, too.
pub(super) const HYBRID_TENSORS: TensorNames =
    TensorNames { up: Up::One("shared_mlp.input_linear"), down: "shared_mlp.output_linear", ..llama::TENSORS };

/// The greatest factor, and one over the least.
const MOST_FACTOR: f64 = 1e6;

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    with_factors(llama::read(architecture, fields)?, fields)
}

pub(super) fn read_experts(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    // The softmax of the chosen scores: what Mixtral's is once its weights sum to 1.
    with_factors(experts::read_mixtral(architecture, fields)?, fields)
}

/// Granite 4.0 without `h` in its name: every layer is attention, and no experts stand beside the shared feed-forward part.
pub(super) fn read_hybrid(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig> {
    let kinds = fields.optional::<Vec<String>>("layer_types", "a list of strings")?;
    let is_attention = |kind: &String| kind == "attention" || kind == "full_attention";
    // Without the list, transformers takes every layer to be Mamba's.
    if !kinds.as_ref().is_some_and(|kinds| kinds.iter().all(is_attention)) {
        return Err(recurrent::refusal(
            architecture.class_name(),
            "a Granite 3.3 or a Granite 4.0 without `h` in its name",
        ));
    }
    if fields.optional::<usize>("num_local_experts", "an integer")?.unwrap_or(8) != 0 {
        return Err(Error::unsupported(
            "`num_local_experts` beside a shared part is not supported; take a dense Granite",
        ));
    }
    let stated: Option<String> = fields.optional("position_embedding_type", "a string or null")?;
    if stated.as_deref() != Some("rope") {
        let stated = stated.unwrap_or_else(|| "null".to_owned());
        return Err(Error::unsupported(format!(
            "`position_embedding_type` {stated} of a Granite is not supported; take one with rope"
        )));
    }
    let config = llama::read(architecture, fields)?;
    let intermediate_size = size(fields, "shared_intermediate_size", MOST_FEATURES)?;
    with_factors(ModelConfig { intermediate_size, ..config }, fields)
}

fn with_factors(config: ModelConfig, fields: &Fields<'_>) -> Result<ModelConfig> {
    Ok(ModelConfig {
        embedding_scale: factor(fields, "embedding_multiplier")?,
        // The class default is 1, not one over the root of a head's size.
        attention_scale: factor(fields, "attention_multiplier")?,
        residual_scale: factor(fields, "residual_multiplier")?,
        logits_scale: 1.0 / factor(fields, "logits_scaling")?,
        ..config
    })
}

fn factor(fields: &Fields<'_>, key: &str) -> Result<f32> {
    let factor = fields.optional::<f64>(key, "a number")?.unwrap_or(1.0);
    if (1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&factor) {
        return Ok(factor as f32);
    }
    Err(Error::invalid_model(format!(
        "config.json: `{key}` is {factor}, outside {:e}..={MOST_FACTOR:e}; fetch the model again",
        1.0 / MOST_FACTOR
    )))
}
