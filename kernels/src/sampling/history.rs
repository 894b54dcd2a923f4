//! What was said so far, and what follows from it for the next token's logits.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::SamplingParams;

/// The tokens of prompt and answer, as far as the rules ask about them.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// Tokens of the prompt, for the repetition penalty.
    prompt: HashSet<u32>,
    /// How often each token stands in the answer, for all penalties.
    answer: HashMap<u32, u32>,
    /// Tokens of the answer.
    length: usize,
    end_tokens: Vec<u32>,
}

impl History {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32], end_tokens: &[u32]) -> Self {
        let repeats = params.repetition_penalty != 1.0;
        let ends = if params.min_tokens > 0 { end_tokens.to_vec() } else { Vec::new() };
        Self {
            prompt: if repeats { prompt.iter().copied().collect() } else { HashSet::new() },
            end_tokens: ends,
            ..Self::default()
        }
    }

    /// Notes a chosen token.
    pub(super) fn note(&mut self, id: u32) {
        self.length = self.length.saturating_add(1);
        // An answer has at most as many different tokens as the vocabulary.
        let count = self.answer.entry(id).or_default();
        *count = count.saturating_add(1);
    }

    /// Bias, then penalties, then the end that may not come yet; the logits themselves where nothing is asked for.
    ///
    /// The repetition penalty is that of transformers' `RepetitionPenaltyLogitsProcessor`; frequency and presence penalties
    /// are OpenAI's, over the answer alone. As in vLLM, a token has both.
    pub(super) fn adjust<'l>(&self, params: &SamplingParams, logits: &'l [f32]) -> Cow<'l, [f32]> {
        let is_too_short = self.length < params.min_tokens && !self.end_tokens.is_empty();
        let penalizes =
            params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
        if !is_too_short && !penalizes && params.logit_bias.is_empty() {
            return Cow::Borrowed(logits);
        }
        let mut logits = logits.to_vec();
        let mut change = |id: u32, change: &dyn Fn(f32) -> f32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = change(*logit);
            }
        };
        for (id, bias) in &params.logit_bias {
            change(*id, &|logit| logit + bias);
        }
        let penalty = params.repetition_penalty;
        let repeat = |logit: f32| if logit < 0.0 { logit * penalty } else { logit / penalty };
        if penalizes {
            self.prompt.iter().filter(|id| !self.answer.contains_key(id)).for_each(|id| change(*id, &repeat));
            for (id, count) in &self.answer {
                let taken = params.frequency_penalty * *count as f32 + params.presence_penalty;
                change(*id, &|logit| repeat(logit) - taken);
            }
        }
        if is_too_short {
            self.end_tokens.iter().for_each(|id| change(*id, &|_| f32::NEG_INFINITY));
        }
        Cow::Owned(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(params: &SamplingParams, prompt: &[u32], answer: &[u32]) -> History {
        let mut history = History::new(params, prompt, &[]);
        answer.iter().for_each(|id| history.note(*id));
        history
    }

    /// By hand: transformers' `RepetitionPenaltyLogitsProcessor(2.0)` over `[0, 1, 1, 3]` divides 3.0 and multiplies -1.0;
    /// 0.0 stays, and id 2 was never said.
    #[test]
    fn a_repetition_penalty_counts_prompt_and_answer_once() {
        let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
        let adjusted = history(&params, &[0, 1], &[1, 3]).adjust(&params, &[3.0, -1.0, 5.0, 0.0]).into_owned();
        assert_eq!(adjusted, [1.5, -2.0, 5.0, 0.0]);
    }

    /// By hand, OpenAI's `logit - count * frequency - (count > 0) * presence`.
    #[test]
    fn frequency_and_presence_count_the_answer_alone() {
        let params = SamplingParams { frequency_penalty: 0.5, presence_penalty: 0.25, ..Default::default() };
        let adjusted = history(&params, &[0, 0, 0], &[1, 1, 2]).adjust(&params, &[3.0, 3.0, 3.0, 3.0]).into_owned();
        assert_eq!(adjusted, [3.0, 3.0 - 1.0 - 0.25, 3.0 - 0.5 - 0.25, 3.0]);
    }

    #[test]
    fn all_rules_together_in_their_order() {
        let params = SamplingParams {
            logit_bias: vec![(0, -4.0), (9, 50.0)],
            repetition_penalty: 2.0,
            presence_penalty: 1.0,
            ..Default::default()
        };
        // (1 - 4) * 2 - 1
        let adjusted = history(&params, &[], &[0]).adjust(&params, &[1.0, 2.0]).into_owned();
        assert_eq!(adjusted, [-7.0, 2.0]);
    }

    #[test]
    fn logits_without_rules_are_not_copied() {
        let params = SamplingParams::default();
        assert!(matches!(history(&params, &[1], &[1]).adjust(&params, &[1.0, 2.0]), Cow::Borrowed(_)));
    }

    #[test]
    fn no_end_before_the_shortest_answer() {
        let params = SamplingParams { min_tokens: 2, ..Default::default() };
        let mut history = History::new(&params, &[], &[1]);
        for is_masked in [true, true, false] {
            assert_eq!(history.adjust(&params, &[0.0, 5.0])[1] == f32::NEG_INFINITY, is_masked);
            history.note(0);
        }
    }
}
