//! Least recently used.

use super::ranked::{Ranked, Rule};
use super::{Access, Id, PolicyKind};

/// Evicts what was not used for longest.
pub type Lru = Ranked<LruRule>;

/// All are worth the same, so that only the time of the last use tells.
#[derive(Debug, Default)]
pub struct LruRule;

impl Rule for LruRule {
    const KIND: PolicyKind = PolicyKind::Lru;

    fn priority(&mut self, _: Id, _: Access, _: bool) -> f64 {
        0.0
    }
}
