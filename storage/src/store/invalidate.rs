//! Invalidation: passages, and all that was computed after them, out of every tier.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::KvStore;
use crate::catalog::Catalog;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::tier::{EntryId, EntrySummary, SharedTier, Tier};
use crate::{Error, Result};

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

/// Tenants who have entries.
#[derive(Debug)]
pub struct TenantsFound {
    /// Those that the tiers which answered have entries of.
    pub tenants: BTreeSet<String>,
    /// Why there may be others.
    pub failed: Option<Error>,
}

/// What a withdrawal removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
#[schemars(rename = "WithdrawnEntries")]
pub struct Withdrawn {
    /// Of the entries, those that a tier had, each counted once.
    pub entries_removed: u64,
    /// Their copies, and those of what stood behind them.
    pub copies_removed: u64,
}

/// What an invalidation has done so far. A step that fails does not keep the others from being done.
#[derive(Debug, Default)]
struct Progress {
    keys: HashSet<KvKey>,
    copies: u64,
    bytes: u64,
    /// Keys that nothing is to be known of any more, removed or not.
    doomed: HashSet<KvKey>,
    /// What is to leave object storage by its name.
    named: HashSet<(Fingerprint, EntryId)>,
    failed: Option<Error>,
}

impl Progress {
    fn count(&mut self, key: KvKey, bytes: u64) {
        self.keys.insert(key);
        self.copies += 1;
        self.bytes += bytes;
    }

    /// Remembers the first error.
    fn noted<T>(&mut self, step: Result<T>) -> Option<T> {
        match step {
            Ok(done) => Some(done),
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }
}

impl KvStore {
    /// Removes every entry of these segments, and everything that was computed after them, from every tier; what was
    /// planned before this call is not filed after it. Entries that only object storage has are found by their segment, those
    /// of this model and of `others`, whose digests may be among the segments; those behind them, which other nodes computed
    /// and this one never held, are left to the bucket's collector: no key leads to them any more. BLOCKS.
    ///
    /// What a dead bucket keeps is noted in the catalog; every later call removes it, one without segments too. That fails for what it
    /// was called for alone: without segments, for all that is noted.
    ///
    /// # Errors
    /// The first that a tier says; every other step is done all the same. Then some are left, and the call is to be repeated.
    /// From the first moment on none of the segments that this machine holds is found.
    pub fn invalidate(&self, segments: &[SegmentDigest], others: &[Fingerprint]) -> Result<Invalidated> {
        self.invalidate_of(None, segments, others)
    }

    /// As [`invalidate`](Self::invalidate), of some tenants' entries; those of others stay, and are not counted. What others have planned of
    /// these segments is not filed either. `None`: of everybody's; for some, what a dead bucket kept of earlier calls is left alone.
    ///
    /// # Errors
    /// As [`invalidate`](Self::invalidate)'s.
    pub fn invalidate_of(
        &self,
        tenants: Option<&BTreeSet<String>>,
        segments: &[SegmentDigest],
        others: &[Fingerprint],
    ) -> Result<Invalidated> {
        self.invalidate_in(tenants, segments, Some(others))
    }

    /// As [`invalidate`](Self::invalidate), but for the bucket, which is not asked: a later [`invalidate`](Self::invalidate) of the same segments
    /// removes them there, and here what this machine read there meanwhile. Afterwards none of the segments is found that this machine holds. BLOCKS, for this machine's
    /// disk alone.
    ///
    /// # Errors
    /// The first that a tier of this machine or the catalog says; every other step is done all the same.
    pub fn invalidate_here(&self, segments: &[SegmentDigest]) -> Result<Invalidated> {
        self.invalidate_in(None, segments, None)
    }

    /// `bucket`: the other models whose objects leave it, too; `None`: it is not asked.
    fn invalidate_in(
        &self,
        tenants: Option<&BTreeSet<String>>,
        segments: &[SegmentDigest],
        bucket: Option<&[Fingerprint]>,
    ) -> Result<Invalidated> {
        let mut done = Progress::default();
        let tiers = &self.0.tiers;
        tiers.tombstones.bury(segments, &[]);
        self.remove_local(tenants, segments, &mut done);
        if let Some(others) = bucket {
            self.remove_objects(tenants, segments, others, &mut done);
        }
        if let Some(device) = self.0.device.get().filter(|_| !segments.is_empty()) {
            // After the others: a prompt that found the passage in another tier might have brought it back.
            device.invalidate(self.fingerprint(), tenants, segments).into_iter().for_each(|key| done.count(key, 0));
        }
        // What found the passage while that went on was planned after the first marks. It is refused from here on, and what
        // of it was filed already is removed.
        tiers.tombstones.bury(segments, &[]);
        self.remove_local(tenants, segments, &mut done);
        // A bucket that failed just now is not waited for twice.
        if bucket.is_some() && done.failed.is_none() {
            self.remove_named_objects(|_| true, &mut done);
        }
        let keys: Vec<KvKey> = done.doomed.union(&done.keys).copied().collect();
        self.0.uses.forget(&keys);
        for key in &keys {
            done.noted(self.set_pinned(key, false));
        }
        let Progress { keys, copies, bytes, failed, .. } = done;
        failed.map_or(Ok(Invalidated { entries: keys.len() as u64, copies, bytes }), Err)
    }

    /// Whether a bucket that did not answer keeps what was to be removed: [`invalidate`](Self::invalidate) without segments tries again.
    ///
    /// # Errors
    /// As the catalog says.
    pub fn has_object_removals(&self) -> Result<bool> {
        Ok(!self.0.uses.catalog.object_removals()?.is_empty())
    }

    /// Nothing of these segments, and nothing on the device, that is planned before this call is filed after it, whoever's it is.
    pub fn forbid_planned(&self, segments: &[SegmentDigest]) {
        self.0.tiers.tombstones.bury(segments, &[]);
        if let Some(device) = self.0.device.get() {
            device.forbid_planned();
        }
    }

    /// Who has entries of these segments, or behind them; of this model and of `others`. BLOCKS.
    pub fn tenants_of(&self, segments: &[SegmentDigest], others: &[Fingerprint]) -> TenantsFound {
        let mut all: Vec<EntrySummary> = Vec::new();
        let listed = self.entries(&[Tier::Device, Tier::Host, Tier::Disk], &mut |entry| all.push(entry.summary));
        let doomed = behind_any(segments, |key| self.0.uses.catalog.is_module(key), all.iter());
        let local = all.iter().filter(|entry| doomed.contains_key(&entry.key)).map(|entry| entry.tenant.to_string());
        let mut found = TenantsFound { tenants: local.collect(), failed: listed.err() };
        if let Some(object) = &self.0.tiers.object {
            match object.tenants_of(&self.models(others), segments) {
                Ok(tenants) => found.tenants.extend(tenants),
                Err(error) => found.failed = found.failed.or(Some(error)),
            }
        }
        found
    }

    /// This model, and others.
    fn models(&self, others: &[Fingerprint]) -> Vec<Fingerprint> {
        let others = others.iter().filter(|other| *other != self.fingerprint());
        std::iter::once(self.fingerprint()).chain(others).copied().collect()
    }

    /// Removes entries by their keys, and what stands behind them, from host memory, disk and bucket, pinned or not; of any model. What was
    /// planned before this call is not filed after it. On the device they leave when room is needed: a path there is other prompts', too.
    /// What a dead bucket keeps is removed by the next such call, or the next [`invalidate`](Self::invalidate). BLOCKS.
    ///
    /// # Errors
    /// The first that a tier says; every other step is done all the same.
    pub fn withdraw(&self, wanted: &[(Fingerprint, EntryId)]) -> Result<Withdrawn> {
        let mut done = Progress { doomed: wanted.iter().map(|(_, id)| id.key).collect(), ..Progress::default() };
        let keys: Vec<KvKey> = done.doomed.iter().copied().collect();
        self.0.tiers.tombstones.bury(&[], &keys);
        if self.0.tiers.object.is_some() {
            done.named = wanted.iter().copied().collect();
            let noted = self.0.uses.catalog.add_object_removals(&done.named);
            done.noted(noted);
        }
        wanted.iter().for_each(|(_, id)| self.withdraw_local(id, &mut done));
        self.remove_named_objects(|_| true, &mut done);
        // What found one of them while that went on was planned after the first marks, and may have brought it back.
        self.0.tiers.tombstones.bury(&[], &keys);
        wanted.iter().for_each(|(_, id)| self.withdraw_local(id, &mut done));
        let gone: Vec<KvKey> = done.doomed.union(&done.keys).copied().collect();
        self.0.uses.forget(&gone);
        for key in &gone {
            done.noted(self.set_pinned(key, false));
        }
        done.noted(self.flush());
        let entries = keys.iter().filter(|key| done.keys.contains(*key)).count() as u64;
        done.failed.map_or(Ok(Withdrawn { entries_removed: entries, copies_removed: done.copies }), Err)
    }

    fn withdraw_local(&self, id: &EntryId, done: &mut Progress) {
        let tiers = &self.0.tiers;
        for (tier, behind) in [(Tier::Host, tiers.host.behind(&id.key)), (Tier::Disk, tiers.disk.behind(&id.key))] {
            let Some(entries) = tiers.get(tier) else { continue };
            // Tiers of this machine go by the key alone.
            let behind = behind.into_iter().map(|key| EntryId { key, segment: SegmentDigest([0; 16]) });
            for id in behind.chain([*id]) {
                if done.noted(entries.remove(&id)) == Some(true) {
                    done.count(id.key, 0);
                }
            }
        }
    }

    /// Removes the entries of some segments, and what stands behind them, from host memory and disk. Before that, those that
    /// are theirs for certain are noted as to be removed from object storage: without the local copies nothing names them.
    fn remove_local(&self, tenants: Option<&BTreeSet<String>>, segments: &[SegmentDigest], done: &mut Progress) {
        if segments.is_empty() {
            return;
        }
        let tiers = &self.0.tiers;
        let mut all = Vec::new();
        for (tier, entries) in self.entry_tiers().filter(|(tier, _)| *tier != Tier::Object) {
            // A key's parents are its own tenant's.
            done.noted(entries.list(&mut |summary| {
                if tenants.is_none_or(|tenants| tenants.contains(&*summary.tenant)) {
                    all.push((tier, summary));
                }
            }));
        }
        let is_module = |key: &KvKey| self.0.uses.catalog.is_module(key);
        let doomed = behind_any(segments, is_module, all.iter().map(|(_, summary)| summary));
        let keys: Vec<KvKey> = doomed.keys().copied().collect();
        tiers.tombstones.bury(&[], &keys);
        done.doomed.extend(keys);
        if tiers.object.is_some() {
            let proven = all.iter().filter(|(_, summary)| doomed.get(&summary.key) == Some(&Doom::Proven));
            let named: HashSet<_> = proven.map(|(_, summary)| (summary.fingerprint, summary.id())).collect();
            if done.noted(self.0.uses.catalog.add_object_removals(&named)).is_none() {
                // They are not found any more, and name to the next call what it is to remove.
                return;
            }
            done.named.extend(named);
        }
        for (tier, summary) in all.iter().filter(|(_, summary)| doomed.contains_key(&summary.key)) {
            let removed = tiers.get(*tier).map_or(Ok(false), |entries| entries.remove(&summary.id()));
            if done.noted(removed) == Some(true) {
                done.count(summary.key, summary.bytes);
            }
        }
    }

    /// Removes the objects of some segments, those that this call named, and, of everybody's, those that earlier ones did.
    fn remove_objects(
        &self,
        tenants: Option<&BTreeSet<String>>,
        segments: &[SegmentDigest],
        others: &[Fingerprint],
        done: &mut Progress,
    ) {
        let Some(object) = &self.0.tiers.object else { return };
        let models = self.models(others);
        let mut listed: HashSet<SegmentDigest> = HashSet::new();
        if !segments.is_empty()
            && let Some(removed) = done.noted(object.remove_segments(tenants, &models, segments))
        {
            removed.into_iter().for_each(|(key, bytes)| done.count(key, bytes));
            if tenants.is_none() {
                listed.extend(segments);
            }
        }
        // Even if the listing failed: this node does not find any more what it asked to have deleted.
        self.remove_named_objects(|(model, id)| !(listed.contains(&id.segment) && models.contains(model)), done);
        if tenants.is_none() {
            self.remove_earlier_objects(segments.is_empty(), done);
        }
    }

    /// Removes what earlier calls named and could not remove. Where that is not what was `wanted`, it fails nobody: it was another's, and
    /// is tried again.
    fn remove_earlier_objects(&self, wanted: bool, done: &mut Progress) {
        let Some(object) = &self.0.tiers.object else { return };
        let Some(noted) = done.noted(self.0.uses.catalog.object_removals()) else { return };
        let earlier: HashSet<_> = noted.difference(&done.named).copied().collect();
        // A bucket that failed just now is not waited for twice.
        if earlier.is_empty() || done.failed.is_some() {
            return;
        }
        done.doomed.extend(earlier.iter().map(|(_, id)| id.key));
        // This machine may have read it from the bucket before it knew that it was to leave.
        earlier.iter().for_each(|(_, id)| self.withdraw_local(id, done));
        match object.remove_many(&earlier.iter().copied().collect::<Vec<_>>()) {
            Ok(removed) => {
                removed.into_iter().for_each(|(key, bytes)| done.count(key, bytes));
                done.noted(self.0.uses.catalog.finish_object_removals(&earlier));
            }
            Err(error) if wanted => drop(done.noted::<()>(Err(error))),
            Err(error) => tracing::debug!(%error, "what earlier removals left in the bucket stays there for now"),
        }
    }

    /// Removes what was named, and `is_left` says is there still; then it is noted no more.
    fn remove_named_objects(&self, is_left: impl Fn(&(Fingerprint, EntryId)) -> bool, done: &mut Progress) {
        let Some(object) = &self.0.tiers.object else { return };
        let left: Vec<_> = done.named.iter().copied().filter(is_left).collect();
        done.doomed.extend(left.iter().map(|(_, id)| id.key));
        if let Some(removed) = done.noted(object.remove_many(&left)) {
            removed.into_iter().for_each(|(key, bytes)| done.count(key, bytes));
            let gone = std::mem::take(&mut done.named);
            done.noted(self.0.uses.catalog.finish_object_removals(&gone));
        }
    }
}

/// What a dead bucket kept before a restart is not found after it either.
///
/// # Errors
/// As the catalog says.
pub(super) fn hide_removals(object: &dyn SharedTier, catalog: &Catalog) -> Result<()> {
    object.hide_many(&catalog.object_removals()?.into_iter().collect::<Vec<_>>());
    Ok(())
}

/// Why an entry goes with some segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doom {
    /// It is of one of them, or stands behind one.
    Proven,
    /// Its ancestors are not all known. It may stand behind one: nothing is lost but time, on this machine.
    Suspected,
}

/// The entries of some segments, and those that stand behind them. Modules of schemas, which are computed apart, stand behind no passage, though
/// what stands in for arguments before them is in no tier.
fn behind_any<'a>(
    segments: &[SegmentDigest],
    is_module: impl Fn(&KvKey) -> bool,
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
            let Some(above) = known.get(parent) else {
                return (!is_module(&at.key)).then_some(Doom::Suspected);
            };
            at = above;
        }
    };
    entries.filter_map(|entry| Some((entry.key, doom(entry)?))).collect()
}
