//! CacheBlend: tokens whose fresh K and V deviate most from the stored ones ("high KV deviation", section 4.3).

use ragstone_kernels::deviation::{Compared, select_highest};

use super::{Candidates, Look, TokenSelector};

/// By K, V or both.
pub(super) struct Deviation(pub Compared);

impl TokenSelector for Deviation {
    fn looks_at(&self) -> Look {
        Look::Deviation(self.0)
    }

    fn choose(&self, candidates: &Candidates<'_>, budget: usize) -> Vec<usize> {
        select_highest(candidates.scores, budget)
    }
}
