//! Speculative prefills: which of them are answers from now on; and which prefills end because others need their blocks.

use ragstone_kernels::backend::Backend;

use super::Device;
use crate::engine::Urgency;
use crate::engine::sequence::{Sequence, State};
use crate::error::{Error, ErrorKind};
use crate::prefill::Interruption;

impl<B: Backend> Device<B> {
    /// What was released since the last step is a request's own prompt: it goes on, or answers at once where it is done.
    pub(super) fn take_on_released(&mut self) {
        for index in 0..self.sequences.len() {
            let sequence = &mut self.sequences[index];
            if sequence.hold.take_if(|hold| hold.is_released()).is_none() {
                continue;
            }
            sequence.urgency = Urgency::Answer;
            if let State::Prefilling(prefilling) = &mut sequence.state
                && let Some(done) = prefilling.held.take()
            {
                self.answer(index, done);
            }
        }
    }

    /// Ends prefills of which no answer waits for; their blocks are free at once.
    pub(super) fn let_go(&mut self, which: impl Fn(&Sequence<B>) -> bool) {
        let may_go = |sequence: &Sequence<B>| sequence.urgency != Urgency::Answer;
        for mut sequence in self.sequences.extract_if(.., |sequence| may_go(sequence) && which(sequence)) {
            if sequence.is_speculative() {
                metrics::counter!("ragstone_speculations_let_go_total").increment(1);
            } else {
                self.inbox.count_preemption();
                metrics::counter!("ragstone_preemptions_total", "by" => "recompute").increment(1);
            }
            // Background work is planned again, as any that is preempted; so is what was released meanwhile.
            sequence.interrupt(Interruption::Preempted, || Error::new(ErrorKind::Cancelled, "let go"));
        }
    }

    /// Rows that speculative prompts still have to compute, and whether answers decode.
    pub(super) fn speculative_and_decoding(&self) -> (usize, bool) {
        let (mut rows, mut decodes) = (0, false);
        for sequence in &self.sequences {
            match &sequence.state {
                State::Prefilling(prefilling) if sequence.is_speculative() => rows += prefilling.prefill.rows_left(),
                State::Decoding(_) => decodes = true,
                State::Prefilling(_) | State::Ended => {}
            }
        }
        (rows, decodes)
    }
}
