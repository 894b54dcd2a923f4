//! Reranking: how well passages answer a query, as something says that reads both together. A cross-encoder does, a few pairs at a time,
//! or the language model, asked after each passage (`pipeline/rerank.rs`).

use std::sync::Arc;
use std::time::Duration;

use ragstone_kernels::cross_encoder::{CrossEncoder, Scores};
use tokio::time::{Instant, timeout_at};

use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_error;
use crate::admission::turns::Turns;
use crate::error::{Error, ErrorKind, Result};
use crate::question::{InlineDocument, Reuse};
use crate::report::RerankedBy;
use crate::retrieval::MAX_QUERY_BYTES;

/// Documents of one request, as many as Cohere takes.
pub const MAX_DOCUMENTS: usize = 1000;
/// Bytes of one of them with its title.
const MAX_DOCUMENT_BYTES: usize = 64 << 10;
/// Bytes of all of them.
const MAX_BYTES: usize = 2 << 20;
/// Pairs that are computed together: some 1,000 tokens of passages.
const BATCH: usize = 4;

/// Documents to be put in order.
#[derive(Debug, Clone)]
pub struct Rerank {
    /// What they are to answer.
    pub query: String,
    /// 1 to [`MAX_DOCUMENTS`].
    pub documents: Vec<InlineDocument>,
    /// Who is to do it; `None`: the cross-encoder where there is one, else the language model.
    pub by: Option<RerankedBy>,
    /// Which stored KV may serve the language model: none where it is `Off`, else what is exact.
    pub reuse: Reuse,
    /// Whose KV.
    pub tenant: String,
    /// Who asks.
    pub caller: Caller,
    /// How long it may take.
    pub deadline: Duration,
}

impl Rerank {
    /// # Errors
    /// `InvalidInput` for an empty query, no documents, empty ones, or more than the bounds.
    pub(crate) fn check(&self) -> Result<()> {
        let refused = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        let (query, count) = (&self.query, self.documents.len());
        if query.trim().is_empty() {
            return refused("`query` is empty; say what the documents are to answer".to_owned());
        }
        if query.len() > MAX_QUERY_BYTES {
            return refused(format!("`query` has {} bytes; use at most {MAX_QUERY_BYTES}", query.len()));
        }
        if !(1..=MAX_DOCUMENTS).contains(&count) {
            return refused(format!("`documents` holds {count}; send 1 to {MAX_DOCUMENTS}"));
        }
        let mut bytes = 0;
        for (index, InlineDocument { title, text }) in self.documents.iter().enumerate() {
            if text.is_empty() {
                return refused(format!("document {index} of `documents` is empty"));
            }
            let own = title.len() + text.len();
            if own > MAX_DOCUMENT_BYTES {
                return refused(format!(
                    "document {index} of `documents` has {own} bytes; use at most {MAX_DOCUMENT_BYTES}"
                ));
            }
            bytes += own;
        }
        if bytes > MAX_BYTES {
            return refused(format!("`documents` has {bytes} bytes; send at most {MAX_BYTES} in a request"));
        }
        Ok(())
    }
}

/// How well documents answer a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Reranked {
    /// Who says so.
    pub by: RerankedBy,
    /// One a document, in their order: the logarithm of the odds that it answers the query, as far as that is what the reranker was
    /// trained for. The greater, the better.
    pub logits: Vec<f32>,
    /// Tokens that were read.
    pub prompt_tokens: u32,
    /// Of those, what was stored bit for bit or on the device already; none of a cross-encoder's.
    pub cached_tokens: u32,
}

impl Reranked {
    /// The documents' places, best first; equal ones in the order that they came in.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.logits.len()).collect();
        order.sort_by(|a, b| self.logits[*b].total_cmp(&self.logits[*a]));
        order
    }

    /// A document's score, between 0 and 1.
    pub fn relevance(&self, index: usize) -> f32 {
        1.0 / (1.0 + (-self.logits[index]).exp())
    }
}

/// A text as the embedding model sees it, too.
pub(crate) fn titled(title: &str, text: &str) -> String {
    if title.is_empty() { text.to_owned() } else { format!("{title}\n\n{text}") }
}

/// A cross-encoder, which takes turns at the processors.
pub(crate) struct CrossReranker {
    encoder: Arc<CrossEncoder>,
    processors: Turns,
}

impl CrossReranker {
    pub(crate) fn new(encoder: Arc<CrossEncoder>, processors: Turns) -> Self {
        Self { encoder, processors }
    }

    /// How well each of `texts` answers `query`.
    ///
    /// # Errors
    /// `DeadlineExceeded`.
    pub(crate) async fn scores(
        &self,
        query: &str,
        texts: Vec<String>,
        caller: Caller,
        deadline: Instant,
    ) -> Result<Reranked> {
        let (query, texts): (Arc<str>, Arc<[String]>) = (query.into(), texts.into());
        let mut scored = Scores { logits: Vec::with_capacity(texts.len()), tokens: 0 };
        for begin in (0..texts.len()).step_by(BATCH) {
            let turn = timeout_at(deadline, self.processors.take(caller)).await.map_err(|_| deadline_error())?;
            let (encoder, query, texts) = (self.encoder.clone(), query.clone(), texts.clone());
            let work = blocking(move || {
                // Held by the work and not by who waits for it, as embeddings are.
                let _turn = turn;
                let texts: Vec<&str> = texts[begin..].iter().take(BATCH).map(String::as_str).collect();
                encoder.scores(&query, &texts)
            });
            let batch = timeout_at(deadline, work).await.unwrap_or_else(|_| Err(deadline_error()))?;
            // Weights may hold anything; what is no number answers nothing.
            scored
                .logits
                .extend(batch.logits.iter().map(|logit| if logit.is_nan() { f32::NEG_INFINITY } else { *logit }));
            scored.tokens += batch.tokens;
        }
        let prompt_tokens = u32::try_from(scored.tokens).unwrap_or(u32::MAX);
        Ok(Reranked { by: RerankedBy::CrossEncoder, logits: scored.logits, prompt_tokens, cached_tokens: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str, texts: &[String]) -> Rerank {
        let document = |text: &String| InlineDocument { title: String::new(), text: text.clone() };
        Rerank {
            query: query.into(),
            documents: texts.iter().map(document).collect(),
            by: None,
            reuse: Reuse::Auto,
            tenant: String::new(),
            caller: Caller::default(),
            deadline: Duration::from_secs(1),
        }
    }

    #[test]
    fn what_is_too_much_is_told() {
        let (long, text) = ("a".repeat(MAX_DOCUMENT_BYTES), "a".to_owned());
        asked("?", &vec![long.clone(); MAX_BYTES / MAX_DOCUMENT_BYTES]).check().unwrap();
        asked("?", &vec![text.clone(); MAX_DOCUMENTS]).check().unwrap();
        for (query, texts, words) in [
            ("?", vec![], "holds 0"),
            (" ", vec![text.clone()], "`query` is empty"),
            (&*"?".repeat(MAX_QUERY_BYTES + 1), vec![text.clone()], "8193 bytes"),
            ("?", vec![text.clone(); MAX_DOCUMENTS + 1], "holds 1001"),
            ("?", vec![text, String::new()], "document 1"),
            ("?", vec![format!("{long}a")], "65537 bytes"),
            ("?", vec![long; MAX_BYTES / MAX_DOCUMENT_BYTES + 1], "2162688 bytes"),
        ] {
            let error = asked(query, &texts).check().unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn the_best_come_first_and_equal_ones_as_they_came() {
        let logits = vec![0.0, f32::NEG_INFINITY, 2.0, 0.0, -1.0, f32::INFINITY];
        let scored = Reranked { by: RerankedBy::Model, logits, prompt_tokens: 0, cached_tokens: 0 };
        assert_eq!(scored.order(), [5, 2, 0, 3, 4, 1]);
        assert_eq!([5, 0, 1].map(|index| scored.relevance(index)), [1.0, 0.5, 0.0]);
    }
}
