//! Benchmarks that users can run: each measures its modes in one run, interleaved, and prints medians with their spread.

pub mod ttft;
