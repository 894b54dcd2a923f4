//! The better of several policies, found out as it runs: each runs a cache of its own, of ids, and the tier follows one.

mod judge;
mod shadow;

use self::judge::Judge;
use self::shadow::Shadow;
use super::{Access, Id, Order, Policy, PolicyKind, Rank};

/// Who is listened to; the first is followed until another shows that it is better.
pub(super) const KINDS: [PolicyKind; EXPERTS] = [PolicyKind::HitDensity, PolicyKind::Pgdsf, PolicyKind::Lru];
const EXPERTS: usize = 3;

/// The greatest value of an entry, so that the sum over all of them stays in range.
const MOST_VALUE: f64 = (1u64 << 44) as f64;

/// Holds what the best of its experts would hold.
///
/// Every expert runs a shadow cache: ids alone, of the tier's capacity, under the tree's rules. Each use says who would
/// have had the entry, and what that would have saved: its bytes times its mean cost a token, as in equation 3. The tier follows
/// the leader: what leaves it is what the leader's cache does not hold, what left there first before the others. So it holds
/// what the leader's cache holds, less what it still has to fetch after a change, and saves what the leader alone would.
///
/// [`Judge`] says when the leader changes. A shadow costs about 100 bytes a node that the tree remembers and expert, and
/// O(log n) a use.
///
/// Gramacy et al., "Adaptive caching by refetching" (2002), and Megiddo's and Modha's ARC (2003) judge by shadow caches, too; LeCaR and
/// CACHEUS (2018, 2021) draw an expert for each eviction instead, by its regret, so that the tier holds what none would.
#[derive(Debug)]
pub struct Adaptive {
    /// What the tier can hold; and what it could when it last had to let something go, where other things than its
    /// entries take its room.
    most_bytes: u64,
    capacity_bytes: u64,
    resident_bytes: u64,
    shadows: [Shadow; EXPERTS],
    judge: Judge,
    known: Vec<Known>,
    /// The running request; what it uses; and what of that is known, and an expert may not hold yet.
    request: u64,
    running: Vec<Id>,
    pending: Vec<Id>,
    /// The tier's evictable entries by last use, for where an expert has nothing to say.
    evictable: Order,
    ticks: u64,
}

/// What is known of an entry.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    parent: Option<Id>,
    /// 0: not known yet.
    size_bytes: u64,
    /// Its bytes times its mean cost a token.
    value: u64,
    /// Sum over misses of T(cached, new) / new.
    total_cost: f64,
    computed: u32,
    is_resident: bool,
    is_evictable: bool,
    /// The experts whose caches hold it, a bit each.
    inside: u8,
    /// Entries behind it in each expert's cache.
    children: [u32; EXPERTS],
    /// When it left each expert's cache.
    departed: [u64; EXPERTS],
    /// The last request that used it, and which of all uses that was.
    request: Option<u64>,
    tick: u64,
}

impl Known {
    fn is_inside(&self, expert: usize) -> bool {
        self.inside & (1 << expert) != 0
    }

    fn set_inside(&mut self, expert: usize, is_inside: bool) {
        self.inside = if is_inside { self.inside | (1 << expert) } else { self.inside & !(1 << expert) };
    }
}

impl Adaptive {
    /// A policy for a tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            most_bytes: capacity_bytes,
            capacity_bytes,
            resident_bytes: 0,
            shadows: std::array::from_fn(|number| Shadow::new(number, KINDS[number], capacity_bytes)),
            judge: Judge::default(),
            known: Vec::new(),
            request: 0,
            running: Vec::new(),
            pending: Vec::new(),
            evictable: Order::default(),
            ticks: 0,
        }
    }

    /// Who is followed.
    pub fn leader(&self) -> PolicyKind {
        KINDS[self.judge.leader()]
    }

    fn known(&mut self, id: Id) -> &mut Known {
        if self.known.len() <= id.index() {
            self.known.resize(id.index() + 1, Known::default());
        }
        &mut self.known[id.index()]
    }

    /// What the last request used may leave the experts' caches from now on.
    fn begin_request(&mut self, request: u64) {
        self.flush();
        self.request = request;
        for shadow in &mut self.shadows {
            shadow.end_request();
            self.running.iter().for_each(|id| shadow.release(&self.known, *id, request));
        }
        self.running.clear();
        let missing = self.shadows.each_ref().map(|shadow| shadow.missing);
        self.judge.end_request(&missing);
    }

    /// The experts take in what they do not hold of what is used.
    fn flush(&mut self) {
        for id in std::mem::take(&mut self.pending) {
            self.admit(id);
        }
    }

    fn admit(&mut self, id: Id) {
        for shadow in &mut self.shadows {
            shadow.admit(&mut self.known, id, self.request, self.capacity_bytes);
        }
    }

    /// Brings an entry's value up to date.
    fn revalue(&mut self, id: Id) {
        let Known { inside, is_resident, value: before, size_bytes, total_cost, computed, .. } = *self.known(id);
        // Far below 2^64, and never negative.
        let value = (size_bytes as f64 * total_cost / f64::from(computed.max(1))).min(MOST_VALUE) as u64;
        self.known(id).value = value;
        for shadow in self.shadows.iter_mut().filter(|shadow| !is_resident && inside & (1 << shadow.number) != 0) {
            shadow.missing = shadow.missing - before + value;
        }
    }

    fn set_resident(&mut self, id: Id, is_resident: bool) {
        let at = self.known(id);
        if at.is_resident == is_resident {
            return;
        }
        at.is_resident = is_resident;
        let Known { inside, value, size_bytes, .. } = *at;
        for shadow in self.shadows.iter_mut().filter(|shadow| inside & (1 << shadow.number) != 0) {
            shadow.missing = if is_resident { shadow.missing - value } else { shadow.missing + value };
        }
        self.resident_bytes =
            if is_resident { self.resident_bytes + size_bytes } else { self.resident_bytes - size_bytes };
    }

    fn note_candidate(&mut self, id: Id) {
        self.shadows.iter_mut().for_each(|shadow| shadow.note_candidate(&self.known, id));
        let Known { is_evictable, tick, .. } = self.known[id.index()];
        if is_evictable {
            self.evictable.put(id, Rank { priority: 0.0, tick });
        } else {
            self.evictable.remove(id);
        }
    }
}

impl Policy for Adaptive {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Adaptive
    }

    fn access(&mut self, id: Id, access: Access) {
        let is_request = access.past_uses == 0;
        if access.request != self.request {
            self.begin_request(access.request);
        }
        self.ticks += 1;
        let (request, tick) = (self.request, self.ticks);
        // Its number may be the greater one, and nobody may have used it yet.
        if let Some(parent) = access.parent {
            self.known(parent);
        }
        let at = self.known(id);
        let was_running = at.request == Some(request);
        at.tick = tick;
        if is_request {
            at.request = Some(request);
        }
        if at.inside == 0 {
            at.parent = access.parent;
        }
        if !access.is_cached && access.cost_per_token.is_finite() {
            at.total_cost += access.cost_per_token.max(0.0);
            at.computed = at.computed.saturating_add(1);
            self.revalue(id);
        }
        let mut hits = 0;
        for shadow in &mut self.shadows {
            hits |= u8::from(shadow.access(&self.known, id, access, is_request && !was_running)) << shadow.number;
        }
        let Known { value, inside, size_bytes, is_evictable, .. } = self.known[id.index()];
        if is_request {
            self.judge.hear(value, hits);
        }
        if is_request && !was_running {
            self.running.push(id);
            // What was never here has no size yet: it is taken in when it arrives.
            if size_bytes > 0 && inside.count_ones() < EXPERTS as u32 {
                self.pending.push(id);
            }
        }
        if is_evictable {
            self.evictable.put(id, Rank { priority: 0.0, tick });
        }
    }

    fn arriving(&mut self, id: Id, size_bytes: u64) {
        self.flush();
        let before = *self.known(id);
        if before.size_bytes != size_bytes && !before.is_resident {
            self.shadows.iter_mut().for_each(|shadow| shadow.resize(&before, size_bytes, self.request));
            self.known(id).size_bytes = size_bytes;
            self.revalue(id);
        }
        self.admit(id);
    }

    fn insert(&mut self, id: Id, size_bytes: u64) {
        self.arriving(id, size_bytes);
        self.set_resident(id, true);
        // What it holds, it can hold.
        self.capacity_bytes = self.capacity_bytes.max(self.resident_bytes).min(self.most_bytes);
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        let at = self.known(id);
        if at.is_resident && at.is_evictable != is_evictable {
            at.is_evictable = is_evictable;
            self.note_candidate(id);
        }
    }

    fn victim(&mut self) -> Option<Id> {
        self.flush();
        self.evictable.first()?;
        let leader = &mut self.shadows[self.judge.leader()];
        // Other things than entries take the tier's room, or pins keep what the leader would not: its cache is too large.
        while leader.departed.first().is_none() {
            if leader.evict(&mut self.known, self.request).is_none() {
                return self.evictable.first();
            }
            self.capacity_bytes = self.capacity_bytes.min(leader.bytes);
        }
        leader.departed.first()
    }

    fn evict(&mut self, id: Id) {
        self.set_resident(id, false);
        self.known(id).is_evictable = false;
        self.note_candidate(id);
    }

    fn remove(&mut self, id: Id) {
        self.evict(id);
        self.shadows.iter_mut().for_each(|shadow| shadow.remove(&mut self.known, id, self.request));
        self.pending.retain(|other| *other != id);
    }

    fn forget(&mut self, id: Id) {
        self.remove(id);
        self.shadows.iter_mut().for_each(|shadow| shadow.forget(&mut self.known, id, self.request));
        *self.known(id) = Known::default();
    }
}
