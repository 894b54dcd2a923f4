//! What a question takes of its tenant's tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::admission::caller::Caller;
use crate::admission::quotas::Spent;

/// Counts the tokens of one question, as its usage has them.
pub(crate) struct Meter {
    spent: Arc<Spent>,
    caller: Caller,
    /// Tokens of its prompt that are counted. Rounds of searching, and what was begun before a search had ended, are prompts of the same question.
    prompt: AtomicU64,
}

impl Meter {
    pub fn new(spent: Arc<Spent>, caller: Caller) -> Self {
        Self { spent, caller, prompt: AtomicU64::new(0) }
    }

    /// Its prompt has so many tokens: counted before it is computed, so that whoever leaves then has used them.
    pub fn prompt(&self, tokens: u64) {
        let before = self.prompt.fetch_max(tokens, Ordering::Relaxed);
        self.spent.charge_tokens(self.caller, tokens.saturating_sub(before));
    }

    /// So many were read to put passages in order: prompts beside its own.
    pub fn reading(&self, tokens: u64) {
        self.spent.charge_tokens(self.caller, tokens);
    }

    /// An answer took so many.
    pub fn answer(&self, tokens: u64) {
        self.spent.charge_tokens(self.caller, tokens);
    }
}
