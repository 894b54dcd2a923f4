//! The blocks of one sequence.

use ragstone_kernels::pool::BlockId;

use super::{BLOCK_TOKENS, BlockAllocator, MutableBlock, SharedBlock};
use crate::Result;

/// The blocks of one sequence, in the order of its slots. Dropped, it gives them back, the tail first.
#[derive(Debug)]
pub struct BlockTable {
    allocator: BlockAllocator,
    held: Vec<TableBlock>,
    /// The blocks' numbers, as the kernels want them.
    ids: Vec<BlockId>,
    tokens: usize,
}

#[derive(Debug)]
pub(super) enum TableBlock {
    Own(MutableBlock),
    Shared(SharedBlock),
}

/// A block whose content the caller has to copy in the pool before writing to `to`. It keeps `from` until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct BlockCopy {
    from: SharedBlock,
    to: BlockId,
}

impl BlockCopy {
    /// The shared block.
    pub fn from(&self) -> BlockId {
        self.from.id()
    }

    /// The block that took its place in the table.
    pub fn to(&self) -> BlockId {
        self.to
    }
}

impl TableBlock {
    fn id(&self) -> BlockId {
        match self {
            Self::Own(block) => block.id(),
            Self::Shared(block) => block.id(),
        }
    }

    /// Lets others hold it too.
    fn share(self) -> SharedBlock {
        match self {
            Self::Own(block) => block.complete().share(),
            Self::Shared(block) => block,
        }
    }
}

impl BlockAllocator {
    /// A table without blocks.
    pub fn empty_table(&self) -> BlockTable {
        BlockTable::from_held(self.clone(), Vec::new(), 0)
    }

    /// Room for the `tokens` tokens of a new sequence, all or nothing.
    ///
    /// # Errors
    /// `Full` if too few blocks are free beside the watermark; then nothing has changed.
    pub fn allocate(&self, tokens: usize) -> Result<BlockTable> {
        Ok(self.allocate_behind(Vec::new(), 0, tokens)?.0)
    }

    /// Room for a new sequence of `tokens` tokens, the first `prefix_tokens` of which are in the blocks `prefix` already, all or
    /// nothing. If the last of those is partly filled and others hold it, the sequence gets its own, and the caller has to
    /// copy the content.
    ///
    /// # Errors
    /// As [`BlockAllocator::allocate`].
    pub fn allocate_behind(
        &self,
        mut prefix: Vec<SharedBlock>,
        prefix_tokens: usize,
        tokens: usize,
    ) -> Result<(BlockTable, Option<BlockCopy>)> {
        debug_assert_eq!(prefix.len(), prefix_tokens.div_ceil(BLOCK_TOKENS), "the blocks of the prefix, no more");
        let partial = prefix.pop_if(|_| !prefix_tokens.is_multiple_of(BLOCK_TOKENS));
        let added = tokens.max(prefix_tokens).div_ceil(BLOCK_TOKENS) - prefix.len();
        let is_sole = partial.as_ref().is_some_and(|block| block.holders() == 1);
        let mut taken = self.take_for_new(added - usize::from(is_sole))?;
        let mut held: Vec<TableBlock> = prefix.into_iter().map(TableBlock::Shared).collect();
        let mut copy = None;
        if let Some(partial) = partial {
            let spare = if is_sole { None } else { taken.pop() };
            let (last, copied) = own(self, partial, spare);
            copy = copied?;
            held.push(last);
        }
        held.extend(taken.into_iter().map(TableBlock::Own));
        let ids = held.iter().map(TableBlock::id).collect();
        Ok((BlockTable { allocator: self.clone(), held, ids, tokens }, copy))
    }
}

impl BlockTable {
    pub(super) fn from_held(allocator: BlockAllocator, held: Vec<TableBlock>, tokens: usize) -> Self {
        let ids = held.iter().map(TableBlock::id).collect();
        Self { allocator, held, ids, tokens }
    }

    /// The blocks, in the order of the sequence's slots: slot `s` is in block `s / 16`.
    pub fn blocks(&self) -> &[BlockId] {
        &self.ids
    }

    /// Tokens that room was asked for.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens that fit into the blocks held: fewer than 16 more than [`BlockTable::tokens`].
    pub fn capacity_tokens(&self) -> usize {
        self.held.len() * BLOCK_TOKENS
    }

    /// Whether slot `slot` may be written: its block is this table's alone.
    pub fn is_writable(&self, slot: usize) -> bool {
        matches!(self.held.get(slot / BLOCK_TOKENS), Some(TableBlock::Own(_)))
    }

    /// Room for `tokens` more, all or nothing; the watermark's blocks count. If the last block is partly filled and others
    /// hold it, it is replaced by one of its own, and the caller has to copy its content: `Some`.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then nothing has changed.
    pub fn extend(&mut self, tokens: usize) -> Result<Option<BlockCopy>> {
        let writes_to_last = tokens > 0 && !self.tokens.is_multiple_of(BLOCK_TOKENS);
        let is_shared = matches!(self.held.last(), Some(TableBlock::Shared(last)) if last.holders() > 1);
        let copies = usize::from(writes_to_last && is_shared);
        let added = (self.tokens + tokens).div_ceil(BLOCK_TOKENS) - self.held.len();
        let mut taken = self.allocator.take_for_running(added + copies)?;
        let spare = if copies > 0 { taken.pop() } else { None };
        let copy = if writes_to_last { self.own_slot_with(self.tokens, spare)? } else { None };
        self.ids.extend(taken.iter().map(MutableBlock::id));
        self.held.extend(taken.into_iter().map(TableBlock::Own));
        self.tokens += tokens;
        Ok(copy)
    }

    /// Makes the block of slot `slot` this table's own, so that it may be written: `Some` where its content has to be copied.
    ///
    /// # Errors
    /// `Full` if others hold it and no block is free; then nothing has changed.
    pub fn own_slot(&mut self, slot: usize) -> Result<Option<BlockCopy>> {
        self.own_slot_with(slot, None)
    }

    fn own_slot_with(&mut self, slot: usize, spare: Option<MutableBlock>) -> Result<Option<BlockCopy>> {
        let index = slot / BLOCK_TOKENS;
        if index >= self.held.len() || self.is_writable(slot) {
            return Ok(None);
        }
        let shared = self.held.swap_remove(index).share();
        let (held, copy) = own(&self.allocator, shared, spare);
        self.ids[index] = held.id();
        self.held.push(held);
        let last = self.held.len() - 1;
        self.held.swap(index, last);
        copy
    }

    /// Lets others hold the blocks of the first `tokens` tokens: they are not written any more.
    pub fn share(&mut self, tokens: usize) -> Vec<SharedBlock> {
        let count = tokens.div_ceil(BLOCK_TOKENS).min(self.held.len());
        let rest = self.held.split_off(count);
        let shared: Vec<SharedBlock> = self.held.drain(..).map(TableBlock::share).collect();
        self.held.extend(shared.iter().cloned().map(TableBlock::Shared));
        self.held.extend(rest);
        shared
    }

    /// All of it; a table without blocks stays.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = self.allocator.empty_table();
        std::mem::replace(self, empty)
    }

    /// A table of the same blocks; allocates nothing. Whichever of the two writes to the last block first gets its own.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let held = self.share(self.capacity_tokens()).into_iter().map(TableBlock::Shared).collect();
        Self { allocator: self.allocator.clone(), held, ids: self.ids.clone(), tokens: self.tokens }
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        while self.held.pop().is_some() {}
    }
}

/// What to write to instead of `shared`: itself if nobody else holds it, else `spare`, or where there is none a free block,
/// and a copy to make. With the error comes what was given.
fn own(
    allocator: &BlockAllocator,
    shared: SharedBlock,
    spare: Option<MutableBlock>,
) -> (TableBlock, Result<Option<BlockCopy>>) {
    let from = match shared.try_own() {
        Ok(own) => return (TableBlock::Own(own), Ok(None)),
        Err(from) => from,
    };
    match spare.map_or_else(|| allocator.take_one(), Ok) {
        Ok(own) => {
            let to = own.id();
            (TableBlock::Own(own), Ok(Some(BlockCopy { from, to })))
        }
        Err(error) => (TableBlock::Shared(from), Err(error)),
    }
}
