//! What the model thinks of a prompt's own tokens: the logits of each row say how likely the next token was.

use std::ops::Range;

use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::sampling::{Scored, score};

/// Logits that a pass makes for one such prompt: 16 MiB of them, however large the vocabulary. It bounds, too, how long the engine looks
/// through them between two passes, which all running answers wait for.
const MOST_LOGITS: usize = 4 << 20;

/// What was found so far.
pub(super) struct Scores {
    alternatives: u8,
    vocabulary: usize,
    /// Of each token but the first.
    found: Vec<Scored>,
}

impl Scores {
    pub fn new(alternatives: u8, vocabulary: usize) -> Self {
        Self { alternatives, vocabulary, found: Vec::new() }
    }

    /// Rows of a chunk at most.
    pub fn most_rows(&self) -> usize {
        (MOST_LOGITS / self.vocabulary.max(1)).max(1)
    }

    /// Takes the rows of `logits` behind the tokens of `prompt` that come next.
    pub fn take(&mut self, logits: &Matrix, rows: Range<usize>, prompt: &[u32]) {
        for row in rows {
            // Behind the last token nothing was given.
            let Some(next) = prompt.get(self.found.len() + 1) else { return };
            self.found.push(score(logits.row(row), *next, self.alternatives));
        }
    }

    pub fn into_found(self) -> Vec<Scored> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_makes_no_more_logits_than_there_is_room_for() {
        let rows = |vocabulary| Scores::new(20, vocabulary).most_rows();
        assert_eq!([rows(1), rows(49_152), rows(262_144), rows(10_000_000)], [MOST_LOGITS, 85, 16, 1]);
    }
}
