//! What the tier does on a bucket that works; `faults.rs` and `http.rs` are about those that do not, `hostile.rs` about those that lie.

mod faults;
pub(crate) mod faulty;
mod hostile;
mod http;
mod lying;
mod moto;
#[path = "../../../../tests/outside/mod.rs"]
mod outside;
#[path = "../../../../tests/s3_server/mod.rs"]
mod s3_server;

use std::time::Duration;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use tempfile::TempDir;

use self::faulty::{Fault, Faulty};
use self::s3_server::S3Server;
use super::*;
use crate::entry::tests::{LAYERS, MODEL, entry_behind, entry_of_width, expected_layer};
use crate::entry::{EntryBuilder, NewEntry};
use crate::frame;
use crate::tier::Precision;
use crate::tier::SharedTier;
use crate::tier::conformance::conforms;

/// The system's time: the stores' clocks are the system's, too. Tests move on from it.
fn env() -> Env {
    Env::seeded(3, Env::system().now_unix_ms())
}

fn options(codec: Codec) -> ObjectOptions {
    ObjectOptions { codec, timeout: Duration::from_secs(5), ..ObjectOptions::new("memory://unused") }
}

/// A bucket of an S3 server on loopback.
fn s3(endpoint: &str, url: &str, timeout: Duration) -> ObjectOptions {
    let options = [
        ("endpoint", endpoint),
        ("region", "us-east-1"),
        ("access_key_id", "test"),
        ("secret_access_key", "test"),
        ("allow_http", "true"),
    ];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    ObjectOptions { options: ConnectionOptions(options), timeout, ..ObjectOptions::new(url) }
}

fn tier_over(store: Arc<dyn ObjectStore>, codec: Codec, env: &Env) -> ObjectTier {
    ObjectTier::over(store, Path::from("kv"), &options(codec), MODEL, env.clone()).unwrap()
}

fn in_memory(codec: Codec) -> (Arc<InMemory>, ObjectTier, Env) {
    let (store, env) = (Arc::new(InMemory::new()), env());
    (store.clone(), tier_over(store, codec, &env), env)
}

fn entry(parent: Option<KvKey>, tokens: &[u32]) -> Arc<Entry> {
    Arc::new(entry_behind(parent, tokens))
}

/// An entry of three frames of `80 + 16 * kv_dim` bytes.
fn wide(tokens: [u32; 2], kv_dim: u32) -> Arc<Entry> {
    Arc::new(entry_of_width(None, &tokens, kv_dim))
}

fn stored(entry: &Entry) -> Put {
    Put::Stored { bytes: entry.header().total_bytes() }
}

/// Reads every layer and compares it with what was put.
fn assert_right(read: &dyn TierEntry, entry: &Entry) {
    assert_eq!(read.header(), entry.header());
    for (layer, frame) in (0..).zip(entry.frames()) {
        assert_eq!(read.frame(layer).unwrap(), frame, "layer {layer}");
    }
    assert_eq!(read.frame(LAYERS).unwrap_err().kind(), ErrorKind::NotFound);
}

fn put_all(tier: &ObjectTier, entries: &[Arc<Entry>]) {
    for entry in entries {
        assert_eq!(tier.put(entry).unwrap(), stored(entry));
    }
}

fn assert_found(tier: &ObjectTier, entry: &Entry) {
    assert_right(&*tier.open(&entry.header().id()).unwrap().expect("there"), entry);
}

fn assert_missed(tier: &ObjectTier, entry: &Entry) {
    assert!(tier.open(&entry.header().id()).unwrap().is_none());
}

fn exactly(ids: &[EntryId]) -> Vec<(EntryId, Precision)> {
    ids.iter().map(|id| (*id, Precision::Exact)).collect()
}

fn open_lossy(tier: &ObjectTier, id: &EntryId) -> Option<Arc<dyn TierEntry>> {
    tier.open_many(&[(*id, Precision::Lossy)]).remove(0).unwrap()
}

fn remove_segment(tier: &ObjectTier, entry: &Entry) -> usize {
    tier.remove_segments(None, &[MODEL], &[entry.header().segment()]).unwrap().len()
}

fn listed(tier: &ObjectTier) -> Vec<EntrySummary> {
    let mut found = Vec::new();
    tier.list(&mut |summary| found.push(summary)).unwrap();
    found.sort_by_key(|summary| summary.key);
    found
}

#[test]
fn it_conforms() {
    for codec in [Codec::Plain, Codec::Zstd] {
        // The bound is the collector's business, not that of puts.
        conforms(&|_| Box::new(in_memory(codec).1));
    }
}

#[test]
fn a_folder_conforms() {
    let dir = TempDir::new().unwrap();
    let buckets = std::cell::Cell::new(0);
    conforms(&|_| {
        buckets.set(buckets.get() + 1);
        let url = format!("file://{}/{}", dir.path().display(), buckets.get());
        Box::new(ObjectTier::open(&ObjectOptions::new(url), MODEL, env()).unwrap())
    });
}

#[test]
fn what_is_put_is_found_by_every_node_with_the_bucket() {
    for codec in [Codec::Plain, Codec::Zstd] {
        let (store, a, env) = in_memory(codec);
        let b = tier_over(store, Codec::Plain, &env);
        let (small, large) = (entry(None, &[1, 2]), wide([3, 4], 100_000));
        for entry in [&small, &large] {
            assert_missed(&b, entry);
            assert_eq!(a.put(entry).unwrap(), stored(entry));
            assert_eq!(a.put(entry).unwrap(), Put::AlreadyThere);
            assert_eq!(b.put(entry).unwrap(), Put::AlreadyThere);
            assert_found(&a, entry);
            assert_found(&b, entry);
            assert!(b.open(&entry.header().id()).unwrap().unwrap().is_exact());
            assert!(open_lossy(&b, &entry.header().id()).is_none());
        }
        let mut summaries = [small.header().summary(), large.header().summary()];
        summaries.sort_by_key(|summary| summary.key);
        assert_eq!(listed(&b), summaries);
        assert_eq!(b.usage().entries, 2);
        assert!(b.remove(&small.header().id()).unwrap());
        assert!(!b.remove(&small.header().id()).unwrap());
        assert_missed(&a, &small);
        assert_eq!((b.usage().entries, a.usage().entries), (1, 2), "each says what it saw");
    }
}

#[test]
fn folders_and_named_memory_are_buckets_too() {
    let dir = TempDir::new().unwrap();
    for url in [format!("file://{}/a%20bucket", dir.path().display()), "memory://tests/prefix".to_owned()] {
        let node = || ObjectTier::open(&ObjectOptions::new(url.clone()), MODEL, env()).unwrap();
        let (a, b, small, large) = (node(), node(), entry(None, &[1]), wide([3, 4], 50_000));
        a.probe().unwrap();
        assert_eq!(listed(&a), []);
        assert_eq!(a.put(&small).unwrap(), stored(&small));
        assert_eq!(a.put(&large).unwrap(), stored(&large));
        drop(a);
        assert_eq!(b.put(&small).unwrap(), Put::AlreadyThere);
        assert_found(&b, &small);
        assert_found(&b, &large);
        assert_eq!(listed(&b).len(), 2);
        assert_eq!(remove_segment(&b, &small), 1);
        assert_missed(&b, &small);
        assert!(!b.remove(&small.header().id()).unwrap());
    }
}

#[test]
fn many_are_opened_at_once_and_answered_in_order() {
    let (_, tier, _) = in_memory(Codec::Plain);
    let entries: Vec<_> = (0..80).map(|id| entry(None, &[id])).collect();
    for entry in entries.iter().step_by(2) {
        tier.put(entry).unwrap();
    }
    let ids: Vec<_> = entries.iter().map(|entry| entry.header().id()).collect();
    let opened = tier.open_many(&exactly(&ids));
    assert_eq!(opened.len(), 80);
    for (index, opened) in opened.into_iter().enumerate() {
        match opened.unwrap() {
            Some(read) => assert_right(&*read, &entries[index]),
            None => assert_eq!(index % 2, 1),
        }
    }
    assert_eq!(tier.counts().operations, 40 + 80);
}

#[test]
fn a_segment_is_removed_whatever_stood_before_it_and_in_every_name_space() {
    let (store, tier, env) = in_memory(Codec::Plain);
    let lossy = tier_over(store, Codec::Q8, &env);
    let root = entry(None, &[1]);
    let behind = [entry(None, &[7, 8]), entry(Some(root.header().key), &[7, 8])];
    let other = entry(Some(behind[0].header().key), &[9]);
    for entry in behind.iter().chain([&root, &other]) {
        tier.put(entry).unwrap();
    }
    assert_eq!(lossy.put(&quantisable()).unwrap(), stored(&quantisable()));
    assert_eq!(remove_segment(&tier, &behind[0]), 2);
    behind.iter().for_each(|entry| assert_missed(&tier, entry));
    assert_found(&tier, &root);
    assert_found(&tier, &other);
    assert_eq!(remove_segment(&tier, &behind[0]), 0);
    assert_eq!(remove_segment(&tier, &quantisable()), 1);
    assert!(open_lossy(&lossy, &quantisable().header().id()).is_none());
}

/// An entry of numbers: those of `entry_behind` are bytes of any kind.
fn quantisable() -> Arc<Entry> {
    let new = NewEntry {
        fingerprint: MODEL,
        salt: "".into(),
        parent: None,
        tokens: [5, 6].into(),
        layers: LAYERS,
        kv_dim: 4,
        dtype: ragstone_kernels::dtype::KvDtype::F32,
    };
    let mut builder = EntryBuilder::new(new).unwrap();
    for layer in 0..LAYERS {
        let side = |sign: f32| -> Vec<u8> {
            (0..8).flat_map(|i| (sign * (i as f32 + layer as f32 + 0.3)).to_le_bytes()).collect()
        };
        builder.push_layer(&side(1.0), &side(-1.0)).unwrap();
    }
    Arc::new(builder.finish(1, 2).unwrap())
}

#[test]
fn what_is_lossy_is_never_found_as_exact() {
    let (store, lossy, env) = in_memory(Codec::Q8);
    let exact = tier_over(store, Codec::Plain, &env);
    let entry = quantisable();
    let id = entry.header().id();
    assert_eq!(lossy.put(&entry).unwrap(), stored(&entry));
    assert_eq!(lossy.put(&entry).unwrap(), Put::AlreadyThere);
    for tier in [&lossy, &exact] {
        assert_missed(tier, &entry);
        assert!(tier.open_many(&exactly(&[id]))[0].as_ref().unwrap().is_none());
        assert_eq!(listed(tier), []);
        let read = open_lossy(tier, &id).unwrap();
        assert!(!read.is_exact());
        for layer in 0..LAYERS {
            let frame = frame::decode(&read.frame(layer).unwrap(), &id.key, layer, &entry.header().frame_shape());
            let (frame, wanted) = (frame.unwrap(), entry.layer(layer).unwrap());
            assert_ne!(frame.k, wanted.k);
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
            };
            for (read, wanted) in floats(&frame.v).into_iter().zip(floats(&wanted.v)) {
                assert!((read - wanted).abs() <= 0.004 * 10.0, "{read} for {wanted}");
            }
        }
    }
    assert_eq!(exact.put(&entry).unwrap(), stored(&entry), "an exact one stands beside it");
    assert_found(&lossy, &entry);
    assert!(lossy.remove(&id).unwrap(), "both go");
    assert_missed(&exact, &entry);
    assert!(open_lossy(&exact, &id).is_none());
}

/// In 8 bits, an object is smaller than what counts: the bytes of the entry.
#[test]
fn what_is_removed_is_counted_as_it_was_counted_when_it_came() {
    let (store, lossy, env) = in_memory(Codec::Q8);
    let entry = quantisable();
    let id = entry.header().id();
    let count = |tier: &ObjectTier| (tier.usage().entries, tier.usage().bytes);
    lossy.put(&entry).unwrap();
    assert_eq!(count(&lossy), (1, entry.header().total_bytes()));
    assert!(lossy.remove(&id).unwrap());
    assert_eq!(count(&lossy), (0, 0));
    // Both kinds, and seen by who wrote neither.
    let exact = tier_over(store, Codec::Plain, &env);
    lossy.put(&entry).unwrap();
    exact.put(&entry).unwrap();
    lossy.list(&mut drop).unwrap();
    exact.list_lossy(&mut drop).unwrap();
    assert_eq!((count(&lossy), count(&exact)), ((2, 2 * entry.header().total_bytes()), count(&lossy)));
    assert!(exact.remove(&id).unwrap());
    assert_eq!(count(&exact), (0, 0));
}

#[test]
fn what_cannot_be_kept_is_refused_and_counted() {
    let store = Arc::new(InMemory::new());
    let mut small = ObjectOptions { capacity_bytes: 1_000, ..options(Codec::Plain) };
    let tier = ObjectTier::over(store.clone(), Path::from("kv"), &small, MODEL, env()).unwrap();
    assert_eq!(tier.put(&wide([1, 2], 50)).unwrap(), Put::Refused);
    assert!(matches!(tier.put(&entry(None, &[1])).unwrap(), Put::Stored { .. }));
    assert_eq!((tier.usage().refused, tier.usage().capacity_bytes), (1, 1_000));
    small.codec = Codec::Q8;
    let tier = ObjectTier::over(store.clone(), Path::from("kv"), &small, MODEL, env()).unwrap();
    let not_finite = entry_with_nan();
    assert_eq!(tier.put(&not_finite).unwrap_err().kind(), ErrorKind::Corrupt);
    let other = ObjectTier::over(store, Path::from("kv"), &small, Fingerprint([9; 32]), env()).unwrap();
    assert_eq!(other.put(&entry(None, &[1])).unwrap_err().kind(), ErrorKind::InvalidInput, "another model's");
}

fn entry_with_nan() -> Arc<Entry> {
    let header = quantisable().header().clone();
    let shape = header.frame_shape();
    let side = vec![0xFF; shape.side_bytes().unwrap() as usize];
    let frames = (0..LAYERS).map(|layer| frame::encode(&header.key, layer, &shape, &side, &side).unwrap());
    Arc::new(Entry::from_verified_frames(header.clone(), frames.collect()))
}

/// Three frames of 3 MB: spans of two layers and of one.
#[test]
fn small_layers_are_read_together_and_the_next_ones_ahead() {
    let faulty = Faulty::new();
    let tier = tier_over(faulty.clone(), Codec::Plain, &env());
    let large = wide([1, 2], 200_000);
    tier.put(&large).unwrap();
    faulty.take_gets();
    let read = tier.open(&large.header().id()).unwrap().unwrap();
    assert_eq!(faulty.take_gets().len(), 1, "the header");
    let frame_bytes = large.frames()[0].len() as u64;
    assert_right(&*read, &large);
    let gets = faulty.take_gets();
    assert_eq!(gets.len(), 2, "{gets:?}");
    let bytes: Vec<_> = gets.iter().map(|range| range.end - range.start).collect();
    assert_eq!((bytes.iter().max(), bytes.iter().min()), (Some(&(2 * frame_bytes)), Some(&frame_bytes)));
    assert_eq!(read.frame(2).unwrap(), large.frames()[2]);
    assert_eq!(faulty.take_gets().len(), 0, "it is held");
    assert_eq!(read.frame(0).unwrap(), large.frames()[0]);
    assert_eq!(faulty.take_gets().len(), 1, "what was read is let go");
    let small = entry(None, &[5]);
    tier.put(&small).unwrap();
    faulty.take_gets();
    assert_found(&tier, &small);
    assert_eq!(faulty.take_gets().len(), 1, "a small object comes with its header");
}

#[test]
fn a_header_longer_than_the_first_read_takes_a_second() {
    let faulty = Faulty::new();
    let tier = tier_over(faulty.clone(), Codec::Plain, &env());
    let tokens: Vec<u32> = (0..20_000).collect();
    let long = Arc::new(entry_of_width(None, &tokens, 1));
    tier.put(&long).unwrap();
    faulty.take_gets();
    let read = tier.open(&long.header().id()).unwrap().unwrap();
    assert_eq!(faulty.take_gets().len(), 2);
    assert_right(&*read, &long);
}

/// An entry outlives its tier, layers can be read from many threads, and all of it from within a runtime, too.
#[test]
#[expect(clippy::disallowed_methods, reason = "the threads end with the test")]
fn readers_on_any_thread() {
    let (_, tier, _) = in_memory(Codec::Plain);
    let large = wide([1, 2], 150_000);
    tier.put(&large).unwrap();
    let read = tier.open(&large.header().id()).unwrap().unwrap();
    drop(tier);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_right(&*read, &large));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move {
        assert_right(&*read, &large);
        let (_, tier, _) = in_memory(Codec::Plain);
        tier.put(&large).unwrap();
        assert_found(&tier, &large);
        drop((read, tier));
    });
}

#[test]
fn a_damaged_entry_is_not_written() {
    let (_, tier, _) = in_memory(Codec::Plain);
    let whole = entry(None, &[1, 2]);
    let mut frames = whole.frames().to_vec();
    let mut damaged = frames[1].to_vec();
    damaged[100] ^= 1;
    frames[1] = damaged.into();
    let damaged = Arc::new(Entry::from_verified_frames(whole.header().clone(), frames));
    assert_eq!(tier.put(&damaged).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_missed(&tier, &whole);
}

#[test]
fn loads_are_measured_against_plain_requests() {
    let (_, tier, _) = in_memory(Codec::Plain);
    let entries = [wide([1, 2], 100_000), wide([3, 4], 10)];
    put_all(&tier, &entries);
    let ids = entries.clone().map(|entry| entry.header().id());
    let times = tier.measure_load(&ids).unwrap();
    assert_eq!(times.bytes, entries.iter().map(|entry| entry.header().frames_bytes()).sum::<u64>());
    assert!(times.entries > Duration::ZERO && times.gets > Duration::ZERO && times.gets_at_once > Duration::ZERO);
    tier.remove(&ids[0]).unwrap();
    assert_eq!(tier.measure_load(&ids).unwrap_err().kind(), ErrorKind::NotFound);
}

/// An entry of `layers` frames of 4 MB.
fn large(layers: u32) -> Arc<Entry> {
    let new = NewEntry {
        fingerprint: MODEL,
        salt: "".into(),
        parent: None,
        tokens: (0..1_000).collect(),
        layers,
        kv_dim: 1_000,
        dtype: ragstone_kernels::dtype::KvDtype::Bf16,
    };
    let mut builder = EntryBuilder::new(new).unwrap();
    let key = *builder.key();
    for layer in 0..layers {
        let (k, v) = expected_layer(&key, layer, 2_000_000);
        builder.push_layer(&k, &v).unwrap();
    }
    Arc::new(builder.finish(1, 2).unwrap())
}

/// Prints how fast an entry of 48 MB is loaded, and plain requests for its bytes. The bound is loose, because the machine does
/// other things meanwhile: it catches loads that read twice, or one small layer after the other.
fn assert_loads_fast(tier: &ObjectTier, rounds: usize) {
    let entry = large(12);
    assert_eq!(tier.put(&entry).unwrap(), stored(&entry));
    let ids = vec![entry.header().id(); rounds];
    tier.measure_load(&ids[..1]).unwrap();
    let times = tier.measure_load(&ids).unwrap();
    let rate = |time: Duration| times.bytes as f64 / time.as_secs_f64() / 1e6;
    let (ours, gets, at_once) = (rate(times.entries), rate(times.gets), rate(times.gets_at_once));
    println!("{ours:.0} MB/s; plain requests {gets:.0} MB/s one by one, {at_once:.0} MB/s at once");
    assert!(ours > 0.3 * gets, "{times:?}");
}
