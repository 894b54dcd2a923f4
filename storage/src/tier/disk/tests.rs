use std::path::Path;

use rocksdb::IteratorMode;
use tempfile::TempDir;

use super::*;
use crate::entry::tests::{LAYERS, entry_behind, entry_of_width};
use crate::frame;
use crate::policy::PolicyKind;
use crate::tier::conformance::conforms;
use crate::tree::TierOptions;
use ragstone_env::FailMode;

fn lru(capacity_bytes: u64) -> TierOptions {
    TierOptions { capacity_bytes, policy: PolicyKind::Lru }
}

/// Rewrites a stored frame behind the tier's back; `None` deletes it.
pub(crate) fn tamper_frame(tier: &DiskTier, key: &KvKey, layer: u32, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    let frames = rocks::frames(&tier.0.db).unwrap();
    tamper(tier, frames, &frame_key(key, layer), change);
}

/// Rewrites a stored row behind the tier's back; `None` deletes it.
pub(crate) fn tamper_row(tier: &DiskTier, key: &KvKey, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    tamper(tier, rocks::entries(&tier.0.db).unwrap(), key.as_bytes(), change);
}

fn tamper(tier: &DiskTier, family: &rocksdb::ColumnFamily, key: &[u8], change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    match change(tier.0.db.get_cf(family, key).unwrap().unwrap()) {
        Some(value) => tier.0.db.put_cf(family, key, value).unwrap(),
        None => tier.0.db.delete_cf(family, key).unwrap(),
    }
}

/// Moves everything from memory and log to tables and blob files.
pub(crate) fn flush_to_files(tier: &DiskTier) {
    let db = &tier.0.db;
    let families = [rocks::frames(db).unwrap(), rocks::entries(db).unwrap(), rocks::index(db).unwrap()];
    tier.0.db.flush_cfs_opt(&families, &rocksdb::FlushOptions::default()).unwrap();
}

/// Frames stored, whether or not a row refers to them.
fn stored_frames(tier: &DiskTier) -> usize {
    tier.0.db.iterator_cf(rocks::frames(&tier.0.db).unwrap(), IteratorMode::Start).count()
}

fn open_with(dir: &TempDir, capacity_bytes: u64, env: &Env, last_uses: &HashMap<KvKey, LastUse>) -> DiskTier {
    let remembered = Remembered { last_uses: last_uses.clone(), pins: Vec::new() };
    DiskTier::open(&dir.path().join("kv"), lru(capacity_bytes), env.clone(), &remembered).unwrap()
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
        assert_eq!(tier.write(&small).unwrap(), Put::Stored { bytes });
        assert_eq!(tier.write(&small).unwrap(), Put::AlreadyThere);
        tier.write(&large).unwrap();
        assert_whole(&tier, &small);
        flush_to_files(&tier);
        assert_whole(&tier, &large);
        assert!(tier.file_bytes() > large.header().total_bytes());
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
        tier.write(entry).unwrap();
        assert_eq!(tier.usage().bytes, bytes * count.min(4));
    }
    assert_eq!((tier.usage().entries, tier.usage().evicted), (4, 6));
    assert_eq!(stored_frames(&tier), 4 * LAYERS as usize, "evicted frames are deleted with their rows");
    tier.delete_entry(&key(&entries[9])).unwrap();
    tier.delete_entry(&key(&entries[9])).unwrap();
    tier.delete_entry(&key(&entries[0])).unwrap();
    assert_eq!((tier.usage().entries, tier.usage().bytes), (3, bytes * 3));
    assert_eq!(stored_frames(&tier), 3 * LAYERS as usize);
    assert_eq!(tier.write(&entry_of_width(None, &[1], 4000)).unwrap(), Put::Refused);
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
            tier.write(entry).unwrap();
        }
    }
    let used = |at: usize, unix_ms| (key(&entries[at]), LastUse { unix_ms, uses: 1 });
    let order = [used(0, 9_000), used(1, 7_000), used(2, 8_000)];
    let tier = open_with(&dir, bytes * 3, &env, &HashMap::from(order));
    for (newcomer, leaves) in [(77, 1), (78, 2), (79, 0)] {
        assert!(tier.contains(&key(&entries[leaves])));
        tier.write(&entry_behind(None, &[newcomer])).unwrap();
        assert!(!tier.contains(&key(&entries[leaves])));
    }
}

#[test]
fn a_failed_write_changes_nothing_and_the_next_one_works() {
    let dir = TempDir::new().unwrap();
    let env = Env::seeded(0, 0);
    let (old, new) = (entry_behind(None, &[1]), entry_behind(None, &[2]));
    let tier = open_with(&dir, old.header().total_bytes(), &env, &HashMap::new());
    tier.write(&old).unwrap();
    let before = tier.usage();
    env.arm("disk.before_write=error:full").unwrap();
    assert_eq!(tier.write(&new).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(tier.usage(), before, "no reservation leaks, and nothing was evicted");
    assert_whole(&tier, &old);
    env.set_fail_point("disk.before_write", FailMode::Panic, 1);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tier.write(&new))).is_err());
    assert_eq!(tier.usage(), before, "not even by a panic");
    env.set_fail_point("disk.before_write", FailMode::Off, 1);
    tier.write(&new).unwrap();
    assert_whole(&tier, &new);
    assert!(!tier.contains(&key(&old)));
}

#[test]
fn what_a_failed_write_left_is_not_found_and_can_be_removed() {
    for removed in [false, true] {
        let dir = TempDir::new().unwrap();
        let env = Env::seeded(0, 0);
        let (old, new) = (entry_behind(None, &[1]), entry_behind(None, &[2]));
        let bytes = old.header().total_bytes();
        let tier = open_with(&dir, bytes, &env, &HashMap::new());
        tier.write(&old).unwrap();
        env.set_fail_point("disk.after_write", FailMode::Error(ErrorKind::Unavailable), 1);
        assert_eq!(tier.write(&new).unwrap_err().kind(), ErrorKind::Unavailable);
        env.set_fail_point("disk.after_write", FailMode::Off, 1);
        assert!(!tier.contains(&key(&old)), "the batch deleted it");
        assert!(!tier.contains(&key(&new)));
        if removed {
            assert!(tier.delete_entry(&key(&new)).unwrap());
            assert_eq!(stored_frames(&tier), 0);
            drop(tier);
            let tier = open(&dir, bytes);
            assert!(!tier.contains(&key(&old)) && !tier.contains(&key(&new)), "nor after a restart");
        } else {
            let next = entry_behind(None, &[3]);
            tier.write(&next).unwrap();
            assert_whole(&tier, &next);
            assert_eq!((stored_frames(&tier), tier.usage().bytes), (LAYERS as usize, bytes));
        }
    }
}

#[test]
fn a_failed_deletion_hides_the_entry_and_room_comes_back_later() {
    let dir = TempDir::new().unwrap();
    let env = Env::seeded(0, 0);
    let (bad, new) = (entry_behind(None, &[1]), entry_behind(None, &[2]));
    let tier = open_with(&dir, bad.header().total_bytes(), &env, &HashMap::new());
    tier.write(&bad).unwrap();
    env.arm("disk.delete=error").unwrap();
    assert!(tier.delete_entry(&key(&bad)).is_err());
    assert!(!tier.contains(&key(&bad)));
    assert_eq!(tier.write(&bad).unwrap_err().kind(), ErrorKind::Unavailable);
    tier.write(&new).unwrap();
    assert_eq!(stored_frames(&tier), LAYERS as usize, "deleted together with the write that took its room");
}

#[test]
fn a_flush_makes_up_for_a_failed_deletion_or_fails() {
    let dir = TempDir::new().unwrap();
    let env = Env::seeded(0, 0);
    let gone = entry_behind(None, &[1]);
    let tier = open_with(&dir, 1 << 20, &env, &HashMap::new());
    tier.write(&gone).unwrap();
    env.set_fail_point("disk.delete", FailMode::Error(ErrorKind::Unavailable), 1);
    assert!(tier.delete_entry(&key(&gone)).is_err());
    assert!(tier.flush().is_err(), "a restart would bring it back");
    assert!(!tier.contains(&key(&gone)));
    env.set_fail_point("disk.delete", FailMode::Off, 1);
    tier.flush().unwrap();
    assert_eq!((stored_frames(&tier), rows(&tier)), (0, 0));
}

fn rows(tier: &DiskTier) -> usize {
    tier.0.db.iterator_cf(rocks::entries(&tier.0.db).unwrap(), IteratorMode::Start).count()
}

fn tamper_index(tier: &DiskTier, entry: &Entry, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    tamper(tier, rocks::index(&tier.0.db).unwrap(), key(entry).as_bytes(), change);
}

fn flip(mut row: Vec<u8>) -> Option<Vec<u8>> {
    row[50] ^= 1;
    Some(row)
}

/// A damaged index row is made again from the entry row; where that is damaged too, what is left goes into quarantine.
#[test]
fn damaged_rows_are_repaired_or_put_aside_at_open() {
    let dir = TempDir::new().unwrap();
    let entries: Vec<Entry> = (0..5).map(|id| entry_behind(None, &[id])).collect();
    {
        let tier = open(&dir, 1 << 30);
        for entry in &entries {
            tier.write(entry).unwrap();
        }
        tamper_index(&tier, &entries[0], flip);
        tamper_index(&tier, &entries[1], |row| Some(row[..20].to_vec()));
        tamper_index(&tier, &entries[2], flip);
        tamper_row(&tier, &key(&entries[2]), flip);
        tamper_index(&tier, &entries[3], flip);
        tamper_row(&tier, &key(&entries[3]), |_| None);
        tier.0.db.put_cf(rocks::index(&tier.0.db).unwrap(), b"odd key", b"odd").unwrap();
    }
    let tier = open(&dir, 1 << 30);
    for found in [0, 1, 4] {
        assert_whole(&tier, &entries[found]);
    }
    assert!(!tier.contains(&key(&entries[2])) && !tier.contains(&key(&entries[3])));
    let Recovery { entries: found, bytes, repaired, damaged, evicted, .. } = *tier.recovery();
    assert_eq!((found, repaired, damaged, evicted), (3, 2, 3, 0));
    assert_eq!(bytes, 3 * entries[0].header().total_bytes());
    assert_eq!((stored_frames(&tier), rows(&tier)), (3 * LAYERS as usize, 3));
    let aside = dir.path().join("kv-quarantine").join(key(&entries[2]).to_string());
    let mut row = entries[2].header().encode().to_vec();
    row[50] ^= 1;
    assert_eq!(std::fs::read(aside.join("row")).unwrap(), row);
    assert_eq!(std::fs::read(aside.join("frame-0001")).unwrap(), entries[2].frames()[1]);
    drop(tier);
    let again = open(&dir, 1 << 30);
    assert_eq!((again.recovery().entries, again.recovery().repaired, again.recovery().damaged), (3, 0, 0));
}

/// A store as it was before there was an index.
#[test]
fn a_store_without_an_index_gets_one() {
    let dir = TempDir::new().unwrap();
    let entries: Vec<Entry> = (0..3).map(|id| entry_behind(None, &[id])).collect();
    {
        let tier = open(&dir, 1 << 30);
        for entry in &entries {
            tier.write(entry).unwrap();
            tamper_index(&tier, entry, |_| None);
        }
        tamper_row(&tier, &key(&entries[2]), flip);
    }
    let kv = dir.path().join("kv");
    assert_eq!((add_index(&kv).unwrap(), add_index(&kv).unwrap()), (2, 2), "twice is as good as once");
    let tier = open(&dir, 1 << 30);
    assert_eq!((tier.recovery().entries, tier.recovery().damaged), (2, 1));
    entries[..2].iter().for_each(|entry| assert_whole(&tier, entry));
}

#[test]
fn conforms_under_every_policy() {
    for policy in PolicyKind::ALL {
        let dir = TempDir::new().unwrap();
        let made = std::cell::Cell::new(0);
        conforms(&|capacity_bytes| {
            made.set(made.get() + 1);
            let folder = dir.path().join(made.get().to_string());
            let options = TierOptions { capacity_bytes, policy };
            Box::new(DiskTier::open(&folder, options, Env::seeded(0, 0), &Remembered::default()).unwrap())
        });
    }
}

#[test]
fn compaction_gives_back_what_was_deleted() {
    let dir = TempDir::new().unwrap();
    let tier = open(&dir, 1 << 30);
    let entries: Vec<Entry> = (0..8).map(|id| entry_of_width(None, &[id], 20_000)).collect(); // about 480 KB each
    for entry in &entries {
        tier.write(entry).unwrap();
    }
    flush_to_files(&tier);
    entries[..7].iter().for_each(|entry| assert!(tier.delete_entry(&key(entry)).unwrap()));
    assert!(tier.compact().unwrap() > 2 << 20);
    assert!(tier.file_bytes() < 1 << 20, "{} bytes", tier.file_bytes());
    assert_whole(&tier, &entries[7]);
}

#[test]
fn a_held_folder_says_so() {
    let dir = TempDir::new().unwrap();
    let _held = open(&dir, 0);
    let error =
        DiskTier::open(&dir.path().join("kv"), lru(0), Env::seeded(0, 0), &Remembered::default()).err().unwrap();
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
                tier.write(&entries[0]).unwrap();
                tier.write(&entries[1]).unwrap();
                flush_to_files(&tier);
                tier.write(&entries[2]).unwrap();
            }
            for file in std::fs::read_dir(dir.path().join("kv")).unwrap().flatten() {
                if file.file_name().to_string_lossy().contains(ending) {
                    damage_file(&file.path(), damage);
                }
            }
            let case = format!("{damage} {ending}");
            let tier = DiskTier::open(&dir.path().join("kv"), lru(1 << 30), Env::seeded(0, 0), &Remembered::default());
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
                    tier.delete_entry(&key(entry)).unwrap();
                }
                tier.write(entry).unwrap_or_else(|error| panic!("{case}: {error}"));
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

/// The manifest's beginning reads as a manifest: RocksDB opens, and deletes the files that the rest named.
#[test]
fn a_store_that_does_not_know_its_files_any_more_says_so() {
    let dir = TempDir::new().unwrap();
    let entries: Vec<Entry> = (0..3).map(|id| entry_of_width(None, &[id], 2048)).collect();
    {
        let tier = open(&dir, 1 << 30);
        for entry in &entries {
            tier.write(entry).unwrap();
        }
        flush_to_files(&tier);
    }
    assert_eq!(open(&dir, 1 << 30).damage(), None);
    let kv = dir.path().join("kv");
    let manifest = || {
        let files = std::fs::read_dir(&kv).unwrap().flatten().map(|entry| entry.path());
        files.filter(|path| path.to_string_lossy().contains("MANIFEST")).max().unwrap()
    };
    let whole = std::fs::read(manifest()).unwrap();
    let mut told = 0;
    for end in (0..whole.len()).step_by(whole.len() / 8) {
        let copy = TempDir::new().unwrap();
        let folder = copy.path().join("kv");
        std::fs::create_dir(&folder).unwrap();
        for file in std::fs::read_dir(&kv).unwrap().flatten().filter(|file| file.path().is_file()) {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        let cut = folder.join(manifest().file_name().unwrap());
        std::fs::write(cut, &whole[..end]).unwrap();
        let tier = open(&copy, 1 << 30);
        match tier.recovery().entries {
            3 => assert_eq!(tier.damage(), None, "cut at {end}"),
            found => {
                assert!(
                    found == 0 && tier.damage().is_some_and(|damage| damage.found.contains("lost")),
                    "cut at {end}"
                );
                told += 1;
            }
        }
        tier.write(&entries[0]).unwrap();
    }
    assert!(told > 0);
}

#[test]
fn a_damaged_store_is_moved_aside_and_one_is_kept() {
    let dir = TempDir::new().unwrap();
    for time in [5, 6] {
        drop(open(&dir, 1 << 30));
        std::fs::write(dir.path().join("kv/CURRENT"), "no manifest").unwrap();
        let opened = DiskTier::open(&dir.path().join("kv"), lru(1 << 30), Env::seeded(0, time), &Remembered::default());
        let tier = opened.unwrap();
        let damage = tier.damage().unwrap();
        assert!(damage.advice.contains(&format!("kv.damaged-{time}")), "{damage:?}");
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["kv".to_owned(), format!("kv.damaged-{time}")]);
    }
}

#[test]
fn without_a_disk_it_keeps_nothing_and_works() {
    let dir = TempDir::new().unwrap();
    let why = Error::new(ErrorKind::Full, "the disk is full");
    let tier = DiskTier::without_disk(&dir.path().join("kv"), PolicyKind::Lru, Env::seeded(0, 0), &why).unwrap();
    assert!(!tier.is_on_disk() && tier.damage().unwrap().found.contains("the disk is full"));
    let entry = entry_behind(None, &[1]);
    assert_eq!(tier.write(&entry).unwrap(), Put::Refused);
    tier.flush().unwrap();
    tier.compact().unwrap();
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn errors_say_what_to_do() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("kv");
    std::fs::write(&file, "a file where the folder should be").unwrap();
    let error = DiskTier::open(&file, lru(0), Env::seeded(0, 0), &Remembered::default()).err().unwrap();
    assert!(error.to_string().contains("create the KV folder"), "{error}");
}

/// What was deleted is in no file once the tier was compacted, and a tier without deletions is not.
#[test]
fn deleted_entries_leave_the_files() {
    let dir = TempDir::new().unwrap();
    let tier = open(&dir, 1 << 20);
    let (kept, gone) =
        (entry_behind(None, &[0x5152_5354, 0x6162_6364]), entry_behind(None, &[0x7172_7374, 0x4142_4344]));
    let pattern =
        |entry: &Entry| entry.header().tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    let is_in_files = |entry: &Entry| {
        let pattern = pattern(entry);
        std::fs::read_dir(dir.path().join("kv")).unwrap().any(|file| {
            let path = file.unwrap().path();
            path.is_file() && std::fs::read(path).unwrap().windows(pattern.len()).any(|window| window == pattern)
        })
    };
    tier.write(&kept).unwrap();
    tier.write(&gone).unwrap();
    assert!(!tier.has_deleted().unwrap());
    tier.compact().unwrap();
    assert!(is_in_files(&kept) && is_in_files(&gone));
    tier.delete_entry(&gone.header().key).unwrap();
    tier.flush().unwrap();
    assert!(tier.has_deleted().unwrap() && is_in_files(&gone));
    tier.compact().unwrap();
    assert!(is_in_files(&kept) && !is_in_files(&gone));
    assert!(!tier.has_deleted().unwrap(), "nothing to do again");
}
