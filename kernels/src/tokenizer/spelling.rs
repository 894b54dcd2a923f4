//! How a vocabulary spells bytes: what one token is in a text.

use std::collections::HashSet;

/// From a token's spelling to its bytes.
#[derive(Debug)]
pub(super) struct Spelling {
    form: Form,
    /// Added tokens are spelled as they are.
    added: HashSet<u32>,
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// A printable character for each byte, as in GPT-2.
    ByteLevel,
    /// `▁` for a space, `<0x0A>` for a byte that no token has, as in SentencePiece.
    Pieces,
}

impl Spelling {
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        // The kinds of decoders nest; their JSON names them all.
        let decoder = tokenizer.get_decoder().and_then(|decoder| serde_json::to_string(decoder).ok());
        let is_byte_level = decoder.is_some_and(|json| json.contains("\"ByteLevel\""));
        let form = if is_byte_level { Form::ByteLevel } else { Form::Pieces };
        Self { form, added: tokenizer.get_added_tokens_decoder().into_keys().collect() }
    }

    pub(super) fn bytes(&self, id: u32, token: String) -> Vec<u8> {
        if self.added.contains(&id) {
            return token.into_bytes();
        }
        match self.form {
            Form::ByteLevel => token.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| token.into_bytes()),
            Form::Pieces => match fallback(&token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

/// `<0x0A>`
fn fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Undoes GPT-2's table: printable bytes stand for themselves, the others, in order, for U+0100 and what follows.
fn byte_of(c: char) -> Option<u8> {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(c) {
        code @ 0..0x100 => u8::try_from(code).ok().filter(|byte| is_printable(*byte)),
        code => (0..=u8::MAX).filter(|byte| !is_printable(*byte)).nth(code as usize - 0x100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes.iter().collect::<HashSet<_>>().len(), 256);
        assert_eq!((byte_of('Ġ'), byte_of('a'), byte_of('€')), (Some(b' '), Some(b'a'), None));
    }

    #[test]
    fn bytes_that_no_piece_has_are_written_as_numbers() {
        assert_eq!(
            (fallback("<0x0A>"), fallback("<0x0>"), fallback("<0xZZ>"), fallback("a")),
            (Some(10), None, None, None)
        );
    }
}
