use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::cost::{CostProfile, Costs};
use crate::entry::tests::{LAYERS, MODEL, entry_behind, entry_of_width, expected_layer};
use crate::entry::{EntryBuilder, NewEntry};
use crate::policy::PolicyKind;
use crate::tier::Use;
use crate::tier::disk::tests::{flush_to_files, tamper_frame, tamper_row};
use ragstone_env::{FailMode, Stopwatch};

/// A data folder of the crate's tests, with a clock that stands still.
pub(crate) struct Folder {
    dir: TempDir,
    pub env: Env,
}

impl Folder {
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), env: Env::seeded(1, 1_000_000) }
    }

    pub fn open(&self, host_bytes: u64, disk_bytes: u64) -> KvStore {
        open_at(self.dir.path(), self.env.clone(), host_bytes, disk_bytes).unwrap()
    }
}

pub(super) fn open_at(data: &Path, env: Env, host_bytes: u64, disk_bytes: u64) -> Result<KvStore> {
    let catalog = Arc::new(Catalog::open(&data.join("catalog"), &env)?);
    KvStore::open(&data.join("kv"), options(host_bytes, disk_bytes), MODEL, env, catalog)
}

/// Two tiers that evict what was used longest ago.
pub(super) fn options(host_bytes: u64, disk_bytes: u64) -> StoreOptions {
    let tier = |capacity_bytes| TierOptions { capacity_bytes, policy: PolicyKind::Lru };
    StoreOptions {
        host: tier(host_bytes),
        disk: tier(disk_bytes),
        object: None,
        shape: None,
        admission: AdmissionRule::Always,
        costs: Costs::new(CostProfile::assumed().unwrap()),
    }
}

/// Puts an entry into one tier, which must take or have it.
pub(crate) fn put(store: &KvStore, tier: Tier, entry: Entry) -> Arc<Entry> {
    let entry = Arc::new(entry);
    let put = store.write(tier, &entry).unwrap();
    assert!(matches!(put, Some(Put::Stored { .. } | Put::AlreadyThere)), "{put:?}");
    entry
}

/// A request that found one entry.
fn use_once(store: &KvStore, key: KvKey) {
    store.0.uses.record(&key, store.env());
    store.0.tiers.record(&[Use { path: vec![key], cached: 1, cost_per_token: 0.0 }]);
}

fn late_miss(store: &KvStore, tier: Tier, id: u32) {
    store.late_miss(&store.id(&key_of(id), &tokens_of(id)), tier, ErrorKind::Corrupt);
}

const PLENTY: u64 = 1 << 30;

fn tokens_of(id: u32) -> [u32; 2] {
    [id, id + 1]
}

fn key_of(id: u32) -> KvKey {
    KvKey::derive(&MODEL, "", None, &tokens_of(id))
}

/// Puts entry `id` on disk and not into host memory.
fn on_disk(store: &KvStore, id: u32) -> KvKey {
    put(store, Tier::Disk, entry_behind(None, &tokens_of(id)));
    assert_eq!(store.contains(&key_of(id)), Some(Tier::Disk));
    key_of(id)
}

fn reader(store: &KvStore, id: u32) -> EntryReader {
    store.open_entry(&key_of(id), &tokens_of(id)).unwrap()
}

/// Reads every layer and compares it with what was stored.
pub(super) fn assert_right(reader: &EntryReader) {
    for layer in 0..reader.header().layers {
        let frame = reader.layer(layer).unwrap();
        let (k, v) = expected_layer(&reader.header().key, layer, frame.k.len());
        assert_eq!((&frame.k[..], &frame.v[..]), (&k[..], &v[..]));
        assert_eq!(frame.tier, reader.tier());
    }
}

/// What does as well from the disk moves into host memory only where nobody leaves for it.
#[test]
fn an_entry_that_spares_others_is_promoted_into_free_room_only() {
    let folder = Folder::new();
    let bytes = entry_behind(None, &tokens_of(1)).header().total_bytes();
    for id in [1, 2] {
        on_disk(&folder.open(PLENTY, PLENTY), id);
    }
    for (host_bytes, sparing, there) in
        [(bytes, true, [true, false]), (bytes, false, [false, true]), (PLENTY, true, [true; 2])]
    {
        let store = folder.open(host_bytes, PLENTY);
        assert_right(&reader(&store, 1));
        assert_eq!(store.contains(&key_of(1)), Some(Tier::Host), "there is room");
        let found = store.look_up(&key_of(2), &tokens_of(2)).unwrap();
        assert_right(&if sparing { store.open_sparing(&found) } else { store.open_found(&found) });
        drop(found);
        assert_eq!([1, 2].map(|id| store.contains(&key_of(id)) == Some(Tier::Host)), there, "{host_bytes} {sparing}");
    }
}

/// Entries that name no parent stand behind each other as what uses them says.
#[test]
fn a_path_that_was_recorded_is_evicted_from_its_end() {
    let folder = Folder::new();
    let bytes = entry_behind(None, &tokens_of(1)).header().total_bytes();
    let store = folder.open(3 * bytes, 0);
    store.record_path([3, 1, 2].map(key_of).to_vec(), 0, 1.0);
    for id in [1, 2, 3] {
        assert!(store.keep(entry_behind(None, &tokens_of(id)), store.epoch()).unwrap());
    }
    store.keep(entry_behind(None, &tokens_of(7)), store.epoch()).unwrap();
    assert_eq!([1, 2, 3].map(|id| store.contains(&key_of(id)).is_some()), [true, false, true]);
}

/// Read for a prompt that may come to nothing, also beside one that comes to something.
#[test]
fn an_entry_that_is_read_in_place_stays_there() {
    let folder = Folder::new();
    on_disk(&folder.open(PLENTY, PLENTY), 1);
    let store = folder.open(PLENTY, PLENTY);
    let found = store.look_up(&key_of(1), &tokens_of(1)).unwrap();
    let in_place = store.open_in_place(&found);
    assert!(!in_place.is_promoted());
    assert_right(&in_place);
    assert_eq!((store.contains(&key_of(1)), store.status().promoted), (Some(Tier::Disk), 0));
    assert_right(&store.open_found(&found));
    assert_right(&in_place);
    assert_eq!((store.contains(&key_of(1)), store.status().promoted), (Some(Tier::Host), 1));
}

#[test]
fn a_disk_entry_is_promoted_once_every_layer_was_verified() {
    let folder = Folder::new();
    on_disk(&folder.open(PLENTY, PLENTY), 1);
    let store = folder.open(PLENTY, PLENTY);
    let reader = reader(&store, 1);
    assert_eq!(reader.tier(), Tier::Disk);
    for layer in [2, 0, 2, 0] {
        reader.layer(layer).unwrap();
        assert_eq!(store.contains(&key_of(1)), Some(Tier::Disk), "a layer is missing yet");
    }
    reader.layer(1).unwrap();
    assert_eq!((store.contains(&key_of(1)), store.status().promoted), (Some(Tier::Host), 1));
    assert_right(&reader);
    assert_eq!(store.status().promoted, 1, "once");
    let again = store.open_entry(&key_of(1), &tokens_of(1)).unwrap();
    assert_eq!(again.tier(), Tier::Host);
    assert_right(&again);
    drop((reader, again));
    drop(store);
    assert_right(&self::reader(&folder.open(0, PLENTY), 1));
}

#[test]
fn host_layers_are_not_copied() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, 0);
    let entry = put(&store, Tier::Host, entry_behind(None, &tokens_of(1)));
    let frame = reader(&store, 1).layer(1).unwrap();
    let memory = entry.frames()[1].as_ptr_range();
    assert!(memory.contains(&frame.k.as_ptr()) && memory.contains(&frame.v.as_ptr()));
    assert_eq!(frame.bytes, entry.frames()[1].len() as u64);
}

#[test]
fn look_ups_are_counted_by_tier() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    on_disk(&store, 1);
    put(&store, Tier::Host, entry_behind(None, &tokens_of(2)));
    let tiers: Vec<_> = [1, 2, 3].map(|id| store.look_up(&key_of(id), &tokens_of(id)).map(|found| found.tier)).into();
    assert_eq!(tiers, [Some(Tier::Disk), Some(Tier::Host), None]);
    let status = store.status();
    assert_eq!((status.host.hits, status.host.misses), (1, 2));
    assert_eq!((status.disk.hits, status.disk.misses), (1, 1));
    reader(&store, 1);
    assert_eq!(store.status(), status, "opening counts nothing");
}

/// A flipped byte in a stored value is a miss and a recompute, never a different answer.
#[test]
fn a_damaged_frame_is_a_late_miss_of_that_entry_only() {
    let flip = |at: usize| {
        move |mut bytes: Vec<u8>| {
            bytes[at] ^= 0x01;
            Some(bytes)
        }
    };
    type Damage<'a> = (&'a str, &'a dyn Fn(Vec<u8>) -> Option<Vec<u8>>);
    let damages: [Damage<'_>; 7] = [
        ("magic", &flip(0)),
        ("key", &flip(20)),
        ("payload", &flip(75)),
        ("checksum", &|mut bytes| bytes.pop().map(|last| [bytes, vec![!last]].concat())),
        ("short read", &|bytes| Some(bytes[..bytes.len() - 1].to_vec())),
        ("oversize", &|bytes| Some([bytes, vec![0; 4096]].concat())),
        ("gone", &|_| None),
    ];
    for (what, damage) in damages {
        let folder = Folder::new();
        let store = folder.open(PLENTY, PLENTY);
        let (key, _) = (on_disk(&store, 1), on_disk(&store, 2));
        let bytes = store.status().disk.bytes;
        tamper_frame(&store.0.tiers.disk, &key, 1, damage);
        flush_to_files(&store.0.tiers.disk);
        let found = store.look_up(&key, &tokens_of(1)).unwrap();
        let reader_of_bad = store.open_found(&found);
        reader_of_bad.layer(0).unwrap();
        let kind = reader_of_bad.layer(1).unwrap_err().kind();
        assert_eq!(kind, if what == "gone" { ErrorKind::NotFound } else { ErrorKind::Corrupt }, "{what}");
        reader_of_bad.layer(2).unwrap();
        assert_eq!(store.status().promoted, 0, "{what}: what failed is not counted as read");
        late_miss(&store, Tier::Disk, 1);
        let status = store.status();
        assert_eq!((status.late_misses, status.disk.corrupt), (1, 1), "{what}");
        assert_eq!((status.disk.entries, status.disk.bytes), (1, bytes / 2), "{what}");
        assert!(store.look_up(&key, &tokens_of(1)).is_none(), "{what}: although it is still pinned");
        assert!(reader_of_bad.layer(0).is_ok(), "{what}: what was read and verified stays right");
        assert_right(&reader(&store, 2));
        drop((found, reader_of_bad, store));
        let store = folder.open(PLENTY, PLENTY);
        assert_eq!((store.contains(&key), store.contains(&key_of(2))), (None, Some(Tier::Disk)), "{what}");
        on_disk(&store, 1);
        assert_right(&reader(&store, 1));
    }
}

#[test]
fn swapped_frames_are_corrupt() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    let (a, b) = (on_disk(&store, 1), on_disk(&store, 2));
    let frame = |key, layer| store.0.tiers.disk.frame(key, layer).unwrap().to_vec();
    let (other_layer, other_entry) = (frame(&a, 2), frame(&b, 1));
    tamper_frame(&store.0.tiers.disk, &a, 0, |_| Some(other_layer.clone()));
    tamper_frame(&store.0.tiers.disk, &a, 1, |_| Some(other_entry.clone()));
    let reader = reader(&store, 1);
    for layer in [0, 1] {
        assert_eq!(reader.layer(layer).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(reader.layer(2).is_ok());
}

#[test]
fn a_damaged_or_missing_row_is_a_miss_that_cleans_up() {
    for damage in [|_| None, |row: Vec<u8>| Some(row[1..].to_vec())] as [fn(Vec<u8>) -> Option<Vec<u8>>; 2] {
        let folder = Folder::new();
        let store = folder.open(PLENTY, PLENTY);
        let key = on_disk(&store, 1);
        tamper_row(&store.0.tiers.disk, &key, damage);
        assert_eq!(store.contains(&key), Some(Tier::Disk), "the index believes in it");
        assert!(store.look_up(&key, &tokens_of(1)).is_none());
        assert_eq!(store.contains(&key), None, "but not for ever");
        let status = store.status();
        assert_eq!((status.disk.corrupt, status.late_misses, status.disk.misses, status.disk.hits), (1, 1, 1, 0));
        assert_eq!(status.disk.bytes, 0);
    }
}

#[test]
fn damaged_host_memory_is_seen() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, 0);
    let entry = entry_behind(None, &tokens_of(1));
    let mut frames = entry.frames().to_vec();
    let mut bytes = frames[1].to_vec();
    bytes[100] ^= 1;
    frames[1] = bytes.into();
    put(&store, Tier::Host, Entry::from_verified_frames(entry.header().clone(), frames));
    let reader = reader(&store, 1);
    assert!(reader.layer(0).is_ok());
    assert_eq!(reader.layer(1).unwrap_err().kind(), ErrorKind::Corrupt);
    late_miss(&store, Tier::Host, 1);
    assert!(store.look_up(&key_of(1), &tokens_of(1)).is_none());
    assert_eq!((store.status().host.corrupt, store.status().host.bytes), (1, 0));
}

/// What a collision of keys would look like.
#[test]
fn other_token_ids_under_a_key_are_never_a_hit() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    put(&store, Tier::Host, entry_behind(None, &tokens_of(1)));
    on_disk(&store, 2);
    for (id, other) in [(1, vec![]), (1, vec![1]), (1, vec![1, 3]), (2, vec![2, 4])] {
        assert!(store.look_up(&key_of(id), &other).is_none());
        assert!(store.open_entry(&key_of(id), &other).is_none());
    }
    let status = store.status();
    assert_eq!((status.token_mismatches, status.host.hits, status.disk.hits), (8, 0, 0));
    assert!(store.look_up(&key_of(1), &tokens_of(1)).is_some());
}

#[test]
fn another_models_entry_is_refused() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    let new = NewEntry {
        fingerprint: Fingerprint([0x99; 32]),
        salt: "".into(),
        parent: None,
        tokens: [1].into(),
        layers: 1,
        kv_dim: 1,
        dtype: ragstone_kernels::dtype::KvDtype::F32,
    };
    let mut builder = EntryBuilder::new(new).unwrap();
    builder.push_layer(&[0; 4], &[0; 4]).unwrap();
    let error = store.keep(builder.finish(0, 0).unwrap(), store.epoch()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
}

#[test]
fn a_full_disk_loses_nothing_and_ends() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    let entry = put(&store, Tier::Host, entry_behind(None, &tokens_of(1)));
    folder.env.arm("disk.before_write=error:full").unwrap();
    for _ in 0..2 {
        assert_eq!(store.write(Tier::Disk, &entry).unwrap_err().kind(), ErrorKind::Full);
    }
    let status = store.status();
    assert_eq!((status.disk.failed, status.disk.bytes, status.disk.entries), (2, 0, 0));
    assert_right(&reader(&store, 1));
    folder.env.set_fail_point("disk.before_write", FailMode::Off, 1);
    assert!(matches!(store.write(Tier::Disk, &entry).unwrap(), Some(Put::Stored { .. })));
    assert_eq!(store.write(Tier::Disk, &entry).unwrap(), Some(Put::AlreadyThere));
}

#[test]
fn a_disk_that_fails_to_read_is_a_miss_and_the_entry_stays() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, PLENTY);
    on_disk(&store, 1);
    folder.env.arm("disk.read_row=error:unavailable;disk.read_frame=error:unavailable").unwrap();
    assert!(store.look_up(&key_of(1), &tokens_of(1)).is_none());
    assert_eq!((store.status().disk.failed, store.status().late_misses), (1, 0));
    folder.env.set_fail_point("disk.read_row", FailMode::Off, 1);
    let reader = reader(&store, 1);
    assert_eq!(reader.layer(0).unwrap_err().kind(), ErrorKind::Unavailable);
    folder.env.set_fail_point("disk.read_frame", FailMode::Off, 1);
    assert_right(&reader);
}

#[test]
fn sizes_too_large_for_a_tier_are_refused_and_counted() {
    let folder = Folder::new();
    let entry = entry_of_width(None, &tokens_of(1), 64);
    let bytes = entry.header().total_bytes();
    let store = folder.open(bytes - 1, bytes);
    let entry = Arc::new(entry);
    assert_eq!(store.write(Tier::Host, &entry).unwrap(), Some(Put::Refused));
    assert_eq!(store.write(Tier::Disk, &entry).unwrap(), Some(Put::Stored { bytes }));
    assert_right(&reader(&store, 1));
    assert_eq!((store.contains(&key_of(1)), store.status().promoted), (Some(Tier::Disk), 0), "it is not promoted");
    assert_eq!(store.status().host.refused, 1, "nor tried");
    drop(store);
    let store = folder.open(bytes, bytes - 1);
    assert_eq!(store.contains(&key_of(1)), None, "a lowered bound");
    assert_eq!(store.write(Tier::Disk, &entry).unwrap(), Some(Put::Refused));
    assert_eq!(store.status().disk.refused, 1);
}

#[test]
fn the_order_of_use_survives_a_restart() {
    let folder = Folder::new();
    let bytes = entry_behind(None, &tokens_of(0)).header().total_bytes();
    {
        let store = folder.open(0, bytes * 3);
        for id in 1..=3 {
            on_disk(&store, id);
        }
        folder.env.advance(Duration::from_secs(1));
        use_once(&store, key_of(2));
        folder.env.advance(Duration::from_secs(1));
        use_once(&store, key_of(1));
    }
    let store = folder.open(0, bytes * 3);
    on_disk(&store, 4);
    on_disk(&store, 5);
    let there: Vec<bool> = (1..=5).map(|id| store.contains(&key_of(id)).is_some()).collect();
    assert_eq!(there, [true, false, false, true, true]);
    store.flush().unwrap();
    drop(store);
    let last_uses = folder.open(0, PLENTY).0.uses.catalog.last_uses().unwrap();
    assert_eq!(last_uses.into_keys().collect::<Vec<_>>(), [key_of(1)], "what is gone is forgotten at open");
}

#[test]
fn open_readers_keep_disk_entries_from_eviction() {
    let folder = Folder::new();
    let bytes = entry_behind(None, &tokens_of(0)).header().total_bytes();
    let store = folder.open(0, bytes);
    on_disk(&store, 1);
    let held = reader(&store, 1);
    let other = Arc::new(entry_behind(None, &tokens_of(2)));
    assert_eq!(store.write(Tier::Disk, &other).unwrap(), Some(Put::Refused));
    assert_right(&held);
    drop(held);
    on_disk(&store, 2);
    assert_eq!(store.contains(&key_of(1)), None);
}

/// Readers, writers and removers at once, in tiers that hold a few entries: nobody ever reads wrong bytes, and the
/// sizes add up in the end.
#[test]
#[expect(clippy::disallowed_methods, reason = "the threads end with the test")]
fn threads_share_the_store() {
    const IDS: u32 = 24;
    let folder = Folder::new();
    let bytes = entry_of_width(None, &tokens_of(0), 512).header().total_bytes();
    let store = folder.open(bytes * 5, bytes * 9);
    let work = |seed: u64| {
        let random = Env::seeded(seed, 0);
        for _ in 0..300 {
            let id = (random.random_u64() % u64::from(IDS)) as u32;
            match random.random_u64() % 8 {
                0..3 => {
                    let entry = Arc::new(entry_of_width(None, &tokens_of(id), 512));
                    store.write(Tier::Host, &entry).unwrap();
                    match store.write(Tier::Disk, &entry) {
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                }
                3 => [Tier::Host, Tier::Disk].into_iter().for_each(|tier| late_miss(&store, tier, id)),
                _ => read_all(&store, id),
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(move || work(seed)))));
    let status = store.status();
    assert!(status.host.bytes <= bytes * 5 && status.disk.bytes <= bytes * 9, "{status:?}");
    assert_eq!(status.host.bytes, status.host.entries * bytes);
    assert_eq!(status.disk.bytes, status.disk.entries * bytes);
    assert_eq!(status.token_mismatches, 0);
    drop(store);
    let store = folder.open(bytes * 5, bytes * 9);
    assert_eq!(store.status().disk.entries, status.disk.entries, "the index is what is on disk");
    (0..IDS).for_each(|id| read_all(&store, id));
    assert_eq!(store.status().disk.corrupt, 0);
}

fn read_all(store: &KvStore, id: u32) {
    let Some(reader) = store.open_entry(&key_of(id), &tokens_of(id)) else { return };
    for layer in 0..LAYERS {
        // Gone, if somebody removed it meanwhile; never other bytes.
        let Ok(frame) = reader.layer(layer) else { return };
        let (k, v) = expected_layer(&key_of(id), layer, frame.k.len());
        assert!(frame.k == k && frame.v == v);
    }
}

/// Evicting for long does not let the files grow without bound.
#[test]
fn files_stay_near_the_bound() {
    let folder = Folder::new();
    let store = folder.open(0, 64 << 20);
    for id in 0..400 {
        put(&store, Tier::Disk, entry_of_width(None, &tokens_of(id), 20_000)); // about 1 MB each
    }
    let status = store.status();
    assert!(status.disk.evicted > 300 && status.disk.bytes <= 64 << 20);
    // RocksDB gives files back beside what is written, later on a busy machine.
    let (file_bytes, began) = (|| store.status().disk_file_bytes, Stopwatch::start());
    while file_bytes() >= 160 << 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "{} MiB of files", file_bytes() >> 20);
        std::thread::sleep(Duration::from_millis(10));
    }
}
