//! Gives the corpus what it needs of the models.

use std::sync::Arc;

use ragstone_corpus::{PassageEncoder, Unrelated};
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_kernels::{aside, background};
use ragstone_storage::Result;

use crate::models::measured::Measured;
use crate::question::prompt::PromptFormat;

/// The embedding model, and the language model's tokenizer with the passage's form in a prompt.
pub struct ModelEncoder {
    sentence: Arc<SentenceEncoder>,
    tokenizer: Arc<Tokenizer>,
    tokenizer_identity: String,
    format: PromptFormat,
    unrelated: Arc<Measured>,
}

impl ModelEncoder {
    /// `tokenizer_digest` names the tokenizer; the passage's form is added to it, and the marks of turns that the tokenizer was told of, as they
    /// decide the ids too.
    pub fn new(
        sentence: Arc<SentenceEncoder>,
        tokenizer: Arc<Tokenizer>,
        tokenizer_digest: &str,
        format: PromptFormat,
    ) -> Self {
        let tokenizer_identity = tokenizer_identity(tokenizer_digest, &format.passage, tokenizer.marks());
        let unrelated = Arc::new(Measured::known(sentence.identity()));
        Self { sentence, tokenizer, tokenizer_identity, format, unrelated }
    }

    /// What is known, and may become known, of how alike unrelated texts are to the embedding model.
    pub(crate) fn measured(&self) -> &Arc<Measured> {
        &self.unrelated
    }
}

/// Most tokenizers call every mark special, so that there are none beside: they keep the name that they had.
fn tokenizer_identity(digest: &str, passage: &str, marks: &[String]) -> String {
    let mut identity = format!("{digest}/{passage}");
    if !marks.is_empty() {
        identity.push_str(&format!("/{marks:?}"));
    }
    identity
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_are_not_special_are_of_the_tokenizers_name() {
        assert_eq!(tokenizer_identity("a", "{text}", &[]), "a/{text}");
        assert_eq!(tokenizer_identity("a", "{text}", &["<|im_start|>".to_owned()]), "a/{text}/[\"<|im_start|>\"]");
    }
}
