//! Entries whose checksums are right and which this model cannot have computed: forged, or another program's fault. None of them
//! may reach a prompt, wherever it lies; each leaves where it was found.

use bytes::Bytes;
use futures::executor::block_on;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use ragstone_kernels::dtype::KvDtype;
use std::hash::Hasher as _;
use tempfile::TempDir;
use twox_hash::XxHash3_64;

use super::tests::options;
use super::*;
use crate::entry::{EntryBuilder, NewEntry};
use crate::key::SegmentDigest;
use crate::tier::object::{Codec, ObjectOptions, ObjectTier};
use crate::tier::{EntryId, Precision};

const PLENTY: u64 = 1 << 30;
const MODEL: Fingerprint = Fingerprint([1; 32]);
const SHAPE: EntryShape = EntryShape { layers: 2, kv_dim: 4, dtype: KvDtype::F32 };
const TOKENS: [u32; 3] = [1, 2, 3];
/// One thing after the other is not the model's.
const MISFITS: [EntryShape; 5] = [
    EntryShape { layers: 1, ..SHAPE },
    EntryShape { layers: 3, ..SHAPE },
    EntryShape { kv_dim: 2, ..SHAPE },
    EntryShape { kv_dim: 4000, ..SHAPE },
    EntryShape { dtype: KvDtype::Bf16, ..SHAPE },
];

/// An entry of [`TOKENS`] in this shape, every value `value`: its key says nothing of either.
fn entry(shape: EntryShape, value: f32) -> Entry {
    costing(shape, value, 1_500)
}

/// The same, which says that it took so long to compute.
fn costing(shape: EntryShape, value: f32, compute_us: u64) -> Entry {
    let EntryShape { layers, kv_dim, dtype } = shape;
    let new =
        NewEntry { fingerprint: MODEL, salt: "".into(), parent: None, tokens: TOKENS.into(), layers, kv_dim, dtype };
    let mut builder = EntryBuilder::new(new).unwrap();
    let side = dtype.encode(&vec![value; TOKENS.len() * kv_dim as usize]);
    (0..layers).for_each(|_| builder.push_layer(&side, &side).unwrap());
    builder.finish(compute_us, 7).unwrap()
}

fn id() -> EntryId {
    EntryId { key: KvKey::derive(&MODEL, "", None, &TOKENS), segment: SegmentDigest::of(&MODEL, &TOKENS) }
}

fn bucket_tier(bucket: &Arc<InMemory>, codec: Codec) -> ObjectTier {
    let options = ObjectOptions { codec, ..ObjectOptions::new("memory://unused") };
    ObjectTier::over(bucket.clone(), Name::from("kv"), &options, MODEL, Env::seeded(1, 1_000_000)).unwrap()
}

fn open(dir: &TempDir, object: Option<ObjectTier>, shape: Option<EntryShape>) -> KvStore {
    let env = Env::seeded(1, 1_000_000);
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
    let object = object.map(|tier| Arc::new(tier) as Arc<dyn SharedTier>);
    let options = StoreOptions { object, shape, ..options(PLENTY, PLENTY) };
    KvStore::open(&dir.path().join("kv"), options, MODEL, env, catalog).unwrap()
}

fn objects(bucket: &Arc<InMemory>) -> Vec<Name> {
    use futures::TryStreamExt;
    let listed: Vec<_> = block_on(bucket.list(None).try_collect()).unwrap();
    listed.into_iter().map(|meta| meta.location).collect()
}

#[test]
fn an_object_of_another_shape_is_a_miss_and_leaves_the_bucket() {
    for shape in MISFITS {
        for codec in [Codec::Plain, Codec::Zstd, Codec::Q8] {
            let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
            bucket_tier(&bucket, codec).put(&Arc::new(entry(shape, 0.5))).unwrap();
            let store = open(&dir, Some(bucket_tier(&bucket, codec)), Some(SHAPE));
            let wanted = Wanted { key: &id().key, tokens: &TOKENS, precision: Precision::Lossy };
            let found = store.find_wanted([wanted]);
            assert!(!found.contains(&id().key), "{shape:?}");
            assert!(store.look_up_with(&found, &id().key, &TOKENS).is_none(), "{shape:?}");
            assert!(store.look_up_lossy(&found, &id().key, &TOKENS).is_none(), "{shape:?}");
            assert!(objects(&bucket).is_empty(), "{shape:?} {codec:?}");
            assert_eq!(store.status().object.unwrap().corrupt, 1);
        }
    }
}

#[test]
fn an_object_of_the_right_shape_is_a_hit() {
    let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    bucket_tier(&bucket, Codec::Plain).put(&Arc::new(entry(SHAPE, 0.5))).unwrap();
    let store = open(&dir, Some(bucket_tier(&bucket, Codec::Plain)), Some(SHAPE));
    let reader = store.open_entry(&id().key, &TOKENS).unwrap();
    (0..SHAPE.layers).for_each(|layer| drop(reader.layer(layer).unwrap()));
    assert_eq!(store.contains(&id().key), Some(Tier::Host), "promoted");
}

/// An entry that says it took for ever to compute would never leave this machine's tiers for another one.
#[test]
fn what_an_object_says_of_its_computing_is_bounded() {
    let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    let forged = Arc::new(costing(SHAPE, 0.5, u64::MAX));
    bucket_tier(&bucket, Codec::Plain).put(&forged).unwrap();
    let store = open(&dir, Some(bucket_tier(&bucket, Codec::Plain)), Some(SHAPE));
    let reader = store.open_entry(&id().key, &TOKENS).unwrap();
    (0..SHAPE.layers).for_each(|layer| drop(reader.layer(layer).unwrap()));
    let mut costs = Vec::new();
    let each = &mut |entry: crate::store::EntryInfo| costs.push(entry.summary.compute_us);
    store.entries(&[Tier::Host, Tier::Object], each).unwrap();
    assert!(!costs.is_empty() && costs.iter().all(|cost| *cost <= 1_000_000 * TOKENS.len() as u64), "{costs:?}");
}

/// Reads to the first layer that fails, which is dropped as the engine does it.
fn read_and_drop(store: &KvStore, found: &Found) {
    let reader = store.open_found(found);
    let failed = (0..SHAPE.layers).find_map(|layer| reader.layer(layer).err()).expect("a layer is bad");
    assert_eq!(failed.kind(), ErrorKind::Corrupt, "{failed}");
    store.late_miss_of(&reader.id(), reader.tier(), reader.precision(), failed.kind());
}

#[test]
fn values_that_are_not_finite_are_a_late_miss_and_leave_the_bucket() {
    for dtype in [KvDtype::F32, KvDtype::Bf16] {
        let shape = EntryShape { dtype, ..SHAPE };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
            let forged = entry(shape, bad);
            // The writer verifies what it uploads; a forger does not.
            assert_eq!(forged.layer(0).unwrap_err().kind(), ErrorKind::Corrupt);
            put_unverified(&bucket, &forged);
            let store = open(&dir, Some(bucket_tier(&bucket, Codec::Plain)), Some(shape));
            let found = store.look_up(&id().key, &TOKENS).expect("nothing shows before its layers are read");
            read_and_drop(&store, &found);
            assert!(objects(&bucket).is_empty());
            let status = store.status();
            assert_eq!((status.object.unwrap().corrupt, status.late_misses, status.promoted), (1, 1, 0));
            assert!(store.look_up(&id().key, &TOKENS).is_none());
        }
    }
}

/// A good object, with the frames of `forged` in the place of its own.
fn put_unverified(bucket: &Arc<InMemory>, forged: &Entry) {
    let header = forged.header();
    let shape = EntryShape { layers: header.layers, kv_dim: header.kv_dim, dtype: header.dtype };
    bucket_tier(bucket, Codec::Plain).put(&Arc::new(entry(shape, 0.5))).unwrap();
    let bad: usize = forged.frames().iter().map(Bytes::len).sum();
    change_object(bucket, |object| {
        let start = object.len() - bad;
        object.truncate(start);
        object.extend(forged.frames().concat());
    });
}

fn change_object(bucket: &Arc<InMemory>, change: impl FnOnce(&mut Vec<u8>)) {
    let [name] = &objects(bucket)[..] else { panic!("one object") };
    let mut object = block_on(async { bucket.get(name).await.unwrap().bytes().await.unwrap() }).to_vec();
    change(&mut object);
    block_on(bucket.put(name, PutPayload::from(object))).unwrap();
}

#[test]
fn a_scale_that_is_not_finite_is_a_late_miss_and_leaves_the_bucket() {
    for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
        let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
        bucket_tier(&bucket, Codec::Q8).put(&Arc::new(entry(SHAPE, 0.5))).unwrap();
        // Two sides of three scales and twelve values, and the checksum.
        let frame_bytes = 2 * (3 * 4 + 12) + 8;
        change_object(&bucket, |object| {
            let start = object.len() - frame_bytes * SHAPE.layers as usize;
            let frame = &mut object[start..start + frame_bytes];
            frame[..4].copy_from_slice(&bad.to_le_bytes());
            let mut hasher = XxHash3_64::with_seed(1);
            hasher.write(id().key.as_bytes());
            hasher.write(&frame[..frame_bytes - 8]);
            let sum = hasher.finish();
            frame[frame_bytes - 8..].copy_from_slice(&sum.to_le_bytes());
        });
        let store = open(&dir, Some(bucket_tier(&bucket, Codec::Q8)), Some(SHAPE));
        let wanted = Wanted { key: &id().key, tokens: &TOKENS, precision: Precision::Lossy };
        let found = store.look_up_lossy(&store.find_wanted([wanted]), &id().key, &TOKENS).unwrap();
        read_and_drop(&store, &found);
        assert!(objects(&bucket).is_empty(), "{bad}");
    }
}

/// An earlier version may have brought it to the disk, or another model's file was copied there.
#[test]
fn what_the_disk_has_of_another_shape_goes_into_quarantine() {
    for shape in MISFITS {
        let dir = TempDir::new().unwrap();
        let store = open(&dir, None, None);
        assert!(store.keep(entry(shape, 0.5), 0).unwrap() && store.drain(Duration::from_secs(60)));
        store.flush().unwrap();
        drop(store);
        let store = open(&dir, None, Some(SHAPE));
        assert!(store.look_up(&id().key, &TOKENS).is_none(), "{shape:?}");
        assert_eq!(store.contains(&id().key), None);
        assert_eq!((store.status().disk.corrupt, store.status().late_misses), (1, 1));
    }
}

#[test]
fn an_import_takes_nothing_that_the_model_cannot_have_computed() {
    let misfits = MISFITS.map(|shape| entry(shape, 0.5));
    for forged in misfits.into_iter().chain([entry(SHAPE, f32::NAN)]) {
        let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
        put_unverified(&bucket, &forged);
        let (source, store) = (bucket_tier(&bucket, Codec::Plain), open(&dir, None, Some(SHAPE)));
        let plan = store.plan_import(&source, &|_| true).unwrap();
        let copied = store.import(&plan, &source, &mut |_| true).unwrap();
        assert_eq!((copied.entries, copied.damaged), (0, 1), "{:?}", forged.header());
        assert_eq!(store.contains(&id().key), None);
    }
}

#[test]
fn a_verification_finds_what_the_model_cannot_have_computed() {
    let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    bucket_tier(&bucket, Codec::Plain).put(&Arc::new(entry(MISFITS[0], 0.5))).unwrap();
    let store = open(&dir, Some(bucket_tier(&bucket, Codec::Plain)), Some(SHAPE));
    let report = store.verify(&[Tier::Object], false, &mut |_| true).unwrap();
    let [damaged] = &report.damaged[..] else { panic!("{report:?}") };
    assert!(damaged.error.contains("1 layers"), "{}", damaged.error);
    assert!(objects(&bucket).is_empty());
    let shape = EntryShape { kv_dim: 8, ..SHAPE };
    let refused = store.keep(entry(shape, 0.5), store.epoch()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "nor is it kept");
}
