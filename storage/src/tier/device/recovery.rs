//! The device was lost: what to compute again first.

use std::collections::HashSet;
use std::sync::Arc;

use super::{DeviceTier, Node, State};
use crate::segment::{Segment, SegmentKind};
use crate::tree::NodeId;

/// A path that was on the device, from its root.
#[derive(Debug, Clone)]
pub struct LostPath {
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Its segments, in order.
    pub segments: Vec<Segment>,
}

impl DeviceTier {
    /// Forgets everything. Sequences that run keep their blocks, and lose them when they end.
    pub fn clear(&self) {
        let mut state = self.state();
        let roots: Vec<NodeId> =
            state.nodes.keys().copied().filter(|node| state.tree.parent(*node).is_none()).collect();
        for root in roots {
            state.remove(root);
        }
    }

    /// The device's memory is gone: as [`clear`](Self::clear), and no block is found any more by whoever found it before.
    pub fn lose(&self) {
        self.clear();
        self.state().epoch += 1;
        self.allocator().forget_contents();
    }

    /// The hottest upper nodes, as paths that do not begin one another: those that fit into `bytes` together, the most used
    /// first (RAGCache, section 6). The slower tiers have copies by construction, as they are given everything that is
    /// computed; after [`DeviceTier::lose`] these are worth bringing back first.
    pub fn hottest(&self, bytes: u64) -> Vec<LostPath> {
        let state = self.state();
        let hottest = state.tree.hottest(bytes);
        let inner: HashSet<NodeId> = hottest.iter().filter_map(|node| state.tree.parent(*node)).collect();
        hottest.iter().filter(|node| !inner.contains(node)).filter_map(|node| state.path_to(*node)).collect()
    }
}

impl State {
    pub(super) fn path_to(&self, node: NodeId) -> Option<LostPath> {
        let above = std::iter::successors(Some(node), |node| self.tree.parent(*node));
        let mut nodes: Vec<&Node> = above.map(|node| self.nodes.get(&node)).collect::<Option<_>>()?;
        nodes.reverse();
        // Modules are not brought back: where they stand, and how they are computed apart, is their prompts' to say.
        let is_placed = |node: &&Node| matches!(node.segment.kind, SegmentKind::Module | SegmentKind::Question);
        if nodes.iter().any(is_placed) {
            return None;
        }
        let segments = nodes.iter().map(|node| node.segment.clone()).collect();
        Some(LostPath { tenant: nodes.last()?.tenant.clone(), segments })
    }
}
