//! The tiers, what they answered, and the one way in which an entry enters any of them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::tombstones::Tombstones;
use super::worth::{AdmissionRule, Worth};
use crate::catalog::Catalog;
use crate::cost::Costs;
use crate::entry::{Entry, EntryShape};
use crate::key::KvKey;
use crate::tier::disk::{DiskIndex, DiskTier};
use crate::tier::host::{HostState, HostTier};
use crate::tier::resident::Pin;
use crate::tier::{EntrySummary, EntryTier, InFlight, Put, SharedTier, Tier, TierEntry, TierStatus, Use};
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::lock::locked;

/// Entries that are remembered as declined; beyond, all are forgotten.
const MOST_DECLINED: usize = 1 << 16;

pub(super) struct Tiers {
    pub env: Env,
    pub host: HostTier,
    pub disk: DiskTier,
    pub object: Option<Arc<dyn SharedTier>>,
    /// What an entry of this model looks like.
    pub shape: Option<EntryShape>,
    pub worth: Worth,
    pub tombstones: Tombstones,
    /// Knows which entries are modules'.
    catalog: Arc<Catalog>,
    pub counts: Counts,
    /// Entries that the disk declined lately, for who waits for one of them.
    declined: Mutex<HashSet<KvKey>>,
}

/// Keeps an entry in host memory and on disk.
pub(super) struct TierPins {
    _host: Pin<HostState>,
    _disk: Pin<DiskIndex>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    tiers: [TierCounts; Tier::ALL.len()],
    pub late_misses: AtomicU64,
    pub token_mismatches: AtomicU64,
    pub promoted: AtomicU64,
    pub shared_reads: AtomicU64,
    pub lossy_hits: AtomicU64,
    pub invalidated_in_flight: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct TierCounts {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub corrupt: AtomicU64,
    pub failed: AtomicU64,
    pub declined: AtomicU64,
    /// Frames that are being read.
    reading: AtomicU64,
}

impl Counts {
    pub fn of(&self, tier: Tier) -> &TierCounts {
        &self.tiers[tier as usize]
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tiers {
    pub fn new(
        env: Env,
        host: HostTier,
        disk: DiskTier,
        object: Option<Arc<dyn SharedTier>>,
        shape: Option<EntryShape>,
        (admission, costs): (AdmissionRule, Costs),
        catalog: Arc<Catalog>,
    ) -> Self {
        let (worth, tombstones, counts) = (Worth::new(admission, costs), Tombstones::default(), Counts::default());
        Self { env, host, disk, object, shape, worth, tombstones, catalog, counts, declined: Mutex::default() }
    }

    /// What was opened, if this model can have computed it: whatever entry is to be read, from a tier of the store or from
    /// elsewhere, passes here first.
    ///
    /// # Errors
    /// That of `opened`; `Corrupt` for an entry of another shape.
    pub fn fitting(&self, opened: Result<Option<Arc<dyn TierEntry>>>) -> Result<Option<Arc<dyn TierEntry>>> {
        let opened = opened?;
        if let (Some(shape), Some(entry)) = (&self.shape, &opened) {
            shape.check(entry.header())?;
        }
        Ok(opened)
    }

    /// A tier of entries; `None` for the device, and for object storage where there is none.
    pub fn get(&self, tier: Tier) -> Option<&dyn EntryTier> {
        match tier {
            Tier::Device => None,
            Tier::Host => Some(&self.host),
            Tier::Disk => Some(&self.disk),
            Tier::Object => self.object.as_ref().map(|object| object.as_tier()),
        }
    }

    /// Whether so many bytes find room in a tier without another entry leaving, as it is now.
    pub fn has_room(&self, tier: Tier, bytes: u64) -> bool {
        let usage = self.get(tier).map(|tier| tier.usage());
        usage.is_some_and(|usage| usage.bytes.saturating_add(bytes) <= usage.capacity_bytes)
    }

    /// Puts an entry into a tier. `None`: the tier declines it, since computing it again is faster, or the entry's passage
    /// was invalidated after it was planned.
    pub fn write(&self, tier: Tier, entry: &Arc<Entry>, planned_in: u64) -> Result<Option<Put>> {
        let Some(into) = self.get(tier) else { return Ok(None) };
        let summary = entry.header().summary();
        if self.forbids(&summary, planned_in) {
            return Ok(None);
        }
        if !self.worth.is_worth_keeping(tier, &summary, &self.env) {
            self.decline(tier, summary.key);
            return Ok(None);
        }
        if tier == Tier::Disk {
            locked(&self.declined).remove(&summary.key);
        }
        let put = into.put(entry);
        // Who invalidates marks first and removes then: one of the two sees the other. A put that failed may have applied.
        if self.forbids(&summary, planned_in) {
            into.remove(&summary.id()).inspect_err(|error| {
                tracing::error!(%tier, key = %summary.key, %error, "an entry of an invalidated passage was not removed");
            })?;
            return Ok(None);
        }
        let put = put.inspect_err(|error| {
            count(&self.counts.of(tier).failed);
            tracing::warn!(%tier, key = %summary.key, %error, "an entry was not written");
        })?;
        Ok(Some(put))
    }

    fn decline(&self, tier: Tier, key: KvKey) {
        count(&self.counts.of(tier).declined);
        if tier == Tier::Disk {
            let mut declined = locked(&self.declined);
            if declined.len() >= MOST_DECLINED {
                declined.clear();
            }
            declined.insert(key);
        }
    }

    /// A frame of the tier is being read while the result lives.
    pub fn reading(&self, tier: Tier) -> InFlight<'_> {
        InFlight::begin(&self.counts.of(tier).reading)
    }

    /// Whether the disk declined an entry lately.
    pub fn disk_declined(&self, key: &KvKey) -> bool {
        locked(&self.declined).contains(key)
    }

    /// Whether an entry that was planned in the epoch `planned_in` is of a passage, or stands behind one, that was invalidated
    /// since. One whose ancestors this machine does not know may stand behind one; but for a module of a schema, which is computed apart, behind what
    /// may be in no tier, and behind no passage.
    fn forbids(&self, entry: &EntrySummary, planned_in: u64) -> bool {
        let mut forbidden = self.tombstones.forbids(entry, planned_in);
        if !forbidden && planned_in < self.tombstones.epoch() {
            let (mut at, mut above) = (entry.key, entry.parent);
            while let (Some(key), false) = (above, forbidden) {
                let parent = self.host.summary(&key).or_else(|| self.disk.summary(&key));
                forbidden = match &parent {
                    Some(parent) => self.tombstones.forbids(parent, planned_in),
                    None => !self.catalog.is_module(&at),
                };
                (at, above) = (key, parent.and_then(|parent| parent.parent));
            }
        }
        if forbidden {
            count(&self.counts.invalidated_in_flight);
        }
        forbidden
    }

    /// Tells every policy which paths one request used.
    pub fn record(&self, uses: &[Use]) {
        self.host.record(uses);
        self.disk.record(uses);
    }

    /// Keeps a key in the tiers of this machine while the result lives.
    pub fn pin(&self, key: &KvKey) -> TierPins {
        TierPins { _host: self.host.pin(key), _disk: self.disk.pin(key) }
    }

    pub fn count_failed_read(&self, tier: Tier, error: &Error) {
        let counts = self.counts.of(tier);
        let damaged = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound);
        count(if damaged { &counts.corrupt } else { &counts.failed });
        tracing::warn!(%tier, %error, "an entry could not be read");
    }

    pub fn status(&self, tier: Tier) -> TierStatus {
        let usage = self.get(tier).map(EntryTier::usage).unwrap_or_default();
        let counts = self.counts.of(tier);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TierStatus {
            entries: usage.entries,
            bytes: usage.bytes,
            capacity_bytes: usage.capacity_bytes,
            hits: read(&counts.hits),
            misses: read(&counts.misses),
            corrupt: read(&counts.corrupt),
            forged: usage.forged,
            evicted: usage.evicted,
            refused: usage.refused,
            failed: read(&counts.failed),
            declined: read(&counts.declined),
        }
    }
}
