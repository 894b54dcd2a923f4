//! The tiers of the simulated node: what each holds, without bytes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::{BytesIn, Load, ServiceTiers};
use crate::cost::CostModel;
use crate::key::KvKey;
use crate::policy::PolicyKind;
use crate::prompt::plan::LoadPlan;
use crate::prompt::residency::{Candidate, CandidateKind, Residency};
use crate::store::{AdmissionRule, loads_faster};
use crate::tier::resident::Residents;
use crate::tier::{EntrySummary, Tier, Use};
use crate::tree::{Admission, KnowledgeTree, TierOptions, TreeOptions};

/// The only tier of the device's tree.
const DEVICE: usize = 0;

/// Nodes that the device's policy remembers: its pool has some ten thousand blocks.
const DEVICE_NODES: usize = 1 << 16;

pub(in crate::simulate) struct Tiers {
    device: Option<KnowledgeTree<KvKey>>,
    host: Residents,
    disk: Residents,
    object: Option<Objects>,
    /// What is to be uploaded, where that takes time; `None`: it is in the bucket at once.
    pub uploads: Option<Vec<(KvKey, u64)>>,
    /// What entered and left host memory, where somebody follows it.
    pub events: Option<Vec<(KvKey, bool)>>,
    pub read: BytesIn,
    pub written: BytesIn,
}

/// The bucket of one node or of several. It keeps everything.
#[derive(Debug, Clone, Default)]
pub(in crate::simulate) struct Objects(Rc<RefCell<Held>>);

#[derive(Debug, Default)]
struct Held {
    bytes_of: HashMap<KvKey, u64>,
    bytes: u64,
    is_down: bool,
}

impl Objects {
    /// Whether it has the entry, and answers.
    fn has(&self, key: &KvKey) -> bool {
        let held = self.0.borrow();
        !held.is_down && held.bytes_of.contains_key(key)
    }

    pub fn insert(&self, key: KvKey, bytes: u64) {
        let mut held = self.0.borrow_mut();
        if held.bytes_of.insert(key, bytes).is_none() {
            held.bytes += bytes;
        }
    }

    pub fn remove(&self, key: &KvKey) {
        let mut held = self.0.borrow_mut();
        let bytes = held.bytes_of.remove(key).unwrap_or_default();
        held.bytes -= bytes;
    }

    pub fn bytes(&self) -> u64 {
        self.0.borrow().bytes
    }

    /// Whether it answers.
    pub fn set_down(&self, is_down: bool) {
        self.0.borrow_mut().is_down = is_down;
    }
}

/// What a prompt keeps in its tiers while it runs.
pub(super) struct PinnedEntries(Vec<(Tier, KvKey)>);

impl BytesIn {
    fn add(&mut self, tier: Tier, bytes: u64) {
        match tier {
            Tier::Device => {}
            Tier::Host => self.host += bytes,
            Tier::Disk => self.disk += bytes,
            Tier::Object => self.object += bytes,
        }
    }
}

impl Tiers {
    pub fn new(sizes: ServiceTiers, policy: PolicyKind) -> Self {
        let options = |capacity_bytes| TierOptions { capacity_bytes, policy };
        let device =
            TreeOptions { tiers: vec![options(sizes.device_bytes)], max_nodes: DEVICE_NODES, allow_orphans: false };
        Self {
            device: (sizes.device_bytes > 0).then(|| KnowledgeTree::new(&device)),
            host: Residents::new(options(sizes.host_bytes)),
            disk: Residents::new(options(sizes.disk_bytes)),
            object: sizes.has_bucket.then(Objects::default),
            uploads: None,
            events: None,
            read: BytesIn::default(),
            written: BytesIn::default(),
        }
    }

    /// On a bucket that others have, too.
    pub fn sharing(mut self, objects: &Objects) -> Self {
        self.object = Some(objects.clone());
        self.uploads = Some(Vec::new());
        self
    }

    /// What is left where the machine is started again: its disk, if that is the same.
    pub fn restarted(&mut self, sizes: ServiceTiers, policy: PolicyKind, keeps_disk: bool) {
        let fresh = Self::new(sizes, policy);
        if let Some(events) = &mut self.events {
            events.clear();
        }
        self.device = fresh.device;
        self.host = fresh.host;
        if !keeps_disk {
            self.disk = fresh.disk;
        }
    }

    /// How many nodes of a path, from its start on, are on the device.
    pub fn on_device(&self, keys: &[KvKey]) -> usize {
        self.device.as_ref().map_or(0, |tree| tree.match_path(keys).cached)
    }

    /// Whether some tier but the device has it.
    pub fn has(&self, key: &KvKey) -> bool {
        self.find(key).is_some()
    }

    fn find(&self, key: &KvKey) -> Option<Tier> {
        [Tier::Host, Tier::Disk, Tier::Object].into_iter().find(|tier| self.is_in(*tier, key))
    }

    fn is_in(&self, tier: Tier, key: &KvKey) -> bool {
        match tier {
            Tier::Device => false,
            Tier::Host => self.host.has(key),
            Tier::Disk => self.disk.has(key),
            Tier::Object => self.object.as_ref().is_some_and(|object| object.has(key)),
        }
    }

    /// What can be loaded for a segment, and where its standalone entry is.
    pub fn candidates(
        &self,
        key: KvKey,
        standalone: Option<KvKey>,
        on_device: bool,
        bytes: u64,
    ) -> (Vec<Candidate>, Option<Tier>) {
        let candidate = |kind, key: KvKey, tier: Tier, bytes| {
            // Object storage is not asked where a faster tier has the entry.
            let also = [Tier::Host, Tier::Disk].into_iter().filter(|other| *other != tier && self.is_in(*other, &key));
            let mut tiers: Vec<Tier> = [tier].into_iter().chain(also).collect();
            tiers.sort_unstable();
            Candidate { kind, key, tier, tiers, bytes }
        };
        let standalone_tier = standalone.and_then(|key| self.find(&key));
        if on_device {
            return (vec![candidate(CandidateKind::Exact, key, Tier::Device, 0)], standalone_tier);
        }
        let exact = self.find(&key).map(|tier| candidate(CandidateKind::Exact, key, tier, bytes));
        let is_near = exact.as_ref().is_some_and(|exact| exact.tier <= Tier::Host);
        let other = standalone.filter(|standalone| *standalone != key && !is_near).zip(standalone_tier);
        let other = other.map(|(key, tier)| candidate(CandidateKind::Standalone, key, tier, bytes));
        (exact.into_iter().chain(other).collect(), standalone_tier)
    }

    /// Keeps what was found where it is.
    pub(super) fn hold(&mut self, residency: &Residency) -> PinnedEntries {
        let found = residency.segments.iter().flat_map(|at| &at.candidates).map(|found| (found.tier, found.key));
        let held: Vec<(Tier, KvKey)> = found.collect();
        for (tier, key) in &held {
            if let Some(residents) = self.residents(*tier) {
                residents.hold(key);
            }
        }
        PinnedEntries(held)
    }

    pub(super) fn let_go(&mut self, held: PinnedEntries) {
        for (tier, key) in &held.0 {
            if let Some(residents) = self.residents(*tier) {
                residents.let_go(key);
            }
        }
    }

    fn residents(&mut self, tier: Tier) -> Option<&mut Residents> {
        match tier {
            Tier::Host => Some(&mut self.host),
            Tier::Disk => Some(&mut self.disk),
            Tier::Device | Tier::Object => None,
        }
    }

    /// Reads an entry, which goes to the faster tiers then; where it does as well as it is, only into free room.
    pub(super) fn load(&mut self, load: &Load) {
        self.read.add(load.tier, load.bytes);
        let into: &[Tier] = match load.tier {
            Tier::Object => &[Tier::Host, Tier::Disk],
            Tier::Disk => &[Tier::Host],
            Tier::Host | Tier::Device => &[],
        };
        into.iter().for_each(|into| self.promote(*into, &load.entry, load.makes_room));
    }

    fn promote(&mut self, into: Tier, entry: &EntrySummary, makes_room: bool) {
        if self.is_in(into, &entry.key) {
            return;
        }
        let Some(residents) = self.residents(into) else { return };
        let left = match makes_room {
            true => residents.admit(entry),
            false => residents.admit_into_free_room(entry).then(Vec::new),
        };
        let Some(left) = left else { return };
        self.written.add(into, entry.bytes);
        if into == Tier::Host {
            self.note_host(entry.key, &left);
        }
    }

    fn note_host(&mut self, came: KvKey, left: &[KvKey]) {
        if let Some(events) = &mut self.events {
            events.extend(left.iter().map(|key| (*key, false)));
            events.push((came, true));
        }
    }

    /// Takes an entry out of all tiers of the machine.
    pub fn forget(&mut self, key: &KvKey) {
        if self.host.has(key) {
            self.host.remove(key);
            if let Some(events) = &mut self.events {
                events.push((*key, false));
            }
        }
        self.disk.remove(key);
        if let Some(tree) = &mut self.device
            && let Some(node) = tree.find(key)
        {
            tree.remove(node, DEVICE);
        }
    }

    /// Bytes in host memory and on disk.
    pub fn kept_bytes(&self) -> [u64; 2] {
        [&self.host, &self.disk].map(|tier| tier.usage().bytes)
    }

    /// Whether the machine itself has it, on its device, in memory or on its disk.
    #[cfg(test)]
    pub fn is_here(&self, key: &KvKey) -> bool {
        let is_on_device = |tree: &KnowledgeTree<KvKey>| tree.find(key).is_some_and(|node| tree.is_in(node, DEVICE));
        self.host.has(key) || self.disk.has(key) || self.device.as_ref().is_some_and(is_on_device)
    }

    /// Tells the policies of host and disk what a prompt used.
    pub fn record(&mut self, uses: &[Use]) {
        self.host.record(uses);
        self.disk.record(uses);
    }

    /// The exact path of a prompt stays on the device; the prompt had room for all of itself.
    pub fn keep_on_device(&mut self, plan: &LoadPlan, costs: &CostModel) {
        let bytes = |tokens: u32| u64::from(tokens) * costs.prefill.grid.kv_bytes_per_token();
        let Some(tree) = &mut self.device else { return };
        let mut path = Vec::new();
        for (segment, key) in plan.exact_path() {
            path.push(tree.enter(path.last().copied(), key, bytes(segment.range.len() as u32)));
        }
        let cached = path.iter().take_while(|node| tree.is_in(**node, DEVICE)).count();
        path.iter().for_each(|node| tree.pin(*node));
        let room = bytes(plan.total_tokens - plan.device_tokens());
        // A prompt that is longer than the pool would be refused; here it leaves nothing.
        let fits = tree.make_room(DEVICE, room).is_some();
        let new = f64::from(plan.computed_tokens);
        let us = costs.prefill.prefill_us(f64::from(plan.total_tokens - plan.computed_tokens), new);
        tree.access(&path, cached, us / new.max(1.0));
        if fits {
            // Each after what stands before it, or it would be an orphan.
            let enters = |node| !matches!(tree.admit(node, DEVICE), Admission::NoRoom | Admission::Orphan);
            path.iter().copied().all(enters);
        }
        path.iter().for_each(|node| tree.unpin(*node));
    }

    /// Files a fresh entry in host memory, and through it in the slower tiers.
    pub fn keep(&mut self, entry: &EntrySummary, rule: AdmissionRule, costs: &CostModel) {
        let takes = |tier| rule == AdmissionRule::Always || loads_faster(costs, tier, entry);
        if !self.host.has(&entry.key)
            && let Some(left) = self.host.admit(entry)
        {
            self.written.host += entry.bytes;
            self.note_host(entry.key, &left);
        }
        if takes(Tier::Object)
            && let Some(object) = &self.object
            && !object.has(&entry.key)
        {
            self.written.object += entry.bytes;
            match &mut self.uploads {
                Some(uploads) => uploads.push((entry.key, entry.bytes)),
                None => object.insert(entry.key, entry.bytes),
            }
        }
        if takes(Tier::Disk) && !self.disk.has(&entry.key) && self.disk.admit(entry).is_some() {
            self.written.disk += entry.bytes;
        }
    }
}
