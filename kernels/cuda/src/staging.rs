//! Pinned host memory that copies go through.
//!
//! A copy reads (or writes) its host memory whenever its stream comes to it. So a slot is used again only after an event that was recorded
//! behind its copy.

use super::driver::{Event, Pinned, Stream};
use ragstone_kernels::error::Result;

/// The least that a slot has.
const SLOT_BYTES: usize = 64 << 10;

/// Slots of pinned memory, each free once its event is done.
#[derive(Debug)]
pub(super) struct Staging {
    /// In the order in which they were given out last.
    slots: Vec<Slot>,
    /// Bytes that slots may have before somebody waits for one.
    most_bytes: usize,
}

/// Pinned memory of one copy.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) memory: Pinned,
    /// What it is free behind.
    pub(super) done: Event,
}

impl Staging {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { slots: Vec::new(), most_bytes }
    }

    /// A slot of at least so many bytes. Waits for the oldest where there are enough of them.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Slot> {
        for index in 0..self.slots.len() {
            if self.slots[index].memory.len() >= bytes && self.slots[index].done.is_done()? {
                return Ok(self.slots.remove(index));
            }
        }
        let held: usize = self.slots.iter().map(|slot| slot.memory.len()).sum();
        if held + bytes > self.most_bytes && !self.slots.is_empty() {
            let oldest = self.slots.remove(0);
            oldest.done.wait()?;
            if oldest.memory.len() >= bytes {
                return Ok(oldest);
            }
        }
        let memory = Pinned::new(bytes.next_power_of_two().max(SLOT_BYTES))?;
        Ok(Slot { memory, done: Event::new()? })
    }

    /// Takes a slot back whose copy is queued on `stream`.
    pub(super) fn give_back(&mut self, slot: Slot, stream: &Stream) -> Result<()> {
        slot.done.record(stream)?;
        self.put(slot);
        Ok(())
    }

    /// Takes a slot back whose event was recorded behind its copy.
    pub(super) fn put(&mut self, slot: Slot) {
        self.slots.push(slot);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Memory that a copy still uses must not be freed; after a loss nothing is copied any more.
        self.slots.iter().for_each(|slot| drop(slot.done.wait()));
    }
}
