//! What nodes and models that share a bucket need of it beside what every tier does: lossy entries, and removals that reach
//! other models' objects.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use object_store::ObjectMeta;

use super::client::Pending;
use super::layout::{Name, Space};
use super::{Known, ObjectTier, Seen};
use crate::cost::Costs;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::tier::{EntryId, EntrySummary, EntryTier, Precision, SharedTier, TierEntry};
use crate::{ErrorKind, Result};

/// Deletions under way at once.
const DELETIONS: usize = 64;

impl ObjectTier {
    /// Lists this model's entries of a name space; reads the header of each.
    pub(super) fn list_space(&self, space: Space, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        let mut listing = self.listing(self.names.model(space, &self.fingerprint));
        let (mut seen, mut damaged) = (Seen::default(), 0);
        while let Some(objects) = listing.next()? {
            for (object, opened) in self.open_objects(&objects) {
                match opened {
                    Ok(Some(opened)) => {
                        let summary = opened.layout.header.summary();
                        seen.add(summary.bytes);
                        self.learn(summary.key, Known { parent: summary.parent, bytes: summary.bytes });
                        each(summary);
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
        self.seen()[space as usize] = seen;
        Ok(damaged)
    }

    /// Deletes objects, many at once; the keys and bytes of those that were there. Those that could not be deleted, this node
    /// does not find any more.
    fn remove_named(&self, names: &[Name]) -> Result<Vec<(KvKey, u64)>> {
        let (mut left, mut failed) = (Vec::new(), None);
        for some in names.chunks(DELETIONS) {
            let started: Vec<_> = some.iter().map(|name| (name, self.start_removal(*name))).collect();
            for (name, removal) in started {
                match self.removed(name, removal) {
                    Ok(bytes) => left.extend(bytes.map(|bytes| (name.id.key, bytes))),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        // Whoever writes one of them again may write another one: damaged, or behind what is gone.
        let mut known = self.known();
        for (key, _) in &left {
            known.remove(key);
        }
        drop(known);
        failed.map_or(Ok(left), Err)
    }
}

impl ObjectTier {
    /// What there is of some segments.
    fn objects_of(&self, models: &[Fingerprint], segments: &[SegmentDigest]) -> Result<Vec<ObjectMeta>> {
        let mut below = Vec::new();
        for space in Space::ALL {
            for model in models {
                below.extend(segments.iter().map(|segment| self.names.segment(space, model, segment)));
            }
        }
        self.list_all(below)
    }

    /// Objects with their tenants, by their headers. A damaged one is nobody's: whoever reads it removes it.
    fn with_tenants(&self, objects: &[ObjectMeta]) -> Result<Vec<(Arc<str>, Name)>> {
        let mut found = Vec::new();
        for (object, opened) in self.open_objects(objects) {
            match opened {
                Ok(Some(opened)) => {
                    let tenant = opened.layout.header.summary().tenant;
                    found.extend(self.names.parse(&object.location).map(|name| (tenant, name)));
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
}

impl ObjectTier {
    /// Counts what [`EntryTier::list`] leaves out. Goes by names: nothing is read. BLOCKS.
    ///
    /// # Errors
    /// As the bucket says.
    pub fn count_beside(&self) -> Result<Beside> {
        let (mut exact, mut lossy, mut others) = (HashSet::new(), HashSet::new(), HashSet::new());
        for space in Space::ALL {
            let mut listing = self.listing(self.names.space(space));
            while let Some(objects) = listing.next()? {
                for name in objects.iter().filter_map(|object| self.names.parse(&object.location)) {
                    let into = match (name.fingerprint == self.fingerprint, space) {
                        (false, _) => &mut others,
                        (true, Space::Exact) => &mut exact,
                        (true, Space::Lossy) => &mut lossy,
                    };
                    into.insert(name.id.key);
                }
            }
        }
        Ok(Beside { other_models: others.len() as u64, lossy: lossy.difference(&exact).count() as u64 })
    }
}

impl SharedTier for ObjectTier {
    fn open_many(&self, wanted: &[(EntryId, Precision)]) -> Vec<Result<Option<Arc<dyn TierEntry>>>> {
        let start =
            |(id, precision): &(EntryId, Precision)| self.start_open(&self.name(Space::holding(*precision), id));
        let started: Vec<_> = wanted.iter().map(start).collect();
        started.into_iter().map(|pending| self.opened(pending.map_or(Ok(None), Pending::wait))).collect()
    }

    fn keeps_lossy(&self) -> bool {
        !self.codec.is_exact()
    }

    fn list_lossy(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        self.list_space(Space::Lossy, each)
    }

    /// Exact and lossy.
    fn remove_many(&self, named: &[(Fingerprint, EntryId)]) -> Result<Vec<(KvKey, u64)>> {
        let both = |(fingerprint, id): &(Fingerprint, EntryId)| {
            Space::ALL.map(|space| Name { space, fingerprint: *fingerprint, id: *id })
        };
        let names: Vec<Name> = named.iter().flat_map(both).collect();
        self.remove_named(&names)
    }

    fn remove_as(&self, id: &EntryId, precision: Precision) -> Result<bool> {
        Ok(!self.remove_named(&[self.name(Space::holding(precision), id)])?.is_empty())
    }

    /// Exact ones and lossy ones, by their names: nothing is read, unless those of some tenants are meant.
    fn remove_segments(
        &self,
        tenants: Option<&BTreeSet<String>>,
        models: &[Fingerprint],
        segments: &[SegmentDigest],
    ) -> Result<Vec<(KvKey, u64)>> {
        let found = self.objects_of(models, segments)?;
        let names: Vec<Name> = match tenants {
            None => found.iter().filter_map(|object| self.names.parse(&object.location)).collect(),
            Some(tenants) => {
                let all = self.with_tenants(&found)?.into_iter();
                all.filter(|(whose, _)| tenants.contains(&**whose)).map(|(_, name)| name).collect()
            }
        };
        self.remove_named(&names)
    }

    fn tenants_of(&self, models: &[Fingerprint], segments: &[SegmentDigest]) -> Result<BTreeSet<String>> {
        let found = self.objects_of(models, segments)?;
        Ok(self.with_tenants(&found)?.into_iter().map(|(tenant, _)| tenant.to_string()).collect())
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
