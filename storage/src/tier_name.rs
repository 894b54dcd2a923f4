//! The tiers by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A place that KV can be loaded from, fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Blocks of the device's pool: placed already, nothing is copied.
    Device,
    /// Host memory.
    Host,
    /// RocksDB on the local disk.
    Disk,
    /// Object storage, shared by nodes.
    Object,
}

impl Tier {
    /// All of them, fastest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Object];

    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Object => "object",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
