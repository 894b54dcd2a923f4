//! Tokens that the question looks at: in an early layer of the prefill itself ("A3: Attention-Aware Accurate KV Cache Fusion for
//! Fast Large Language Model Serving"), or where the question runs ahead over stored KV, in one layer that was found to matter (QCFuse,
//! arXiv 2606.05875, without its anchors: the question sees all of every passage) or in all of them (ProphetKV, arXiv 2602.02579).
//!
//! A token's score is the softmax weight that it gets, the mean over heads, added up over the question's tokens and the layers.

use ragstone_kernels::deviation::select_highest;

use super::{Candidates, Look, TokenSelector};

/// By attention.
pub(super) struct Question(pub Look);

impl TokenSelector for Question {
    fn looks_at(&self) -> Look {
        self.0
    }

    fn choose(&self, candidates: &Candidates<'_>, budget: usize) -> Vec<usize> {
        select_highest(candidates.scores, budget)
    }
}
