//! Tests of the crate's public surface, in one binary.

mod adapters;
mod answers;
mod fixtures;
mod forward;
mod fuzz;
mod gguf;
mod loading;
mod parity;
