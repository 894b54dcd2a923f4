//! What the policies that rank entries share: who is in the tier, who may leave, and in which order.

use super::{Access, Id, Order, Policy, PolicyKind, Rank};

/// How a ranking policy values an entry. The least valued leaves first, among equals the one used longest ago.
pub(super) trait Rule: Send + std::fmt::Debug {
    const KIND: PolicyKind;

    /// The priority of `id` from this use on.
    fn priority(&mut self, id: Id, access: Access, is_resident: bool) -> f64;

    /// An entry of this priority was evicted.
    fn evicted(&mut self, _priority: f64) {}

    /// The id's number will be given to another entry.
    fn forget(&mut self, _id: Id) {}
}

/// A policy out of a [`Rule`].
#[derive(Debug, Default)]
pub struct Ranked<R> {
    pub(super) rule: R,
    slots: Vec<Slot>,
    /// The evictable.
    order: Order,
    /// Ranks given so far.
    ticks: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    is_resident: bool,
    is_evictable: bool,
    rank: Rank,
}

impl<R> Ranked<R> {
    pub(super) fn new(rule: R) -> Self {
        Self { rule, slots: Vec::new(), order: Order::default(), ticks: 0 }
    }

    fn slot(&mut self, id: Id) -> &mut Slot {
        if self.slots.len() <= id.index() {
            self.slots.resize(id.index() + 1, Slot::default());
        }
        &mut self.slots[id.index()]
    }

    #[cfg(test)]
    pub(super) fn priority_of(&self, id: Id) -> f64 {
        self.slots[id.index()].rank.priority
    }
}

impl<R: Rule> Policy for Ranked<R> {
    fn kind(&self) -> PolicyKind {
        R::KIND
    }

    fn access(&mut self, id: Id, access: Access) {
        let is_resident = self.slot(id).is_resident;
        let priority = self.rule.priority(id, access, is_resident);
        self.ticks += 1;
        let rank = Rank { priority, tick: self.ticks };
        let slot = self.slot(id);
        slot.rank = rank;
        if slot.is_evictable {
            self.order.put(id, rank);
        }
    }

    fn insert(&mut self, id: Id, _size_bytes: u64) {
        let slot = self.slot(id);
        slot.is_resident = true;
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        let slot = self.slot(id);
        if !slot.is_resident || slot.is_evictable == is_evictable {
            return;
        }
        slot.is_evictable = is_evictable;
        let rank = slot.rank;
        if is_evictable {
            self.order.put(id, rank);
        } else {
            self.order.remove(id);
        }
    }

    fn victim(&mut self) -> Option<Id> {
        self.order.first()
    }

    fn evict(&mut self, id: Id) {
        if self.slot(id).is_resident {
            let priority = self.slot(id).rank.priority;
            self.rule.evicted(priority);
            self.remove(id);
        }
    }

    fn remove(&mut self, id: Id) {
        let slot = self.slot(id);
        slot.is_resident = false;
        slot.is_evictable = false;
        self.order.remove(id);
    }

    fn forget(&mut self, id: Id) {
        self.remove(id);
        *self.slot(id) = Slot::default();
        self.rule.forget(id);
    }
}
