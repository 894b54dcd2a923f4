//! The two ends: nothing is recomputed, and everything is.

use super::{Candidates, Look, TokenSelector};

/// Plain reuse.
pub(super) struct None;

impl TokenSelector for None {
    fn looks_at(&self) -> Look {
        Look::Nothing
    }

    fn choose(&self, _: &Candidates<'_>, _: usize) -> Vec<usize> {
        Vec::new()
    }
}

/// A full prefill.
pub(super) struct All;

impl TokenSelector for All {
    fn looks_at(&self) -> Look {
        Look::Nothing
    }

    fn choose(&self, candidates: &Candidates<'_>, _: usize) -> Vec<usize> {
        (0..candidates.slots.len()).collect()
    }
}
