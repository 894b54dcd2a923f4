//! Benchmarks that users can run: each measures its modes in one run, interleaved, and prints medians with their spread.

mod bucket;
pub mod controller;
pub mod drafts;
pub mod ingest;
pub mod kernels;
pub mod model;
pub mod overlap;
pub mod realtime;
pub mod search;
pub mod serve;
mod shape;
pub mod tiers;
pub mod ttft;

use ragstone_kernels::numa;
use ragstone_kernels::simd::{Path, Paths};
use serde::Serialize;

use self::realtime::Scheduling;
use self::shape::QWEN_05B;
pub use self::shape::Shape;

/// The middle of some samples, and how far they spread.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    /// Of any number of samples; NaN of none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        let at = |index: usize| samples.get(index).copied().unwrap_or(f64::NAN);
        let middle = samples.len() / 2;
        let median =
            if samples.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.wrapping_sub(1)), at(middle)) };
        Self { median, least: at(0), greatest: at(samples.len().wrapping_sub(1)) }
    }

    /// A rate out of times: `work` by each.
    fn rate(self, work: f64) -> Self {
        Self { median: work / self.median, least: work / self.greatest, greatest: work / self.least }
    }
}

/// What half of some samples, and all but a hundredth of them, do not exceed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

impl Percentiles {
    /// Of any number of samples, by the nearest rank; NaN of none.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100);
            samples.get(rank.wrapping_sub(1)).copied().unwrap_or(f64::NAN)
        };
        Self { p50: at(50), p99: at(99) }
    }
}

/// Where a benchmark ran.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Compute threads.
    pub threads: usize,
    /// The NUMA nodes that they are divided among.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<usize>,
    /// The instruction sets in use, and those that there are, fastest first.
    pub path: String,
    pub paths: Vec<&'static str>,
    /// Whether other programs could take time from it.
    pub scheduling: Scheduling,
    /// Where the model is on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let paths = Path::available().iter().map(|path| path.name()).collect();
        let numa_nodes = numa::global().map(|team| team.threads().len());
        let (threads, path) = (rayon::current_num_threads(), Paths::in_use().to_string());
        Self { threads, numa_nodes, path, paths, scheduling: Scheduling::in_use(), gpu: None }
    }

    /// How many threads, and on how many nodes where there are several.
    pub fn threads(&self) -> String {
        let nodes = self.numa_nodes.map(|nodes| format!(" on {nodes} NUMA nodes")).unwrap_or_default();
        format!("{} threads{nodes}", self.threads)
    }

    /// This one, where a GPU computes.
    fn with_gpu(gpu: String) -> Self {
        Self { gpu: Some(gpu), ..Self::here() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.least, odd.greatest), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(Spread::of([]).median.is_nan());
        assert_eq!(odd.rate(6.0).greatest, 6.0);
    }

    #[test]
    fn percentiles_are_samples() {
        let of = |samples: Vec<f64>| {
            let of = Percentiles::of(samples);
            (of.p50, of.p99)
        };
        assert_eq!(of((1..=200).rev().map(f64::from).collect()), (100.0, 198.0));
        assert_eq!(of(vec![3.0, 1.0, 2.0]), (2.0, 3.0));
        assert!(Percentiles::of(Vec::new()).p99.is_nan());
    }
}
