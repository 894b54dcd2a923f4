//! The slot table: references, generations and the free list. No locks; whoever has the table has the lock.

use ragstone_kernels::pool::BlockId;

/// Every block of a pool, and the list of the free ones.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Reused first.
    first_free: Option<u32>,
    /// Reused last.
    last_free: Option<u32>,
    free: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Strong guards. 0: free.
    references: u32,
    /// Counts what the block has held: a weak handle of another generation finds nothing.
    generation: u64,
    /// Whether a weak handle may find what is in it.
    is_findable: bool,
    /// Neighbours in the free list, if free.
    previous: Option<u32>,
    next: Option<u32>,
}

impl Slots {
    pub fn new(blocks: u32) -> Self {
        let slots = (0..blocks).map(|block| Slot {
            previous: block.checked_sub(1),
            next: Some(block + 1).filter(|next| *next < blocks),
            ..Slot::default()
        });
        let slots: Vec<Slot> = slots.collect();
        let last_free = blocks.checked_sub(1);
        Self { free: slots.len(), first_free: last_free.map(|_| 0), last_free, slots }
    }

    pub fn total(&self) -> usize {
        self.slots.len()
    }

    pub fn free(&self) -> usize {
        self.free
    }

    /// Takes `count` free blocks, one reference each, and leaves at least `spared` free; `None`, and nothing has changed,
    /// if there are too few. What they held is gone.
    pub fn take(&mut self, count: usize, spared: usize) -> Option<Vec<BlockId>> {
        if self.free < count.checked_add(spared)? {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count
            && let Some(block) = self.first_free
        {
            self.unlink(block);
            let slot = self.slot_mut(block);
            slot.references = 1;
            slot.generation += 1;
            slot.is_findable = false;
            taken.push(BlockId(block));
        }
        Some(taken)
    }

    /// One more reference to a block that is held.
    pub fn share(&mut self, block: BlockId) {
        let slot = self.slot_mut(block.0);
        debug_assert!(slot.references > 0, "only who holds a block shares it");
        slot.references += 1;
    }

    /// One reference less.
    pub fn release(&mut self, block: BlockId) {
        let slot = self.slot_mut(block.0);
        debug_assert!(slot.references > 0, "only who holds a block gives it back");
        slot.references -= 1;
        if slot.references == 0 {
            self.link(block.0);
        }
    }

    /// No handle that was given out finds its block any more, whoever holds it.
    pub fn forget_contents(&mut self) {
        for slot in &mut self.slots {
            slot.generation += 1;
            slot.is_findable = false;
        }
    }

    /// From now on a handle with the generation that is returned finds the block.
    pub fn make_findable(&mut self, block: BlockId) -> u64 {
        let slot = self.slot_mut(block.0);
        slot.is_findable = true;
        slot.generation
    }

    /// One more reference to each block that still holds what it held at that generation, free ones included: all of them,
    /// or none and `false`.
    pub fn revive(&mut self, wanted: &[(BlockId, u64)]) -> bool {
        let is_there = |(block, generation): &(BlockId, u64)| self.slots[block.0 as usize].generation == *generation;
        if !wanted.iter().all(is_there) {
            return false;
        }
        for (block, _) in wanted {
            if self.slots[block.0 as usize].references == 0 {
                self.unlink(block.0);
            }
            self.slot_mut(block.0).references += 1;
        }
        true
    }

    /// Whether the caller's is the only reference; then weak handles find the block no more, and it may be written.
    pub fn try_own(&mut self, block: BlockId) -> bool {
        let slot = self.slot_mut(block.0);
        let is_sole = slot.references == 1;
        if is_sole {
            slot.generation += 1;
            slot.is_findable = false;
        }
        is_sole
    }

    pub fn references(&self, block: BlockId) -> u32 {
        self.slots[block.0 as usize].references
    }

    fn slot_mut(&mut self, block: u32) -> &mut Slot {
        &mut self.slots[block as usize]
    }

    /// Puts a block into the free list: behind all others if its content can be found, else before them.
    fn link(&mut self, block: u32) {
        let is_findable = self.slots[block as usize].is_findable;
        let (previous, next) = if is_findable { (self.last_free, None) } else { (None, self.first_free) };
        self.join(previous, Some(block));
        self.join(Some(block), next);
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let slot = self.slot_mut(block);
        let (previous, next) = (slot.previous.take(), slot.next.take());
        self.join(previous, next);
        self.free -= 1;
    }

    /// Makes two blocks neighbours; `None` is an end of the list.
    fn join(&mut self, previous: Option<u32>, next: Option<u32>) {
        match previous {
            Some(block) => self.slot_mut(block).next = next,
            None => self.first_free = next,
        }
        match next {
            Some(block) => self.slot_mut(block).previous = previous,
            None => self.last_free = previous,
        }
    }
}
