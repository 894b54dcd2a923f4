//! The device tier: the blocks of prompts that were prefilled, kept where they are.
//!
//! A node is a segment after its parents, under the segment's key on the device; it holds the blocks of its tokens, with K rotated to
//! its place and V as it is. A block on the border of two segments is held by both. A later prompt that begins with the same
//! path takes those blocks into its table: nothing is loaded, nothing computed, and only a last block that is partly filled
//! is copied before it is written ([`DeviceTier::begin`]).
//!
//! - **What a key says, only.** [`DeviceTier::keep`] is given what stands on the exact path, and modules that were taken as they were
//!   computed apart, whose keys here say so; other blended KV, and what stands behind it, has no key to be kept under.
//! - **Kept until the room is needed.** A new sequence that finds too few free blocks makes the tier's policy name victims,
//!   leaves of the tree only: the tail of a path goes first. Either enough can go, or nothing goes.
//! - **Nothing is swapped out.** The slower tiers were given this KV when it was computed, and have it before rotation; un-rotating
//!   the device's copy would lose bits. So an eviction moves no byte.
//! - **A look-up holds nothing back.** What it found ([`DevicePath`]) is spared for as long as others can go, and is gone
//!   where nothing else can: prompts that wait must not keep a prompt from starting. Then it is planned again.
//!
//! The tier's memory is the engine's pool, its contents are blocks instead of frames; so it is not an
//! [`EntryTier`](super::EntryTier): no entry can be put into it or read out of it.

mod listing;
mod path;
mod recovery;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::path::{DevicePath, KeptSegment, Refused};
pub use self::recovery::LostPath;
use super::TierStatus;
use crate::block::{BlockAllocator, BlockTable, SharedBlock};
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::policy::PolicyKind;
use crate::segment::Segment;
use crate::tree::{Admission, KnowledgeTree, NodeId, TierOptions, TreeOptions};

/// The tree has one tier.
const TIER: usize = 0;

/// Nodes that policies remember, for each block of the pool, and at least: a node has a block of its own or two.
const NODES_PER_BLOCK: usize = 2;
const LEAST_NODES: usize = 4096;

/// What a device tier is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Blocks of the pool.
    pub blocks: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Who leaves first.
    pub policy: PolicyKind,
    /// Whether anything is kept behind a running sequence.
    pub cache: bool,
}

/// The blocks of the device, and which of them hold what. Cheap to clone; clones share the tier. `Send + Sync`.
#[derive(Debug, Clone)]
pub struct DeviceTier(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    allocator: BlockAllocator,
    options: DeviceOptions,
    /// Locked before the allocator's slots, never while they are.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tree: KnowledgeTree<KvKey>,
    nodes: HashMap<NodeId, Node>,
    counts: Counts,
    /// Counts invalidations: what was planned before the last one is not kept.
    epoch: u64,
}

#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    refused: u64,
}

/// The KV of one segment behind what stands before it.
#[derive(Debug)]
struct Node {
    segment: Segment,
    tenant: Arc<str>,
    /// Where the segment ends, in tokens of the path.
    end: usize,
    /// The block of the path that `blocks` begins with.
    first_block: usize,
    /// All blocks with tokens of the segment.
    blocks: Vec<SharedBlock>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // The tail first: it is of use to nobody without the head.
        while self.blocks.pop().is_some() {}
    }
}

impl DeviceTier {
    /// An empty tier.
    ///
    /// # Errors
    /// `InvalidInput` if there are more than 2^32 blocks.
    pub fn new(options: DeviceOptions) -> crate::Result<Self> {
        let capacity_bytes = (options.blocks * options.block_bytes) as u64;
        let tree = KnowledgeTree::new(&TreeOptions {
            tiers: vec![TierOptions { capacity_bytes, policy: options.policy }],
            max_nodes: (options.blocks * NODES_PER_BLOCK).max(LEAST_NODES),
            allow_orphans: false,
        });
        let state = State { tree, nodes: HashMap::new(), counts: Counts::default(), epoch: 0 };
        let allocator = BlockAllocator::new(options.blocks)?;
        Ok(Self(Arc::new(Inner { allocator, options, state: Mutex::new(state) })))
    }

    /// The blocks.
    pub fn allocator(&self) -> &BlockAllocator {
        &self.0.allocator
    }

    /// What it was made with.
    pub fn options(&self) -> &DeviceOptions {
        &self.0.options
    }

    /// Finds the longest leading part of a path that is kept; `path` names its segments that are not empty, in order. Counts
    /// a hit for each segment found, and a miss for the first that is not. Memory only.
    pub fn find<'a>(&self, tenant: &str, path: impl IntoIterator<Item = (KvKey, &'a Segment)>) -> DevicePath {
        let mut state = self.state();
        let mut found = DevicePath::nothing(self, tenant, state.epoch);
        if !self.0.options.cache {
            return found;
        }
        let mut deepest = None;
        for (key, segment) in path {
            let Some((id, node)) = state.get(&key, &segment.tokens) else {
                state.counts.misses += 1;
                break;
            };
            found.add(node);
            deepest = Some(id);
            state.counts.hits += 1;
        }
        found.pin(&mut state.tree, deepest);
        found
    }

    /// Keeps the exact path of a sequence that was prefilled: `segments` are its segments that are not empty, from the start
    /// of the prompt, and `seen` is what was found for it. `new_us_per_token` is what computing a token took, in microseconds.
    /// What is kept is spared until the result is dropped, which is to be when the sequence ends; before that, dropping its
    /// nodes would free nothing.
    ///
    /// The table's blocks of the path are shared from now on: [`DeviceTier::grow`] before the sequence goes on.
    pub fn keep(
        &self,
        seen: &DevicePath,
        segments: &[KeptSegment],
        table: &mut BlockTable,
        new_us_per_token: f64,
    ) -> DevicePath {
        let mut state = self.state();
        let mut kept = DevicePath::nothing(self, seen.tenant(), state.epoch);
        // A document that went meanwhile must not come back.
        if !self.0.options.cache || seen.epoch() != state.epoch {
            return kept;
        }
        let block_bytes = self.0.options.block_bytes as u64;
        let path = state.enter_path(segments, table, block_bytes);
        let cached = path.iter().take_while(|node| state.tree.is_in(**node, TIER)).count();
        state.tree.access(&path, cached.min(seen.segments()), new_us_per_token);
        let end = segments.get(path.len().wrapping_sub(1)).map_or(0, |last| last.end);
        let shared = if cached < path.len() { table.share(end) } else { Vec::new() };
        for (node, segment) in path[cached..].iter().zip(&segments[cached..]) {
            match state.tree.admit(*node, TIER) {
                Admission::Admitted(evicted) => {
                    evicted.iter().for_each(|eviction| drop(state.nodes.remove(&eviction.node)));
                    let tenant = kept.tenant().clone();
                    state.nodes.insert(*node, segment.node(tenant, &shared));
                }
                Admission::AlreadyThere => {}
                Admission::NoRoom | Admission::Orphan => {
                    state.counts.refused += 1;
                    break;
                }
            }
        }
        // Last: a pin is given back under the lock that is held here.
        kept.pin(&mut state.tree, path.last().copied());
        kept
    }

    /// Whether a segment's KV behind what stands before it is here.
    pub fn contains(&self, key: &KvKey) -> bool {
        let state = self.state();
        state.tree.find(key).is_some_and(|node| state.nodes.contains_key(&node))
    }

    /// Takes a node out, and everything behind it; says whether it was there. Sequences that have its blocks go on.
    pub fn remove(&self, key: &KvKey) -> bool {
        let mut state = self.state();
        let Some(node) = state.tree.find(key) else { return false };
        !state.remove(node).is_empty()
    }

    /// Takes out every node of these segments (some tenants', or `None`: everybody's), and everything computed after them; gives the keys of the
    /// nodes that went. What was planned before is not kept afterwards. To be called after the store's, or a prompt that comes between the
    /// two could leave here what it still found there.
    pub fn invalidate(
        &self,
        fingerprint: &Fingerprint,
        tenants: Option<&BTreeSet<String>>,
        segments: &[SegmentDigest],
    ) -> Vec<KvKey> {
        let mut state = self.state();
        state.epoch += 1;
        let is_gone = |node: &Node| {
            tenants.is_none_or(|tenants| tenants.contains(&*node.tenant))
                && segments.contains(&SegmentDigest::of(fingerprint, &node.segment.tokens))
        };
        let gone: Vec<NodeId> = state.nodes.iter().filter(|(_, node)| is_gone(node)).map(|(id, _)| *id).collect();
        gone.into_iter().flat_map(|node| state.remove(node)).collect()
    }

    /// Nothing that is planned before this is kept afterwards.
    pub fn forbid_planned(&self) {
        self.state().epoch += 1;
    }

    /// Blocks that only the tier holds, and gives up when they are needed.
    pub fn evictable_blocks(&self) -> usize {
        let bytes = self.state().tree.usage(TIER).evictable_bytes;
        bytes as usize / self.0.options.block_bytes.max(1)
    }

    /// What it holds and did.
    pub fn status(&self) -> TierStatus {
        let state = self.state();
        let usage = state.tree.usage(TIER);
        TierStatus {
            entries: usage.nodes as u64,
            bytes: usage.bytes,
            capacity_bytes: usage.capacity_bytes,
            hits: state.counts.hits,
            misses: state.counts.misses,
            evicted: usage.evicted,
            refused: state.counts.refused,
            ..TierStatus::default()
        }
    }

    /// Evicts until `wanted` blocks are free; `false`, and nothing has changed, if they cannot be.
    fn make_room(&self, wanted: usize) -> bool {
        let allocator = &self.0.allocator;
        let mut state = self.state();
        let Some(missing) = wanted.checked_sub(allocator.free_blocks()) else { return true };
        let usage = state.tree.usage(TIER);
        // The tree makes room for something to enter: for as much as leaves its bound less what is missing.
        let bytes = (missing * self.0.options.block_bytes) as u64;
        if bytes > usage.evictable_bytes {
            return false;
        }
        let Some(evicted) = state.tree.make_room(TIER, usage.capacity_bytes - usage.bytes + bytes) else {
            return false;
        };
        evicted.iter().for_each(|eviction| drop(state.nodes.remove(&eviction.node)));
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The node of a key, if it is kept and of these tokens.
    fn get(&self, key: &KvKey, tokens: &[u32]) -> Option<(NodeId, &Node)> {
        let id = self.tree.find(key)?;
        let node = self.nodes.get(&id)?;
        if *node.segment.tokens != *tokens {
            tracing::error!(%key, "blocks of other token ids than their key was asked for; not used");
            return None;
        }
        Some((id, node))
    }

    /// The tree's nodes of a path, made where they are not known. A node's size is that of the blocks that its parent does not
    /// hold: those that its eviction frees.
    fn enter_path(&mut self, segments: &[KeptSegment], table: &BlockTable, block_bytes: u64) -> Vec<NodeId> {
        let mut path: Vec<NodeId> = Vec::with_capacity(segments.len());
        let mut border = None;
        for segment in segments {
            let kept = self.tree.find(&segment.key).and_then(|id| self.nodes.get(&id));
            if kept.is_some_and(|node| *node.segment.tokens != *segment.segment.tokens) {
                break;
            }
            let own = &table.blocks()[segment.blocks()];
            let size = own.iter().filter(|block| Some(**block) != border).count();
            border = kept.map_or(own.last().copied(), |node| node.blocks.last().map(SharedBlock::id));
            path.push(self.tree.enter(path.last().copied(), segment.key, size as u64 * block_bytes));
        }
        path
    }

    /// Takes a node and everything behind it out; their keys.
    fn remove(&mut self, node: NodeId) -> Vec<KvKey> {
        let left = self.tree.remove(node, TIER);
        left.iter().for_each(|node| drop(self.nodes.remove(node)));
        left.into_iter().map(|node| self.tree.key(node)).collect()
    }
}

#[cfg(test)]
mod tests;
