//! What the engine tells of itself.

use std::ops::AddAssign;

use ragstone_storage::policy::PolicyKind;
use ragstone_storage::tier::TierStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
