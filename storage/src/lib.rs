//! Keeps. Keys, frames, tiers, block allocation, lookup, load plan, catalog and corpus. Knows nothing of actors or HTTP.

pub mod block;
pub mod catalog;
pub mod corpus;
pub mod entry;
pub mod env;
pub mod error;
pub mod fingerprint;
pub mod frame;
pub mod key;
pub mod plan;
pub mod residency;
pub mod store;
pub mod tier;

pub use error::{Error, ErrorKind, Result};
