use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;

use super::*;
use crate::entry::tests::{MODEL, entry_behind};
use crate::policy::PolicyKind;
use crate::store::tests::{Folder, put};
use crate::tier::conformance::assert_whole;
use crate::tier::disk::tests::tamper_frame;
use crate::tier::host::HostTier;
use crate::tier::object::{ObjectOptions, ObjectTier};
use crate::tree::TierOptions;
use ragstone_env::Env;

const PLENTY: u64 = 1 << 30;

fn bucket(capacity_bytes: u64) -> HostTier {
    HostTier::new(TierOptions { capacity_bytes, policy: PolicyKind::Lru })
}

fn keys(tier: &dyn EntryTier) -> HashSet<KvKey> {
    let mut keys = HashSet::new();
    tier.list(&mut |summary| keys.extend([summary.key])).unwrap();
    keys
}

fn export(
    store: &KvStore,
    target: &dyn EntryTier,
    wants: &dyn Fn(&EntryInfo) -> bool,
    progress: &mut dyn FnMut(&Copied) -> bool,
) -> Copied {
    store.export(&store.plan_export(&Tier::ALL, wants).unwrap(), target, progress).unwrap()
}

fn import(store: &KvStore, source: &dyn EntryTier, wants: &dyn Fn(&EntrySummary) -> bool) -> Copied {
    store.import(&store.plan_import(source, wants).unwrap(), source, &mut |_| true).unwrap()
}

/// A root, two passages behind it, and one behind nothing.
fn filled(store: &KvStore) -> [Arc<Entry>; 4] {
    let root = put(store, Tier::Disk, entry_behind(None, &[1, 2]));
    let behind = |tokens: &[u32]| put(store, Tier::Disk, entry_behind(Some(root.header().key), tokens));
    let (first, second) = (behind(&[3, 4]), behind(&[5, 6]));
    let alone = put(store, Tier::Disk, entry_behind(None, &[7, 8]));
    [root, first, second, alone]
}

fn id(entry: &Entry) -> KvKey {
    entry.header().key
}

#[test]
fn what_is_picked_is_copied_with_what_stands_before_it_and_comes_back() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    let entries = filled(&store);
    let target = bucket(PLENTY);
    let wanted = id(&entries[1]);
    let dry = store.plan_export(&Tier::ALL, &|_| true).unwrap().preview();
    assert_eq!((dry.wanted, dry.entries, dry.bytes), (4, 0, 4 * entries[0].header().total_bytes()));
    assert!(keys(&target).is_empty());
    let mut seen = Vec::new();
    let mut progress = |copied: &Copied| {
        seen.push(copied.entries);
        true
    };
    let copied = export(&store, &target, &|entry| entry.summary.key == wanted, &mut progress);
    let bytes = entries[..2].iter().map(|entry| entry.header().total_bytes()).sum();
    assert_eq!(copied, Copied { wanted: 2, entries: 2, bytes, ..Copied::default() });
    assert_eq!(seen, [1, 2]);
    assert_eq!(keys(&target), HashSet::from([id(&entries[0]), wanted]));
    // Again, with the rest.
    let copied = export(&store, &target, &|_| true, &mut |_| true);
    assert_eq!((copied.wanted, copied.entries, copied.already_there), (4, 2, 2));

    let other = Folder::new();
    let store = other.open(0, PLENTY);
    let dry = store.plan_import(&target, &|_| true).unwrap().preview();
    assert_eq!((dry.wanted, dry.entries), (4, 0));
    let copied = import(&store, &target, &|summary| summary.key != id(&entries[3]));
    assert_eq!((copied.wanted, copied.entries, copied.unreadable), (3, 3, 0));
    assert_eq!(import(&store, &target, &|_| true).already_there, 3);
    drop(store);
    let store = other.open(0, PLENTY);
    for entry in &entries {
        let found = store.look_up(&id(entry), &entry.header().tokens).unwrap();
        assert_whole(&*found.entry, entry);
    }
}

#[test]
fn a_copy_can_be_stopped_and_a_full_target_refuses() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    filled(&store);
    let target = bucket(PLENTY);
    let copied = export(&store, &target, &|_| true, &mut |copied| copied.entries < 2);
    assert_eq!((copied.wanted, copied.entries), (4, 2));
    assert_eq!(keys(&target).len(), 2);
    let copied = export(&store, &bucket(1), &|_| true, &mut |_| true);
    assert_eq!((copied.entries, copied.refused), (0, 4));
}

#[test]
fn damaged_entries_are_counted_and_the_others_copied() {
    let folder = Folder::new();
    let store = folder.open(0, PLENTY);
    let entries = filled(&store);
    tamper_frame(&store.0.tiers.disk, &id(&entries[3]), 1, |mut bytes| {
        bytes[80] ^= 1;
        Some(bytes)
    });
    let target = bucket(PLENTY);
    let copied = export(&store, &target, &|_| true, &mut |_| true);
    assert_eq!((copied.wanted, copied.entries, copied.damaged), (4, 3, 1));
    assert!(!keys(&target).contains(&id(&entries[3])));
}

/// In a bucket, an entry may be damaged in its frames or in what describes it; the latter is not even listed.
#[test]
fn damaged_entries_of_a_source_are_counted_and_not_imported() {
    let store = Arc::new(InMemory::new());
    let options = ObjectOptions::new("memory://unused");
    let source = ObjectTier::over(store.clone(), Path::from("kv"), &options, MODEL, Env::seeded(1, 0)).unwrap();
    let entries: Vec<_> = (0..3).map(|id| Arc::new(entry_behind(None, &[id]))).collect();
    for entry in &entries {
        source.put(entry).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let flip = |entry: &Entry, from_end: bool| {
        let path = format!("kv/v1/{MODEL}/{}/{}", entry.header().segment(), id(entry));
        runtime.block_on(async {
            let path = Path::from(path);
            let mut bytes = store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
            let at = if from_end { bytes.len() - 1 } else { 30 };
            bytes[at] ^= 1;
            store.put(&path, bytes.into()).await.unwrap();
        });
    };
    flip(&entries[0], true);
    flip(&entries[1], false);
    let folder = Folder::new();
    let node = folder.open(0, PLENTY);
    let copied = import(&node, &source, &|_| true);
    assert_eq!((copied.wanted, copied.entries, copied.damaged, copied.unreadable), (3, 1, 2, 0));
    assert!(node.contains(&id(&entries[2])).is_some());
}

/// Else all that was imported would look older than anything that was ever used here.
#[test]
fn what_is_imported_counts_as_used_when_it_came() {
    let folder = Folder::new();
    let source = bucket(PLENTY);
    let old = Arc::new(entry_behind(None, &[1]));
    source.put(&old).unwrap();
    let store = folder.open(0, PLENTY);
    folder.env.advance(std::time::Duration::from_secs(100));
    import(&store, &source, &|_| true);
    let last_use = |store: &KvStore| {
        let mut last_use = None;
        store.entries(&[Tier::Disk], &mut |info| last_use = Some((info.last_use_unix_ms, info.uses))).unwrap();
        last_use
    };
    let came = folder.env.now_unix_ms();
    assert_eq!(last_use(&store), Some((came, 0)), "it was used by nobody yet");
    drop(store);
    folder.env.advance(std::time::Duration::from_secs(100));
    assert_eq!(last_use(&folder.open(0, PLENTY)), Some((came, 0)), "a restart remembers");
}
