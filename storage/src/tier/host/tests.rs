use proptest::prelude::*;

use super::*;
use crate::entry::tests::{MODEL, entry_behind, entry_of_width};
use crate::policy::PolicyKind;
use crate::tier::conformance::conforms;

fn options(capacity_bytes: u64, policy: PolicyKind) -> TierOptions {
    TierOptions { capacity_bytes, policy }
}

fn lru(capacity_bytes: u64) -> HostTier {
    HostTier::new(options(capacity_bytes, PolicyKind::Lru))
}

fn shared(tokens: &[u32]) -> Arc<Entry> {
    Arc::new(entry_behind(None, tokens))
}

fn key(entry: &Entry) -> KvKey {
    entry.header().key
}

fn use_once(tier: &HostTier, key: KvKey) {
    tier.record(&[Use { path: vec![key], cached: 1, cost_per_token: 0.0 }]);
}

#[test]
fn conforms_under_every_policy() {
    for policy in PolicyKind::ALL {
        conforms(&|capacity_bytes| Box::new(HostTier::new(options(capacity_bytes, policy))));
    }
}

#[test]
fn the_least_recently_used_goes_first() {
    let entries: Vec<_> = (0..3).map(|id| shared(&[id])).collect();
    let tier = lru(entries[0].header().total_bytes() * 2);
    tier.insert(entries[0].clone());
    tier.insert(entries[1].clone());
    use_once(&tier, key(&entries[0]));
    let (put, left) = tier.insert(entries[2].clone());
    assert!(matches!(put, Put::Stored { .. }));
    assert_eq!(left.iter().map(|entry| key(entry)).collect::<Vec<_>>(), [key(&entries[1])]);
    assert_eq!(entries.iter().map(|entry| tier.contains(&key(entry))).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn an_entry_that_a_request_used_before_it_came_has_that_use() {
    let entries: Vec<_> = (0..3).map(|id| shared(&[id])).collect();
    let tier = HostTier::new(options(entries[0].header().total_bytes() * 2, PolicyKind::Lfu));
    for entry in &entries[..2] {
        (0..3).for_each(|_| use_once(&tier, key(entry)));
        tier.insert(entry.clone());
    }
    use_once(&tier, key(&entries[1]));
    tier.insert(entries[2].clone());
    assert!(!tier.contains(&key(&entries[0])) && tier.contains(&key(&entries[1])));
}

#[test]
fn a_pin_holds_what_comes_later_too() {
    let (a, b) = (shared(&[1]), shared(&[2]));
    let tier = lru(a.header().total_bytes());
    let pin = tier.pin(&key(&a));
    tier.insert(a.clone());
    assert_eq!(tier.insert(b.clone()).0, Put::Refused);
    drop(pin);
    assert!(matches!(tier.insert(b).0, Put::Stored { .. }));
    assert!(!tier.contains(&key(&a)));
}

#[test]
fn who_holds_an_entry_can_go_on_reading_when_it_is_removed() {
    let entry = shared(&[1]);
    let tier = lru(1 << 20);
    tier.insert(entry.clone());
    let held = tier.open(&entry.header().id()).unwrap().unwrap();
    assert!(tier.remove(&entry.header().id()).unwrap());
    assert_eq!((tier.usage().bytes, tier.usage().entries), (0, 0));
    assert_eq!(held.frame(0).unwrap(), entry.frames()[0]);
}

proptest! {
    #[test]
    fn the_size_is_the_sum_of_what_is_held_and_within_the_bound(
        steps in prop::collection::vec((0u8..4, 0u32..12, 1u32..30), 0..80), capacity in 0u64..4000, policy in 0usize..6
    ) {
        let tier = HostTier::new(options(capacity, PolicyKind::ALL[policy]));
        let mut pins = Vec::new();
        let entry = |id: u32| entry_of_width(None, &[id], 1 + id % 5);
        for (step, id, other) in steps {
            let id_of = |id: u32| entry(id).header().id();
            match step {
                0 => drop(tier.insert(Arc::new(entry(id)))),
                1 => drop(tier.remove(&id_of(id)).unwrap()),
                2 => use_once(&tier, id_of(id).key),
                _ => { pins.extend(tier.open(&id_of(id)).unwrap()); if other % 3 == 0 { pins.clear(); } }
            }
            let held: u64 = (0..12)
                .filter(|id| tier.contains(&KvKey::derive(&MODEL, "", None, &[*id])))
                .map(|id| entry(id).header().total_bytes())
                .sum();
            prop_assert_eq!(tier.usage().bytes, held);
            prop_assert!(held <= capacity);
        }
    }
}
