//! A bucket that whoever is hostile can write to, and answer for: what was sealed is read as it was, or not at all.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::lying::{Lie, Lying};
use super::*;
use crate::tier::object::keys::key_files;

const KINDS: [bool; 2] = [false, true];

/// A tier with keys; the first writes. `encrypt`: not only authenticated.
fn sealed(store: &Arc<dyn ObjectStore>, secrets: &[u8], encrypt: bool, codec: Codec) -> ObjectTier {
    let options =
        ObjectOptions { keys: key_files(secrets), encrypt, timeout: Duration::from_millis(30), ..options(codec) };
    ObjectTier::over(store.clone(), Path::from("kv"), &options, MODEL, env()).unwrap()
}

fn accepting(store: &Arc<dyn ObjectStore>, secrets: &[u8]) -> ObjectTier {
    let options = ObjectOptions { keys: key_files(secrets), accept_unsealed: true, ..options(Codec::Plain) };
    ObjectTier::over(store.clone(), Path::from("kv"), &options, MODEL, env()).unwrap()
}

fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

fn objects(store: &Arc<dyn ObjectStore>) -> Vec<(Path, Bytes)> {
    use futures::TryStreamExt;
    let listed: Vec<_> = run(store.list(None).try_collect()).unwrap();
    listed.into_iter().map(|meta| (meta.location.clone(), run(get(store, &meta.location)))).collect()
}

async fn get(store: &Arc<dyn ObjectStore>, path: &Path) -> Bytes {
    store.get(path).await.unwrap().bytes().await.unwrap()
}

#[test]
fn sealed_tiers_conform() {
    for (codec, encrypt) in [(Codec::Plain, false), (Codec::Plain, true), (Codec::Zstd, true)] {
        conforms(&|_| Box::new(sealed(&memory(), &[1], encrypt, codec)));
    }
    // Where nothing is sealed before, and where a key is on its way out.
    conforms(&|_| Box::new(accepting(&memory(), &[1])));
    conforms(&|_| Box::new(sealed(&memory(), &[2, 1], false, Codec::Plain)));
}

/// Reads all of an entry as a store does. For every answer that was an error, its kind; whatever was read is right.
fn read_all(tier: &ObjectTier, entry: &Entry) -> Vec<ErrorKind> {
    let opened = match tier.open(&entry.header().id()) {
        Ok(Some(opened)) => opened,
        Ok(None) => return vec![ErrorKind::NotFound],
        Err(error) => return vec![error.kind()],
    };
    assert_eq!(opened.header(), entry.header(), "a header that nobody sealed");
    let read = |layer: usize| {
        let bytes = opened.frame(layer as u32).map_err(|error| error.kind());
        bytes.map(|bytes| assert_eq!(bytes, entry.frames()[layer], "a layer that nobody sealed")).err()
    };
    (0..LAYERS as usize).filter_map(read).collect()
}

fn lie() -> impl Strategy<Value = Lie> {
    let at = any::<usize>;
    prop_oneof![
        Just(Lie::Truth),
        at().prop_map(Lie::Bit),
        any::<u64>().prop_map(Lie::OtherRange),
        at().prop_map(Lie::OtherObject),
        (at(), at()).prop_map(|(a, b)| Lie::Swapped(a, b)),
        any::<u64>().prop_map(Lie::Cut),
        any::<u64>().prop_map(Lie::Longer),
        prop_oneof![any::<u64>(), Just(u64::MAX), 0u64..5_000].prop_map(Lie::Claims),
        at().prop_map(Lie::Short),
        at().prop_map(Lie::Long),
        Just(Lie::OtherTag),
        at().prop_map(Lie::Drips),
        Just(Lie::Gone),
        Just(Lie::Fails),
    ]
}

/// A bucket that lies, with a small and a large entry in it, and everything that can be replayed: each of them sealed before, others
/// sealed by the same key, sealed by a key that this node does not have, and not sealed.
fn lying(encrypt: bool, codec: Codec) -> (Arc<Lying>, ObjectTier, Vec<Arc<Entry>>) {
    let lying = Arc::new(Lying::new());
    let store: Arc<dyn ObjectStore> = lying.clone();
    let entries = vec![entry(None, &[1, 2]), wide([3, 4], 10_000)];
    let others = [wide([5, 6], 10_000), entry(None, &[7, 8])];
    for (secrets, encrypt) in [(&[1][..], !encrypt), (&[9], encrypt), (&[1], encrypt)] {
        let spare = memory();
        let tier = sealed(&spare, secrets, encrypt, codec);
        put_all(&tier, &entries);
        put_all(&tier, &others);
        lying.others.lock().unwrap().extend(objects(&spare).into_iter().map(|(_, bytes)| bytes));
    }
    let spare = memory();
    put_all(&tier_over(spare.clone(), codec, &env()), &entries);
    lying.others.lock().unwrap().extend(objects(&spare).into_iter().map(|(_, bytes)| bytes));
    let tier = sealed(&store, &[1], encrypt, codec);
    put_all(&tier, &entries);
    (lying, tier, entries)
}

/// None of the lies is taken for an entry, each costs no more than that it is computed, and each that a seal shows is counted once.
fn assert_no_lie_is_taken(encrypt: bool, codec: Codec, lies: &[Lie]) {
    let (bucket, tier, entries) = lying(encrypt, codec);
    for entry in &entries {
        bucket.tell(lies.to_vec());
        let forged = tier.counts().forged;
        let failed = read_all(&tier, entry);
        let corrupt = failed.iter().filter(|kind| **kind == ErrorKind::Corrupt).count() as u64;
        assert_eq!(tier.counts().forged - forged, corrupt, "{failed:?}");
        let expected = [ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::Unavailable];
        assert!(failed.iter().all(|kind| expected.contains(kind)), "{failed:?}");
    }
    // What it says in truth is believed again, unless it failed so often that it is left alone for now.
    bucket.tell(Vec::new());
    if tier.is_up() {
        entries.iter().for_each(|entry| assert_eq!(read_all(&tier, entry), []));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_lie_is_taken_for_what_was_sealed(lies in prop::collection::vec(lie(), 1..6), zstd in any::<bool>()) {
        assert_no_lie_is_taken(false, if zstd { Codec::Zstd } else { Codec::Plain }, &lies);
    }

    #[test]
    fn no_lie_is_taken_for_what_was_encrypted(lies in prop::collection::vec(lie(), 1..6), zstd in any::<bool>()) {
        assert_no_lie_is_taken(true, if zstd { Codec::Zstd } else { Codec::Plain }, &lies);
    }
}

/// By an entry of three spans: what is read ahead is verified when it is used, wherever the lie is.
#[test]
fn a_lie_about_one_layer_costs_that_layer() {
    for encrypt in KINDS {
        let bucket = Arc::new(Lying::new());
        let store: Arc<dyn ObjectStore> = bucket.clone();
        let options = ObjectOptions { keys: key_files(&[1]), encrypt, ..options(Codec::Plain) };
        let tier = ObjectTier::over(store, Path::from("kv"), &options, MODEL, env()).unwrap();
        let large = wide([1, 2], 300_000);
        tier.put(&large).unwrap();
        let opened = tier.open(&large.header().id()).unwrap().unwrap();
        bucket.tell(vec![Lie::Truth, Lie::Bit(77)]);
        let read: Vec<_> = (0..LAYERS).map(|layer| opened.frame(layer)).collect();
        assert_eq!(read.iter().filter(|frame| frame.is_err()).count(), 1, "{encrypt}");
        for (frame, wanted) in read.iter().zip(large.frames()) {
            assert!(
                frame.as_ref().is_ok_and(|frame| frame == wanted)
                    || frame.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt)
            );
        }
        assert_eq!((tier.counts().forged, tier.usage().forged), (1, 1));
    }
}

/// Whatever lies in the place of an entry, put there by somebody without the key.
#[test]
fn nothing_that_somebody_without_the_key_puts_there_is_an_entry() {
    for encrypt in KINDS {
        let store = memory();
        let tier = sealed(&store, &[1], encrypt, Codec::Plain);
        let (small, other) = (entry(None, &[1, 2]), entry(None, &[1, 3]));
        put_all(&tier, &[small.clone(), other.clone()]);
        let path = tier.names.object(&tier.name(Space::Exact, &small.header().id()));
        let own = run(get(&store, &path));
        let others = run(get(&store, &tier.names.object(&tier.name(Space::Exact, &other.header().id()))));
        let elsewhere = |secrets: &[u8], encrypt| {
            let store = memory();
            sealed(&store, secrets, encrypt, Codec::Plain).put(&small).unwrap();
            objects(&store).remove(0).1
        };
        let plain = memory();
        tier_over(plain.clone(), Codec::Plain, &env()).put(&small).unwrap();
        let half = own.len() / 2;
        let spliced = [&own[..half], &elsewhere(&[1], encrypt)[half..]].concat();
        for (what, forged) in [
            ("another entry's, by the same key", others.clone()),
            ("its own, by another key", elsewhere(&[2], encrypt)),
            ("its own, not sealed", objects(&plain).remove(0).1),
            ("cut off", own.slice(..own.len() - 1)),
            ("nothing", Bytes::new()),
            ("noise", Bytes::from(vec![0x5A; own.len()])),
            ("longer", [&own[..], &[0]].concat().into()),
            ("the head of one sealing and the end of another", spliced.into()),
        ] {
            run(store.put(&path, forged.into())).unwrap();
            let before = tier.counts().forged;
            let failed = read_all(&tier, &small);
            let spliced = what.contains("sealing") && !encrypt;
            assert!(failed.contains(&ErrorKind::Corrupt) || spliced, "{encrypt} {what}: {failed:?}");
            assert_eq!(tier.counts().forged - before, failed.len() as u64, "{what}");
        }
        // What was sealed before under this very name is this entry: entries are immutable.
        for before in [own, elsewhere(&[1], encrypt), elsewhere(&[1], !encrypt)] {
            run(store.put(&path, before.into())).unwrap();
            assert_eq!(read_all(&tier, &small), []);
        }
        assert_eq!(read_all(&tier, &other), [], "its neighbour");
    }
}

#[test]
fn an_encrypted_bucket_says_neither_tokens_nor_tenants() {
    let new = NewEntry { salt: "a tenant's name".into(), ..new_entry(&[0x0102_0304, 0x0506_0708]) };
    let mut builder = EntryBuilder::new(new).unwrap();
    (0..LAYERS).for_each(|_| builder.push_layer(&[0x3C; 32], &[0x3D; 32]).unwrap());
    let secret = Arc::new(builder.finish(1, 2).unwrap());
    for encrypt in KINDS {
        let store = memory();
        let tier = sealed(&store, &[1], encrypt, Codec::Plain);
        tier.put(&secret).unwrap();
        let all = objects(&store);
        let [(path, bytes)] = &all[..] else { panic!("one object") };
        let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
        let told = [
            has(b"a tenant's name"),
            has(&[4, 3, 2, 1, 8, 7, 6, 5]),
            has(&[0x3C; 32]),
            has(secret.header().key.as_bytes()),
        ];
        assert_eq!(told, [!encrypt; 4]);
        // Names tell nothing of texts either way.
        assert!(!path.as_ref().contains(&secret.header().key.to_string()), "{path}");
        assert!(!path.as_ref().contains(&secret.header().segment().to_string()), "{path}");
        assert_found(&sealed(&store, &[1], !encrypt, Codec::Plain), &secret);
    }
}

fn new_entry(tokens: &[u32]) -> NewEntry {
    NewEntry {
        fingerprint: MODEL,
        salt: "".into(),
        parent: None,
        tokens: tokens.into(),
        layers: LAYERS,
        kv_dim: 4,
        dtype: ragstone_kernels::dtype::KvDtype::F32,
    }
}

/// Nodes of the version before, and those without a key, know nothing of what is sealed: they miss it, and leave it there.
#[test]
fn who_has_no_key_misses_what_is_sealed_and_leaves_it() {
    let store = memory();
    let (with, without) = (sealed(&store, &[1], false, Codec::Plain), tier_over(store.clone(), Codec::Plain, &env()));
    let other = sealed(&store, &[2], true, Codec::Plain);
    let (root, lossy) = (entry(None, &[1]), quantisable());
    let behind = entry(Some(root.header().key), &[2]);
    put_all(&with, &[root.clone(), behind.clone()]);
    sealed(&store, &[1], false, Codec::Q8).put(&lossy).unwrap();
    for stranger in [&without, &other] {
        for entry in [&root, &behind, &lossy] {
            assert_missed(stranger, entry);
            assert!(open_lossy(stranger, &entry.header().id()).is_none());
            assert!(!stranger.remove(&entry.header().id()).unwrap());
        }
        assert_eq!(listed(stranger), []);
        assert_eq!(stranger.count_beside().unwrap(), Beside { other_keys: 3, ..Beside::default() });
        let collected =
            stranger.collect(&CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() }).unwrap();
        assert_eq!((collected.objects, collected.other_keys, collected.freed_bytes), (3, 3, 0), "{collected:?}");
        assert_eq!(stranger.counts().forged, 0, "it is others', and no forgery");
    }
    // They write their own beside.
    for stranger in [&without, &other] {
        assert_eq!(stranger.put(&root).unwrap(), stored(&root));
        assert_found(stranger, &root);
    }
    assert_found(&with, &root);
    assert_found(&with, &behind);
    assert!(open_lossy(&with, &lossy.header().id()).is_some());
    let beside = with.count_beside().unwrap();
    assert_eq!(beside, Beside { other_models: 0, lossy: 1, other_keys: 2 });
    // A bound on the bucket is for all of it.
    let all = CollectOptions { max_bytes: Some(0), grace: Duration::ZERO, ..CollectOptions::default() };
    assert_eq!(without.collect(&all).unwrap().left_for_size, 5);
    assert!(objects(&store).is_empty());
}

#[test]
fn what_is_not_sealed_is_taken_only_where_that_is_accepted() {
    let store = memory();
    let (root, second) = (entry(None, &[1]), entry(None, &[2]));
    put_all(&tier_over(store.clone(), Codec::Plain, &env()), &[root.clone(), second.clone()]);
    let strict = sealed(&store, &[1], false, Codec::Plain);
    assert_missed(&strict, &root);
    assert_eq!(strict.counts().forged, 0);
    let collected = strict.collect(&CollectOptions::default()).unwrap();
    assert_eq!((collected.objects, collected.unsealed, collected.resealed), (2, 2, 0));
    let lenient = accepting(&store, &[1]);
    assert_found(&lenient, &root);
    assert_eq!(listed(&lenient).len(), 2);
    assert!(lenient.reseals() && !strict.reseals());
    // What is written is sealed, also beside what is not; each is listed once.
    assert_eq!(lenient.put(&root).unwrap(), stored(&root));
    assert_eq!((listed(&lenient).len(), objects(&store).len()), (2, 3));
    let collected = lenient.collect(&CollectOptions::default()).unwrap();
    assert_eq!((collected.objects, collected.unsealed, collected.resealed), (2, 0, 2), "{collected:?}");
    assert_found(&strict, &root);
    assert_found(&strict, &second);
}

/// A key is changed: read by both, sealed anew by the first, and the other one is forgotten.
#[test]
fn a_key_is_changed_without_losing_an_entry() {
    for codec in [Codec::Plain, Codec::Zstd, Codec::Q8] {
        let store = memory();
        let before = sealed(&store, &[1], false, codec);
        let root = quantisable();
        let behind = Arc::new(entry_of_width(Some(root.header().key), &[5], 10_000));
        let entries = if codec == Codec::Q8 { vec![root] } else { vec![root, behind] };
        put_all(&before, &entries);
        let find = |tier: &ObjectTier, entry: &Entry| {
            let wanted = [(entry.header().id(), if codec == Codec::Q8 { Precision::Lossy } else { Precision::Exact })];
            let opened = tier.open_many(&wanted).remove(0).unwrap()?;
            Some((0..LAYERS).map(|layer| opened.frame(layer).unwrap()).collect::<Vec<_>>())
        };
        let frames: Vec<_> = entries.iter().map(|entry| find(&before, entry)).collect();
        let during = sealed(&store, &[2, 1], true, codec);
        for (entry, frames) in entries.iter().zip(&frames) {
            assert_eq!(find(&during, entry), *frames, "by the key that it was sealed by");
        }
        let dry = CollectOptions { dry_run: true, ..CollectOptions::default() };
        assert_eq!(during.collect(&dry).unwrap().resealed, 0);
        let count = entries.len() as u64;
        let collected = during.collect(&CollectOptions::default()).unwrap();
        assert_eq!((collected.objects, collected.resealed, collected.other_keys), (count, count, 0), "{collected:?}");
        assert_eq!(during.collect(&CollectOptions::default()).unwrap().resealed, 0, "once");
        let after = sealed(&store, &[2], true, codec);
        for (entry, frames) in entries.iter().zip(&frames) {
            assert_eq!(find(&after, entry), *frames, "{codec:?}: bit for bit what it was");
            assert_eq!(find(&before, entry), None);
        }
        assert_eq!(after.usage().forged + during.usage().forged, 0);
    }
}

/// A forgery under the old key is not sealed by the new one.
#[test]
fn what_does_not_open_is_not_sealed_anew() {
    let store = memory();
    let before = sealed(&store, &[1], false, Codec::Plain);
    let entries = [wide([1, 2], 10_000), wide([3, 4], 10_000), entry(None, &[5])];
    put_all(&before, &entries);
    // In its last layer, which no header shows.
    let path = before.names.object(&before.name(Space::Exact, &entries[0].header().id()));
    let mut forged = run(get(&store, &path)).to_vec();
    *forged.last_mut().unwrap() ^= 1;
    run(store.put(&path, forged.into())).unwrap();
    let during = sealed(&store, &[2, 1], false, Codec::Plain);
    let collected = during.collect(&CollectOptions::default()).unwrap();
    assert_eq!((collected.resealed, during.counts().forged), (2, 1), "{collected:?}");
    let after = sealed(&store, &[2], false, Codec::Plain);
    assert_missed(&after, &entries[0]);
    assert_found(&after, &entries[1]);
    assert_found(&after, &entries[2]);
}

/// Its text is deleted between the reading of the old object and the writing of the new one, when neither name shows the other.
#[test]
fn what_is_deleted_while_it_is_sealed_anew_does_not_come_back() {
    let store = memory();
    let before = sealed(&store, &[1], false, Codec::Plain);
    let secret = entry(None, &[1, 2]);
    before.put(&secret).unwrap();
    let during = sealed(&store, &[2, 1], false, Codec::Plain);
    let name = before.name(Space::Exact, &secret.header().id());
    let opened = during.start_open(vec![name]).unwrap().wait().unwrap().unwrap();
    assert_eq!(remove_segment(&before, &secret), 1);
    assert!(!during.seal_anew(&name, &opened).unwrap());
    assert!(objects(&store).is_empty());
    // What another node sealed anew meanwhile is not removed by that.
    before.put(&secret).unwrap();
    sealed(&store, &[2], false, Codec::Plain).put(&secret).unwrap();
    let opened = during.start_open(vec![name]).unwrap().wait().unwrap().unwrap();
    assert!(during.seal_anew(&name, &opened).unwrap());
    assert_eq!(objects(&store).len(), 1);
    assert_found(&during, &secret);
}

#[test]
fn sealed_entries_are_removed_by_what_they_are() {
    for encrypt in KINDS {
        let store = memory();
        let (old, tier) = (sealed(&store, &[1], encrypt, Codec::Plain), sealed(&store, &[2, 1], encrypt, Codec::Plain));
        let plain = tier_over(store.clone(), Codec::Plain, &env());
        let root = entry(None, &[1]);
        let behind = entry(Some(root.header().key), &[7, 8]);
        for tier in [&old, &plain, &tier] {
            put_all(tier, &[root.clone(), behind.clone()]);
        }
        let segment = behind.header().segment();
        assert_eq!(tier.tenants_of(&[MODEL], &[segment]).unwrap(), BTreeSet::from([String::new()]));
        let removed = tier.remove_segments(None, &[MODEL], &[segment]).unwrap();
        assert_eq!(removed.len(), 3, "by either key, and by none");
        assert!(removed.iter().all(|(key, _)| *key == behind.header().key), "{removed:?}");
        [&old, &plain, &tier].iter().for_each(|tier| assert_missed(tier, &behind));
        let nobody = BTreeSet::from(["nobody".to_owned()]);
        assert_eq!(tier.remove_segments(Some(&nobody), &[MODEL], &[root.header().segment()]).unwrap(), []);
        let removed = tier.remove_many(&[(MODEL, root.header().id())]).unwrap();
        assert!(removed.len() == 3 && removed.iter().all(|(key, _)| *key == root.header().key), "{removed:?}");
        assert!(objects(&store).is_empty());
        assert_eq!(tier.usage().entries, 0);
    }
}

#[test]
fn collected_like_any_other() {
    let store = memory();
    let tier = sealed(&store, &[1], true, Codec::Plain);
    let root = entry(None, &[1]);
    let behind = entry(Some(root.header().key), &[2]);
    let deleted = entry(None, &[8]);
    put_all(&tier, &[root.clone(), behind.clone(), deleted.clone(), entry(Some(deleted.header().key), &[3])]);
    let path = tier.names.object(&tier.name(Space::Exact, &entry(None, &[77]).header().id()));
    run(store.put(&path, vec![0x5A; 500].into())).unwrap();
    // As a node that wrote none of them.
    let node = sealed(&store, &[1], true, Codec::Plain);
    assert_eq!(node.remove_segments(None, &[MODEL], &[deleted.header().segment()]).unwrap().len(), 1);
    let collected = node.collect(&CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() }).unwrap();
    assert_eq!((collected.objects, collected.left_orphaned, collected.left_damaged), (4, 1, 1), "{collected:?}");
    assert_found(&node, &behind);
    assert_eq!((node.usage().entries, node.counts().forged), (2, 1));
}

/// Neither what it took nor when it was is covered by a key: a neighbour may say what it likes.
#[test]
fn what_an_entry_says_of_itself_is_bounded() {
    let store = memory();
    let env = env();
    let header =
        EntryHeader { compute_us: u64::MAX, created_unix_ms: u64::MAX, ..(**entry(None, &[1]).header()).clone() };
    let forged = Entry::from_frames(Arc::new(header), entry(None, &[1]).frames().to_vec()).unwrap();
    let tier = tier_over(store, Codec::Plain, &env);
    tier.put(&Arc::new(forged)).unwrap();
    let [read] = &listed(&tier)[..] else { panic!("one entry") };
    assert_eq!((read.compute_us, read.created_unix_ms), (1_000_000, env.now_unix_ms()));
}

#[test]
fn keys_that_cannot_be_used_are_refused() {
    let open =
        |options: ObjectOptions| ObjectTier::over(memory(), Path::from("kv"), &options, MODEL, env()).unwrap_err();
    let missing = KeySources::files(["/nowhere/key".into()]);
    let error = open(ObjectOptions { keys: missing, ..options(Codec::Plain) });
    assert!(error.to_string().contains("/nowhere/key") && error.kind() == ErrorKind::InvalidInput, "{error}");
    let error = open(ObjectOptions { encrypt: true, ..options(Codec::Plain) });
    assert!(error.to_string().contains("no key is named"), "{error}");
}
