//! A question's way: [`pipeline`] is the whole of it as one readable function; the rest are its steps.
//!
//! ```text
//! pipeline: retrieve -> rerank -> assemble (question::prompt) -> plan and load (fusion) -> prefill and decode (runner, engine) -> stream
//! ```

pub(crate) mod assembler;
pub(crate) mod background;
pub mod blend;
pub(crate) mod pipeline;
pub mod reranking;
pub(crate) mod runner;
pub mod stream;
pub(crate) mod tails;
