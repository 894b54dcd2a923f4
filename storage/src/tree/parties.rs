//! Whose nodes are in a tier: what each party holds there, and in which order it would give it. Which of them gives, pure functions say
//! ([`crate::policy::shares`]).

use std::collections::BTreeSet;
use std::hash::Hash;

use super::{Eviction, KnowledgeTree, NodeId, TierIndex, TierUse};
use crate::policy::shares::{Giver, Holding, Terms, can_make_room, giver};

/// A party, as a small number. 0 is nobody, who has no terms.
pub type Party = u32;

/// Nobody in particular.
pub const NOBODY: Party = 0;

/// What the parties of a tier hold.
#[derive(Debug, Default)]
pub(super) struct Parties {
    /// By number.
    holdings: Vec<Holding>,
    /// Of each, what may leave now, by the request that used it last. Empty while nobody has terms.
    orders: Vec<BTreeSet<(u64, NodeId)>>,
    /// Whether somebody has, or had, terms.
    is_bound: bool,
    /// The largest node that ever came.
    largest: u64,
}

impl Parties {
    fn holding(&mut self, party: Party) -> &mut Holding {
        let index = party as usize;
        if self.holdings.len() <= index {
            self.holdings.resize(index + 1, Holding::default());
            self.orders.resize(index + 1, BTreeSet::new());
        }
        &mut self.holdings[index]
    }

    fn get(&self, party: Party) -> Holding {
        self.holdings.get(party as usize).copied().unwrap_or_default()
    }

    pub fn came(&mut self, party: Party, bytes: u64) {
        self.largest = self.largest.max(bytes);
        self.holding(party).bytes += bytes;
    }

    pub fn left(&mut self, party: Party, bytes: u64) {
        self.holding(party).bytes -= bytes;
    }

    /// So many of its bytes may leave from now on, or may not.
    pub fn counted(&mut self, party: Party, bytes: u64, is_counted: bool) {
        let evictable = &mut self.holding(party).evictable_bytes;
        *evictable = if is_counted { *evictable + bytes } else { *evictable - bytes };
    }

    /// Notes whether a node may leave now; `at` is the request that used it last.
    pub fn set_leaf(&mut self, party: Party, node: NodeId, at: u64, is_leaf: bool) {
        if !self.is_bound {
            return;
        }
        self.holding(party);
        let order = &mut self.orders[party as usize];
        if is_leaf {
            order.insert((at, node))
        } else {
            order.remove(&(at, node))
        };
    }

    /// A node was used again.
    pub fn used(&mut self, party: Party, node: NodeId, before: u64, now: u64) {
        if let Some(order) = self.orders.get_mut(party as usize)
            && order.remove(&(before, node))
        {
            order.insert((now, node));
        }
    }

    fn next_of(&self, party: usize) -> Option<NodeId> {
        self.orders.get(party)?.first().map(|(_, node)| *node)
    }
}

impl<K: Copy + Eq + Hash> KnowledgeTree<K> {
    /// As [`enter`](Self::enter), of a node that is this party's. One that some tier holds stays whose it is.
    pub fn enter_of(&mut self, party: Party, parent: Option<NodeId>, key: K, size_bytes: u64) -> NodeId {
        let node = self.enter(parent, key, size_bytes);
        let at = self.node_mut(node);
        if at.resident.is_empty() {
            at.party = party;
        }
        node
    }

    /// What a party holds in a tier.
    pub fn holding(&self, tier: TierIndex, party: Party) -> Holding {
        self.tiers[tier].parties.get(party)
    }

    /// Agrees with a party on what it may hold in a tier, from the next node on that comes there. O(n log n) the first time.
    pub fn set_terms(&mut self, tier: TierIndex, party: Party, terms: Terms) {
        if party == NOBODY {
            return;
        }
        let was_bound = self.tiers[tier].parties.is_bound;
        let parties = &mut self.tiers[tier].parties;
        parties.holding(party).terms = terms;
        parties.is_bound |= terms != Terms::default();
        if parties.is_bound && !was_bound {
            for key in self.by_key.values() {
                let at = &self.nodes[key.index()];
                let is_leaf = at.counted.contains(tier) && at.children_in[tier] == 0;
                self.tiers[tier].parties.set_leaf(at.party, *key, at.last_request, is_leaf);
            }
        }
    }

    /// As [`make_room`](Self::make_room), for a node of `party`: it keeps to its limit, and others' shares are not touched.
    pub fn make_room_for(&mut self, party: Party, tier: TierIndex, bytes: u64) -> Option<Vec<Eviction>> {
        let TierUse { bytes: held, capacity_bytes, .. } = self.tiers[tier].usage;
        let (holdings, largest) = (self.holdings(tier), self.tiers[tier].parties.largest.max(bytes));
        if !can_make_room(&holdings, party as usize, (held, capacity_bytes), bytes, largest) {
            return None;
        }
        let mut evicted = Vec::new();
        while self.holding(tier, party).over_limit(bytes) > 0 {
            let node = self.tiers[tier].parties.next_of(party as usize)?;
            evicted.push(self.give(node, tier));
        }
        while self.tiers[tier].usage.bytes.saturating_add(bytes) > capacity_bytes {
            evicted.push(self.evict_for(party, tier)?);
        }
        Some(evicted)
    }

    /// Evicts the next node for the sake of `party`; `None` where nobody may give any.
    pub(super) fn evict_for(&mut self, party: Party, tier: TierIndex) -> Option<Eviction> {
        let victim = self.tiers[tier].policy.victim()?;
        if !self.tiers[tier].parties.is_bound {
            return Some(self.evict(victim, tier));
        }
        let at = self.node(victim);
        match giver(&self.holdings(tier), party as usize, Some((at.party as usize, at.size_bytes))) {
            Giver::Policy => Some(self.evict(victim, tier)),
            Giver::Party(giving) => {
                let node = self.tiers[tier].parties.next_of(giving)?;
                Some(self.give(node, tier))
            }
            Giver::Nobody => None,
        }
    }

    /// Whether any party of the tier has terms.
    pub(super) fn is_bound(&self, tier: TierIndex) -> bool {
        self.tiers[tier].parties.is_bound
    }

    /// All parties' holdings, with what each would give next.
    fn holdings(&self, tier: TierIndex) -> Vec<Holding> {
        let parties = &self.tiers[tier].parties;
        let next_bytes = |party| parties.next_of(party).map(|node| self.node(node).size_bytes);
        let holdings = parties.holdings.iter().enumerate();
        holdings.map(|(party, holding)| Holding { next_bytes: next_bytes(party), ..*holding }).collect()
    }

    /// A node that its policy did not choose leaves for room.
    fn give(&mut self, node: NodeId, tier: TierIndex) -> Eviction {
        self.tiers[tier].policy.remove(node);
        self.left_for_room(node, tier)
    }
}
