//! A tree as a list of nodes, and every promise of the real one checked against it after every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::*;

#[derive(Debug, Clone)]
pub enum Step {
    /// A request that keeps its path in the fastest tier and swaps out what leaves it.
    Request(Vec<u64>),
    Admit(Vec<u64>, usize),
    Pin(Vec<u64>),
    /// One of the pins.
    Unpin(prop::sample::Index),
    Remove(Vec<u64>, usize),
    MakeRoom(usize, u64),
}

/// The real tree beside what it must be. A node is named by its path's digits.
pub struct Model {
    tree: KnowledgeTree<u64>,
    capacities: Vec<u64>,
    kind: PolicyKind,
    max_nodes: usize,
    allow_orphans: bool,
    /// What each tier holds.
    tiers: Vec<BTreeSet<u64>>,
    pins: Vec<u64>,
    last_use: BTreeMap<u64, u64>,
    uses: u64,
}

fn keys(path: &[u64]) -> Vec<u64> {
    let mut key = 0;
    path.iter()
        .map(|digit| {
            key = key * 10 + digit;
            key
        })
        .collect()
}

fn parent(key: u64) -> Option<u64> {
    (key >= 10).then_some(key / 10)
}

fn size(key: u64) -> u64 {
    3 + key % 7
}

impl Model {
    pub fn new(capacities: &[u64], kind: PolicyKind, max_nodes: usize, allow_orphans: bool) -> Self {
        let tiers = capacities.iter().map(|&capacity_bytes| TierOptions { capacity_bytes, policy: kind }).collect();
        Self {
            tree: KnowledgeTree::new(&TreeOptions { tiers, max_nodes, allow_orphans }),
            capacities: capacities.to_vec(),
            kind,
            max_nodes,
            allow_orphans,
            tiers: vec![BTreeSet::new(); capacities.len()],
            pins: Vec::new(),
            last_use: BTreeMap::new(),
            uses: 0,
        }
    }

    pub fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let tier = |tier: usize| tier % self.capacities.len();
        match step {
            Step::Request(path) => self.request(&keys(path))?,
            Step::Admit(path, to) => {
                let to = tier(*to);
                let known = keys(path).into_iter().find_map(|key| self.tree.find(&key));
                if let Some(node) = known {
                    self.admit(node, to)?;
                }
            }
            Step::Pin(path) => {
                if let Some(&node) = self.tree.match_path(&keys(path)).nodes.last() {
                    self.tree.pin(node);
                    self.pins.push(self.tree.key(node));
                }
            }
            Step::Unpin(which) => {
                if !self.pins.is_empty() {
                    let key = self.pins.swap_remove(which.index(self.pins.len()));
                    self.unpin(key)?;
                }
            }
            Step::Remove(path, from) => self.remove(&keys(path), tier(*from))?,
            Step::MakeRoom(from, bytes) => {
                let from = tier(*from);
                let can = self.evictable(from) + self.capacities[from] >= self.bytes(from) + bytes;
                let made = self.tree.make_room(from, *bytes);
                prop_assert_eq!(made.is_some(), can);
                self.left(&made.unwrap_or_default(), from)?;
            }
        }
        self.check()
    }

    fn request(&mut self, keys: &[u64]) -> Result<(), TestCaseError> {
        let matched = self.tree.match_path(keys);
        let held = |key: &u64| self.tiers.iter().any(|tier| tier.contains(key));
        prop_assert_eq!(matched.cached, keys.iter().take_while(|key| held(key)).count());
        prop_assert_eq!(matched.nodes.len(), keys.iter().take_while(|key| self.tree.find(key).is_some()).count());
        let mut nodes = matched.nodes;
        let known = nodes.len();
        for (index, key) in keys.iter().enumerate() {
            if index == nodes.len() {
                nodes.push(self.tree.enter(nodes.last().copied(), *key, size(*key)));
            }
            self.tree.pin(nodes[index]);
            self.pins.push(*key);
        }
        if nodes.len() > known {
            self.check_forgotten()?;
        }
        for key in keys {
            self.uses += 1;
            self.last_use.insert(*key, self.uses);
        }
        self.tree.access(&nodes, matched.cached, 2.0);
        for node in &nodes {
            for left in self.admit(*node, 0)? {
                if let Some(slower) = left.copy_to {
                    self.swap_out(left.node, slower)?;
                }
            }
        }
        for key in keys {
            self.pins.pop();
            self.unpin(*key)?;
        }
        Ok(())
    }

    fn admit(&mut self, node: NodeId, to: usize) -> Result<Vec<Eviction>, TestCaseError> {
        let key = self.tree.key(node);
        let is_there = self.tiers[to].contains(&key);
        let is_orphan = !self.allow_orphans && parent(key).is_some_and(|parent| !self.tiers[to].contains(&parent));
        // Its parent may not leave for it.
        self.pins.extend(parent(key));
        let fits = self.bytes(to) + size(key) <= self.capacities[to] + self.evictable(to);
        let admitted = self.tree.admit(node, to);
        let evicted = match admitted {
            Admission::AlreadyThere => {
                prop_assert!(is_there);
                Vec::new()
            }
            Admission::Orphan => {
                prop_assert!(!is_there && is_orphan);
                Vec::new()
            }
            Admission::NoRoom => {
                prop_assert!(!is_there && !is_orphan && !fits);
                Vec::new()
            }
            Admission::Admitted(evicted) => {
                prop_assert!(!is_there && !is_orphan && fits);
                self.left(&evicted, to)?;
                self.tiers[to].insert(key);
                evicted
            }
        };
        if parent(key).is_some() {
            self.pins.pop();
        }
        Ok(evicted)
    }

    fn swap_out(&mut self, node: NodeId, to: usize) -> Result<(), TestCaseError> {
        let done = self.tree.swap_out(node, to);
        // What left did so before or between the copies: no copied node is among them.
        let copied: Vec<u64> = done.copied.iter().map(|node| self.tree.key(*node)).collect();
        for key in &copied {
            prop_assert!(self.tiers[to].insert(*key));
            prop_assert!(parent(*key).is_none_or(|parent| self.tiers[to].contains(&parent)));
        }
        for left in &done.evicted {
            let key = self.tree.key(left.node);
            prop_assert!(!copied.contains(&key) && self.tiers[to].remove(&key));
        }
        prop_assert_eq!(done.is_there, self.tiers[to].contains(&self.tree.key(node)));
        Ok(())
    }

    /// Takes out what was evicted, one by one, each of which must have been allowed to leave, and by LRU was the oldest.
    fn left(&mut self, evicted: &[Eviction], from: usize) -> Result<(), TestCaseError> {
        for left in evicted {
            let key = self.tree.key(left.node);
            let may_leave: Vec<u64> =
                self.tiers[from].iter().copied().filter(|key| self.is_candidate(*key, from)).collect();
            prop_assert!(may_leave.contains(&key), "{} is no leaf, or is held", key);
            if self.kind == PolicyKind::Lru {
                prop_assert_eq!(may_leave.iter().min_by_key(|key| self.last_use[key]), Some(&key));
            }
            self.tiers[from].remove(&key);
            prop_assert_eq!(left.bytes, size(key));
            let slower = self.tiers.get(from + 1).filter(|tier| !tier.contains(&key)).map(|_| from + 1);
            prop_assert_eq!(left.copy_to, slower);
        }
        Ok(())
    }

    fn remove(&mut self, keys: &[u64], from: usize) -> Result<(), TestCaseError> {
        let Some(node) = keys.last().and_then(|key| self.tree.find(key)) else { return Ok(()) };
        let key = self.tree.key(node);
        let behind = |other: &u64| {
            let mut prefixes = std::iter::successors(Some(*other), |key| parent(*key));
            *other == key || (!self.allow_orphans && prefixes.any(|above| above == key))
        };
        let expected: BTreeSet<u64> = if self.tiers[from].contains(&key) {
            self.tiers[from].iter().copied().filter(behind).collect()
        } else {
            BTreeSet::new()
        };
        let removed = self.tree.remove(node, from);
        prop_assert_eq!(&removed.iter().map(|node| self.tree.key(*node)).collect::<BTreeSet<_>>(), &expected);
        self.tiers[from].retain(|key| !expected.contains(key));
        Ok(())
    }

    fn unpin(&mut self, key: u64) -> Result<(), TestCaseError> {
        let node = self.tree.find(&key);
        prop_assert!(node.is_some(), "pinned nodes are not forgotten");
        self.tree.unpin(node.unwrap());
        Ok(())
    }

    fn is_locked(&self, key: u64) -> bool {
        self.pins.iter().any(|pin| std::iter::successors(Some(*pin), |key| parent(*key)).any(|above| above == key))
    }

    fn is_counted(&self, key: u64, tier: usize) -> bool {
        !self.is_locked(key) && !self.tiers[..tier].iter().any(|faster| faster.contains(&key))
    }

    fn is_candidate(&self, key: u64, tier: usize) -> bool {
        self.is_counted(key, tier) && !self.tiers[tier].iter().any(|other| parent(*other) == Some(key))
    }

    fn bytes(&self, tier: usize) -> u64 {
        self.tiers[tier].iter().map(|key| size(*key)).sum()
    }

    fn evictable(&self, tier: usize) -> u64 {
        self.tiers[tier].iter().filter(|key| self.is_counted(**key, tier)).map(|key| size(*key)).sum()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (tier, held) in self.tiers.iter().enumerate() {
            let usage = self.tree.usage(tier);
            prop_assert_eq!((usage.nodes, usage.bytes), (held.len(), self.bytes(tier)));
            prop_assert_eq!(usage.evictable_bytes, self.evictable(tier));
            prop_assert!(usage.bytes <= usage.capacity_bytes);
            for key in held {
                let has_parent = parent(*key).is_none_or(|parent| held.contains(&parent));
                prop_assert!(self.allow_orphans || has_parent, "{} outlived its parent", key);
                let node = self.tree.find(key);
                prop_assert!(node.is_some_and(|node| self.tree.is_in(node, tier)));
            }
        }
        Ok(())
    }

    /// Nodes beyond the bound are held somewhere or pinned, or stand before such.
    fn check_forgotten(&self) -> Result<(), TestCaseError> {
        let held = self.tiers.iter().flatten().chain(&self.pins);
        let with_parents: BTreeSet<u64> =
            held.flat_map(|key| std::iter::successors(Some(*key), |key| parent(*key))).collect();
        prop_assert!(self.tree.len() <= self.max_nodes.max(with_parents.len()));
        Ok(())
    }
}
