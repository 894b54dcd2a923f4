//! What the running program tells of itself.

use ragstone_corpus::CorpusCounters;
use ragstone_storage::store::StoreStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::jobs::JobsStatus;
use crate::answer::blend::Blend;
use crate::engine::status::DeviceStatus;
use crate::upstream::Upstream;
use crate::worker::WorkerStatus;

/// Tokens of a context, of an engine that does not tell its own.
const CONTEXT: usize = 32 << 10;

/// The language model, for people.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelStatus {
    /// The name that clients know it by.
    pub id: String,
    /// Its architecture.
    pub architecture: String,
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// Identifies weights, config, tokenizer and KV format; part of every KV key.
    pub fingerprint: String,
    /// A digest of the content of its weights' files.
    pub weights: String,
    /// Bytes of its weights in memory.
    pub weight_bytes: usize,
    /// Bytes of one token's stored KV over all layers.
    pub kv_bytes_per_token: usize,
}

impl Upstream {
    /// As far as anything is known of its model.
    pub(super) fn status(&self) -> ModelStatus {
        let served = self.served();
        ModelStatus {
            id: served.id.clone(),
            architecture: format!("of the engine at {}", self.shown()),
            context: served.context.unwrap_or(CONTEXT),
            ..ModelStatus::default()
        }
    }
}

/// A snapshot for `cache status`, readiness and metrics.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Status {
    /// The language model.
    pub model: ModelStatus,
    /// How its prompts are blended.
    pub blend: Blend,
    /// Host and disk tier.
    pub store: StoreStatus,
    /// The paged KV pool.
    pub device: DeviceStatus,
    /// Embedding and tokenizing counters.
    pub corpus: CorpusCounters,
    /// The supervised workers.
    pub workers: Vec<WorkerStatus>,
    /// Questions and rerankings that were admitted and have not ended.
    pub admitted: usize,
    /// Pieces of background work that are not done.
    pub background: usize,
    /// Durable jobs that run or wait for their turn.
    pub jobs: Vec<JobsStatus>,
}
