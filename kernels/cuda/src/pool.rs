//! Blocks of keys and values in device memory.

use super::session::Buffer;
use ragstone_kernels::error::{Error, Result};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId, KvLayout};

/// The paged pool: the same blocks on every rank, each with the KV heads of the rank.
#[derive(Debug)]
pub struct CudaPool {
    /// One a rank; nothing where there is no memory for them, or no block.
    pub(super) arenas: Option<Vec<Arena>>,
    pub(super) blocks: usize,
    /// Of all heads.
    pub(super) layout: KvLayout,
}

impl CudaPool {
    /// # Errors
    /// `InvalidInput` if there is no such block.
    pub(super) fn check_block(&self, block: BlockId) -> Result<()> {
        if block.0 as usize >= self.blocks {
            return Err(Error::invalid_input(format!("block {} of {}", block.0, self.blocks)));
        }
        Ok(())
    }

    /// Bytes of a block, on all ranks together.
    pub(super) fn block_bytes(&self) -> usize {
        2 * self.layout.layers * BLOCK_TOKENS * self.layout.kv_dim() * self.layout.dtype.size_in_bytes()
    }
}

/// A rank's part of the pool. Of each layer K, then V, `[blocks][kv_heads][16][head_dim]`.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) buffer: Buffer,
    shape: ArenaShape,
}

/// How an arena is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArenaShape {
    pub(super) blocks: usize,
    /// Of the rank's heads.
    pub(super) layout: KvLayout,
}

impl ArenaShape {
    /// Bytes of one layer's K (or V) in a block.
    pub(super) fn part_bytes(self) -> usize {
        BLOCK_TOKENS * self.layout.kv_dim() * self.layout.dtype.size_in_bytes()
    }

    /// Bytes from one part to the next.
    fn stride(self) -> usize {
        self.blocks * self.part_bytes()
    }

    fn parts(self) -> usize {
        2 * self.layout.layers
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(self) -> usize {
        self.stride() * self.parts()
    }
}

impl Arena {
    pub(super) fn new(buffer: Buffer, shape: ArenaShape) -> Self {
        Self { buffer, shape }
    }

    /// Bytes of one layer's K (or V) in a block.
    pub(super) fn part_bytes(&self) -> usize {
        self.shape.part_bytes()
    }

    /// Bytes from one part to the next.
    pub(super) fn stride(&self) -> u64 {
        self.shape.stride() as u64
    }

    /// K and V of every layer.
    pub(super) fn parts(&self) -> u32 {
        self.shape.parts() as u32
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.shape.part_bytes() * self.shape.parts()
    }

    /// Lines of a layer's K, or V: one for each token and KV head.
    pub(super) fn lines(&self) -> u32 {
        (self.shape.blocks * BLOCK_TOKENS * self.shape.layout.kv_heads) as u32
    }

    /// Where a layer's K and V begin.
    pub(super) fn layer(&self, layer: usize) -> (u64, u64) {
        let k = self.buffer.pointer() + 2 * layer as u64 * self.stride();
        (k, k + self.stride())
    }

    /// Where a block that exists begins in the first part.
    pub(super) fn block(&self, block: BlockId) -> u64 {
        self.buffer.pointer() + (block.0 as usize * self.part_bytes()) as u64
    }
}
