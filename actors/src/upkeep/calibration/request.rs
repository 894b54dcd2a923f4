//! What somebody asks of a calibration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asked, RULES};
use crate::answer::blend::{BALANCED, LEAST_PROMPTS, MOST_BUDGET};
use crate::error::{Error, ErrorKind, Result};
use crate::prefill::Rule;

/// Tokens of all answers together: of each, 2 KiB of the full prefill's distribution are kept.
const MOST_TOKENS: usize = 51_200;

/// What a calibration is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Calibrate {
    /// Questions with their passages; none given: of the collection, or those that come with ragstone.
    pub questions: Vec<Asked>,
    /// Passages of this collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// Prompts at most, 8 to 1000: an eighth of them to search with, the others to certify what was found. Fewer than a hundred certify nothing.
    pub prompts: usize,
    /// The longest answer, in tokens, 1 to 256.
    pub tokens: usize,
    /// The divergence from a full prefill that is allowed: Kullback-Leibler, the mean of an answer's tokens, in nats, 0 to 1. 1 allows
    /// everything.
    pub budget: f64,
    /// The rules that are tried.
    pub selectors: Vec<Rule>,
    /// Only measure: every way on every prompt; nothing is chosen, and what is known of the model stays.
    pub frontier: bool,
}

impl Default for Calibrate {
    fn default() -> Self {
        Self {
            questions: Vec::new(),
            collection: None,
            prompts: 500,
            tokens: 16,
            budget: BALANCED,
            selectors: RULES.to_vec(),
            frontier: false,
        }
    }
}

impl Calibrate {
    /// Checks every value; the error names it.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::new(ErrorKind::InvalidInput, message));
        if !(LEAST_PROMPTS..=1000).contains(&self.prompts) {
            return bad("`prompts` must lie between 8 and 1000");
        }
        if !(1..=256).contains(&self.tokens) {
            return bad("`tokens` must lie between 1 and 256");
        }
        if self.prompts * self.tokens > MOST_TOKENS {
            return bad("`prompts` times `tokens` must be at most 51200");
        }
        if !(self.budget > 0.0 && self.budget <= MOST_BUDGET) {
            return bad("`budget` must be over 0 and at most 1, in nats, such as 0.03");
        }
        if self.questions.iter().any(|asked| asked.passages.is_empty() || asked.question.trim().is_empty()) {
            return bad("`questions`: every one needs a question and at least one passage");
        }
        if self.collection.is_some() && !self.questions.is_empty() {
            return bad("give `questions` or a `collection`, not both");
        }
        Ok(())
    }
}
