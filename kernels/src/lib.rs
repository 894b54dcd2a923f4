//! Computes. Decoder forward on a paged KV pool, RoPE shift, KV deviation, sampling, sentence embeddings, cross-encoders.
//!
//! No async, no actors. The only I/O is reading a model's files.

#[cfg(target_endian = "big")]
compile_error!("the kernels pack pairs of numbers into little-endian words");

pub mod adapter;
pub mod aside;
pub mod backend;
pub mod background;
mod bert;
pub mod chat;
pub mod config;
pub mod cpu;
pub mod cross_encoder;
pub mod dtype;
pub mod embedding;
pub mod files;
mod folder;
pub mod forward;
pub mod generation;
pub mod gguf;
pub mod grammar;
pub mod matrix;
pub mod memory;
pub mod sampling;
pub mod tokenizer;
pub mod weights;

pub use cpu::{activation, attention, deviation, linear, measure, model, numa, pool, profile, rope, simd};
use cpu::{aligned, caches, crew, scratch};
pub use ragstone_env::error;
pub use ragstone_env::{Error, ErrorKind, Result};
