//! Blocks of the device pool: who owns which. The pool's memory is the kernels'; here are only its numbers.
//!
//! A block holds 16 tokens of every layer. Tables of blocks are all-or-nothing, share blocks by reference count, and
//! give them back when dropped, so that nothing can be freed twice (PagedAttention, SOSP 2023, section 4).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ragstone_kernels::pool::BlockId;

use crate::{Error, ErrorKind, Result};

/// Tokens in a block.
pub const BLOCK_TOKENS: usize = ragstone_kernels::pool::BLOCK_TOKENS;

/// Hands out blocks. Cheap to clone; clones share the blocks.
#[derive(Debug, Clone)]
pub struct BlockAllocator(Arc<Mutex<Blocks>>);

#[derive(Debug)]
struct Blocks {
    /// A stack; the lowest number is on top at the start.
    free: Vec<BlockId>,
    /// How many tables hold each block.
    references: Vec<u32>,
}

/// The blocks of one sequence, in the order of its slots. Dropped, it gives them back.
#[derive(Debug)]
pub struct BlockTable {
    allocator: BlockAllocator,
    blocks: Vec<BlockId>,
    tokens: usize,
}

/// A block whose content the caller has to copy in the pool before writing to `to`: `from` stays with who shares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The shared block.
    pub from: BlockId,
    /// The block that took its place in the table.
    pub to: BlockId,
}

impl BlockAllocator {
    /// An allocator over the blocks `0..blocks` of a pool.
    ///
    /// # Errors
    /// `InvalidInput` if there are more than 2^32 blocks.
    pub fn new(blocks: usize) -> Result<Self> {
        let count = u32::try_from(blocks)
            .map_err(|_| Error::invalid_input(format!("a pool of {blocks} blocks is larger than 2^32 blocks")))?;
        let free = (0..count).rev().map(BlockId).collect();
        Ok(Self(Arc::new(Mutex::new(Blocks { free, references: vec![0; blocks] }))))
    }

    /// Room for `tokens` tokens, all or nothing.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then nothing has changed.
    pub fn allocate(&self, tokens: usize) -> Result<BlockTable> {
        let blocks = self.blocks().take(tokens.div_ceil(BLOCK_TOKENS))?;
        Ok(BlockTable { allocator: self.clone(), blocks, tokens })
    }

    /// Blocks that nobody holds.
    pub fn free_blocks(&self) -> usize {
        self.blocks().free.len()
    }

    /// Blocks of the pool.
    pub fn total_blocks(&self) -> usize {
        self.blocks().references.len()
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    fn take(&mut self, count: usize) -> Result<Vec<BlockId>> {
        let Some(rest) = self.free.len().checked_sub(count) else {
            let message = format!(
                "{count} blocks of {BLOCK_TOKENS} tokens are wanted, {} of {} are free; wait for a sequence to end, \
                 or give the device tier more memory",
                self.free.len(),
                self.references.len()
            );
            return Err(Error::new(ErrorKind::Full, message));
        };
        let taken: Vec<_> = self.free.drain(rest..).rev().collect();
        taken.iter().for_each(|block| self.references[block.0 as usize] = 1);
        Ok(taken)
    }

    fn give_back(&mut self, block: BlockId) {
        let references = &mut self.references[block.0 as usize];
        debug_assert!(*references > 0, "only a table that holds a block gives it back");
        *references -= 1;
        if *references == 0 {
            self.free.push(block);
        }
    }
}

impl BlockTable {
    /// The blocks, in the order of the sequence's slots: slot `s` is in block `s / 16`.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Tokens that room was asked for.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens that fit into the blocks held: fewer than 16 more than [`BlockTable::tokens`].
    pub fn capacity_tokens(&self) -> usize {
        self.blocks.len() * BLOCK_TOKENS
    }

    /// Room for `tokens` more, all or nothing. If the last block is partly filled and shared, it is replaced by one of
    /// its own, and the caller has to copy its content: `Some`.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then nothing has changed.
    pub fn extend(&mut self, tokens: usize) -> Result<Option<BlockCopy>> {
        let mut blocks = self.allocator.blocks();
        let partial = tokens > 0 && !self.tokens.is_multiple_of(BLOCK_TOKENS);
        let shared = self.blocks.last().copied().filter(|last| partial && blocks.references[last.0 as usize] > 1);
        let added = (self.tokens + tokens).div_ceil(BLOCK_TOKENS) - self.blocks.len();
        let mut taken = blocks.take(added + usize::from(shared.is_some()))?.into_iter();
        let mut copy = None;
        if let Some((from, to)) = shared.zip(taken.as_slice().first().copied()) {
            taken.next();
            blocks.give_back(from);
            self.blocks.pop();
            self.blocks.push(to);
            copy = Some(BlockCopy { from, to });
        }
        self.blocks.extend(taken);
        self.tokens += tokens;
        Ok(copy)
    }

    /// A table of the same blocks; allocates nothing.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut blocks = self.allocator.blocks();
        self.blocks.iter().for_each(|block| blocks.references[block.0 as usize] += 1);
        Self { allocator: self.allocator.clone(), blocks: self.blocks.clone(), tokens: self.tokens }
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        let mut blocks = self.allocator.blocks();
        self.blocks.iter().rev().for_each(|&block| blocks.give_back(block));
    }
}

#[cfg(test)]
mod tests;
