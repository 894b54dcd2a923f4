//! Gives the corpus what it needs of the models.

use std::sync::Arc;

use ragstone_corpus::{PassageEncoder, Unrelated};
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_kernels::{aside, background};
use ragstone_storage::Result;

use crate::measured::Measured;
use crate::prompt::PromptFormat;

/// The embedding model, and the language model's tokenizer with the passage's form in a prompt.
pub struct ModelEncoder {
    sentence: Arc<SentenceEncoder>,
    tokenizer: Arc<Tokenizer>,
    tokenizer_identity: String,
    format: PromptFormat,
    unrelated: Arc<Measured>,
}

impl ModelEncoder {
    /// `tokenizer_digest` names the tokenizer; the passage's form is added to it, as it decides the ids too.
    pub fn new(
        sentence: Arc<SentenceEncoder>,
        tokenizer: Arc<Tokenizer>,
        tokenizer_digest: &str,
        format: PromptFormat,
    ) -> Self {
        let tokenizer_identity = format!("{tokenizer_digest}/{}", format.passage);
        let unrelated = Arc::new(Measured::known(sentence.identity()));
        Self { sentence, tokenizer, tokenizer_identity, format, unrelated }
    }

    /// What is known, and may become known, of how alike unrelated texts are to the embedding model.
    pub(crate) fn measured(&self) -> &Arc<Measured> {
        &self.unrelated
    }
}

impl PassageEncoder for ModelEncoder {
    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        // Questions are waited for, and an upload may take hours.
        background::run(|| self.sentence.encode_passages(&texts))
    }

    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        // Beside what the engine computes, not behind it.
        aside::run(|| self.sentence.encode_query(text))
    }

    fn dimension(&self) -> usize {
        self.sentence.dimension()
    }

    fn identity(&self) -> String {
        self.sentence.identity().to_owned()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>> {
        self.tokenizer.encode_text(&self.format.render_passage(title, text))
    }

    fn tokenizer_identity(&self) -> String {
        self.tokenizer_identity.clone()
    }

    fn count_tokens(&self, text: &str) -> usize {
        // The two special tokens stand once in a passage, not once in each of its sentences. A text that cannot be tokenized
        // is cut by its bytes, of which it has at least as many as tokens.
        self.sentence.token_count(text).map_or(text.len(), |count| count.saturating_sub(2))
    }

    fn unrelated(&self) -> Option<Arc<Unrelated>> {
        self.unrelated.get()
    }
}
