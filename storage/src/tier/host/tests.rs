use proptest::prelude::*;

use super::*;
use crate::entry::tests::{entry_behind, entry_of_width};

fn shared(tokens: &[u32]) -> Arc<Entry> {
    Arc::new(entry_behind(None, tokens))
}

fn bytes(entry: &Entry) -> u64 {
    entry.header().total_bytes()
}

fn key(entry: &Entry) -> KvKey {
    entry.header().key
}

#[test]
fn the_least_recently_used_goes_first() {
    let entries: Vec<Entry> = (0..3).map(|id| entry_behind(None, &[id])).collect();
    let keys: Vec<KvKey> = entries.iter().map(key).collect();
    let tier = HostTier::new(bytes(&entries[0]) * 2);
    let mut entries = entries.into_iter().map(Arc::new);
    tier.insert(entries.next().unwrap());
    tier.insert(entries.next().unwrap());
    assert!(tier.get(&keys[0]).is_some());
    let (outcome, evicted) = tier.insert(entries.next().unwrap());
    assert_eq!(outcome, HostOutcome::Stored);
    assert_eq!(evicted.iter().map(|entry| key(entry)).collect::<Vec<_>>(), [keys[1]]);
    assert_eq!(keys.iter().map(|key| tier.contains(key)).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(tier.usage().evicted, 1);
}

#[test]
fn pinned_entries_stay_and_a_refusal_evicts_nothing() {
    let (a, b, c) = (shared(&[1]), shared(&[2]), shared(&[3]));
    let tier = HostTier::new(bytes(&a) * 2);
    tier.insert(a.clone());
    let b_key = key(&b);
    tier.insert(b);
    let (outcome, evicted) = tier.insert(c.clone());
    assert_eq!((outcome, key(&evicted[0])), (HostOutcome::Stored, b_key), "a is older, but pinned");
    drop(evicted);
    let big = Arc::new(entry_of_width(None, &[9], 8));
    assert!(bytes(&a) < bytes(&big) && bytes(&big) <= tier.capacity_bytes());
    let (outcome, evicted) = tier.insert(big);
    assert_eq!((outcome, evicted.len()), (HostOutcome::Refused, 0), "both are pinned");
    assert_eq!((tier.usage().entries, tier.usage().refused), (2, 1));
}

#[test]
fn an_entry_larger_than_the_tier_is_refused() {
    let entry = shared(&[1, 2, 3]);
    for capacity in [0, bytes(&entry) - 1] {
        let tier = HostTier::new(capacity);
        assert_eq!(tier.insert(entry.clone()).0, HostOutcome::Refused);
        assert_eq!(tier.usage(), HostUse { entries: 0, bytes: 0, capacity_bytes: capacity, evicted: 0, refused: 1 });
    }
    let tier = HostTier::new(bytes(&entry));
    assert_eq!(tier.insert(entry.clone()).0, HostOutcome::Stored);
    assert_eq!(tier.insert(entry.clone()).0, HostOutcome::AlreadyThere);
    assert_eq!(tier.usage().bytes, bytes(&entry));
}

#[test]
fn children_leave_before_their_parents() {
    let root = entry_behind(None, &[1]);
    let passage = entry_behind(Some(key(&root)), &[2]);
    let next = entry_behind(Some(key(&passage)), &[3]);
    let keys = [key(&root), key(&passage), key(&next)];
    let tier = HostTier::new(bytes(&root) * 3);
    for entry in [root, passage, next] {
        tier.insert(Arc::new(entry));
    }
    for left in [2, 1, 0] {
        tier.insert(shared(&[10 + left]));
        let held: Vec<bool> = keys.iter().map(|key| tier.contains(key)).collect();
        assert_eq!(held, [left > 0, left > 1, false]);
    }
}

#[test]
fn removal_lowers_the_size_and_works_on_pinned_entries() {
    let entry = shared(&[1]);
    let tier = HostTier::new(1 << 20);
    tier.insert(entry.clone());
    assert!(tier.remove(&key(&entry)));
    assert!(!tier.remove(&key(&entry)));
    assert_eq!((tier.usage().bytes, tier.usage().entries), (0, 0));
    assert!(entry.layer(0).is_ok(), "who holds it can go on reading");
}

proptest! {
    #[test]
    fn the_size_is_the_sum_of_what_is_held_and_within_the_bound(
        steps in prop::collection::vec((0u8..3, 0u32..12, 1u32..30), 0..80), capacity in 0u64..4000
    ) {
        let tier = HostTier::new(capacity);
        let mut pins: Vec<Arc<Entry>> = Vec::new();
        let width = |id: u32| 1 + id % 5;
        for (step, id, other) in steps {
            let key = KvKey::derive(&crate::entry::tests::MODEL, "", None, &[id]);
            match step {
                0 => drop(tier.insert(Arc::new(entry_of_width(None, &[id], width(id))))),
                1 => drop(tier.remove(&key)),
                _ => { pins.extend(tier.get(&key)); if other % 3 == 0 { pins.clear(); } }
            }
            let held: u64 = (0..12)
                .filter(|id| tier.contains(&KvKey::derive(&crate::entry::tests::MODEL, "", None, &[*id])))
                .map(|id| bytes(&entry_of_width(None, &[id], width(id))))
                .sum();
            prop_assert_eq!(tier.usage().bytes, held);
            prop_assert!(held <= capacity);
        }
    }
}
