//! An engine without a model: a lane's KV is the tokens before it and its own.

use std::collections::{HashMap, HashSet};

use ragstone_kernels::pool::BlockId;

use super::*;
use crate::block::BlockCopy;

/// What is in a lane: the prefix that ends with its token. A token's K and V depend on all tokens before it.
type Lane = Vec<u32>;

pub(super) struct Engine {
    pub tier: DeviceTier,
    memory: HashMap<u32, Vec<Lane>>,
    pub copies: usize,
}

/// A sequence that decodes.
pub(super) struct Sequence {
    pub table: BlockTable,
    /// Tokens taken from the device.
    pub taken: usize,
    tokens: Vec<u32>,
    _paths: [DevicePath; 2],
}

/// The exact path of a prompt: everything but the question.
pub(super) fn kept(segments: &[Segment]) -> Vec<KeptSegment> {
    let mut end = 0;
    let keys = prompt_keys(&MODEL, "t", &Primer::none(), segments).unwrap();
    let kept = keys.iter().zip(segments).filter_map(|(at, segment)| {
        end += segment.tokens.len();
        Some(KeptSegment { key: at.chain_key?, segment: segment.clone(), end })
    });
    kept.collect()
}

impl Engine {
    pub fn new(tier: DeviceTier) -> Self {
        Self { tier, memory: HashMap::new(), copies: 0 }
    }

    pub fn find(&self, segments: &[Segment]) -> DevicePath {
        let path: Vec<_> = kept(segments);
        self.tier.find("t", path.iter().map(|at| (at.key, &at.segment)))
    }

    /// Finds and begins.
    #[allow(clippy::type_complexity)]
    pub fn begin(
        &self,
        segments: &[Segment],
        more: usize,
        is_alone: bool,
    ) -> (DevicePath, Result<(BlockTable, Option<BlockCopy>), Refused>) {
        let found = self.find(segments);
        let tokens: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        let begun = self.tier.begin(Some(&found), found.tokens(), tokens + more, is_alone);
        (found, begun)
    }

    /// A prompt from its look-up to its first token, `more` to come.
    pub fn ask(&mut self, segments: &[Segment], more: usize) -> Result<Sequence, Refused> {
        let found = self.find(segments);
        self.start(segments, found, more, true)
    }

    pub fn start(
        &mut self,
        segments: &[Segment],
        found: DevicePath,
        more: usize,
        is_alone: bool,
    ) -> Result<Sequence, Refused> {
        let tokens: Vec<u32> = segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        let taken = found.tokens();
        let (mut table, copy) = self.tier.begin(Some(&found), taken, tokens.len(), is_alone)?;
        self.copy(copy);
        for slot in 0..taken {
            assert_eq!(*self.lane(&table, slot), tokens[..=slot], "slot {slot} of a prefix of {taken}");
        }
        for slot in taken..tokens.len() {
            self.write(&table, slot, &tokens);
        }
        let path = self.tier.keep(&found, &kept(segments), &mut table, 1.0);
        let mut grown = self.tier.grow(Some(&path), &mut table, more);
        if grown.is_err() && is_alone {
            // As the engine does: only what waiting prompts found can be in the way.
            self.tier.clear();
            grown = self.tier.grow(None, &mut table, more);
        }
        if let Err(error) = &grown {
            assert!(!is_alone || tokens.len() + more > self.tier.allocator().total_blocks() * BLOCK_TOKENS, "{error}");
        }
        // A running sequence that cannot grow is preempted; here it ends.
        let copy = grown.map_err(|_| Refused::Gone)?;
        self.copy(copy);
        Ok(Sequence { table, taken, tokens, _paths: [found, path] })
    }

    /// Writes as many tokens as there is room for, `count` at most.
    pub fn decode(&mut self, sequence: &mut Sequence, count: usize) {
        for _ in 0..count.min(sequence.table.tokens() - sequence.tokens.len()) {
            let slot = sequence.tokens.len();
            sequence.tokens.push(7);
            self.write(&sequence.table, slot, &sequence.tokens);
        }
    }

    fn copy(&mut self, copy: Option<BlockCopy>) {
        if let Some(copy) = copy {
            self.copies += 1;
            let lanes = self.block(copy.from()).clone();
            *self.block(copy.to()) = lanes;
        }
    }

    fn block(&mut self, block: BlockId) -> &mut Vec<Lane> {
        self.memory.entry(block.0).or_insert_with(|| vec![Vec::new(); BLOCK_TOKENS])
    }

    fn lane(&mut self, table: &BlockTable, slot: usize) -> &mut Lane {
        let block = table.blocks()[slot / BLOCK_TOKENS];
        &mut self.block(block)[slot % BLOCK_TOKENS]
    }

    fn write(&mut self, table: &BlockTable, slot: usize, tokens: &[u32]) {
        assert!(table.is_writable(slot), "slot {slot} is shared");
        *self.lane(table, slot) = tokens[..=slot].to_vec();
    }

    /// What must always hold.
    pub fn check(&mut self, running: &[Sequence]) {
        for sequence in running {
            for slot in 0..sequence.tokens.len() {
                assert_eq!(*self.lane(&sequence.table, slot), sequence.tokens[..=slot], "slot {slot}");
            }
        }
        let tier = self.tier.clone();
        let state = tier.state();
        let mut of_nodes: HashSet<u32> = HashSet::new();
        for (id, node) in &state.nodes {
            let parent = state.tree.parent(*id);
            assert!(parent.is_none_or(|parent| state.nodes.contains_key(&parent)), "a parent outlives its children");
            assert!(state.tree.is_in(*id, TIER));
            of_nodes.extend(node.blocks.iter().map(|block| block.id().0));
            let path = state.path_to(*id).expect("a whole path");
            let tokens: Vec<u32> = path.segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
            assert_eq!(tokens.len(), node.end);
            // All lanes of its blocks up to its end are those of its path, also before its first token.
            for slot in node.first_block * BLOCK_TOKENS..node.end {
                let block = node.blocks[slot / BLOCK_TOKENS - node.first_block].id();
                assert_eq!(self.block(block)[slot % BLOCK_TOKENS], tokens[..=slot], "slot {slot} of a node");
            }
        }
        let usage = state.tree.usage(TIER);
        assert_eq!(usage.nodes, state.nodes.len());
        assert_eq!(usage.bytes as usize, of_nodes.len() * BLOCK_BYTES, "each block is counted once");
        let of_tables = running.iter().flat_map(|sequence| sequence.table.blocks()).map(|block| block.0);
        let of_tables: HashSet<u32> = of_tables.collect();
        let held = of_nodes.union(&of_tables).count();
        assert_eq!(tier.allocator().free_blocks() + held, tier.allocator().total_blocks());
        let freed_by_eviction = of_nodes.difference(&of_tables).count();
        assert!(usage.evictable_bytes as usize <= freed_by_eviction * BLOCK_BYTES, "what leaves frees its blocks");
    }
}
