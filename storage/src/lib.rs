//! Keeps. Keys, frames, tiers, block allocation, knowledge tree, policies, lookup, load plan, catalog, corpus and the
//! simulator. Knows nothing of actors or HTTP.

pub mod block;
pub mod catalog;
pub mod cost;
pub mod entry;
pub mod fingerprint;
pub mod frame;
#[cfg(test)]
#[path = "../../tests/fuzz/driver.rs"]
mod fuzz;
pub mod key;
pub mod opaque;
pub mod policy;
pub mod prompt;
pub mod record_files;
pub mod segment;
pub mod simulate;
pub mod store;
pub mod tier;
mod tier_name;
pub mod tree;

pub use ragstone_env::error;
pub use ragstone_env::{Error, ErrorKind, Result};
