//! Models, health and readiness.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model that is served.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ServedModel {
    /// As requests name it.
    pub id: String,
    /// `model`
    pub object: String,
    /// 0: not known.
    pub created: u64,
    pub owned_by: String,
    /// Of the language model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragstone: Option<ModelFacts>,
}

/// What ragstone knows of the language model.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ModelFacts {
    /// Tokens of prompt and answer together.
    pub context: usize,
    pub architecture: String,
    /// What whoever asks it should know: that it is the demo model, why, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl ServedModel {
    /// One of this name.
    pub fn new(id: &str, ragstone: Option<ModelFacts>) -> Self {
        Self { id: id.to_owned(), object: "model".to_owned(), created: 0, owned_by: "ragstone".to_owned(), ragstone }
    }
}

/// The process is up.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`
    pub status: String,
    /// The process's id: it tells this service from another that took its port.
    pub pid: u32,
}

/// The models are loaded, and the service takes questions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Ready {
    /// `ready`
    pub status: String,
}

/// What the language model is and takes, in the fields of llama.cpp's `/props` that its clients read.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Props {
    pub default_generation_settings: GenerationDefaults,
    /// Answers that are generated at once.
    pub total_slots: usize,
    pub model_alias: String,
    pub chat_template: Option<String>,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    pub modalities: Modalities,
    /// `ragstone` and its version.
    pub build_info: String,
}

/// What holds where a request says nothing.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct GenerationDefaults {
    /// Tokens of prompt and answer together.
    pub n_ctx: usize,
}

/// What a model reads beside text.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
pub struct Modalities {
    pub vision: bool,
    pub audio: bool,
}

/// A place of an answer. Which answer has which place is not told.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct Slot {
    pub id: usize,
    pub n_ctx: usize,
    pub is_processing: bool,
}
