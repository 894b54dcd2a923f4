//! The account of a prompt: what its answer reports, and what is counted.

use ragstone_storage::prompt::record_use;

use super::{Asking, Pipeline, Prefilled, Sequence};
use crate::report::Blending;
use crate::report::{ReuseReport, SegmentReport, Ttft};
use crate::speculation::{Outcome, Speculation};

impl Pipeline {
    /// Files what is fresh of a prompt that is the request's own, counts it, and reports.
    pub(super) fn account(&self, asking: &Asking, prefilled: &mut Prefilled, ttft: Ttft) -> ReuseReport {
        record_use(&self.store, &prefilled.sequence.prefill.plan);
        self.learn(&prefilled.sequence);
        self.keep(&asking.question, &prefilled.segments, &mut prefilled.sequence, asking.found_in);
        let ttft = Ttft { assemble_ms: prefilled.assemble_ms, ..ttft };
        let arrangement = prefilled.arranged.as_ref().map(|arranged| arranged.report);
        let report = ReuseReport { arrangement, ..report(&prefilled.sequence, prefilled.blending, ttft) };
        record(&report);
        report
    }
}

/// What is told of a prefilled prompt.
pub(super) fn report(sequence: &Sequence, blending: Blending, times: Ttft) -> ReuseReport {
    let prefill = &sequence.prefill;
    ReuseReport {
        tokens: prefill.account,
        loads: prefill.loads.clone(),
        late_misses: sequence.late_misses,
        blending,
        ratio: sequence.prefill.plan.ratio,
        selection_layer: (sequence.prefill.plan.blended_tokens > 0).then_some(sequence.prefill.plan.choosing.layer),
        predicted: sequence.prefill.plan.prediction,
        without: sequence.without.clone(),
        in_tiers: sequence.prefill.plan.in_tiers.clone(),
        drafts: None,
        segments: SegmentReport::all(&sequence.prefill.plan),
        engine: None,
        rerank: None,
        arrangement: None,
        words_only: false,
        nothing_found: None,
        speculation: None,
        rounds: Vec::new(),
        ttft: Ttft {
            look_up_ms: sequence.look_up_ms,
            plan_ms: sequence.plan_ms,
            queue_ms: prefill.queue_ms,
            compute_ms: prefill.compute_ms,
            load_wait_ms: prefill.load_wait_ms,
            ..times
        },
    }
}

/// Counts a prompt's tokens and loads.
pub(super) fn record(report: &ReuseReport) {
    let tokens = report.tokens;
    for (kind, count) in [
        ("exact", tokens.exact),
        ("blended", tokens.blended),
        ("recomputed", tokens.recomputed),
        ("computed", tokens.computed),
    ] {
        metrics::counter!("ragstone_prompt_tokens_total", "source" => kind).increment(u64::from(count));
    }
    for (segment, tier) in report.segments.iter().filter_map(|segment| Some((segment, segment.tier?))) {
        let count = u64::from(segment.tokens);
        metrics::counter!("ragstone_reused_tokens_total", "tier" => tier.name()).increment(count);
    }
    metrics::counter!("ragstone_late_misses_total").increment(u64::from(report.late_misses));
    for load in &report.loads {
        metrics::counter!("ragstone_loaded_bytes_total", "tier" => load.tier.name()).increment(load.bytes);
    }
}

/// Counts what came of speculation.
pub(super) fn record_speculation(speculation: &Speculation) {
    let outcome = match speculation.outcome {
        Outcome::Confirmed => "confirmed",
        Outcome::Cancelled => "cancelled",
        Outcome::NotStarted => "not_started",
    };
    metrics::counter!("ragstone_speculations_total", "outcome" => outcome).increment(1);
    metrics::counter!("ragstone_speculative_prefills_total").increment(u64::from(speculation.started));
    metrics::histogram!("ragstone_hidden_search_seconds").record(speculation.hidden_ms / 1e3);
}
