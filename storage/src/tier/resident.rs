//! Which entries a tier of this machine holds, and who leaves first: a knowledge tree of one tier, under the lock of its
//! owner, with pins that give themselves back.
//!
//! A parent may be in another tier ([`TreeOptions::allow_orphans`]), so every node hangs on its parent from the start,
//! whether that is here or not: when the parent comes later, it outlives the child all the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::key::KvKey;
use crate::policy::shares::Terms;
use crate::tier::EntrySummary;
use crate::tree::{Admission, KnowledgeTree, NodeId, Party, TierOptions, TierUse, TreeOptions};
use ragstone_env::lock::locked;

/// The only tier of the tree.
const HERE: usize = 0;

/// Nodes that are remembered, those of entries that left among them: about 40 MB, 85 MB where the policy is the adaptive one.
const MAX_NODES: usize = 1 << 17;

/// One request's use of the entries of one path.
#[derive(Debug, Clone, PartialEq)]
pub struct Use {
    /// Keys of the path, each behind the one before it; the first behind nothing, or behind what the request did not use.
    pub path: Vec<KvKey>,
    /// How many of them, from the first on, had their KV.
    pub cached: usize,
    /// What computing the others took, in microseconds a token.
    pub cost_per_token: f64,
}

/// The entries of one tier.
#[derive(Debug)]
pub(crate) struct Residents {
    tree: KnowledgeTree<KvKey>,
    /// Tenants that have entries here or terms, by their numbers in the tree.
    tenants: HashMap<Arc<str>, Party>,
    /// Numbers given so far.
    numbered: Party,
    /// The terms of tenants with whom nothing was agreed, but for the default tenant.
    defaults: Terms,
    pub refused: u64,
}

impl Residents {
    pub fn new(options: TierOptions) -> Self {
        let tree = KnowledgeTree::new(&TreeOptions { tiers: vec![options], max_nodes: MAX_NODES, allow_orphans: true });
        Self { tree, tenants: HashMap::new(), numbered: 0, defaults: Terms::default(), refused: 0 }
    }

    /// Takes an entry in. `Some`: these leave for it, children first. `None`: there is no room; nothing has changed, and the
    /// refusal was counted.
    pub fn admit(&mut self, entry: &EntrySummary) -> Option<Vec<KvKey>> {
        let node = self.enter(entry);
        if self.tree.uses(node) == 0 {
            // Computed for nobody yet, and worth what that took.
            self.tree.note_past(node, 1, entry.cost_per_token());
        }
        match self.tree.admit(node, HERE) {
            Admission::Admitted(left) => Some(left.iter().map(|eviction| self.tree.key(eviction.node)).collect()),
            Admission::AlreadyThere => Some(Vec::new()),
            Admission::NoRoom | Admission::Orphan => {
                self.refused += 1;
                None
            }
        }
    }

    /// As [`admit`](Self::admit), but lets nobody leave. Whether it is there now.
    pub fn admit_into_free_room(&mut self, entry: &EntrySummary) -> bool {
        let (usage, party) = (self.usage(), self.party(&entry.tenant));
        let is_within = self.tree.holding(HERE, party).over_limit(entry.bytes) == 0;
        is_within && usage.bytes.saturating_add(entry.bytes) <= usage.capacity_bytes && self.admit(entry).is_some()
    }

    /// Takes an entry in that has to be there, whatever the bound says; these leave for it.
    pub fn admit_regardless(&mut self, entry: &EntrySummary) -> Vec<KvKey> {
        let node = self.enter(entry);
        let left = self.tree.admit_regardless(node, HERE);
        left.iter().map(|eviction| self.tree.key(eviction.node)).collect()
    }

    /// Says where an entry stands before it comes, so that a pin behind it keeps it too.
    pub fn announce(&mut self, entry: &EntrySummary) {
        self.enter(entry);
    }

    /// Whether an entry is here.
    pub fn has(&self, key: &KvKey) -> bool {
        self.tree.find(key).is_some_and(|node| self.tree.is_in(node, HERE))
    }

    /// Whether a pin keeps an entry here.
    pub fn is_pinned(&self, key: &KvKey) -> bool {
        self.tree.find(key).is_some_and(|node| self.tree.is_pinned(node))
    }

    fn enter(&mut self, entry: &EntrySummary) -> NodeId {
        let parent = entry.parent.map(|parent| self.tree.enter(None, parent, 0));
        let party = self.party(&entry.tenant);
        self.tree.enter_of(party, parent, entry.key, entry.bytes)
    }

    /// A tenant's number. Without keys clients make tenants up: the number of one that has nothing here any more goes to the next.
    fn party(&mut self, tenant: &Arc<str>) -> Party {
        if let Some(party) = self.tenants.get(tenant) {
            return *party;
        }
        let is_vacant = |(name, party): &(&Arc<str>, &Party)| {
            let holding = self.tree.holding(HERE, **party);
            holding.bytes == 0 && holding.terms == self.default_terms(name)
        };
        let vacant = self.tenants.iter().find(is_vacant).map(|(name, _)| name.clone());
        let party = vacant.and_then(|name| self.tenants.remove(&name)).unwrap_or_else(|| {
            self.numbered += 1;
            self.numbered
        });
        self.tenants.insert(tenant.clone(), party);
        let terms = self.default_terms(tenant);
        self.tree.set_terms(HERE, party, terms);
        party
    }

    fn default_terms(&self, tenant: &str) -> Terms {
        if tenant.is_empty() { Terms::default() } else { self.defaults }
    }

    /// Agrees with a tenant on what it may hold here, from the next entry on that comes; `None`: on what is agreed with all others.
    pub fn set_terms(&mut self, tenant: &str, terms: Option<Terms>) {
        let party = self.party(&tenant.into());
        let terms = terms.unwrap_or_else(|| self.default_terms(tenant));
        self.tree.set_terms(HERE, party, terms);
    }

    /// Agrees with all tenants with whom nothing else was agreed, those that come later among them; but for the default tenant.
    pub fn set_default_terms(&mut self, terms: Terms) {
        let before = std::mem::replace(&mut self.defaults, terms);
        for (name, party) in &self.tenants {
            if !name.is_empty() && self.tree.holding(HERE, *party).terms == before {
                self.tree.set_terms(HERE, *party, terms);
            }
        }
    }

    /// Bytes of a tenant's entries.
    pub fn held_by(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).map_or(0, |party| self.tree.holding(HERE, *party).bytes)
    }

    /// Takes an entry out, pinned or not.
    pub fn remove(&mut self, key: &KvKey) {
        if let Some(node) = self.tree.find(key) {
            self.tree.remove(node, HERE);
        }
    }

    /// Counts one request, by the paths that it used.
    pub fn record(&mut self, uses: &[Use]) {
        for (index, used) in uses.iter().enumerate() {
            let mut parent = None;
            let mut nodes = Vec::with_capacity(used.path.len());
            for key in &used.path {
                let node = self.tree.enter(parent, *key, 0);
                nodes.push(node);
                parent = Some(node);
            }
            if index == 0 {
                self.tree.access(&nodes, used.cached, used.cost_per_token);
            } else {
                self.tree.access_more(&nodes, used.cached, used.cost_per_token);
            }
        }
    }

    /// As if `uses` requests had used an entry before the process began.
    pub fn restore(&mut self, entry: &EntrySummary, uses: u32) {
        /// Beyond it, policies do not tell entries apart by much.
        const MOST_RESTORED: u32 = 8;
        let node = self.enter(entry);
        self.tree.note_past(node, uses.min(MOST_RESTORED), entry.cost_per_token());
    }

    pub fn usage(&self) -> TierUse {
        self.tree.usage(HERE)
    }

    /// Keys of entries here that stand behind `key`, the farthest first.
    pub fn behind(&self, key: &KvKey) -> Vec<KvKey> {
        let Some(node) = self.tree.find(key) else { return Vec::new() };
        let mut found: Vec<KvKey> = self
            .tree
            .behind(node)
            .filter(|node| self.tree.is_in(*node, HERE))
            .map(|node| self.tree.key(node))
            .collect();
        found.reverse();
        found
    }

    /// Keeps an entry of this tier here until [`let_go`](Self::let_go).
    pub fn hold(&mut self, key: &KvKey) {
        self.pin(key);
    }

    pub fn let_go(&mut self, key: &KvKey) {
        if let Some(node) = self.tree.find(key) {
            self.tree.unpin(node);
        }
    }

    fn pin(&mut self, key: &KvKey) -> NodeId {
        let node = self.tree.find(key).unwrap_or_else(|| self.tree.enter(None, *key, 0));
        self.tree.pin(node);
        node
    }
}

/// Keeps an entry, and what stands before it, in its tier while it lives.
#[derive(Debug)]
pub(crate) struct Pin<S: AsMut<Residents>> {
    owner: Arc<Mutex<S>>,
    node: NodeId,
}

impl<S: AsMut<Residents>> Pin<S> {
    /// Pins `key`, which need not be there yet. `state` is what `owner` guards, locked by the caller.
    pub fn new(owner: &Arc<Mutex<S>>, state: &mut S, key: &KvKey) -> Self {
        let node = state.as_mut().pin(key);
        Self { owner: Arc::clone(owner), node }
    }
}

impl<S: AsMut<Residents>> Drop for Pin<S> {
    fn drop(&mut self) {
        locked(&self.owner).as_mut().tree.unpin(self.node);
    }
}
