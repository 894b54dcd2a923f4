//! Host memory: whole entries, bounded by bytes, the least recently used one evicted first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::entry::Entry;
use crate::key::KvKey;

/// What became of an entry that was offered to host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostOutcome {
    /// It is there now.
    Stored,
    /// An entry of that key was there; entries are immutable, so it stays.
    AlreadyThere,
    /// It is larger than the tier, or everything that would have to go is pinned. Counted; nothing was evicted for it.
    Refused,
}

/// Entries in host memory. An entry whose [`Arc`] somebody else holds is pinned and never evicted.
#[derive(Debug)]
pub struct HostTier {
    capacity_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    entries: LruCache<KvKey, Arc<Entry>>,
    bytes: u64,
    evicted: u64,
    refused: u64,
}

/// Sizes and counts of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostUse {
    /// Entries held.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The bound on `bytes`.
    pub capacity_bytes: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Entries not taken.
    pub refused: u64,
}

impl HostTier {
    /// An empty tier of at most `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let state = State { entries: LruCache::unbounded(), bytes: 0, evicted: 0, refused: 0 };
        Self { capacity_bytes, state: Mutex::new(state) }
    }

    /// The bound in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Takes an entry, evicting what was not used for longest. The evicted entries are handed back, so that their
    /// memory is freed outside the lock, or they are written elsewhere.
    pub fn insert(&self, entry: Arc<Entry>) -> (HostOutcome, Vec<Arc<Entry>>) {
        let header = entry.header();
        let (key, bytes) = (header.key, header.total_bytes());
        let mut state = self.state();
        if state.touch(&key) {
            return (HostOutcome::AlreadyThere, Vec::new());
        }
        // Ancestors first: an entry must not push out the parents it is reached through.
        if let Some(parent) = header.parent {
            state.touch(&parent);
        }
        let Some(victims) = state.victims_for(bytes, self.capacity_bytes) else {
            state.refused += 1;
            return (HostOutcome::Refused, Vec::new());
        };
        let evicted: Vec<_> = victims.iter().filter_map(|victim| state.remove(victim)).collect();
        state.evicted += evicted.len() as u64;
        state.bytes += bytes;
        state.entries.put(key, entry);
        state.touch(&key);
        debug_assert!(state.bytes <= self.capacity_bytes);
        (HostOutcome::Stored, evicted)
    }

    /// The entry, which is pinned as long as the result lives. Counts as a use of it and of its ancestors.
    pub fn get(&self, key: &KvKey) -> Option<Arc<Entry>> {
        let mut state = self.state();
        state.touch(key);
        state.entries.peek(key).cloned()
    }

    /// Whether the key is held; not a use.
    pub fn contains(&self, key: &KvKey) -> bool {
        self.state().entries.contains(key)
    }

    /// Removes an entry, pinned or not: who holds it keeps its memory until done. Says whether it was there.
    pub fn remove(&self, key: &KvKey) -> bool {
        let removed = self.state().remove(key);
        removed.is_some()
    }

    /// Sizes and counts.
    pub fn usage(&self) -> HostUse {
        let state = self.state();
        HostUse {
            entries: state.entries.len() as u64,
            bytes: state.bytes,
            capacity_bytes: self.capacity_bytes,
            evicted: state.evicted,
            refused: state.refused,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Marks `key` as used, then its ancestors in turn, so that parents are always used later than their children
    /// and leave after them. Says whether `key` was there.
    fn touch(&mut self, key: &KvKey) -> bool {
        let there = self.entries.promote(key);
        let mut next = self.entries.peek(key).and_then(|entry| entry.header().parent);
        while let Some(ancestor) = next {
            self.entries.promote(&ancestor);
            next = self.entries.peek(&ancestor).and_then(|entry| entry.header().parent);
        }
        there
    }

    /// The unpinned entries that have to go for `bytes` more, least recently used first; `None` if they do not suffice.
    fn victims_for(&self, bytes: u64, capacity_bytes: u64) -> Option<Vec<KvKey>> {
        if bytes > capacity_bytes {
            return None;
        }
        let mut excess = (self.bytes + bytes).saturating_sub(capacity_bytes);
        let mut victims = Vec::new();
        for (key, entry) in self.entries.iter().rev() {
            if excess == 0 {
                break;
            }
            // Clones are made under this lock only, so that a count of one cannot rise meanwhile.
            if Arc::strong_count(entry) == 1 {
                excess = excess.saturating_sub(entry.header().total_bytes());
                victims.push(*key);
            }
        }
        (excess == 0).then_some(victims)
    }

    fn remove(&mut self, key: &KvKey) -> Option<Arc<Entry>> {
        let entry = self.entries.pop(key)?;
        self.bytes -= entry.header().total_bytes();
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
