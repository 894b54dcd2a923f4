//! The disk tier's memory of what is on disk: sizes, recency, and who is being written or removed just now.
//!
//! A slot's life; only `Ready` can be found, and every slot counts towards the bound until its bytes are gone:
//!
//! ```text
//!            commit            begin_removal / chosen as victim          end_removal(true)
//! Writing ------------> Ready ----------------------------------> Leaving ------------> gone
//!    | begin_removal      ^             victims of an aborted write  |
//!    v                    +------------------------------------------+  end_removal(false)
//! Doomed -- commit --> Leaving                                       +------------------> Dead, the next victim
//! ```
//! A slot that was once to be removed never becomes `Ready` again.

use std::sync::Arc;

use lru::LruCache;

use crate::key::KvKey;

/// Keeps an entry on disk from being evicted while it lives.
#[derive(Debug, Clone, Default)]
pub struct DiskPin(Arc<()>);

/// What the index knows about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub key: KvKey,
    pub parent: Option<KvKey>,
    pub bytes: u64,
    pub layers: u32,
}

/// Answer to a wish to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    /// Room is reserved; the victims are to be deleted in the same write. End with `commit` or `abort`.
    Granted { victims: Vec<Extent> },
    /// It is there, or on its way.
    AlreadyThere,
    /// It is being removed just now.
    Busy,
    /// Larger than the tier, or no room beside what is pinned. Counted.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Writing,
    Doomed,
    Ready,
    Leaving,
    Dead,
}

#[derive(Debug)]
struct Slot {
    extent: Extent,
    state: SlotState,
    /// Somebody wants it removed: if it cannot leave now, it is dead.
    unwanted: bool,
    pin: DiskPin,
}

#[derive(Debug)]
pub(crate) struct DiskIndex {
    slots: LruCache<KvKey, Slot>,
    capacity_bytes: u64,
    /// Bytes of all slots but those of victims that are being replaced.
    bytes: u64,
    pub evicted: u64,
    pub refused: u64,
}

impl Slot {
    fn is_evictable(&self) -> bool {
        // Pins are cloned under the index's lock only, so that a count of one cannot rise meanwhile.
        self.state == SlotState::Dead || (self.state == SlotState::Ready && Arc::strong_count(&self.pin.0) == 1)
    }
}

impl DiskIndex {
    pub fn new(capacity_bytes: u64) -> Self {
        Self { slots: LruCache::unbounded(), capacity_bytes, bytes: 0, evicted: 0, refused: 0 }
    }

    /// Adds what was found on disk at open, least recently used first.
    pub fn add_existing(&mut self, extent: Extent) {
        self.add(extent, SlotState::Ready);
        self.touch(&extent.key);
    }

    /// What has to go so that what was found on disk fits a bound that was lowered. Ends with `end_removal` each.
    pub fn take_excess(&mut self) -> Vec<Extent> {
        let victims = self.victims_for(0).unwrap_or_default();
        for victim in &victims {
            self.set_state(&victim.key, SlotState::Leaving);
        }
        self.evicted += victims.len() as u64;
        victims
    }

    /// Asks for room for an entry.
    pub fn reserve(&mut self, extent: Extent) -> Reservation {
        match self.slots.peek(&extent.key).map(|slot| slot.state) {
            None => {}
            Some(SlotState::Ready | SlotState::Writing) => {
                self.touch(&extent.key);
                return Reservation::AlreadyThere;
            }
            Some(SlotState::Doomed | SlotState::Leaving | SlotState::Dead) => return Reservation::Busy,
        }
        if let Some(parent) = extent.parent {
            self.touch(&parent);
        }
        let fits = extent.bytes <= self.capacity_bytes;
        let Some(victims) = fits.then(|| self.victims_for(extent.bytes)).flatten() else {
            self.refused += 1;
            return Reservation::Refused;
        };
        for victim in &victims {
            self.set_state(&victim.key, SlotState::Leaving);
            self.bytes -= victim.bytes;
        }
        self.add(extent, SlotState::Writing);
        self.touch(&extent.key);
        Reservation::Granted { victims }
    }

    /// The write succeeded. `false`: the entry was removed meanwhile, and its bytes are to be deleted now, ending
    /// with `end_removal`.
    #[must_use]
    pub fn commit(&mut self, key: &KvKey, victims: &[Extent]) -> bool {
        for victim in victims {
            self.slots.pop(&victim.key);
        }
        self.evicted += victims.len() as u64;
        match self.slots.peek_mut(key) {
            Some(slot) if slot.state == SlotState::Writing => {
                slot.state = SlotState::Ready;
                true
            }
            Some(slot) => {
                slot.state = SlotState::Leaving;
                false
            }
            None => false,
        }
    }

    /// The write failed: nothing of it is on disk, and the victims still are. They come back as the first to go.
    /// The bound may be exceeded by them until the next write, if another write took their room meanwhile.
    pub fn abort(&mut self, key: &KvKey, victims: &[Extent]) {
        if let Some(slot) = self.slots.pop(key) {
            self.bytes -= slot.extent.bytes;
        }
        for victim in victims.iter().rev() {
            if let Some(slot) = self.slots.peek_mut(&victim.key) {
                slot.state = if slot.unwanted { SlotState::Dead } else { SlotState::Ready };
            }
            self.bytes += victim.bytes;
            self.slots.demote(&victim.key);
        }
    }

    /// Finds a readable entry and pins it. Counts as a use of it and of its ancestors.
    pub fn find(&mut self, key: &KvKey) -> Option<DiskPin> {
        let slot = self.slots.peek(key).filter(|slot| slot.state == SlotState::Ready)?;
        let pin = slot.pin.clone();
        self.touch(key);
        Some(pin)
    }

    pub fn contains(&self, key: &KvKey) -> bool {
        self.slots.peek(key).is_some_and(|slot| slot.state == SlotState::Ready)
    }

    /// Marks `key` as used, then its ancestors in turn: parents are used later than their children, and leave later.
    pub fn touch(&mut self, key: &KvKey) {
        let mut next = Some(*key);
        while let Some(key) = next {
            self.slots.promote(&key);
            next = self.slots.peek(&key).and_then(|slot| slot.extent.parent);
        }
    }

    /// Hides an entry from now on, pinned or not. `Some`: delete its bytes, then `end_removal`. `None`: nothing there,
    /// or its writer or another remover will delete it.
    pub fn begin_removal(&mut self, key: &KvKey) -> Option<Extent> {
        let slot = self.slots.peek_mut(key)?;
        slot.unwanted = true;
        match slot.state {
            SlotState::Ready | SlotState::Dead => {
                slot.state = SlotState::Leaving;
                Some(slot.extent)
            }
            SlotState::Writing => {
                slot.state = SlotState::Doomed;
                None
            }
            SlotState::Doomed | SlotState::Leaving => None,
        }
    }

    /// The deletion of a `Leaving` entry came through, or failed: then it stays hidden and is the next to be evicted.
    pub fn end_removal(&mut self, key: &KvKey, deleted: bool) {
        if !deleted {
            self.set_state(key, SlotState::Dead);
            self.slots.demote(key);
        } else if let Some(slot) = self.slots.pop(key) {
            self.bytes -= slot.extent.bytes;
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Entries that can be found.
    pub fn ready_entries(&self) -> u64 {
        self.slots.iter().filter(|(_, slot)| slot.state == SlotState::Ready).count() as u64
    }

    /// Readable entries, least recently used first.
    pub fn ready_keys(&self) -> Vec<KvKey> {
        let ready = self.slots.iter().rev().filter(|(_, slot)| slot.state == SlotState::Ready);
        ready.map(|(key, _)| *key).collect()
    }

    fn add(&mut self, extent: Extent, state: SlotState) {
        self.bytes += extent.bytes;
        self.slots.put(extent.key, Slot { extent, state, unwanted: false, pin: DiskPin::default() });
    }

    fn set_state(&mut self, key: &KvKey, state: SlotState) {
        if let Some(slot) = self.slots.peek_mut(key) {
            slot.state = state;
        }
    }

    /// What has to go for `bytes` more, least recently used first; `None` if everything evictable does not suffice.
    fn victims_for(&self, bytes: u64) -> Option<Vec<Extent>> {
        let mut excess = self.bytes.saturating_add(bytes).saturating_sub(self.capacity_bytes);
        let mut victims = Vec::new();
        for (_, slot) in self.slots.iter().rev() {
            if excess == 0 {
                break;
            }
            if slot.is_evictable() {
                excess = excess.saturating_sub(slot.extent.bytes);
                victims.push(slot.extent);
            }
        }
        (excess == 0).then_some(victims)
    }
}

#[cfg(test)]
mod tests;
