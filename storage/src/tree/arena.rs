//! Nodes and their links.

use std::hash::Hash;

use super::parties::{NOBODY, Party};
use super::{KnowledgeTree, MAX_TIERS, NodeId, TierIndex};
use crate::policy::Rank;

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TierSet(u8);

impl TierSet {
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, tier: TierIndex) -> bool {
        self.0 & (1 << tier) != 0
    }

    pub fn set(&mut self, tier: TierIndex, is_in: bool) {
        self.0 = if is_in { self.0 | (1 << tier) } else { self.0 & !(1 << tier) };
    }

    /// The fastest.
    pub fn first(self) -> Option<TierIndex> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as usize)
    }

    /// Whether one of the tiers is faster than `tier`.
    pub fn has_faster_than(self, tier: TierIndex) -> bool {
        self.first().is_some_and(|first| first < tier)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Node<K> {
    pub key: K,
    pub parent: Option<NodeId>,
    pub first_child: Option<NodeId>,
    /// The children of one parent are a doubly linked list.
    pub next_sibling: Option<NodeId>,
    pub previous_sibling: Option<NodeId>,
    pub size_bytes: u64,
    /// Whose it is.
    pub party: Party,
    pub uses: u64,
    pub last_request: u64,
    /// Pins of the node itself.
    pub pins: u32,
    /// Children that are pinned or have pinned nodes behind them.
    pub locked_children: u32,
    pub resident: TierSet,
    /// The tiers whose `evictable_bytes` count the node.
    pub counted: TierSet,
    pub children_in: [u32; MAX_TIERS],
}

impl<K> Node<K> {
    /// Whether a pin keeps it where it is.
    pub fn is_locked(&self) -> bool {
        self.pins > 0 || self.locked_children > 0
    }
}

impl<K: Copy + Eq + Hash> KnowledgeTree<K> {
    pub(super) fn node(&self, node: NodeId) -> &Node<K> {
        &self.nodes[node.index()]
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> &mut Node<K> {
        &mut self.nodes[node.index()]
    }

    pub(super) fn create(&mut self, parent: Option<NodeId>, key: K, size_bytes: u64) -> NodeId {
        let made = Node {
            key,
            parent: None,
            first_child: None,
            next_sibling: None,
            previous_sibling: None,
            size_bytes,
            party: NOBODY,
            uses: 0,
            last_request: self.requests,
            pins: 0,
            locked_children: 0,
            resident: TierSet::default(),
            counted: TierSet::default(),
            children_in: [0; MAX_TIERS],
        };
        let node = match self.vacant.pop() {
            Some(node) => {
                self.nodes[node.index()] = made;
                node
            }
            None => {
                self.nodes.push(made);
                // A tree of 2^32 nodes would take a terabyte.
                NodeId((self.nodes.len() - 1) as u32)
            }
        };
        self.by_key.insert(key, node);
        self.link(node, parent);
        node
    }

    /// Hangs a node without a parent behind `parent`.
    pub(super) fn link(&mut self, node: NodeId, parent: Option<NodeId>) {
        let Some(above) = parent else { return self.refresh(node) };
        let next = self.node_mut(above).first_child.replace(node);
        if let Some(next) = next {
            self.node_mut(next).previous_sibling = Some(node);
        }
        let linked = self.node_mut(node);
        linked.parent = parent;
        linked.next_sibling = next;
        let (resident, is_locked) = (linked.resident, linked.is_locked());
        let above_node = self.node_mut(above);
        for tier in 0..MAX_TIERS {
            above_node.children_in[tier] += u32::from(resident.contains(tier));
        }
        self.refresh(node);
        self.refresh(above);
        if is_locked {
            self.lock_parents(above);
        }
    }

    /// Whether `node` is `ancestor` or stands behind it.
    pub(super) fn is_at_or_behind(&self, node: NodeId, ancestor: NodeId) -> bool {
        let mut at = Some(node);
        while let Some(here) = at {
            if here == ancestor {
                return true;
            }
            at = self.node(here).parent;
        }
        false
    }

    /// The children of a node, the newest first.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.node(node).first_child, |child| self.node(*child).next_sibling)
    }

    /// All nodes behind a node, each after what it stands behind.
    pub fn behind(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let mut found: Vec<NodeId> = self.children(node).collect();
        let mut next = 0;
        while let Some(&node) = found.get(next) {
            next += 1;
            found.extend(self.children(node));
        }
        found.into_iter()
    }

    /// Notes whether a node may be forgotten: it is free, nothing stands behind it, and nobody holds it.
    pub(super) fn refresh_forgettable(&mut self, node: NodeId) {
        let at = self.node(node);
        if at.resident.is_empty() && at.first_child.is_none() && !at.is_locked() {
            let tick = at.last_request;
            if !self.forgettable.contains(node) {
                self.forgettable.put(node, Rank { priority: 0.0, tick });
            }
        } else {
            self.forgettable.remove(node);
        }
    }

    /// Forgets free nodes beyond the bound, but not `spared`.
    pub(super) fn forget_excess(&mut self, spared: NodeId) {
        if self.by_key.len() <= self.max_nodes {
            return;
        }
        self.forgettable.remove(spared);
        while self.by_key.len() > self.max_nodes
            && let Some(node) = self.forgettable.first()
        {
            self.delete(node);
        }
        self.refresh_forgettable(spared);
    }

    /// Removes a forgettable node.
    fn delete(&mut self, node: NodeId) {
        self.forgettable.remove(node);
        let Node { key, parent, next_sibling, previous_sibling, .. } = *self.node(node);
        self.by_key.remove(&key);
        if let Some(next) = next_sibling {
            self.node_mut(next).previous_sibling = previous_sibling;
        }
        match (previous_sibling, parent) {
            (Some(previous), _) => self.node_mut(previous).next_sibling = next_sibling,
            (None, Some(parent)) => self.node_mut(parent).first_child = next_sibling,
            (None, None) => {}
        }
        for tier in &mut self.tiers {
            tier.policy.forget(node);
        }
        self.vacant.push(node);
        if let Some(parent) = parent {
            self.refresh_forgettable(parent);
        }
    }
}
