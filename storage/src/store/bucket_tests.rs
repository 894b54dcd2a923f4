//! The store over a real object tier: several models in one bucket, and 8-bit objects.

use std::collections::BTreeSet;

use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt};
use ragstone_kernels::dtype::KvDtype;
use tempfile::TempDir;

use super::tests::options;
use super::*;
use crate::entry::{EntryBuilder, NewEntry};
use crate::key::SegmentDigest;
use crate::prompt::plan::{LoadPlan, PlanOptions, ReuseMode, Source};
use crate::prompt::primer::Primer;
use crate::prompt::residency::{CandidateKind, Residency, look_up_prompt};
use crate::segment::{Segment, SegmentKind};
use crate::tier::object::{Codec, ObjectOptions, ObjectTier};
use crate::tier::{EntryId, Precision};

const PLENTY: u64 = 1 << 30;
const SOON: Duration = Duration::from_secs(60);
pub(super) const MODEL: Fingerprint = Fingerprint([1; 32]);
pub(super) const OTHER: Fingerprint = Fingerprint([2; 32]);
const LAYERS: u32 = 2;

fn plan(residency: &Residency, reuse: ReuseMode) -> LoadPlan {
    crate::prompt::plan::plan(residency, &PlanOptions::fixed(0.15, reuse), None).unwrap()
}

pub(super) fn open(dir: &TempDir, bucket: &Arc<InMemory>, model: Fingerprint, codec: Codec) -> KvStore {
    let env = Env::seeded(1, 1_000_000);
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
    let object = ObjectOptions { codec, ..ObjectOptions::new("memory://unused") };
    let object = ObjectTier::over(bucket.clone(), Name::from("kv"), &object, model, env.clone()).unwrap();
    let options = StoreOptions { object: Some(Arc::new(object)), ..options(PLENTY, PLENTY) };
    KvStore::open(&dir.path().join("kv"), options, model, env, catalog).unwrap()
}

/// An entry of numbers that 8 bits do not hold exactly.
pub(super) fn entry(model: Fingerprint, parent: Option<KvKey>, tokens: &[u32]) -> Entry {
    entry_of("", model, parent, tokens)
}

fn entry_of(tenant: &str, model: Fingerprint, parent: Option<KvKey>, tokens: &[u32]) -> Entry {
    let new = NewEntry {
        fingerprint: model,
        salt: tenant.into(),
        parent,
        tokens: tokens.into(),
        layers: LAYERS,
        kv_dim: 4,
        dtype: KvDtype::F32,
    };
    let mut builder = EntryBuilder::new(new).unwrap();
    for layer in 0..LAYERS {
        let value = |at: usize, sign: f32| sign * ((at as f32 + 1.0) * 0.37 + layer as f32);
        let side = |sign| -> Vec<u8> { (0..4 * tokens.len()).flat_map(|at| value(at, sign).to_le_bytes()).collect() };
        builder.push_layer(&side(1.0), &side(-1.0)).unwrap();
    }
    builder.finish(1_500, 7).unwrap()
}

pub(super) fn keep(store: &KvStore, parent: Option<KvKey>, tokens: &[u32]) -> EntryId {
    keep_of("", store, parent, tokens)
}

fn keep_of(tenant: &str, store: &KvStore, parent: Option<KvKey>, tokens: &[u32]) -> EntryId {
    let entry = entry_of(tenant, *store.fingerprint(), parent, tokens);
    let id = entry.header().id();
    assert!(store.keep(entry, store.epoch()).unwrap() && store.drain(SOON));
    id
}

fn segment(kind: SegmentKind, tokens: &[u32]) -> Segment {
    Segment { kind, tokens: tokens.into(), place: None }
}

/// A root, two passages, a question.
fn prompt() -> [Segment; 4] {
    [
        segment(SegmentKind::SystemPrompt, &[1]),
        segment(SegmentKind::Passage, &[2, 3]),
        segment(SegmentKind::Passage, &[4, 5]),
        segment(SegmentKind::Question, &[9]),
    ]
}

/// What a node that answered the prompt has: its exact path, and the second passage after the system prompt alone.
fn keep_prompt(store: &KvStore) -> [EntryId; 4] {
    let root = keep(store, None, &[1]);
    let first = keep(store, Some(root.key), &[2, 3]);
    [root, first, keep(store, Some(first.key), &[4, 5]), keep(store, Some(root.key), &[4, 5])]
}

fn look_up(store: &KvStore, precision: Precision) -> Residency {
    look_up_prompt(store, None, precision, "", &Primer::none(), &prompt()).unwrap()
}

/// Names of all objects below a model's part of a name space.
pub(super) fn objects(bucket: &InMemory, below: &str) -> Vec<String> {
    use futures::TryStreamExt;
    let listed = bucket.list(Some(&Name::from(format!("kv/{below}"))));
    let listed: Vec<_> = futures::executor::block_on(listed.try_collect()).unwrap();
    listed.into_iter().map(|object| object.location.to_string()).collect()
}

#[test]
fn a_removed_passage_leaves_the_bucket_for_every_model_of_the_folder() {
    let bucket = Arc::new(InMemory::new());
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (passage, behind, alone);
    {
        // The folder was used with another model before.
        let store = open(&dir, &bucket, OTHER, Codec::Plain);
        passage = keep(&store, None, &[2, 3]);
        behind = keep(&store, Some(passage.key), &[4, 5]);
        alone = keep(&store, None, &[6]);
    }
    // What another node computed with that model is known by the passage only.
    let far = keep(&open(&elsewhere, &bucket, OTHER, Codec::Q8), Some(KvKey([7; 32])), &[2, 3]);
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    let own = keep(&store, None, &[2, 3]);
    let others = keep(&store, None, &[6]);
    let segments = [MODEL, OTHER].map(|model| SegmentDigest::of(&model, &[2, 3]));
    assert_eq!(segments, [own.segment, passage.segment]);

    let done = store.invalidate(&segments, &[OTHER, MODEL]).unwrap();
    assert_eq!(done.copies, 2 + 2 + 3 + 1, "in host and disk, two of the disk's, three objects, and one behind them");
    assert_eq!(done.entries, 4, "own, passage, what stood behind it, and the far one");
    let left = [objects(&bucket, "v1"), objects(&bucket, "v1q8")].concat();
    for gone in [passage, behind, far, own] {
        assert!(!left.iter().any(|name| name.ends_with(&gone.key.to_string())), "{left:?}");
    }
    for stays in [alone, others] {
        assert!(left.iter().any(|name| name.ends_with(&stays.key.to_string())), "{left:?}");
    }
    assert_eq!(left.len(), 2, "{left:?}");
}

/// One passage of two tenants, in every tier, of this model and another, and what a third node has of it.
#[test]
fn a_tenants_invalidation_leaves_others_entries_where_they_are() {
    let bucket = Arc::new(InMemory::new());
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let far = |tenant: &str| keep_of(tenant, &open(&elsewhere, &bucket, OTHER, Codec::Q8), None, &[2, 3]);
    let (far_guests, far_own) = (far("guest"), far(""));
    let store = open(&dir, &bucket, MODEL, Codec::Plain);
    let [own, guests] = ["", "guest"].map(|tenant| {
        let passage = keep_of(tenant, &store, None, &[2, 3]);
        [passage, keep_of(tenant, &store, Some(passage.key), &[4, 5])]
    });
    assert_eq!(own[0].segment, guests[0].segment);
    let segments = [MODEL, OTHER].map(|model| SegmentDigest::of(&model, &[2, 3]));
    let one = |tenant: &str| BTreeSet::from([tenant.to_owned()]);
    let planned_before = store.epoch();
    let done = store.invalidate_of(Some(&one("guest")), &segments, &[OTHER, MODEL]).unwrap();
    assert_eq!((done.entries, done.copies), (3, 7), "two in three tiers, and the far one");
    let left = [objects(&bucket, "v1"), objects(&bucket, "v1q8")].concat();
    let is_left = |id: &EntryId| left.iter().any(|name| name.ends_with(&id.key.to_string()));
    assert!(is_left(&own[0]) && is_left(&own[1]) && is_left(&far_own));
    assert!(!is_left(&guests[0]) && !is_left(&guests[1]) && !is_left(&far_guests));
    for (id, tokens) in own.iter().zip([&[2, 3], &[4, 5]]) {
        assert!(store.look_up(&id.key, tokens).is_some());
    }
    assert!(store.look_up(&guests[0].key, &[2, 3]).is_none());
    // What was planned before is not filed, whoever's it is; what is planned now is filed for who has the text still.
    store.evict(&own[1], Tier::Host).unwrap();
    assert!(!store.keep(entry_of("guest", MODEL, None, &[2, 3]), planned_before).unwrap());
    assert!(!store.keep(entry_of("", MODEL, Some(own[0].key), &[4, 5]), planned_before).unwrap());
    assert!(store.keep(entry_of("", MODEL, Some(own[0].key), &[4, 5]), store.epoch()).unwrap());
    // Both tenants of both models, and who stands behind one of them, are found; afterwards the one that is left.
    let tenants = || store.tenants_of(&segments, &[OTHER]).tenants;
    assert_eq!(tenants(), BTreeSet::from([String::new()]));
    far("far");
    assert_eq!(tenants(), BTreeSet::from([String::new(), "far".to_owned()]), "of another model, in the bucket alone");
    assert_eq!(store.invalidate_of(Some(&one("nobody")), &segments, &[OTHER]).unwrap(), Invalidated::default());
}

#[test]
fn eight_bits_of_the_bucket_are_blended_and_never_loaded_as_they_are() {
    let bucket = Arc::new(InMemory::new());
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [root, first, second, standalone] = keep_prompt(&open(&a, &bucket, MODEL, Codec::Q8));
    assert_eq!((objects(&bucket, "v1").len(), objects(&bucket, "v1q8").len()), (0, 4));
    let store = open(&b, &bucket, MODEL, Codec::Q8);
    let residency = look_up(&store, Precision::Lossy);
    let lossy = |id: &EntryId| Some((CandidateKind::Lossy, id.key, Tier::Object));
    let states: Vec<_> = residency.segments.iter().map(|at| at.best()).collect();
    let missing = None;
    assert_eq!(states, [missing, lossy(&first), lossy(&second), missing], "the root is computed");
    assert!(residency.found.values().all(|found| !found.entry.is_exact()));
    let read: Vec<u64> = residency.segments[1..3].iter().map(|at| at.candidates[0].bytes).collect();
    let whole = [&first, &second].map(|id| residency.found[&id.key].header.total_bytes());
    assert!(read.iter().zip(whole).all(|(read, whole)| (1..whole).contains(read)), "{read:?} of {whole:?}");

    let planned = plan(&residency, ReuseMode::Auto);
    let blend = |id: &EntryId| Source::Blend { key: id.key, tier: Tier::Object };
    let sources: Vec<_> = planned.segments.iter().map(|segment| segment.source).collect();
    assert_eq!(sources, [Source::Compute, blend(&first), blend(&second), Source::Compute]);
    assert_eq!((planned.exact_tokens, planned.blended_tokens), (0, 4));
    let filed: Vec<_> = planned.segments.iter().map(|segment| segment.store_as).collect();
    assert_eq!(filed, [Some(root.key), None, None, None]);
    assert_eq!(planned.exact_path().count(), 1, "nothing blended is left on the device");
    assert_eq!(planned.missing_standalone, [1, 2], "and is computed when nobody waits");
    // What wants the exact bits computes them, and files them.
    let exact = plan(&residency, ReuseMode::ExactOnly);
    assert_eq!((exact.computed_tokens, exact.total_tokens), (6, 6));
    assert_eq!(exact.segments[2].store_as, Some(second.key));
    assert!(look_up(&store, Precision::Exact).segments.iter().all(|at| at.best() == missing));

    // Read whole, it is nowhere else afterwards.
    for id in [&first, &second] {
        assert_close(&store.open_found(&residency.found[&id.key]));
    }
    assert!(store.drain(SOON));
    assert!([root, first, second, standalone].iter().all(|id| store.contains(&id.key).is_none()));
    let status = store.status();
    assert_eq!((status.promoted, status.lossy_hits, status.object.unwrap().hits), (0, 2, 2));
    // The root, which is not blended, and the second look-up, for exact entries only; a lossy hit is no miss as well.
    assert_eq!(status.object.unwrap().misses, 1 + 4);
    assert_eq!(status.object.unwrap().corrupt, 0);
}

fn assert_close(reader: &EntryReader) {
    let exact = entry(MODEL, reader.header().parent, &reader.header().tokens);
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    for layer in 0..LAYERS {
        let (read, wanted) = (reader.layer(layer).unwrap(), exact.layer(layer).unwrap());
        assert_eq!(read.tier, Tier::Object);
        assert_ne!((&read.k, &read.v), (&wanted.k, &wanted.v));
        for (read, wanted) in [(&read.k, &wanted.k), (&read.v, &wanted.v)] {
            let pairs = floats(read).into_iter().zip(floats(wanted));
            pairs.for_each(|(read, wanted)| assert!((read - wanted).abs() <= 0.03, "{read} for {wanted}"));
        }
    }
}

#[test]
fn what_is_exact_anywhere_goes_before_eight_bits() {
    let bucket = Arc::new(InMemory::new());
    let [a, b, c] = [(); 3].map(|()| TempDir::new().unwrap());
    let [root, first, _, standalone] = keep_prompt(&open(&a, &bucket, MODEL, Codec::Q8));
    let store = open(&b, &bucket, MODEL, Codec::Q8);
    keep(&store, None, &[1]);
    keep(&store, Some(root.key), &[4, 5]);
    let states: Vec<_> = look_up(&store, Precision::Lossy).segments.iter().map(|at| at.best()).collect();
    assert_eq!(
        states[..3],
        [
            Some((CandidateKind::Exact, root.key, Tier::Host)),
            Some((CandidateKind::Lossy, first.key, Tier::Object)),
            Some((CandidateKind::Standalone, standalone.key, Tier::Host)),
        ]
    );
    // A node that does not keep 8 bits does not use them; what it keeps is exact for those that do.
    let plain = open(&c, &bucket, MODEL, Codec::Plain);
    let is_missing = |at: &crate::prompt::residency::SegmentResidency| at.best().is_none();
    assert!(look_up(&plain, Precision::Lossy).segments.iter().all(is_missing));
    keep(&plain, Some(root.key), &[2, 3]);
    let residency = look_up(&store, Precision::Lossy);
    assert_eq!(residency.segments[1].best(), Some((CandidateKind::Exact, first.key, Tier::Object)));
    assert!(residency.found[&first.key].entry.is_exact());
    // Both are read at once: each reader gets what was found for it.
    let lossy = store.find_wanted([Wanted { key: &first.key, tokens: &[2, 3], precision: Precision::Lossy }]);
    let lossy = store.look_up_lossy(&lossy, &first.key, &[2, 3]).unwrap();
    let (exact, lossy) = (store.open_found(&residency.found[&first.key]), store.open_found(&lossy));
    exact.layer(0).unwrap();
    assert_close(&lossy);
    assert_eq!(store.contains(&first.key), None, "a layer is missing yet");
    let (read, wanted) = (exact.layer(1).unwrap(), entry(MODEL, Some(root.key), &[2, 3]).layer(1).unwrap());
    assert_eq!((read.k, read.v), (wanted.k, wanted.v));
    assert_eq!(store.contains(&first.key), Some(Tier::Host));
}

#[test]
fn eight_bits_are_listed_as_such_verified_and_not_carried_elsewhere() {
    let bucket = Arc::new(InMemory::new());
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ids = keep_prompt(&open(&a, &bucket, MODEL, Codec::Q8));
    let store = open(&b, &bucket, MODEL, Codec::Q8);
    keep(&store, None, &[1]);
    let mut infos = Vec::new();
    let is_complete = store.entries(&Tier::ALL, &mut |info| infos.push((info.summary.key, info.tiers, info.lossy)));
    assert!(is_complete.unwrap());
    assert_eq!(infos.len(), 4);
    assert!(infos.contains(&(ids[0].key, vec![Tier::Host, Tier::Disk, Tier::Object], true)));
    assert!(infos.contains(&(ids[3].key, vec![Tier::Object], true)));
    let carried = store.plan_export(&Tier::ALL, &|_| true).unwrap().preview();
    assert_eq!((carried.wanted, carried.not_whole), (1, 3));

    let name = objects(&bucket, "v1q8").into_iter().find(|name| name.ends_with(&ids[3].key.to_string())).unwrap();
    futures::executor::block_on(async {
        let name = Name::from(name);
        let mut bytes = bucket.get(&name).await.unwrap().bytes().await.unwrap().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        bucket.put(&name, bytes.into()).await.unwrap();
    });
    let report = store.verify(&[Tier::Object], false, &mut |_| true).unwrap();
    assert_eq!((report.entries, report.damaged.len()), (4, 1));
    assert_eq!((report.damaged[0].key, store.status().object.unwrap().entries), (ids[3].key, 3));
    assert_eq!(store.evict(&ids[2], Tier::Object).unwrap(), 1);
    assert_eq!(objects(&bucket, "v1q8").len(), 2);
}

/// A lossy entry that turns out damaged while it is read: a late miss, and gone.
#[test]
fn damaged_eight_bits_are_a_late_miss() {
    let bucket = Arc::new(InMemory::new());
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [_, first, ..] = keep_prompt(&open(&a, &bucket, MODEL, Codec::Q8));
    let store = open(&b, &bucket, MODEL, Codec::Q8);
    let name = objects(&bucket, "v1q8").into_iter().find(|name| name.ends_with(&first.key.to_string())).unwrap();
    futures::executor::block_on(async {
        let name = Name::from(name);
        let mut bytes = bucket.get(&name).await.unwrap().bytes().await.unwrap().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        bucket.put(&name, bytes.into()).await.unwrap();
    });
    let residency = look_up(&store, Precision::Lossy);
    let reader = store.open_found(&residency.found[&first.key]);
    reader.layer(0).unwrap();
    let error = reader.layer(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    store.late_miss_of(&reader.id(), reader.tier(), reader.precision(), error.kind());
    assert_eq!((store.status().late_misses, store.status().object.unwrap().corrupt), (1, 1));
    assert_eq!(look_up(&store, Precision::Lossy).segments[1].best(), None);
}

/// Damaged 8 bits leave alone: while they are looked for, verified, or read.
#[test]
fn damaged_eight_bits_do_not_take_the_exact_object_along() {
    let bucket = Arc::new(InMemory::new());
    let [a, b, c] = [(); 3].map(|()| TempDir::new().unwrap());
    let (lossy, plain) = (open(&a, &bucket, MODEL, Codec::Q8), open(&b, &bucket, MODEL, Codec::Plain));
    let ids = [1, 2, 3].map(|token| {
        keep(&lossy, None, &[token]);
        keep(&plain, None, &[token])
    });
    let flip = |id: &EntryId, from_end: bool| {
        let name = objects(&bucket, "v1q8").into_iter().find(|name| name.ends_with(&id.key.to_string())).unwrap();
        futures::executor::block_on(async {
            let name = Name::from(name);
            let mut bytes = bucket.get(&name).await.unwrap().bytes().await.unwrap().to_vec();
            let at = if from_end { bytes.len() - 1 } else { 30 };
            bytes[at] ^= 1;
            bucket.put(&name, bytes.into()).await.unwrap();
        });
    };
    let store = open(&c, &bucket, MODEL, Codec::Q8);
    // A header is read with the look-up, frames afterwards.
    flip(&ids[0], false);
    let look = |at: usize, tokens: &[u32]| {
        store.find_wanted([Wanted { key: &ids[at].key, tokens, precision: Precision::Lossy }])
    };
    look(0, &[1]);
    assert_eq!((objects(&bucket, "v1").len(), objects(&bucket, "v1q8").len()), (3, 2));

    let found = look(1, &[2]);
    let reader = store.open_found(&store.look_up_lossy(&found, &ids[1].key, &[2]).unwrap());
    store.late_miss_of(&ids[1], reader.tier(), reader.precision(), ErrorKind::Corrupt);
    assert_eq!((objects(&bucket, "v1").len(), objects(&bucket, "v1q8").len()), (3, 1));

    flip(&ids[2], true);
    let report = store.verify(&[Tier::Object], false, &mut |_| true).unwrap();
    assert_eq!((report.entries, report.damaged.len()), (4, 1));
    assert_eq!((objects(&bucket, "v1").len(), objects(&bucket, "v1q8").len()), (3, 0));
    assert!(store.look_up(&ids[0].key, &[1]).is_some());
    store.late_miss(&ids[0], Tier::Object, ErrorKind::Corrupt);
    assert_eq!(objects(&bucket, "v1").len(), 2);
}

/// A source of another model, or of 8 bits: nothing comes from there, and it is said why.
#[test]
fn what_a_source_has_that_cannot_be_imported_is_counted() {
    let bucket = Arc::new(InMemory::new());
    let [a, b, c] = [(); 3].map(|()| TempDir::new().unwrap());
    let other = open(&a, &bucket, OTHER, Codec::Plain);
    [1, 2].iter().for_each(|token| _ = keep(&other, None, &[*token]));
    drop(other);
    let other = open(&a, &bucket, OTHER, Codec::Q8);
    keep(&other, None, &[3]);
    let own = open(&b, &bucket, MODEL, Codec::Q8);
    [1, 2, 3].iter().for_each(|token| _ = keep(&own, None, &[*token]));
    keep(&open(&c, &bucket, MODEL, Codec::Plain), None, &[3]);
    let options = ObjectOptions::new("memory://unused");
    let source = ObjectTier::over(bucket, Name::from("kv"), &options, MODEL, Env::seeded(1, 0)).unwrap();
    let dir = TempDir::new().unwrap();
    let store = open(&dir, &Arc::new(InMemory::new()), MODEL, Codec::Plain);
    let plan = store.plan_import(&source, &|_| true).unwrap().leaving_out(source.count_beside().unwrap());
    let dry = plan.preview();
    assert_eq!((dry.wanted, dry.other_models, dry.not_whole), (1, 3, 2));
    let done = store.import(&plan, &source, &mut |_| true).unwrap();
    assert_eq!((done.entries, done.other_models, done.not_whole), (1, 3, 2));
}
