//! The tokens that fit into a context. A tokenizer takes some hundred bytes of memory for each byte that it reads, so what is
//! too long is not read to its end.

use crate::error::{Error, ErrorKind, Result};

/// A longer text is counted in pieces before it is tokenized as a whole.
const LONG_BYTES: usize = 256 << 10;
/// A piece's length.
const PIECE_BYTES: usize = 64 << 10;

/// What is left of a context while a prompt is tokenized.
#[derive(Debug)]
pub(crate) struct Budget {
    context: usize,
    spent: usize,
}

impl Budget {
    /// All of `context` tokens.
    pub(crate) fn new(context: usize) -> Self {
        Self { context, spent: 0 }
    }

    /// The token ids of a text, taken from what is left.
    ///
    /// # Errors
    /// `ContextLength` where there are more than are left; `encode`'s.
    pub(crate) fn tokens(&mut self, text: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Vec<u32>> {
        if text.len() > LONG_BYTES {
            self.count(text, &encode)?;
        }
        let tokens = encode(text)?;
        self.spent = self.spent.saturating_add(tokens.len());
        if self.spent > self.context { Err(self.exceeded(self.spent)) } else { Ok(tokens) }
    }

    /// Counts in pieces, which give a few tokens more than the whole: an eighth too many says nothing yet.
    fn count(&self, text: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<()> {
        let most = self.context.saturating_add(self.context / 8).saturating_add(1024);
        let (mut count, mut rest) = (self.spent, text);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            count = count.saturating_add(encode(piece)?.len());
            if count > most {
                return Err(self.exceeded(count));
            }
            rest = behind;
        }
        Ok(())
    }

    /// Of a prompt of which so many tokens are counted; what comes behind them is not counted any more.
    fn exceeded(&self, counted: usize) -> Error {
        let message = format!(
            "the prompt has more tokens than the model's context of {}: {counted} or more; shorten it, or send fewer documents",
            self.context
        );
        Error::new(ErrorKind::ContextLength, message)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A token a byte; notes the lengths of what it is given.
    fn read(budget: &mut Budget, text: &str) -> (Result<usize>, Vec<usize>) {
        let lengths = RefCell::new(Vec::new());
        let tokens = budget.tokens(text, |text| {
            lengths.borrow_mut().push(text.len());
            Ok(vec![0; text.len()])
        });
        (tokens.map(|tokens| tokens.len()), lengths.into_inner())
    }

    #[test]
    fn texts_share_a_context() {
        let mut budget = Budget::new(5);
        assert!(matches!(read(&mut budget, "abc").0, Ok(3)));
        assert!(matches!(read(&mut budget, "de").0, Ok(2)));
        assert_eq!(read(&mut budget, "f").0.unwrap_err().kind(), ErrorKind::ContextLength);
    }

    #[test]
    fn a_long_text_is_not_read_to_its_end() {
        let text = "é".repeat(LONG_BYTES);
        let (answer, lengths) = read(&mut Budget::new(100_000), &text);
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::ContextLength);
        assert_eq!(lengths, [PIECE_BYTES; 2]);
        let (answer, lengths) = read(&mut Budget::new(text.len()), &text);
        assert_eq!((answer.unwrap(), lengths.len()), (text.len(), text.len() / PIECE_BYTES + 1));
    }
}
