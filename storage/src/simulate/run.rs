//! One workload through one tree.

use serde::Serialize;

use super::workload::key_of;
use super::{Request, Workload};
use crate::Result;
use crate::cost::CostGrid;
use crate::key::KvKey;
use crate::policy::PolicyKind;
use crate::prompt::plan::{PlanOptions, ReuseMode, Source, plan};
use crate::prompt::residency::{Candidate, CandidateKind, Residency, SegmentResidency};
use crate::segment::SegmentKind;
use crate::tier::Tier;
use crate::tree::{Admission, KnowledgeTree, NodeId, TierOptions, TreeOptions};
use ragstone_env::Stopwatch;

/// Requests between two reports of progress.
const REPORT_EVERY: usize = 256;

/// The sizes of the tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of the device tier; zero for none.
    pub device_bytes: u64,
    /// Bytes of the host tier.
    pub host_bytes: u64,
}

/// What to replay.
#[derive(Debug)]
pub struct Replay<'a> {
    pub workload: &'a Workload,
    pub grid: &'a CostGrid,
    pub capacity: Capacity,
    pub policy: PolicyKind,
    /// Nodes beyond which the tree forgets free ones.
    pub max_nodes: usize,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Of the prompts' tokens, those whose KV was there.
    pub token_hit_rate: f64,
    /// Of the retrieved documents (in a trace: of its blocks), those whose KV was there: RAGCache's hit rate.
    pub document_hit_rate: f64,
    /// Of the full prefills' time, what was saved.
    pub cost_hit_rate: f64,
    /// Written into the host tier: without a device tier what was computed and kept, with one the first evictions from it.
    pub bytes_stored: u64,
    /// Read from the host tier.
    pub bytes_loaded: u64,
    /// Evictions from the device tier that moved nothing, because the host tier had a copy.
    pub evictions_without_copy: u64,
    /// Nodes of the tree at the end, free ones included.
    pub nodes: usize,
    /// Match, plan, and update of tree and policies, for one request.
    pub scheduling_us_mean: f64,
    pub scheduling_us_p99: f64,
}

/// Runs the workload. `progress` is told how many requests are done.
///
/// # Errors
/// Those of [`plan`], of which a workload's prompts give none.
pub fn replay(run: &Replay<'_>, progress: &dyn Fn(usize)) -> Result<Outcome> {
    Simulation::new(run).run(progress)
}

struct Simulation<'a> {
    run: &'a Replay<'a>,
    tree: KnowledgeTree<KvKey>,
    /// The slowest tier; the device tier, if there is one, is tier 0.
    host: usize,
    sums: Sums,
    scheduling_us: Vec<f32>,
}

#[derive(Default)]
struct Sums {
    tokens: u64,
    hit_tokens: u64,
    documents: u64,
    hit_documents: u64,
    full_us: f64,
    spent_us: f64,
    bytes_stored: u64,
    bytes_loaded: u64,
    evictions_without_copy: u64,
}

/// An entry of the host tier.
fn in_host(key: KvKey) -> Candidate {
    let tier = Tier::Host;
    Candidate { kind: CandidateKind::Exact, key, tier, tiers: vec![tier], bytes: 0 }
}

impl<'a> Simulation<'a> {
    fn new(run: &'a Replay<'a>) -> Self {
        let tier = |capacity_bytes| TierOptions { capacity_bytes, policy: run.policy };
        let Capacity { device_bytes, host_bytes } = run.capacity;
        let device = (device_bytes > 0).then(|| tier(device_bytes));
        let tiers: Vec<TierOptions> = device.into_iter().chain([tier(host_bytes)]).collect();
        let host = tiers.len() - 1;
        let tree = KnowledgeTree::new(&TreeOptions { tiers, max_nodes: run.max_nodes, allow_orphans: false });
        let scheduling_us = Vec::with_capacity(run.workload.requests.len());
        Self { run, tree, host, sums: Sums::default(), scheduling_us }
    }

    fn run(mut self, progress: &dyn Fn(usize)) -> Result<Outcome> {
        for (index, request) in self.run.workload.requests.iter().enumerate() {
            let keys: Vec<KvKey> = request.path.iter().map(|node| key_of(*node)).collect();
            let begun = Stopwatch::start();
            let cached = self.schedule(request, &keys)?;
            self.scheduling_us.push(begun.elapsed().as_secs_f32() * 1e6);
            self.count(request, cached);
            if index.is_multiple_of(REPORT_EVERY) {
                progress(index);
            }
        }
        Ok(self.outcome())
    }

    /// What the service does about a request before and after its prefill. Says how many nodes of its path were cached.
    fn schedule(&mut self, request: &Request, keys: &[KvKey]) -> Result<usize> {
        let (workload, grid) = (self.run.workload, self.run.grid);
        let mut path = self.tree.match_path(keys);
        let cached = path.cached;
        let plan = plan(&self.residency(request, keys, cached), &PlanOptions::fixed(0.0, ReuseMode::ExactOnly), None)?;
        debug_assert!(plan.segments[..cached].iter().all(|segment| matches!(segment.source, Source::Load { .. })));
        let cost_per_token = grid.cost_per_token(plan.exact_tokens, plan.computed_tokens);
        path.nodes.iter().for_each(|node| self.tree.pin(*node));
        let new = path.nodes.len()..;
        for (key, node) in keys[new.clone()].iter().zip(&request.path[new]) {
            let bytes = u64::from(workload.tokens(*node)) * grid.kv_bytes_per_token();
            let node = self.tree.enter(path.nodes.last().copied(), *key, bytes);
            self.tree.pin(node);
            path.nodes.push(node);
        }
        self.tree.access(&path.nodes, cached, cost_per_token);
        for (index, node) in path.nodes.iter().enumerate() {
            if !self.keep(*node, index < cached) {
                break;
            }
        }
        path.nodes.iter().for_each(|node| self.tree.unpin(*node));
        Ok(cached)
    }

    /// Brings a node that was loaded or computed into the fastest tier. Says whether what stands behind it can follow.
    fn keep(&mut self, node: NodeId, was_cached: bool) -> bool {
        let has_device = self.host > 0;
        let bytes = self.tree.size_bytes(node);
        if was_cached && !(has_device && self.tree.is_in(node, 0)) {
            self.sums.bytes_loaded += bytes;
        }
        let evicted = match self.tree.admit(node, 0) {
            Admission::AlreadyThere => return true,
            // What is cached in the slower tier is read from there all the same.
            Admission::NoRoom | Admission::Orphan => return was_cached,
            Admission::Admitted(evicted) => evicted,
        };
        if !has_device {
            self.sums.bytes_stored += bytes;
            return true;
        }
        for eviction in evicted {
            match eviction.copy_to {
                None => self.sums.evictions_without_copy += 1,
                Some(slower) => {
                    let copied = self.tree.swap_out(eviction.node, slower).copied;
                    self.sums.bytes_stored += copied.iter().map(|node| self.tree.size_bytes(*node)).sum::<u64>();
                }
            }
        }
        true
    }

    fn residency(&self, request: &Request, keys: &[KvKey], cached: usize) -> Residency {
        let workload = self.run.workload;
        let mut segments = Vec::with_capacity(keys.len() + 1);
        for (index, key) in keys.iter().enumerate() {
            let is_root = index == 0 && workload.has_system_prompt;
            segments.push(SegmentResidency {
                kind: if is_root { SegmentKind::SystemPrompt } else { SegmentKind::Passage },
                tokens: workload.tokens(request.path[index]),
                parent: index.checked_sub(1).map(|before| keys[before]),
                chain_key: Some(*key),
                standalone_key: None,
                standalone_tier: None,
                candidates: if index < cached { vec![in_host(*key)] } else { Vec::new() },
                position: None,
                device_key: None,
            });
        }
        segments.push(SegmentResidency {
            kind: SegmentKind::Question,
            tokens: request.question_tokens,
            parent: keys.last().copied(),
            chain_key: None,
            standalone_key: None,
            standalone_tier: None,
            candidates: Vec::new(),
            position: None,
            device_key: None,
        });
        Residency { segments, ..Residency::default() }
    }

    fn count(&mut self, request: &Request, cached: usize) {
        let (workload, grid, sums) = (self.run.workload, self.run.grid, &mut self.sums);
        let prompt = workload.prompt_tokens(request);
        let hit: u32 = request.path[..cached].iter().map(|node| workload.tokens(*node)).sum();
        let not_documents = usize::from(workload.has_system_prompt);
        sums.tokens += u64::from(prompt);
        sums.hit_tokens += u64::from(hit);
        sums.documents += (request.path.len().saturating_sub(not_documents)) as u64;
        sums.hit_documents += (cached.saturating_sub(not_documents)) as u64;
        sums.full_us += grid.prefill_us(0, prompt);
        sums.spent_us += grid.prefill_us(hit, prompt - hit);
    }

    fn outcome(mut self) -> Outcome {
        let sums = &self.sums;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        self.scheduling_us.sort_by(f32::total_cmp);
        let count = self.scheduling_us.len();
        let p99 = self.scheduling_us.get((count * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
        Outcome {
            token_hit_rate: share(sums.hit_tokens, sums.tokens),
            document_hit_rate: share(sums.hit_documents, sums.documents),
            cost_hit_rate: 1.0 - sums.spent_us / sums.full_us.max(f64::MIN_POSITIVE),
            bytes_stored: sums.bytes_stored,
            bytes_loaded: sums.bytes_loaded,
            evictions_without_copy: sums.evictions_without_copy,
            nodes: self.tree.len(),
            scheduling_us_mean: self.scheduling_us.iter().map(|us| f64::from(*us)).sum::<f64>() / count.max(1) as f64,
            scheduling_us_p99: f64::from(p99),
        }
    }
}
