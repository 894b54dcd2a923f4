//! Sentence embeddings: all-MiniLM-L6-v2 and others of BERT's and RoBERTa's kind, pooled by the mean or by their first token, at length 1
//! ("Sentence-BERT", section 3).

mod stated;
#[cfg(test)]
mod tests;

use std::path::Path;

use rayon::prelude::*;

use crate::bert::{Role, TextEncoder, TextModelFolder, fastest};
use crate::error::{Error, Result};
use crate::linear::Precision;
use crate::simd::Paths;
use stated::{Pooled, Pooling, read_max_tokens, read_pooling, read_prompts, refuse_other_modules};

const ROLE: Role = Role { name: "embedding model", instead: "take all-MiniLM-L6-v2 or another BERT" };

/// The longest text that is read by a model without sentence-transformers' files, in tokens with the two that stand around it: that of
/// all-MiniLM-L6-v2. What is behind is ignored.
pub const MAX_TOKENS: usize = 256;

/// The longest text that is read whatever the model says: one text holds the processors until it is computed.
const MOST_TOKENS: usize = 512;

/// all-MiniLM-L6-v2, for folders that carry only weights and a tokenizer.
const MINILM_CONFIG: &str = r#"{
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "max_position_embeddings": 512,
    "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0
}"#;

/// Turns text into unit vectors whose dot product is their similarity.
pub struct SentenceEncoder {
    text: TextEncoder,
    pooled: Pooled,
    prompts: Prompts,
    /// Of the model's files, whatever is written before texts.
    files: String,
    identity: String,
}

/// What a model wants before a text; mostly nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Before a question.
    pub query: String,
    /// Before what answers it.
    pub passage: String,
}

impl std::fmt::Debug for SentenceEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentenceEncoder").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl SentenceEncoder {
    /// Loads `model.safetensors`, `tokenizer.json` and `config.json` of a folder; without a `config.json` the model
    /// is taken for all-MiniLM-L6-v2. Where they are there, `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json` (with
    /// `tokenizer_config.json`) and `config_sentence_transformers.json` of sentence-transformers count. It computes in bf16 where this
    /// machine's kernels multiply that faster than f32; vectors of both may be compared.
    ///
    /// # Errors
    /// `InvalidModel` for missing, truncated or mismatched files, `UnsupportedModel` for another kind of model.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_in(folder, fastest(&Paths::in_use()))
    }

    /// [`load`](Self::load) of one that computes in f32, the slow reference, or in bf16.
    ///
    /// # Errors
    /// As [`load`](Self::load)'s.
    pub fn load_in(folder: &Path, precision: Precision) -> Result<Self> {
        let folder = TextModelFolder::open(folder, ROLE, Some(MINILM_CONFIG))?;
        refuse_other_modules(folder.path())?;
        let (pooled, max_tokens) = (read_pooling(folder.path())?, read_max_tokens(folder.path())?);
        let text = TextEncoder::load(&folder, max_tokens, precision)?;
        let files = identity(&folder, pooled.how, max_tokens)?;
        let prompts = read_prompts(folder.path())?;
        let encoder = Self { text, pooled, prompts: Prompts::default(), identity: files.clone(), files };
        encoder.with_prompts(prompts)
    }

    /// With other prompts than the model's own.
    ///
    /// # Errors
    /// `InvalidInput` for one that takes more than half of what the model reads, `UnsupportedModel` for one of a model whose vectors are to
    /// leave it out.
    pub fn with_prompts(mut self, prompts: Prompts) -> Result<Self> {
        if !self.pooled.with_prompt && prompts != Prompts::default() {
            return Err(Error::unsupported(format!(
                "the embedding model leaves what stands before a text out of its vector (`include_prompt` in its \
                 1_Pooling/config.json is false), which is not supported; {}",
                ROLE.instead
            )));
        }
        let most = self.max_tokens() / 2;
        for (what, prompt) in [("questions", &prompts.query), ("passages", &prompts.passage)] {
            let tokens = self.token_count(prompt)?;
            if tokens > most {
                return Err(Error::invalid_input(format!(
                    "what the embedding model is to read before {what} has {tokens} tokens; use at most {most}"
                )));
            }
        }
        self.identity.clone_from(&self.files);
        if !prompts.passage.is_empty() {
            let mut hasher = blake3::Hasher::new_derive_key("ragstone sentence encoder: what stands before passages");
            let hash = hasher.update(self.files.as_bytes()).update(prompts.passage.as_bytes()).finalize().to_hex();
            self.identity = format!("bert-{}-{}", self.dimension(), &hash[..16]);
        }
        self.prompts = prompts;
        Ok(self)
    }

    /// What is written before texts.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Elements of a vector.
    pub fn dimension(&self) -> usize {
        self.text.hidden_size()
    }

    /// The longest text that is read whole, in tokens with those that stand around it.
    pub fn max_tokens(&self) -> usize {
        self.text.max_tokens()
    }

    /// Names this model and its exact files: vectors of equal identities may be compared, others never.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The length of a text in tokens, with the two that stand around it and before it is cut at [`max_tokens`](Self::max_tokens).
    pub fn token_count(&self, text: &str) -> Result<usize> {
        self.text.token_count(text)
    }

    /// The vector of a question, its prompt before it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_query(&self, text: &str) -> Result<Vec<f32>> {
        let text = format!("{}{text}", self.prompts.query);
        Ok(self.encode(&[&text])?.pop().unwrap_or_default())
    }

    /// The vectors of passages, their prompt before each.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_passages(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        if self.prompts.passage.is_empty() {
            return self.encode(texts);
        }
        let texts: Vec<String> = texts.iter().map(|text| format!("{}{text}", self.prompts.passage)).collect();
        self.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// One vector a text, `[dimension]` f32 of length 1, in the order of `texts`. An empty text has a vector too.
    ///
    /// The bits of a vector do not depend on the other texts.
    pub fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let sequences: Vec<_> = texts.par_iter().map(|text| self.text.sequence(text)).collect::<Result<_>>()?;
        let mut vectors = Vec::with_capacity(texts.len());
        self.text.for_each(&sequences, |_, hidden| vectors.push(self.pool(hidden)));
        Ok(vectors)
    }

    fn pool(&self, hidden: &[f32]) -> Vec<f32> {
        let dimension = self.dimension();
        let mut vector = hidden[..dimension].to_vec();
        if self.pooled.how == Pooling::Mean {
            for row in hidden.chunks_exact(dimension).skip(1) {
                vector.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            let count = (hidden.len() / dimension) as f32;
            vector.iter_mut().for_each(|sum| *sum /= count);
        }
        normalize(&mut vector);
        vector
    }
}

/// To length 1; a vector of zeros stays.
fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt().max(1e-12) as f32;
    vector.iter_mut().for_each(|value| *value /= norm);
}

/// `bert-384-` and a hash over every file that decides a vector.
fn identity(folder: &TextModelFolder, pooling: Pooling, max_tokens: usize) -> Result<String> {
    let mut hasher = blake3::Hasher::new_derive_key("ragstone sentence encoder 1: mean pooling, 256 tokens");
    folder.hash_into(&mut hasher)?;
    // What is like the first that there was keeps its name.
    if (pooling, max_tokens) != (Pooling::Mean, MAX_TOKENS) {
        hasher.update(format!("{pooling:?} {max_tokens}").as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    Ok(format!("bert-{}-{}", folder.config.hidden_size, &hash[..16]))
}
