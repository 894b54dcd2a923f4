//! S3-FIFO: three static FIFO queues.

use super::{Access, Id, Order, Policy, PolicyKind, Rank};

/// Share of the tier that the small queue takes, as a divisor.
const SMALL_SHARE: u64 = 10;
/// Uses are counted up to this.
const MOST_USES: u8 = 3;

/// S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1).
///
/// New entries enter the small queue, a tenth of the tier. At its end those used at least twice there go on into the main
/// queue, the others leave and are remembered as ghosts; a ghost that comes back enters the main queue at once. At the
/// main queue's end an entry that was used goes round again with one use less. Sizes are bytes here, and ghosts are
/// remembered up to the bytes of the main queue. An entry that may not leave keeps its place and is passed over.
#[derive(Debug)]
pub struct S3Fifo {
    small_target_bytes: u64,
    ghost_target_bytes: u64,
    slots: Vec<Slot>,
    small: Queue,
    main: Queue,
    /// What left the small queue lately.
    ghosts: Queue,
    ticks: u64,
}

/// The evictable entries of a queue by place (all of the ghosts), and the bytes of all its entries.
#[derive(Debug, Default)]
struct Queue {
    order: Order,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Unknown,
    Small,
    Main,
    Ghost,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    state: State,
    is_evictable: bool,
    uses: u8,
    bytes: u64,
    /// When it entered the queue that it is in.
    tick: u64,
}

impl S3Fifo {
    /// A policy for a tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let small_target_bytes = capacity_bytes / SMALL_SHARE;
        Self {
            small_target_bytes,
            ghost_target_bytes: capacity_bytes - small_target_bytes,
            slots: Vec::new(),
            small: Queue::default(),
            main: Queue::default(),
            ghosts: Queue::default(),
            ticks: 0,
        }
    }

    fn slot(&mut self, id: Id) -> &mut Slot {
        if self.slots.len() <= id.index() {
            self.slots.resize(id.index() + 1, Slot::default());
        }
        &mut self.slots[id.index()]
    }

    fn queue(&mut self, state: State) -> Option<&mut Queue> {
        match state {
            State::Small => Some(&mut self.small),
            State::Main => Some(&mut self.main),
            State::Ghost => Some(&mut self.ghosts),
            State::Unknown => None,
        }
    }

    /// Takes `id` out of where it is.
    fn take_out(&mut self, id: Id) -> Slot {
        let slot = *self.slot(id);
        if let Some(queue) = self.queue(slot.state) {
            queue.order.remove(id);
            queue.bytes -= slot.bytes;
        }
        *self.slot(id) = Slot::default();
        slot
    }

    /// Puts `id` at the end of a queue.
    fn put_into(&mut self, id: Id, slot: Slot) {
        self.ticks += 1;
        let tick = self.ticks;
        *self.slot(id) = Slot { tick, ..slot };
        if let Some(queue) = self.queue(slot.state) {
            queue.bytes += slot.bytes;
            if slot.is_evictable {
                queue.order.put(id, Rank { priority: 0.0, tick });
            }
        }
    }

    /// The next to leave the small queue; those used on the way go on into the main queue.
    fn small_victim(&mut self) -> Option<Id> {
        loop {
            let id = self.small.order.first()?;
            if self.slot(id).uses < 2 {
                return Some(id);
            }
            let slot = self.take_out(id);
            self.put_into(id, Slot { state: State::Main, uses: 0, ..slot });
        }
    }

    /// The next to leave the main queue; those used on the way go round again. Ends, because each round takes a use.
    fn main_victim(&mut self) -> Option<Id> {
        loop {
            let id = self.main.order.first()?;
            if self.slot(id).uses == 0 {
                return Some(id);
            }
            let slot = self.take_out(id);
            self.put_into(id, Slot { uses: slot.uses - 1, ..slot });
        }
    }
}

impl Policy for S3Fifo {
    fn kind(&self) -> PolicyKind {
        PolicyKind::S3Fifo
    }

    fn access(&mut self, id: Id, access: Access) {
        let slot = self.slot(id);
        if matches!(slot.state, State::Small | State::Main) {
            slot.uses = access.uses().saturating_add(slot.uses.into()).min(MOST_USES.into()) as u8;
        }
    }

    fn insert(&mut self, id: Id, size_bytes: u64) {
        if matches!(self.slot(id).state, State::Small | State::Main) {
            return;
        }
        let was_ghost = self.take_out(id).state == State::Ghost;
        let state = if was_ghost { State::Main } else { State::Small };
        self.put_into(id, Slot { state, bytes: size_bytes, ..Slot::default() });
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        let slot = self.slot(id);
        let (state, tick) = (slot.state, slot.tick);
        if !matches!(state, State::Small | State::Main) {
            return;
        }
        slot.is_evictable = is_evictable;
        if let Some(queue) = self.queue(state) {
            if is_evictable {
                queue.order.put(id, Rank { priority: 0.0, tick });
            } else {
                queue.order.remove(id);
            }
        }
    }

    fn victim(&mut self) -> Option<Id> {
        if self.small.bytes >= self.small_target_bytes {
            self.small_victim().or_else(|| self.main_victim())
        } else {
            // The small queue may go over into the main one as a whole.
            self.main_victim().or_else(|| self.small_victim()).or_else(|| self.main_victim())
        }
    }

    fn evict(&mut self, id: Id) {
        let slot = self.take_out(id);
        if slot.state == State::Small {
            self.put_into(id, Slot { state: State::Ghost, is_evictable: true, bytes: slot.bytes, ..Slot::default() });
            while self.ghosts.bytes > self.ghost_target_bytes {
                let Some(oldest) = self.ghosts.order.first() else { break };
                self.take_out(oldest);
            }
        }
    }

    fn remove(&mut self, id: Id) {
        self.take_out(id);
    }

    fn forget(&mut self, id: Id) {
        self.take_out(id);
    }
}
