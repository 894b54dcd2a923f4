//! How far an ingest is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far an ingest that runs is, also within a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IngestProgress {
    /// Bytes of files of which nothing was stored when this start began: those that are embedded so far.
    pub bytes_done: u64,
    /// All of them.
    pub bytes_total: u64,
    /// Passages that this start has embedded.
    pub passages: u64,
    /// Seconds that it still takes, as far as that is known.
    pub left_s: Option<u64>,
}
