//! A prompt as the model read it: its tokens, their text, and what the model thought of each.

use std::sync::Arc;

use ragstone_kernels::sampling::Scored;
use ragstone_kernels::tokenizer::Tokenizer;

use crate::error::Result;
use crate::report::Alternative;

/// A prompt's tokens, and what the model thought of them, where that was asked. Each takes a few bytes, and some more for each alternative:
/// what is told of it is made as it is told.
#[derive(Debug)]
pub struct ReadPrompt {
    tokens: Vec<u32>,
    /// Of each token but the first; none where nobody asked.
    scores: Vec<Scored>,
    tokenizer: Arc<Tokenizer>,
}

/// One of its tokens.
#[derive(Debug, Clone)]
pub struct ReadToken {
    /// Its id in the model's vocabulary.
    pub id: u32,
    /// What it stands for in a text; possibly part of a character. A control token's are its name.
    pub bytes: Vec<u8>,
    /// The text that became complete with it.
    pub text: String,
    /// What the model thought of it; `None` of the first one, and where nobody asked.
    pub score: Option<Score>,
}

/// What the model thought of a token.
#[derive(Debug, Clone)]
pub struct Score {
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its place among all tokens, the likeliest being the first.
    pub rank: u32,
    /// The likeliest tokens at its place, likeliest first.
    pub top: Vec<Alternative>,
}

impl ReadPrompt {
    pub(crate) fn new(tokens: Vec<u32>, scores: Vec<Scored>, tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokens, scores, tokenizer }
    }

    /// How many tokens it has.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has none, which no prompt is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Its text, control tokens by their names.
    ///
    /// # Errors
    /// Where the tokenizer fails.
    pub fn text(&self) -> Result<String> {
        self.tokenizer.decode_with_control(&self.tokens)
    }

    /// Its tokens, in order.
    pub fn tokens(&self) -> impl Iterator<Item = Result<ReadToken>> {
        let mut decoder = self.tokenizer.stream(true);
        let scores = std::iter::once(None).chain(self.scores.iter().map(Some)).chain(std::iter::repeat(None));
        self.tokens.iter().zip(scores).map(move |(id, scored)| {
            let score = scored.map(|scored| Score {
                logprob: scored.token.logprob,
                rank: scored.rank,
                top: Alternative::all(&scored.token.top, &self.tokenizer),
            });
            Ok(ReadToken { id: *id, bytes: self.tokenizer.token_bytes(*id), text: decoder.push(*id)?, score })
        })
    }
}
