//! Stored KV on its way to the device: copied on a stream of its own, beside what is computed.

use rayon::prelude::*;

use super::{Launch, Session, State, size_class};
use crate::driver::{self, Event};
use crate::staging::Slot;
use ragstone_kernels::error::Result;

/// What parts that are copied together begin at multiples of.
const PART_BYTES: usize = 256;
/// Host memory that stored KV on its way to the device may hold.
pub(super) const LOAD_BYTES: usize = 256 << 20;

/// Device memory that loads are copied to, before they are placed.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) memory: u64,
    bytes: usize,
    /// Recorded on the compute stream behind the kernel that reads it.
    pub(super) read: Event,
    /// Recorded on the load stream behind the copy.
    filled: Event,
}

impl Session {
    /// Copies `parts` to the device in one go, beside what is computed, and queues what `place` says, which is given where each of them lies. It is
    /// called under the session's lock: it must not use the session.
    pub(crate) fn load(&self, parts: &[&[u8]], place: impl FnOnce(&[u64]) -> Vec<Launch>) -> Result<()> {
        // Each part begins where any element may.
        let step = |part: &&[u8]| part.len().next_multiple_of(PART_BYTES);
        let bytes: usize = parts.iter().map(step).sum();
        let mut slot = self.enter()?.loads.take(bytes)?;
        // Without the lock: the compute stream is given work meanwhile.
        let (mut rest, mut copies) = (&mut slot.memory.as_mut_slice()[..bytes], Vec::with_capacity(parts.len()));
        for part in parts {
            let (to, behind) = rest.split_at_mut(step(part));
            copies.push((&mut to[..part.len()], *part));
            rest = behind;
        }
        copy_at_once(copies);
        let mut state = self.enter()?;
        let state = &mut *state;
        let landing = state.landing(bytes)?;
        let starts = parts.iter().scan(landing.memory, |next, part| {
            let start = *next;
            *next += step(part) as u64;
            Some(start)
        });
        let launches = place(&starts.collect::<Vec<_>>());
        let queued = state.queue_load(&landing, slot, bytes, &launches);
        state.landings.push(landing);
        queued
    }
}

impl State {
    /// Queues a copy to `landing` and what is launched on it.
    fn queue_load(&mut self, landing: &Landing, slot: Slot, bytes: usize, launches: &[Launch]) -> Result<()> {
        self.load.wait_for(&landing.read)?;
        // SAFETY: the slot is not touched before its event is done; the landing has as many bytes, and whoever read it last is done.
        unsafe { self.load.copy_in(landing.memory, slot.memory.as_ptr(), bytes) }?;
        self.queued.copies += 1;
        landing.filled.record(&self.load)?;
        self.loads.give_back(slot, &self.load)?;
        self.compute.wait_for(&landing.filled)?;
        launches.iter().try_for_each(|launch| self.launch(launch))?;
        landing.read.record(&self.compute)
    }

    /// Device memory for a load: of one whose reader is done, or new.
    fn landing(&mut self, bytes: usize) -> Result<Landing> {
        for index in 0..self.landings.len() {
            if self.landings[index].bytes >= bytes && self.landings[index].read.is_done()? {
                return Ok(self.landings.remove(index));
            }
        }
        let held: usize = self.landings.iter().map(|landing| landing.bytes).sum();
        if held + bytes > LOAD_BYTES && !self.landings.is_empty() {
            let oldest = self.landings.remove(0);
            oldest.read.wait()?;
            if oldest.bytes >= bytes {
                return Ok(oldest);
            }
            // SAFETY: whoever read it is done.
            unsafe { driver::free(oldest.memory) };
        }
        let bytes = size_class(bytes);
        Ok(Landing { memory: self.take_new(bytes)?, bytes, read: Event::new()?, filled: Event::new()? })
    }
}

/// Copies with several threads: one copies some 10 GB/s, a link to a GPU carries 50 and more.
pub(super) fn copy_at_once(copies: Vec<(&mut [u8], &[u8])>) {
    /// What one thread takes at a time.
    const PIECE: usize = 256 << 10;
    /// What one thread copies before others would be awake.
    const ALONE: usize = 1 << 20;
    if copies.iter().map(|(_, from)| from.len()).sum::<usize>() <= ALONE {
        copies.into_iter().for_each(|(to, from)| to.copy_from_slice(from));
        return;
    }
    let pieces = copies.into_iter().flat_map(|(to, from)| to.chunks_mut(PIECE).zip(from.chunks(PIECE)));
    let pieces: Vec<_> = pieces.collect();
    pieces.into_par_iter().for_each(|(to, from)| to.copy_from_slice(from));
}
