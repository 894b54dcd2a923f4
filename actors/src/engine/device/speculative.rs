//! Speculative prefills: which of them are answers from now on, and which end because others need their blocks.

use ragstone_kernels::backend::Backend;

use super::Device;
use crate::engine::sequence::{Sequence, State};
use crate::engine::{Interruption, Urgency};
use crate::error::{Error, ErrorKind};

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

    /// Ends speculative prefills; their blocks are free at once.
    pub(super) fn let_go(&mut self, which: impl Fn(&Sequence<B>) -> bool) {
        for mut sequence in self.sequences.extract_if(.., |sequence| sequence.is_speculative() && which(sequence)) {
            metrics::counter!("ragstone_speculations_let_go_total").increment(1);
            // One that was released meanwhile is planned again, as any that is preempted.
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
