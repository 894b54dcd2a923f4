//! What is simulated: nodes, a router, a bucket and what goes wrong.

use serde::Serialize;

use super::Routing;
use crate::cost::CostModel;
use crate::policy::PolicyKind;
use crate::prompt::plan::PlanOptions;
use crate::simulate::ServiceTiers;
use crate::simulate::reuse_options;
use crate::simulate::service::NodeOptions;
use crate::store::AdmissionRule;
use crate::{Error, Result};

/// Nodes that can be simulated.
pub const MOST_NODES: usize = 4096;

/// Nodes that are alike, and what they share.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// How many, those that join later among them.
    pub nodes: usize,
    /// How questions find their node.
    pub routing: Routing,
    /// Each node's tiers.
    pub tiers: ServiceTiers,
    /// Who leaves device, host and disk first.
    pub policy: PolicyKind,
    /// What the disk and the bucket keep, and whether slow loads are declined.
    pub admission: AdmissionRule,
    /// The least recompute ratio of blended passages, and the layer that chooses; `None`: nothing is blended.
    pub blend: Option<(f32, u32)>,
    /// Tokens of the primer that standalone entries are computed behind.
    pub primer_tokens: u32,
    /// What prefills and reads take on a node; reads from the bucket are learned from then on, as nodes do.
    pub costs: CostModel,
    /// Answers that a node decodes at once.
    pub most_answers: usize,
    /// Questions that may wait at a node; one more is refused, and asked again elsewhere.
    pub most_waiting: usize,
    /// The bucket.
    pub bucket: Bucket,
    /// The corpus.
    pub corpus: Corpus,
    /// What goes wrong.
    pub faults: Faults,
    /// What is drawn by it: latencies, random routing, failures.
    pub seed: u64,
}

/// What the bucket gives all nodes together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bucket {
    /// Bytes a second of all transfers together.
    pub bytes_per_s: f64,
    /// The spread of a request's latency: the standard deviation of its logarithm. The median is that of a read's request.
    pub tail: f64,
    /// A listing, and a small put, in milliseconds.
    pub list_ms: f64,
    pub put_ms: f64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { bytes_per_s: 12.5e9, tail: 0.5, list_ms: 50.0, put_ms: 40.0 }
    }
}

/// How nodes share their corpus: `storage/corpus/src/bucket.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Corpus {
    /// How often a node looks what others removed, and commits at most: `corpus_interval_ms`.
    pub interval_ms: f64,
    /// What one commit takes from its look at the newest version to its conditional put.
    pub commit_ms: f64,
    /// How often the table of a collection that was changed is optimised, and what that takes.
    pub optimise_every_s: f64,
    pub optimise_ms: f64,
}

impl Default for Corpus {
    /// One add takes 150 ms by itself (LanceDB on S3, as it was measured beside moto).
    fn default() -> Self {
        Self { interval_ms: 1000.0, commit_ms: 150.0, optimise_every_s: 60.0, optimise_ms: 2000.0 }
    }
}

/// What goes wrong. Times are in seconds since the first question could come.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Faults {
    /// Failures of a node in a day, at any time.
    pub failures_a_day: f64,
    /// After a failure a node is back after so long.
    pub restart_s: f64,
    /// Whether it has its disk then: a process that was killed, not a machine that is gone.
    pub keeps_disk: bool,
    /// Nodes that fail at a time.
    pub fails: Vec<(usize, f64)>,
    /// Nodes that are not there from the start, and join at a time.
    pub joins: Vec<(usize, f64)>,
    /// From when to when the bucket does not answer.
    pub outages: Vec<(f64, f64)>,
}

impl Fleet {
    /// # Errors
    /// `InvalidInput` that names what cannot be.
    pub(super) fn check(&self) -> Result<()> {
        let is_time = |at: f64| (0.0..=1e9).contains(&at);
        let faults = &self.faults;
        let all = faults.fails.iter().chain(&faults.joins);
        let checks = [
            ((1..=MOST_NODES).contains(&self.nodes), "between 1 and 4096 nodes can be simulated"),
            (
                self.bucket.bytes_per_s > 0.0 && self.bucket.bytes_per_s <= 1e15,
                "the bucket's bytes a second must lie above 0",
            ),
            ((0.0..=3.0).contains(&self.bucket.tail), "the spread of the bucket's latency must lie between 0 and 3"),
            (
                is_time(self.bucket.list_ms) && is_time(self.bucket.put_ms) && is_time(self.corpus.optimise_ms),
                "times must be 0 or more",
            ),
            (
                self.corpus.interval_ms >= 1.0 && self.corpus.commit_ms > 0.0 && self.corpus.optimise_every_s >= 1.0,
                "the corpus's interval and its commits must take a millisecond at least, and it is optimised once a second at most",
            ),
            ((1..=4096).contains(&self.most_answers), "a node decodes between 1 and 4096 answers at once"),
            (self.most_waiting > 0, "one question must be allowed to wait"),
            (is_time(faults.restart_s) && (0.0..=1e5).contains(&faults.failures_a_day), "failures must be 0 or more"),
            (
                all.clone().all(|(node, at)| *node < self.nodes && is_time(*at)),
                "a node that fails or joins must be one of the nodes, counted from 0",
            ),
            (
                faults.outages.iter().all(|(from, to)| is_time(*from) && is_time(*to) && from < to),
                "an outage must end behind its begin",
            ),
            (
                self.routing != Routing::KvAware || self.tiers.host_bytes > 0,
                "kv-aware routing follows what is in host memory: give the nodes some",
            ),
        ];
        match checks.iter().find(|(is_right, _)| !is_right) {
            Some((_, why)) => Err(Error::invalid_input(*why)),
            None => Ok(()),
        }
    }

    pub(super) fn node_options(&self) -> NodeOptions {
        let options: PlanOptions = reuse_options(self.blend);
        NodeOptions { admission: self.admission, options, primer_tokens: self.primer_tokens }
    }
}
