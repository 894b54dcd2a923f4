//! What an expert's own cache would hold.

use super::Known;
use crate::policy::{Access, Id, Order, Policy, PolicyKind, Rank};

/// A cache of ids that an expert runs by itself, under the tree's rules: of a path the children leave first, and what the
/// running request uses stays.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Its bit in [`Known::inside`], and its place in [`Known::children`].
    pub number: usize,
    policy: Box<dyn Policy>,
    pub bytes: u64,
    /// Bytes of what the running request uses.
    running_bytes: u64,
    /// What of the tier's evictable entries it does not hold, what left it first before the others.
    pub departed: Order,
    /// The value of what it holds and the tier does not.
    pub missing: u64,
    departures: u64,
    /// Whether the running path was held so far.
    holds_path: bool,
}

impl Shadow {
    pub fn new(number: usize, kind: PolicyKind, capacity_bytes: u64) -> Self {
        Self {
            number,
            policy: kind.build(capacity_bytes),
            bytes: 0,
            running_bytes: 0,
            departed: Order::default(),
            missing: 0,
            departures: 0,
            holds_path: true,
        }
    }

    /// A request uses `id`; says whether this cache would have had it, and all before it in its path. `begins`: it is the
    /// running request's first use of it, which keeps it here from now on.
    pub fn access(&mut self, known: &[Known], id: Id, access: Access, begins: bool) -> bool {
        let at = &known[id.index()];
        let is_in = at.is_inside(self.number);
        self.holds_path = is_in && (access.parent_uses == 0 || self.holds_path);
        self.policy.access(id, access);
        if is_in && begins {
            self.running_bytes += at.size_bytes;
            self.policy.set_evictable(id, false);
        }
        self.holds_path
    }

    /// Takes `id` in, if it fits beside what the running request uses.
    pub fn admit(&mut self, known: &mut [Known], id: Id, request: u64, capacity_bytes: u64) {
        let at = known[id.index()];
        let is_running = at.request == Some(request);
        let is_orphan = at.parent.is_some_and(|parent| {
            let parent = &known[parent.index()];
            parent.request == Some(request) && !parent.is_inside(self.number)
        });
        if at.is_inside(self.number) || is_orphan || self.running_bytes.saturating_add(at.size_bytes) > capacity_bytes {
            return;
        }
        while self.bytes.saturating_add(at.size_bytes) > capacity_bytes {
            if self.evict(known, request).is_none() {
                return;
            }
        }
        known[id.index()].set_inside(self.number, true);
        self.bytes += at.size_bytes;
        self.policy.insert(id, at.size_bytes);
        self.departed.remove(id);
        if !at.is_resident {
            self.missing += at.value;
        }
        if let Some(parent) = at.parent {
            known[parent.index()].children[self.number] += 1;
            self.policy.set_evictable(parent, false);
        }
        if is_running {
            self.running_bytes += at.size_bytes;
        }
        self.release(known, id, request);
    }

    /// Lets go what leaves it next, if anything can.
    pub fn evict(&mut self, known: &mut [Known], request: u64) -> Option<Id> {
        let id = self.policy.victim()?;
        self.policy.evict(id);
        self.leave(known, id, request);
        Some(id)
    }

    /// Takes `id` out because it is gone for everybody.
    pub fn remove(&mut self, known: &mut [Known], id: Id, request: u64) {
        if known[id.index()].is_inside(self.number) {
            self.policy.remove(id);
            if known[id.index()].request == Some(request) {
                self.running_bytes -= known[id.index()].size_bytes;
            }
            self.leave(known, id, request);
        }
    }

    pub fn forget(&mut self, known: &mut [Known], id: Id, request: u64) {
        self.remove(known, id, request);
        self.policy.forget(id);
    }

    fn leave(&mut self, known: &mut [Known], id: Id, request: u64) {
        self.departures += 1;
        let at = &mut known[id.index()];
        at.set_inside(self.number, false);
        at.departed[self.number] = self.departures;
        self.bytes -= at.size_bytes;
        if !at.is_resident {
            self.missing -= at.value;
        }
        let parent = at.parent;
        self.note_candidate(known, id);
        if let Some(parent) = parent {
            known[parent.index()].children[self.number] -= 1;
            self.release(known, parent, request);
        }
    }

    /// Lets `id` leave, if it is here, nothing stands behind it, and the running request does not use it.
    pub fn release(&mut self, known: &[Known], id: Id, request: u64) {
        let at = &known[id.index()];
        if at.is_inside(self.number) && at.children[self.number] == 0 && at.request != Some(request) {
            self.policy.set_evictable(id, true);
        }
    }

    /// Brings up to date whether the tier lets `id` go first where this expert is followed.
    pub fn note_candidate(&mut self, known: &[Known], id: Id) {
        let at = &known[id.index()];
        if at.is_evictable && !at.is_inside(self.number) {
            self.departed.put(id, Rank { priority: 0.0, tick: at.departed[self.number] });
        } else {
            self.departed.remove(id);
        }
    }

    /// Another request runs.
    pub fn end_request(&mut self) {
        self.running_bytes = 0;
    }

    pub fn resize(&mut self, known: &Known, size_bytes: u64, request: u64) {
        if known.is_inside(self.number) {
            self.bytes = self.bytes - known.size_bytes + size_bytes;
            if known.request == Some(request) {
                self.running_bytes = self.running_bytes - known.size_bytes + size_bytes;
            }
        }
    }
}
