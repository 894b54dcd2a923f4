//! Copies of entries between the store and another tier: a folder or bucket that is carried elsewhere, or kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EntryInfo, KvStore};
use crate::entry::Entry;
use crate::key::KvKey;
use crate::tier::object::Beside;
use crate::tier::{EntryId, EntrySummary, EntryTier, Put, Tier};
use crate::{ErrorKind, Result};

/// What a copy did so far, or would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Copied {
    /// Entries that were to be copied.
    pub wanted: u64,
    /// Copied.
    pub entries: u64,
    /// Their bytes; of a preview, those of what is wanted.
    pub bytes: u64,
    /// There already.
    pub already_there: u64,
    /// Not taken: larger than the target, no room beside what is pinned, or cheaper to compute than to load.
    pub refused: u64,
    /// Gone from the source meanwhile.
    pub unreadable: u64,
    /// Damaged at the source, so that they were not copied.
    #[serde(default)]
    pub damaged: u64,
    /// Left out because nothing has them bit for bit: the bucket has 8 bits of them, or only the device has them.
    #[serde(default)]
    pub not_whole: u64,
    /// Of other models than the one in use.
    pub other_models: u64,
    /// Sealed by a key that this node does not have, or, where it has one, not sealed at all.
    #[serde(default)]
    pub other_keys: u64,
}

/// Which entries to copy, parents first. Nothing is copied yet.
#[derive(Debug, Clone, Default)]
pub struct CopyPlan {
    entries: Vec<(EntryId, u64)>,
    so_far: Copied,
}

/// Entries to choose from, and those that were chosen.
#[derive(Default)]
struct Choice {
    all: HashMap<KvKey, EntrySummary>,
    picked: Vec<KvKey>,
    so_far: Copied,
}

/// What became of reading a whole entry.
pub(super) enum Read {
    /// Every frame was verified.
    Whole(Arc<Entry>),
    Damaged,
    Gone,
}

impl CopyPlan {
    /// Adds what a bucket has that cannot be imported, whatever was to be picked: names say no more than whose it is.
    #[must_use]
    pub fn leaving_out(mut self, beside: Beside) -> Self {
        self.so_far.other_models += beside.other_models;
        self.so_far.not_whole += beside.lossy;
        self.so_far.other_keys += beside.other_keys;
        self
    }

    /// What the copy would do, as far as that is known beforehand.
    pub fn preview(&self) -> Copied {
        Copied { bytes: self.entries.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes)), ..self.so_far }
    }

    fn run(
        &self,
        read: impl Fn(&EntryId) -> Result<Read>,
        mut write: impl FnMut(&Arc<Entry>) -> Result<Option<Put>>,
        progress: &mut dyn FnMut(&Copied) -> bool,
    ) -> Result<Copied> {
        let mut copied = self.so_far;
        for (id, _) in &self.entries {
            match read(id)? {
                Read::Whole(entry) => copied.count(write(&entry)?, entry.header().total_bytes()),
                Read::Damaged => copied.damaged += 1,
                Read::Gone => copied.unreadable += 1,
            }
            if !progress(&copied) {
                break;
            }
        }
        Ok(copied)
    }
}

impl Choice {
    fn plan(self) -> CopyPlan {
        let Self { all, picked, mut so_far } = self;
        let bytes = |id: EntryId| (id, all.get(&id.key).map_or(0, |summary| summary.bytes));
        let entries: Vec<_> = parents_first(&all, picked).into_iter().map(bytes).collect();
        so_far.wanted = entries.len() as u64 + so_far.damaged;
        CopyPlan { entries, so_far }
    }
}

impl KvStore {
    /// The entries of `tiers` that `wants` picks, and what stands before them. BLOCKS.
    ///
    /// # Errors
    /// As a tier says when it lists its entries.
    pub fn plan_export(&self, tiers: &[Tier], wants: &dyn Fn(&EntryInfo) -> bool) -> Result<CopyPlan> {
        let mut choice = Choice::default();
        self.entries(tiers, &mut |entry| {
            let is_wanted = wants(&entry);
            let key = entry.summary.key;
            if entry.summary.fingerprint != *self.fingerprint() {
                choice.so_far.other_models += u64::from(is_wanted);
            } else if !entry.is_whole_somewhere() {
                choice.so_far.not_whole += u64::from(is_wanted);
            } else {
                choice.picked.extend(is_wanted.then_some(key));
                choice.all.insert(key, entry.summary);
            }
        })?;
        Ok(choice.plan())
    }

    /// Copies what was planned into `target`, parents first. `progress` hears of every entry and says whether to go on. May be
    /// repeated: what is there is skipped. BLOCKS.
    ///
    /// # Errors
    /// As the target says. An entry that cannot be read is counted.
    pub fn export(
        &self,
        plan: &CopyPlan,
        target: &dyn EntryTier,
        progress: &mut dyn FnMut(&Copied) -> bool,
    ) -> Result<Copied> {
        let copied = plan.run(|id| self.read_anywhere(id), |entry| target.put(entry).map(Some), progress)?;
        target.flush()?;
        Ok(copied)
    }

    /// The entries of `source` that `wants` picks, and what stands before them. BLOCKS.
    ///
    /// # Errors
    /// As the source says when it lists its entries. Those whose description is damaged are counted.
    pub fn plan_import(&self, source: &dyn EntryTier, wants: &dyn Fn(&EntrySummary) -> bool) -> Result<CopyPlan> {
        let mut choice = Choice::default();
        choice.so_far.damaged = source.list(&mut |summary| {
            if summary.fingerprint == *self.fingerprint() {
                choice.picked.extend(wants(&summary).then_some(summary.key));
                choice.all.insert(summary.key, summary);
            } else {
                choice.so_far.other_models += 1;
            }
        })?;
        Ok(choice.plan())
    }

    /// Copies what was planned from `source` to this machine's disk, parents first, as if it had been used just now. As
    /// [`export`](Self::export) else.
    ///
    /// # Errors
    /// As the source and the disk say. An entry that is damaged is counted.
    pub fn import(
        &self,
        plan: &CopyPlan,
        source: &dyn EntryTier,
        progress: &mut dyn FnMut(&Copied) -> bool,
    ) -> Result<Copied> {
        let write = |entry: &Arc<Entry>| {
            let put = self.write(Tier::Disk, entry)?;
            if matches!(put, Some(Put::Stored { .. })) {
                self.0.uses.note_arrival(&entry.header().key, self.env());
            }
            Ok(put)
        };
        let copied = plan.run(|id| self.read(source, id), write, progress)?;
        self.flush()?;
        Ok(copied)
    }

    /// From the fastest tier that has it whole.
    pub(super) fn read_anywhere(&self, id: &EntryId) -> Result<Read> {
        let mut lost = Read::Gone;
        for (_, entries) in self.entry_tiers() {
            match self.read(entries, id)? {
                Read::Gone => {}
                Read::Damaged => lost = Read::Damaged,
                whole @ Read::Whole(_) => return Ok(whole),
            }
        }
        Ok(lost)
    }

    /// Reads a whole entry, compares its shape with the model's and verifies every frame. That one is lost is no error:
    /// others need not be.
    fn read(&self, tier: &dyn EntryTier, id: &EntryId) -> Result<Read> {
        let whole = || -> Result<Option<Arc<Entry>>> {
            let Some(entry) = self.0.tiers.fitting(tier.open(id))? else { return Ok(None) };
            let header = entry.header();
            let frames = (0..header.layers).map(|layer| entry.frame(layer)).collect::<Result<Vec<_>>>()?;
            Entry::from_frames(Arc::clone(header), frames).map(|entry| Some(Arc::new(entry)))
        };
        match whole() {
            Ok(entry) => Ok(entry.map_or(Read::Gone, Read::Whole)),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                tracing::warn!(key = %id.key, tier = %tier.tier(), %error, "an entry was not copied from here");
                Ok(if error.kind() == ErrorKind::Corrupt { Read::Damaged } else { Read::Gone })
            }
            Err(error) => Err(error),
        }
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
