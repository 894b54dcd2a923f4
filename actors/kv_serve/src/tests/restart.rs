//! Restarts: from disk, and from an empty disk with a bucket.

use std::path::Path;

use ragstone_env::{ErrorKind, FailMode};
use ragstone_storage::tier::object::KeySources;

use super::*;

#[test]
fn blocks_are_hit_from_the_disk_after_a_restart() {
    let place = Place::new(0, PLENTY);
    let daemon = place.daemon();
    assert_eq!(place.engine("e", &namespace()).store(&[1, 2, 3]), [Stored::Accepted; 3]);
    drop(daemon);
    let _daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    assert_eq!(engine.has(&[1, 2, 3, 4], true), [true, true, true, false]);
    assert_eq!(engine.load(&[3, 1, 4, 2]), [true, true, false, true]);
    assert_eq!(engine.store(&[1]), [Stored::Present]);
    let status = engine.status();
    let [of_engine] = &status.namespaces[..] else { panic!("{status:?}") };
    assert_eq!((of_engine.blocks, of_engine.hits, of_engine.misses), (3, 3, 1));
    assert_eq!((of_engine.loaded, of_engine.not_loaded), (3, 1));
}

const CHAIN: [u64; 6] = [1, 2, 3, 4, 5, 6];

/// A daemon that ended, with a chain on a disk that has room for two blocks more.
fn with_chain() -> Place {
    let place = Place::new(0, 8 * 4600);
    let daemon = place.daemon();
    place.engine("e", &namespace()).store(&CHAIN);
    drop(daemon);
    place
}

/// Stores others until there is no room, and looks at what is left of the chain.
fn end_leaves(daemon: &Server, engine: &mut Engine) {
    engine.store(&[11, 12, 13, 14]);
    assert!(daemon.blocks().inner().drain(Duration::from_secs(60)));
    let has = engine.has(&CHAIN, false);
    assert!(has[0] && !has[5], "{has:?}");
    assert!(has.is_sorted_by(|a, b| a >= b), "a hole: {has:?}");
}

/// The trees forget at a restart what stands before what; a load tells them.
#[test]
fn a_chain_that_was_loaded_after_a_restart_is_evicted_from_its_end() {
    let place = with_chain();
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    assert_eq!(engine.load(&CHAIN), [true; 6]);
    end_leaves(&daemon, &mut engine);
}

/// What stands behind a gap is not taken for the next of what stands before it.
#[test]
fn a_chain_that_was_loaded_with_a_gap_is_evicted_from_its_end_all_the_same() {
    let place = with_chain();
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    place.env.set_fail_point("disk.read_frame", FailMode::Error(ErrorKind::Corrupt), 1);
    assert_eq!(engine.load(&[2]), [false]);
    place.env.set_fail_point("disk.read_frame", FailMode::Off, 1);
    assert_eq!(engine.load(&CHAIN), [true, false, true, true, true, true]);
    assert_eq!(engine.store(&CHAIN)[1], Stored::Accepted);
    assert_eq!(engine.load(&CHAIN), [true; 6]);
    end_leaves(&daemon, &mut engine);
}

#[test]
fn blocks_are_hit_from_the_bucket_by_a_machine_with_an_empty_disk() {
    let first = Place::new(0, PLENTY).with_bucket("memory://kv-serve-restart");
    let daemon = first.daemon();
    first.engine("e", &namespace()).store(&[1, 2, 3]);
    drop(daemon);
    let second = Place::new(PLENTY, PLENTY).with_bucket("memory://kv-serve-restart");
    let _daemon = second.daemon();
    let mut engine = second.engine("e", &namespace());
    assert_eq!(engine.has(&[1, 2, 9], true), [true, true, false]);
    assert_eq!(engine.load(&[1, 2, 3, 9]), [true, true, true, false]);
    // What was read from the bucket is in memory now.
    let before = engine.status().store;
    assert_eq!((before.host.entries, before.object.unwrap().hits >= 2), (3, true));
    assert_eq!(engine.load(&[1, 2, 3]), [true; 3]);
    assert_eq!(engine.status().store.object.unwrap().hits, before.object.unwrap().hits);
}

/// Somebody who can write to the bucket, and has no key, changes every block in it: none of it reaches the engine.
#[test]
fn blocks_that_somebody_changed_in_a_sealed_bucket_are_misses() {
    let bucket = TempDir::new().unwrap();
    let key = bucket.path().join("key");
    std::fs::write(&key, "17".repeat(31) + "18").unwrap();
    let folder = bucket.path().join("bucket");
    let sealed = |encrypt| {
        let mut place = Place::new(PLENTY, PLENTY).with_bucket(&format!("file://{}", folder.display()));
        let object = place.options.object.as_mut().unwrap();
        (object.keys, object.encrypt) = (KeySources::files([key.clone()]), encrypt);
        place
    };
    let first = sealed(true);
    let daemon = first.daemon();
    first.engine("e", &namespace()).store(&[1, 2]);
    drop(daemon);
    let second = sealed(false);
    let daemon = second.daemon();
    assert_eq!(second.engine("e", &namespace()).load(&[1, 2, 9]), [true, true, false]);
    drop(daemon);
    assert_eq!(change_files(&folder), 2);
    let third = sealed(true);
    let _daemon = third.daemon();
    let mut engine = third.engine("e", &namespace());
    assert_eq!(engine.load(&[1, 2]), [false; 2]);
    assert_eq!(engine.status().store.object.unwrap().forged, 2);
    engine.store(&[1, 2]);
    assert_eq!(engine.load(&[1, 2]), [true; 2]);
}

/// Changes the last byte of every file below a folder; how many there are.
fn change_files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let change = |path: PathBuf| {
        if path.is_dir() {
            return change_files(&path);
        }
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        1
    };
    entries.map(change).sum()
}

#[test]
fn an_evicted_namespace_leaves_the_bucket_and_others_stay() {
    let place = Place::new(PLENTY, PLENTY).with_bucket("memory://kv-serve-evict");
    let other_tenant = Namespace { tenant: "bob".into(), ..namespace() };
    let other = Namespace { engine_version: "0.33.0".into(), ..namespace() };
    let daemon = place.daemon();
    for (name, namespace) in [("a", &namespace()), ("b", &other_tenant), ("c", &other)] {
        place.engine(name, namespace).store(&[1, 2]);
    }
    drop(daemon);
    let daemon = place.daemon();
    let mut engine = place.engine("a", &namespace());
    let digest = hex::encode(namespace().digest());
    assert!(engine.evict("", None).is_err(), "nothing is named");
    assert!(engine.evict("0123456789", None).is_err(), "no namespace");
    let (blocks, bytes) = engine.evict(&digest[..12], Some("alice")).unwrap();
    assert!(blocks == 2 && bytes >= 4 * BLOCK, "on disk and in the bucket: {blocks} {bytes}");
    assert_eq!(engine.has(&[1, 2], false), [false; 2]);
    assert_eq!(place.engine("b", &other_tenant).load(&[1, 2]), [true; 2]);
    assert_eq!(place.engine("c", &other).load(&[1, 2]), [true; 2]);
    assert_eq!(engine.evict(&digest, None).unwrap().0, 2, "the other tenant's, too");
    drop(daemon);
    let _daemon = place.daemon();
    assert_eq!(place.engine("a", &namespace()).has(&[1, 2], false), [false; 2]);
    assert_eq!(place.engine("c", &other).load(&[1]), [true]);
}
