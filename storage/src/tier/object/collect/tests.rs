//! The plan over made-up listings, and the collector over a bucket.

use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use proptest::prelude::*;

use super::super::names::Room;
use super::*;
use crate::entry::Entry;
use crate::entry::tests::{MODEL, entry_behind};
use crate::key::{Fingerprint, SegmentDigest};
use crate::tier::object::{ObjectOptions, ObjectTier};
use crate::tier::{EntryId, EntryTier, SharedTier};
use ragstone_env::Env;

const NOW_MS: u64 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);
const WEEK_H: u64 = 7 * 24;

fn key(id: u8) -> KvKey {
    KvKey([id; 32])
}

/// An object of 100 bytes, `hours` old.
fn object(id: u8, parent: Option<u8>, hours: u64) -> Found {
    let name = Name {
        room: Room { space: Space::Exact, key: None },
        fingerprint: MODEL,
        id: EntryId { key: key(id), segment: SegmentDigest([id; 16]) },
    };
    let modified_ms = NOW_MS - hours * 3_600_000;
    Found { name, key: key(id), bytes: 100, modified_ms, content: Content::Behind(parent.map(key)) }
}

fn leaving(found: &[Found], options: CollectOptions) -> Vec<(u8, Why)> {
    leaving_after(found, &[], options)
}

/// Where entries of these keys were deleted.
fn leaving_after(found: &[Found], deleted: &[u8], options: CollectOptions) -> Vec<(u8, Why)> {
    let deleted = deleted.iter().map(|&id| (key(id), HOUR)).collect();
    let leaving = plan(found, &deleted, &options, NOW_MS);
    leaving.into_iter().map(|(index, why)| (found[index].name.id.key.0[0], why)).collect()
}

fn aged(hours: u32) -> CollectOptions {
    CollectOptions { ttl: Some(HOUR * hours), ..CollectOptions::default() }
}

fn sized(max_bytes: u64) -> CollectOptions {
    CollectOptions { max_bytes: Some(max_bytes), ..CollectOptions::default() }
}

#[test]
fn nothing_leaves_without_a_reason() {
    let found = [object(1, None, 100), object(2, Some(1), 90)];
    assert_eq!(leaving(&found, CollectOptions::default()), []);
    assert_eq!(leaving(&found, sized(200)), []);
}

#[test]
fn what_is_old_leaves_unless_something_young_stands_behind_it() {
    let found =
        [object(1, None, 50), object(2, Some(1), 3), object(3, None, 11), object(4, Some(3), 30), object(5, None, 9)];
    assert_eq!(leaving(&found, aged(10)), [(3, Why::Expired), (4, Why::Expired)]);
    assert_eq!(leaving(&found, aged(0)).len(), 5);
}

#[test]
fn the_oldest_leave_for_size_children_before_parents() {
    let found = [object(1, None, 50), object(2, Some(1), 40), object(3, Some(2), 40), object(4, None, 45)];
    assert_eq!(leaving(&found, sized(300)), [(4, Why::Size)]);
    assert_eq!(leaving(&found, sized(299)), [(4, Why::Size), (3, Why::Size)]);
    assert_eq!(leaving(&found, sized(0)), [(4, Why::Size), (3, Why::Size), (2, Why::Size), (1, Why::Size)]);
}

#[test]
fn what_stands_behind_what_was_deleted_leaves() {
    let mut damaged = object(5, None, 2);
    damaged.content = Content::Damaged;
    let found = [
        object(2, Some(1), 5),
        object(3, Some(2), 4),
        object(4, None, 9),
        damaged,
        object(6, Some(5), 2),
        object(8, Some(7), 5),
    ];
    let expected = [(2, Why::Orphaned), (3, Why::Orphaned), (5, Why::Damaged)];
    assert_eq!(leaving_after(&found, &[1], CollectOptions::default()), expected);
    // It was deleted, and somebody added its text again.
    assert_eq!(leaving_after(&found[..2], &[2], CollectOptions::default()), []);
    let young = [object(2, Some(1), 0), object(3, Some(1), 4), object(4, Some(3), 0)];
    assert_eq!(leaving_after(&young, &[1], CollectOptions::default()), []);
}

/// A module behind a gap, and what was computed after a system prompt that is not worth a request: their parents never were there.
#[test]
fn what_stands_behind_what_is_missing_stays_for_a_week_and_makes_room_first() {
    let found = [object(2, Some(1), 3), object(3, Some(2), 2), object(4, None, 9)];
    assert_eq!(leaving(&found, CollectOptions::default()), []);
    assert_eq!(leaving(&found, sized(200)), [(3, Why::Size)]);
    assert_eq!(leaving(&found, sized(0)), [(3, Why::Size), (2, Why::Size), (4, Why::Size)]);
    let old =
        [object(2, Some(1), WEEK_H - 1), object(3, Some(1), WEEK_H), object(4, None, WEEK_H), object(5, Some(6), 11)];
    assert_eq!(leaving(&old, CollectOptions::default()), [(3, Why::Orphaned)]);
    assert_eq!(leaving(&old[3..], aged(10)), [(5, Why::Expired)]);
}

#[test]
fn nothing_young_leaves() {
    let mut damaged = object(5, None, 0);
    damaged.content = Content::Damaged;
    let mut foreign = object(7, None, 0);
    foreign.content = Content::Foreign;
    let found =
        [object(1, Some(99), 0), object(2, None, 0), damaged, object(6, Some(98), 80), object(8, Some(6), 0), foreign];
    let options = CollectOptions { ttl: Some(Duration::ZERO), max_bytes: Some(0), ..CollectOptions::default() };
    assert_eq!(leaving(&found, options), []);
    // A clock that is ahead of ours makes an object young, too.
    let mut ahead = object(1, None, 0);
    ahead.modified_ms = NOW_MS + 10_000_000;
    assert_eq!(leaving(&[ahead], options), []);
}

#[test]
fn other_models_leave_for_age_and_size_and_are_no_orphans() {
    let mut foreign = object(7, None, 20);
    foreign.name.fingerprint = Fingerprint([9; 32]);
    foreign.content = Content::Foreign;
    let found = [foreign, object(1, None, 5)];
    assert_eq!(leaving(&found, CollectOptions::default()), []);
    assert_eq!(leaving(&found, aged(10)), [(7, Why::Expired)]);
    assert_eq!(leaving(&found, sized(100)), [(7, Why::Size)]);
}

/// A bucket may say what it likes of sizes and times.
#[test]
fn sizes_and_times_that_cannot_be_do_no_harm() {
    let huge = |id| Found { bytes: u64::MAX, modified_ms: if id == 1 { 0 } else { u64::MAX }, ..object(id, None, 50) };
    let found = [huge(1), huge(2), object(3, None, 50)];
    assert_eq!(leaving(&found, sized(100)), [(1, Why::Size), (3, Why::Size)]);
    let mut collected = Collected::default();
    found.iter().for_each(|object| collected.count(object, Why::Size));
    assert_eq!(collected.freed_bytes, u64::MAX);
}

#[test]
fn parents_in_a_circle_do_not_hang_it() {
    let found = [object(1, Some(2), 50), object(2, Some(1), 40), object(3, Some(3), 40)];
    assert_eq!(leaving(&found, aged(10)).len(), 3);
    assert_eq!(leaving(&found, sized(0)).len(), 3);
}

proptest! {
    /// Whatever is there: nothing young leaves, each leaves once, the bound is kept by what may leave, and whoever stays keeps
    /// the parents that were there.
    #[test]
    fn a_plan_keeps_its_promises(
        objects in prop::collection::vec((0u64..60, prop::option::of(0u8..30), 0u8..8), 0..25),
        ttl in prop::option::of(0u32..50), max_bytes in prop::option::of(0u64..3_000),
        deleted in prop::collection::hash_set(0u8..30, 0..4),
    ) {
        let found: Vec<_> = (0..).zip(&objects).map(|(id, &(hours, parent, content))| {
            // No key can be derived from a key that is derived from it: no circles.
            let mut found = object(id, parent.filter(|&parent| parent < id || parent > 25), hours);
            if content == 0 { found.content = Content::Damaged; }
            found
        }).collect();
        let options = CollectOptions { ttl: ttl.map(|hours| HOUR * hours), max_bytes, ..CollectOptions::default() };
        let deleted = deleted.into_iter().map(|id| (key(id), HOUR)).collect();
        let leaving = plan(&found, &deleted, &options, NOW_MS);
        let gone: HashSet<usize> = leaving.iter().map(|(index, _)| *index).collect();
        prop_assert_eq!(gone.len(), leaving.len());
        let young = |object: &Found| NOW_MS - object.modified_ms < 3_600_000;
        prop_assert!(gone.iter().all(|&index| !young(&found[index])));
        let left: Vec<_> = (0..found.len()).filter(|index| !gone.contains(index)).collect();
        let family = Family::of(&found);
        for &index in &left {
            if let Some(parents) = family.parents(&found, index) {
                prop_assert!(parents.iter().all(|parent| !gone.contains(parent)), "{} lost its parent", index);
            }
        }
        if let Some(max_bytes) = max_bytes {
            let bytes: u64 = left.iter().map(|&index| found[index].bytes).sum();
            let bound_to_stay = left.iter().all(|&index| NOW_MS - family.youngest_ms[index] < 3_600_000
                || (found[index].content == Content::Damaged && young(&found[index])));
            prop_assert!(bytes <= max_bytes || bound_to_stay);
        }
    }
}

fn put(tier: &ObjectTier, parent: Option<KvKey>, tokens: &[u32]) -> Arc<Entry> {
    let entry = Arc::new(entry_behind(parent, tokens));
    tier.put(&entry).unwrap();
    entry
}

fn is_there(tier: &ObjectTier, entry: &Entry) -> bool {
    tier.open(&entry.header().id()).unwrap().is_some()
}

fn bucket() -> (Arc<InMemory>, ObjectTier, Env) {
    let (store, env) = (Arc::new(InMemory::new()), Env::seeded(1, Env::system().now_unix_ms()));
    (store.clone(), node(&store, MODEL, &env), env)
}

fn node(store: &Arc<InMemory>, fingerprint: Fingerprint, env: &Env) -> ObjectTier {
    let options = ObjectOptions::new("memory://unused");
    ObjectTier::over(store.clone(), Path::from("kv"), &options, fingerprint, env.clone()).unwrap()
}

/// A clock of this machine that is days ahead, or behind: what another node has just written stays.
#[test]
fn ages_are_told_by_the_buckets_clock() {
    let (store, env) = (Arc::new(InMemory::new()), Env::system());
    let tier = node(&store, MODEL, &env);
    let entry = put(&tier, None, &[1]);
    let orphan = put(&tier, Some(key(99)), &[3]);
    let day_ms = 86_400_000;
    for by_ms in [10 * day_ms, -20 * day_ms] {
        env.set_clock(by_ms);
        let collected = tier.collect(&CollectOptions { ttl: Some(HOUR), ..CollectOptions::default() }).unwrap();
        assert_eq!((collected.objects, collected.foreign, collected.freed_bytes), (2, 0, 0));
        assert!(is_there(&tier, &entry) && is_there(&tier, &orphan));
    }
}

/// A node that ended between writing and removing leaves an object behind; what has another name is not ours.
#[test]
fn what_told_the_time_does_not_stay() {
    let (store, tier, env) = bucket();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let there = |path: &Path| runtime.block_on(store.head(path)).is_ok();
    let (left, other) = (tier.names.clock(7), Path::from("kv/clock/photo.jpg"));
    for path in [&left, &other] {
        runtime.block_on(store.put(path, vec![1].into())).unwrap();
    }
    tier.collect(&CollectOptions::default()).unwrap();
    assert!(there(&left), "another node may look at it now");
    env.advance(2 * HOUR);
    tier.collect(&CollectOptions { dry_run: true, ..CollectOptions::default() }).unwrap();
    assert!(there(&left), "a dry run deletes nothing");
    tier.collect(&CollectOptions::default()).unwrap();
    assert!(!there(&left) && there(&other));
}

#[test]
fn a_bucket_is_collected_as_planned() {
    let (store, writer, env) = bucket();
    let tier = node(&store, MODEL, &env);
    let root = put(&writer, None, &[1]);
    let child = put(&writer, Some(root.header().key), &[2]);
    let deleted = put(&writer, None, &[9]);
    let orphan = put(&writer, Some(deleted.header().key), &[3]);
    let damaged = put(&writer, None, &[4]);
    let other = node(&store, Fingerprint([9; 32]), &env);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let foreign = [Path::from("kv/v1/photo.jpg"), Path::from("kv/v2/newer"), Path::from("elsewhere")];
    runtime.block_on(async {
        for path in &foreign {
            store.put(path, vec![1].into()).await.unwrap();
        }
        let path = tier.names.object(&tier.name(Space::Exact, &damaged.header().id()));
        store.put(&path, vec![1, 2, 3].into()).await.unwrap();
        let of_other = other.names.object(&other.name(Space::Exact, &root.header().id()));
        store.put(&of_other, vec![5; 10].into()).await.unwrap();
    });

    assert_eq!(tier.remove_many(&[(MODEL, deleted.header().id())]).unwrap().len(), 1);
    let unwanted = tier.collect_while(&CollectOptions::default(), &|| false).unwrap_err();
    assert_eq!(unwanted.kind(), crate::ErrorKind::Cancelled);
    let first = tier.collect(&CollectOptions::default()).unwrap();
    let seen =
        Collected { objects: 5, bytes: first.bytes, other_models: 1, foreign: 1, damaged: 1, ..Collected::default() };
    assert_eq!(first, seen, "all of it is young");

    env.advance(2 * HOUR);
    let dry = tier.collect(&CollectOptions { dry_run: true, ..CollectOptions::default() }).unwrap();
    assert_eq!((dry.left_orphaned, dry.left_damaged), (1, 1));
    assert!(is_there(&tier, &orphan), "a dry run deletes nothing");
    let read_bytes = tier.counts().read_bytes;
    assert_eq!(tier.collect(&CollectOptions::default()).unwrap(), dry);
    assert!(tier.counts().read_bytes - read_bytes <= 10, "headers are read once; damaged ones again");
    assert!(is_there(&tier, &root) && is_there(&tier, &child) && !is_there(&tier, &orphan));
    assert!(!is_there(&tier, &damaged));

    let sized = tier.collect(&sized(0)).unwrap();
    assert_eq!((sized.objects, sized.left_for_size), (3, 3), "{sized:?}");
    assert_eq!((tier.usage().evicted, tier.usage().entries, tier.usage().bytes), (3, 0, 0));
    runtime.block_on(async {
        for path in &foreign {
            store.head(path).await.expect("not ours to delete");
        }
    });
}

/// Only the node that deleted an entry knows, until it starts again, that what stands behind it is to leave.
#[test]
fn what_stands_behind_what_another_node_deleted_leaves_within_a_week() {
    let (store, other, env) = bucket();
    let [by_segment, by_name] = [(), ()].map(|()| node(&store, MODEL, &env));
    let passages = [1, 2, 3].map(|token| put(&other, None, &[token]));
    let behind = passages.each_ref().map(|passage| put(&other, Some(passage.header().key), &[9]));
    by_segment.remove_segments(None, &[MODEL], &[passages[0].header().segment()]).unwrap();
    by_name.remove_many(&[(MODEL, passages[1].header().id())]).unwrap();
    // Damaged, or evicted by somebody: what stands behind it is as good as before.
    assert!(by_name.remove(&passages[2].header().id()).unwrap());
    env.advance(2 * HOUR);
    let there = || behind.each_ref().map(|entry| is_there(&other, entry));
    assert_eq!(other.collect(&CollectOptions::default()).unwrap().left_orphaned, 0);
    assert_eq!(by_segment.collect(&CollectOptions::default()).unwrap().left_orphaned, 1);
    assert_eq!(there(), [false, true, true]);
    assert_eq!(by_name.collect(&CollectOptions::default()).unwrap().left_orphaned, 1);
    assert_eq!(there(), [false, false, true]);
    // They have done it, and remember nothing of it.
    assert!(by_segment.deleted().is_empty() && by_name.deleted().is_empty());
    env.advance(168 * HOUR);
    assert_eq!(other.collect(&CollectOptions::default()).unwrap().left_orphaned, 1);
    assert_eq!(there(), [false; 3]);
}

#[test]
fn entries_expire() {
    let (_, tier, env) = bucket();
    let entry = put(&tier, None, &[1]);
    env.advance(5 * HOUR);
    assert_eq!(tier.collect(&aged(6)).unwrap().left_expired, 0);
    env.advance(2 * HOUR);
    assert_eq!(tier.collect(&aged(6)).unwrap().left_expired, 1);
    assert!(!is_there(&tier, &entry));
}

#[test]
fn a_tier_with_a_capacity_is_collected_below_it() {
    let (store, env) = (Arc::new(InMemory::new()), Env::seeded(1, Env::system().now_unix_ms()));
    let options = ObjectOptions { capacity_bytes: 1_500, ..ObjectOptions::new("memory://unused") };
    let tier = ObjectTier::over(store, Path::from("kv"), &options, MODEL, env.clone()).unwrap();
    (0..5).for_each(|id| drop(put(&tier, None, &[id])));
    let before = tier.usage();
    assert!(before.bytes > 1_500, "puts only refuse what is larger than all of it");
    env.advance(2 * HOUR);
    let collected = tier.collect(&CollectOptions::default()).unwrap();
    assert!(
        (1..5).contains(&collected.left_for_size) && collected.bytes - collected.freed_bytes <= 1_500,
        "{collected:?}"
    );
    assert_eq!(tier.usage().entries, 5 - collected.left_for_size);
}

/// Another node wrote the entry anew between the listing and the deletion.
#[test]
fn what_was_written_anew_meanwhile_stays() {
    let (_, tier, _) = bucket();
    let entry = put(&tier, None, &[1]);
    let mut collected = Collected::default();
    let mut found = tier.find(&mut collected, &|| Ok(())).unwrap();
    found[0].modified_ms -= 5_000;
    assert!(!tier.start_collecting(&found[0]).wait().unwrap());
    assert!(is_there(&tier, &entry));
}
