//! Computes. Decoder forward on a paged KV pool, RoPE shift, KV deviation, sampling, sentence embeddings.
//!
//! No async, no actors. The only I/O is reading a model folder.

#[cfg(target_endian = "big")]
compile_error!("the kernels pack pairs of numbers into little-endian words");

mod aligned;
pub mod attention;
pub mod chat;
pub mod config;
pub mod deviation;
pub mod dtype;
pub mod embedding;
pub mod error;
mod folder;
pub mod linear;
pub mod matrix;
pub mod measure;
pub mod model;
pub mod pool;
pub mod rope;
pub mod sampling;
mod scratch;
pub mod simd;
pub mod tokenizer;
pub mod weights;

pub use error::{Error, ErrorKind, Result};
