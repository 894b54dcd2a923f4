//! Sentence embeddings for callers: a few texts at a time, so that a request of many stops at its deadline, lets others in
//! between, and keeps no more threads than it should.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ragstone_kernels::embedding::SentenceEncoder;
use tokio::time::{Instant, timeout_at};

use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::deadline::{deadline_after, deadline_error};
use crate::admission::turns::{Places, Turns};
use crate::error::{Error, ErrorKind, Result};

/// Texts of one request, as many as OpenAI takes.
const MAX_TEXTS: usize = 2048;
/// Bytes of one text: OpenAI's 8192 tokens, long ones. The model reads the first 512 at most.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Bytes of all texts of a request: OpenAI's 300,000 tokens, long ones.
const MAX_BYTES: usize = 2 << 20;
/// Texts that are computed together, in one turn: the processors are nobody else's for so long.
const BATCH_TEXTS: usize = 32;
/// Bytes of them, of each as many as the model reads at most: about as many tokens as are computed together.
const BATCH_BYTES: usize = 2 << 10;

/// Vectors of a request's texts.
#[derive(Debug)]
pub struct Embedded {
    /// One unit vector a text.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of the texts in the embedding model's vocabulary.
    pub tokens: usize,
}

/// The embedding model behind its bounds.
pub(crate) struct Embedder {
    encoder: Arc<SentenceEncoder>,
    /// Requests that wait or run.
    admission: Places,
    processors: Turns,
}

impl Embedder {
    pub(crate) fn new(encoder: Arc<SentenceEncoder>, max_queued: usize, processors: Turns) -> Self {
        Self { encoder, admission: Places::new("embedding", max_queued), processors }
    }

    pub(crate) fn encoder(&self) -> &Arc<SentenceEncoder> {
        &self.encoder
    }

    /// Embeds `texts`, within `deadline`.
    ///
    /// # Errors
    /// `InvalidInput` for no texts, empty ones, or more than the bounds; `Overloaded` where too many requests wait;
    /// `DeadlineExceeded`.
    pub(crate) async fn embed(&self, texts: Vec<String>, caller: Caller, deadline: Duration) -> Result<Embedded> {
        check(&texts)?;
        let _place = self.admission.take(caller)?;
        let deadline = deadline_after(deadline);
        let mut embedded = Embedded { vectors: Vec::with_capacity(texts.len()), tokens: 0 };
        let texts: Arc<[String]> = texts.into();
        while embedded.vectors.len() < texts.len() {
            let begin = embedded.vectors.len();
            let end = begin + together(&texts[begin..]);
            let batch = self.batch(texts.clone(), begin..end, caller, deadline).await?;
            embedded.vectors.extend(batch.vectors);
            embedded.tokens = embedded.tokens.saturating_add(batch.tokens);
        }
        Ok(embedded)
    }

    async fn batch(
        &self,
        texts: Arc<[String]>,
        batch: Range<usize>,
        caller: Caller,
        deadline: Instant,
    ) -> Result<Embedded> {
        let turn = timeout_at(deadline, self.processors.take(caller)).await.map_err(|_| deadline_error())?;
        let encoder = self.encoder.clone();
        let work = blocking(move || {
            // Held by the work and not by who waits for it: a caller that goes away frees no turn that is still in use.
            let _turn = turn;
            let texts: Vec<&str> = texts[batch].iter().map(String::as_str).collect();
            let counts = texts.iter().map(|text| encoder.token_count(text));
            let tokens = counts.sum::<Result<usize, _>>()?;
            Ok(Embedded { vectors: encoder.encode(&texts)?, tokens })
        });
        timeout_at(deadline, work).await.unwrap_or_else(|_| Err(deadline_error()))
    }
}

/// How many of `texts` are the next batch; one at least.
fn together(texts: &[String]) -> usize {
    // A model reads 512 tokens at most, and a word is longer than a byte: what is longer costs no more.
    let most = BATCH_BYTES / 2;
    let mut bytes = 0;
    let fitting = texts.iter().take(BATCH_TEXTS).take_while(|text| {
        bytes += text.len().min(most);
        bytes <= BATCH_BYTES
    });
    fitting.count().max(1)
}

fn check(texts: &[String]) -> Result<()> {
    let refused = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        return refused(format!("`input` holds {} texts; send 1 to {MAX_TEXTS}", texts.len()));
    }
    if let Some(index) = texts.iter().position(String::is_empty) {
        return refused(format!("text {index} of `input` is empty"));
    }
    if let Some((index, text)) = texts.iter().enumerate().find(|(_, text)| text.len() > MAX_TEXT_BYTES) {
        let bytes = text.len();
        return refused(format!("text {index} of `input` has {bytes} bytes; use at most {MAX_TEXT_BYTES}"));
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    if bytes > MAX_BYTES {
        return refused(format!("`input` has {bytes} bytes; send at most {MAX_BYTES} in a request"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_few_in_a_batch_and_short_ones_many() {
        let texts = |bytes: usize, count| vec!["a".repeat(bytes); count];
        for (texts, expected) in [
            (texts(10, 100), 32),
            (texts(100, 100), 20),
            (texts(100, 3), 3),
            (texts(1000, 5), 2),
            (texts(60_000, 5), 2),
        ] {
            assert_eq!(together(&texts), expected, "{} bytes", texts[0].len());
        }
    }

    #[test]
    fn what_is_too_much_is_told() {
        let long = "a".repeat(MAX_TEXT_BYTES);
        check(&vec![long.clone(); MAX_BYTES / MAX_TEXT_BYTES]).unwrap();
        check(&vec!["a".to_owned(); MAX_TEXTS]).unwrap();
        for (texts, words) in [
            (vec![], "0 texts"),
            (vec!["a".to_owned(); MAX_TEXTS + 1], "2049 texts"),
            (vec!["a".to_owned(), String::new()], "text 1"),
            (vec![format!("{long}a")], "65537 bytes"),
            (vec![long; MAX_BYTES / MAX_TEXT_BYTES + 1], "2162688 bytes"),
        ] {
            let error = check(&texts).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
