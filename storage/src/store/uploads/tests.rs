use std::sync::mpsc::channel;

use object_store::memory::InMemory;
use tempfile::TempDir;

use super::super::bucket_tests::{MODEL, OTHER, entry, objects, open};
use super::super::{KvStore, tests::options};
use super::*;
use crate::tier::object::Codec;
use ragstone_env::FailMode;

const SOON: Duration = Duration::from_secs(60);
/// Below a model's names.
const ENTRIES: &str = "";

/// Keeps an entry while the bucket is away; its address.
fn keep(store: &KvStore, tokens: &[u32]) -> EntryId {
    let entry = entry(MODEL, None, tokens);
    let id = entry.header().id();
    assert!(store.keep(entry, store.epoch()).unwrap() && store.drain(SOON));
    id
}

fn owed(store: &KvStore) -> &Owed {
    store.0.uploads.as_ref().unwrap().owed()
}

fn set_bucket(store: &KvStore, mode: FailMode) {
    store.env().set_fail_point("object.before_put", mode, 1);
}

fn is_away() -> FailMode {
    FailMode::Error(crate::ErrorKind::Unavailable)
}

#[test]
fn what_could_not_be_uploaded_is_once_the_bucket_takes_another_entry() {
    let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    set_bucket(&store, is_away());
    keep(&store, &[1, 2]);
    assert!(!owed(&store).drain(Duration::ZERO) && objects(&bucket, ENTRIES).is_empty());
    set_bucket(&store, FailMode::Off);
    keep(&store, &[3]);
    assert!(owed(&store).drain(SOON));
    assert_eq!(objects(&bucket, ENTRIES).len(), 2);
    assert_eq!(store.0.uses.catalog.uploads(&MODEL).unwrap(), []);
}

#[test]
fn it_is_tried_again_after_a_restart_from_the_disk() {
    let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
    let id;
    {
        let store = open(&dir, &bucket, MODEL, Codec::Plain);
        set_bucket(&store, is_away());
        id = keep(&store, &[1, 2]);
        assert_eq!(store.0.uses.catalog.uploads(&MODEL).unwrap(), [id]);
        // That of another model is not this one's.
        assert_eq!(store.0.uses.catalog.uploads(&OTHER).unwrap(), []);
    }
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    assert!(owed(&store).drain(SOON));
    assert_eq!(objects(&bucket, ENTRIES).len(), 1);
    let object = store.0.tiers.object.as_ref().unwrap();
    assert_eq!(object.as_tier().open(&id).unwrap().unwrap().header().key, id.key);
}

#[test]
fn what_was_invalidated_or_evicted_meanwhile_is_not_uploaded() {
    let (dir, bucket) = (TempDir::new().unwrap(), Arc::new(InMemory::new()));
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    set_bucket(&store, is_away());
    let (invalidated, evicted) = (keep(&store, &[1, 2]), keep(&store, &[4]));
    store.0.tiers.tombstones.bury(&[invalidated.segment], &[]);
    store.0.tiers.host.remove(&evicted).unwrap();
    store.0.tiers.disk.remove(&evicted).unwrap();
    set_bucket(&store, FailMode::Off);
    owed(&store).hurry();
    assert!(owed(&store).drain(SOON));
    assert!(objects(&bucket, ENTRIES).is_empty());
}

/// A store without a bucket owes nothing.
#[test]
fn without_a_bucket_nothing_is_owed() {
    let dir = TempDir::new().unwrap();
    let env = Env::seeded(1, 1_000_000);
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
    let store = KvStore::open(&dir.path().join("kv"), options(1 << 30, 1 << 30), MODEL, env, catalog).unwrap();
    keep(&store, &[1]);
    assert!(store.0.uploads.is_none());
}

#[test]
fn one_that_fails_goes_behind_the_others() {
    let dir = TempDir::new().unwrap();
    let catalog = Arc::new(Catalog::open(dir.path(), &Env::seeded(1, 0)).unwrap());
    let ids = [1, 2, 3].map(|token| entry(MODEL, None, &[token]).header().id());
    let (tell, tried) = channel();
    let fails = ids[0].key;
    let pay = move |id: &EntryId, _| {
        tell.send(id.key).unwrap();
        id.key != fails
    };
    let uploads = Uploads::start(catalog, MODEL, pay).unwrap();
    ids.iter().for_each(|id| uploads.owed().add(*id, 0));
    let mut seen = Vec::new();
    while !ids[1..].iter().all(|id| seen.contains(&id.key)) {
        uploads.owed().hurry();
        seen.push(tried.recv_timeout(SOON).unwrap());
    }
    assert_eq!(seen.iter().filter(|key| **key == ids[1].key).count(), 1);
    assert!(!uploads.owed().drain(Duration::ZERO), "the first is owed still");
}

#[test]
fn waits_grow_to_a_bound() {
    assert_eq!([0, 1, 3].map(wait_after).map(|wait| wait.as_secs()), [5, 10, 40]);
    assert_eq!([7, 40, u32::MAX].map(wait_after), [LONGEST_WAIT; 3]);
}
