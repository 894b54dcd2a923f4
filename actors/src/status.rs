//! What the running program tells of itself.

use std::ops::AddAssign;

use ragstone_storage::corpus::CorpusCounters;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::store::StoreStatus;
use ragstone_storage::tier::TierStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibration::Blend;
use crate::jobs::JobsStatus;
use crate::worker::WorkerStatus;

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
    /// Bytes of its weights in memory.
    pub weight_bytes: usize,
    /// Bytes of one token's stored KV over all layers.
    pub kv_bytes_per_token: usize,
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

/// What groups hold that have one prompt and several tails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GroupsStatus {
    /// Prompts with several answers.
    pub samples: GroupBlocks,
    /// Beam searches.
    pub beams: GroupBlocks,
}

/// Blocks of groups, summed over the engine's steps: the share that is saved is `1 - held / apart`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GroupBlocks {
    /// That they hold.
    pub held: u64,
    /// That they would hold if no tail shared a block with another.
    pub apart: u64,
}

impl AddAssign for GroupBlocks {
    fn add_assign(&mut self, more: Self) {
        self.held += more.held;
        self.apart += more.apart;
    }
}

impl AddAssign for GroupsStatus {
    fn add_assign(&mut self, more: Self) {
        self.samples += more.samples;
        self.beams += more.beams;
    }
}

/// Prompts that the engine has, each counted once whatever its answers. What nobody waits for is counted as `background` alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SequencesStatus {
    /// Not begun.
    pub waiting: usize,
    /// Begun, and nothing to compute before a layer of stored KV arrives, or before its search ends.
    pub loading: usize,
    /// Computing their prompt.
    pub prefilling: usize,
    /// Generating.
    pub decoding: usize,
    /// In host memory, as others needed their blocks.
    pub swapped: usize,
    /// Precomputing, whatever their state.
    pub background: usize,
}

/// The device tier.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DeviceStatus {
    /// Blocks of 16 tokens.
    pub blocks: usize,
    /// Blocks that nobody holds.
    pub free_blocks: usize,
    /// Blocks that hold what ended sequences left, and that are given up when they are needed.
    pub cached_blocks: usize,
    /// Sequences that left the device so far, because others needed their blocks.
    pub preemptions: u64,
    /// What prompts with several tails hold, summed over the engine's steps.
    pub groups: GroupsStatus,
    /// Prompts that the engine has, by what each does.
    pub sequences: SequencesStatus,
    /// What leaves first.
    pub policy: PolicyKind,
    /// What is kept behind the sequences that computed it.
    pub cache: TierStatus,
}
