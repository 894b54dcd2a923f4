//! The tiers together: what goes where, what comes back, and what an operator does to them.

use std::sync::Barrier;

use ragstone_kernels::dtype::KvDtype;
use tempfile::TempDir;

use super::tests::{assert_right, options, put};
use super::transfer::Read;
use super::*;
use crate::entry::tests::{LAYERS, MODEL, entry_behind, entry_of_width};
use crate::key::SegmentDigest;
use crate::prompt::plan::{PlanOptions, ReuseMode, plan};
use crate::prompt::primer::Primer;
use crate::prompt::residency::look_up_prompt;
use crate::segment::{Segment, SegmentKind};
use crate::tier::conformance::ModelTier;
use crate::tier::disk::tests::{tamper_frame, tamper_row};
use crate::tier::{EntryId, Precision};
use ragstone_env::FailMode;
use ragstone_env::lock::locked;

const PLENTY: u64 = 1 << 30;
const SOON: Duration = Duration::from_secs(60);

/// A node with a disk of its own and a bucket that it may share.
struct Node {
    _dir: TempDir,
    store: KvStore,
}

fn node(bucket: &Arc<ModelTier>, host_bytes: u64, disk_bytes: u64) -> Node {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, Some(bucket.clone()), host_bytes, disk_bytes);
    Node { _dir: dir, store }
}

fn open(dir: &TempDir, bucket: Option<Arc<ModelTier>>, host_bytes: u64, disk_bytes: u64) -> KvStore {
    let env = Env::seeded(1, 1_000_000);
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
    let object = bucket.map(|bucket| bucket as Arc<dyn SharedTier>);
    let options = StoreOptions { object, ..options(host_bytes, disk_bytes) };
    KvStore::open(&dir.path().join("kv"), options, MODEL, env, catalog).unwrap()
}

fn keep(store: &KvStore, entry: Entry) -> EntryId {
    let id = entry.header().id();
    assert!(store.keep(entry, store.epoch()).unwrap());
    assert!(store.drain(SOON));
    id
}

fn tiers_of(store: &KvStore, id: &EntryId) -> Vec<Tier> {
    let mut tiers = Vec::new();
    store
        .entries(&Tier::ALL, &mut |info| {
            if info.summary.key == id.key {
                tiers = info.tiers
            }
        })
        .unwrap();
    tiers
}

fn is_found(store: &KvStore, id: &EntryId, tokens: &[u32]) -> Option<Tier> {
    store.open_entry(&id.key, tokens).map(|reader| reader.tier())
}

#[test]
fn a_kept_entry_reaches_every_tier_and_another_node_finds_it_in_the_bucket() {
    let bucket = Arc::new(ModelTier::default());
    let a = node(&bucket, PLENTY, PLENTY);
    let id = keep(&a.store, entry_behind(None, &[1, 2]));
    assert_eq!(tiers_of(&a.store, &id), [Tier::Host, Tier::Disk, Tier::Object]);
    let b = node(&bucket, PLENTY, PLENTY);
    let found = b.store.look_up(&id.key, &[1, 2]).unwrap();
    assert_eq!(found.tier, Tier::Object);
    assert_right(&b.store.open_found(&found));
    assert!(b.store.drain(SOON));
    assert_eq!(
        tiers_of(&b.store, &id),
        [Tier::Host, Tier::Disk, Tier::Object],
        "promoted to host memory and to the disk"
    );
    let status = b.store.status();
    let object = status.object.unwrap();
    assert_eq!((object.hits, status.host.misses, status.disk.misses, status.promoted), (1, 1, 1, 1));
    assert_eq!(is_found(&b.store, &id, &[1, 2]), Some(Tier::Host));
}

#[test]
fn the_bucket_is_asked_once_for_what_no_faster_tier_has() {
    let bucket = Arc::new(ModelTier::default());
    let store = node(&bucket, PLENTY, PLENTY).store;
    let id = keep(&store, entry_behind(None, &[1]));
    assert!(store.look_up(&id.key, &[1]).is_some());
    assert_eq!(*locked(&bucket.opened), 0);
    assert!(store.look_up(&KvKey::derive(&MODEL, "", None, &[7]), &[7]).is_none());
    assert_eq!(*locked(&bucket.opened), 1);
}

#[test]
fn a_bucket_that_fails_is_a_miss_counted_and_left_alone_for_a_while() {
    let bucket = Arc::new(ModelTier::default());
    let writer = node(&bucket, PLENTY, PLENTY).store;
    let id = keep(&writer, entry_behind(None, &[1]));
    let store = node(&bucket, PLENTY, PLENTY).store;
    *locked(&bucket.fails) = Some(ErrorKind::Unavailable);
    assert!(store.look_up(&id.key, &[1]).is_none());
    assert_eq!(store.status().object.unwrap().failed, 1);
    assert!(store.keep(entry_behind(None, &[2]), store.epoch()).unwrap() && store.drain(SOON));
    assert_eq!(store.status().object.unwrap().failed, 2, "the upload failed, and nobody waited for it");
    *locked(&bucket.fails) = None;
    assert!(store.look_up(&id.key, &[1]).is_none(), "still left alone");
    store.env().advance(Duration::from_secs(31));
    assert_eq!(is_found(&store, &id, &[1]), Some(Tier::Object));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the threads end with the test")]
fn readers_of_one_entry_share_its_reads() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, PLENTY, PLENTY);
    put(&store, Tier::Disk, entry_of_width(None, &[1, 2], 4096));
    let key = KvKey::derive(&MODEL, "", None, &[1, 2]);
    let readers: Vec<EntryReader> = (0..8).map(|_| store.open_entry(&key, &[1, 2]).unwrap()).collect();
    let start = Barrier::new(readers.len());
    std::thread::scope(|scope| {
        for reader in &readers {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                assert_right(reader);
            });
        }
    });
    let status = store.status();
    assert_eq!(status.promoted, 1);
    assert_eq!(status.shared_reads, 7 * u64::from(LAYERS), "each layer left the disk once");
}

#[test]
fn what_loads_slower_than_it_computes_is_not_kept_there() {
    let dir = TempDir::new().unwrap();
    let mut slow = options(0, PLENTY);
    slow.admission = AdmissionRule::Cost;
    let env = Env::seeded(1, 0);
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
    let store = KvStore::open(&dir.path().join("kv"), slow, MODEL, env, catalog).unwrap();
    let entry = Arc::new(entry_behind(None, &[1])); // computed in 1.5 ms
    assert!(store.write(Tier::Disk, &entry).unwrap().is_some());
    for _ in 0..8 {
        store.costs().observe_read(Tier::Disk, entry.header().total_bytes(), 1, Duration::from_millis(9));
    }
    assert_eq!(store.write(Tier::Disk, &Arc::new(entry_behind(None, &[2]))).unwrap(), None);
    assert_eq!(store.status().disk.declined, 1);
}

#[test]
fn invalidation_removes_a_passage_and_all_behind_it_from_every_tier_and_nothing_else() {
    let bucket = Arc::new(ModelTier::default());
    let store = node(&bucket, PLENTY, PLENTY).store;
    let root = keep(&store, entry_behind(None, &[1]));
    let doomed = keep(&store, entry_behind(Some(root.key), &[2]));
    let behind = keep(&store, entry_behind(Some(doomed.key), &[3]));
    let same_text = keep(&store, entry_behind(None, &[2]));
    let other = keep(&store, entry_behind(Some(root.key), &[3]));
    assert_eq!(doomed.segment, same_text.segment);
    // A node without a disk copy: the bucket's is found by the segment alone.
    for tier in [Tier::Host, Tier::Disk] {
        assert_eq!(store.evict(&same_text, tier).unwrap(), 1);
    }
    let done = store.invalidate(&[doomed.segment], &[]).unwrap();
    assert_eq!((done.entries, done.copies), (3, 2 * 3 + 1));
    for gone in [doomed, behind, same_text] {
        assert_eq!(tiers_of(&store, &gone), [], "{}", gone.key);
    }
    for stays in [root, other] {
        assert_eq!(tiers_of(&store, &stays), [Tier::Host, Tier::Disk, Tier::Object]);
    }
    assert_eq!(store.invalidate(&[doomed.segment], &[]).unwrap(), Invalidated::default());
}

/// One that may stand behind the passage goes from this machine, but stays in the bucket, where its parent may be.
#[test]
fn entries_of_unknown_descent_stay_in_the_bucket_and_no_segment_removes_nothing() {
    let bucket = Arc::new(ModelTier::default());
    let store = node(&bucket, PLENTY, PLENTY).store;
    let gone = entry_behind(None, &[1]).header().key;
    let orphan = keep(&store, entry_behind(Some(gone), &[5]));
    assert_eq!(store.invalidate(&[], &[]).unwrap(), Invalidated::default());
    assert_eq!(tiers_of(&store, &orphan).len(), 3);
    store.invalidate(&[SegmentDigest::of(&MODEL, &[9])], &[]).unwrap();
    assert_eq!(tiers_of(&store, &orphan), [Tier::Object]);
}

/// A child that was computed after a passage which no tier of this machine has.
#[test]
fn what_was_computed_behind_a_passage_that_only_the_bucket_had_is_not_filed_after_its_invalidation() {
    let bucket = Arc::new(ModelTier::default());
    let store = node(&bucket, PLENTY, PLENTY).store;
    let passage = keep(&store, entry_behind(None, &[2]));
    for tier in [Tier::Host, Tier::Disk] {
        store.evict(&passage, tier).unwrap();
    }
    let planned_in = store.epoch();
    store.invalidate(&[passage.segment], &[]).unwrap();
    assert!(!store.keep(entry_behind(Some(passage.key), &[3]), planned_in).unwrap());
    assert!(store.keep(entry_behind(None, &[3]), planned_in).unwrap(), "what stands behind nothing is not touched");
}

/// The bucket keeps what may stand behind the passage, as nothing proves that it does; its node must not have it all the same.
#[test]
fn what_is_invalidated_between_look_up_and_opening_does_not_come_to_a_faster_tier() {
    let bucket = Arc::new(ModelTier::default());
    let node = node(&bucket, PLENTY, PLENTY);
    let store = &node.store;
    let passage = entry_behind(None, &[2]).header().id();
    let behind = entry_behind(Some(passage.key), &[3]).header().id();
    put(store, Tier::Object, entry_behind(Some(passage.key), &[3]));
    let found = store.look_up(&behind.key, &[3]).unwrap();
    store.invalidate(&[passage.segment], &[]).unwrap();
    assert_right(&store.open_found(&found));
    assert!(store.drain(SOON));
    assert_eq!(tiers_of(store, &behind), [Tier::Object]);
    assert_eq!(store.status().promoted, 0);
    // Found anew, it was not found before the invalidation.
    assert_right(&store.open_found(&store.look_up(&behind.key, &[3]).unwrap()));
    assert!(store.drain(SOON));
    assert_eq!(tiers_of(store, &behind), [Tier::Host, Tier::Disk, Tier::Object]);
}

#[test]
fn an_invalidated_entry_is_pinned_no_more() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, PLENTY, PLENTY);
    let id = keep(&store, entry_behind(None, &[2]));
    store.set_pinned(&id.key, true).unwrap();
    store.invalidate(&[id.segment], &[]).unwrap();
    assert!(store.set_pinned(&id.key, true).unwrap(), "it was not");
}

#[test]
fn what_was_planned_before_an_invalidation_is_not_filed_after_it() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, PLENTY, PLENTY);
    let (passage, behind) = (entry_behind(None, &[2]), entry_behind(Some(entry_behind(None, &[2]).header().key), &[3]));
    let ids = [passage.header().id(), behind.header().id()];
    let planned_in = store.epoch();
    // One that is being read meanwhile, and would be promoted.
    put(&store, Tier::Disk, entry_behind(None, &[2]));
    let reader = store.open_entry(&ids[0].key, &[2]).unwrap();
    reader.layer(0).unwrap();
    reader.layer(1).unwrap();
    let held = store.look_up(&ids[0].key, &[2]).unwrap();
    let last = held.entry.frame(2).unwrap();
    store.invalidate(&[ids[0].segment], &[]).unwrap();
    assert!(reader.layer(2).is_err() && !last.is_empty());
    assert!(!store.keep(passage, planned_in).unwrap());
    assert!(!store.keep(behind, planned_in).unwrap(), "nor what was computed after it");
    assert!(store.drain(SOON));
    ids.iter().for_each(|id| assert_eq!(tiers_of(&store, id), []));
    assert_eq!(store.status().invalidated_in_flight, 2);
    keep(&store, entry_behind(None, &[2]));
    assert_eq!(tiers_of(&store, &ids[0]), [Tier::Host, Tier::Disk], "asked for anew, it may come back");
}

#[test]
fn pins_hold_over_restarts_and_can_be_taken_back() {
    let dir = TempDir::new().unwrap();
    let bytes = entry_behind(None, &[0]).header().total_bytes();
    let pinned = entry_behind(None, &[1]).header().id();
    {
        let store = open(&dir, None, bytes, bytes);
        assert!(store.set_pinned(&pinned.key, true).unwrap());
        assert!(!store.set_pinned(&pinned.key, true).unwrap(), "once is enough");
        keep(&store, entry_behind(None, &[1]));
    }
    let store = open(&dir, None, bytes, bytes);
    store.keep(entry_behind(None, &[2]), store.epoch()).unwrap();
    assert!(store.drain(SOON));
    assert_eq!(tiers_of(&store, &pinned), [Tier::Disk]);
    assert_eq!(store.status().disk.refused, 1);
    let mut infos = Vec::new();
    store.entries(&Tier::ALL, &mut |info| infos.push((info.summary.key, info.pinned))).unwrap();
    assert!(infos.contains(&(pinned.key, true)));
    assert!(store.set_pinned(&pinned.key, false).unwrap());
    keep(&store, entry_behind(None, &[3]));
    assert_eq!(tiers_of(&store, &pinned), []);
}

/// The entry between was quarantined: nothing but the tier's tree knows that the two belong together.
#[test]
fn what_stands_before_a_pinned_entry_is_not_evicted_even_if_one_between_is_missing() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, 0, PLENTY);
    let first = keep(&store, entry_behind(None, &[1]));
    let between = keep(&store, entry_behind(Some(first.key), &[2]));
    let last = keep(&store, entry_behind(Some(between.key), &[3]));
    let other = keep(&store, entry_behind(Some(first.key), &[4]));
    store.set_pinned(&last.key, true).unwrap();
    store.late_miss(&between, Tier::Disk, ErrorKind::Corrupt);
    assert_eq!([first, last].map(|id| store.evict(&id, Tier::Disk).unwrap()), [0, 0]);
    assert_eq!([first, between, last].map(|id| store.contains(&id.key).is_some()), [true, false, true]);
    let kept: Vec<KvKey> = [first, last, other]
        .map(|id| id.key)
        .into_iter()
        .filter(|key| store.kept([*key].into_iter()).contains(key))
        .collect();
    assert_eq!(kept, [first.key, last.key]);
    assert_eq!(store.evict(&other, Tier::Disk).unwrap(), 1);
    // A pin of what is gone can be taken back.
    store.late_miss(&last, Tier::Disk, ErrorKind::Corrupt);
    assert_eq!(store.pinned(), [last.key]);
    assert!(store.set_pinned(&last.key, false).unwrap());
    assert_eq!((store.pinned(), store.evict(&first, Tier::Disk).unwrap()), (vec![], 1));
}

/// Three entries, the two oldest of them pinned: one, and what stands before it.
#[test]
fn a_lowered_bound_spares_what_is_pinned() {
    let dir = TempDir::new().unwrap();
    let root = entry_behind(None, &[1]);
    let (bytes, root) = (root.header().total_bytes(), root.header().id());
    let (pinned, newer);
    {
        let store = open(&dir, None, 0, PLENTY);
        keep(&store, entry_behind(None, &[1]));
        pinned = keep(&store, entry_behind(Some(root.key), &[2]));
        store.env().advance(Duration::from_secs(1));
        newer = keep(&store, entry_behind(None, &[3]));
        store.set_pinned(&pinned.key, true).unwrap();
    }
    let there = |store: &KvStore| [&root, &pinned, &newer].map(|id| store.contains(&id.key).is_some());
    {
        let store = open(&dir, None, 0, 2 * bytes);
        assert_eq!(
            there(&store),
            [true, true, false],
            "the newest goes for what is pinned, and what stands before that"
        );
        assert_eq!((store.recovery().evicted, store.recovery().over_bound_bytes), (1, 0));
    }
    // A bound below what is pinned does not hold, and is not exceeded by anything else.
    let store = open(&dir, None, 0, bytes);
    assert_eq!(there(&store), [true, true, false]);
    let (recovery, disk) = (*store.recovery(), store.status().disk);
    assert_eq!((recovery.evicted, recovery.over_bound_bytes), (0, bytes));
    assert_eq!((disk.bytes, disk.capacity_bytes), (2 * bytes, bytes));
    assert!(store.keep(entry_behind(None, &[4]), store.epoch()).unwrap() && store.drain(SOON));
    assert_eq!((there(&store), store.status().disk.refused), ([true, true, false], 1));
    // Unpinned, they make room until the bound holds.
    store.set_pinned(&pinned.key, false).unwrap();
    keep(&store, entry_behind(None, &[5]));
    assert_eq!(store.status().disk.bytes, bytes);
}

/// A listing of the bucket reads every object's header.
#[test]
fn only_the_tiers_that_are_asked_for_are_listed() {
    let bucket = Arc::new(ModelTier::default());
    let store = node(&bucket, PLENTY, PLENTY).store;
    let id = keep(&store, entry_behind(None, &[1]));
    let listed = |tiers: &[Tier]| {
        let mut found = Vec::new();
        store.entries(tiers, &mut |info| found.push(info)).unwrap();
        found
    };
    let host = listed(&[Tier::Host]);
    assert_eq!((host.len(), &host[0].tiers[..], host[0].summary.id()), (1, &[Tier::Host][..], id));
    assert_eq!(listed(&[Tier::Disk, Tier::Host])[0].tiers, [Tier::Host, Tier::Disk]);
    assert_eq!(*locked(&bucket.listed), 0);
    assert_eq!(listed(&[Tier::Object])[0].tiers, [Tier::Object]);
    assert_eq!(*locked(&bucket.listed), 1);
    *locked(&bucket.fails) = Some(ErrorKind::Unavailable);
    let complete = |tiers: &[Tier]| store.entries(tiers, &mut drop).unwrap();
    assert_eq!((complete(&Tier::ALL), complete(&[Tier::Host])), (false, true));
}

#[test]
fn verification_finds_damage_and_removes_it_unless_told_not_to() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, 0, PLENTY);
    let ids: Vec<EntryId> = (0..4).map(|id| keep(&store, entry_behind(None, &[id]))).collect();
    let disk = &store.0.tiers.disk;
    tamper_frame(disk, &ids[1].key, 2, |mut frame| {
        frame[90] ^= 4;
        Some(frame)
    });
    tamper_row(disk, &ids[2].key, |_| None);
    let mut steps = 0;
    let mut count = |_: &VerifyReport| {
        steps += 1;
        true
    };
    let dry = store.verify(&Tier::ALL, true, &mut count).unwrap();
    let mut damaged: Vec<KvKey> = dry.damaged.iter().map(|damaged| damaged.key).collect();
    damaged.sort_unstable();
    let mut expected = [ids[1].key, ids[2].key];
    expected.sort_unstable();
    assert_eq!((damaged.as_slice(), steps, store.status().disk.entries), (expected.as_slice(), 4, 4));
    assert_eq!(store.verify(&Tier::ALL, false, &mut |_| true).unwrap().damaged.len(), 2);
    assert_eq!(store.status().disk.entries, 2);
    let clean = store.verify(&Tier::ALL, false, &mut |_| true).unwrap();
    assert_eq!((clean.entries, clean.frames, clean.damaged.len()), (2, 2 * u64::from(LAYERS), 0));
    assert!(dir.path().join("kv-quarantine").join(ids[1].key.to_string()).join("frame-0002").exists());
    assert_eq!(store.verify(&Tier::ALL, false, &mut |_| false).unwrap().entries, 1, "told to stop");
}

/// The demo model first, and then one's own, as README tells a newcomer to do.
#[test]
fn verification_leaves_alone_what_another_model_computed() {
    let dir = TempDir::new().unwrap();
    let id = {
        let store = open(&dir, None, 0, PLENTY);
        keep(&store, entry_behind(None, &[1]))
    };
    let own = EntryShape { layers: LAYERS + 3, kv_dim: 64, dtype: KvDtype::F16 };
    let options = StoreOptions { shape: Some(own), ..options(0, PLENTY) };
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &Env::seeded(1, 0)).unwrap());
    let other = Fingerprint([77; 32]);
    let store = KvStore::open(&dir.path().join("kv"), options, other, Env::seeded(1, 0), catalog).unwrap();
    let report = store.verify(&Tier::ALL, false, &mut |_| true).unwrap();
    assert_eq!((report.entries, report.damaged.len(), store.status().disk.entries), (1, 0, 1));
    // That is no reason not to look at its checksums.
    tamper_frame(&store.0.tiers.disk, &id.key, 1, |mut frame| {
        frame[90] ^= 4;
        Some(frame)
    });
    assert_eq!(store.verify(&Tier::ALL, false, &mut |_| true).unwrap().damaged.len(), 1);
}

/// KV is derived: what keeps it from being opened keeps nobody from starting.
#[test]
fn a_store_whose_disk_cannot_be_opened_starts_without() {
    let dir = TempDir::new().unwrap();
    let id = {
        let store = open(&dir, None, 0, PLENTY);
        let id = keep(&store, entry_behind(None, &[1]));
        store.flush().unwrap();
        id
    };
    for kind in [ErrorKind::Full, ErrorKind::Unavailable] {
        let env = Env::seeded(1, 0);
        env.set_fail_point("disk.open", FailMode::Error(kind), 1);
        let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &Env::seeded(1, 0)).unwrap());
        let opened = KvStore::open(&dir.path().join("kv"), options(PLENTY, PLENTY), MODEL, env, catalog);
        let store = opened.unwrap();
        assert!(store.damage().is_some_and(|damage| damage.found.contains("goes on without")), "{:?}", store.damage());
        assert_eq!(store.contains(&id.key), None);
        keep(&store, entry_behind(None, &[2]));
    }
    let store = open(&dir, None, 0, PLENTY);
    assert_eq!((store.contains(&id.key), store.damage()), (Some(Tier::Disk), None), "it is used again");
}

#[test]
fn eviction_takes_what_stands_behind_first() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, PLENTY, PLENTY);
    let root = keep(&store, entry_behind(None, &[1]));
    let passage = keep(&store, entry_behind(Some(root.key), &[2]));
    assert_eq!(store.evict(&root, Tier::Host).unwrap(), 2);
    assert_eq!([&root, &passage].map(|id| tiers_of(&store, id)), [[Tier::Disk], [Tier::Disk]]);
    assert_eq!(store.evict(&root, Tier::Host).unwrap(), 0);
}

/// A policy sees a request once: its exact path, and each blended passage.
#[test]
fn a_request_counts_once_for_each_entry_it_used() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, None, PLENTY, PLENTY);
    let root = keep(&store, entry_behind(None, &[1]));
    let a = keep(&store, entry_behind(Some(root.key), &[2]));
    let b = keep(&store, entry_behind(Some(root.key), &[3]));
    let segment = |kind, tokens: &[u32]| Segment { kind, tokens: tokens.into(), place: None };
    let prompt = [
        segment(SegmentKind::SystemPrompt, &[1]),
        segment(SegmentKind::Passage, &[2]),
        segment(SegmentKind::Passage, &[3]),
        segment(SegmentKind::Question, &[9]),
    ];
    let uses = |id: &EntryId| store.0.uses.get(&id.key).uses;
    let before = [root, a, b].map(|id| uses(&id));
    let residency = look_up_prompt(&store, None, Precision::Exact, "", &Primer::none(), &prompt).unwrap();
    let plan = plan(&residency, &PlanOptions::fixed(0.15, ReuseMode::Auto), None).unwrap();
    assert_eq!([root, a, b].map(|id| uses(&id)), before, "a look-up is no use");
    crate::prompt::record_use(&store, &plan);
    assert_eq!([root, a, b].map(|id| uses(&id)), before.map(|uses| uses + 1));
}

#[test]
fn a_whole_entry_can_be_read_from_whichever_tier_has_it() {
    let bucket = Arc::new(ModelTier::default());
    let store = node(&bucket, PLENTY, PLENTY).store;
    let id = keep(&store, entry_behind(None, &[5, 6]));
    for tier in [Tier::Host, Tier::Disk] {
        let Read::Whole(entry) = store.read_anywhere(&id).unwrap() else { panic!("it is there") };
        assert_eq!(entry.frames(), entry_behind(None, &[5, 6]).frames());
        store.evict(&id, tier).unwrap();
    }
    assert!(matches!(store.read_anywhere(&id).unwrap(), Read::Whole(entry) if entry.header().key == id.key));
    let missing = EntryId { key: KvKey([9; 32]), segment: SegmentDigest([9; 16]) };
    assert!(matches!(store.read_anywhere(&missing).unwrap(), Read::Gone));
}
