//! Pins: entries that are not evicted, also after a restart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EntryFilter;
use crate::admission::blocking::blocking;
use crate::error::Result;
use crate::ragstone::Ragstone;

/// What pinning or unpinning did, or in a dry run would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pinned {
    /// Entries that fit.
    pub entries: u64,
    /// Those of them whose pin changed, and pins of entries that are in no tier any more.
    pub changed: u64,
    /// Bytes of the entries whose pin changed.
    pub bytes: u64,
    /// Whether nothing was changed.
    pub dry_run: bool,
}

impl Ragstone {
    /// Keeps entries from being evicted, also after a restart, or lets them go again. An empty filter also unpins what is in no tier any
    /// more. Await it on a multi-thread runtime.
    ///
    /// # Errors
    /// As [`EntryFilter::look_up`], and as the tiers and the catalog say.
    pub async fn set_pinned(&self, filter: &EntryFilter, pinned: bool, dry_run: bool) -> Result<Pinned> {
        let every_pin = !pinned && filter.is_empty();
        let (matcher, ragstone) = (filter.look_up(self).await?, self.clone());
        blocking(move || {
            let (mut told, mut changing) = (Pinned { dry_run, ..Pinned::default() }, Vec::new());
            ragstone.store().entries(&matcher.listed(), &mut |entry| {
                if matcher.matches(&entry) {
                    told.entries += 1;
                    if entry.pinned != pinned {
                        told.bytes += entry.summary.bytes;
                        changing.push(entry.summary.key);
                    }
                }
            })?;
            if every_pin {
                changing = ragstone.store().pinned();
            }
            for key in &changing {
                told.changed += u64::from(dry_run || ragstone.store().set_pinned(key, pinned)?);
            }
            Ok(told)
        })
        .await
    }
}
