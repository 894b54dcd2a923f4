//! Every metric of `/metrics`: kind, name, labels, what it counts. A test holds the sources, `ops/monitoring` and a running service against
//! this list (`tests/it/metrics.rs`).

use metrics::{counter, describe_counter, describe_gauge, describe_histogram};

use self::Kind::{Counter, Gauge, Histogram};

pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

pub(super) struct Metric {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    labels: &'static [&'static str],
    pub(super) what: &'static str,
}

const fn metric(kind: Kind, name: &'static str, labels: &'static [&'static str], what: &'static str) -> Metric {
    Metric { kind, name, labels, what }
}

#[rustfmt::skip]
pub(super) const METRICS: &[Metric] = &[
    metric(Counter, "ragstone_requests_total", &["path", "method", "status"], "HTTP requests by path pattern, method and status"),
    metric(Histogram, "ragstone_request_seconds", &["path"], "time from a request to the head of its response, by path pattern"),
    metric(Counter, "ragstone_audit_failures_total", &[], "lines of the audit log that could not be written"),
    metric(Histogram, "ragstone_ttft_seconds", &[], "time from a question's arrival to its first token"),
    metric(Counter, "ragstone_prompt_tokens_total", &["source"], "prompt tokens by where their KV came from"),
    metric(Counter, "ragstone_reused_tokens_total", &["tier"], "prompt tokens whose stored KV was used, by the tier that it came from"),
    metric(Counter, "ragstone_engine_requests_total", &["outcome"], "prompts that were sent to an engine elsewhere, by what became of it"),
    metric(Counter, "ragstone_generated_tokens_total", &[], "tokens generated"),
    metric(Counter, "ragstone_draft_tokens_total", &[], "drafted tokens that were verified"),
    metric(Counter, "ragstone_draft_tokens_accepted_total", &[], "drafted tokens that were right"),
    metric(Counter, "ragstone_retrieval_rounds_total", &[], "searches of questions that search several times"),
    metric(Counter, "ragstone_nothing_found_total", &["answered"], "questions about which nothing was found, by what was done"),
    metric(Counter, "ragstone_reranked_passages_total", &["by"], "passages that were put in order, by who did it"),
    metric(Histogram, "ragstone_rerank_seconds", &["by"], "time of putting a search's or a request's passages in order"),
    metric(Counter, "ragstone_speculations_total", &["outcome"], "searches beside which a prefill could begin, by what became of it"),
    metric(Counter, "ragstone_speculative_prefills_total", &[], "prefills begun before their search had ended"),
    metric(Counter, "ragstone_speculations_let_go_total", &[], "speculative prefills that gave their blocks to others"),
    metric(Histogram, "ragstone_hidden_search_seconds", &[], "time of searching that passed beside a prefill"),
    metric(Counter, "ragstone_loaded_bytes_total", &["tier"], "bytes of stored KV loaded, by tier"),
    metric(Counter, "ragstone_late_misses_total", &[], "loads that failed and were recomputed"),
    metric(Counter, "ragstone_object_collected_bytes_total", &[], "bytes that this node's collections took out of the bucket"),
    metric(Counter, "ragstone_object_forged_total", &[], "headers and layers of the bucket that nobody with a key sealed so; none was used"),
    metric(Counter, "ragstone_precompute_dropped_total", &[], "pieces of background work that were not taken because too much waited"),
    metric(Counter, "ragstone_shed_total", &["worker"], "requests refused because a bounded queue was full, or their time would pass in it"),
    metric(Counter, "ragstone_quota_refused_total", &["quota"], "requests and changes refused because a tenant's quota was used up"),
    metric(Gauge, "ragstone_tenant_quota_used", &["tenant", "quota"], "what a tenant uses of a quota; 64 tenants at most are told apart"),
    metric(Gauge, "ragstone_tenant_quota_limit", &["tenant", "quota"], "a tenant's quota, of a share what is guaranteed; +Inf once it was taken away"),
    metric(Counter, "ragstone_preemptions_total", &["by"], "sequences that left the device for others, by swapping or to be computed again"),
    metric(Counter, "ragstone_device_lost_total", &[], "times that the device's memory was lost"),
    metric(Gauge, "ragstone_gpu_kernels", &["for", "family"], "whether a family of kernels is used: those for all GPUs, and those for the generation of this one"),
    metric(Counter, "ragstone_panics_total", &["worker"], "panics survived, by worker"),
    metric(Gauge, "ragstone_questions_admitted", &[], "questions and rerankings that were admitted and have not ended"),
    metric(Gauge, "ragstone_sequences", &["state"], "prompts that the engine has, by what each does"),
    metric(Gauge, "ragstone_kv_blocks_reserved", &[], "blocks that running sequences hold"),
    metric(Gauge, "ragstone_kv_slots_empty", &[], "slots of those blocks that no token has yet"),
    metric(Gauge, "ragstone_tier_bytes", &["tier"], "bytes kept in a tier"),
    metric(Gauge, "ragstone_tier_capacity_bytes", &["tier"], "bound on a tier's bytes"),
    metric(Gauge, "ragstone_tier_entries", &["tier"], "whole entries in a tier"),
    metric(Counter, "ragstone_tier_hits_total", &["tier"], "look-ups that a tier answered"),
    metric(Counter, "ragstone_tier_misses_total", &["tier"], "look-ups that came to a tier and found nothing"),
    metric(Counter, "ragstone_tier_corrupt_total", &["tier"], "frames and rows that failed verification"),
    metric(Counter, "ragstone_tier_evicted_total", &["tier"], "entries removed to make room"),
    metric(Counter, "ragstone_tier_failed_total", &["tier"], "reads and writes that a tier's medium failed"),
    metric(Counter, "ragstone_tier_declined_total", &["tier"], "entries not kept or not loaded because computing them again is faster"),
    metric(Gauge, "ragstone_write_behind_entries", &["tier"], "entries on their way to a tier"),
    metric(Counter, "ragstone_write_behind_dropped_total", &["tier"], "entries that did not come to a tier because too many were on their way"),
    metric(Counter, "ragstone_group_blocks_total", &["group", "blocks"], "blocks that prompts with several answers or beams held, and would have held apart, summed over steps"),
    metric(Gauge, "ragstone_device_blocks", &[], "blocks of the device pool"),
    metric(Gauge, "ragstone_device_free_blocks", &[], "blocks of the device pool that no running sequence holds"),
    metric(Gauge, "ragstone_device_cached_blocks", &[], "blocks of the device pool that hold what ended sequences left"),
    metric(Gauge, "ragstone_worker_in_flight", &["worker"], "requests that a worker has"),
    metric(Counter, "ragstone_worker_restarts_total", &["worker"], "how often a worker was made anew after a panic"),
];

/// Describes them all to the recorder that was installed.
pub fn register() {
    for Metric { kind, name, labels, what } in METRICS {
        match kind {
            Counter => describe_counter!(*name, *what),
            Gauge => describe_gauge!(*name, *what),
            Histogram => describe_histogram!(*name, *what),
        }
        // Prometheus sees no increase in a counter that appears with its first event.
        if matches!(kind, Counter) && labels.is_empty() {
            counter!(*name).absolute(0);
        }
    }
}
