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
