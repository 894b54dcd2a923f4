//! Drafts of the next step: each answer's proposal, as long as it is predicted to pay.

use ragstone_kernels::backend::Backend;

use super::Device;
use crate::engine::lookup::{Wish, allot, priced_out};
use crate::engine::sequence::{State, Tail};

impl<B: Backend> Device<B> {
    /// Gives each answer that decodes a draft, as long as the step is predicted to bring more tokens a second by it. Whether there are
    /// rows and blocks for it is the scheduler's to say.
    pub(super) fn draft(&mut self, beside_prefills: bool) {
        let (mut decoding, mut wishes, mut wished) = (0, Vec::new(), 0);
        let pace = &mut self.pace;
        let mut tails: Vec<&mut Tail> = Vec::new();
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.swapped.is_none()) {
            if let State::Decoding(own) = &mut sequence.state {
                tails.extend(own);
            }
        }
        for tail in &mut tails {
            decoding += 1;
            let (most, share) = tail.propose();
            wished += most;
            wishes.push(Wish { most, share });
        }
        if wished == 0 {
            return;
        }
        let given = allot(decoding, &wishes, |rows| pace.drafting_ms(decoding, rows, beside_prefills));
        let least_ms = |rows| pace.least_drafting_ms(decoding, rows, beside_prefills);
        if let Some(rows) = priced_out(decoding, &wishes, given.iter().sum(), least_ms) {
            pace.doubt_drafts(rows);
        }
        tails.into_iter().zip(given).for_each(|(tail, tokens)| tail.keep_draft(tokens));
    }
}
