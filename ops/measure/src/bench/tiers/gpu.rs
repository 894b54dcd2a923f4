//! KV in and out of a GPU's memory, beside copies as the driver makes them from pinned memory.

use std::sync::Arc;

use ragstone_cuda::measure::{Copies, Measured};
use ragstone_cuda::{CudaModel, GpuList};
use ragstone_env::Stopwatch;
use ragstone_kernels::backend::{Backend, Slots, StoredKv};
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};
use ragstone_storage::entry::Entry;

use super::place_verified;
use crate::bench::Shape;
use crate::error::Result;

/// A model's pool on a GPU, and memory for plain copies of an entry.
pub(super) struct Gpu {
    model: CudaModel,
    pool: <CudaModel as Backend>::Pool,
    /// Fresh K and V, to be taken out.
    fresh: <CudaModel as Backend>::Kv,
    blocks: Vec<BlockId>,
    slots: Vec<u32>,
    copies: Copies,
}

impl Gpu {
    /// For entries of `tokens` tokens. `load` says the type of their values. Plain copies are those of the first GPU.
    pub(super) fn new(shape: Shape, gpus: GpuList, load: LoadOptions<'_>, tokens: usize) -> Result<Self> {
        let first = gpus.as_slice()[0];
        let model = CudaModel::random(shape.config()?, 1, gpus, load)?;
        let blocks: Vec<BlockId> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let slots: Vec<u32> = (0..tokens as u32).collect();
        let pool = model.new_pool(blocks.len());
        let rows = model.embed(&vec![1; tokens], &slots)?;
        let fresh = model.project(0, &rows);
        model.check()?;
        let copies = Measured::start(first)?.copies(tokens * model.kv_layout().token_bytes())?;
        Ok(Self { model, pool, fresh, blocks, slots, copies })
    }

    /// Verifies every frame and writes it into the blocks, rotated to its place. Seconds, until all is there.
    pub(super) fn place(&mut self, entries: &[Arc<Entry>]) -> Result<f64> {
        let started = Stopwatch::start();
        let Self { model, pool, blocks, slots, .. } = self;
        place_verified(entries, |layer, dtype, frame| {
            let to = Slots { blocks, slots, positions: slots };
            model.place_stored(pool, layer, to, StoredKv { dtype, k: &frame.k, v: &frame.v })
        })?;
        // A block is read once all that was queued before it is done.
        self.model.read_block(&self.pool, self.blocks[0])?;
        Ok(started.elapsed_s())
    }

    /// Takes as much out as so many entries are, a layer at a time, as a prefill does. Seconds.
    pub(super) fn export(&self, entries: usize) -> Result<f64> {
        let started = Stopwatch::start();
        for _ in 0..entries * self.model.kv_layout().layers {
            std::hint::black_box(self.model.export(&self.fresh, 0..self.slots.len()));
        }
        self.model.check()?;
        Ok(started.elapsed_s())
    }

    /// Copies as many bytes as so many entries have, to the device or from it. Seconds.
    pub(super) fn copy(&mut self, entries: usize, to_device: bool) -> Result<f64> {
        let started = Stopwatch::start();
        for _ in 0..entries {
            if to_device { self.copies.copy_in() } else { self.copies.copy_out() }?;
        }
        Ok(started.elapsed_s())
    }
}
