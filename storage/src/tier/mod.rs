//! Where entries are kept, from host memory to object storage, behind one trait.
//!
//! Every tier keeps whole, immutable entries under their keys and promises the same ([`EntryTier`]); `conformance.rs` is
//! the suite that each of them, and a model in memory, passes. What enters which tier, and when, is
//! [`KvStore`](crate::store::KvStore)'s business.

#[cfg(test)]
pub(crate) mod conformance;
pub mod device;
pub mod disk;
pub mod host;
pub mod object;
pub(crate) mod resident;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::cost::Costs;
use crate::entry::{Entry, EntryHeader};
pub use crate::entry::{EntryId, EntrySummary};
use crate::key::{Fingerprint, KvKey, SegmentDigest};
pub use crate::tier::resident::Use;
pub use crate::tier_name::Tier;

/// What became of an entry that was offered to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is there now.
    Stored {
        /// Frames and row.
        bytes: u64,
    },
    /// An entry of that key was there, or is being written; entries are immutable, so it stays.
    AlreadyThere,
    /// It is larger than the tier, or everything that would have to go is pinned. Counted; nothing was evicted for it.
    Refused,
}

/// One tier of entries. Calls BLOCK on whatever the tier is made of; no lock is held meanwhile.
pub trait EntryTier: Send + Sync {
    /// Which tier it is.
    fn tier(&self) -> Tier;

    /// Keeps an entry, and lets others leave for it.
    ///
    /// # Errors
    /// `Full`, `Unavailable` or `Internal`, as the medium says: then nothing has changed.
    fn put(&self, entry: &Arc<Entry>) -> Result<Put>;

    /// Opens an entry for reading and pins it: it is not evicted while the result lives. `None`: it is not there. Token ids
    /// are the caller's to compare.
    ///
    /// # Errors
    /// `Corrupt` if what describes it is damaged; `Unavailable` if the medium fails.
    fn open(&self, id: &EntryId) -> Result<Option<Arc<dyn TierEntry>>>;

    /// Removes an entry, pinned or not; whether it was there. From now on nobody finds it, even if the deletion fails.
    ///
    /// # Errors
    /// As the medium says.
    fn remove(&self, id: &EntryId) -> Result<bool>;

    /// Calls `each` for every entry that can be found. Gives how many were left out because what describes them is damaged.
    ///
    /// # Errors
    /// As the medium says.
    fn list(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64>;

    /// What it holds and did.
    fn usage(&self) -> TierUsage;

    /// What came before survives a power cut, as far as the medium can promise that.
    ///
    /// # Errors
    /// As the medium says.
    fn flush(&self) -> Result<()>;
}

/// A read under way.
pub(crate) struct InFlight<'a> {
    count: &'a AtomicU64,
    /// Reads that were under way when it began, itself among them.
    pub in_flight: u64,
}

impl<'a> InFlight<'a> {
    pub fn begin(count: &'a AtomicU64) -> Self {
        Self { count, in_flight: count.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How close an entry is to what was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Bit for bit.
    Exact,
    /// Close, and not the same: for blending only.
    Lossy,
}

/// A tier that nodes share, where a look-up costs a round trip. It may hold lossy entries beside the exact ones: those are
/// never found, listed or given by what [`EntryTier`] offers, but are removed with the exact ones.
pub trait SharedTier: EntryTier {
    /// Opens many entries at once, each in the wanted precision; as many answers, in the same order.
    fn open_many(&self, wanted: &[(EntryId, Precision)]) -> Vec<Result<Option<Arc<dyn TierEntry>>>>;

    /// Whether what is put here is kept lossy.
    fn keeps_lossy(&self) -> bool;

    /// As [`EntryTier::list`], for the lossy entries.
    ///
    /// # Errors
    /// As the medium says.
    fn list_lossy(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64>;

    /// Does not find what these models wrote of these names any more, though it is there still: it is to be removed. Does not block.
    fn hide_many(&self, named: &[(Fingerprint, EntryId)]);

    /// As [`EntryTier::remove`], for entries that these models wrote, many at once; the keys and bytes of what was there.
    ///
    /// # Errors
    /// The first that the medium says; the others are removed all the same.
    fn remove_many(&self, named: &[(Fingerprint, EntryId)]) -> Result<Vec<(KvKey, u64)>>;

    /// As [`EntryTier::remove`], for what is there in this precision alone.
    ///
    /// # Errors
    /// As the medium says.
    fn remove_as(&self, id: &EntryId, precision: Precision) -> Result<bool>;

    /// Removes every entry that these models wrote of these segments, whatever stood before them: some tenants', or, for `None`,
    /// everybody's. The keys and bytes of those that were there. A digest is of one model; it is looked for under each.
    ///
    /// # Errors
    /// As the medium says.
    fn remove_segments(
        &self,
        tenants: Option<&BTreeSet<String>>,
        models: &[Fingerprint],
        segments: &[SegmentDigest],
    ) -> Result<Vec<(KvKey, u64)>>;

    /// Whose entries of some segments there are. Reads the head of each.
    ///
    /// # Errors
    /// As the bucket says.
    fn tenants_of(&self, models: &[Fingerprint], segments: &[SegmentDigest]) -> Result<BTreeSet<String>>;

    /// Reads report what they take from now on.
    fn report_reads(&self, to: &Costs);

    /// This tier as any other.
    fn as_tier(&self) -> &dyn EntryTier;
}

/// An entry of a tier, open for reading, pinned while this lives.
pub trait TierEntry: Send + Sync {
    /// What it is.
    fn header(&self) -> &Arc<EntryHeader>;

    /// Whether what is read is what was computed. An entry that is not exact must never be filed as an exact hit, nor copied
    /// into another tier; [`EntryTier::open`] gives exact ones only.
    fn is_exact(&self) -> bool {
        true
    }

    /// Bytes that reading all of it moves: fewer than its frames have where it is compressed.
    fn stored_bytes(&self) -> u64 {
        self.header().total_bytes()
    }

    /// Layers from this one on are about to be read: what takes a round trip is begun. Does not block.
    fn begin(&self, layer: u32) {
        let _ = layer;
    }

    /// One encoded frame, unverified: [`crate::frame::decode`] does that. BLOCKS.
    ///
    /// # Errors
    /// `NotFound` if it is gone, `Unavailable` if the medium fails.
    fn frame(&self, layer: u32) -> Result<Bytes>;
}

/// What a tier holds and did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierUsage {
    /// Whole entries that can be found. The object tier says what this node saw last.
    pub entries: u64,
    /// Bytes of them, frames and rows.
    pub bytes: u64,
    /// The bound on `bytes`; 0 where there is none, or the tier is off.
    pub capacity_bytes: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Entries that were not taken: larger than the tier, or no room beside what is pinned.
    pub refused: u64,
    /// Headers and layers of sealed entries that were refused: nobody with one of this node's keys wrote them so.
    #[serde(default)]
    pub forged: u64,
}

/// What a tier holds, and how it answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TierStatus {
    /// As [`TierUsage::entries`].
    pub entries: u64,
    /// As [`TierUsage::bytes`].
    pub bytes: u64,
    /// As [`TierUsage::capacity_bytes`].
    pub capacity_bytes: u64,
    /// Look-ups that this tier answered.
    pub hits: u64,
    /// Look-ups that came to this tier and found nothing.
    pub misses: u64,
    /// Frames or rows that failed verification.
    pub corrupt: u64,
    /// As [`TierUsage::forged`].
    pub forged: u64,
    /// As [`TierUsage::evicted`].
    pub evicted: u64,
    /// As [`TierUsage::refused`].
    pub refused: u64,
    /// Writes and reads that the medium failed (a full disk, an I/O error, a time-out).
    pub failed: u64,
    /// Entries that were not kept or not loaded because computing them again is faster.
    pub declined: u64,
}
