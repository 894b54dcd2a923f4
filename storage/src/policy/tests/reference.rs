//! Policies as one would write them on a blackboard: histories kept whole, everything computed from them by scanning.

use std::collections::{BTreeMap, VecDeque};

use super::super::{Access, Id, Policy, PolicyKind};

/// LRU, LFU, GDSF and PGDSF.
#[derive(Debug)]
pub struct SlowRanked {
    kind: PolicyKind,
    half_window: u64,
    clock: f64,
    ticks: u64,
    entries: BTreeMap<Id, Entry>,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    is_resident: bool,
    is_evictable: bool,
    /// All uses since it was forgotten, and whether it was resident then.
    uses: Vec<(Access, bool)>,
    /// Of those that computed it.
    costs: Vec<f64>,
    /// As of the last use.
    priority: f64,
    tick: u64,
}

impl Entry {
    fn mean_cost(&self) -> f64 {
        self.costs.iter().fold(0.0, |sum, cost| sum + cost) / self.costs.len().max(1) as f64
    }
}

impl SlowRanked {
    pub fn new(kind: PolicyKind, window: u64) -> Self {
        Self { kind, half_window: (window / 2).max(1), clock: 0.0, ticks: 0, entries: BTreeMap::new() }
    }

    fn priority(&self, entry: &Entry, request: u64) -> f64 {
        let since_it_came = entry.uses.iter().rev().position(|(_, was_resident)| !was_resident);
        let uses_since = since_it_came.map_or(entry.uses.len(), |before| before + 1) as f64;
        let half = request / self.half_window;
        let within = entry.uses.iter().filter(|(access, _)| access.request / self.half_window + 1 >= half).count();
        match self.kind {
            PolicyKind::Lfu => uses_since,
            PolicyKind::Gdsf => self.clock + uses_since,
            PolicyKind::Pgdsf => self.clock + entry.mean_cost() * within as f64,
            _ => 0.0,
        }
    }

    /// The candidates with what they are compared by.
    fn candidates(&self) -> Vec<(f64, u64, Id)> {
        let evictable = self.entries.iter().filter(|(_, entry)| entry.is_evictable);
        evictable.map(|(id, entry)| (entry.priority, entry.tick, *id)).collect()
    }
}

impl Policy for SlowRanked {
    fn kind(&self) -> PolicyKind {
        self.kind
    }

    fn access(&mut self, id: Id, access: Access) {
        self.ticks += 1;
        let mut entry = self.entries.remove(&id).unwrap_or_default();
        // Of several uses at once the first may be what brings it back.
        (0..access.uses()).for_each(|nth| entry.uses.push((access, entry.is_resident || nth > 0)));
        if !access.is_cached {
            entry.costs.push(access.cost_per_token);
        }
        entry.priority = self.priority(&entry, access.request);
        entry.tick = self.ticks;
        self.entries.insert(id, entry);
    }

    fn insert(&mut self, id: Id, _: u64) {
        self.entries.entry(id).or_default().is_resident = true;
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.is_resident) {
            entry.is_evictable = is_evictable;
        }
    }

    fn victim(&mut self) -> Option<Id> {
        let by_value =
            |a: &(f64, u64, Id), b: &(f64, u64, Id)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2));
        self.candidates().into_iter().min_by(by_value).map(|(_, _, id)| id)
    }

    fn evict(&mut self, id: Id) {
        self.clock = self.clock.max(self.entries[&id].priority);
        self.remove(id);
    }

    fn remove(&mut self, id: Id) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.is_resident, entry.is_evictable) = (false, false);
        }
    }

    fn forget(&mut self, id: Id) {
        self.entries.remove(&id);
    }
}

/// S3-FIFO with its queues as lists.
#[derive(Debug)]
pub struct SlowS3Fifo {
    capacity: u64,
    small: VecDeque<Item>,
    main: VecDeque<Item>,
    ghosts: VecDeque<(Id, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    id: Id,
    bytes: u64,
    uses: u8,
    is_evictable: bool,
}

impl SlowS3Fifo {
    pub fn new(capacity: u64) -> Self {
        Self { capacity, small: VecDeque::new(), main: VecDeque::new(), ghosts: VecDeque::new() }
    }

    fn item(&mut self, id: Id) -> Option<&mut Item> {
        self.small.iter_mut().chain(&mut self.main).find(|item| item.id == id)
    }

    fn small_victim(&mut self) -> Option<Id> {
        while let Some(at) = self.small.iter().position(|item| item.is_evictable) {
            if self.small[at].uses < 2 {
                return Some(self.small[at].id);
            }
            let item = self.small.remove(at)?;
            self.main.push_back(Item { uses: 0, ..item });
        }
        None
    }

    fn main_victim(&mut self) -> Option<Id> {
        while let Some(at) = self.main.iter().position(|item| item.is_evictable) {
            if self.main[at].uses == 0 {
                return Some(self.main[at].id);
            }
            let item = self.main.remove(at)?;
            self.main.push_back(Item { uses: item.uses - 1, ..item });
        }
        None
    }
}

impl Policy for SlowS3Fifo {
    fn kind(&self) -> PolicyKind {
        PolicyKind::S3Fifo
    }

    fn access(&mut self, id: Id, access: Access) {
        if let Some(item) = self.item(id) {
            item.uses = (u32::from(item.uses) + access.uses()).min(3) as u8;
        }
    }

    fn insert(&mut self, id: Id, bytes: u64) {
        if self.item(id).is_some() {
            return;
        }
        let was_ghost = self.ghosts.iter().any(|(ghost, _)| *ghost == id);
        self.ghosts.retain(|(ghost, _)| *ghost != id);
        let item = Item { id, bytes, uses: 0, is_evictable: false };
        if was_ghost { self.main.push_back(item) } else { self.small.push_back(item) }
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        if let Some(item) = self.item(id) {
            item.is_evictable = is_evictable;
        }
    }

    fn victim(&mut self) -> Option<Id> {
        if self.small.iter().map(|item| item.bytes).sum::<u64>() >= self.capacity / 10 {
            self.small_victim().or_else(|| self.main_victim())
        } else {
            self.main_victim().or_else(|| self.small_victim()).or_else(|| self.main_victim())
        }
    }

    fn evict(&mut self, id: Id) {
        if let Some(item) = self.small.iter().find(|item| item.id == id).copied() {
            self.ghosts.push_back((id, item.bytes));
            while self.ghosts.iter().map(|(_, bytes)| bytes).sum::<u64>() > self.capacity - self.capacity / 10 {
                self.ghosts.pop_front();
            }
        }
        self.small.retain(|item| item.id != id);
        self.main.retain(|item| item.id != id);
    }

    fn remove(&mut self, id: Id) {
        self.small.retain(|item| item.id != id);
        self.main.retain(|item| item.id != id);
        self.ghosts.retain(|(ghost, _)| *ghost != id);
    }

    fn forget(&mut self, id: Id) {
        self.remove(id);
    }
}
