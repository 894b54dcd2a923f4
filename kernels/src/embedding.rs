//! Sentence embeddings: all-MiniLM-L6-v2 and models of its layout (BERT, mean pooling, unit length).

mod bert;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use rayon::prelude::*;

use crate::error::{Error, ErrorKind, Result};
use crate::folder;
use crate::tokenizer::read_json;
use crate::weights::Checkpoint;
use bert::{Bert, Config};

/// The longest text that is read, in tokens with the two that stand around it; what is behind is ignored. The model
/// was trained for this length.
pub const MAX_TOKENS: usize = 256;

/// Tokens computed at once, unless one text is longer: enough to keep the matrix product busy, at some 15 MB of
/// intermediate values.
const BATCH_TOKENS: usize = 1024;

/// all-MiniLM-L6-v2, for folders that carry only weights and a tokenizer.
const MINILM_CONFIG: &str = r#"{
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "max_position_embeddings": 512,
    "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0
}"#;

/// Turns text into unit vectors whose dot product is their similarity.
pub struct SentenceEncoder {
    model: Bert,
    tokenizer: tokenizers::Tokenizer,
    dimension: usize,
    /// Rows of the table of token embeddings.
    vocabulary: usize,
    max_tokens: usize,
    identity: String,
}

impl std::fmt::Debug for SentenceEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentenceEncoder").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl SentenceEncoder {
    /// Loads `model.safetensors`, `tokenizer.json` and `config.json` of a folder; without a `config.json` the model
    /// is taken for all-MiniLM-L6-v2.
    ///
    /// # Errors
    /// `InvalidModel` for missing, truncated or mismatched files, `UnsupportedModel` for another kind of model.
    pub fn load(folder: &Path) -> Result<Self> {
        let (config, config_text) = read_config(folder)?;
        refuse_other_pooling(folder)?;
        let (tokenizer, tokenizer_bytes) = read_tokenizer(folder)?;
        let greatest = tokenizer.get_vocab(true).into_values().max().unwrap_or_default();
        if greatest as usize >= config.vocab_size {
            return Err(Error::invalid_model(format!(
                "{}: the tokenizer belongs to another embedding model: it has id {greatest}, the weights have {} token \
                 embeddings; fetch the folder again",
                folder.display(),
                config.vocab_size
            )));
        }
        let checkpoint = Checkpoint::open(folder)?;
        let identity = identity(&config, &config_text, &tokenizer_bytes, checkpoint.files())?;
        let model = Bert::load(&checkpoint, &config)?;
        let encoder = Self {
            model,
            tokenizer,
            dimension: config.hidden_size,
            vocabulary: config.vocab_size,
            max_tokens: MAX_TOKENS.min(config.max_position_embeddings),
            identity,
        };
        // What would fail for every text is told now.
        encoder.tokens("")?;
        Ok(encoder)
    }

    /// Elements of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Names this model and its exact files: vectors of equal identities may be compared, others never.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The length of a text in tokens, with the two that stand around it and before it is cut at [`MAX_TOKENS`].
    pub fn token_count(&self, text: &str) -> Result<usize> {
        self.tokenizer.encode_fast(text, true).map(|encoding| encoding.len()).map_err(tokenizer_failed)
    }

    /// One vector a text, `[dimension]` f32 of length 1, in the order of `texts`. An empty text has a vector too.
    ///
    /// The bits of a vector do not depend on the other texts.
    pub fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let tokens: Vec<Vec<u32>> = texts.par_iter().map(|text| self.tokens(text)).collect::<Result<_>>()?;
        let tokens: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let mut rows = 0;
            let fitting = rest.iter().take_while(|text| {
                rows += text.len();
                rows <= BATCH_TOKENS
            });
            let (batch, behind) = rest.split_at(fitting.count().max(1));
            vectors.append(&mut self.model.forward(batch));
            rest = behind;
        }
        vectors.iter_mut().for_each(|vector| normalize(vector));
        Ok(vectors)
    }

    /// Token ids, at least one, cut so that the closing token stays.
    fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, true).map_err(tokenizer_failed)?;
        let mut ids = encoding.get_ids().to_vec();
        let Some(last) = ids.last().copied() else {
            return Err(Error::invalid_model(
                "the embedding model's tokenizer adds no [CLS] and [SEP]; fetch it again",
            ));
        };
        // What a tokenizer puts around a text need not be in its vocabulary.
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocabulary) {
            return Err(Error::invalid_model(format!(
                "the embedding model's tokenizer gives id {id}, the weights have {} token embeddings; fetch it again",
                self.vocabulary
            )));
        }
        if ids.len() > self.max_tokens {
            ids.truncate(self.max_tokens - 1);
            ids.push(last);
        }
        Ok(ids)
    }
}

/// To length 1; a vector of zeros stays.
fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt().max(1e-12) as f32;
    vector.iter_mut().for_each(|value| *value /= norm);
}

fn read_config(model: &Path) -> Result<(Config, String)> {
    let path = model.join("config.json");
    let text = match path.is_file() {
        true => folder::read_text(&path, folder::CONFIG_BYTES).map_err(|error| unreadable(&path, error))?,
        false => MINILM_CONFIG.to_owned(),
    };
    let invalid = |error: serde_json::Error| {
        Error::invalid_model(format!(
            "{} does not describe a BERT embedding model ({error}); take all-MiniLM-L6-v2 or fetch the folder again",
            path.display()
        ))
        .with_source(error)
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
    if let Some(other) = value.get("model_type").and_then(|kind| kind.as_str()).filter(|kind| *kind != "bert") {
        return Err(Error::unsupported(format!(
            "embedding models of type {other} are not supported; take all-MiniLM-L6-v2 or another BERT of its layout"
        )));
    }
    let config: Config = serde_json::from_value(value).map_err(invalid)?;
    config.check(&path)?;
    Ok((config, text))
}

/// Another pooling than the mean would give vectors that look right and find the wrong passages.
fn refuse_other_pooling(folder: &Path) -> Result<()> {
    let Some(pooling) = read_json(&folder.join("1_Pooling").join("config.json"))? else { return Ok(()) };
    match pooling.get("pooling_mode_mean_tokens").and_then(|mean| mean.as_bool()) {
        Some(false) => Err(Error::unsupported(format!(
            "{} pools otherwise than by the mean; take all-MiniLM-L6-v2 or another model with mean pooling",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

fn read_tokenizer(model: &Path) -> Result<(tokenizers::Tokenizer, Vec<u8>)> {
    let path = model.join("tokenizer.json");
    let bytes = folder::read(&path, folder::TABLE_BYTES).map_err(|error| unreadable(&path, error))?;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| {
        Error::invalid_model(format!("{} is not a valid tokenizer ({error}); fetch it again", path.display()))
    })?;
    // The published file cuts and pads to 128; the model reads 256, and nothing here is padded.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(tokenizer_failed)?;
    Ok((tokenizer, bytes))
}

/// `bert-384-` and a hash over every file that decides a vector.
fn identity(config: &Config, config_text: &str, tokenizer: &[u8], weights: &[std::path::PathBuf]) -> Result<String> {
    let mut hasher = blake3::Hasher::new_derive_key("ragstone sentence encoder 1: mean pooling, 256 tokens");
    for part in [config_text.as_bytes(), tokenizer] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    for path in weights {
        let file = fs::File::open(path).map_err(|error| unreadable(path, error))?;
        hasher.update_reader(file).map_err(|error| unreadable(path, error))?;
    }
    let hash = hasher.finalize().to_hex();
    Ok(format!("bert-{}-{}", config.hidden_size, &hash[..16]))
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let message = format!(
        "cannot read {}: {error}; an embedding model's folder holds model.safetensors, tokenizer.json and config.json",
        path.display()
    );
    Error::invalid_model(message).with_source(error)
}

fn tokenizer_failed(error: tokenizers::Error) -> Error {
    let message = format!("the embedding model's tokenizer failed: {error}");
    Error::new(ErrorKind::Internal, message).with_source(error)
}
