//! What an operator does to the store: pin, evict, verify.

use std::collections::HashSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KvStore;
use super::tiers::count;
use crate::frame;
use crate::key::{KvKey, SegmentDigest};
use crate::tier::{EntryId, Precision, Tier, TierEntry};
use crate::{Error, ErrorKind, Result};
use ragstone_env::lock::locked;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DamagedEntry {
    /// Which entry.
    pub key: KvKey,
    /// Where.
    pub tier: Tier,
    /// What is wrong with it.
    pub error: String,
}

impl KvStore {
    /// Takes an entry out of one tier, what stands behind it in that tier first: a parent outlives its children. Gives the
    /// number of entries that left: none if it is pinned, or a pinned one stands behind it ([`kept`](Self::kept)). BLOCKS.
    ///
    /// # Errors
    /// As the tier says.
    pub fn evict(&self, id: &EntryId, tier: Tier) -> Result<u64> {
        if self.is_kept(&id.key) {
            return Ok(0);
        }
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

    /// What evictions leave alone: pinned entries, and all that stand before one, as far as this machine knows. Between the
    /// two, one may be missing.
    pub fn kept(&self, keys: impl Iterator<Item = KvKey>) -> HashSet<KvKey> {
        keys.filter(|key| self.is_kept(key)).collect()
    }

    fn is_kept(&self, key: &KvKey) -> bool {
        {
            let pins = locked(&self.0.pins);
            if pins.is_empty() {
                return false;
            }
            if pins.contains_key(key) {
                return true;
            }
        }
        let tiers = &self.0.tiers;
        let behind = [tiers.host.behind(key), tiers.disk.behind(key)].concat();
        let pins = locked(&self.0.pins);
        behind.iter().any(|key| pins.contains_key(key))
    }

    /// What is pinned, be it in any tier or in none any more.
    pub fn pinned(&self) -> Vec<KvKey> {
        locked(&self.0.pins).keys().copied().collect()
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
            let mut listed = Vec::new();
            entries.list(&mut |summary| listed.push((summary.id(), Precision::Exact)))?;
            if let (Tier::Object, Some(object)) = (tier, &self.0.tiers.object) {
                object.list_lossy(&mut |summary| listed.push((summary.id(), Precision::Lossy)))?;
            }
            for (id, precision) in listed {
                match self.verify_entry(tier, &id, precision, &mut report) {
                    Ok(()) => {}
                    // It left while we read.
                    Err(error)
                        if error.kind() == ErrorKind::NotFound
                            && self.open_in(tier, &id, precision).is_ok_and(|at| at.is_none()) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                        count(&self.0.tiers.counts.of(tier).corrupt);
                        report.damaged.push(DamagedEntry { key: id.key, tier, error: error.to_string() });
                        if !dry_run {
                            self.remove_damaged(&id, tier, precision)?;
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

    fn open_in(&self, tier: Tier, id: &EntryId, precision: Precision) -> Result<Option<Arc<dyn TierEntry>>> {
        let opened = match (precision, &self.0.tiers.object) {
            (Precision::Lossy, Some(object)) => object.open_many(&[(*id, precision)]).pop().unwrap_or(Ok(None)),
            _ => self.0.tiers.get(tier).map_or(Ok(None), |entries| entries.open(id)),
        };
        match opened? {
            // What another model computed looks as it should there: only its checksums are ours to judge.
            Some(entry) if entry.header().fingerprint != self.0.fingerprint => Ok(Some(entry)),
            opened => self.0.tiers.fitting(Ok(opened)),
        }
    }

    fn verify_entry(&self, tier: Tier, id: &EntryId, precision: Precision, report: &mut VerifyReport) -> Result<()> {
        let entry = self.open_in(tier, id, precision)?;
        let entry = entry.ok_or_else(|| Error::not_found(format!("entry {} left", id.key)))?;
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

    fn remove_damaged(&self, id: &EntryId, tier: Tier, precision: Precision) -> Result<()> {
        let tiers = &self.0.tiers;
        match (tier, &tiers.object) {
            (Tier::Disk, _) => tiers.disk.quarantine(&id.key).map(drop),
            (Tier::Object, Some(object)) => object.remove_as(id, precision).map(drop),
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

    /// Has RocksDB rewrite its files where something was deleted from them: on return no file has it. BLOCKS.
    ///
    /// # Errors
    /// As RocksDB says.
    pub fn vacuum_disk(&self) -> Result<()> {
        let disk = &self.0.tiers.disk;
        if disk.has_deleted()? { disk.compact().map(drop) } else { Ok(()) }
    }
}
