//! Where entries are kept: host memory in front of RocksDB on the local disk.

pub mod disk;
pub mod host;

use serde::{Deserialize, Serialize};

/// A place that an entry can be loaded from, fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Host memory.
    Host,
    /// RocksDB on the local disk.
    Disk,
}

impl Tier {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a tier holds and did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Whole entries that can be found.
    pub entries: u64,
    /// Bytes of them, frames and rows.
    pub bytes: u64,
    /// The bound on `bytes`.
    pub capacity_bytes: u64,
    /// Look-ups that this tier answered.
    pub hits: u64,
    /// Look-ups that came to this tier and found nothing.
    pub misses: u64,
    /// Frames or rows that failed verification.
    pub corrupt: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Entries that were not taken: larger than the tier, or no room beside what is pinned.
    pub refused: u64,
    /// Writes and reads that the disk failed (a full disk, an I/O error).
    pub failed: u64,
}
