use tempfile::TempDir;

use super::*;
use crate::entry::tests::{LAYERS, entry_behind, entry_of_width};
use crate::env::FailMode;
use crate::frame;

/// Rewrites a stored frame behind the tier's back; `None` deletes it.
pub(crate) fn tamper_frame(tier: &DiskTier, key: &KvKey, layer: u32, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    let frames = rocks::frames(&tier.db).unwrap();
    tamper(tier, frames, &frame_key(key, layer), change);
}

/// Rewrites a stored row behind the tier's back; `None` deletes it.
pub(crate) fn tamper_row(tier: &DiskTier, key: &KvKey, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    tamper(tier, rocks::entries(&tier.db).unwrap(), key.as_bytes(), change);
}

fn tamper(tier: &DiskTier, family: &rocksdb::ColumnFamily, key: &[u8], change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    match change(tier.db.get_cf(family, key).unwrap().unwrap()) {
        Some(value) => tier.db.put_cf(family, key, value).unwrap(),
        None => tier.db.delete_cf(family, key).unwrap(),
    }
}

/// Moves everything from memory and log to tables and blob files.
pub(crate) fn flush_to_files(tier: &DiskTier) {
    let families = [rocks::frames(&tier.db).unwrap(), rocks::entries(&tier.db).unwrap()];
    tier.db.flush_cfs_opt(&families, &rocksdb::FlushOptions::default()).unwrap();
}

/// Frames stored, whether or not a row refers to them.
fn stored_frames(tier: &DiskTier) -> usize {
    tier.db.iterator_cf(rocks::frames(&tier.db).unwrap(), IteratorMode::Start).count()
}

fn open_with(dir: &TempDir, capacity_bytes: u64, env: &Env, last_use: &HashMap<KvKey, u64>) -> DiskTier {
    DiskTier::open(&dir.path().join("kv"), capacity_bytes, env.clone(), last_use).unwrap()
}

fn open(dir: &TempDir, capacity_bytes: u64) -> DiskTier {
    open_with(dir, capacity_bytes, &Env::seeded(0, 0), &HashMap::new())
}

fn assert_whole(tier: &DiskTier, entry: &Entry) {
    let key = &entry.header().key;
    assert_eq!(tier.header(key).unwrap(), **entry.header());
    for layer in 0..LAYERS {
        let bytes = tier.frame(key, layer).unwrap();
        assert_eq!(bytes, entry.frames()[layer as usize]);
        frame::decode(&bytes, key, layer, &entry.header().frame_shape()).unwrap();
    }
}

fn key(entry: &Entry) -> KvKey {
    entry.header().key
}

#[test]
fn entries_survive_a_restart() {
    let dir = TempDir::new().unwrap();
    let small = entry_behind(None, &[1, 2]);
    let large = entry_of_width(Some(key(&small)), &[3, 4], 2048); // frames of 32 KiB go to blob files
    {
        let tier = open(&dir, 1 << 30);
        let bytes = small.header().total_bytes();
        assert_eq!(tier.put(&small).unwrap(), DiskOutcome::Written { bytes });
        assert_eq!(tier.put(&small).unwrap(), DiskOutcome::AlreadyThere);
        tier.put(&large).unwrap();
        assert_whole(&tier, &small);
        flush_to_files(&tier);
        assert_whole(&tier, &large);
        assert!(tier.usage().file_bytes > large.header().total_bytes());
        let blobs = std::fs::read_dir(dir.path().join("kv")).unwrap();
        assert!(blobs.flatten().any(|file| file.path().extension().is_some_and(|ending| ending == "blob")));
    }
    let tier = open(&dir, 1 << 30);
    assert_eq!(tier.usage().entries, 2);
    assert_eq!(tier.usage().bytes, small.header().total_bytes() + large.header().total_bytes());
    assert_whole(&tier, &small);
    assert_whole(&tier, &large);
}

#[test]
fn the_bound_holds_and_removal_frees_frames_and_rows() {
    let dir = TempDir::new().unwrap();
    let entries: Vec<Entry> = (0..10).map(|id| entry_behind(None, &[id])).collect();
    let bytes = entries[0].header().total_bytes();
    let tier = open(&dir, bytes * 4);
    for (count, entry) in (1u64..).zip(&entries) {
        tier.put(entry).unwrap();
        assert_eq!(tier.usage().bytes, bytes * count.min(4));
    }
    assert_eq!((tier.usage().entries, tier.usage().evicted), (4, 6));
    assert_eq!(stored_frames(&tier), 4 * LAYERS as usize, "evicted frames are deleted with their rows");
    tier.remove(&key(&entries[9])).unwrap();
    tier.remove(&key(&entries[9])).unwrap();
    tier.remove(&key(&entries[0])).unwrap();
    assert_eq!((tier.usage().entries, tier.usage().bytes), (3, bytes * 3));
    assert_eq!(stored_frames(&tier), 3 * LAYERS as usize);
    assert_eq!(tier.put(&entry_of_width(None, &[1], 4000)).unwrap(), DiskOutcome::Refused);
    assert_eq!(tier.usage().refused, 1);
    drop(tier);
    let tier = open(&dir, bytes * 2);
    assert_eq!((tier.usage().entries, tier.usage().bytes), (2, bytes * 2), "a lowered bound holds from the start");
    assert_eq!(stored_frames(&tier), 2 * LAYERS as usize);
}

#[test]
fn a_restart_keeps_the_order_of_use() {
    let dir = TempDir::new().unwrap();
    let entries: Vec<Entry> = (0..3).map(|id| entry_behind(None, &[id])).collect();
    let bytes = entries[0].header().total_bytes();
    let env = Env::seeded(0, 0);
    {
        let tier = open(&dir, bytes * 3);
        for entry in &entries {
            tier.put(entry).unwrap();
        }
    }
    let order = [(key(&entries[0]), 9_000), (key(&entries[1]), 7_000), (key(&entries[2]), 8_000)];
    let tier = open_with(&dir, bytes * 3, &env, &HashMap::from(order));
    assert_eq!(tier.keys(), [key(&entries[1]), key(&entries[2]), key(&entries[0])]);
    tier.put(&entry_behind(None, &[77])).unwrap();
    assert!(!tier.contains(&key(&entries[1])));
}

#[test]
fn a_failed_write_changes_nothing_and_the_next_one_works() {
    let dir = TempDir::new().unwrap();
    let env = Env::seeded(0, 0);
    let (old, new) = (entry_behind(None, &[1]), entry_behind(None, &[2]));
    let tier = open_with(&dir, old.header().total_bytes(), &env, &HashMap::new());
    tier.put(&old).unwrap();
    let before = tier.usage();
    env.arm("disk.before_write=error:full").unwrap();
    assert_eq!(tier.put(&new).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(tier.usage(), before, "no reservation leaks, and nothing was evicted");
    assert_whole(&tier, &old);
    env.set_fail_point("disk.before_write", FailMode::Panic, 1);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tier.put(&new))).is_err());
    assert_eq!(tier.usage(), before, "not even by a panic");
    env.set_fail_point("disk.before_write", FailMode::Off, 1);
    tier.put(&new).unwrap();
    assert_whole(&tier, &new);
    assert!(!tier.contains(&key(&old)));
}

#[test]
fn a_failed_deletion_hides_the_entry_and_room_comes_back_later() {
    let dir = TempDir::new().unwrap();
    let env = Env::seeded(0, 0);
    let (bad, new) = (entry_behind(None, &[1]), entry_behind(None, &[2]));
    let tier = open_with(&dir, bad.header().total_bytes(), &env, &HashMap::new());
    tier.put(&bad).unwrap();
    env.arm("disk.delete=error").unwrap();
    assert!(tier.remove(&key(&bad)).is_err());
    assert!(tier.find(&key(&bad)).is_none());
    assert_eq!(tier.put(&bad).unwrap_err().kind(), ErrorKind::Unavailable);
    tier.put(&new).unwrap();
    assert_eq!(stored_frames(&tier), LAYERS as usize, "deleted together with the write that took its room");
}

#[test]
fn damaged_rows_are_removed_at_open_with_their_frames() {
    let dir = TempDir::new().unwrap();
    let entries: Vec<Entry> = (0..4).map(|id| entry_behind(None, &[id])).collect();
    {
        let tier = open(&dir, 1 << 30);
        for entry in &entries {
            tier.put(entry).unwrap();
        }
        tamper_row(&tier, &key(&entries[0]), |mut row| {
            row[50] ^= 1;
            Some(row)
        });
        tamper_row(&tier, &key(&entries[1]), |row| Some(row[..row.len() / 2].to_vec()));
        tamper_row(&tier, &key(&entries[2]), |_| Some(entries[3].header().encode().to_vec()));
        tier.db.put_cf(rocks::entries(&tier.db).unwrap(), b"odd key", b"odd").unwrap();
    }
    let tier = open(&dir, 1 << 30);
    assert_eq!(tier.keys(), [key(&entries[3])]);
    assert_whole(&tier, &entries[3]);
    assert_eq!(stored_frames(&tier), LAYERS as usize);
    assert_eq!(tier.db.iterator_cf(rocks::entries(&tier.db).unwrap(), IteratorMode::Start).count(), 1);
}

#[test]
fn a_held_folder_says_so() {
    let dir = TempDir::new().unwrap();
    let _held = open(&dir, 0);
    let error = DiskTier::open(&dir.path().join("kv"), 0, Env::seeded(0, 0), &HashMap::new()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("in use by another process"), "{error}");
}

/// Damage to the database's own files: it opens, empty if need be, and what it still finds is whole.
#[test]
fn a_damaged_database_is_emptied() {
    for ending in ["CURRENT", "MANIFEST", ".sst", ".blob", ".log", "OPTIONS"] {
        for damage in ["flip", "cut", "delete"] {
            let dir = TempDir::new().unwrap();
            let entries: Vec<Entry> = (0..3).map(|id| entry_of_width(None, &[id], 2048)).collect();
            {
                let tier = open(&dir, 1 << 30);
                tier.put(&entries[0]).unwrap();
                tier.put(&entries[1]).unwrap();
                flush_to_files(&tier);
                tier.put(&entries[2]).unwrap();
            }
            for file in std::fs::read_dir(dir.path().join("kv")).unwrap().flatten() {
                if file.file_name().to_string_lossy().contains(ending) {
                    damage_file(&file.path(), damage);
                }
            }
            let case = format!("{damage} {ending}");
            let tier = DiskTier::open(&dir.path().join("kv"), 1 << 30, Env::seeded(0, 0), &HashMap::new());
            let tier = tier.unwrap_or_else(|error| panic!("{case}: {error}"));
            for entry in &entries {
                if tier.contains(&key(entry)) {
                    assert!(matches!(tier.header(&key(entry)), Ok(header) if header == **entry.header()), "{case}");
                    for layer in 0..LAYERS {
                        let shape = entry.header().frame_shape();
                        let read = tier.frame(&key(entry), layer);
                        let verified = read.and_then(|bytes| frame::decode(&bytes, &key(entry), layer, &shape));
                        assert!(
                            verified.is_err()
                                || tier.frame(&key(entry), layer).unwrap() == entry.frames()[layer as usize]
                        );
                    }
                    tier.remove(&key(entry)).unwrap();
                }
                tier.put(entry).unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_whole(&tier, entry);
            }
        }
    }
}

fn damage_file(path: &Path, damage: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    match damage {
        "delete" => return std::fs::remove_file(path).unwrap(),
        "cut" => bytes.truncate(bytes.len() / 2),
        _ => {
            let middle = bytes.len() / 2;
            bytes.iter_mut().skip(middle).step_by(7).for_each(|byte| *byte ^= 0x40);
        }
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("kv");
    std::fs::write(&file, "a file where the folder should be").unwrap();
    let error = DiskTier::open(&file, 0, Env::seeded(0, 0), &HashMap::new()).err().unwrap();
    assert!(error.to_string().contains("create the KV folder"), "{error}");
}
