//! Hit density: keep what is likeliest to be used again soon, by what it saves.

mod queue;
pub(super) mod reuse;

use self::queue::Queue;
use self::reuse::{CLASSES, Reuse, class_of};
use super::{Access, Id, Policy, PolicyKind};

/// Cost classes: two for each power of two of microseconds a token.
const COSTS: usize = 64;

/// Evicts what saves least for the room it takes: least `mean cost a token · uses to be expected per request`.
///
/// The second factor is learned. Entries are sorted into classes by what stands before them (nothing, an entry
/// that is used for the first time, or one that was used before: what follows on something new is seldom seen again) and
/// by how often they were used; for each class the policy counts after how many requests its members are used again, and takes the greatest
/// rate of uses that keeping a member of that age for some further time promises (its Gittins index; [`Reuse`]). That is
/// Beckmann, Chen and Cidon's hit density (LHD, NSDI 2018) with RAGCache's cost (equation 3) for a hit's worth, an optimal
/// stopping time in place of the observed evictions, and every use observed, of entries in the tier or not.
///
/// Compared with PGDSF, whose priority grows with the frequency and falls behind the clock at one speed for all: an entry
/// used once and deep in its path leaves soon, as in S3-FIFO; one that is used steadily stays, as in LFU; a
/// conversation that was long and expensive but has ended leaves, as in LRU; and in a cycle that does not fit, where the index
/// rises with age, what was just used leaves, as in MRU.
///
/// Costs count in half powers of two. Of each class and cost a [`Queue`] finds the least by age, which need be neither the
/// oldest nor the youngest; the least of these leaves. O(log n) a call, and a few dozen comparisons for a victim.
#[derive(Debug)]
pub struct HitDensity {
    slots: Vec<Slot>,
    /// The evictable, by class and cost.
    queues: Vec<Queue>,
    /// The queues that may hold something.
    active: Vec<u16>,
    is_active: Vec<bool>,
    reuse: Reuse,
    /// The request that is running.
    now: u64,
    ticks: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    is_resident: bool,
    is_evictable: bool,
    uses: u32,
    class: u8,
    queue: u16,
    last_use: u64,
    tick: u64,
    /// Sum over misses of T(cached, new) / new.
    total_cost: f64,
    computed: u32,
}

/// The cost class of a mean cost: half powers of two.
fn level(mean_cost: f64) -> usize {
    // Truncation is what is wanted.
    ((2.0 * mean_cost.max(1.0).log2()) as usize).min(COSTS - 1)
}

/// What a token of a cost class is worth.
fn worth(level: usize) -> f64 {
    (level as f64 / 2.0).exp2()
}

impl Slot {
    fn mean_cost(&self) -> f64 {
        self.total_cost / f64::from(self.computed.max(1))
    }
}

impl Default for HitDensity {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            queues: (0..CLASSES * COSTS).map(|_| Queue::default()).collect(),
            active: Vec::new(),
            is_active: vec![false; CLASSES * COSTS],
            reuse: Reuse::default(),
            now: 0,
            ticks: 0,
        }
    }
}

impl HitDensity {
    fn slot(&mut self, id: Id) -> &mut Slot {
        if self.slots.len() <= id.index() {
            self.slots.resize(id.index() + 1, Slot::default());
        }
        &mut self.slots[id.index()]
    }

    fn enqueue(&mut self, id: Id) {
        let Slot { queue, tick, last_use, .. } = *self.slot(id);
        self.queues[usize::from(queue)].put(last_use, tick, id);
        if !self.is_active[usize::from(queue)] {
            self.is_active[usize::from(queue)] = true;
            self.active.push(queue);
        }
    }
}

impl Policy for HitDensity {
    fn kind(&self) -> PolicyKind {
        PolicyKind::HitDensity
    }

    fn access(&mut self, id: Id, access: Access) {
        self.now = self.now.max(access.request);
        self.reuse.advance(self.now);
        self.ticks += 1;
        let (now, tick) = (self.now, self.ticks);
        let before = *self.slot(id);
        if before.is_evictable {
            self.queues[usize::from(before.queue)].remove(before.last_use, before.tick, id);
        }
        let slot = self.slot(id);
        slot.uses = slot.uses.saturating_add(access.uses());
        if !access.is_cached && access.cost_per_token.is_finite() {
            slot.total_cost += access.cost_per_token.max(0.0);
            slot.computed = slot.computed.saturating_add(1);
        }
        let class = class_of(access.parent_uses, slot.uses);
        let cost = level(slot.mean_cost());
        slot.class = class as u8;
        slot.queue = (class * COSTS + cost) as u16;
        slot.last_use = now;
        slot.tick = tick;
        if before.uses > 0 && access.past_uses == 0 {
            self.reuse.used_again(usize::from(before.class), now - before.last_use);
        }
        self.reuse.entered(class);
        if before.is_evictable {
            self.enqueue(id);
        }
    }

    fn insert(&mut self, id: Id, _size_bytes: u64) {
        self.slot(id).is_resident = true;
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        let slot = self.slot(id);
        if !slot.is_resident || slot.is_evictable == is_evictable {
            return;
        }
        slot.is_evictable = is_evictable;
        let (queue, last_use, tick) = (usize::from(slot.queue), slot.last_use, slot.tick);
        if is_evictable {
            self.enqueue(id);
        } else {
            self.queues[queue].remove(last_use, tick, id);
        }
    }

    fn victim(&mut self) -> Option<Id> {
        let mut least: Option<(f64, u64, Id)> = None;
        let mut at = 0;
        while let Some(&queue) = self.active.get(at) {
            let (class, cost) = (usize::from(queue) / COSTS, usize::from(queue) % COSTS);
            let Some(found) = self.queues[usize::from(queue)].least(self.now, self.reuse.rates(class)) else {
                self.is_active[usize::from(queue)] = false;
                self.active.swap_remove(at);
                continue;
            };
            let density = found.rate * worth(cost);
            if least
                .is_none_or(|(than, or, of)| density < than || (density <= than && (found.tick, found.id) < (or, of)))
            {
                least = Some((density, found.tick, found.id));
            }
            at += 1;
        }
        least.map(|(_, _, id)| id)
    }

    fn evict(&mut self, id: Id) {
        self.remove(id);
    }

    fn remove(&mut self, id: Id) {
        let slot = self.slot(id);
        slot.is_resident = false;
        slot.is_evictable = false;
        let (queue, last_use, tick) = (usize::from(slot.queue), slot.last_use, slot.tick);
        self.queues[queue].remove(last_use, tick, id);
    }

    fn forget(&mut self, id: Id) {
        self.remove(id);
        *self.slot(id) = Slot::default();
    }
}
