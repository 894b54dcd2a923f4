//! The two policies that count uses since an entry came: LFU and GDSF.

use super::ranked::{Ranked, Rule};
use super::{Access, Id, PolicyKind};

/// Evicts what was used least often since it entered the tier; among equals what was not used for longest.
pub type Lfu = Ranked<LfuRule>;

/// GDSF (Cherkasova 1998): `priority = clock + frequency · cost / size`, the frequency counted since the entry came, and
/// the clock advanced to the priority of what was evicted.
///
/// As in RAGCache's ablation the cost of computing an entry is proportional to its size, so that `cost / size` is one
/// constant, here 1; what PGDSF adds is to know better.
pub type Gdsf = Ranked<GdsfRule>;

/// `priority = frequency`.
#[derive(Debug, Default)]
pub struct LfuRule(Uses);

/// `priority = clock + frequency`.
#[derive(Debug, Default)]
pub struct GdsfRule {
    uses: Uses,
    clock: f64,
}

/// Uses of each entry since it entered the tier.
#[derive(Debug, Default)]
struct Uses(Vec<u32>);

impl Uses {
    fn count(&mut self, id: Id, more: u32, is_resident: bool) -> f64 {
        if self.0.len() <= id.index() {
            self.0.resize(id.index() + 1, 0);
        }
        let uses = &mut self.0[id.index()];
        // What is not in the tier is about to enter it by this very use.
        *uses = if is_resident { uses.saturating_add(more) } else { more };
        f64::from(*uses)
    }

    fn forget(&mut self, id: Id) {
        if let Some(uses) = self.0.get_mut(id.index()) {
            *uses = 0;
        }
    }
}

impl Rule for LfuRule {
    const KIND: PolicyKind = PolicyKind::Lfu;

    fn priority(&mut self, id: Id, access: Access, is_resident: bool) -> f64 {
        self.0.count(id, access.uses(), is_resident)
    }

    fn forget(&mut self, id: Id) {
        self.0.forget(id);
    }
}

impl Rule for GdsfRule {
    const KIND: PolicyKind = PolicyKind::Gdsf;

    fn priority(&mut self, id: Id, access: Access, is_resident: bool) -> f64 {
        self.clock + self.uses.count(id, access.uses(), is_resident)
    }

    fn evicted(&mut self, priority: f64) {
        self.clock = self.clock.max(priority);
    }

    fn forget(&mut self, id: Id) {
        self.uses.forget(id);
    }
}
