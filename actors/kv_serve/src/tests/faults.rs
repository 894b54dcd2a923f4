//! Bytes that changed, memory that vanished, clients that gave up: a miss each, never a wrong byte.

use std::path::Path;

use ragstone_env::{ErrorKind, FailMode};

use super::*;

fn objects(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(objects(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn flipped_and_truncated_objects_are_misses() {
    let bucket = TempDir::new().unwrap();
    let url = format!("file://{}", bucket.path().display());
    for case in 0..8_usize {
        let first = Place::new(0, PLENTY).with_bucket(&url);
        let daemon = first.daemon();
        first.engine("e", &namespace()).store(&[1, 2]);
        drop(daemon);
        let found = objects(bucket.path());
        assert_eq!(found.len(), 2);
        let mut bytes = std::fs::read(&found[0]).unwrap();
        let at = (bytes.len() - 1) * case / 5;
        match case {
            0..=5 => bytes[at] ^= 1 << case,
            6 => bytes.truncate(bytes.len() - 1),
            _ => bytes.clear(),
        }
        std::fs::write(&found[0], bytes).unwrap();
        let second = Place::new(PLENTY, PLENTY).with_bucket(&url);
        let daemon = second.daemon();
        let mut engine = second.engine("e", &namespace());
        let loaded = engine.load(&[1, 2]);
        assert_eq!(loaded.iter().filter(|loaded| **loaded).count(), 1, "case {case}: {loaded:?}");
        drop(daemon);
        objects(bucket.path()).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

#[test]
fn a_damaged_block_on_disk_is_a_miss_and_can_be_stored_again() {
    let place = Place::new(0, PLENTY);
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1, 2]);
    assert!(daemon.blocks().inner().drain(Duration::from_secs(60)));
    place.env.set_fail_point("disk.read_frame", FailMode::Error(ErrorKind::Corrupt), 1);
    assert_eq!(engine.load(&[1]), [false]);
    place.env.set_fail_point("disk.read_frame", FailMode::Off, 1);
    assert_eq!(engine.has(&[1, 2], false), [false, true]);
    assert_eq!(engine.store(&[1]), [Stored::Accepted]);
    assert!(daemon.blocks().inner().drain(Duration::from_secs(60)));
    assert_eq!(engine.load(&[1, 2]), [true; 2]);
}

/// Another process may truncate the memory at any moment: an error of a row, and no SIGBUS.
#[test]
fn memory_that_is_truncated_is_an_error_of_its_rows() {
    let place = Place::new(PLENTY, 0);
    let _daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1, 2]);
    engine.region.1.set_len(STRIDE + BLOCK / 2).unwrap();
    assert_eq!(engine.store_rows(&[3, 4, 5], vec![0, 1, 9]), [Stored::Accepted, Stored::Refused, Stored::Refused]);
    engine.staging.1.set_len(STRIDE).unwrap();
    let id = engine.id();
    let reply = engine.client.call(&Request::Load { id, keys: keys(&[1, 2]), rows: vec![0, 1] }).unwrap();
    assert_eq!(reply, Reply::Load { id, loaded: vec![true, false] });
    assert_eq!(engine.staging.1.metadata().unwrap().len(), STRIDE, "it is not made longer");
    engine.region.1.set_len(0).unwrap();
    assert_eq!(engine.store_rows(&[6], vec![0]), [Stored::Refused]);
    assert_eq!(engine.has(&[1, 2, 3, 4, 6], false), [true, true, true, false, false]);
}

/// An engine that gives a store up hangs up, and then uses the rows for something else. What was copied before it hung up, and is not stored yet, may
/// be half of the one and half of the other.
#[test]
fn what_a_client_gave_up_is_not_stored() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    place.env.set_fail_point("kv_serve.copied", FailMode::Hang, 1);
    let request = Request::Store { id: 1, keys: keys(&[1, 2]), rows: vec![0, 1], after: None, compute_us: 0 };
    wire::write(engine.client.stream(), &request).unwrap();
    wait_until(|| place.env.fail_point_hits("kv_serve.copied") == 1);
    drop(engine);
    place.env.set_fail_point("kv_serve.copied", FailMode::Off, 1);
    wait_until(|| daemon.connections() == 0);
    let mut engine = place.engine("e", &namespace());
    assert_eq!(engine.has(&[1, 2], false), [false; 2]);
}

#[test]
fn too_many_jobs_are_refused_and_those_before_are_done() {
    let place = Place::new(0, PLENTY);
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1, 2]);
    assert!(daemon.blocks().inner().drain(Duration::from_secs(60)));
    assert_eq!(engine.has(&[2], true), [true]);
    place.env.set_fail_point("disk.read_frame", FailMode::Hang, 1);
    let most = session::MOST_JOBS as u64;
    for id in 1..=most + 1 {
        let keys = keys(&[if id > most { 2 } else { 1 }]);
        wire::write(engine.client.stream(), &Request::Load { id, keys, rows: vec![0] }).unwrap();
    }
    let error = engine.client.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    // Look-ups do not wait for loads.
    assert_eq!(engine.has(&[1], false), [true]);
    assert_eq!(engine.release(&[2]), 1, "what was refused has its pin");
    place.env.set_fail_point("disk.read_frame", FailMode::Off, 1);
    for _ in 0..most {
        assert!(matches!(engine.client.receive().unwrap(), Reply::Load { loaded, .. } if loaded == [true]));
    }
}

/// As the daemon ends, a client sees the end when nothing touches its memory any more, and not before.
#[test]
fn a_daemon_that_ends_lets_go_of_its_clients_memory_first() {
    let place = Place::new(0, PLENTY);
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1]);
    assert!(daemon.blocks().inner().drain(Duration::from_secs(60)));
    place.env.set_fail_point("disk.read_frame", FailMode::Hang, 1);
    wire::write(engine.client.stream(), &Request::Load { id: 9, keys: keys(&[1]), rows: vec![0] }).unwrap();
    wait_until(|| place.env.fail_point_hits("disk.read_frame") == 1);
    let stopping = Env::spawn("test-stop", move || drop(daemon)).unwrap();
    let stream = engine.client.stream().try_clone().unwrap();
    wait_until(|| peer::is_read_no_more(&stream));
    assert!(!peer::has_hung_up(&stream), "its job is under way");
    place.env.set_fail_point("disk.read_frame", FailMode::Off, 1);
    stopping.join().unwrap();
    assert!(peer::has_hung_up(&stream));
}

/// Those that were not kept yet, and those that were kept, and listed or not.
#[test]
fn who_names_several_namespaces_stops_no_store_of_theirs() {
    let place = Place::new(PLENTY, PLENTY);
    let _daemon = place.daemon();
    // Of seventeen digests two begin with one digit.
    let digest = |of: &Namespace| hex::encode(of.digest());
    let named = |number: u32| Namespace { weights: format!("{number:064x}"), ..namespace() };
    let first = digest(&named(0))[..1].to_owned();
    let other = (1..).map(named).find(|other| digest(other).starts_with(&first)).unwrap();
    let mut engine = place.engine("e", &named(0));
    drop(place.engine("o", &other));
    place.env.set_fail_point("kv_serve.kept", FailMode::Hang, 1);
    let request = Request::Store { id: 1, keys: keys(&[1, 2]), rows: vec![0, 1], after: None, compute_us: 0 };
    wire::write(engine.client.stream(), &request).unwrap();
    wait_until(|| place.env.fail_point_hits("kv_serve.kept") == 1);
    place.silent_engine("other").evict(&first, None).unwrap_err();
    place.env.set_fail_point("kv_serve.kept", FailMode::Off, 1);
    let reply = engine.client.receive().unwrap();
    assert_eq!(reply, Reply::Store { id: 1, stored: vec![Stored::Accepted; 2] });
    assert_eq!(engine.has(&[1, 2], false), [true; 2]);
}

#[test]
fn what_is_being_stored_while_its_namespace_is_evicted_is_not_stored() {
    for point in ["kv_serve.copied", "kv_serve.kept"] {
        let place = Place::new(PLENTY, PLENTY);
        let _daemon = place.daemon();
        let mut engine = place.engine("e", &namespace());
        place.env.set_fail_point(point, FailMode::Hang, 1);
        let request = Request::Store { id: 1, keys: keys(&[1, 2]), rows: vec![0, 1], after: None, compute_us: 0 };
        wire::write(engine.client.stream(), &request).unwrap();
        wait_until(|| place.env.fail_point_hits(point) == 1);
        place.silent_engine("other").evict(&hex::encode(namespace().digest()), None).unwrap();
        place.env.set_fail_point(point, FailMode::Off, 1);
        let reply = engine.client.receive().unwrap();
        assert_eq!(reply, Reply::Store { id: 1, stored: vec![Stored::Refused; 2] }, "{point}");
        assert_eq!(engine.has(&[1, 2], false), [false; 2], "{point}");
        assert_eq!(engine.store(&[1, 2]), [Stored::Accepted; 2], "{point}: what comes after is stored");
        assert_eq!(engine.load(&[1, 2]), [true; 2], "{point}");
    }
}
