//! Nodes that share a bucket, from a seed: each keeps, reads, evicts, dies and starts again as it is drawn, hears late of what others removed, has a clock
//! of its own, and meets a bucket that fails, loses answers and keeps what it should delete. Whatever happens, what is found has the
//! right bytes; and once all have heard of a removal, and the bucket works, nobody finds what was removed.
//!
//! `RAGSTONE_TEST_SEED=n` replays a run, `RAGSTONE_TEST_SEEDS=2000` makes so many (`docs/results/faults.md`).

use std::collections::{BTreeMap, BTreeSet};

use object_store::path::Path as Name;
use tempfile::TempDir;

use super::random_tests::{IDS, entry_of, key_of, number, tokens_of};
use super::tests::{assert_right, options};
use super::*;
use crate::entry::tests::{MODEL, expected_layer};
use crate::key::SegmentDigest;
use crate::tier::object::tests::faulty::{Fault, Faulty};
use crate::tier::object::{ObjectOptions, ObjectTier};

const SEEDS: u64 = 24;
const STEPS: u64 = 80;
const NODES: usize = 3;
const SOON: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const PLENTY: u64 = 1 << 30;
/// What a bucket does for a while. One that never answers is tried elsewhere: it takes real time.
const FAULTS: [Fault; 5] =
    [Fault::Failing, Fault::ResetAfterPut, Fault::ShortRead, Fault::Undeletable, Fault::GoneAfterHeader];

type Text = Vec<u32>;

struct Node {
    dir: TempDir,
    /// Its clock, which others' do not agree with.
    env: Env,
    store: Option<KvStore>,
    /// Removals that it has heard of.
    heard: usize,
    /// Those of them that the bucket failed: the log tells a node of them until it has done them, after a restart, too.
    owed: Vec<SegmentDigest>,
}

struct Cluster {
    random: Env,
    bucket: Arc<Faulty>,
    nodes: Vec<Node>,
    /// Texts that were removed, in order, as the corpus tells all nodes.
    removals: Vec<Text>,
    /// The time of the last step at which an entry was kept, or a text removed.
    kept: BTreeMap<u64, u64>,
    removed: BTreeMap<Text, u64>,
    now: u64,
}

impl Node {
    fn new(env: Env) -> Self {
        Self { dir: TempDir::new().unwrap(), env, store: None, heard: 0, owed: Vec::new() }
    }

    fn open(&mut self, bucket: &Arc<Faulty>, host_bytes: u64) {
        self.store = None;
        let catalog = Arc::new(Catalog::open(&self.dir.path().join("catalog"), &self.env).unwrap());
        let object = ObjectOptions::new("memory://unused");
        let object = ObjectTier::over(bucket.clone(), Name::from("kv"), &object, MODEL, self.env.clone()).unwrap();
        let options = StoreOptions { object: Some(Arc::new(object)), ..options(host_bytes, PLENTY) };
        let opened = KvStore::open(&self.dir.path().join("kv"), options, MODEL, self.env.clone(), catalog);
        self.store = Some(opened.unwrap());
    }

    fn store(&self) -> &KvStore {
        self.store.as_ref().expect("open between steps")
    }

    /// Removes what others removed, up to the `count`th.
    fn hear(&mut self, removals: &[Text], count: usize) {
        for text in &removals[self.heard..count] {
            let segment = SegmentDigest::of(&MODEL, text);
            if self.store().invalidate(&[segment], &[]).is_err() {
                self.owed.push(segment);
            }
        }
        self.heard = count;
    }

    /// The bucket works again: all that was owed leaves with the first attempt.
    fn pay(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        self.store().invalidate(&owed, &[]).unwrap();
        self.store().invalidate(&[], &[]).unwrap();
    }
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let (random, bucket) = (Env::seeded(seed, 0), Faulty::new());
        let mut nodes = Vec::new();
        for at in 0..NODES as u64 {
            let skew = random.random_u64() % (48 * 3_600_000);
            let env = Env::seeded(seed * 10 + at, 1_795_000_000_000 + skew);
            let mut node = Node::new(env);
            node.open(&bucket, host_bytes(at));
            nodes.push(node);
        }
        let (removals, kept, removed) = Default::default();
        Self { random, bucket, nodes, removals, kept, removed, now: 0 }
    }

    fn draw(&self, below: u64) -> u64 {
        self.random.random_u64() % below
    }

    fn step(&mut self) {
        self.now += 1;
        let (at, id) = (self.draw(NODES as u64) as usize, self.draw(IDS));
        match self.draw(20) {
            0..6 => self.keep(at, id),
            6..12 => self.read(at, id),
            12 => self.remove(at, id),
            13 | 14 => self.hear(at),
            15 => drop(self.nodes[at].store().evict(&entry_of(id).header().id(), Tier::Host)),
            16 => self.restart(at),
            17 => self.bucket.set(Some(FAULTS[self.draw(FAULTS.len() as u64) as usize])),
            18 => self.heal(),
            _ => self.nodes[at].env.advance(Duration::from_secs(self.draw(600))),
        }
    }

    fn keep(&mut self, at: usize, id: u64) {
        let store = self.nodes[at].store();
        assert!(store.keep(entry_of(id), store.epoch()).unwrap());
        assert!(store.drain(SOON));
        self.kept.insert(id, self.now);
    }

    fn read(&self, at: usize, id: u64) {
        let store = self.nodes[at].store();
        let Some(reader) = store.open_entry(&key_of(id), &tokens_of(id)) else { return };
        assert!(self.kept.contains_key(&id), "node {at} found entry {id}, which nobody ever kept");
        for layer in 0..reader.header().layers {
            match reader.layer(layer) {
                Ok(frame) => {
                    let (k, v) = expected_layer(&reader.header().key, layer, frame.k.len());
                    assert!(frame.k[..] == k[..] && frame.v[..] == v[..], "entry {id}, layer {layer}");
                }
                Err(error) => {
                    store.late_miss(&reader.id(), reader.tier(), error.kind());
                    break;
                }
            }
        }
        drop(reader);
        assert!(store.drain(SOON), "a promotion may write behind");
    }

    /// A text is removed from the corpus at one node: it is told of by the log, which that node has heard to its end.
    fn remove(&mut self, at: usize, id: u64) {
        self.removals.push(tokens_of(id));
        self.removed.insert(tokens_of(id), self.now);
        self.nodes[at].hear(&self.removals, self.removals.len());
    }

    fn hear(&mut self, at: usize) {
        let left = self.removals.len() - self.nodes[at].heard;
        let more = self.draw(left as u64 + 1) as usize;
        let count = self.nodes[at].heard + more;
        self.nodes[at].hear(&self.removals, count);
    }

    /// Half of them without a word: what was acknowledged as heard is on the disk all the same.
    fn restart(&mut self, at: usize) {
        if self.draw(2) == 0 {
            self.nodes[at].store().flush().unwrap();
        }
        let bucket = self.bucket.clone();
        self.nodes[at].open(&bucket, host_bytes(at as u64));
    }

    fn heal(&mut self) {
        self.bucket.set(None);
        // Longer than any bucket is taken for dead.
        self.nodes.iter().for_each(|node| node.env.advance(HOUR));
    }

    /// All have heard of everything, and the bucket works: what was removed and not kept since is nowhere.
    fn settle(&mut self) {
        self.heal();
        for node in &mut self.nodes {
            let all = self.removals.len();
            node.hear(&self.removals, all);
            assert!(node.store().drain(SOON));
            node.pay();
        }
        let mut fresh = Node::new(Env::seeded(1, 1_795_000_000_000));
        fresh.open(&self.bucket, PLENTY);
        let gone: BTreeSet<u64> = (0..IDS).filter(|id| self.is_gone(*id)).collect();
        for (at, node) in self.nodes.iter().chain([&fresh]).enumerate() {
            for id in &gone {
                let found = node.store().open_entry(&key_of(*id), &tokens_of(*id)).map(|reader| reader.tier());
                assert_eq!(found, None, "node {at} finds entry {id}, which was removed");
            }
        }
        for id in (0..IDS).filter(|id| !gone.contains(id)) {
            for node in &self.nodes {
                if let Some(reader) = node.store().open_entry(&key_of(id), &tokens_of(id)) {
                    assert_right(&reader);
                }
            }
        }
    }

    fn is_gone(&self, id: u64) -> bool {
        let removed = self.removed.get(&tokens_of(id));
        removed.is_some_and(|removed| self.kept.get(&id).is_none_or(|kept| kept < removed))
    }
}

/// The second node has no host memory worth the name.
fn host_bytes(at: u64) -> u64 {
    if at == 1 { 2000 } else { PLENTY }
}

#[test]
fn nodes_that_share_a_bucket_find_what_is_right_and_nothing_that_all_have_heard_is_gone() {
    let seeds = match number("RAGSTONE_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RAGSTONE_TEST_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut cluster = Cluster::new(seed);
            for _ in 0..3 {
                (0..STEPS / 3).for_each(|_| cluster.step());
                cluster.settle();
            }
        });
        if run.is_err() {
            panic!("seed {seed} failed; RAGSTONE_TEST_SEED={seed} replays it");
        }
    }
}
