use super::*;
use crate::entry::tests::entry_behind;
use crate::policy::PolicyKind;
use crate::store::tests::{Folder, put};
use crate::tier::conformance::assert_whole;
use crate::tier::disk::tests::tamper_frame;
use crate::tier::host::HostTier;
use crate::tree::TierOptions;

const PLENTY: u64 = 1 << 30;

fn bucket(capacity_bytes: u64) -> HostTier {
    HostTier::new(TierOptions { capacity_bytes, policy: PolicyKind::Lru })
}

fn keys(tier: &dyn EntryTier) -> HashSet<KvKey> {
    let mut keys = HashSet::new();
    tier.list(&mut |summary| keys.extend([summary.key])).unwrap();
    keys
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
    let dry = store.export(&target, &|_| true, Copying::DryRun, &mut |_| panic!("nothing is copied")).unwrap();
    assert_eq!((dry.wanted, dry.entries, dry.bytes), (4, 0, 4 * entries[0].header().total_bytes()));
    assert!(keys(&target).is_empty());
    let mut seen = Vec::new();
    let mut progress = |copied: &Copied| {
        seen.push(copied.entries);
        true
    };
    let copied = store.export(&target, &|entry| entry.summary.key == wanted, Copying::Really, &mut progress).unwrap();
    let bytes = entries[..2].iter().map(|entry| entry.header().total_bytes()).sum();
    assert_eq!(copied, Copied { wanted: 2, entries: 2, bytes, ..Copied::default() });
    assert_eq!(seen, [1, 2]);
    assert_eq!(keys(&target), HashSet::from([id(&entries[0]), wanted]));
    // Again, with the rest.
    let copied = store.export(&target, &|_| true, Copying::Really, &mut |_| true).unwrap();
    assert_eq!((copied.wanted, copied.entries, copied.already_there), (4, 2, 2));

    let other = Folder::new();
    let store = other.open(0, PLENTY);
    let copied =
        store.import(&target, &|summary| summary.key != id(&entries[3]), Copying::Really, &mut |_| true).unwrap();
    assert_eq!((copied.wanted, copied.entries, copied.unreadable), (3, 3, 0));
    assert_eq!(store.import(&target, &|_| true, Copying::Really, &mut |_| true).unwrap().already_there, 3);
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
    let copied = store.export(&target, &|_| true, Copying::Really, &mut |copied| copied.entries < 2).unwrap();
    assert_eq!((copied.wanted, copied.entries), (4, 2));
    assert_eq!(keys(&target).len(), 2);
    let copied = store.export(&bucket(1), &|_| true, Copying::Really, &mut |_| true).unwrap();
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
    let copied = store.export(&target, &|_| true, Copying::Really, &mut |_| true).unwrap();
    assert_eq!((copied.wanted, copied.entries, copied.unreadable), (4, 3, 1));
    assert!(!keys(&target).contains(&id(&entries[3])));
}
