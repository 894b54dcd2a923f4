//! Request traces in Mooncake's format.

use serde::Deserialize;

use super::Workload;
use crate::{Error, Result};

/// Tokens that one hash of a trace stands for.
pub const TRACE_BLOCK_TOKENS: u32 = 512;

/// A line: `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    /// Milliseconds since the trace began.
    #[serde(default)]
    pub timestamp: f64,
    input_length: u32,
    #[serde(default)]
    pub output_length: u32,
    hash_ids: Vec<u64>,
}

/// Reads a trace: one JSON object a line, a hash for every [`TRACE_BLOCK_TOKENS`] of the prompt, the last one perhaps for
/// fewer. Empty lines are passed over.
///
/// A prompt's last block is its question: somebody has to compute its last token. So a full last block is computed anew
/// by its own request, and can be reused by a longer prompt that goes on behind it only from then on.
///
/// # Errors
/// `InvalidInput` with the number of the first line that is not of that form, and if there is no request.
pub fn read_trace(text: &str) -> Result<Workload> {
    let mut workload = Workload::of_text();
    each_line(text, |line| {
        let (segments, question_tokens) = line.segments()?;
        workload.push(&segments, question_tokens)
    })?;
    Ok(workload)
}

/// Each request of a trace.
///
/// # Errors
/// As [`read_trace`].
pub(super) fn each_line(text: &str, mut take: impl FnMut(&Line) -> Result<()>) -> Result<()> {
    let mut is_empty = true;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let line = serde_json::from_str::<Line>(line).map_err(|error| Error::invalid_input(error.to_string()));
        line.and_then(|line| take(&line)).map_err(|error| Error::invalid_input(format!("line {number}: {error}")))?;
        is_empty = false;
    }
    if is_empty { Err(Error::invalid_input("the trace holds no request")) } else { Ok(()) }
}

impl Line {
    /// Its blocks before the question, and the question's tokens.
    pub fn segments(&self) -> Result<(Vec<(u64, u32)>, u32)> {
        let blocks = self.input_length.div_ceil(TRACE_BLOCK_TOKENS) as usize;
        if self.hash_ids.len() != blocks {
            return Err(Error::invalid_input(format!(
                "{} hash_ids for an input_length of {}; one for every {TRACE_BLOCK_TOKENS} tokens, so {blocks}, are wanted",
                self.hash_ids.len(),
                self.input_length
            )));
        }
        let whole = (self.input_length.saturating_sub(1) / TRACE_BLOCK_TOKENS) as usize;
        let segments = self.hash_ids[..whole].iter().map(|hash| (*hash, TRACE_BLOCK_TOKENS)).collect();
        Ok((segments, self.input_length - whole as u32 * TRACE_BLOCK_TOKENS))
    }
}
