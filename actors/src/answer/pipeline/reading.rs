//! What a question wants to know of its own prompt.

use std::sync::Arc;

use ragstone_storage::segment::Segment;

use super::{Pipeline, Prefilled};
use crate::error::{Error, Result};
use crate::question::{Input, MAX_PROMPT_LOGPROBS, Question};
use crate::report::read_prompt::ReadPrompt;

impl Pipeline {
    /// How many tokens each answer may have, behind a prompt that is not too long for what is asked.
    pub(super) fn most_tokens(&self, question: &Question, segments: &[Segment]) -> Result<usize> {
        let sampling = &question.sampling;
        if let Some(count) = sampling.prompt_logprobs {
            let tokens: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
            let wanted = tokens.saturating_mul(usize::from(count) + 1);
            if wanted > MAX_PROMPT_LOGPROBS {
                let message = format!(
                    "the prompt has {tokens} tokens, which are {wanted} log-probabilities with {count} alternatives beside each; \
                     {MAX_PROMPT_LOGPROBS} are told at most: ask for fewer, or shorten the prompt"
                );
                return Err(Error::invalid_field("prompt_logprobs", message));
            }
        }
        // Nothing needs no room.
        if sampling.max_tokens == 0 {
            return Ok(0);
        }
        Ok(sampling.max_tokens.min(self.room_behind(segments, question.answers)?))
    }

    /// The prompt as the model read it, for whoever gave token ids or asked what it thought of them.
    pub(super) fn read_prompt(&self, question: &Question, prefilled: &mut Prefilled) -> Option<Arc<ReadPrompt>> {
        let is_wanted = question.sampling.prompt_logprobs.is_some() || matches!(question.input, Input::Tokens(_));
        is_wanted.then(|| {
            let tokens = prefilled.segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
            let scores = std::mem::take(&mut prefilled.sequence.prefill.scores);
            Arc::new(ReadPrompt::new(tokens, scores, self.assembler.tokenizer().clone()))
        })
    }
}
