//! A permission that is lost while the store runs. Tests may run as root, whom no mode of a file stops: the disk's calls fail
//! as they would.

use super::tests::{Folder, put};
use super::*;
use crate::entry::tests::{MODEL, entry_behind};
use crate::key::SegmentDigest;
use ragstone_env::FailMode;

const PLENTY: u64 = 1 << 30;
const SOON: Duration = Duration::from_secs(60);
const DISK: [&str; 5] = ["disk.read_row", "disk.read_frame", "disk.before_write", "disk.delete", "disk.flush"];

fn set_disk(env: &Env, mode: FailMode) {
    DISK.iter().for_each(|point| env.set_fail_point(point, mode, 1));
}

fn key(token: u32) -> KvKey {
    KvKey::derive(&MODEL, "", None, &[token])
}

#[test]
fn a_disk_that_may_not_be_read_or_written_any_more_costs_reuse_and_nothing_else() {
    let folder = Folder::new();
    let store = folder.open(0, PLENTY);
    (1..=3).for_each(|token| drop(put(&store, Tier::Disk, entry_behind(None, &[token]))));
    let reader = store.open_entry(&key(1), &[1]).unwrap();
    reader.layer(0).unwrap();
    set_disk(&folder.env, FailMode::Error(ErrorKind::Unavailable));

    let error = reader.layer(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    store.late_miss(&reader.id(), reader.tier(), error.kind());
    assert!(store.look_up(&key(1), &[1]).is_none(), "not found again, though it could not be deleted");
    assert!(store.look_up(&key(2), &[2]).is_none());
    assert!(store.keep(entry_behind(None, &[4]), store.epoch()).unwrap());
    assert!(store.drain(SOON), "nobody waits for what cannot be written");
    assert!(store.flush().is_err());
    assert!(store.invalidate(&[SegmentDigest::of(&MODEL, &[3])], &[]).is_err(), "to be repeated");
    assert!(store.look_up(&key(3), &[3]).is_none(), "and found by nobody meanwhile");
    let status = store.status();
    // The layer, the failed deletion behind it, the row of the second, the write.
    assert_eq!((status.late_misses, status.disk.failed), (1, 4), "{status:?}");

    // The permission comes back: what was not removed is as it was.
    set_disk(&folder.env, FailMode::Off);
    let again = store.look_up(&key(2), &[2]).unwrap();
    super::tests::assert_right(&store.open_found(&again));
    put(&store, Tier::Disk, entry_behind(None, &[4]));
    store.invalidate(&[SegmentDigest::of(&MODEL, &[3])], &[]).unwrap();
    drop((reader, again, store));
    let store = folder.open(0, PLENTY);
    assert_eq!([1, 2, 3, 4].map(|token| store.contains(&key(token)).is_some()), [false, true, false, true]);
}
