//! Texts into a BERT: a folder's files, its tokenizer, and texts in batches.

use std::path::{Path, PathBuf};

use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationParams};

use super::{Bert, Config, Family, Sequence};
use crate::error::{Error, ErrorKind, Result};
use crate::folder;
use crate::linear::Precision;
use crate::tokenizer::guarded;
use crate::weights::Checkpoint;

/// Tokens computed at once, unless one text is longer: enough to keep the matrix product busy, at some 15 MB of
/// intermediate values of MiniLM.
const BATCH_TOKENS: usize = 1024;

/// What a model is used for, in messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Role {
    /// Such as `embedding model`.
    pub(crate) name: &'static str,
    /// What to take where one cannot be used.
    pub(crate) instead: &'static str,
}

/// The files of a model's folder.
pub(crate) struct TextModelFolder {
    path: PathBuf,
    role: Role,
    pub(crate) config: Config,
    config_text: String,
    tokenizer: Tokenizer,
    tokenizer_bytes: Vec<u8>,
    pub(crate) checkpoint: Checkpoint,
}

impl TextModelFolder {
    /// Reads `config.json`, which `default` stands for where there is none, and `tokenizer.json`; maps the weights.
    ///
    /// # Errors
    /// `InvalidModel` for missing, truncated or mismatched files, `UnsupportedModel` for another kind of model.
    pub(crate) fn open(path: &Path, role: Role, default: Option<&str>) -> Result<Self> {
        let (config, config_text) = read_config(path, role, default)?;
        let (tokenizer, tokenizer_bytes) = read_tokenizer(path, role)?;
        let greatest = tokenizer.get_vocab(true).into_values().max().unwrap_or_default();
        if greatest as usize >= config.vocab_size {
            return Err(Error::invalid_model(format!(
                "{}: the tokenizer belongs to another {}: it has id {greatest}, the weights have {} token embeddings; fetch the \
                 folder again",
                path.display(),
                role.name,
                config.vocab_size
            )));
        }
        let checkpoint = Checkpoint::open(path)?;
        Ok(Self { path: path.to_owned(), role, config, config_text, tokenizer, tokenizer_bytes, checkpoint })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Feeds `hasher` with every file that decides what the model computes.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) -> Result<()> {
        for part in [self.config_text.as_bytes(), &self.tokenizer_bytes] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        for path in self.checkpoint.files() {
            let file = std::fs::File::open(path).map_err(|error| unreadable(self.role, path, error))?;
            hasher.update_reader(file).map_err(|error| unreadable(self.role, path, error))?;
        }
        Ok(())
    }
}

/// A BERT and its tokenizer.
pub(crate) struct TextEncoder {
    model: Bert,
    tokenizer: Tokenizer,
    /// The folder, for messages.
    path: PathBuf,
    role: Role,
    hidden: usize,
    /// Rows of the tables of token embeddings and of token types.
    vocabulary: usize,
    types: usize,
    max_tokens: usize,
}

impl TextEncoder {
    /// Loads the body, which computes in `precision`; texts are cut at `most_tokens`, or as many as the model has positions for.
    pub(crate) fn load(folder: &TextModelFolder, most_tokens: usize, precision: Precision) -> Result<Self> {
        let config = &folder.config;
        let encoder = Self {
            model: Bert::load(&folder.checkpoint, config, precision)?,
            tokenizer: folder.tokenizer.clone(),
            path: folder.path.clone(),
            role: folder.role,
            hidden: config.hidden_size,
            vocabulary: config.vocab_size,
            types: config.type_vocab_size,
            max_tokens: most_tokens.min(config.max_tokens()),
        };
        // What would fail for every text is told now.
        encoder.sequence("")?;
        Ok(encoder)
    }

    /// Elements of a hidden state.
    pub(crate) fn hidden_size(&self) -> usize {
        self.hidden
    }

    /// Tokens of the longest text that is read whole, with those that stand around it.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The length of a text in tokens, with those that stand around it and before it is cut.
    pub(crate) fn token_count(&self, text: &str) -> Result<usize> {
        self.on_text(|| self.tokenizer.encode_fast(text, true)).map(|encoding| encoding.len())
    }

    /// A text, cut so that the closing token stays.
    pub(crate) fn sequence(&self, text: &str) -> Result<Sequence> {
        let encoding = self.on_text(|| self.tokenizer.encode_fast(text, false))?;
        self.framed(encoding, None)
    }

    /// A query with each of `documents` behind it. What is too long is cut at the end of the longer one of the two, as transformers'
    /// `longest_first` has it.
    pub(crate) fn pairs(&self, query: &str, documents: &[&str]) -> Result<Vec<Sequence>> {
        let encode = |text: &str| self.on_text(|| self.tokenizer.encode_fast(text, false));
        let query = encode(query)?;
        let pair = |document: &&str| self.framed(query.clone(), Some(encode(document)?));
        documents.iter().map(pair).collect()
    }

    /// Computes `sequences` in batches: `take` gets each one's place and hidden states, `[tokens, hidden]`. Its bits do not depend on the
    /// others.
    pub(crate) fn for_each(&self, sequences: &[Sequence], mut take: impl FnMut(usize, &[f32])) {
        let mut next = 0;
        while next < sequences.len() {
            let mut rows = 0;
            let fitting = sequences[next..].iter().take_while(|text| {
                rows += text.ids.len();
                rows <= BATCH_TOKENS
            });
            let batch = &sequences[next..next + fitting.count().max(1)];
            let hidden = self.model.forward(batch);
            let mut rest = hidden.as_slice();
            for (index, text) in batch.iter().enumerate() {
                let (own, behind) = rest.split_at(text.ids.len() * self.hidden);
                take(next + index, own);
                rest = behind;
            }
            next += batch.len();
        }
    }

    /// Cut, with what stands around.
    fn framed(&self, text: Encoding, pair: Option<Encoding>) -> Result<Sequence> {
        let around = self.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(pair.is_some()));
        let max_length = self.max_tokens.saturating_sub(around);
        let (text, mut pair) = self.on_text(|| {
            truncate_encodings(text, pair, &TruncationParams { max_length, ..TruncationParams::default() })
        })?;
        if let Some(pair) = &mut pair {
            pair.set_type_ids(vec![1; pair.len()]);
        }
        let framed = self.on_text(|| self.tokenizer.post_process(text, pair, true))?;
        self.check(&framed)?;
        Ok(Sequence { ids: framed.get_ids().to_vec(), types: framed.get_type_ids().to_vec() })
    }

    /// What a tokenizer puts around a text need not be in its vocabulary.
    fn check(&self, framed: &Encoding) -> Result<()> {
        let name = self.role.name;
        if framed.is_empty() || framed.len() > self.max_tokens {
            return Err(Error::invalid_model(format!(
                "the {name}'s tokenizer gives {} tokens where it should give 1 to {}; fetch it again",
                framed.len(),
                self.max_tokens
            )));
        }
        let given = [
            ("id", framed.get_ids(), self.vocabulary, "token embeddings"),
            ("type", framed.get_type_ids(), self.types, "token types"),
        ];
        for (what, values, rows, of) in given {
            if let Some(value) = values.iter().find(|value| **value as usize >= rows) {
                return Err(Error::invalid_model(format!(
                    "the {name}'s tokenizer gives {what} {value}, the weights have {rows} {of}; fetch it again"
                )));
            }
        }
        Ok(())
    }

    /// What the library makes of a text. It panics where `tokenizer.json` contradicts itself.
    fn on_text<T>(&self, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
        let made = guarded::on_text(work).ok_or_else(|| {
            Error::invalid_model(format!(
                "{} contradicts itself: the {}'s tokenizer failed on a text; fetch the folder again",
                self.path.join("tokenizer.json").display(),
                self.role.name
            ))
        })?;
        made.map_err(|error| {
            let message = format!("the {}'s tokenizer failed: {error}", self.role.name);
            Error::new(ErrorKind::Internal, message).with_source(error)
        })
    }
}

fn read_config(model: &Path, role: Role, default: Option<&str>) -> Result<(Config, String)> {
    let Role { name, instead } = role;
    let path = model.join("config.json");
    let text = match default {
        Some(default) if !path.is_file() => default.to_owned(),
        _ => folder::read_text(&path, folder::CONFIG_BYTES).map_err(|error| unreadable(role, &path, error))?,
    };
    let invalid = |error: serde_json::Error| {
        let path = path.display();
        Error::invalid_model(format!("{path} describes no {name} ({error}); {instead}, or fetch the folder again"))
            .with_source(error)
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
    if let Some(other) = value.get("model_type").and_then(|kind| kind.as_str())
        && !Family::NAMES.contains(&other)
    {
        let known = Family::NAMES.join(", ");
        return Err(Error::unsupported(format!("a {name} of type {other} is not supported ({known} are); {instead}")));
    }
    let config: Config = serde_json::from_value(value).map_err(invalid)?;
    config.check(&path)?;
    Ok((config, text))
}

fn read_tokenizer(model: &Path, role: Role) -> Result<(Tokenizer, Vec<u8>)> {
    let path = model.join("tokenizer.json");
    let bytes = folder::read(&path, folder::TABLE_BYTES).map_err(|error| unreadable(role, &path, error))?;
    // Published files cut and pad to their own lengths; nothing here is padded, and the caller says where it is cut.
    Ok((guarded::from_bytes(&bytes, &path)?, bytes))
}

fn unreadable(role: Role, path: &Path, error: std::io::Error) -> Error {
    let message = format!(
        "cannot read {}: {error}; the folder of a {} holds model.safetensors, tokenizer.json and config.json",
        path.display(),
        role.name
    );
    Error::invalid_model(message).with_source(error)
}
