//! Random operations against the simplest model of a store: what was kept, and not removed since, may be found; nothing else
//! may; and what is found has the right bytes. With faults, small tiers, and reopening on the way.
//!
//! One seed is one run, and replays it: `RAGSTONE_TEST_SEED=n`. `RAGSTONE_TEST_SEEDS=10000` runs so many; `docs/results/faults.md`
//! has the command.

use std::collections::HashSet;

use tempfile::TempDir;

use super::tests::{assert_right, options};
use super::*;
use crate::entry::tests::{LAYERS, MODEL, entry_of_width};
use crate::key::SegmentDigest;
use crate::policy::PolicyKind;
use crate::tier::Use;
use crate::tier::conformance::ModelTier;
use ragstone_env::FailMode;
use ragstone_env::lock::locked;

const SEEDS: u64 = 48;
const STEPS: u64 = 60;
const SOON: Duration = Duration::from_secs(60);

/// Twelve entries: two roots, passages behind them, and passages behind those. Each text stands in several places.
pub(super) fn tokens_of(id: u64) -> Vec<u32> {
    match id {
        0 | 1 => vec![id as u32],
        _ => vec![100 + (id % 4) as u32, 7],
    }
}

fn parent_of(id: u64) -> Option<u64> {
    match id {
        0 | 1 => None,
        2..6 => Some(0),
        6..9 => Some(1),
        _ => Some(id - 6),
    }
}

pub(super) fn key_of(id: u64) -> KvKey {
    let parent = parent_of(id).map(key_of);
    KvKey::derive(&MODEL, "", parent.as_ref(), &tokens_of(id))
}

pub(super) fn entry_of(id: u64) -> Entry {
    entry_of_width(parent_of(id).map(key_of), &tokens_of(id), 4 + 40 * (id as u32 % 3))
}

pub(super) const IDS: u64 = 12;

struct World {
    seed: u64,
    random: Env,
    dir: TempDir,
    env: Env,
    bucket: Arc<ModelTier>,
    store: Option<KvStore>,
    policy: PolicyKind,
    host_bytes: u64,
    disk_bytes: u64,
    /// What may be found.
    kept: HashSet<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Env::seeded(seed, 0);
        let whole: u64 = (0..IDS).map(|id| entry_of(id).header().total_bytes()).sum();
        let share = |random: &Env| whole * (random.random_u64() % 5) / 3;
        let (host_bytes, disk_bytes) = (share(&random), share(&random));
        let policy = PolicyKind::ALL[random.random_u64() as usize % PolicyKind::ALL.len()];
        let (dir, env) = (TempDir::new().unwrap(), Env::seeded(seed, 1_000_000));
        let bucket = Arc::new(ModelTier::default());
        let mut world =
            Self { seed, random, dir, env, bucket, store: None, policy, host_bytes, disk_bytes, kept: HashSet::new() };
        world.open();
        world
    }

    fn open(&mut self) {
        self.store = None;
        let catalog = Arc::new(Catalog::open(&self.dir.path().join("catalog"), &self.env).unwrap());
        let mut chosen = options(self.host_bytes, self.disk_bytes);
        chosen.host.policy = self.policy;
        chosen.disk.policy = self.policy;
        if self.seed.is_multiple_of(2) {
            chosen.object = Some(self.bucket.clone());
        }
        let opened = KvStore::open(&self.dir.path().join("kv"), chosen, MODEL, self.env.clone(), catalog);
        self.store = Some(opened.unwrap());
    }

    fn store(&self) -> &KvStore {
        self.store.as_ref().expect("open between steps")
    }

    fn draw(&self, below: u64) -> u64 {
        self.random.random_u64() % below
    }

    fn step(&mut self) {
        let id = self.draw(IDS);
        match self.draw(16) {
            0..5 => self.keep(id),
            5..9 => self.read(id),
            9 => self.record_use(id),
            10 => self.evict(id),
            11 => self.invalidate(id),
            12 => drop(self.store().set_pinned(&key_of(id), self.draw(3) == 0).unwrap()),
            13 => self.disturb(),
            14 => self.reopen(),
            _ => self.check_all(),
        }
        self.check_bounds();
    }

    fn keep(&mut self, id: u64) {
        assert!(self.store().keep(entry_of(id), self.store().epoch()).unwrap());
        assert!(self.store().drain(SOON));
        self.kept.insert(id);
    }

    fn read(&self, id: u64) {
        let Some(reader) = self.store().open_entry(&key_of(id), &tokens_of(id)) else { return };
        assert!(self.kept.contains(&id), "entry {id} was found, but never kept, or removed");
        let first = self.draw(u64::from(LAYERS)) as u32;
        match reader.layer(first) {
            Ok(_) => assert_right(&reader),
            Err(error) => self.store().late_miss(&reader.id(), reader.tier(), error.kind()),
        }
        drop(reader);
        assert!(self.store().drain(SOON), "a promotion may write behind");
    }

    fn record_use(&self, id: u64) {
        let mut path = vec![key_of(id)];
        let mut at = id;
        while let Some(parent) = parent_of(at) {
            path.insert(0, key_of(parent));
            at = parent;
        }
        let cached = self.draw(path.len() as u64 + 1) as usize;
        self.store().0.tiers.record(&[Use { path, cached, cost_per_token: self.draw(1000) as f64 }]);
    }

    fn evict(&self, id: u64) {
        let tier = if self.draw(2) == 0 { Tier::Host } else { Tier::Disk };
        let is_there = |other: &u64| match tier {
            Tier::Host => self.store().0.tiers.host.contains(&key_of(*other)),
            _ => self.store().0.tiers.disk.contains(&key_of(*other)),
        };
        let there = || (0..IDS).filter(is_there).collect::<Vec<u64>>();
        let (before, is_kept) = (there(), !self.store().kept([key_of(id)].into_iter()).is_empty());
        assert!(is_kept || !locked(&self.store().0.pins).contains_key(&key_of(id)));
        let left = self.store().evict(&entry_of(id).header().id(), tier).unwrap();
        let after = there();
        assert_eq!(left as usize, before.len() - after.len());
        if is_kept {
            return assert_eq!(after, before, "what is pinned stays, and all that stands before it");
        }
        let gone = |other: &u64| *other == id || parent_of(*other) == Some(id);
        assert!(!after.iter().any(gone));
    }

    fn invalidate(&mut self, id: u64) {
        let segment = SegmentDigest::of(&MODEL, &tokens_of(id));
        self.store().invalidate(&[segment], &[]).unwrap();
        let is_of = |other: u64| tokens_of(other) == tokens_of(id);
        let is_behind = |other: u64| std::iter::successors(Some(other), |at| parent_of(*at)).any(is_of);
        for gone in (0..IDS).filter(|other| is_behind(*other)) {
            let key = key_of(gone);
            assert_eq!(self.store().contains(&key), None, "entry {gone} is or stands behind what was invalidated");
        }
        self.kept.retain(|kept| !is_of(*kept));
    }

    /// A medium that fails for a few calls.
    fn disturb(&mut self) {
        let points = ["disk.before_write", "disk.after_write", "disk.read_row", "disk.read_frame", "disk.delete"];
        let point = points[self.draw(points.len() as u64) as usize];
        let kind = [ErrorKind::Unavailable, ErrorKind::Full, ErrorKind::Corrupt][self.draw(3) as usize];
        self.env.set_fail_point(point, FailMode::Error(kind), 1);
        *locked(&self.bucket.fails) = (self.draw(2) == 0).then_some(ErrorKind::Unavailable);
        let id = self.draw(IDS);
        if self.draw(2) == 0 {
            self.keep(id);
        }
        self.read(id);
        self.env.set_fail_point(point, FailMode::Off, 1);
        *locked(&self.bucket.fails) = None;
        self.env.advance(Duration::from_secs(self.draw(60)));
    }

    /// What is on disk before is there afterwards; what could not be deleted from it may come back.
    fn reopen(&mut self) {
        self.store().flush().unwrap();
        let before: HashSet<KvKey> = self.store().0.tiers.disk.summaries().iter().map(|at| at.key).collect();
        self.open();
        let disk = &self.store().0.tiers.disk;
        let gone = before.iter().filter(|key| !disk.contains(key)).count();
        assert!(gone == 0 || disk.recovery().evicted > 0, "{gone} entries were lost");
        assert_eq!(disk.recovery().damaged, 0);
    }

    /// The listing, and every entry in it, is right.
    fn check_all(&self) {
        let report = self.store().verify(&Tier::ALL, true, &mut |_| true).unwrap();
        assert!(report.damaged.is_empty() && report.unreadable == 0, "{report:?}");
        let mut listed = 0;
        self.store().entries(&Tier::ALL, &mut |info| listed += info.tiers.len()).unwrap();
        assert_eq!(listed as u64, report.entries);
    }

    fn check_bounds(&self) {
        let status = self.store().status();
        assert!(status.host.bytes <= self.host_bytes && status.disk.bytes <= self.disk_bytes + 2 * 4096, "{status:?}");
        assert_eq!(status.token_mismatches, 0);
    }
}

pub(super) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number of the test's"))
}

#[test]
fn a_store_finds_what_was_kept_and_nothing_else() {
    let seeds = match number("RAGSTONE_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RAGSTONE_TEST_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
        });
        if run.is_err() {
            panic!("seed {seed} failed; RAGSTONE_TEST_SEED={seed} replays it");
        }
    }
}
