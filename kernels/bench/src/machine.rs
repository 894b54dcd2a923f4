//! Where a benchmark ran.

use ragstone_kernels::numa;
use ragstone_kernels::simd::{Path, Paths};
use serde::Serialize;

use crate::realtime::Scheduling;

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
    #[must_use]
    pub fn with_gpu(gpu: String) -> Self {
        Self { gpu: Some(gpu), ..Self::here() }
    }
}
