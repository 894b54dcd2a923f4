use proptest::prelude::*;

use super::*;
use crate::key::{Fingerprint, SegmentDigest};
use crate::policy::PolicyKind;

fn lru(capacity_bytes: u64) -> DiskIndex {
    DiskIndex::new(TierOptions { capacity_bytes, policy: PolicyKind::Lru })
}

fn key(id: u8) -> KvKey {
    KvKey([id; 32])
}

fn summary(id: u8, bytes: u64) -> EntrySummary {
    EntrySummary {
        key: key(id),
        parent: None,
        segment: SegmentDigest([id; 16]),
        fingerprint: Fingerprint([0; 32]),
        tenant: "".into(),
        tokens: 1,
        layers: 2,
        bytes,
        compute_us: 0,
        created_unix_ms: 0,
    }
}

fn extent(id: u8, bytes: u64) -> Extent {
    Extent::of(&summary(id, bytes))
}

fn granted(reservation: Reservation) -> Vec<Extent> {
    match reservation {
        Reservation::Granted { victims } => victims,
        other => panic!("not granted: {other:?}"),
    }
}

fn ids(victims: &[Extent]) -> Vec<u8> {
    victims.iter().map(|victim| victim.key.0[0]).collect()
}

fn add(index: &mut DiskIndex, id: u8, bytes: u64) {
    let victims = granted(index.reserve(summary(id, bytes)));
    assert!(index.commit(&key(id), &victims));
}

fn use_once(index: &mut DiskIndex, id: u8) {
    index.record(&[Use { path: vec![key(id)], cached: 1, cost_per_token: 0.0 }]);
}

fn ready(index: &DiskIndex) -> Vec<u8> {
    let mut ids: Vec<u8> = index.summaries().iter().map(|summary| summary.key.0[0]).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn the_least_recently_used_makes_room() {
    let mut index = lru(30);
    (1..=3).for_each(|id| add(&mut index, id, 10));
    use_once(&mut index, 1);
    let victims = granted(index.reserve(summary(4, 15)));
    assert_eq!(ids(&victims), [2, 3]);
    assert_eq!(ready(&index), [1], "victims and what is being written are hidden");
    assert!(index.commit(&key(4), &victims));
    assert_eq!((ready(&index), index.bytes(), index.evicted()), (vec![1, 4], 25, 2));
}

#[test]
fn an_aborted_write_leaves_no_trace() {
    let mut index = lru(30);
    (1..=3).for_each(|id| add(&mut index, id, 10));
    let victims = granted(index.reserve(summary(4, 15)));
    index.abort(&key(4), &victims);
    assert_eq!((ready(&index), index.bytes(), index.evicted()), (vec![1, 2, 3], 30, 0));
    assert_eq!(ids(&granted(index.reserve(summary(4, 15)))), [1, 2], "and can be tried again");
}

#[test]
fn victims_whose_room_was_taken_meanwhile_leave_with_the_next_write() {
    let mut index = lru(20);
    add(&mut index, 1, 20);
    let first = granted(index.reserve(summary(2, 10)));
    assert_eq!(ids(&first), [1]);
    let second = granted(index.reserve(summary(3, 10)));
    index.abort(&key(2), &first);
    assert!(index.commit(&key(3), &second));
    assert_eq!((ready(&index), index.bytes()), (vec![3], 30), "its bytes are still on disk");
    let victims = granted(index.reserve(summary(4, 10)));
    assert_eq!(ids(&victims), [1]);
    assert!(index.commit(&key(4), &victims));
    assert_eq!((ready(&index), index.bytes()), (vec![3, 4], 20));
}

#[test]
fn pinned_entries_are_not_victims() {
    let owner = Arc::new(Mutex::new(lru(20)));
    let locked = || owner.lock().unwrap();
    add(&mut locked(), 1, 10);
    add(&mut locked(), 2, 10);
    let pin = locked().find(&owner, &key(1)).unwrap();
    use_once(&mut locked(), 2);
    assert_eq!(locked().reserve(summary(3, 20)), Reservation::Refused);
    let victims = granted(locked().reserve(summary(3, 10)));
    assert_eq!(ids(&victims), [2]);
    locked().abort(&key(3), &victims);
    drop(pin);
    assert_eq!(ids(&granted(locked().reserve(summary(3, 20)))), [1, 2]);
    assert_eq!(locked().reserve(summary(9, 21)), Reservation::Refused, "larger than the tier");
    assert_eq!(locked().refused(), 2);
}

#[test]
fn one_writer_a_key_and_a_removal_meanwhile_wins() {
    let mut index = lru(100);
    assert!(granted(index.reserve(summary(1, 10))).is_empty());
    assert_eq!(index.reserve(summary(1, 10)), Reservation::AlreadyThere);
    assert!(!index.contains(&key(1)), "not before it is whole");
    assert_eq!(index.begin_removal(&key(1)), None, "the writer will delete it");
    assert_eq!(index.reserve(summary(1, 10)), Reservation::Busy);
    assert!(!index.commit(&key(1), &[]), "doomed");
    assert_eq!(index.bytes(), 10);
    index.end_removal(&key(1), true);
    assert_eq!(index.bytes(), 0);
    assert!(granted(index.reserve(summary(1, 10))).is_empty());
}

#[test]
fn a_failed_deletion_stays_hidden_and_goes_first() {
    let mut index = lru(30);
    (1..=3).for_each(|id| add(&mut index, id, 10));
    assert_eq!(index.begin_removal(&key(3)), Some(extent(3, 10)));
    assert_eq!(index.begin_removal(&key(3)), None, "one remover a key");
    index.end_removal(&key(3), false);
    assert_eq!((ready(&index), index.bytes()), (vec![1, 2], 30), "its bytes are still on disk");
    assert_eq!(index.reserve(summary(3, 10)), Reservation::Busy);
    assert_eq!(ids(&granted(index.reserve(summary(4, 10)))), [3]);
}

#[test]
fn a_lowered_bound_evicts_at_open_and_parents_last() {
    let mut index = lru(10);
    let parent = summary(1, 5);
    let child = EntrySummary { parent: Some(parent.key), ..summary(2, 5) };
    let excess: Vec<Extent> =
        [parent, child, summary(3, 5)].into_iter().flat_map(|found| index.add_existing(found, 1)).collect();
    assert_eq!(ids(&excess), [2], "the child goes first");
    index.end_removal(&key(2), true);
    assert_eq!((ready(&index), index.bytes()), (vec![1, 3], 10));
}

#[test]
fn a_victim_that_was_to_be_removed_does_not_come_back() {
    let mut index = lru(20);
    add(&mut index, 1, 10);
    add(&mut index, 2, 10);
    let victims = granted(index.reserve(summary(3, 20)));
    assert_eq!(index.begin_removal(&key(1)), None, "it is leaving already");
    index.abort(&key(3), &victims);
    assert_eq!((ready(&index), index.bytes()), (vec![2], 20));
    assert_eq!(ids(&granted(index.reserve(summary(3, 10)))), [1]);
}

proptest! {
    /// The size is that of the slots, and what counts towards the bound is within it after every step.
    #[test]
    fn sizes_add_up(steps in prop::collection::vec((0u8..7, 0u8..8), 0..100)) {
        let owner = Arc::new(Mutex::new(lru(40)));
        let mut writing: Vec<(KvKey, Vec<Extent>)> = Vec::new();
        let mut removing: Vec<KvKey> = Vec::new();
        let mut pins = Vec::new();
        for (step, id) in steps {
            let mut index = owner.lock().unwrap();
            let key = key(id);
            let mut dropped = Vec::new();
            match step {
                0 => if let Reservation::Granted { victims } = index.reserve(summary(id, 5 + u64::from(id))) {
                    writing.push((key, victims));
                },
                1 => if let Some((key, victims)) = writing.pop()
                    && !index.commit(&key, &victims) { removing.push(key) },
                2 => if let Some((key, victims)) = writing.pop() { index.abort(&key, &victims) },
                3 => removing.extend(index.begin_removal(&key).map(|extent| extent.key)),
                4 => if let Some(key) = removing.pop() { index.end_removal(&key, id % 3 > 0) },
                5 => use_once(&mut index, id),
                _ => { pins.extend(index.find(&owner, &key)); if id == 0 { dropped = std::mem::take(&mut pins) } }
            }
            prop_assert!(index.residents.usage().bytes <= 40);
            let ready = index.slots.values().filter(|slot| slot.state == SlotState::Ready).count() as u64;
            prop_assert_eq!(index.ready_entries(), ready);
            drop(index);
            drop(dropped);
        }
        let mut index = owner.lock().unwrap();
        while let Some((key, victims)) = writing.pop() {
            if !index.commit(&key, &victims) { removing.push(key) }
        }
        removing.iter().for_each(|key| index.end_removal(key, true));
        let held: u64 = index.slots.values().map(|slot| slot.summary.bytes).sum();
        prop_assert_eq!(index.bytes(), held);
        drop(index);
    }
}
