use proptest::prelude::*;

use super::*;

fn extent(id: u8, bytes: u64) -> Extent {
    Extent { key: KvKey([id; 32]), parent: None, bytes, layers: 2 }
}

fn granted(reservation: Reservation) -> Vec<u8> {
    match reservation {
        Reservation::Granted { victims } => victims.iter().map(|victim| victim.key.0[0]).collect(),
        other => panic!("not granted: {other:?}"),
    }
}

fn add(index: &mut DiskIndex, id: u8, bytes: u64) {
    let Reservation::Granted { victims } = index.reserve(extent(id, bytes)) else { panic!("no room for {id}") };
    assert!(index.commit(&KvKey([id; 32]), &victims));
}

fn ready(index: &DiskIndex) -> Vec<u8> {
    index.ready_keys().iter().map(|key| key.0[0]).collect()
}

#[test]
fn the_least_recently_used_makes_room() {
    let mut index = DiskIndex::new(30);
    (1..=3).for_each(|id| add(&mut index, id, 10));
    assert!(index.find(&KvKey([1; 32])).is_some());
    let reservation = index.reserve(extent(4, 15));
    let Reservation::Granted { victims } = reservation else { panic!() };
    assert_eq!(victims.iter().map(|victim| victim.key.0[0]).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(ready(&index), [1], "victims and what is being written are hidden");
    assert!(index.commit(&KvKey([4; 32]), &victims));
    assert_eq!((ready(&index), index.bytes(), index.evicted), (vec![1, 4], 25, 2));
}

#[test]
fn an_aborted_write_leaves_no_trace() {
    let mut index = DiskIndex::new(30);
    (1..=3).for_each(|id| add(&mut index, id, 10));
    let Reservation::Granted { victims } = index.reserve(extent(4, 15)) else { panic!() };
    index.abort(&KvKey([4; 32]), &victims);
    assert_eq!((ready(&index), index.bytes(), index.evicted), (vec![1, 2, 3], 30, 0));
    assert_eq!(granted(index.reserve(extent(4, 15))), [1, 2], "and can be tried again");
}

#[test]
fn pinned_entries_are_not_victims() {
    let mut index = DiskIndex::new(20);
    add(&mut index, 1, 10);
    add(&mut index, 2, 10);
    let pin = index.find(&KvKey([1; 32])).unwrap();
    index.touch(&KvKey([2; 32]));
    assert_eq!(index.reserve(extent(3, 20)), Reservation::Refused);
    let Reservation::Granted { victims } = index.reserve(extent(3, 10)) else { panic!() };
    assert_eq!(victims[0].key.0[0], 2);
    index.abort(&KvKey([3; 32]), &victims);
    drop(pin);
    assert_eq!(granted(index.reserve(extent(3, 20))), [2, 1]);
    assert_eq!(index.reserve(extent(9, 21)), Reservation::Refused, "larger than the tier");
    assert_eq!(index.refused, 2);
}

#[test]
fn one_writer_a_key_and_a_removal_meanwhile_wins() {
    let mut index = DiskIndex::new(100);
    let key = KvKey([1; 32]);
    assert!(granted(index.reserve(extent(1, 10))).is_empty());
    assert_eq!(index.reserve(extent(1, 10)), Reservation::AlreadyThere);
    assert!(index.find(&key).is_none(), "not before it is whole");
    assert_eq!(index.begin_removal(&key), None, "the writer will delete it");
    assert_eq!(index.reserve(extent(1, 10)), Reservation::Busy);
    assert!(!index.commit(&key, &[]), "doomed");
    assert_eq!(index.bytes(), 10);
    index.end_removal(&key, true);
    assert_eq!(index.bytes(), 0);
    assert!(granted(index.reserve(extent(1, 10))).is_empty());
}

#[test]
fn a_failed_deletion_stays_hidden_and_goes_first() {
    let mut index = DiskIndex::new(30);
    (1..=3).for_each(|id| add(&mut index, id, 10));
    let key = KvKey([3; 32]);
    assert_eq!(index.begin_removal(&key), Some(extent(3, 10)));
    assert_eq!(index.begin_removal(&key), None, "one remover a key");
    index.end_removal(&key, false);
    assert_eq!((ready(&index), index.bytes()), (vec![1, 2], 30), "its bytes are still on disk");
    assert_eq!(index.reserve(extent(3, 10)), Reservation::Busy);
    assert_eq!(granted(index.reserve(extent(4, 10))), [3]);
}

#[test]
fn a_lowered_bound_evicts_at_open_and_parents_last() {
    let mut index = DiskIndex::new(10);
    let parent = extent(1, 5);
    let child = Extent { parent: Some(parent.key), ..extent(2, 5) };
    for found in [parent, child, extent(3, 5)] {
        index.add_existing(found);
    }
    let excess: Vec<u8> = index.take_excess().iter().map(|victim| victim.key.0[0]).collect();
    assert_eq!(excess, [2], "used together, and the child goes first");
    index.end_removal(&KvKey([2; 32]), true);
    assert_eq!((ready(&index), index.bytes()), (vec![1, 3], 10));
}

#[test]
fn a_victim_that_was_to_be_removed_does_not_come_back() {
    let mut index = DiskIndex::new(20);
    add(&mut index, 1, 10);
    add(&mut index, 2, 10);
    let Reservation::Granted { victims } = index.reserve(extent(3, 20)) else { panic!() };
    assert_eq!(index.begin_removal(&KvKey([1; 32])), None, "it is leaving already");
    index.abort(&KvKey([3; 32]), &victims);
    assert_eq!((ready(&index), index.bytes()), (vec![2], 20));
    assert_eq!(granted(index.reserve(extent(3, 10))), [1]);
}

proptest! {
    /// The size is that of the slots, and the bound holds unless an aborted write brought its victims back.
    #[test]
    fn sizes_add_up(steps in prop::collection::vec((0u8..6, 0u8..8), 0..100)) {
        let mut index = DiskIndex::new(40);
        let mut writing: Vec<(KvKey, Vec<Extent>)> = Vec::new();
        let mut removing: Vec<KvKey> = Vec::new();
        let mut pins = Vec::new();
        for (step, id) in steps {
            let key = KvKey([id; 32]);
            match step {
                0 => if let Reservation::Granted { victims } = index.reserve(extent(id, 5 + u64::from(id))) {
                    writing.push((key, victims));
                    prop_assert!(index.bytes() <= 40);
                },
                1 => if let Some((key, victims)) = writing.pop()
                    && !index.commit(&key, &victims) { removing.push(key) },
                2 => if let Some((key, victims)) = writing.pop() { index.abort(&key, &victims) },
                3 => removing.extend(index.begin_removal(&key).map(|extent| extent.key)),
                4 => if let Some(key) = removing.pop() { index.end_removal(&key, id % 3 > 0) },
                _ => { pins.extend(index.find(&key)); if id == 0 { pins.clear() } }
            }
        }
        while let Some((key, victims)) = writing.pop() {
            if !index.commit(&key, &victims) { removing.push(key) }
        }
        removing.iter().for_each(|key| index.end_removal(key, true));
        let held: u64 = index.slots.iter().map(|(_, slot)| slot.extent.bytes).sum();
        prop_assert_eq!(index.bytes(), held);
    }
}
