//! The knowledge tree (RAGCache, section 5.1): every entry behind the entries that it was computed after.
//!
//! A node is a segment after its parents; its key names the whole path, as [`crate::key::KvKey`] does. Prompts that begin
//! alike share nodes; each system prompt is a root. The tree says which tiers hold a node and which node leaves a tier
//! when room is needed. It holds no K and V and does no I/O: whoever owns the bytes acts on what it says.
//!
//! - **Match** walks a path from its root, one look-up a node: O(h).
//! - **Only a tier's leaves leave it**: a node goes when none of its children is in that tier, so that in each tier a parent
//!   outlives its children. Which leaf, the tier's [`Policy`] says.
//! - **Each tier is closed on its own**: to enter a tier, a node's parent must be there ([`Admission::Orphan`] if not). So
//!   a slower tier can be used although the faster ones were lost. Single-tier trees may allow orphans,
//!   [`TreeOptions::allow_orphans`]: their parents may be in another tree's tier.
//! - **Swap out once**: a copy in a slower tier stays for as long as a faster tier has the node, and only an eviction from
//!   the faster tier that finds no copy below costs a transfer ([`Eviction::copy_to`]).
//! - **Pins** keep a node and its ancestors in whichever tiers they are.
//! - **Whose a node is** counts where parties have terms: a limit, or a share that is not evicted for others ([`KnowledgeTree::set_terms`]).
//! - A node that no tier holds is free. Free nodes carry what policies remember of them, and are forgotten, the least
//!   recently used leaf first, beyond [`TreeOptions::max_nodes`].

mod arena;
mod hottest;
mod parties;
mod residency;

use std::collections::HashMap;
use std::hash::Hash;

use self::arena::Node;
use self::parties::Parties;
pub use self::parties::{NOBODY, Party};
pub use self::residency::{Admission, Eviction, SwapOut};
pub use crate::policy::Id as NodeId;
use crate::policy::{Access, Order, Policy, PolicyKind, Rank};

/// Tiers that a tree can have.
pub const MAX_TIERS: usize = 4;

/// A tier of the tree, by speed: 0 is the fastest.
pub type TierIndex = usize;

/// One tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierOptions {
    /// The bound on the bytes in it.
    pub capacity_bytes: u64,
    /// Who leaves first.
    pub policy: PolicyKind,
}

/// What a tree is.
#[derive(Debug, Clone)]
pub struct TreeOptions {
    /// One to [`MAX_TIERS`] tiers, the fastest first; what is beyond is ignored. A slower tier should be the larger one: it
    /// keeps copies of what the faster ones hold.
    pub tiers: Vec<TierOptions>,
    /// Nodes beyond which free ones are forgotten. A node takes about 200 bytes, and about 100 more for each tier's policy, 450 for
    /// the adaptive one.
    pub max_nodes: usize,
    /// Whether a node may enter a tier that its parent is not in.
    pub allow_orphans: bool,
}

/// Where a path was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matched {
    /// The nodes of the path's known prefix, the root first.
    pub nodes: Vec<NodeId>,
    /// How many of them, from the root on, some tier holds.
    pub cached: usize,
}

/// What a tier holds and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierUse {
    /// Nodes in it.
    pub nodes: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The bound on `bytes`.
    pub capacity_bytes: u64,
    /// Bytes of nodes that nothing keeps from being evicted, their children leaving first.
    pub evictable_bytes: u64,
    /// Nodes evicted so far.
    pub evicted: u64,
}

#[derive(Debug)]
struct Tier {
    policy: Box<dyn Policy>,
    usage: TierUse,
    parties: Parties,
}

/// The tree. `K` names a path.
#[derive(Debug)]
pub struct KnowledgeTree<K> {
    nodes: Vec<Node<K>>,
    vacant: Vec<NodeId>,
    by_key: HashMap<K, NodeId>,
    tiers: Vec<Tier>,
    /// Free leaves without pins, by last use.
    forgettable: Order,
    max_nodes: usize,
    allow_orphans: bool,
    requests: u64,
}

impl<K: Copy + Eq + Hash> KnowledgeTree<K> {
    /// An empty tree.
    pub fn new(options: &TreeOptions) -> Self {
        let tiers = options.tiers.iter().take(MAX_TIERS).map(|tier| Tier {
            policy: tier.policy.build(tier.capacity_bytes),
            usage: TierUse { capacity_bytes: tier.capacity_bytes, ..TierUse::default() },
            parties: Parties::default(),
        });
        Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            by_key: HashMap::new(),
            tiers: tiers.collect(),
            forgettable: Order::default(),
            max_nodes: options.max_nodes,
            allow_orphans: options.allow_orphans,
            requests: 0,
        }
    }

    /// The node of a path.
    pub fn find(&self, key: &K) -> Option<NodeId> {
        self.by_key.get(key).copied()
    }

    /// Finds the longest known prefix of a path; `keys` name its prefixes, the root first. O(h). Counts as no use.
    pub fn match_path<'a>(&self, keys: impl IntoIterator<Item = &'a K>) -> Matched
    where
        K: 'a,
    {
        let mut matched = Matched::default();
        let mut is_cached = true;
        for key in keys {
            let Some(node) = self.find(key) else { break };
            if self.node(node).parent != matched.nodes.last().copied() {
                break;
            }
            is_cached &= !self.node(node).resident.is_empty();
            matched.cached += usize::from(is_cached);
            matched.nodes.push(node);
        }
        matched
    }

    /// The node of `key` behind `parent`, made if it is not there yet; then it is free. `size_bytes` is that of its K and V
    /// in every tier; a node that some tier holds keeps the size it entered with. One that came without a parent, as orphans may, gets it now.
    pub fn enter(&mut self, parent: Option<NodeId>, key: K, size_bytes: u64) -> NodeId {
        if let Some(node) = self.find(&key) {
            let found = self.node_mut(node);
            let is_free = found.resident.is_empty();
            if is_free {
                found.size_bytes = size_bytes;
            }
            // Nothing stands behind a leaf: of most that get a parent late, no path has to be walked.
            let (is_root, is_leaf) = (found.parent.is_none(), found.first_child.is_none());
            let is_circle = |parent: NodeId| parent == node || (!is_leaf && self.is_at_or_behind(parent, node));
            if is_root && (is_free || self.allow_orphans) && parent.is_some_and(|parent| !is_circle(parent)) {
                self.link(node, parent);
            }
            return node;
        }
        let node = self.create(parent, key, size_bytes);
        self.forget_excess(node);
        node
    }

    /// Counts one request: it used the nodes of `path`, the first `cached` of which had their K and V, and computed the rest
    /// at `cost_per_token` microseconds (`T(α, β) / β`, see [`Access`]). Algorithm 1's update, in every tier.
    pub fn access(&mut self, path: &[NodeId], cached: usize, cost_per_token: f64) {
        self.requests += 1;
        self.access_more(path, cached, cost_per_token);
    }

    /// As [`access`](Self::access), for another path of the same request: a prompt that is blended uses several.
    pub fn access_more(&mut self, path: &[NodeId], cached: usize, cost_per_token: f64) {
        let mut parent_uses = 0;
        for (index, &node) in path.iter().enumerate() {
            let is_cached = index < cached;
            parent_uses =
                self.access_node(node, parent_uses, Access { is_cached, cost_per_token, ..Access::default() });
        }
    }

    /// As if `uses` requests had used a node, nobody knows when: before the process began; or none did, but it was computed
    /// all the same, at `cost_per_token` microseconds. Counts as no request.
    pub fn note_past(&mut self, node: NodeId, uses: u32, cost_per_token: f64) {
        let parent_uses = self.parent(node).map_or(0, |parent| self.uses(parent));
        let past_uses = uses.max(1);
        self.access_node(node, parent_uses, Access { cost_per_token, past_uses, ..Access::default() });
    }

    /// Says how often the node was used by now.
    fn access_node(&mut self, node: NodeId, parent_uses: u64, access: Access) -> u64 {
        let request = self.requests;
        let access = Access { request, parent_uses, parent: self.parent(node), ..access };
        for tier in &mut self.tiers {
            tier.policy.access(node, access);
        }
        let used = self.node_mut(node);
        used.uses += u64::from(access.uses());
        let before = std::mem::replace(&mut used.last_request, request);
        let party = used.party;
        if before != request {
            self.tiers.iter_mut().for_each(|tier| tier.parties.used(party, node, before, request));
        }
        let used = self.node_mut(node);
        let uses = used.uses;
        if self.forgettable.contains(node) {
            self.forgettable.put(node, Rank { priority: 0.0, tick: request });
        }
        uses
    }

    /// The name of a node's path.
    pub fn key(&self, node: NodeId) -> K {
        self.node(node).key
    }

    /// What stands before a node; `None` for a root.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).parent
    }

    /// Bytes of a node's K and V.
    pub fn size_bytes(&self, node: NodeId) -> u64 {
        self.node(node).size_bytes
    }

    /// Requests that used a node.
    pub fn uses(&self, node: NodeId) -> u64 {
        self.node(node).uses
    }

    /// Whether a tier holds a node.
    pub fn is_in(&self, node: NodeId, tier: TierIndex) -> bool {
        self.node(node).resident.contains(tier)
    }

    /// The fastest tier that holds a node.
    pub fn fastest_tier(&self, node: NodeId) -> Option<TierIndex> {
        self.node(node).resident.first()
    }

    /// What a tier holds and did.
    pub fn usage(&self, tier: TierIndex) -> TierUse {
        self.tiers[tier].usage
    }

    /// Nodes, free ones included.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests;
