//! Preemption: a sequence leaves the device whole, and comes back bit for bit.

use ragstone_kernels::backend::Backend;
use ragstone_storage::block::PackedTables;

use super::Device;
use crate::engine::sequence::{State, Swapped};
use crate::error::Result;

impl<B: Backend> Device<B> {
    /// Copies a sequence's blocks to host memory, as they are, and frees them: what comes back has every bit.
    pub(super) fn swap_out(&mut self, id: u64) -> Result<()> {
        let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.id == id) else { return Ok(()) };
        let (blocks, shape) = PackedTables::of(sequence.tables());
        let bytes = blocks.iter().map(|block| self.backend.read_block(&self.pool, *block));
        let bytes = bytes.collect::<Result<Vec<_>, _>>()?;
        sequence.swapped = Some(Swapped { shape, bytes });
        let empty = || self.tier.allocator().empty_table();
        let tables = sequence.tables().iter().map(|_| empty()).collect();
        sequence.set_tables(tables);
        sequence.paths.clear();
        if let State::Prefilling(prefilling) = &mut sequence.state {
            // What it shares with the tier may go, too; it leaves nothing there when it comes back.
            prefilling.device = None;
        }
        self.inbox.count_preemption();
        metrics::counter!("ragstone_preemptions_total").increment(1);
        Ok(())
    }

    pub(super) fn swap_in(&mut self, id: u64) -> Result<()> {
        let is_alone = self.sequences.iter().all(|sequence| sequence.swapped.is_some());
        let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.id == id) else { return Ok(()) };
        let Some(swapped) = &sequence.swapped else { return Ok(()) };
        let mut unpacked = self.tier.unpack(&swapped.shape);
        if unpacked.is_err() && is_alone {
            // As where a table grows.
            self.tier.clear();
            unpacked = self.tier.unpack(&swapped.shape);
        }
        let (blocks, tables) = unpacked?;
        for (block, bytes) in blocks.into_iter().zip(&swapped.bytes) {
            self.backend.write_block(&mut self.pool, block, bytes)?;
        }
        sequence.swapped = None;
        sequence.set_tables(tables);
        Ok(())
    }
}
