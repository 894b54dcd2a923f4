//! Invalidations that meet a bucket which cannot be reached.

use std::collections::BTreeSet;

use object_store::memory::InMemory;
use tempfile::TempDir;

use super::bucket_tests::{MODEL, OTHER, keep, objects, open};
use super::*;
use crate::catalog::{ModuleEntry, SchemaEntries, SchemaRecord};
use crate::policy::PolicyKind;
use crate::segment::{Segment, SegmentKind};
use crate::tier::EntryId;
use crate::tier::device::{DeviceOptions, KeptSegment};
use crate::tier::object::Codec;
use ragstone_env::FailMode;

const TOKENS: [&[u32]; 3] = [&[1], &[2, 3], &[4, 5]];

fn set_bucket(store: &KvStore, mode: FailMode) {
    // Every attempt fails, until the breaker lets none through.
    ["object.list", "object.delete"].iter().for_each(|point| store.env().set_fail_point(point, mode, 1));
}

/// The bucket answers again, and one request has found out: of several at once the breaker lets a single one through as its probe
/// and refuses the others.
fn revive_bucket(store: &KvStore, any: &EntryId) {
    set_bucket(store, FailMode::Off);
    store.env().advance(Duration::from_secs(600));
    store.0.tiers.object.as_ref().unwrap().open(any).unwrap();
}

/// A root, a passage behind it, and one behind that: everywhere, the device included.
fn filled(store: &KvStore) -> [EntryId; 3] {
    let root = keep(store, None, TOKENS[0]);
    let passage = keep(store, Some(root.key), TOKENS[1]);
    let behind = keep(store, Some(passage.key), TOKENS[2]);
    let ids = [root, passage, behind];
    let options = DeviceOptions { blocks: 8, block_bytes: 16, policy: PolicyKind::Lru, cache: true };
    let device = DeviceTier::new(options).unwrap();
    let mut end = 0;
    let path: Vec<KeptSegment> = std::iter::zip(&ids, TOKENS)
        .map(|(id, tokens)| {
            end += tokens.len();
            let segment = Segment { kind: SegmentKind::Passage, tokens: tokens.into(), place: None };
            KeptSegment { key: id.key, segment, end }
        })
        .collect();
    let found = device.find("", path.iter().map(|at| (at.key, &at.segment)));
    let (mut table, _) = device.begin(Some(&found), 0, end, true).unwrap();
    drop(device.keep(&found, &path, &mut table, 1.0));
    store.set_device(device);
    ids
}

fn in_bucket(bucket: &InMemory, id: &EntryId) -> bool {
    objects(bucket, "v1").iter().any(|name| name.ends_with(&id.key.to_string()))
}

fn assert_found_by_nobody(store: &KvStore, id: &EntryId, tokens: &[u32]) {
    assert!(store.look_up(&id.key, tokens).is_none());
    assert_eq!(store.contains(&id.key), None);
    assert!(store.0.device.get().is_none_or(|device| !device.contains(&id.key)));
}

/// What stood behind the passage is known by the local copies only, and they are gone when the bucket is back.
#[test]
fn what_a_dead_bucket_keeps_is_found_by_nobody_and_leaves_with_the_next_attempt() {
    for restart in [false, true] {
        let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
        let mut store = open(&dir, &bucket, MODEL, Codec::Plain);
        let [root, passage, behind] = filled(&store);
        store.set_pinned(&behind.key, true).unwrap();
        set_bucket(&store, FailMode::Error(ErrorKind::Unavailable));
        // Whose the local ones are is known all the same.
        let found = store.tenants_of(&[passage.segment], &[]);
        assert_eq!(found.tenants, BTreeSet::from([String::new()]));
        assert_eq!(found.failed.unwrap().kind(), ErrorKind::Unavailable);
        let failed = store.invalidate(&[passage.segment], &[]).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert!(in_bucket(&bucket, &passage) && in_bucket(&bucket, &behind));
        assert!(store.set_pinned(&behind.key, true).unwrap(), "it is pinned no more");
        store.set_pinned(&behind.key, false).unwrap();

        // The bucket is back before anybody tries again.
        revive_bucket(&store, &root);
        assert_found_by_nobody(&store, &passage, TOKENS[1]);
        assert_found_by_nobody(&store, &behind, TOKENS[2]);
        assert!(store.look_up(&root.key, TOKENS[0]).is_some());
        if restart {
            drop(store);
            store = open(&dir, &bucket, MODEL, Codec::Plain);
            assert_found_by_nobody(&store, &passage, TOKENS[1]);
            assert_found_by_nobody(&store, &behind, TOKENS[2]);
        }
        let done = store.invalidate(&[passage.segment], &[]).unwrap();
        assert_eq!((done.entries, done.copies), (2, 2), "both were left in the bucket only");
        assert!(in_bucket(&bucket, &root) && !in_bucket(&bucket, &passage) && !in_bucket(&bucket, &behind));
        assert_eq!(store.invalidate(&[passage.segment], &[]).unwrap(), Invalidated::default());
    }
}

#[test]
fn what_is_left_of_another_models_passage_leaves_with_any_later_attempt() {
    let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
    let passage;
    let behind = {
        let store = open(&dir, &bucket, OTHER, Codec::Q8);
        passage = keep(&store, None, TOKENS[1]);
        keep(&store, Some(passage.key), TOKENS[2])
    };
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    set_bucket(&store, FailMode::Error(ErrorKind::Unavailable));
    assert!(store.invalidate(&[passage.segment], &[OTHER]).is_err());
    assert_eq!(objects(&bucket, "v1q8").len(), 2);
    revive_bucket(&store, &passage);
    // The passage came back meanwhile, so that its removal has no segments left.
    store.invalidate(&[], &[]).unwrap();
    assert_eq!(objects(&bucket, "v1q8"), Vec::<String>::new(), "{}", behind.key);
}

fn note_modules(store: &KvStore, model: Fingerprint, ids: &[EntryId]) {
    let (tenant, name, version) = (String::new(), "trip".to_owned(), "1".to_owned());
    let record = SchemaRecord {
        tenant: tenant.clone(),
        name: name.clone(),
        version: version.clone(),
        schema: String::new(),
        sources: Default::default(),
        added_unix_ms: 0,
    };
    let module = |id: &EntryId| ModuleEntry { path: "/".into(), key: id.key, segment: id.segment };
    let modules = ids.iter().map(module).collect();
    store.0.uses.catalog.put_schema(&record).unwrap();
    let entries = SchemaEntries { tenant, name, version, fingerprint: model, modules };
    store.0.uses.catalog.put_schema_entries(&entries).unwrap();
}

/// What stands in for an argument is in no tier, so that a module behind it has a parent that nobody knows.
#[test]
fn modules_are_not_suspected_to_stand_behind_a_passage() {
    let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    let passage = keep(&store, None, TOKENS[0]);
    let [module, orphan] = [TOKENS[1], TOKENS[2]].map(|tokens| keep(&store, Some(KvKey([9; 32])), tokens));
    note_modules(&store, MODEL, &[module]);
    store.invalidate(&[passage.segment], &[]).unwrap();
    let is_local = |id: &EntryId| matches!(store.contains(&id.key), Some(Tier::Host | Tier::Disk));
    assert_eq!([passage, module, orphan].map(|id| is_local(&id)), [false, true, false]);
    // Its own text being somebody's passage that goes, it goes with it.
    store.invalidate(&[module.segment], &[]).unwrap();
    assert!(!is_local(&module));
}

/// Pinned or not, of another model, too, with what stands behind; and with the next attempt where the bucket was dead.
#[test]
fn entries_are_withdrawn_by_their_keys_from_everywhere() {
    let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
    let other = {
        let store = open(&dir, &bucket, OTHER, Codec::Plain);
        keep(&store, None, TOKENS[0])
    };
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    let [root, passage, behind] = filled(&store);
    let stays = keep(&store, None, TOKENS[1]);
    store.set_pinned(&behind.key, true).unwrap();
    set_bucket(&store, FailMode::Error(ErrorKind::Unavailable));
    let wanted = [(MODEL, passage), (OTHER, other)];
    assert_eq!(store.withdraw(&wanted).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(in_bucket(&bucket, &passage) && in_bucket(&bucket, &other));
    assert!(!matches!(store.contains(&passage.key), Some(Tier::Host | Tier::Disk)), "this machine has it no more");
    revive_bucket(&store, &root);
    let done = store.withdraw(&wanted).unwrap();
    assert_eq!((done.entries_removed, done.copies_removed), (2, 2), "what the bucket had");
    assert!(!in_bucket(&bucket, &passage) && !in_bucket(&bucket, &other));
    assert!(store.contains(&stays.key).is_some() && store.contains(&root.key).is_some());
    assert_eq!(store.withdraw(&wanted).unwrap(), Withdrawn::default());
    // What was planned before is not filed after it; what is planned now is.
    let again = keep(&store, Some(root.key), TOKENS[1]);
    assert!(again.key == passage.key && store.contains(&again.key).is_some());
}
