//! Text to token ids and back, with the ids that begin and end a model's text.

pub(crate) mod guarded;
mod special;
mod spelling;
mod stream;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, Input};

use crate::config::ModelConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::folder;
pub use special::SpecialTokens;
pub(crate) use special::read_json;
use spelling::Spelling;
pub use stream::StreamDecoder;

/// No text has more bytes a token than this on average: what has is padding, and would cost memory by its bytes.
const MOST_BYTES_PER_TOKEN: usize = 32;

/// What a normalizer can make of a character's bytes at most: four of them one (`NFKC` of a mathematical letter).
const MOST_SHRINKING: usize = 4;

/// Words whose tokens each thread remembers; one takes up to 9 kB, and somebody may send words that are all different.
const CACHED_WORDS: usize = 2000;

/// The tokenizer of a model folder. Clones share it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    /// Finds texts that the tokenizer would read as one control token.
    control: AhoCorasick,
    /// Added tokens that are not called special, and count as control tokens all the same.
    marks: Arc<[String]>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: tokenizers::Tokenizer,
    tokens: SpecialTokens,
    bos: Option<u32>,
    eos: Vec<u32>,
    spelling: Spelling,
    bytes_per_token: usize,
    greatest: (u32, String),
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and the special tokens that `tokenizer_config.json`, `generation_config.json` and
    /// `config.json` name.
    ///
    /// # Errors
    /// `InvalidModel` when a file is missing or malformed; the message names it.
    pub fn from_folder(model: &Path) -> Result<Self> {
        let path = model.join("tokenizer.json");
        let bytes = folder::read(&path, folder::TABLE_BYTES).map_err(|error| {
            Error::invalid_model(format!(
                "cannot read {}: {error}; the model needs its tokenizer.json, fetch it again",
                path.display()
            ))
            .with_source(error)
        })?;
        Self::from_json(&bytes, SpecialTokens::from_folder(model)?, &path)
    }

    /// Reads the bytes of a `tokenizer.json`; `path` is where they are from, for messages.
    ///
    /// # Errors
    /// `InvalidModel` when they are malformed.
    pub(crate) fn from_json(bytes: &[u8], tokens: SpecialTokens, path: &Path) -> Result<Self> {
        let mut tokenizer = guarded::from_bytes(bytes, path)?;
        let mut words = tokenizer.get_model().clone();
        words.resize_cache(CACHED_WORDS);
        tokenizer.with_model(words);

        let bos = leading_token(&tokenizer, &tokens)?;
        let eos = tokens.end_ids(|token| tokenizer.token_to_id(token));
        let vocabulary = tokenizer.get_vocab(true);
        let longest = vocabulary.keys().map(String::len).max().unwrap_or(1).max(1);
        let shrinking = if tokenizer.get_normalizer().is_some() { MOST_SHRINKING } else { 1 };
        let greatest = vocabulary.into_iter().map(|(token, id)| (id, token)).max().unwrap_or_default();
        let control = finder(control_texts(&tokenizer))?;
        let inner = Inner {
            spelling: Spelling::of(&tokenizer),
            bytes_per_token: longest.saturating_mul(shrinking).min(MOST_BYTES_PER_TOKEN),
            tokenizer,
            tokens,
            bos,
            eos,
            greatest,
        };
        Ok(Self { inner: Arc::new(inner), control, marks: Arc::default() })
    }

    /// With added tokens that no text from elsewhere may hold either, though the tokenizer does not call them special: the chat template writes
    /// turns by them ([`ChatTemplate::marks`](crate::chat::ChatTemplate)).
    pub(crate) fn with_marks(mut self, marks: Vec<String>) -> Result<Self> {
        let mut texts = control_texts(&self.inner.tokenizer);
        texts.extend_from_slice(&marks);
        self.control = finder(texts)?;
        self.marks = marks.into();
        Ok(self)
    }

    /// What [`with_marks`](Self::with_marks) was given, in order: tokens of texts depend on it.
    pub fn marks(&self) -> &[String] {
        &self.marks
    }

    /// The texts of added tokens that are not called special, but spelled as marks are, in order.
    pub(crate) fn bracketed(&self) -> Vec<String> {
        let added = self.inner.tokenizer.get_added_tokens_decoder().into_values();
        let texts = added.filter(|token| !token.special).map(|token| token.content);
        let mut texts: Vec<String> = texts.filter(|text| is_bracketed(text)).collect();
        texts.sort();
        texts
    }

    /// No text has fewer tokens than its bytes divided by this, so that one which cannot fit is refused unread: the length
    /// of the longest token, or what no text reaches on average.
    pub fn bytes_per_token(&self) -> usize {
        self.inner.bytes_per_token
    }

    /// Token ids of `text`. With `special`, the tokens that the model wants around a text (its BOS) are added.
    ///
    /// Texts of control tokens, such as `<|im_end|>`, become those tokens: right for a rendered chat template,
    /// wrong for text from elsewhere, see [`Tokenizer::encode_text`].
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        encode(&self.inner.tokenizer, text, special)
    }

    /// Token ids of text that nobody vouches for: a control token's text in it stays text, so that a passage
    /// cannot end its turn or open another. Adds nothing around it.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut from = 0;
        // One pass over the text. Cutting a control token's text in two is enough for the tokenizer not to see it.
        while let Some(found) = self.control.find(Input::new(text).range(from..)) {
            let cut = found.start() + text[found.range()].chars().next().map_or(1, char::len_utf8);
            ids.extend(self.encode(&text[from..cut], false)?);
            from = cut;
        }
        ids.extend(self.encode(&text[from..], false)?);
        Ok(ids)
    }

    /// Whether [`Tokenizer::encode`] would read control tokens in this text.
    pub fn has_control(&self, text: &str) -> bool {
        self.control.is_match(text)
    }

    /// The text of token ids, without control tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decode_with(ids, false)
    }

    /// The text of token ids, control tokens by their names.
    pub fn decode_with_control(&self, ids: &[u32]) -> Result<String> {
        self.decode_with(ids, true)
    }

    fn decode_with(&self, ids: &[u32], control: bool) -> Result<String> {
        self.inner.tokenizer.decode(ids, !control).map_err(failed)
    }

    /// A decoder for ids that arrive one by one; `with_control` shows control tokens, too.
    pub fn stream(&self, with_control: bool) -> StreamDecoder {
        StreamDecoder::new(self.clone(), with_control)
    }

    /// The bytes of a text that one token stands for, possibly part of a character; a control token's are its name.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.token(id).map(|token| self.inner.spelling.bytes(id, token)).unwrap_or_default()
    }

    /// The text of one token as the vocabulary spells it, control tokens included.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    /// The ids of control tokens.
    pub fn control_ids(&self) -> Vec<u32> {
        let added = self.inner.tokenizer.get_added_tokens_decoder().into_iter();
        added.filter(|(_, token)| token.special).map(|(id, _)| id).collect()
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// The token that this model wants in front of a text; `None` where it wants none, even if its vocabulary has
    /// one (Qwen).
    pub fn bos_id(&self) -> Option<u32> {
        self.inner.bos
    }

    /// The ids that end an answer, each once, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.inner.eos
    }

    /// The texts of the special tokens, for chat templates.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.inner.tokens
    }

    /// Whether every token has a row in the model's embedding.
    ///
    /// # Errors
    /// `InvalidModel` when one has not: the tokenizer belongs to another model.
    pub fn check_fits(&self, config: &ModelConfig) -> Result<()> {
        let (id, token) = &self.inner.greatest;
        if (*id as usize) < config.vocab_size {
            return self.check_ends_fit(config);
        }
        Err(Error::invalid_model(format!(
            "the tokenizer belongs to another model: its token {token:?} has id {id}, but the weights have only {} \
             token embeddings; fetch tokenizer.json and the weights from the same place",
            config.vocab_size
        )))
    }
}

impl Tokenizer {
    /// Ids that no vocabulary file has to name: what the post-processor puts in front, and what ends an answer.
    fn check_ends_fit(&self, config: &ModelConfig) -> Result<()> {
        let named = self.bos_id().map(|id| ("the first token that tokenizer.json adds", id));
        let ends = self.eos_ids().iter().map(|id| ("`eos_token_id` in generation_config.json or config.json", *id));
        match named.into_iter().chain(ends).find(|(_, id)| *id as usize >= config.vocab_size) {
            None => Ok(()),
            Some((what, id)) => Err(Error::invalid_model(format!(
                "{what} is {id}, but the weights have only {} token embeddings; fetch the model again",
                config.vocab_size
            ))),
        }
    }
}

/// The texts of control tokens, but those of one character: they cannot be cut, and real ones are longer.
fn control_texts(tokenizer: &tokenizers::Tokenizer) -> Vec<String> {
    let tokens = tokenizer.get_added_tokens_decoder().into_values().filter(|token| token.special);
    tokens.map(|token| token.content).filter(|text| text.chars().nth(1).is_some()).collect()
}

fn finder(texts: Vec<String>) -> Result<AhoCorasick> {
    AhoCorasick::builder().match_kind(aho_corasick::MatchKind::LeftmostFirst).build(texts).map_err(|error| {
        Error::invalid_model(format!("tokenizer.json has too many control tokens ({error}); take another model"))
    })
}

/// The BOS that the post-processor puts in front, or that `add_bos_token` orders or forbids.
fn leading_token(tokenizer: &tokenizers::Tokenizer, tokens: &SpecialTokens) -> Result<Option<u32>> {
    let named = tokens.bos.as_deref().and_then(|token| tokenizer.token_to_id(token));
    match (tokens.add_bos, named) {
        (Some(false), _) => return Ok(None),
        (Some(true), Some(id)) => return Ok(Some(id)),
        _ => {}
    }
    let first = encode(tokenizer, "", true)?.first().copied();
    // An empty text may still be given an EOS; only the named BOS counts, where one is named.
    Ok(first.filter(|id| named.is_none_or(|named| named == *id) && !tokens.is_end(tokenizer.id_to_token(*id))))
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str, special: bool) -> Result<Vec<u32>> {
    let encoded = guarded::on_text(|| tokenizer.encode_fast(text, special)).ok_or_else(|| {
        Error::invalid_model("tokenizer.json contradicts itself: the tokenizer failed on a text; fetch the model again")
    })?;
    Ok(encoded.map_err(failed)?.get_ids().to_vec())
}

fn failed(error: tokenizers::Error) -> Error {
    let message = format!("the tokenizer failed: {error}");
    Error::new(ErrorKind::Internal, message).with_source(error)
}

/// Whether an added token is spelled as a mark.
pub(crate) fn is_bracketed(text: &str) -> bool {
    let within = |open: char, close: char| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    within('<', '>').or_else(|| within('[', ']')).is_some_and(|name| !name.is_empty())
}
