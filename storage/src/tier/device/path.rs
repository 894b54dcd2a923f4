//! What a prompt has of the device tier: found by its look-up, taken by its sequence, kept behind it.

use std::ops::Range;
use std::sync::Arc;

use ragstone_kernels::pool::BlockId;

use super::{DeviceTier, Node};
use crate::block::{BLOCK_TOKENS, BlockCopy, BlockTable, PackedTables, SharedBlock, WeakBlock};
use crate::key::KvKey;
use crate::segment::Segment;
use crate::tree::{KnowledgeTree, NodeId};
use crate::{Error, Result};

/// The leading part of a path that the device tier has, spared from eviction while this lives and others can go.
#[derive(Debug)]
pub struct DevicePath {
    tier: DeviceTier,
    tenant: Arc<str>,
    /// Counted when the path was looked for.
    epoch: u64,
    pinned: Option<NodeId>,
    segments: usize,
    tokens: usize,
    blocks: Vec<WeakBlock>,
}

/// A segment of a prefilled sequence that the device keeps.
#[derive(Debug, Clone)]
pub struct KeptSegment {
    /// What it is kept under, which says what stands before it.
    pub key: KvKey,
    /// What it is; not empty.
    pub segment: Segment,
    /// Where it ends, in tokens from the start of the prompt.
    pub end: usize,
}

/// Why a sequence cannot begin.
#[derive(Debug)]
pub enum Refused {
    /// What had been found was needed for another sequence: plan again without it.
    Gone,
    /// Too few blocks are free or can be freed: wait for a sequence to end. Nothing has changed.
    Full(Error),
}

impl KeptSegment {
    /// The blocks of a sequence that hold its tokens.
    pub(super) fn blocks(&self) -> Range<usize> {
        let begin = self.end - self.segment.tokens.len();
        begin / BLOCK_TOKENS..self.end.div_ceil(BLOCK_TOKENS)
    }

    /// The node, of the blocks of the whole path.
    pub(super) fn node(&self, tenant: Arc<str>, path: &[SharedBlock]) -> Node {
        let range = self.blocks();
        let (segment, end) = (self.segment.clone(), self.end);
        Node { segment, tenant, end, first_block: range.start, blocks: path[range].to_vec() }
    }
}

impl DevicePath {
    pub(super) fn nothing(tier: &DeviceTier, tenant: &str, epoch: u64) -> Self {
        let (tier, tenant) = (tier.clone(), tenant.into());
        Self { tier, tenant, epoch, pinned: None, segments: 0, tokens: 0, blocks: Vec::new() }
    }

    /// Goes on with a node. Where it begins inside a block, its own block of that place has the tokens before it, too.
    pub(super) fn add(&mut self, node: &Node) {
        self.blocks.truncate(node.first_block);
        self.blocks.extend(node.blocks.iter().map(SharedBlock::downgrade));
        self.tokens = node.end;
        self.segments += 1;
    }

    /// Spares `node` and what stands before it.
    pub(super) fn pin(&mut self, tree: &mut KnowledgeTree<KvKey>, node: Option<NodeId>) {
        if let Some(node) = node {
            tree.pin(node);
            self.pinned = Some(node);
        }
    }

    /// Segments that were found, those that are not empty.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Their tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whose path it is.
    pub fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for DevicePath {
    fn drop(&mut self) {
        if let Some(node) = self.pinned {
            self.tier.state().tree.unpin(node);
        }
    }
}

impl DeviceTier {
    /// Blocks for a new sequence of `tokens` tokens, the first `prefix_tokens` of which are taken from `path`, all or nothing.
    /// Nodes are evicted if too few blocks are free. With `is_alone`, where no sequence runs whose end could be waited for,
    /// even those that waiting prompts found.
    ///
    /// Where a copy is returned, it has to be made in the pool before the sequence is written.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed, but for what had to leave without need in the end where `is_alone`.
    pub fn begin(
        &self,
        path: Option<&DevicePath>,
        prefix_tokens: usize,
        tokens: usize,
        is_alone: bool,
    ) -> Result<(BlockTable, Option<BlockCopy>), Refused> {
        let found = path.map_or(&[][..], |path| &path.blocks);
        let wanted = found.get(..prefix_tokens.div_ceil(BLOCK_TOKENS)).ok_or(Refused::Gone)?;
        let prefix = WeakBlock::upgrade_all(wanted).ok_or(Refused::Gone)?;
        let added = tokens.max(prefix_tokens).div_ceil(BLOCK_TOKENS) - prefix_tokens / BLOCK_TOKENS;
        let wanted = added + self.allocator().watermark_blocks();
        // Nodes of answers to one prompt share blocks, so that evicting some may free less than it seemed.
        let has_room = self.make_room(wanted) && self.allocator().free_blocks() >= wanted;
        if !has_room && is_alone {
            self.clear();
        }
        self.allocator().allocate_behind(prefix, prefix_tokens, tokens).map_err(Refused::Full)
    }

    /// Room for `tokens` more tokens of a sequence that runs, all or nothing; the watermark's blocks count. Nodes are evicted if too
    /// few blocks are free. If there is no room for a copy of a last block that others hold, what was `kept` of the sequence's
    /// own path leaves, until the sequence is the block's only holder.
    ///
    /// Where a copy is returned, it has to be made in the pool before the sequence is written.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then the table has not changed.
    pub fn grow(&self, kept: Option<&DevicePath>, table: &mut BlockTable, tokens: usize) -> Result<Option<BlockCopy>> {
        let mut done = table.extend(tokens);
        // One more than the new ones: the last block may have to be copied.
        let added = (table.tokens() + tokens).div_ceil(BLOCK_TOKENS) - table.tokens().div_ceil(BLOCK_TOKENS);
        if done.is_err() && (self.make_room(added + 1) || self.make_room(added)) {
            done = table.extend(tokens);
        }
        let goes_on_inside = tokens > 0 && !table.tokens().is_multiple_of(BLOCK_TOKENS);
        let is_copied = goes_on_inside && !table.is_writable(table.tokens());
        let mut deepest = kept.filter(|_| is_copied).and_then(|kept| kept.pinned);
        while let (Err(_), Some(node)) = (&done, deepest) {
            let mut state = self.state();
            deepest = state.tree.parent(node);
            state.remove(node);
            drop(state);
            done = table.extend(tokens);
        }
        done
    }

    /// Blocks for sequences that were swapped out, all or nothing: their distinct blocks, in the order they were packed in, and
    /// their tables. Nodes are evicted if too few blocks are free.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then nothing has changed.
    pub fn unpack(&self, packed: &PackedTables) -> Result<(Vec<BlockId>, Vec<BlockTable>)> {
        self.make_room(packed.blocks() + self.allocator().watermark_blocks());
        self.allocator().unpack(packed)
    }
}
