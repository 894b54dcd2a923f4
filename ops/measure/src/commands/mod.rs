//! The command line of measuring: one file a verb.

pub mod bench;
pub mod eval;
pub mod plan;
pub mod simulate;
