//! The disk tier's memory of what is on disk: what each entry is, who leaves first, and who is being written or removed
//! just now.
//!
//! A slot's life; only `Ready` can be found:
//!
//! ```text
//!            commit            begin_removal / chosen as victim          end_removal(true)
//! Writing ------------> Ready ----------------------------------> Leaving ------------> gone
//!    | begin_removal      ^             victims of an aborted write  |
//!    v                    +------------------------------------------+  end_removal(false)
//! Doomed -- commit --> Leaving                                       +------------------> Dead, leaves with the next write
//! ```
//! A slot that was once to be removed never becomes `Ready` again. Bytes count towards the bound from the reservation on;
//! those of what is being removed are on disk a moment longer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::key::KvKey;
use crate::policy::shares::Terms;
use crate::tier::EntrySummary;
use crate::tier::resident::{Pin, Residents, Use};
use crate::tree::TierOptions;

/// Keeps an entry on disk from being evicted while it lives.
pub(crate) type DiskPin = Pin<DiskIndex>;

/// What deleting an entry takes to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub key: KvKey,
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
    summary: EntrySummary,
    state: SlotState,
    /// Somebody wants it removed: if it cannot leave now, it is dead.
    unwanted: bool,
}

#[derive(Debug)]
pub(crate) struct DiskIndex {
    slots: HashMap<KvKey, Slot>,
    residents: Residents,
    /// Slots in the state `Dead`.
    dead: Vec<KvKey>,
    /// Bytes of entries that are being removed, or could not be.
    leaving_bytes: u64,
    ready: u64,
    evicted: u64,
}

impl AsMut<Residents> for DiskIndex {
    fn as_mut(&mut self) -> &mut Residents {
        &mut self.residents
    }
}

impl DiskIndex {
    pub fn new(options: TierOptions) -> Self {
        Self {
            slots: HashMap::new(),
            residents: Residents::new(options),
            dead: Vec::new(),
            leaving_bytes: 0,
            ready: 0,
            evicted: 0,
        }
    }

    /// Pins keys, and makes what stands before what was found on disk known, so that the pins keep that too: before anything
    /// is added. Ends with `end_opening`.
    pub fn begin_opening(&mut self, pins: &[KvKey], found: &[EntrySummary]) {
        if pins.is_empty() {
            return;
        }
        let found: HashMap<&KvKey, &EntrySummary> = found.iter().map(|summary| (&summary.key, summary)).collect();
        for key in pins {
            self.residents.hold(key);
            let mut at = found.get(key);
            while let Some(summary) = at {
                self.residents.announce(summary);
                at = summary.parent.as_ref().and_then(|parent| found.get(parent));
            }
        }
    }

    /// Gives the pins of `begin_opening` back; whoever keeps them takes its own before anything else enters.
    pub fn end_opening(&mut self, pins: &[KvKey]) {
        pins.iter().for_each(|key| self.residents.let_go(key));
    }

    /// Bytes by which what is pinned exceeds the bound.
    pub fn over_bound_bytes(&self) -> u64 {
        let usage = self.residents.usage();
        usage.bytes.saturating_sub(usage.capacity_bytes)
    }

    /// Adds what was found on disk at open, to be called in the order of last use. What has no room any more (the bound was
    /// lowered) is to be deleted; each ends with `end_removal`. What is pinned stays, even if the bound does not hold then.
    pub fn add_existing(&mut self, summary: EntrySummary, uses: u32) -> Vec<Extent> {
        self.residents.restore(&summary, uses);
        let refused = self.residents.refused;
        let victims = if self.residents.is_pinned(&summary.key) {
            Some(self.residents.admit_regardless(&summary))
        } else {
            self.residents.admit(&summary)
        };
        // Nobody offered it.
        self.residents.refused = refused;
        let mut excess: Vec<Extent> = victims.iter().flatten().filter_map(|victim| self.leave(victim)).collect();
        let extent = Extent::of(&summary);
        let state = if victims.is_some() { SlotState::Ready } else { SlotState::Leaving };
        if state == SlotState::Ready {
            self.ready += 1;
        } else {
            self.leaving_bytes += extent.bytes;
            excess.push(extent);
        }
        self.slots.insert(extent.key, Slot { summary, state, unwanted: false });
        self.evicted += excess.len() as u64;
        excess
    }

    /// Marks a readable entry, which left the tree, as leaving.
    fn leave(&mut self, key: &KvKey) -> Option<Extent> {
        let slot = self.slots.get_mut(key)?;
        slot.state = SlotState::Leaving;
        self.ready -= 1;
        let extent = Extent::of(&slot.summary);
        self.leaving_bytes += extent.bytes;
        Some(extent)
    }

    /// Asks for room for an entry.
    pub fn reserve(&mut self, summary: EntrySummary) -> Reservation {
        match self.slots.get(&summary.key).map(|slot| slot.state) {
            None => {}
            Some(SlotState::Ready | SlotState::Writing) => return Reservation::AlreadyThere,
            Some(SlotState::Doomed | SlotState::Leaving | SlotState::Dead) => return Reservation::Busy,
        }
        let Some(victims) = self.residents.admit(&summary) else { return Reservation::Refused };
        self.residents.hold(&summary.key);
        let mut victims: Vec<Extent> = victims.iter().filter_map(|victim| self.leave(victim)).collect();
        for key in std::mem::take(&mut self.dead) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.state = SlotState::Leaving;
                victims.push(Extent::of(&slot.summary));
            }
        }
        self.slots.insert(summary.key, Slot { summary, state: SlotState::Writing, unwanted: false });
        Reservation::Granted { victims }
    }

    /// The write succeeded. `false`: the entry was removed meanwhile, and its bytes are to be deleted now, ending
    /// with `end_removal`.
    #[must_use]
    pub fn commit(&mut self, key: &KvKey, victims: &[Extent]) -> bool {
        for victim in victims {
            self.forget(&victim.key);
        }
        self.evicted += victims.len() as u64;
        self.residents.let_go(key);
        let Some(slot) = self.slots.get_mut(key) else { return false };
        if slot.state == SlotState::Writing {
            slot.state = SlotState::Ready;
            self.ready += 1;
            return true;
        }
        slot.state = SlotState::Leaving;
        self.leaving_bytes += slot.summary.bytes;
        self.residents.remove(key);
        false
    }

    /// The write failed: nothing of it is on disk, and the victims still are. They come back, but for those whose room
    /// another write took meanwhile: they are hidden, and deleted with the next write.
    pub fn abort(&mut self, key: &KvKey, victims: &[Extent]) {
        self.residents.let_go(key);
        self.residents.remove(key);
        self.slots.remove(key);
        for victim in victims.iter().rev() {
            let Some(slot) = self.slots.get_mut(&victim.key) else { continue };
            if !slot.unwanted && self.residents.admit_into_free_room(&slot.summary) {
                slot.state = SlotState::Ready;
                self.ready += 1;
                self.leaving_bytes -= victim.bytes;
            } else {
                slot.state = SlotState::Dead;
                self.dead.push(victim.key);
            }
        }
    }

    /// The write failed, and may be on disk as a whole all the same: all that it touches is hidden, and deleted with the next write.
    pub fn doubt(&mut self, key: &KvKey, victims: &[Extent]) {
        self.residents.let_go(key);
        self.residents.remove(key);
        self.leaving_bytes += self.slots.get(key).map_or(0, |slot| slot.summary.bytes);
        for key in victims.iter().map(|victim| &victim.key).chain([key]) {
            if let Some(slot) = self.slots.get_mut(key) {
                slot.state = SlotState::Dead;
                self.dead.push(*key);
            }
        }
    }

    /// Finds a readable entry and pins it. `owner` is what guards this index.
    pub fn find(&mut self, owner: &Arc<Mutex<Self>>, key: &KvKey) -> Option<DiskPin> {
        self.contains(key).then(|| Pin::new(owner, self, key))
    }

    pub fn contains(&self, key: &KvKey) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.state == SlotState::Ready)
    }

    /// Hides an entry from now on, pinned or not. `Some`: delete its bytes, then `end_removal`. `None`: nothing there,
    /// or its writer or another remover will delete it.
    pub fn begin_removal(&mut self, key: &KvKey) -> Option<Extent> {
        let slot = self.slots.get_mut(key)?;
        slot.unwanted = true;
        match slot.state {
            SlotState::Ready => {
                self.residents.remove(key);
                self.leave(key)
            }
            SlotState::Dead => {
                slot.state = SlotState::Leaving;
                self.dead.retain(|dead| dead != key);
                Some(Extent::of(&slot.summary))
            }
            SlotState::Writing => {
                slot.state = SlotState::Doomed;
                None
            }
            SlotState::Doomed | SlotState::Leaving => None,
        }
    }

    /// Hidden entries whose deletion failed.
    pub fn dead(&self) -> &[KvKey] {
        &self.dead
    }

    /// The deletion of a `Leaving` entry came through, or failed: then it stays hidden and leaves with the next write.
    pub fn end_removal(&mut self, key: &KvKey, deleted: bool) {
        if deleted {
            self.forget(key);
        } else if let Some(slot) = self.slots.get_mut(key) {
            slot.state = SlotState::Dead;
            self.dead.push(*key);
        }
    }

    fn forget(&mut self, key: &KvKey) {
        if let Some(slot) = self.slots.remove(key) {
            self.leaving_bytes -= slot.summary.bytes;
        }
    }

    pub fn set_terms(&mut self, tenant: &str, terms: Option<Terms>) {
        self.residents.set_terms(tenant, terms);
    }

    pub fn set_default_terms(&mut self, terms: Terms) {
        self.residents.set_default_terms(terms);
    }

    pub fn held_by(&self, tenant: &str) -> u64 {
        self.residents.held_by(tenant)
    }

    pub fn record(&mut self, uses: &[Use]) {
        self.residents.record(uses);
    }

    /// Keys of entries here that stand behind `key`, the farthest first.
    pub fn behind(&self, key: &KvKey) -> Vec<KvKey> {
        self.residents.behind(key)
    }

    /// Bytes on disk that belong to an entry, those that are being removed among them.
    pub fn bytes(&self) -> u64 {
        self.residents.usage().bytes + self.leaving_bytes
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.residents.usage().capacity_bytes
    }

    /// Entries that can be found.
    pub fn ready_entries(&self) -> u64 {
        self.ready
    }

    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    pub fn refused(&self) -> u64 {
        self.residents.refused
    }

    pub fn summary(&self, key: &KvKey) -> Option<EntrySummary> {
        self.slots.get(key).filter(|slot| slot.state == SlotState::Ready).map(|slot| slot.summary.clone())
    }

    /// Readable entries, in no order.
    pub fn summaries(&self) -> Vec<EntrySummary> {
        let ready = self.slots.values().filter(|slot| slot.state == SlotState::Ready);
        ready.map(|slot| slot.summary.clone()).collect()
    }
}

impl Extent {
    pub fn of(summary: &EntrySummary) -> Self {
        Self { key: summary.key, bytes: summary.bytes, layers: summary.layers }
    }
}

#[cfg(test)]
mod tests;
