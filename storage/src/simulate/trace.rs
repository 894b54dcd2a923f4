//! Request traces in Mooncake's format.

use serde::Deserialize;

use super::Workload;
use crate::{Error, Result};

/// Tokens that one hash of a trace stands for.
pub const TRACE_BLOCK_TOKENS: u32 = 512;

/// A line: `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`.
#[derive(Debug, Deserialize)]
struct Line {
    input_length: u32,
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
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        read_line(&mut workload, line).map_err(|error| Error::invalid_input(format!("line {number}: {error}")))?;
    }
    if workload.requests.is_empty() {
        return Err(Error::invalid_input("the trace holds no request"));
    }
    Ok(workload)
}

fn read_line(workload: &mut Workload, line: &str) -> Result<()> {
    let line: Line = serde_json::from_str(line).map_err(|error| Error::invalid_input(error.to_string()))?;
    let blocks = line.input_length.div_ceil(TRACE_BLOCK_TOKENS) as usize;
    if line.hash_ids.len() != blocks {
        return Err(Error::invalid_input(format!(
            "{} hash_ids for an input_length of {}; one for every {TRACE_BLOCK_TOKENS} tokens, so {blocks}, are wanted",
            line.hash_ids.len(),
            line.input_length
        )));
    }
    let whole = (line.input_length.saturating_sub(1) / TRACE_BLOCK_TOKENS) as usize;
    let segments: Vec<(u64, u32)> = line.hash_ids[..whole].iter().map(|hash| (*hash, TRACE_BLOCK_TOKENS)).collect();
    workload.push(&segments, line.input_length - whole as u32 * TRACE_BLOCK_TOKENS)
}
