//! Entering and leaving tiers, and pins.

use std::hash::Hash;

use super::{KnowledgeTree, NOBODY, NodeId, Party, TierIndex};

/// What became of a node that was to enter a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It is there now; these left for it, in this order.
    Admitted(Vec<Eviction>),
    /// It was there.
    AlreadyThere,
    /// It is larger than the tier, or too much of the tier is pinned. Nothing has changed.
    NoRoom,
    /// Its parent is not in that tier. Nothing has changed.
    Orphan,
}

/// A node that left a tier to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// The node.
    pub node: NodeId,
    /// Its bytes.
    pub bytes: u64,
    /// The next slower tier, if that has no copy yet: then its bytes have to go there, or are lost. `None` after its first
    /// eviction: it costs nothing more (RAGCache's swap-out-only-once), and in the last tier.
    pub copy_to: Option<TierIndex>,
}

/// What swapping out a node took.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SwapOut {
    /// Nodes copied, parents first: the node itself, and those of its ancestors that the slower tier did not have.
    pub copied: Vec<NodeId>,
    /// What left the slower tier for them.
    pub evicted: Vec<Eviction>,
    /// Whether the node is in the slower tier now.
    pub is_there: bool,
}

impl<K: Copy + Eq + Hash> KnowledgeTree<K> {
    /// Puts a node into a tier, evicting what the tier's policy values least. O(log n) for each node that leaves.
    pub fn admit(&mut self, node: NodeId, tier: TierIndex) -> Admission {
        let at = self.node(node);
        let size_bytes = at.size_bytes;
        if at.resident.contains(tier) {
            return Admission::AlreadyThere;
        }
        let (parent, party) = (at.parent, at.party);
        if !self.allow_orphans && parent.is_some_and(|parent| !self.is_in(parent, tier)) {
            return Admission::Orphan;
        }
        self.tiers[tier].policy.arriving(node, size_bytes);
        // The parent may not leave for its child.
        if let Some(parent) = parent {
            self.pin(parent);
        }
        let room = self.make_room_of(party, tier, size_bytes);
        if let Some(parent) = parent {
            self.unpin(parent);
        }
        let Some(evicted) = room else { return Admission::NoRoom };
        self.take_in(node, tier);
        Admission::Admitted(evicted)
    }

    /// As [`admit`](Self::admit), for a node that has to be there: where it has no room beside what is pinned, everything that
    /// can leaves, and the bound does not hold until pins are given back. An orphan that may not enter does not.
    pub fn admit_regardless(&mut self, node: NodeId, tier: TierIndex) -> Vec<Eviction> {
        match self.admit(node, tier) {
            Admission::Admitted(evicted) => return evicted,
            Admission::AlreadyThere | Admission::Orphan => return Vec::new(),
            Admission::NoRoom => {}
        }
        let (parent, party) = (self.parent(node), self.node(node).party);
        parent.into_iter().for_each(|parent| self.pin(parent));
        let mut evicted = Vec::new();
        while let Some(eviction) = self.evict_for(party, tier) {
            evicted.push(eviction);
        }
        parent.into_iter().for_each(|parent| self.unpin(parent));
        self.take_in(node, tier);
        evicted
    }

    fn take_in(&mut self, node: NodeId, tier: TierIndex) {
        let at = self.node(node);
        let (size_bytes, parent, party) = (at.size_bytes, at.parent, at.party);
        let state = &mut self.tiers[tier];
        state.parties.came(party, size_bytes);
        state.usage.bytes += size_bytes;
        state.usage.nodes += 1;
        state.policy.insert(node, size_bytes);
        self.node_mut(node).resident.set(tier, true);
        if let Some(parent) = parent {
            self.node_mut(parent).children_in[tier] += 1;
            self.refresh(parent);
        }
        self.refresh(node);
    }

    /// Evicts until `bytes` more fit: Algorithm 1, `EVICT`. `None`, and nothing has changed, if they cannot.
    pub fn make_room(&mut self, tier: TierIndex, bytes: u64) -> Option<Vec<Eviction>> {
        self.make_room_of(NOBODY, tier, bytes)
    }

    fn make_room_of(&mut self, party: Party, tier: TierIndex, bytes: u64) -> Option<Vec<Eviction>> {
        if self.is_bound(tier) {
            return self.make_room_for(party, tier, bytes);
        }
        let usage = self.tiers[tier].usage;
        if usage.bytes.saturating_sub(usage.evictable_bytes).saturating_add(bytes) > usage.capacity_bytes {
            return None;
        }
        let mut evicted = Vec::new();
        while self.tiers[tier].usage.bytes.saturating_add(bytes) > usage.capacity_bytes {
            let victim = self.tiers[tier].policy.victim()?;
            evicted.push(self.evict(victim, tier));
        }
        Some(evicted)
    }

    /// A node that its policy chose leaves.
    pub(super) fn evict(&mut self, node: NodeId, tier: TierIndex) -> Eviction {
        self.tiers[tier].policy.evict(node);
        self.left_for_room(node, tier)
    }

    /// A node that its policy has let go of leaves for room.
    pub(super) fn left_for_room(&mut self, node: NodeId, tier: TierIndex) -> Eviction {
        self.tiers[tier].usage.evicted += 1;
        let slower = tier + 1;
        let copy_to = (slower < self.tiers.len() && !self.is_in(node, slower)).then_some(slower);
        self.leave(node, tier);
        Eviction { node, bytes: self.node(node).size_bytes, copy_to }
    }

    /// Acts on [`Eviction::copy_to`]: puts a node into the slower tier, its missing ancestors first, so that the slower tier
    /// can be used without the faster one.
    pub fn swap_out(&mut self, node: NodeId, to: TierIndex) -> SwapOut {
        let mut missing = vec![node];
        let mut above = self.parent(node);
        while let Some(parent) = above.filter(|parent| !self.is_in(*parent, to)) {
            missing.push(parent);
            above = self.parent(parent);
        }
        let mut done = SwapOut::default();
        for node in missing.into_iter().rev() {
            match self.admit(node, to) {
                Admission::Admitted(evicted) => {
                    done.copied.push(node);
                    done.evicted.extend(evicted);
                }
                Admission::AlreadyThere => {}
                Admission::NoRoom | Admission::Orphan => return done,
            }
        }
        done.is_there = true;
        done
    }

    /// Takes a node out of a tier, pinned or not: it is damaged, or its document is gone. Where orphans are not allowed,
    /// everything behind it leaves that tier too. Gives the nodes that left, children first.
    pub fn remove(&mut self, node: NodeId, tier: TierIndex) -> Vec<NodeId> {
        let mut leaving = if self.is_in(node, tier) { vec![node] } else { Vec::new() };
        if !self.allow_orphans {
            let mut next = 0;
            while let Some(&parent) = leaving.get(next) {
                next += 1;
                let behind: Vec<NodeId> = self.children(parent).filter(|child| self.is_in(*child, tier)).collect();
                leaving.extend(behind);
            }
            leaving.reverse();
        }
        for &node in &leaving {
            self.tiers[tier].policy.remove(node);
            self.leave(node, tier);
        }
        leaving
    }

    fn leave(&mut self, node: NodeId, tier: TierIndex) {
        let at = self.node_mut(node);
        at.resident.set(tier, false);
        let (size_bytes, parent, party) = (at.size_bytes, at.parent, at.party);
        self.refresh(node);
        let state = &mut self.tiers[tier];
        state.parties.left(party, size_bytes);
        let usage = &mut state.usage;
        usage.bytes -= size_bytes;
        usage.nodes -= 1;
        if let Some(parent) = parent {
            self.node_mut(parent).children_in[tier] -= 1;
            self.refresh(parent);
        }
    }

    /// Keeps a node and its ancestors where they are until [`unpin`](Self::unpin). Pins count. O(1) behind a pinned parent.
    pub fn pin(&mut self, node: NodeId) {
        let at = self.node_mut(node);
        let was_locked = at.is_locked();
        at.pins += 1;
        if !was_locked {
            let parent = at.parent;
            self.refresh(node);
            if let Some(parent) = parent {
                self.lock_parents(parent);
            }
        }
    }

    /// `node` has one more child that is locked.
    pub(super) fn lock_parents(&mut self, node: NodeId) {
        let mut above = Some(node);
        while let Some(node) = above {
            let at = self.node_mut(node);
            let was_locked = at.is_locked();
            at.locked_children += 1;
            if was_locked {
                return;
            }
            above = at.parent;
            self.refresh(node);
        }
    }

    /// Takes one pin back.
    pub fn unpin(&mut self, node: NodeId) {
        let at = self.node_mut(node);
        debug_assert!(at.pins > 0, "only who pinned a node unpins it");
        at.pins = at.pins.saturating_sub(1);
        if at.is_locked() {
            return;
        }
        let mut above = at.parent;
        self.refresh(node);
        while let Some(node) = above {
            let at = self.node_mut(node);
            at.locked_children -= 1;
            if at.is_locked() {
                return;
            }
            above = at.parent;
            self.refresh(node);
        }
    }

    /// Whether a pin keeps a node where it is.
    pub fn is_pinned(&self, node: NodeId) -> bool {
        self.node(node).is_locked()
    }

    /// Brings up to date what follows from a node's residency, children and pins.
    pub(super) fn refresh(&mut self, node: NodeId) {
        let at = &mut self.nodes[node.index()];
        let is_locked = at.is_locked();
        for (index, tier) in self.tiers.iter_mut().enumerate() {
            let is_counted = at.resident.contains(index) && !is_locked && !at.resident.has_faster_than(index);
            if is_counted != at.counted.contains(index) {
                at.counted.set(index, is_counted);
                let bytes = &mut tier.usage.evictable_bytes;
                *bytes = if is_counted { *bytes + at.size_bytes } else { *bytes - at.size_bytes };
                tier.parties.counted(at.party, at.size_bytes, is_counted);
            }
            let is_leaf = is_counted && at.children_in[index] == 0;
            tier.policy.set_evictable(node, is_leaf);
            tier.parties.set_leaf(at.party, node, at.last_request, is_leaf);
        }
        self.refresh_forgettable(node);
    }
}
