//! How long passages are, and from when on vectors are indexed.

use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;

/// How a corpus is built.
#[derive(Debug, Clone)]
pub struct CorpusOptions {
    /// The greatest length of a passage in tokens of the embedding model, with its title and the two special tokens. The
    /// default, 256, is the window of all-MiniLM-L6-v2: what is longer would not be in the vector.
    pub chunk_tokens: usize,
    /// How many tokens a passage may have in common with the one before it; less than half of `chunk_tokens`. The default, 0: none.
    pub chunk_overlap_tokens: usize,
    /// From how many passages a collection's vectors are indexed. Below, every search compares all of them, which is
    /// exact and takes a few milliseconds.
    pub vector_index_rows: usize,
    /// Bytes of search indexes that stay in memory, of all collections together; LanceDB's own bound is 6 GiB. The vectors of 100,000 passages
    /// are 154 MB of 384 dimensions: where the cells that searches look into do not fit, each search reads and decodes them again.
    pub index_cache_bytes: u64,
    /// Failpoints: `corpus.probe` delays a search for each cell of the vector index that it looks into.
    pub env: Env,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        let (vector_index_rows, index_cache_bytes) = (50_000, 512 << 20);
        Self { chunk_tokens: 256, chunk_overlap_tokens: 0, vector_index_rows, index_cache_bytes, env: Env::system() }
    }
}

impl CorpusOptions {
    pub(super) fn index_cache_bytes(&self) -> usize {
        usize::try_from(self.index_cache_bytes).unwrap_or(usize::MAX)
    }

    /// Refuses passages that say nothing, and an overlap of half of one.
    pub(super) fn check(&self) -> Result<()> {
        if self.chunk_tokens < 16 {
            let message = format!("passages of {} tokens say nothing: use 16 or more", self.chunk_tokens);
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if self.chunk_overlap_tokens >= self.chunk_tokens / 2 {
            let (overlap, tokens) = (self.chunk_overlap_tokens, self.chunk_tokens);
            let message = format!("an overlap of {overlap} tokens is half of a passage's {tokens} or more: use less");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok(())
    }
}
