//! Text from token ids that arrive one by one.

use super::Tokenizer;
use crate::error::Result;

/// Ids held back for the rest of a character. UTF-8 needs at most four bytes, so four tokens; what is still
/// incomplete after this many never was text.
const MAX_PENDING: usize = 16;

/// Decodes incrementally. A token may hold part of a character, and a decoder may look at its neighbours (a leading
/// space), so text is the difference between two decodings of a short tail of ids, given out once it is complete.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    /// Ids given out last, as context, then those held back.
    ids: Vec<u32>,
    /// How many of `ids` are given out.
    emitted: usize,
    with_control: bool,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer, with_control: bool) -> Self {
        Self { tokenizer, ids: Vec::new(), emitted: 0, with_control }
    }

    /// Takes the next id and returns the text that is now certain, often empty.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.pending_text()?;
        let incomplete = text.ends_with(char::REPLACEMENT_CHARACTER);
        if text.is_empty() || (incomplete && self.ids.len() - self.emitted < MAX_PENDING) {
            return Ok(String::new());
        }
        self.ids.drain(..self.emitted);
        self.emitted = self.ids.len();
        Ok(text)
    }

    /// Whatever is held back, once no more ids come: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> Result<String> {
        let text = self.pending_text()?;
        self.ids.clear();
        self.emitted = 0;
        Ok(text)
    }

    fn pending_text(&self) -> Result<String> {
        let context = self.tokenizer.decode_with(&self.ids[..self.emitted], self.with_control)?;
        let all = self.tokenizer.decode_with(&self.ids, self.with_control)?;
        Ok(all.get(context.len()..).unwrap_or_default().to_owned())
    }
}
