//! Which architectures are read, and how their files differ: in names of tensors, in the order of rows, in keys of their own. Which forward they
//! stand for is [`config`](crate::config)'s matter.

use serde_json::{Map, Value, json};

use super::Gguf;
use crate::config::{Architecture, Qkv, TensorNames, Up, recurrent};
use crate::error::{Error, Result};

/// An architecture of GGUF files.
#[derive(Debug)]
pub(super) struct FileFamily {
    /// As `general.architecture` has it; its keys begin with that.
    pub name: &'static str,
    pub architecture: Architecture,
    /// Whether the converters put the two rows of a rotary pair, which are half a head apart, beside each other in Q and K.
    pub has_pairs_together: bool,
    /// Keys that are read here, and would be refused of other architectures.
    pub own_keys: &'static [&'static str],
}

const EXPERTS: &[&str] = &["expert_count"];

/// Those that are read. `llama` with experts is Mixtral.
pub(super) static FAMILIES: [FileFamily; 9] = [
    FileFamily { name: "llama", architecture: Architecture::Llama, has_pairs_together: true, own_keys: &[] },
    FileFamily { name: "llama", architecture: Architecture::Mixtral, has_pairs_together: true, own_keys: EXPERTS },
    FileFamily { name: "qwen2", architecture: Architecture::Qwen2, has_pairs_together: false, own_keys: &[] },
    FileFamily { name: "qwen3", architecture: Architecture::Qwen3, has_pairs_together: false, own_keys: &[] },
    FileFamily { name: "qwen3moe", architecture: Architecture::Qwen3Moe, has_pairs_together: false, own_keys: EXPERTS },
    FileFamily {
        name: "gemma3",
        architecture: Architecture::Gemma3,
        has_pairs_together: false,
        own_keys: &["attention.sliding_window"],
    },
    FileFamily {
        name: "phi3",
        architecture: Architecture::Phi3,
        has_pairs_together: false,
        own_keys: &["attention.sliding_window", "rope.scaling.attn_factor"],
    },
    FileFamily {
        name: "granite",
        architecture: Architecture::Granite,
        has_pairs_together: true,
        own_keys: &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
    },
    FileFamily { name: "smollm3", architecture: Architecture::SmolLm3, has_pairs_together: true, own_keys: &[] },
];

/// Layers of the one size of Gemma 3 whose scores are not scaled by a head's size (llama.cpp knows it by these).
const GEMMA_3_27B_LAYERS: u64 = 62;

/// Factors of Phi-3's frequencies, one a pair: within the context of the pre-training, and beyond.
pub(super) const SHORT_FACTORS: &str = "rope_factors_short.weight";
pub(super) const LONG_FACTORS: &str = "rope_factors_long.weight";

/// The family of files that say `name`.
pub(super) fn find(name: &str, has_experts: bool) -> Result<&'static FileFamily> {
    let found = || FAMILIES.iter().filter(|family| family.name == name);
    let of_experts = |family: &&FileFamily| family.own_keys.contains(&"expert_count") == has_experts;
    // One without experts that states some is refused for its key.
    found().find(of_experts).or_else(|| found().next()).ok_or_else(|| {
        recurrent::refuse(name).unwrap_or_else(|| {
            Error::unsupported(format!(
                "its architecture {name:?} is not supported; take a file of llama (Llama, Mistral, Mixtral, SmolLM2), qwen2 (Qwen2.5), \
                 qwen3, qwen3moe, gemma3, phi3 (Phi-4-mini), granite or smollm3"
            ))
        })
    })
}

/// Names of a layer's tensors: Hugging Face's and the file's, which go by what a tensor is for.
pub(super) fn layer_names(names: &TensorNames) -> Vec<(&'static str, &'static str)> {
    let mut pairs = vec![
        (names.input_norm, "attn_norm"),
        (names.o, "attn_output"),
        (names.q_norm, "attn_q_norm"),
        (names.k_norm, "attn_k_norm"),
        (names.output_norms[0], "post_attention_norm"),
        (names.post_norm, "ffn_norm"),
        (names.output_norms[1], "post_ffw_norm"),
        (names.down, "ffn_down"),
        (names.experts.router, "ffn_gate_inp"),
    ];
    match names.qkv {
        Qkv::Apart([q, k, v]) => pairs.extend([(q, "attn_q"), (k, "attn_k"), (v, "attn_v")]),
        Qkv::ByHead(all) | Qkv::InTurn(all) => pairs.push((all, "attn_qkv")),
    }
    match names.up {
        Up::Apart([gate, up]) => pairs.extend([(gate, "ffn_gate"), (up, "ffn_up")]),
        Up::One(both) => pairs.push((both, "ffn_up")),
    }
    pairs.retain(|(name, _)| !name.is_empty());
    pairs
}

/// Names of an expert's tensors, and those of the file's, each of which has all experts of a layer.
pub(super) fn expert_names(names: &TensorNames) -> Vec<(&'static str, &'static str)> {
    match names.experts.up {
        Up::Apart([gate, up]) => {
            vec![(gate, "ffn_gate_exps"), (up, "ffn_up_exps"), (names.experts.down, "ffn_down_exps")]
        }
        Up::One(_) => Vec::new(),
    }
}

impl Gguf {
    /// What the `config.json` of this architecture has beside what all have.
    pub(super) fn own_config(&self) -> Result<Map<String, Value>> {
        let own = match self.family.architecture {
            Architecture::Mixtral => json!({
                "num_local_experts": self.needed("expert_count")?,
                "num_experts_per_tok": self.needed("expert_used_count")?,
                "sliding_window": null,
            }),
            Architecture::Qwen3Moe => json!({
                "num_experts": self.needed("expert_count")?,
                "num_experts_per_tok": self.needed("expert_used_count")?,
                "moe_intermediate_size": self.needed("expert_feed_forward_length")?,
                // As llama.cpp has it, which has no key for it.
                "norm_topk_prob": true,
            }),
            Architecture::Gemma3 => self.gemma3()?,
            Architecture::Phi3 => self.phi3()?,
            Architecture::Granite => self.granite()?,
            _ => json!({}),
        };
        let Value::Object(own) = own else { return Ok(Map::new()) };
        Ok(own)
    }

    fn gemma3(&self) -> Result<Value> {
        let (layers, heads) = (self.needed("block_count")?, self.needed("attention.head_count")?);
        let scalar = match layers == GEMMA_3_27B_LAYERS {
            true => self.needed("embedding_length")?.checked_div(heads).unwrap_or(0),
            false => self.head_dim as u64,
        };
        let window = self.integer(&self.key("attention.sliding_window"))?.filter(|window| *window > 0);
        let pattern = self.integer(&self.key("attention.sliding_window_pattern"))?.unwrap_or(6);
        let local_theta = self.number(&self.key("rope.freq_base_swa"))?.unwrap_or(10_000.0);
        Ok(json!({
            "query_pre_attn_scalar": scalar,
            "sliding_window": window,
            // Without a window no layer has one.
            "sliding_window_pattern": if window.is_some() { pattern } else { 1 },
            "rope_parameters": {"full_attention": self.rope(1_000_000.0)?, "sliding_attention": {"rope_theta": local_theta}},
        }))
    }

    fn phi3(&self) -> Result<Value> {
        let window = self.integer(&self.key("attention.sliding_window"))?.filter(|window| *window > 0);
        let turned = self.integer(&self.key("rope.dimension_count"))?.unwrap_or(self.head_dim as u64);
        let mut rope = self.rope(10_000.0)?;
        rope["partial_rotary_factor"] = json!(turned as f64 / self.head_dim as f64);
        let attention_factor = self.number(&self.key("rope.scaling.attn_factor"))?;
        if self.header.tensors.contains_key(SHORT_FACTORS) {
            let factors = self.values(SHORT_FACTORS, &[turned as usize / 2])?;
            rope["rope_type"] = json!("longrope");
            rope["short_factor"] = json!(factors);
            rope["attention_factor"] = json!(attention_factor.unwrap_or(1.0));
            rope["original_max_position_embeddings"] = json!(self.needed("rope.scaling.original_context_length")?);
        } else if attention_factor.is_some_and(|factor| factor != 1.0) {
            return Err(Error::unsupported(format!(
                "it sets `{}` without {SHORT_FACTORS}, which is not supported; take another model, or its safetensors",
                self.key("rope.scaling.attn_factor")
            )));
        }
        Ok(json!({"sliding_window": window, "rope_parameters": rope}))
    }

    fn granite(&self) -> Result<Value> {
        if self.flag(&self.key("rope.scaling.finetuned"))? == Some(false) {
            return Err(Error::unsupported(
                "its layers have no rotary positions, which is not supported; take another Granite",
            ));
        }
        let factor = |key: &str| Ok::<_, Error>(self.number(&self.key(key))?.filter(|factor| *factor != 0.0));
        let usual = f64::from(1.0 / (self.head_dim as f32).sqrt());
        Ok(json!({
            "attention_multiplier": factor("attention.scale")?.unwrap_or(usual),
            "embedding_multiplier": factor("embedding_scale")?.unwrap_or(1.0),
            "residual_multiplier": factor("residual_scale")?.unwrap_or(1.0),
            "logits_scaling": factor("logit_scale")?.unwrap_or(1.0),
        }))
    }
}
