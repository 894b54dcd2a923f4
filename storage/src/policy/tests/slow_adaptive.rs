//! The adaptive policy as caches side by side: lists of ids, every sum by scanning, slow policies as experts.

use std::collections::BTreeMap;

use super::super::{Access, Id, Policy, PolicyKind};
use super::reference::SlowRanked;
use super::slow_density::SlowHitDensity;

#[derive(Debug)]
pub struct SlowAdaptive {
    most: u64,
    capacity: u64,
    caches: Vec<Cache>,
    leader: usize,
    /// For each request since the leader last changed, by how much each cache did better than the leader's.
    differences: Vec<Vec<f64>>,
    entries: BTreeMap<Id, Entry>,
    request: u64,
    pending: Vec<Id>,
    ticks: u64,
}

#[derive(Debug)]
struct Cache {
    policy: Box<dyn Policy>,
    held: Vec<Id>,
    /// What left it, in order; an id may be there more than once.
    left: Vec<Id>,
    holds_path: bool,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    parent: Option<Id>,
    size: u64,
    costs: Vec<f64>,
    is_resident: bool,
    is_evictable: bool,
    used_by: Option<u64>,
    tick: u64,
}

impl Entry {
    fn value(&self) -> u64 {
        let sum = self.costs.iter().fold(0.0, |sum, cost| sum + cost);
        (self.size as f64 * sum / self.costs.len().max(1) as f64) as u64
    }
}

impl SlowAdaptive {
    pub fn new(capacity: u64, window: u64) -> Self {
        let experts: [Box<dyn Policy>; 3] = [
            Box::new(SlowHitDensity::default()),
            Box::new(SlowRanked::new(PolicyKind::Pgdsf, window)),
            Box::new(SlowRanked::new(PolicyKind::Lru, u64::MAX)),
        ];
        let cache = |policy| Cache { policy, held: Vec::new(), left: Vec::new(), holds_path: true };
        Self {
            most: capacity,
            capacity,
            caches: experts.into_iter().map(cache).collect(),
            leader: 0,
            differences: vec![vec![0.0; 3]],
            entries: BTreeMap::new(),
            request: 0,
            pending: Vec::new(),
            ticks: 0,
        }
    }

    pub fn leader(&self) -> usize {
        self.leader
    }

    /// Says again which entries of a cache may leave it.
    fn mark(&mut self, cache: usize) {
        let Self { caches, entries, request, .. } = self;
        let cache = &mut caches[cache];
        for id in &cache.held {
            let has_child = cache.held.iter().any(|other| entries[other].parent == Some(*id));
            cache.policy.set_evictable(*id, !has_child && entries[id].used_by != Some(*request));
        }
    }

    fn bytes(&self, cache: usize, counts: impl Fn(&Entry) -> bool) -> u64 {
        self.caches[cache]
            .held
            .iter()
            .map(|id| &self.entries[id])
            .filter(|entry| counts(entry))
            .map(|entry| entry.size)
            .sum()
    }

    /// A cache lets its next go.
    fn let_go(&mut self, cache: usize) -> Option<Id> {
        self.mark(cache);
        let id = self.caches[cache].policy.victim()?;
        self.caches[cache].policy.evict(id);
        self.caches[cache].held.retain(|other| *other != id);
        self.caches[cache].left.push(id);
        Some(id)
    }

    fn admit(&mut self, id: Id) {
        let entry = self.entries[&id].clone();
        for cache in 0..self.caches.len() {
            let held = &self.caches[cache].held;
            let is_orphan = entry.parent.is_some_and(|parent| {
                !held.contains(&parent) && self.entries.get(&parent).is_some_and(|it| it.used_by == Some(self.request))
            });
            let running = self.bytes(cache, |entry| entry.used_by == Some(self.request));
            if held.contains(&id) || is_orphan || running + entry.size > self.capacity {
                continue;
            }
            while self.bytes(cache, |_| true) + entry.size > self.capacity {
                if self.let_go(cache).is_none() {
                    break;
                }
            }
            if self.bytes(cache, |_| true) + entry.size <= self.capacity {
                self.caches[cache].held.push(id);
                self.caches[cache].policy.insert(id, entry.size);
            }
        }
    }

    fn flush(&mut self) {
        std::mem::take(&mut self.pending).into_iter().for_each(|id| self.admit(id));
    }

    fn end_request(&mut self) {
        let lead = |cache: usize| {
            // Since it was last level with the leader.
            let (mut ahead, mut squares) = (0.0, 0.0);
            for difference in &self.differences {
                ahead += difference[cache];
                squares += difference[cache] * difference[cache];
                if ahead <= 0.0 {
                    (ahead, squares) = (0.0, 0.0);
                }
            }
            let missing: u64 = self.caches[cache]
                .held
                .iter()
                .map(|id| &self.entries[id])
                .filter(|it| !it.is_resident)
                .map(Entry::value)
                .sum();
            ahead - f64::max(3.5 * f64::sqrt(squares), missing as f64 / 4.0)
        };
        let mut best = (0.0, self.leader);
        for cache in 0..self.caches.len() {
            if lead(cache) > best.0 {
                best = (lead(cache), cache);
            }
        }
        if best.1 != self.leader {
            self.leader = best.1;
            self.differences.clear();
        }
        self.differences.push(vec![0.0; self.caches.len()]);
    }

    /// The tier's evictable entry that a cache let go first, those first that it never held; none of those it holds.
    fn first_left(&self, cache: usize) -> Option<Id> {
        let Cache { held, left, .. } = &self.caches[cache];
        let candidates = self.entries.iter().filter(|(id, entry)| entry.is_evictable && !held.contains(id));
        candidates.map(|(id, _)| *id).min_by_key(|id| (left.iter().rposition(|other| other == id), *id))
    }
}

impl Policy for SlowAdaptive {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Adaptive
    }

    fn access(&mut self, id: Id, access: Access) {
        if access.request != self.request {
            self.flush();
            self.request = access.request;
            self.end_request();
        }
        self.ticks += 1;
        let is_held = self.caches.iter().any(|cache| cache.held.contains(&id));
        let entry = self.entries.entry(id).or_default();
        let was_running = entry.used_by == Some(access.request);
        entry.tick = self.ticks;
        if access.past_uses == 0 {
            entry.used_by = Some(access.request);
        }
        if !is_held {
            entry.parent = access.parent;
        }
        if !access.is_cached {
            entry.costs.push(access.cost_per_token);
        }
        let (value, has_size) = (entry.value() as f64, entry.size > 0);
        let mut hits = Vec::new();
        for cache in &mut self.caches {
            cache.holds_path = cache.held.contains(&id) && (access.parent_uses == 0 || cache.holds_path);
            cache.policy.access(id, access);
            hits.push(cache.holds_path);
        }
        if access.past_uses == 0 {
            for (cache, hit) in hits.iter().enumerate() {
                self.differences.last_mut().unwrap()[cache] += value * (f64::from(*hit) - f64::from(hits[self.leader]));
            }
            if !was_running && has_size {
                self.pending.push(id);
            }
        }
    }

    fn arriving(&mut self, id: Id, size: u64) {
        self.flush();
        let entry = self.entries.entry(id).or_default();
        if !entry.is_resident {
            entry.size = size;
        }
        self.admit(id);
    }

    fn insert(&mut self, id: Id, size: u64) {
        self.arriving(id, size);
        self.entries.entry(id).or_default().is_resident = true;
        let resident = self.entries.values().filter(|entry| entry.is_resident).map(|entry| entry.size).sum::<u64>();
        self.capacity = self.capacity.max(resident).min(self.most);
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.is_resident) {
            entry.is_evictable = is_evictable;
        }
    }

    fn victim(&mut self) -> Option<Id> {
        self.flush();
        let evictable = self.entries.iter().filter(|(_, entry)| entry.is_evictable);
        let oldest = evictable.min_by_key(|(_, entry)| entry.tick).map(|(id, _)| *id)?;
        while self.first_left(self.leader).is_none() {
            if self.let_go(self.leader).is_none() {
                return Some(oldest);
            }
            self.capacity = self.capacity.min(self.bytes(self.leader, |_| true));
        }
        self.first_left(self.leader)
    }

    fn evict(&mut self, id: Id) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.is_resident, entry.is_evictable) = (false, false);
        }
    }

    fn remove(&mut self, id: Id) {
        self.evict(id);
        self.pending.retain(|other| *other != id);
        for cache in self.caches.iter_mut().filter(|cache| cache.held.contains(&id)) {
            cache.policy.remove(id);
            cache.held.retain(|other| *other != id);
            cache.left.push(id);
        }
    }

    fn forget(&mut self, id: Id) {
        self.remove(id);
        self.caches.iter_mut().for_each(|cache| {
            cache.policy.forget(id);
            cache.left.retain(|other| *other != id);
        });
        self.entries.remove(&id);
    }
}
