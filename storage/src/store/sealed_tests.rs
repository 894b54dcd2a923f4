//! The store over a bucket with a key, into which somebody without it writes: each forgery is a late miss, counted, and gone; what is
//! computed takes its place.

use futures::executor::block_on;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use super::bucket_tests::{MODEL, entry};
use super::tests::options;
use super::*;
use crate::tier::object::{ObjectOptions, ObjectTier, key_files};

const PLENTY: u64 = 1 << 30;
const SOON: Duration = Duration::from_secs(60);
const TOKENS: [u32; 3] = [1, 2, 3];

fn tier(bucket: &Arc<InMemory>, keys: &[u8], encrypt: bool) -> ObjectTier {
    let options = ObjectOptions { keys: key_files(keys), encrypt, ..ObjectOptions::new("memory://unused") };
    ObjectTier::over(bucket.clone(), Name::from("kv"), &options, MODEL, Env::seeded(1, 1_000_000)).unwrap()
}

fn open(dir: &TempDir, object: ObjectTier) -> KvStore {
    let env = Env::seeded(1, 1_000_000);
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
    let options = StoreOptions { object: Some(Arc::new(object)), ..options(PLENTY, PLENTY) };
    KvStore::open(&dir.path().join("kv"), options, MODEL, env, catalog).unwrap()
}

fn objects(bucket: &Arc<InMemory>) -> Vec<Name> {
    use futures::TryStreamExt;
    let listed: Vec<_> = block_on(bucket.list(None).try_collect()).unwrap();
    listed.into_iter().map(|meta| meta.location).collect()
}

/// Changes a byte of the only object.
fn change(bucket: &Arc<InMemory>, at: impl Fn(usize) -> usize) {
    let [name] = &objects(bucket)[..] else { panic!("one object") };
    let mut bytes = block_on(async { bucket.get(name).await.unwrap().bytes().await.unwrap() }).to_vec();
    let at = at(bytes.len());
    bytes[at] ^= 1;
    block_on(bucket.put(name, bytes.into())).unwrap();
}

/// Keeps the entry, as a prompt does that computed it, and sees to it that it is in the bucket.
fn compute(bucket: &Arc<InMemory>, keys: &[u8], encrypt: bool) -> KvKey {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, tier(bucket, keys, encrypt));
    let entry = entry(MODEL, None, &TOKENS);
    let key = entry.header().key;
    assert!(store.keep(entry, store.epoch()).unwrap() && store.drain(SOON));
    key
}

fn forged(store: &KvStore) -> (u64, u64) {
    let status = store.status();
    (status.object.unwrap().forged, status.late_misses)
}

#[test]
fn a_forged_layer_is_a_late_miss_and_leaves_the_bucket() {
    for encrypt in [false, true] {
        let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
        let key = compute(&bucket, &[1], encrypt);
        change(&bucket, |length| length - 1);
        let store = open(&dir, tier(&bucket, &[1], encrypt));
        let found = store.look_up(&key, &TOKENS).expect("its header is right");
        let reader = store.open_found(&found);
        assert!(reader.layer(0).is_ok());
        let error = reader.layer(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        store.late_miss_of(&reader.id(), reader.tier(), reader.precision(), error.kind());
        assert_eq!(forged(&store), (1, 1));
        assert!(objects(&bucket).is_empty() && store.contains(&key).is_none());
        // Computed again, it is there for everybody.
        compute(&bucket, &[1], encrypt);
        let elsewhere = TempDir::new().unwrap();
        assert!(open(&elsewhere, tier(&bucket, &[1], encrypt)).look_up(&key, &TOKENS).is_some());
    }
}

#[test]
fn a_forged_header_is_a_miss_and_leaves_the_bucket() {
    let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    let key = compute(&bucket, &[1], false);
    change(&bucket, |_| 100);
    let store = open(&dir, tier(&bucket, &[1], false));
    assert!(store.look_up(&key, &TOKENS).is_none());
    assert_eq!((forged(&store), store.status().object.unwrap().corrupt), ((1, 0), 1));
    assert!(objects(&bucket).is_empty());
}

/// A node that has no key, or another, computes, and takes nothing away from the others.
#[test]
fn what_others_sealed_stays_where_it_is() {
    let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    let key = compute(&bucket, &[1], true);
    for keys in [&[][..], &[2]] {
        assert_eq!(compute(&bucket, keys, false), key);
    }
    assert_eq!(objects(&bucket).len(), 3);
    let store = open(&dir, tier(&bucket, &[1], true));
    assert!(store.look_up(&key, &TOKENS).is_some());
    assert_eq!(forged(&store), (0, 0));
}

#[test]
fn an_import_opens_what_this_nodes_keys_sealed() {
    let (bucket, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    compute(&bucket, &[1], true);
    compute(&bucket, &[], false);
    let store = open(&dir, tier(&Arc::new(InMemory::new()), &[1], true));
    for (keys, wanted, left_out) in [(&[1][..], 1, 1), (&[2], 0, 2)] {
        let source = tier(&bucket, keys, false);
        let plan = store.plan_import(&source, &|_| true).unwrap().leaving_out(source.count_beside().unwrap());
        let copied = store.import(&plan, &source, &mut |_| true).unwrap();
        assert_eq!((copied.entries, copied.other_keys, copied.damaged), (wanted, left_out, 0), "{copied:?}");
    }
}
