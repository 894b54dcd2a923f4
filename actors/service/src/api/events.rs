//! `/v1/events`: what happens in the service, as server-sent events.

use std::collections::BTreeMap;

use ragstone_actors::admission::jobs::JobKind;
use ragstone_actors::upkeep::ingests::IngestProgress;
use ragstone_storage::tier::{Tier, TierStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cache::Plan;

/// Something that happened. Between two of them, a comment now and then shows that the connection lives.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServiceEvent {
    /// A prompt's first token was there: its plan, and what came of it.
    Answer(Box<Plan>),
    /// A job began, got further or ended.
    Job(JobEvent),
    /// Entries left tiers: evicted for room, or on demand. Not for keys below admin.
    Evictions(Evictions),
    /// What the tiers hold and did since the start, where that changed. Not for keys below admin.
    Tiers(Tiers),
    /// Events were not sent, because the client read too slowly.
    Missed(Missed),
}

/// How far a job is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct JobEvent {
    pub kind: JobKind,
    /// Its number among those of its kind; a key below admin is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The collection that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// Of this, the one document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The schema that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    pub state: JobEventState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Files, passages, or texts of modules that are done.
    pub done: u64,
    /// And those that there are, as far as that is known.
    pub total: u64,
    /// How far an ingest is within its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<IngestProgress>,
}

/// Whether a job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobEventState {
    Running,
    Finished,
    /// It ended early.
    Failed,
}

/// Copies of entries that left, by tier.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Evictions {
    pub tiers: BTreeMap<Tier, u64>,
}

/// Figures, by tier.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Tiers {
    pub tiers: BTreeMap<Tier, TierStatus>,
}

/// That something is missing.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct Missed {
    /// How many; they count everybody's, so that a key below admin is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
}
