//! What is where, entry by entry.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KvStore;
use crate::catalog::LastUse;
use crate::key::KvKey;
use crate::tier::{EntrySummary, EntryTier, SharedTier, Tier};
use crate::{ErrorKind, Result};
use ragstone_env::lock::locked;

/// The tiers that hold whole entries, fastest first.
const ENTRY_TIERS: [Tier; 3] = [Tier::Host, Tier::Disk, Tier::Object];

/// One entry, wherever it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EntryInfo {
    /// What it is. Of one that only the device has, layers and the computation's time and cost are not known: zero.
    #[serde(flatten)]
    pub summary: EntrySummary,
    /// Where it is, fastest first.
    pub tiers: Vec<Tier>,
    /// Whether object storage has it in 8 bits only: close to what was computed, for blending.
    #[serde(default)]
    pub lossy: bool,
    /// Whether an operator pinned it.
    pub pinned: bool,
    /// Its last use that this node knows of, in milliseconds since 1970; 0: none.
    pub last_use_unix_ms: u64,
    /// Requests of this node that used it.
    pub uses: u32,
}

impl EntryInfo {
    /// Whether it can be read bit for bit, and not only be used on the device or for blending.
    pub fn is_whole_somewhere(&self) -> bool {
        self.tiers.iter().any(|tier| match tier {
            Tier::Device => false,
            Tier::Host | Tier::Disk => true,
            Tier::Object => !self.lossy,
        })
    }
}

/// What was found of one key so far.
struct At {
    summary: EntrySummary,
    tiers: Vec<Tier>,
    lossy: bool,
}

impl KvStore {
    /// Calls `each` for every entry that one of `tiers` has, by key. In which others it is, is not said: naming
    /// [`Tier::Object`] costs a request for each entry of the bucket. Collects what is known of every entry first, so memory
    /// grows with the tiers. Gives whether the list is complete: `false` if object storage was asked and did not answer, so that
    /// what only it has is left out. BLOCKS.
    ///
    /// # Errors
    /// As a tier says.
    pub fn entries(&self, tiers: &[Tier], each: &mut dyn FnMut(EntryInfo)) -> Result<bool> {
        let (mut found, mut is_complete) = (HashMap::new(), true);
        // What an entry says of itself is more than what the device knows, so that is listed last.
        for (tier, entries) in self.entry_tiers().filter(|(tier, _)| tiers.contains(tier)) {
            let listed = match (tier, &self.0.tiers.object) {
                (Tier::Object, Some(object)) => list_bucket(&**object, &mut found),
                _ => entries.list(&mut |summary| note(&mut found, summary, tier, false)).map(drop),
            };
            match listed {
                Err(error) if tier == Tier::Object && error.kind() == ErrorKind::Unavailable => {
                    tracing::warn!(%error, "object storage cannot be listed; what only it has is left out");
                    is_complete = false;
                }
                listed => listed?,
            }
        }
        if let Some(device) = self.0.device.get().filter(|_| tiers.contains(&Tier::Device)) {
            device.list(self.fingerprint(), &mut |summary| note(&mut found, summary, Tier::Device, false));
        }
        let mut found: Vec<At> = found.into_values().collect();
        found.sort_unstable_by_key(|at| at.summary.key);
        for At { summary, mut tiers, lossy } in found {
            tiers.sort_unstable();
            let LastUse { unix_ms, uses } = self.0.uses.get(&summary.key);
            let pinned = locked(&self.0.pins).contains_key(&summary.key);
            each(EntryInfo { summary, tiers, lossy, pinned, last_use_unix_ms: unix_ms, uses });
        }
        Ok(is_complete)
    }

    pub(super) fn entry_tiers(&self) -> impl Iterator<Item = (Tier, &dyn EntryTier)> {
        ENTRY_TIERS.into_iter().filter_map(|tier| Some((tier, self.0.tiers.get(tier)?)))
    }
}

fn note(found: &mut HashMap<KvKey, At>, summary: EntrySummary, tier: Tier, lossy: bool) {
    let at = found.entry(summary.key).or_insert_with(|| At { summary, tiers: Vec::new(), lossy: false });
    if !at.tiers.contains(&tier) {
        at.tiers.push(tier);
        at.lossy |= lossy;
    }
}

fn list_bucket(object: &dyn SharedTier, found: &mut HashMap<KvKey, At>) -> Result<()> {
    object.list(&mut |summary| note(found, summary, Tier::Object, false))?;
    object.list_lossy(&mut |summary| note(found, summary, Tier::Object, true))?;
    Ok(())
}
