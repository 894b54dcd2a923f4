//! What an operator does to the store: list, pin, evict, invalidate, verify.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::KvStore;
use super::tiers::count;
use crate::catalog::LastUse;
use crate::frame;
use crate::key::{KvKey, SegmentDigest};
use crate::tier::resident::locked;
use crate::tier::{EntryId, EntrySummary, EntryTier, Tier};
use crate::{Error, ErrorKind, Result};

/// The tiers that hold whole entries, fastest first.
const ENTRY_TIERS: [Tier; 3] = [Tier::Host, Tier::Disk, Tier::Object];

/// One entry, wherever it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryInfo {
    /// What it is.
    #[serde(flatten)]
    pub summary: EntrySummary,
    /// Where it is, fastest first.
    pub tiers: Vec<Tier>,
    /// Whether an operator pinned it.
    pub pinned: bool,
    /// Its last use that this node knows of, in milliseconds since 1970; 0: none.
    pub last_use_unix_ms: u64,
    /// Requests of this node that used it.
    pub uses: u32,
}

/// What an invalidation removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invalidated {
    /// Entries, each counted once.
    pub entries: u64,
    /// The same, each counted once for every tier it was in, the device among them.
    pub copies: u64,
    /// Bytes of the copies in host memory, on disk and in object storage.
    pub bytes: u64,
}

/// What an invalidation has removed so far.
#[derive(Debug, Default)]
struct Removed {
    keys: HashSet<KvKey>,
    copies: u64,
    bytes: u64,
}

impl Removed {
    fn count(&mut self, key: KvKey, bytes: u64) {
        self.keys.insert(key);
        self.copies += 1;
        self.bytes += bytes;
    }
}

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Entries read, each counted once for every tier it is in.
    pub entries: u64,
    /// Frames read and compared with their checksums.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Entries that are damaged or incomplete, and the tier in which they are.
    pub damaged: Vec<DamagedEntry>,
    /// Entries that could not be read for another reason (a time-out, a permission).
    pub unreadable: u64,
}

/// A damaged entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DamagedEntry {
    /// Which entry.
    pub key: KvKey,
    /// Where.
    pub tier: Tier,
    /// What is wrong with it.
    pub error: String,
}

impl KvStore {
    /// Calls `each` for every entry of every tier, those of object storage among them; what only the device has is not
    /// listed. BLOCKS.
    ///
    /// # Errors
    /// As a tier says.
    pub fn entries(&self, each: &mut dyn FnMut(EntryInfo)) -> Result<()> {
        let mut found: HashMap<KvKey, (EntrySummary, Vec<Tier>)> = HashMap::new();
        for (tier, entries) in self.entry_tiers() {
            let listed = entries.list(&mut |summary| {
                found.entry(summary.key).or_insert_with(|| (summary, Vec::new())).1.push(tier);
            });
            match listed {
                Err(error) if tier == Tier::Object && error.kind() == ErrorKind::Unavailable => {
                    tracing::warn!(%error, "object storage cannot be listed; what only it has is left out");
                }
                listed => listed?,
            }
        }
        let mut found: Vec<_> = found.into_values().collect();
        found.sort_unstable_by_key(|(summary, _)| summary.key);
        for (summary, mut tiers) in found {
            if self.0.device.get().is_some_and(|device| device.contains(&summary.key)) {
                tiers.insert(0, Tier::Device);
            }
            let LastUse { unix_ms, uses } = self.0.uses.get(&summary.key);
            let pinned = locked(&self.0.pins).contains_key(&summary.key);
            each(EntryInfo { summary, tiers, pinned, last_use_unix_ms: unix_ms, uses });
        }
        Ok(())
    }

    pub(super) fn entry_tiers(&self) -> impl Iterator<Item = (Tier, &dyn EntryTier)> {
        ENTRY_TIERS.into_iter().filter_map(|tier| Some((tier, self.0.tiers.get(tier)?)))
    }

    /// Takes an entry out of one tier, what stands behind it in that tier first: a parent outlives its children. Gives the
    /// number of entries that left. BLOCKS.
    ///
    /// # Errors
    /// As the tier says.
    pub fn evict(&self, id: &EntryId, tier: Tier) -> Result<u64> {
        if let (Tier::Device, Some(device)) = (tier, self.0.device.get()) {
            return Ok(u64::from(device.remove(&id.key)));
        }
        let tiers = &self.0.tiers;
        let behind = match tier {
            Tier::Host => tiers.host.behind(&id.key),
            Tier::Disk => tiers.disk.behind(&id.key),
            Tier::Device | Tier::Object => Vec::new(),
        };
        let Some(entries) = tiers.get(tier) else { return Ok(0) };
        let mut left = 0;
        for key in behind {
            // Tiers of this machine go by the key alone.
            left += u64::from(entries.remove(&EntryId { key, segment: SegmentDigest([0; 16]) })?);
        }
        left += u64::from(entries.remove(id)?);
        Ok(left)
    }

    /// Keeps an entry, and what stands before it, in every tier of this machine that it is in or comes to, or no longer;
    /// survives restarts. Whether that changed anything.
    ///
    /// # Errors
    /// As the catalog says.
    pub fn set_pinned(&self, key: &KvKey, pinned: bool) -> Result<bool> {
        // One change at a time; who only reads the pins does not wait for the catalog.
        let _changing = locked(&self.0.pin_changes);
        if locked(&self.0.pins).contains_key(key) == pinned {
            return Ok(false);
        }
        self.0.uses.catalog.set_pinned(key, pinned)?;
        let pin = pinned.then(|| self.0.tiers.pin(key));
        let mut pins = locked(&self.0.pins);
        let before = match pin {
            Some(pin) => pins.insert(*key, pin),
            None => pins.remove(key),
        };
        drop(pins);
        drop(before);
        Ok(true)
    }

    /// Removes every entry of these segments, and everything that was computed behind them, from every tier; what was
    /// planned before this call is not filed after it. Entries that only object storage has are found by their segment; those
    /// behind them, which other nodes computed and this one never held, are left to the bucket's collector: no key leads to
    /// them any more. BLOCKS.
    ///
    /// # Errors
    /// As a tier says: then some are left, and the call is to be repeated. From the first moment on none of the segments
    /// that this machine holds is found.
    pub fn invalidate(&self, segments: &[SegmentDigest]) -> Result<Invalidated> {
        let mut done = Removed::default();
        if segments.is_empty() {
            return Ok(Invalidated::default());
        }
        let tiers = &self.0.tiers;
        tiers.tombstones.bury(segments, &[]);
        self.remove_entries_of(segments, &mut done)?;
        if let Some(object) = &tiers.object {
            for segment in segments {
                object.remove_segment(segment)?.into_iter().for_each(|(key, bytes)| done.count(key, bytes));
            }
        }
        if let Some(device) = self.0.device.get() {
            // After the others: a prompt that found the passage in another tier might have brought it back.
            device.invalidate(self.fingerprint(), segments).into_iter().for_each(|key| done.count(key, 0));
        }
        // What found the passage while that went on was planned after the first marks. It is refused from here on, and what
        // of it was filed already is removed.
        tiers.tombstones.bury(segments, &[]);
        self.remove_entries_of(segments, &mut done)?;
        let Removed { keys, copies, bytes } = done;
        Ok(Invalidated { entries: keys.len() as u64, copies, bytes })
    }

    /// Removes the entries of some segments, and what stands behind them, from the tiers of this machine, and those of them
    /// from object storage as well.
    fn remove_entries_of(&self, segments: &[SegmentDigest], done: &mut Removed) -> Result<()> {
        let tiers = &self.0.tiers;
        let mut all = Vec::new();
        for (tier, entries) in self.entry_tiers().filter(|(tier, _)| *tier != Tier::Object) {
            entries.list(&mut |summary| all.push((tier, summary)))?;
        }
        let doomed = behind_any(segments, all.iter().map(|(_, summary)| summary));
        let keys: Vec<KvKey> = doomed.keys().copied().collect();
        tiers.tombstones.bury(&[], &keys);
        for (tier, summary) in all.iter().filter(|(_, summary)| doomed.contains_key(&summary.key)) {
            if tiers.get(*tier).map_or(Ok(false), |entries| entries.remove(&summary.id()))? {
                done.count(summary.key, summary.bytes);
            }
        }
        if let Some(object) = &tiers.object {
            let ids: HashMap<EntryId, u64> = all.iter().map(|(_, summary)| (summary.id(), summary.bytes)).collect();
            let proven = |id: &EntryId| doomed.get(&id.key) == Some(&Doom::Proven) && !segments.contains(&id.segment);
            for (id, bytes) in ids.iter().filter(|(id, _)| proven(id)) {
                if object.remove(id)? {
                    done.count(id.key, *bytes);
                }
            }
        }
        self.0.uses.forget(&keys);
        for key in &keys {
            self.set_pinned(key, false)?;
        }
        Ok(())
    }

    /// Reads every frame of the given tiers and compares it with its checksum. Damaged entries are removed unless
    /// `dry_run`; on disk, a copy goes into quarantine. `progress` hears of every entry and says whether to go on. BLOCKS.
    ///
    /// # Errors
    /// As a tier says when it lists its entries. What it says of one entry is in the report.
    pub fn verify(
        &self,
        tiers: &[Tier],
        dry_run: bool,
        progress: &mut dyn FnMut(&VerifyReport) -> bool,
    ) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        for (tier, entries) in self.entry_tiers().filter(|(tier, _)| tiers.contains(tier)) {
            let mut ids = Vec::new();
            entries.list(&mut |summary| ids.push(summary.id()))?;
            for id in ids {
                match verify_entry(entries, &id, &mut report) {
                    Ok(()) => {}
                    // It left while we read.
                    Err(error)
                        if error.kind() == ErrorKind::NotFound && entries.open(&id).is_ok_and(|at| at.is_none()) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                        count(&self.0.tiers.counts.of(tier).corrupt);
                        report.damaged.push(DamagedEntry { key: id.key, tier, error: error.to_string() });
                        if !dry_run {
                            self.remove_damaged(&id, tier)?;
                        }
                    }
                    Err(error) => {
                        report.unreadable += 1;
                        tracing::warn!(key = %id.key, %tier, %error, "an entry could not be verified");
                    }
                }
                if !progress(&report) {
                    return Ok(report);
                }
            }
        }
        Ok(report)
    }

    fn remove_damaged(&self, id: &EntryId, tier: Tier) -> Result<()> {
        let tiers = &self.0.tiers;
        match tier {
            Tier::Disk => tiers.disk.quarantine(&id.key).map(drop),
            _ => tiers.get(tier).map_or(Ok(false), |entries| entries.remove(id)).map(drop),
        }
    }

    /// Has RocksDB rewrite its files without what was deleted; the bytes that became free. BLOCKS.
    ///
    /// # Errors
    /// As RocksDB says.
    pub fn compact_disk(&self) -> Result<u64> {
        self.0.tiers.disk.compact()
    }
}

/// Why an entry goes with some segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doom {
    /// It is of one of them, or stands behind one.
    Proven,
    /// Its ancestors are not all known. It may stand behind one: nothing is lost but time, on this machine.
    Suspected,
}

/// The entries of some segments, and those that stand behind them.
fn behind_any<'a>(
    segments: &[SegmentDigest],
    entries: impl Iterator<Item = &'a EntrySummary> + Clone,
) -> HashMap<KvKey, Doom> {
    let wanted: HashSet<&SegmentDigest> = segments.iter().collect();
    let known: HashMap<&KvKey, &EntrySummary> = entries.clone().map(|entry| (&entry.key, entry)).collect();
    let doom = |entry: &EntrySummary| {
        let mut at = entry;
        loop {
            if wanted.contains(&at.segment) {
                return Some(Doom::Proven);
            }
            let parent = at.parent.as_ref()?;
            let Some(above) = known.get(parent) else { return Some(Doom::Suspected) };
            at = above;
        }
    };
    entries.filter_map(|entry| Some((entry.key, doom(entry)?))).collect()
}

fn verify_entry(entries: &dyn EntryTier, id: &EntryId, report: &mut VerifyReport) -> Result<()> {
    let Some(entry) = entries.open(id)? else { return Err(Error::not_found(format!("entry {} left", id.key))) };
    let header = entry.header();
    report.entries += 1;
    for layer in 0..header.layers {
        let bytes = entry.frame(layer)?;
        frame::decode(&bytes, &header.key, layer, &header.frame_shape())?;
        report.frames += 1;
        report.bytes += bytes.len() as u64;
    }
    Ok(())
}
