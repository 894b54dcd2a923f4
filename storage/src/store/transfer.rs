//! Copies of entries between the store and another tier: a folder or bucket that is carried elsewhere, or kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EntryInfo, KvStore};
use crate::entry::Entry;
use crate::key::KvKey;
use crate::tier::{EntryId, EntrySummary, EntryTier, Put, Tier};
use crate::{ErrorKind, Result};

/// Whether to copy, or only to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copying {
    /// Copies.
    Really,
    /// Counts what is wanted, and its bytes.
    DryRun,
}

/// What a copy did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Entries that were to be copied.
    pub wanted: u64,
    /// Copied.
    pub entries: u64,
    /// Their bytes; in a dry run, those of what is wanted.
    pub bytes: u64,
    /// There already.
    pub already_there: u64,
    /// Not taken: larger than the target, no room beside what is pinned, or cheaper to compute than to load.
    pub refused: u64,
    /// Damaged or gone at the source.
    pub unreadable: u64,
    /// Of other models than the one in use.
    pub other_models: u64,
}

impl KvStore {
    /// Copies the entries that `wants` picks, and what stands before them, into `target`, parents first. `progress` hears
    /// of every entry and says whether to go on. May be repeated: what is there is skipped. BLOCKS.
    ///
    /// # Errors
    /// As the target says, and as a tier says when it lists its entries. An entry that cannot be read is counted.
    pub fn export(
        &self,
        target: &dyn EntryTier,
        wants: &dyn Fn(&EntryInfo) -> bool,
        copying: Copying,
        progress: &mut dyn FnMut(&Copied) -> bool,
    ) -> Result<Copied> {
        let mut copied = Copied::default();
        let (mut all, mut picked) = (HashMap::new(), Vec::new());
        self.entries(&mut |entry| {
            let summary = entry.summary.clone();
            if summary.fingerprint == *self.fingerprint() {
                if wants(&entry) {
                    picked.push(summary.key);
                }
                all.insert(summary.key, summary);
            } else if wants(&entry) {
                copied.other_models += 1;
            }
        })?;
        let ids = parents_first(&all, picked);
        copied.wanted = ids.len() as u64;
        if copying == Copying::DryRun {
            copied.bytes = ids.iter().filter_map(|id| all.get(&id.key)).map(|summary| summary.bytes).sum();
            return Ok(copied);
        }
        for id in ids {
            let bytes = all.get(&id.key).map_or(0, |summary| summary.bytes);
            match self.read_anywhere(&id)? {
                Some(entry) => copied.count(Some(target.put(&entry)?), bytes),
                None => copied.unreadable += 1,
            }
            if !progress(&copied) {
                break;
            }
        }
        target.flush()?;
        Ok(copied)
    }

    /// Copies the entries of `source` that `wants` picks, and what stands before them, to this machine's disk, parents
    /// first. As [`export`](Self::export) else.
    ///
    /// # Errors
    /// As the source says when it lists its entries; as the disk says.
    pub fn import(
        &self,
        source: &dyn EntryTier,
        wants: &dyn Fn(&EntrySummary) -> bool,
        copying: Copying,
        progress: &mut dyn FnMut(&Copied) -> bool,
    ) -> Result<Copied> {
        let mut copied = Copied::default();
        let (mut all, mut picked) = (HashMap::new(), Vec::new());
        source.list(&mut |summary| {
            if summary.fingerprint == *self.fingerprint() {
                if wants(&summary) {
                    picked.push(summary.key);
                }
                all.insert(summary.key, summary);
            } else {
                copied.other_models += 1;
            }
        })?;
        let ids = parents_first(&all, picked);
        copied.wanted = ids.len() as u64;
        if copying == Copying::DryRun {
            copied.bytes = ids.iter().filter_map(|id| all.get(&id.key)).map(|summary| summary.bytes).sum();
            return Ok(copied);
        }
        for id in ids {
            match read(source, &id) {
                Ok(Some(entry)) => copied.count(self.write(Tier::Disk, &entry)?, entry.header().total_bytes()),
                Ok(None) => copied.unreadable += 1,
                Err(error) if is_loss(error.kind()) => {
                    tracing::warn!(key = %id.key, %error, "an entry was not imported");
                    copied.unreadable += 1;
                }
                Err(error) => return Err(error),
            }
            if !progress(&copied) {
                break;
            }
        }
        self.flush()?;
        Ok(copied)
    }

    /// From the fastest tier that has it whole.
    pub(super) fn read_anywhere(&self, id: &EntryId) -> Result<Option<Arc<Entry>>> {
        for (tier, entries) in self.entry_tiers() {
            match read(entries, id) {
                Ok(Some(entry)) => return Ok(Some(entry)),
                Ok(None) => {}
                Err(error) if is_loss(error.kind()) => {
                    tracing::warn!(key = %id.key, %tier, %error, "not exported from here")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Copied {
    fn count(&mut self, put: Option<Put>, bytes: u64) {
        match put {
            Some(Put::Stored { .. }) => {
                self.entries += 1;
                self.bytes += bytes;
            }
            Some(Put::AlreadyThere) => self.already_there += 1,
            Some(Put::Refused) | None => self.refused += 1,
        }
    }
}

/// That entry is lost; others need not be.
fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound)
}

/// A whole entry, every frame verified.
fn read(tier: &dyn EntryTier, id: &EntryId) -> Result<Option<Arc<Entry>>> {
    let Some(entry) = tier.open(id)? else { return Ok(None) };
    let header = entry.header();
    let frames = (0..header.layers).map(|layer| entry.frame(layer)).collect::<Result<Vec<_>>>()?;
    Entry::from_frames(Arc::clone(header), frames).map(|entry| Some(Arc::new(entry)))
}

/// The picked entries and all that stand before them, each behind its parent.
fn parents_first(all: &HashMap<KvKey, EntrySummary>, picked: Vec<KvKey>) -> Vec<EntryId> {
    let (mut ordered, mut seen) = (Vec::new(), HashSet::new());
    for key in picked {
        let mut path = Vec::new();
        let mut at = Some(key);
        while let Some(summary) = at.filter(|key| seen.insert(*key)).and_then(|key| all.get(&key)) {
            path.push(summary.id());
            at = summary.parent;
        }
        ordered.extend(path.into_iter().rev());
    }
    ordered
}

#[cfg(test)]
mod tests;
