//! What two looks at a service say. Pure.

use ragstone_actors::upkeep::warm::WarmStatus;
use ragstone_service::telemetry::samples::Samples;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tiers, fastest first.
const TIERS: [&str; 4] = ["device", "host", "disk", "object"];
/// Where a prompt token's KV comes from: loaded as it was stored, blended, recomputed within a blend, computed.
const ORIGINS: [&str; 4] = ["exact", "blended", "recomputed", "computed"];

/// How a service was found at one instant.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Seconds on the clock of who looks.
    pub at_s: f64,
    /// `/metrics`
    pub samples: Samples,
    /// `/v1/cache/status`; null where the service did not tell.
    pub status: Value,
}

/// What `ragstone top` shows. Rates and shares are of the last `window_s` seconds; totals are since the service's start.
#[derive(Debug, Serialize)]
pub struct Figures {
    pub window_s: f64,
    /// The language model's name; null where the service did not tell.
    pub model: Option<String>,
    pub requests: Requests,
    /// Answers whose first token came.
    pub answers: Rate,
    pub generated_tokens: Rate,
    pub ttft: Ttft,
    pub prompt_tokens: PromptTokens,
    /// Requests refused because a queue was full or their time would pass in it.
    pub shed: Rate,
    pub tiers: Vec<Tier>,
    /// Durable jobs that run or wait for their turn.
    pub jobs: Vec<Job>,
    /// Unfinished warm-ups, as `/v1/cache/status` has them.
    pub warm_jobs: Vec<WarmStatus>,
}

/// Questions and rerankings under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Requests {
    pub in_flight: u64,
    /// Not at the engine: searching, tokenizing, planning.
    pub searching: u64,
    /// Waiting at the engine.
    pub queued: u64,
    /// Waiting for stored KV.
    pub loading: u64,
    pub prefilling: u64,
    pub decoding: u64,
    /// Swapped to host memory, as others needed their blocks.
    pub swapped: u64,
    /// Prompts that nobody waits for; `in_flight` does not count them.
    pub background: u64,
}

/// How much of something came.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    pub per_s: f64,
    pub total: f64,
}

/// Time from a question's arrival to its first token.
#[derive(Debug, Serialize)]
pub struct Ttft {
    pub window: Quantiles,
    pub since_start: Quantiles,
}

/// Of a histogram; null where nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50_s: Option<f64>,
    pub p95_s: Option<f64>,
}

/// Prompt tokens, all and by where their KV came from.
#[derive(Debug, Serialize)]
pub struct PromptTokens {
    #[serde(flatten)]
    pub all: Rate,
    pub by_origin: Vec<Origin>,
}

/// A part of the prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Origin {
    pub origin: &'static str,
    pub tokens: Rate,
    /// Of the window's prompt tokens, and of all; null where there are none.
    pub share: Option<f64>,
    pub share_of_total: Option<f64>,
}

/// One tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tier {
    pub tier: &'static str,
    pub bytes: f64,
    /// 0: it has no bound.
    pub bound_bytes: f64,
    pub entries: f64,
    pub hits: Rate,
    pub misses: Rate,
    /// Hits of the window's look-ups; null where there were none.
    pub hit_rate: Option<f64>,
    pub evicted: Rate,
    /// Bytes of stored KV read for prompts.
    pub loaded_bytes: Rate,
    /// Entries on their way into it.
    pub arriving: f64,
    /// Reads and writes that the medium failed, and frames that did not verify.
    pub failed: f64,
    pub corrupt: f64,
}

/// Jobs of one kind.
#[derive(Debug, PartialEq, Serialize)]
pub struct Job {
    pub kind: String,
    pub jobs: u64,
}

/// The figures of `now`, with rates since `before`; without, there are none and rates are 0.
pub fn figures(before: Option<&Look>, now: &Look) -> Figures {
    let span = Span { before, now };
    let status = &now.status;
    Figures {
        window_s: span.seconds(),
        model: status["model"]["id"].as_str().map(str::to_owned),
        requests: requests(&now.samples),
        answers: span.rate("ragstone_ttft_seconds_count", &[]),
        generated_tokens: span.rate("ragstone_generated_tokens_total", &[]),
        ttft: Ttft {
            window: Quantiles::of(&span.buckets("ragstone_ttft_seconds")),
            since_start: Quantiles::of(&now.samples.buckets("ragstone_ttft_seconds")),
        },
        prompt_tokens: prompt_tokens(&span),
        shed: span.rate("ragstone_shed_total", &[]),
        tiers: TIERS.into_iter().filter_map(|tier| self::tier(&span, tier)).collect(),
        jobs: jobs(&status["jobs"]),
        warm_jobs: Vec::deserialize(&status["warm_jobs"]).unwrap_or_default(),
    }
}

/// Two looks, the second of which is later.
struct Span<'a> {
    before: Option<&'a Look>,
    now: &'a Look,
}

impl Span<'_> {
    fn seconds(&self) -> f64 {
        self.before.map_or(0.0, |before| (self.now.at_s - before.at_s).max(0.0))
    }

    /// A counter that is smaller than before began anew, as its service did.
    fn increase(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let now = self.now.samples.get(name, labels).unwrap_or(0.0);
        let before = self.before.map(|before| before.samples.get(name, labels).unwrap_or(0.0));
        before.map_or(0.0, |before| increase(before, now))
    }

    fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Rate {
        let total = self.now.samples.get(name, labels).unwrap_or(0.0);
        Rate { per_s: ratio(self.increase(name, labels), self.seconds()).unwrap_or(0.0), total }
    }

    /// As [`Samples::buckets`], of what was measured in between.
    fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let (Some(before), now) = (self.before, self.now.samples.buckets(name)) else { return Vec::new() };
        let before = before.samples.buckets(name);
        let was = |bound| before.iter().find(|(other, _)| *other == bound).map_or(0.0, |(_, count)| *count);
        let is_new = now.last().is_some_and(|(bound, count)| *count < was(*bound));
        now.into_iter().map(|(bound, count)| (bound, if is_new { count } else { count - was(bound) })).collect()
    }
}

fn increase(before: f64, now: f64) -> f64 {
    if now < before { now } else { now - before }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

fn requests(samples: &Samples) -> Requests {
    let state = |state: &str| samples.get("ragstone_sequences", &[("state", state)]).unwrap_or(0.0) as u64;
    let admitted = samples.get("ragstone_questions_admitted", &[]).unwrap_or(0.0) as u64;
    let (queued, loading, prefilling) = (state("waiting"), state("loading"), state("prefilling"));
    let (decoding, swapped) = (state("decoding"), state("swapped"));
    let at_engine = queued + loading + prefilling + decoding + swapped;
    Requests {
        // The two were not counted at one instant, and a reranking puts several prompts to the engine.
        in_flight: admitted.max(at_engine),
        searching: admitted.saturating_sub(at_engine),
        queued,
        loading,
        prefilling,
        decoding,
        swapped,
        background: state("background"),
    }
}

impl Quantiles {
    fn of(buckets: &[(f64, f64)]) -> Self {
        Self { p50_s: quantile(buckets, 0.5), p95_s: quantile(buckets, 0.95) }
    }
}

/// A quantile of a histogram, linear within its bucket, as PromQL's `histogram_quantile` has it: what lies beyond the last finite
/// bound is told as that bound.
fn quantile(buckets: &[(f64, f64)], quantile: f64) -> Option<f64> {
    let (_, total) = buckets.last().filter(|(_, total)| *total > 0.0)?;
    let rank = quantile * total;
    let at = buckets.iter().position(|(_, count)| *count >= rank)?;
    let (below, below_count) = if at == 0 { (0.0, 0.0) } else { buckets[at - 1] };
    let (bound, count) = buckets[at];
    if bound.is_infinite() {
        return Some(below);
    }
    Some(below + (bound - below) * ratio(rank - below_count, count - below_count).unwrap_or(1.0))
}

fn prompt_tokens(span: &Span<'_>) -> PromptTokens {
    let name = "ragstone_prompt_tokens_total";
    let all = span.rate(name, &[]);
    let by_origin = ORIGINS.map(|origin| {
        let tokens = span.rate(name, &[("source", origin)]);
        let (share, share_of_total) = (ratio(tokens.per_s, all.per_s), ratio(tokens.total, all.total));
        Origin { origin, tokens, share, share_of_total }
    });
    PromptTokens { all, by_origin: by_origin.into() }
}

/// `None` where the service has no such tier.
fn tier(span: &Span<'_>, tier: &'static str) -> Option<Tier> {
    let labels = [("tier", tier)];
    let gauge = |name: &str| span.now.samples.get(name, &labels);
    let bytes = gauge("ragstone_tier_bytes")?;
    let rate = |name: &str| span.rate(name, &labels);
    let (hits, misses) = (rate("ragstone_tier_hits_total"), rate("ragstone_tier_misses_total"));
    Some(Tier {
        tier,
        bytes,
        bound_bytes: gauge("ragstone_tier_capacity_bytes").unwrap_or(0.0),
        entries: gauge("ragstone_tier_entries").unwrap_or(0.0),
        hits,
        misses,
        hit_rate: ratio(hits.per_s, hits.per_s + misses.per_s),
        evicted: rate("ragstone_tier_evicted_total"),
        loaded_bytes: rate("ragstone_loaded_bytes_total"),
        arriving: gauge("ragstone_write_behind_entries").unwrap_or(0.0),
        failed: gauge("ragstone_tier_failed_total").unwrap_or(0.0),
        corrupt: gauge("ragstone_tier_corrupt_total").unwrap_or(0.0),
    })
}

fn jobs(jobs: &Value) -> Vec<Job> {
    let job = |job: &Value| Job {
        kind: job["kind"].as_str().unwrap_or_default().replace('_', "-"),
        jobs: job["jobs"].as_u64().unwrap_or(0),
    };
    jobs.as_array().into_iter().flatten().map(job).collect()
}

#[cfg(test)]
mod tests;
