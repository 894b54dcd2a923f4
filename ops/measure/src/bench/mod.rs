//! Benchmarks that users can run: each measures its modes in one run, interleaved, and prints medians with their spread.

mod bucket;
pub mod controller;
pub mod drafts;
pub mod ingest;
pub mod kernels;
pub mod overlap;
pub mod search;
pub mod serve;
pub mod tiers;
pub mod ttft;

use ragstone_bench::shape::QWEN_05B;
pub use ragstone_bench::{Machine, Percentiles, Shape, Spread, realtime};
