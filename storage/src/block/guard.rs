//! The guards. Each holds one reference to one block, and gives it back when it is dropped.
//!
//! Compiled twice: with the standard library's locks, and in tests with loom's ([`super::sync`]).

use ragstone_kernels::pool::BlockId;

use super::slots::Slots;
use super::sync::{Arc, Mutex, MutexGuard};
use crate::{Error, ErrorKind, Result};

/// Of this many blocks one is kept for running sequences: admitting a prompt must not starve those that decode.
const WATERMARK: usize = 100;

/// Hands out blocks. Cheap to clone; clones share the blocks.
#[derive(Debug, Clone)]
pub struct BlockAllocator(Arc<Mutex<Slots>>);

/// One reference.
#[derive(Debug)]
struct Hold {
    allocator: BlockAllocator,
    block: BlockId,
}

/// A block that is being written. Nobody else holds it.
#[derive(Debug)]
pub struct MutableBlock(Hold);

/// A block that is not written any more. Nobody else holds it.
#[derive(Debug)]
pub struct CompleteBlock(Hold);

/// A block that is not written any more. Clones count.
#[derive(Debug, Clone)]
pub struct SharedBlock(Hold);

/// Finds a block for as long as its content is there: held by somebody, or freed and not reused yet.
#[derive(Debug, Clone)]
pub struct WeakBlock {
    allocator: BlockAllocator,
    block: BlockId,
    generation: u64,
}

impl BlockAllocator {
    /// An allocator over the blocks `0..blocks` of a pool.
    ///
    /// # Errors
    /// `InvalidInput` if there are more than 2^32 blocks.
    pub fn new(blocks: usize) -> Result<Self> {
        let count = u32::try_from(blocks)
            .map_err(|_| Error::invalid_input(format!("a pool of {blocks} blocks is larger than 2^32 blocks")))?;
        Ok(Self(Arc::new(Mutex::new(Slots::new(count)))))
    }

    /// `count` blocks for a new sequence, all or nothing. The watermark stays free.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then nothing has changed.
    pub fn take_for_new(&self, count: usize) -> Result<Vec<MutableBlock>> {
        self.take(count, self.watermark_blocks())
    }

    /// `count` blocks for a sequence that runs, all or nothing.
    ///
    /// # Errors
    /// As [`BlockAllocator::take_for_new`].
    pub fn take_for_running(&self, count: usize) -> Result<Vec<MutableBlock>> {
        self.take(count, 0)
    }

    /// One block for a sequence that runs.
    pub(super) fn take_one(&self) -> Result<MutableBlock> {
        let taken = self.take(1, 0)?.pop();
        taken.ok_or_else(|| Error::new(ErrorKind::Internal, "one block was taken and none was given"))
    }

    fn take(&self, count: usize, spared: usize) -> Result<Vec<MutableBlock>> {
        let mut slots = self.slots();
        let Some(taken) = slots.take(count, spared) else {
            let message = format!(
                "{count} blocks of {} tokens are wanted, {} of {} are free, {spared} of them kept for running sequences; \
                 wait for a sequence to end, or give the device tier more memory",
                super::BLOCK_TOKENS,
                slots.free(),
                slots.total()
            );
            return Err(Error::new(ErrorKind::Full, message));
        };
        drop(slots);
        Ok(taken.into_iter().map(|block| MutableBlock(Hold { allocator: self.clone(), block })).collect())
    }

    /// Blocks that nobody holds.
    pub fn free_blocks(&self) -> usize {
        self.slots().free()
    }

    /// Blocks of the pool.
    pub fn total_blocks(&self) -> usize {
        self.slots().total()
    }

    /// Blocks kept for running sequences: 1 %, rounded down.
    pub fn watermark_blocks(&self) -> usize {
        self.total_blocks() / WATERMARK
    }

    /// The most blocks that a new sequence can have.
    pub fn usable_blocks(&self) -> usize {
        self.total_blocks() - self.watermark_blocks()
    }

    /// What the blocks held is gone: no weak handle finds its block any more.
    pub fn forget_contents(&self) {
        self.slots().forget_contents();
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        self.allocator.slots().share(self.block);
        Self { allocator: self.allocator.clone(), block: self.block }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.allocator.slots().release(self.block);
    }
}

impl MutableBlock {
    /// Its number in the pool.
    pub fn id(&self) -> BlockId {
        self.0.block
    }

    /// Ends the writing. What was written is what everybody will see.
    pub fn complete(self) -> CompleteBlock {
        CompleteBlock(self.0)
    }
}

impl CompleteBlock {
    /// Its number in the pool.
    pub fn id(&self) -> BlockId {
        self.0.block
    }

    /// Lets others hold it too.
    pub fn share(self) -> SharedBlock {
        SharedBlock(self.0)
    }
}

impl SharedBlock {
    /// Its number in the pool.
    pub fn id(&self) -> BlockId {
        self.0.block
    }

    /// Guards that hold it.
    pub fn holders(&self) -> u32 {
        self.0.allocator.slots().references(self.0.block)
    }

    /// A handle that does not keep it.
    pub fn downgrade(&self) -> WeakBlock {
        let generation = self.0.allocator.slots().make_findable(self.0.block);
        WeakBlock { allocator: self.0.allocator.clone(), block: self.0.block, generation }
    }

    /// The right to write to it again, if nobody else holds it; weak handles find it no more.
    ///
    /// # Errors
    /// The block itself, if others hold it.
    pub fn try_own(self) -> Result<MutableBlock, Self> {
        let is_sole = self.0.allocator.slots().try_own(self.0.block);
        if is_sole { Ok(MutableBlock(self.0)) } else { Err(self) }
    }
}

impl WeakBlock {
    /// Holds the blocks again, all or none: `None` if the content of one is gone. Those that were free are so no more.
    pub fn upgrade_all(blocks: &[Self]) -> Option<Vec<SharedBlock>> {
        let Some(first) = blocks.first() else { return Some(Vec::new()) };
        debug_assert!(
            blocks.iter().all(|block| Arc::ptr_eq(&block.allocator.0, &first.allocator.0)),
            "blocks of one pool"
        );
        let wanted: Vec<_> = blocks.iter().map(|weak| (weak.block, weak.generation)).collect();
        let revived = first.allocator.slots().revive(&wanted);
        let hold = |weak: &Self| SharedBlock(Hold { allocator: weak.allocator.clone(), block: weak.block });
        revived.then(|| blocks.iter().map(hold).collect())
    }

    /// Holds the block again, if its content is still there.
    pub fn upgrade(&self) -> Option<SharedBlock> {
        Self::upgrade_all(std::slice::from_ref(self))?.pop()
    }
}
