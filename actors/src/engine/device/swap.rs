//! Preemption: a sequence leaves the device whole, and comes back bit for bit; or it goes on from stored KV, where that costs less ("Efficient
//! Memory Management for Large Language Model Serving with PagedAttention", section 4.5).

use ragstone_kernels::backend::Backend;
use ragstone_storage::block::PackedTables;

use super::Device;
use crate::engine::sequence::{State, Swapped};
use crate::error::{Error, ErrorKind, Result};
use crate::prefill::Interruption;

impl<B: Backend> Device<B> {
    /// Takes a sequence off the device, by what the measured costs say is cheaper.
    pub(super) fn preempt(&mut self, id: u64) {
        let Some(sequence) = self.sequences.iter().find(|sequence| sequence.id == id) else { return };
        let (rows, blocks) = (sequence.rows_to_resume(), sequence.blocks());
        self.inbox.count_preemption();
        // Whoever waits would have its blocks before it is back: what is swapped out comes before those.
        let is_first = self.inbox.look(|waiting| waiting.is_empty()).unwrap_or_default();
        let prefers =
            |rows| self.pace.prefers_to_compute(rows, blocks) || self.env.fail_point("engine.preempt").is_err();
        let error = if is_first && rows.is_some_and(prefers) {
            None
        } else {
            let started = self.env.stopwatch();
            match self.swap_out(id) {
                Ok(()) => {
                    metrics::counter!("ragstone_preemptions_total", "by" => "swap").increment(1);
                    return self.pace.observe_swap(blocks, started.elapsed_ms());
                }
                Err(error) if self.is_loss(&error) => return,
                Err(error) => Some(error),
            }
        };
        metrics::counter!("ragstone_preemptions_total", "by" => "recompute").increment(1);
        let error =
            error.unwrap_or_else(|| Error::new(ErrorKind::Internal, "an answer was preempted and not taken up again"));
        if let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.id == id) {
            sequence.interrupt(Interruption::Preempted, || Error::new(error.kind(), error.to_string()));
        }
    }

    /// Copies a sequence's blocks to host memory, as they are, and frees them: what comes back has every bit.
    fn swap_out(&mut self, id: u64) -> Result<()> {
        self.env.fail_point("engine.swap_out")?;
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
