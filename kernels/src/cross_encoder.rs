//! Cross-encoders: how well a text answers a query, by a model that reads both at once ("Passage Re-ranking with BERT", section 3.2).

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::bert::{Config, Family, HeadLoader, Role, TextEncoder, TextModelFolder};
use crate::error::{Error, Result};
use crate::linear::{Input, Linear, Output, Precision};

const ROLE: Role = Role {
    name: "cross-encoder",
    instead: "take cross-encoder/ms-marco-MiniLM-L6-v2, BAAI/bge-reranker-base or another BERT with one label",
};

/// The longest pair that is read, in tokens with those that stand around it, also by models that could read more: one pair holds the
/// processors until it is computed.
pub const MAX_TOKENS: usize = 512;

/// Reads a query and a text together, and says how well the text answers it.
pub struct CrossEncoder {
    text: TextEncoder,
    head: Head,
}

/// What became of pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// One logit a text, in their order: the greater, the better it answers. `1 / (1 + e^-logit)` lies between 0 and 1.
    pub logits: Vec<f32>,
    /// Tokens of all pairs.
    pub tokens: usize,
}

impl std::fmt::Debug for CrossEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrossEncoder").field("hidden", &self.text.hidden_size()).finish_non_exhaustive()
    }
}

impl CrossEncoder {
    /// Loads `model.safetensors`, `tokenizer.json` and `config.json` of a folder: `BertForSequenceClassification`, or RoBERTa's or
    /// XLM-RoBERTa's, with one label.
    ///
    /// # Errors
    /// `InvalidModel` for missing, truncated or mismatched files, `UnsupportedModel` for another kind of model.
    pub fn load(folder: &Path) -> Result<Self> {
        let folder = TextModelFolder::open(folder, ROLE, None)?;
        // Where none are named, transformers has two.
        let labels = folder.config.labels().unwrap_or(2);
        if labels != 1 {
            let message =
                format!("{} tells {labels} labels apart and not one; {}", folder.path().display(), ROLE.instead);
            return Err(Error::unsupported(message));
        }
        let text = TextEncoder::load(&folder, MAX_TOKENS, Precision::F32)?;
        let head = Head::load(&HeadLoader::new(&folder), &folder.config)?;
        let encoder = Self { text, head };
        // What would fail for every pair is told now.
        encoder.text.pairs("", &[""])?;
        Ok(encoder)
    }

    /// How well each of `texts` answers `query`. What is longer than [`MAX_TOKENS`], or than the model has positions for, is cut at the
    /// end of the longer one of the two.
    ///
    /// The bits of a score do not depend on the other texts.
    pub fn scores(&self, query: &str, texts: &[&str]) -> Result<Scores> {
        let pairs = self.text.pairs(query, texts)?;
        let mut first = Vec::with_capacity(texts.len() * self.text.hidden_size());
        self.text.for_each(&pairs, |_, hidden| first.extend_from_slice(&hidden[..self.text.hidden_size()]));
        let tokens = pairs.iter().map(|pair| pair.ids.len()).sum();
        Ok(Scores { logits: self.head.logits(&first, texts.len()), tokens })
    }
}

/// `w · tanh(W h + b) + c` of a pair's first hidden state `h`: BERT's pooler and classifier, or what RoBERTa has as one head.
struct Head {
    /// `[hidden, hidden]`.
    dense: Linear,
    /// `[1, hidden]`.
    output: Linear,
}

impl Head {
    fn load(loader: &HeadLoader<'_>, config: &Config) -> Result<Self> {
        let square = [config.hidden_size, config.hidden_size];
        let row = [1, config.hidden_size];
        let (dense, output) = match config.family() {
            Family::Bert => (loader.of_body("pooler.dense", square)?, loader.of_head("classifier", row)?),
            Family::Roberta => {
                (loader.of_head("classifier.dense", square)?, loader.of_head("classifier.out_proj", row)?)
            }
        };
        Ok(Self { dense, output })
    }

    /// `first` is `[rows, hidden]`.
    fn logits(&self, first: &[f32], rows: usize) -> Vec<f32> {
        let mut pooled = vec![0.0; first.len()];
        let mut logits = vec![0.0; rows];
        if rows > 0 {
            self.dense.forward(Input::f32(first, rows), Output::Store(&mut pooled));
            pooled.iter_mut().for_each(|value| *value = value.tanh());
            self.output.forward(Input::f32(&pooled, rows), Output::Store(&mut logits));
        }
        logits
    }
}
