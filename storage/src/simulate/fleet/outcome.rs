//! What came of a simulation: hit rates by tier, times, rates, what was refused, and what limits it.

use serde::Serialize;

use super::Routing;
use super::kit::{Computes, Kit, Shares};
use super::run::{Node, Run, Transfer};
use crate::prompt::plan::{LoadPlan, Source};
use crate::tier::Tier;

/// How a question ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// No node took it, or none in three tries.
    Refused,
    /// Its node failed behind the first token.
    BrokenOff,
}

/// A question's part in the report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Answered {
    /// Tokens that were in device, host, disk and bucket, blended, and computed.
    pub in_tiers: [u32; 4],
    pub blended: u32,
    pub computed: u32,
    pub prompt: u32,
    pub bucket_entries: u64,
    pub ttft_us: f64,
    pub end_us: f64,
}

impl Answered {
    pub fn of(plan: &LoadPlan) -> Self {
        let mut answered = Self { prompt: plan.total_tokens, ..Self::default() };
        for segment in &plan.segments {
            let tokens = segment.range.len() as u32;
            answered.bucket_entries += u64::from(segment.source.tier() == Some(Tier::Object));
            match segment.source {
                Source::Load { tier, .. } => answered.in_tiers[at(tier)] += tokens,
                Source::Blend { .. } => answered.blended += tokens,
                Source::Compute => answered.computed += tokens,
            }
        }
        answered
    }
}

fn at(tier: Tier) -> usize {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::Object => 3,
    }
}

/// The time that rates are of: from the first question that is reported to the last one that comes.
#[derive(Debug, Default)]
pub(super) struct Window {
    opened: Option<Snapshot>,
    closed: Option<Snapshot>,
}

#[derive(Debug, Clone, Default)]
struct Snapshot {
    at_us: f64,
    busy_us: Vec<(f64, f64)>,
    passed: f64,
}

impl Window {
    pub fn open<K: Kit>(&mut self, now_us: f64, nodes: &mut [Node<K>], link: &mut K::Link<Transfer>) {
        self.opened = Some(Snapshot::of::<K>(now_us, nodes, link));
    }

    /// The first time counts.
    pub fn close<K: Kit>(&mut self, now_us: f64, nodes: &mut [Node<K>], link: &mut K::Link<Transfer>) {
        if self.closed.is_none() {
            self.closed = Some(Snapshot::of::<K>(now_us, nodes, link));
        }
    }
}

impl Snapshot {
    fn of<K: Kit>(now_us: f64, nodes: &mut [Node<K>], link: &mut K::Link<Transfer>) -> Self {
        let busy_us = nodes.iter_mut().map(|node| node.engine.busy_us(now_us)).collect();
        Self { at_us: now_us, busy_us, passed: link.passed(now_us) }
    }
}

/// What came of it. Shares are 0 to 1; questions of the warm-up are not in it, unless it says so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub nodes: usize,
    pub routing: Routing,
    /// Questions that came, and what became of them.
    pub questions: usize,
    pub answered: usize,
    pub refused: usize,
    pub broken_off: usize,
    /// Times that a question was asked again of another node, of the warm-up, too.
    pub retried: u64,
    /// Questions a second that came, and that were answered in that time.
    pub asked_per_s: f64,
    pub answered_per_s: f64,
    /// Of the prompts' tokens, those whose KV was there as it is, by where it was.
    pub hit: Hits,
    /// Time to first token: median, 99th percentile and mean, in milliseconds.
    pub ttft_ms_p50: f64,
    pub ttft_ms_p99: f64,
    pub ttft_ms_mean: f64,
    /// Of the time, what the engines computed for questions: in the mean, and of the node that computed most; and beside, in the mean.
    pub engine: f64,
    pub engine_most: f64,
    pub engine_beside: f64,
    /// Of the bucket's bandwidth, what passed.
    pub bucket_band: f64,
    /// Bytes in the bucket at the end, and requests to it, by kind, a second, the warm-up's among them.
    pub bucket_bytes: u64,
    pub gets_per_s: f64,
    pub puts_per_s: f64,
    pub lists_per_s: f64,
    /// Bytes in host memory and on disk at the end, of all nodes.
    pub host_bytes: u64,
    pub disk_bytes: u64,
    /// What became of changes of the corpus.
    pub changes: Changes,
    /// What limits it, in words.
    pub limit: String,
}

/// Where KV was, as shares of the prompts' tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Hits {
    pub device: f64,
    pub host: f64,
    pub disk: f64,
    pub object: f64,
    /// Of blended passages, those that are recomputed among them.
    pub blended: f64,
    pub computed: f64,
}

impl Hits {
    /// What was there as it is.
    pub fn exact(&self) -> f64 {
        self.device + self.host + self.disk + self.object
    }
}

/// What became of changes of the corpus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Changes {
    pub acknowledged: usize,
    /// With the node that had them: whoever sent them heard nothing.
    pub lost: usize,
    /// From a change to its acknowledgement, in milliseconds.
    pub acknowledged_ms_p50: f64,
    pub acknowledged_ms_p99: f64,
    pub commits: u64,
    /// Commits that began again, as another one came first.
    pub conflicts: u64,
    pub optimised: u64,
    pub optimised_in_vain: u64,
    /// Questions that began with a text that was replaced longer ago than is stated.
    pub stale: u64,
    /// How long after a text was replaced a question still began with it, at most, in milliseconds.
    pub most_stale_ms: f64,
}

/// From which share on an engine or the band is full: what is above waits.
const FULL: f64 = 0.9;
/// Commits that take so many times what one takes that meets nobody are what limits.
const LATE: f64 = 5.0;

impl Outcome {
    pub(super) fn of<K: Kit>(run: &Run<'_, K>) -> Self {
        let measured = &run.asking[run.asked.warm.min(run.asking.len())..];
        let fates = |fate: Fate| measured.iter().filter(|at| at.fate == Some(fate)).count();
        let begun: Vec<&Answered> =
            measured.iter().filter(|at| at.fate == Some(Fate::Answered)).map(|at| &at.answered).collect();
        let tokens = |of: &dyn Fn(&Answered) -> u32| begun.iter().map(|at| u64::from(of(at))).sum::<u64>() as f64;
        let all = tokens(&|at| at.prompt).max(1.0);
        let mut ttft_ms: Vec<f64> = begun.iter().map(|at| at.ttft_us / 1e3).collect();
        ttft_ms.sort_by(f64::total_cmp);
        let opened = run.window.opened.clone().unwrap_or_default();
        let closed = run.window.closed.clone().unwrap_or_default();
        let window_us = (closed.at_us - opened.at_us).max(1.0);
        let within = |at_us: f64| at_us > opened.at_us && at_us <= closed.at_us;
        // Answers of the warm-up's last questions end in it, as the last ones' end behind it.
        let ended = |at: &&super::run::Asking| at.fate == Some(Fate::Answered) && within(at.answered.end_us);
        let answered_in = run.asking.iter().filter(ended).count();
        let zero = (0.0, 0.0);
        let busy: Vec<(f64, f64)> = closed
            .busy_us
            .iter()
            .enumerate()
            .map(|(node, (busy, beside))| {
                let before = opened.busy_us.get(node).copied().unwrap_or(zero);
                ((busy - before.0) / window_us, (beside - before.1) / window_us)
            })
            .collect();
        let count = busy.len().max(1) as f64;
        let kept = run.nodes.iter().map(|node| node.service.tiers.kept_bytes());
        let [host_bytes, disk_bytes] = kept.fold([0; 2], |sum, kept| [sum[0] + kept[0], sum[1] + kept[1]]);
        let all_s = (run.now_us / 1e6).max(1e-6);
        let changes = changes(run);
        let mut outcome = Self {
            nodes: run.fleet.nodes,
            routing: run.fleet.routing,
            questions: measured.len(),
            answered: fates(Fate::Answered),
            refused: fates(Fate::Refused),
            broken_off: fates(Fate::BrokenOff),
            retried: run.retried,
            asked_per_s: measured.len() as f64 * 1e6 / window_us,
            answered_per_s: answered_in as f64 * 1e6 / window_us,
            hit: Hits {
                device: tokens(&|at| at.in_tiers[0]) / all,
                host: tokens(&|at| at.in_tiers[1]) / all,
                disk: tokens(&|at| at.in_tiers[2]) / all,
                object: tokens(&|at| at.in_tiers[3]) / all,
                blended: tokens(&|at| at.blended) / all,
                computed: tokens(&|at| at.computed) / all,
            },
            ttft_ms_p50: percentile(&ttft_ms, 50),
            ttft_ms_p99: percentile(&ttft_ms, 99),
            ttft_ms_mean: ttft_ms.iter().sum::<f64>() / ttft_ms.len().max(1) as f64,
            engine: busy.iter().map(|(busy, _)| busy).sum::<f64>() / count,
            engine_most: busy.iter().map(|(busy, _)| *busy).fold(0.0, f64::max),
            engine_beside: busy.iter().map(|(_, beside)| beside).sum::<f64>() / count,
            bucket_band: (closed.passed - opened.passed) / (window_us * run.fleet.bucket.bytes_per_s / 1e6),
            bucket_bytes: run.objects.bytes(),
            gets_per_s: run.nodes.iter().map(|node| node.gets).sum::<u64>() as f64 / all_s,
            puts_per_s: run.puts as f64 / all_s,
            lists_per_s: run.lists as f64 / all_s,
            host_bytes,
            disk_bytes,
            changes,
            limit: String::new(),
        };
        outcome.limit = outcome.limited_by(run.fleet.corpus.interval_ms + run.fleet.corpus.commit_ms);
        outcome
    }

    /// What is full, the first of them that is. `commit_ms`: what a change takes that meets nobody.
    fn limited_by(&self, commit_ms: f64) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let unanswered = self.refused as f64 / self.questions.max(1) as f64;
        let refused = if self.refused > 0 {
            format!("; {} of the questions refused", percent(unanswered))
        } else {
            String::new()
        };
        if self.bucket_band >= FULL {
            return format!("the bucket's bandwidth ({} of it){refused}", percent(self.bucket_band));
        }
        if self.engine >= FULL {
            return format!("the nodes' engines ({} of the time){refused}", percent(self.engine));
        }
        if self.engine_most >= FULL && self.engine < 0.75 * self.engine_most {
            return format!(
                "the busiest node's engine ({} of the time; {} in the mean): some collections are asked far more than others{refused}",
                percent(self.engine_most),
                percent(self.engine)
            );
        }
        if self.engine_most >= FULL {
            return format!(
                "the nodes' engines ({} of the time, the busiest {}){refused}",
                percent(self.engine),
                percent(self.engine_most)
            );
        }
        if self.changes.acknowledged_ms_p99 > LATE * commit_ms {
            return format!(
                "commits to the corpus: {:.1} s until a change is acknowledged (99th percentile), {} conflicts for {} commits{refused}",
                self.changes.acknowledged_ms_p99 / 1e3,
                self.changes.conflicts,
                self.changes.commits
            );
        }
        if self.refused > 0 {
            return format!("nodes that are not there, or blind: {} of the questions refused", percent(unanswered));
        }
        format!("nothing: engines {}, bucket {}", percent(self.engine), percent(self.bucket_band))
    }
}

/// Where more nodes for more questions stop to help: the first of these outcomes, by nodes, that answers less than nine tenths of what it is asked, or less
/// than nine tenths of what the first one answers of what it is asked a second.
pub fn stops_scaling(outcomes: &[Outcome]) -> Option<&Outcome> {
    let each = |at: &Outcome| (at.answered_per_s / at.asked_per_s).min(1.0);
    let first = outcomes.first().map(each)?;
    let asks_more = outcomes.windows(2).any(|pair| pair[1].asked_per_s > 1.5 * pair[0].asked_per_s);
    let answers = |at: &Outcome| at.answered as f64 / at.questions.max(1) as f64;
    outcomes.iter().find(|at| answers(at) < 0.9 || (asks_more && each(at) < 0.9 * first))
}

fn changes<K: Kit>(run: &Run<'_, K>) -> Changes {
    let tables = &run.tables;
    let mut waited_ms: Vec<f64> = tables.waited_us.iter().map(|us| us / 1e3).collect();
    waited_ms.sort_by(f64::total_cmp);
    Changes {
        acknowledged: tables.acknowledged.len(),
        lost: tables.lost,
        acknowledged_ms_p50: percentile(&waited_ms, 50),
        acknowledged_ms_p99: percentile(&waited_ms, 99),
        commits: tables.commits,
        conflicts: tables.conflicts,
        optimised: tables.optimised,
        optimised_in_vain: tables.optimised_in_vain,
        stale: run.stale,
        most_stale_ms: run.most_stale_us / 1e3,
    }
}

fn percentile(sorted: &[f64], of: usize) -> f64 {
    sorted.get((sorted.len() * of).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}
