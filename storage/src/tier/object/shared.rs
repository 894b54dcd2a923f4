//! What nodes and models that share a bucket need of it beside what every tier does: lossy entries, and removals that reach
//! other models' objects.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use object_store::ObjectMeta;

use super::client::Pending;
use super::names::{Name, Space};
use super::{Known, ObjectTier, Seen};
use crate::cost::Costs;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::tier::{EntryId, EntrySummary, EntryTier, Precision, SharedTier, TierEntry};
use crate::{ErrorKind, Result};

/// Deletions under way at once.
const DELETIONS: usize = 64;

impl ObjectTier {
    /// Lists this model's entries of a name space, in every room that is read; reads the header of each.
    pub(super) fn list_space(&self, space: Space, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        let (mut seen, mut damaged, mut told) = (Seen::default(), 0, HashSet::new());
        for room in self.names.read(space) {
            let mut listing = self.listing(self.names.model(room, &self.fingerprint));
            while let Some(objects) = listing.next()? {
                for (object, opened) in self.open_objects(&objects) {
                    match opened {
                        Ok(Some(opened)) => {
                            let summary = opened.layout.header.summary();
                            seen.add(summary.bytes);
                            let known = Known { key: summary.key, parent: summary.parent, bytes: summary.bytes };
                            self.learn(opened.name, known);
                            // While a key is changed it may be there by both.
                            if !self.names.has_older() || told.insert(summary.key) {
                                each(summary);
                            }
                        }
                        Ok(None) => {}
                        Err(error) if error.kind() == ErrorKind::Corrupt => {
                            tracing::warn!(object = %object.location, %error, "leaving out a damaged object");
                            damaged += 1;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        self.seen()[space as usize] = seen;
        Ok(damaged)
    }

    /// Deletes entries, exact and lossy, in every room; those that were there.
    pub(super) fn remove_all(&self, named: &[(Fingerprint, EntryId)]) -> Result<Vec<(KvKey, u64)>> {
        let keys: Vec<(Name, KvKey)> = named.iter().flat_map(|entry| self.names_of(entry)).collect();
        let names: Vec<Name> = keys.iter().map(|(name, _)| *name).collect();
        self.remove_named(&names, &keys.into_iter().collect())
    }

    /// What an entry may lie under: exact and lossy, in every room.
    fn names_of(&self, (fingerprint, id): &(Fingerprint, EntryId)) -> Vec<(Name, KvKey)> {
        let rooms = Space::ALL.into_iter().flat_map(|space| self.names.all(space));
        rooms.map(|room| (self.names.name(room, fingerprint, id), id.key)).collect()
    }

    /// Deletes objects, many at once; the keys and bytes of those that were there. Those that could not be deleted, this node
    /// does not find any more. `keys` are those of sealed ones, which their names do not say.
    fn remove_named(&self, names: &[Name], keys: &HashMap<Name, KvKey>) -> Result<Vec<(KvKey, u64)>> {
        if let Err(error) = self.reach() {
            names.iter().for_each(|name| self.hide(*name));
            return Err(error);
        }
        let (mut left, mut failed) = (Vec::new(), None);
        for some in names.chunks(DELETIONS) {
            let started: Vec<_> = some.iter().map(|name| (name, self.start_removal(*name))).collect();
            for (name, removal) in started {
                match self.removed(name, removal) {
                    // Whoever writes it again may write another one: damaged, or behind what is gone.
                    Ok(bytes) => {
                        let known = self.known().remove(name);
                        let key = keys.get(name).copied().or(known.map(|known| known.key)).unwrap_or(name.id.key);
                        left.extend(bytes.map(|bytes| (key, bytes)));
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        failed.map_or(Ok(left), Err)
    }
}

impl ObjectTier {
    /// What there is of some segments, in all rooms that this node knows.
    fn objects_of(&self, models: &[Fingerprint], segments: &[SegmentDigest]) -> Result<Vec<ObjectMeta>> {
        let mut below = Vec::new();
        for room in Space::ALL.into_iter().flat_map(|space| self.names.all(space)) {
            for model in models {
                below.extend(segments.iter().map(|segment| self.names.segment(room, model, segment)));
            }
        }
        self.list_all(below)
    }

    /// The keys of sealed objects, by their headers, as far as these can be read: removing them waits for none.
    fn keys_of(&self, objects: &[ObjectMeta]) -> HashMap<Name, KvKey> {
        let is_sealed =
            |object: &&ObjectMeta| self.names.parse(&object.location).is_some_and(|name| name.room.key.is_some());
        let sealed: Vec<ObjectMeta> = objects.iter().filter(is_sealed).cloned().collect();
        let opened = self.open_objects(&sealed).filter_map(|(_, opened)| opened.ok().flatten());
        opened.map(|opened| (opened.name, opened.layout.header.key)).collect()
    }

    /// Objects with their tenants and keys, by their headers. A damaged one is nobody's: whoever reads it removes it.
    fn with_tenants(&self, objects: &[ObjectMeta]) -> Result<Vec<(Arc<str>, Name, KvKey)>> {
        let mut found = Vec::new();
        for (_, opened) in self.open_objects(objects) {
            match opened {
                Ok(Some(opened)) => {
                    let header = &opened.layout.header;
                    found.push((header.summary().tenant, opened.name, header.key));
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// What a bucket has beside this model's exact entries, by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beside {
    /// Entries of other models, each counted once.
    pub other_models: u64,
    /// Entries of this model that are there in 8 bits only.
    pub lossy: u64,
    /// Entries of any model that this node does not read: sealed by a key that it does not have, or, where it has one, not sealed at all.
    pub other_keys: u64,
}

impl ObjectTier {
    /// Counts what [`EntryTier::list`] leaves out. Goes by names: nothing is read. BLOCKS.
    ///
    /// # Errors
    /// As the bucket says.
    pub fn count_beside(&self) -> Result<Beside> {
        let [mut exact, mut lossy, mut others, mut unread] = [(); 4].map(|()| HashSet::new());
        for folder in Space::ALL.into_iter().flat_map(|space| self.names.folders(space)) {
            let mut listing = self.listing(folder);
            while let Some(objects) = listing.next()? {
                for name in objects.iter().filter_map(|object| self.names.parse(&object.location)) {
                    let into = match (self.names.reads(name.room), self.is_ours(&name), name.room.space) {
                        (false, ..) => &mut unread,
                        (true, false, _) => &mut others,
                        (true, true, Space::Exact) => &mut exact,
                        (true, true, Space::Lossy) => &mut lossy,
                    };
                    into.insert((name.room.key, name.id.key));
                }
            }
        }
        let lossy = lossy.difference(&exact).count() as u64;
        Ok(Beside { other_models: others.len() as u64, lossy, other_keys: unread.len() as u64 })
    }
}

impl SharedTier for ObjectTier {
    fn open_many(&self, wanted: &[(EntryId, Precision)]) -> Vec<Result<Option<Arc<dyn TierEntry>>>> {
        let start =
            |(id, precision): &(EntryId, Precision)| self.start_open(self.names_read(Space::holding(*precision), id));
        let started: Vec<_> = wanted.iter().map(start).collect();
        started.into_iter().map(|pending| self.opened(pending.map_or(Ok(None), Pending::wait))).collect()
    }

    fn hide_many(&self, named: &[(Fingerprint, EntryId)]) {
        named.iter().flat_map(|entry| self.names_of(entry)).for_each(|(name, _)| self.hide(name));
    }

    fn keeps_lossy(&self) -> bool {
        !self.codec.is_exact()
    }

    fn list_lossy(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        self.list_space(Space::Lossy, each)
    }

    /// Exact and lossy. What others uploaded behind them, the collector removes.
    fn remove_many(&self, named: &[(Fingerprint, EntryId)]) -> Result<Vec<(KvKey, u64)>> {
        self.note_deleted(named.iter().map(|(_, id)| id.key));
        self.remove_all(named)
    }

    fn remove_as(&self, id: &EntryId, precision: Precision) -> Result<bool> {
        let rooms = self.names.all(Space::holding(precision));
        let names: Vec<Name> = rooms.map(|room| self.names.name(room, &self.fingerprint, id)).collect();
        Ok(!self.remove_named(&names, &HashMap::new())?.is_empty())
    }

    /// Exact ones and lossy ones, by their names. Read are the headers of sealed ones, whose keys their names do not say, and of all if
    /// those of some tenants are meant. What stands behind them, no name tells: the collector removes it.
    fn remove_segments(
        &self,
        tenants: Option<&BTreeSet<String>>,
        models: &[Fingerprint],
        segments: &[SegmentDigest],
    ) -> Result<Vec<(KvKey, u64)>> {
        let found = self.objects_of(models, segments)?;
        let (names, keys): (Vec<Name>, HashMap<Name, KvKey>) = match tenants {
            None => {
                let names = found.iter().filter_map(|object| self.names.parse(&object.location)).collect();
                (names, self.keys_of(&found))
            }
            Some(tenants) => {
                let all = self.with_tenants(&found)?.into_iter();
                let theirs = all.filter(|(whose, ..)| tenants.contains(&**whose));
                theirs.map(|(_, name, key)| (name, (name, key))).unzip()
            }
        };
        self.note_deleted(names.iter().map(|name| keys.get(name).copied().unwrap_or(name.id.key)));
        self.remove_named(&names, &keys)
    }

    fn tenants_of(&self, models: &[Fingerprint], segments: &[SegmentDigest]) -> Result<BTreeSet<String>> {
        let found = self.objects_of(models, segments)?;
        Ok(self.with_tenants(&found)?.into_iter().map(|(tenant, ..)| tenant.to_string()).collect())
    }

    /// The first who asks is told.
    fn report_reads(&self, to: &Costs) {
        if self.client.bucket.costs.set(to.clone()).is_err() {
            tracing::debug!("the object tier reports what its reads take to another store already");
        }
    }

    fn as_tier(&self) -> &dyn EntryTier {
        self
    }
}
