//! What tells families of decoders apart, as data: how their configuration is read, and what their checkpoints call a tensor. Everything
//! else follows from the [`ModelConfig`].

use serde::{Deserialize, Serialize};

use super::fields::Fields;
use super::{ModelConfig, bloom, experts, gemma3, gpt2, granite, llama, olmo, opt, recurrent};
use crate::error::{Error, Result};

/// The decoder families that the forward covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    SmolLm3,
    Phi3,
    Bloom,
    Gpt2,
    Gemma3,
    Granite,
    GraniteMoeHybrid,
    Qwen3Moe,
    Mixtral,
    Opt,
    Olmo2,
    Olmoe,
    GraniteMoe,
}

/// A family.
struct Family {
    /// Its name in `architectures`.
    class_name: &'static str,
    /// Its `model_type`.
    model_type: &'static str,
    read: fn(Architecture, &Fields<'_>) -> Result<ModelConfig>,
    tensors: &'static TensorNames,
}

/// What a checkpoint calls its tensors, each without `.weight` and `.bias`. A family has no use for some.
#[derive(Debug)]
pub(crate) struct TensorNames {
    pub embedding: &'static str,
    /// The table of learned positions.
    pub positions: &'static str,
    pub embedding_norm: &'static str,
    /// What stands before a layer's number. The names of its parts follow that.
    pub layers: &'static str,
    pub input_norm: &'static str,
    pub qkv: Qkv,
    /// Norms of heads.
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub o: &'static str,
    /// The norm behind the attention, of what enters the feed-forward part.
    pub post_norm: &'static str,
    /// Norms of what the attention and the feed-forward part add.
    pub output_norms: [&'static str; 2],
    pub up: Up,
    pub down: &'static str,
    pub experts: ExpertNames,
    pub final_norm: &'static str,
    /// The output head, where that is not the embedding table.
    pub head: &'static str,
    /// Whether a layer's matrices are `[inputs, outputs]`.
    pub is_inputs_first: bool,
}

/// What a checkpoint calls a layer's experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertNames {
    /// `[experts, hidden]`
    pub router: &'static str,
    /// What stands before an expert's number. The names of its parts follow that. Empty where those of all experts are one tensor,
    /// `[experts, outputs, inputs]`.
    pub each: &'static str,
    pub up: Up,
    pub down: &'static str,
}

impl ExpertNames {
    /// Of a family that has none.
    pub(crate) const NONE: Self = Self { router: "", each: "", up: Up::One(""), down: "" };
}

/// How a checkpoint has the projections of queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Qkv {
    /// As three.
    Apart([&'static str; 3]),
    /// As one: of each head the outputs of Q, of K and of V, then of the next head.
    ByHead(&'static str),
    /// As one: all outputs of Q, then all of K, then all of V.
    InTurn(&'static str),
}

/// How a checkpoint has the feed-forward part's way in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Up {
    /// Gate and up.
    Apart([&'static str; 2]),
    /// As one; of a gated part all outputs of the gate, then all of up.
    One(&'static str),
}

impl Architecture {
    const ALL: [Self; 17] = [
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::SmolLm3,
        Self::Phi3,
        Self::Bloom,
        Self::Gpt2,
        Self::Gemma3,
        Self::Granite,
        Self::GraniteMoeHybrid,
        Self::Qwen3Moe,
        Self::Mixtral,
        Self::Opt,
        Self::Olmo2,
        Self::Olmoe,
        Self::GraniteMoe,
    ];

    fn family(self) -> Family {
        let like_llama =
            |class_name, model_type| Family { class_name, model_type, read: llama::read, tensors: &llama::TENSORS };
        match self {
            Self::Llama => like_llama("LlamaForCausalLM", "llama"),
            Self::Mistral => like_llama("MistralForCausalLM", "mistral"),
            Self::Qwen2 => like_llama("Qwen2ForCausalLM", "qwen2"),
            Self::Qwen3 => like_llama("Qwen3ForCausalLM", "qwen3"),
            Self::SmolLm3 => like_llama("SmolLM3ForCausalLM", "smollm3"),
            Self::Phi3 => Family { tensors: &llama::PHI3_TENSORS, ..like_llama("Phi3ForCausalLM", "phi3") },
            Self::Granite => Family { read: granite::read, ..like_llama("GraniteForCausalLM", "granite") },
            Self::GraniteMoe => Family {
                read: granite::read_experts,
                tensors: &granite::EXPERTS_TENSORS,
                ..like_llama("GraniteMoeForCausalLM", "granitemoe")
            },
            Self::GraniteMoeHybrid => Family {
                read: granite::read_hybrid,
                tensors: &granite::HYBRID_TENSORS,
                ..like_llama("GraniteMoeHybridForCausalLM", "granitemoehybrid")
            },
            Self::Qwen3Moe => Family {
                read: experts::read_qwen3,
                tensors: &experts::QWEN3_TENSORS,
                ..like_llama("Qwen3MoeForCausalLM", "qwen3_moe")
            },
            Self::Mixtral => Family {
                read: experts::read_mixtral,
                tensors: &experts::MIXTRAL_TENSORS,
                ..like_llama("MixtralForCausalLM", "mixtral")
            },
            Self::Olmo2 => {
                Family { read: olmo::read, tensors: &olmo::TENSORS, ..like_llama("Olmo2ForCausalLM", "olmo2") }
            }
            Self::Olmoe => Family {
                read: olmo::read_experts,
                tensors: &experts::QWEN3_TENSORS,
                ..like_llama("OlmoeForCausalLM", "olmoe")
            },
            Self::Opt => {
                Family { class_name: "OPTForCausalLM", model_type: "opt", read: opt::read, tensors: &opt::TENSORS }
            }
            Self::Bloom => Family {
                class_name: "BloomForCausalLM",
                model_type: "bloom",
                read: bloom::read,
                tensors: &bloom::TENSORS,
            },
            Self::Gemma3 => Family {
                class_name: "Gemma3ForCausalLM",
                model_type: "gemma3_text",
                read: gemma3::read,
                tensors: &gemma3::TENSORS,
            },
            Self::Gpt2 => {
                Family { class_name: "GPT2LMHeadModel", model_type: "gpt2", read: gpt2::read, tensors: &gpt2::TENSORS }
            }
        }
    }

    /// The class name in `architectures`.
    pub fn class_name(self) -> &'static str {
        self.family().class_name
    }

    /// The value of `model_type`.
    pub fn model_type(self) -> &'static str {
        self.family().model_type
    }

    /// What a checkpoint calls its tensors.
    pub(crate) fn tensors(self) -> &'static TensorNames {
        self.family().tensors
    }

    /// The configuration of a model of this family.
    pub(super) fn read_config(self, fields: &Fields<'_>) -> Result<ModelConfig> {
        (self.family().read)(self, fields)
    }

    /// `architectures` decides, because several classes share a `model_type`; `model_type` is for folders that
    /// leave it out.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self> {
        let classes: Vec<String> = fields.optional("architectures", "a list of class names")?.unwrap_or_default();
        if let Some(found) = classes.iter().find_map(|class| Self::ALL.into_iter().find(|a| a.class_name() == class)) {
            return Ok(found);
        }
        let model_type: Option<String> = fields.optional("model_type", "a string")?;
        if classes.is_empty()
            && let Some(found) = Self::ALL.into_iter().find(|a| Some(a.model_type()) == model_type.as_deref())
        {
            return Ok(found);
        }
        let known = classes.iter().map(String::as_str).chain(model_type.as_deref());
        if let Some(refusal) = known.into_iter().find_map(recurrent::refuse) {
            return Err(refusal);
        }
        let name = match (classes.first(), model_type) {
            (Some(class), _) => class.clone(),
            (None, Some(model_type)) => format!("model_type \"{model_type}\""),
            (None, None) => {
                return Err(Error::invalid_model(
                    "config.json names neither `architectures` nor `model_type`; is this a language model's folder? \
                     Fetch it again",
                ));
            }
        };
        let supported = Self::ALL.map(Self::class_name).join(", ");
        Err(Error::unsupported(format!("{name} is not supported; take a model of one of these kinds: {supported}")))
    }
}
