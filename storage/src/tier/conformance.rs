//! What every tier of entries promises, checked on whatever tier is given; and the simplest tier that keeps the promises.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::{EntryId, EntrySummary, EntryTier, Precision, Put, SharedTier, Tier, TierEntry, TierUsage};
use crate::cost::Costs;
use crate::entry::tests::{LAYERS, entry_behind, entry_of_width, expected_layer};
use crate::entry::{Entry, EntryHeader};
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::{Error, Result, frame};
use ragstone_env::lock::locked;

/// Makes a new, empty tier of a capacity in bytes. A tier without a bound of its own may ignore it, and says so by a
/// capacity of zero.
pub(crate) type Make<'a> = &'a dyn Fn(u64) -> Box<dyn EntryTier>;

const PLENTY: u64 = 1 << 30;

fn shared(parent: Option<KvKey>, tokens: &[u32]) -> Arc<Entry> {
    Arc::new(entry_behind(parent, tokens))
}

fn bytes_of(entry: &Entry) -> u64 {
    entry.header().total_bytes()
}

fn is_there(tier: &dyn EntryTier, entry: &Entry) -> bool {
    tier.open(&entry.header().id()).unwrap().is_some()
}

fn keys(tier: &dyn EntryTier) -> Vec<KvKey> {
    let mut keys = Vec::new();
    tier.list(&mut |summary| keys.push(summary.key)).unwrap();
    keys.sort_unstable();
    keys
}

/// Every layer is what was put in.
pub(crate) fn assert_whole(held: &dyn TierEntry, entry: &Entry) {
    assert_eq!(**held.header(), **entry.header());
    let key = &entry.header().key;
    for layer in (0..LAYERS).rev() {
        let bytes = held.frame(layer).unwrap();
        let read = frame::decode(&bytes, key, layer, &entry.header().frame_shape()).unwrap();
        let (k, v) = expected_layer(key, layer, read.k.len());
        assert!(read.k == k && read.v == v, "layer {layer}");
    }
    assert!(held.frame(LAYERS).is_err(), "there is no such layer");
}

/// The whole suite.
pub(crate) fn conforms(make: Make<'_>) {
    keeps_what_it_is_given(make);
    finds_nothing_else(make);
    keeps_what_is_there(make);
    removes(make);
    counts_what_it_holds(make);
    if make(PLENTY).usage().capacity_bytes > 0 {
        stays_within_its_bound(make);
        keeps_what_is_pinned(make);
        lets_children_leave_before_their_parents(make);
    }
}

fn keeps_what_it_is_given(make: Make<'_>) {
    let tier = make(PLENTY);
    let root = shared(None, &[1, 2, 3]);
    let passage = Arc::new(entry_of_width(Some(root.header().key), &[4], 700));
    for entry in [&root, &passage] {
        assert_eq!(tier.put(entry).unwrap(), Put::Stored { bytes: bytes_of(entry) });
        let held = tier.open(&entry.header().id()).unwrap().expect("it was just put");
        assert_whole(&*held, entry);
    }
    tier.flush().unwrap();
    let mut listed = Vec::new();
    tier.list(&mut |summary| listed.push(summary)).unwrap();
    listed.sort_unstable_by_key(|summary| summary.key);
    let mut expected = [root.header().summary(), passage.header().summary()];
    expected.sort_unstable_by_key(|summary| summary.key);
    assert_eq!(listed, expected);
}

fn finds_nothing_else(make: Make<'_>) {
    let tier = make(PLENTY);
    let (entry, other) = (shared(None, &[1]), shared(None, &[2]));
    assert!(!is_there(&*tier, &entry) && keys(&*tier).is_empty());
    tier.put(&entry).unwrap();
    assert!(!is_there(&*tier, &other));
    assert!(!tier.remove(&other.header().id()).unwrap());
}

fn keeps_what_is_there(make: Make<'_>) {
    let tier = make(PLENTY);
    let entry = shared(None, &[1]);
    tier.put(&entry).unwrap();
    let before = tier.usage();
    assert_eq!(tier.put(&entry).unwrap(), Put::AlreadyThere);
    assert_eq!(tier.usage(), before);
}

fn removes(make: Make<'_>) {
    let tier = make(PLENTY);
    let (entry, other) = (shared(None, &[1]), shared(None, &[2]));
    tier.put(&entry).unwrap();
    tier.put(&other).unwrap();
    let held = tier.open(&entry.header().id()).unwrap();
    assert!(tier.remove(&entry.header().id()).unwrap(), "although it is open");
    assert!(!is_there(&*tier, &entry) && !tier.remove(&entry.header().id()).unwrap());
    assert_eq!(keys(&*tier), [other.header().key]);
    drop(held);
    assert!(!is_there(&*tier, &entry));
    tier.put(&entry).unwrap();
    assert_whole(&*tier.open(&entry.header().id()).unwrap().expect("it came back"), &entry);
}

fn counts_what_it_holds(make: Make<'_>) {
    let tier = make(PLENTY);
    let entries: Vec<_> = (0..5).map(|id| shared(None, &[id])).collect();
    for entry in &entries {
        tier.put(entry).unwrap();
    }
    tier.remove(&entries[2].header().id()).unwrap();
    let usage = tier.usage();
    assert_eq!((usage.entries, usage.bytes), (4, 4 * bytes_of(&entries[0])));
    assert_eq!((usage.evicted, usage.refused), (0, 0));
}

fn stays_within_its_bound(make: Make<'_>) {
    let bytes = bytes_of(&shared(None, &[0]));
    let tier = make(3 * bytes);
    for id in 0..10 {
        assert!(matches!(tier.put(&shared(None, &[id])).unwrap(), Put::Stored { .. }));
        assert!(is_there(&*tier, &shared(None, &[id])), "the newest is not its own victim");
        assert!(tier.usage().bytes <= 3 * bytes);
    }
    let usage = tier.usage();
    assert_eq!((usage.entries, usage.bytes, usage.evicted, usage.capacity_bytes), (3, 3 * bytes, 7, 3 * bytes));
    assert_eq!(keys(&*tier).len(), 3);
    let too_large = Arc::new(entry_of_width(None, &[99], 2000));
    assert_eq!(tier.put(&too_large).unwrap(), Put::Refused);
    assert_eq!(tier.usage(), TierUsage { refused: 1, ..usage }, "a refusal evicts nothing");
}

fn keeps_what_is_pinned(make: Make<'_>) {
    let bytes = bytes_of(&shared(None, &[0]));
    let tier = make(2 * bytes);
    let (root, child) = (shared(None, &[1]), shared(Some(shared(None, &[1]).header().key), &[2]));
    tier.put(&root).unwrap();
    tier.put(&child).unwrap();
    let held = tier.open(&child.header().id()).unwrap().expect("there");
    assert_eq!(
        tier.put(&shared(None, &[3])).unwrap(),
        Put::Refused,
        "the child is open, and stands after the system prompt"
    );
    assert_whole(&*held, &child);
    let again = tier.open(&child.header().id()).unwrap();
    drop(held);
    assert_eq!(tier.put(&shared(None, &[3])).unwrap(), Put::Refused, "still open once");
    drop(again);
    assert!(matches!(tier.put(&shared(None, &[3])).unwrap(), Put::Stored { .. }));
    assert!(is_there(&*tier, &root) && !is_there(&*tier, &child));
}

fn lets_children_leave_before_their_parents(make: Make<'_>) {
    let root = shared(None, &[1]);
    let passage = shared(Some(root.header().key), &[2]);
    let next = shared(Some(passage.header().key), &[3]);
    let path = [&root, &passage, &next];
    // Whatever the order in which they came.
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let tier = make(3 * bytes_of(&root));
        for at in order {
            tier.put(path[at]).unwrap();
        }
        for newcomer in 10..13 {
            tier.put(&shared(None, &[newcomer])).unwrap();
            let there = path.map(|entry| is_there(&*tier, entry));
            assert!(there.windows(2).all(|pair| pair[0] || !pair[1]), "{order:?}: {there:?}");
        }
    }
}

/// A tier without a bound, in a map: what the others are compared with, and an object store for the store's own tests.
#[derive(Default)]
pub(crate) struct ModelTier {
    entries: Mutex<BTreeMap<KvKey, Arc<Entry>>>,
    hidden: Mutex<HashSet<KvKey>>,
    /// The error of every call, while there is one.
    pub fails: Mutex<Option<crate::ErrorKind>>,
    /// Entries opened so far.
    pub opened: Mutex<u64>,
    /// Listings so far.
    pub listed: Mutex<u64>,
}

struct ModelEntry(Arc<Entry>);

impl ModelTier {
    fn check(&self) -> Result<()> {
        locked(&self.fails).map_or(Ok(()), |kind| Err(Error::new(kind, "the model was told to fail")))
    }
}

impl EntryTier for ModelTier {
    fn tier(&self) -> Tier {
        Tier::Object
    }

    fn put(&self, entry: &Arc<Entry>) -> Result<Put> {
        self.check()?;
        let bytes = bytes_of(entry);
        locked(&self.hidden).remove(&entry.header().key);
        let there = locked(&self.entries).insert(entry.header().key, Arc::clone(entry));
        Ok(there.map_or(Put::Stored { bytes }, |_| Put::AlreadyThere))
    }

    fn open(&self, id: &EntryId) -> Result<Option<Arc<dyn TierEntry>>> {
        self.check()?;
        *locked(&self.opened) += 1;
        if locked(&self.hidden).contains(&id.key) {
            return Ok(None);
        }
        let entry = locked(&self.entries).get(&id.key).filter(|entry| entry.header().segment() == id.segment).cloned();
        Ok(entry.map(|entry| Arc::new(ModelEntry(entry)) as Arc<dyn TierEntry>))
    }

    fn remove(&self, id: &EntryId) -> Result<bool> {
        self.check()?;
        Ok(locked(&self.entries).remove(&id.key).is_some())
    }

    fn list(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        self.check()?;
        *locked(&self.listed) += 1;
        locked(&self.entries).values().for_each(|entry| each(entry.header().summary()));
        Ok(0)
    }

    fn usage(&self) -> TierUsage {
        let entries = locked(&self.entries);
        let bytes = entries.values().map(|entry| bytes_of(entry)).sum();
        TierUsage { entries: entries.len() as u64, bytes, ..TierUsage::default() }
    }

    fn flush(&self) -> Result<()> {
        self.check()
    }
}

impl SharedTier for ModelTier {
    fn open_many(&self, wanted: &[(EntryId, Precision)]) -> Vec<Result<Option<Arc<dyn TierEntry>>>> {
        wanted
            .iter()
            .map(|(id, precision)| if *precision == Precision::Exact { self.open(id) } else { Ok(None) })
            .collect()
    }

    fn hide_many(&self, named: &[(Fingerprint, EntryId)]) {
        locked(&self.hidden).extend(named.iter().map(|(_, id)| id.key));
    }

    fn keeps_lossy(&self) -> bool {
        false
    }

    fn list_lossy(&self, _: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        self.check().map(|()| 0)
    }

    fn remove_many(&self, named: &[(Fingerprint, EntryId)]) -> Result<Vec<(KvKey, u64)>> {
        self.check()?;
        let mut entries = locked(&self.entries);
        let mut removed = Vec::new();
        for (model, id) in named {
            if entries.get(&id.key).is_some_and(|entry| entry.header().fingerprint == *model) {
                removed.extend(entries.remove(&id.key).map(|entry| (id.key, bytes_of(&entry))));
            }
        }
        Ok(removed)
    }

    fn remove_as(&self, id: &EntryId, precision: Precision) -> Result<bool> {
        if precision == Precision::Exact { self.remove(id) } else { self.check().map(|()| false) }
    }

    fn remove_segments(
        &self,
        tenants: Option<&BTreeSet<String>>,
        models: &[Fingerprint],
        segments: &[SegmentDigest],
    ) -> Result<Vec<(KvKey, u64)>> {
        self.check()?;
        let mut removed = Vec::new();
        locked(&self.entries).retain(|_, entry| {
            let header = entry.header();
            let is_meant = tenants.is_none_or(|tenants| tenants.contains(&*header.summary().tenant));
            let stays = !(is_meant && models.contains(&header.fingerprint) && segments.contains(&header.segment()));
            if !stays {
                removed.push((header.key, bytes_of(entry)));
            }
            stays
        });
        Ok(removed)
    }

    fn tenants_of(&self, models: &[Fingerprint], segments: &[SegmentDigest]) -> Result<BTreeSet<String>> {
        self.check()?;
        let entries = locked(&self.entries);
        let headers = entries.values().map(|entry| entry.header());
        let wanted =
            headers.filter(|header| models.contains(&header.fingerprint) && segments.contains(&header.segment()));
        Ok(wanted.map(|header| header.summary().tenant.to_string()).collect())
    }

    fn report_reads(&self, _: &Costs) {}

    fn as_tier(&self) -> &dyn EntryTier {
        self
    }
}

impl TierEntry for ModelEntry {
    fn header(&self) -> &Arc<EntryHeader> {
        self.0.header()
    }

    fn frame(&self, layer: u32) -> Result<Bytes> {
        self.0.frames().get(layer as usize).cloned().ok_or_else(|| Error::not_found("no such layer"))
    }
}

#[test]
fn the_model_conforms() {
    conforms(&|_| Box::new(ModelTier::default()));
}
