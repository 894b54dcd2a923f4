//! Which nodes to replicate first.

use std::collections::BinaryHeap;
use std::hash::Hash;

use super::{KnowledgeTree, NodeId};

impl<K: Copy + Eq + Hash> KnowledgeTree<K> {
    /// The most used upper nodes that fit into `bytes` together, most used first, each behind its parent: what to replicate
    /// against the loss of a device, and to restore first after it (RAGCache, section 6). Free nodes and what stands behind
    /// them do not count; a node that does not fit is passed over, with all behind it. O(n + k log k) for n
    /// nodes of which k are looked at.
    pub fn hottest(&self, bytes: u64) -> Vec<NodeId> {
        let rank = |node: NodeId| (self.uses(node), std::cmp::Reverse(node));
        let is_held = |node: &NodeId| self.fastest_tier(*node).is_some();
        let roots = self.by_key.values().copied().filter(|node| self.parent(*node).is_none()).filter(is_held);
        let mut next: BinaryHeap<_> = roots.map(rank).collect();
        let mut hottest = Vec::new();
        let mut left = bytes;
        while let Some((_, std::cmp::Reverse(node))) = next.pop() {
            let Some(rest) = left.checked_sub(self.size_bytes(node)) else { continue };
            left = rest;
            hottest.push(node);
            next.extend(self.children(node).filter(is_held).map(rank));
        }
        hottest
    }
}
