//! What a mode took.

use serde::Serialize;

use crate::bench::Spread;

/// One mode's times.
#[derive(Debug, Clone, Serialize)]
pub struct ModeResult {
    pub mode: &'static str,
    pub prompt_tokens: usize,
    pub ttft_ms_median: f64,
    pub ratio_to_full: f64,
    pub runs: usize,
    pub ttft_ms_min: f64,
    pub ttft_ms_max: f64,
    /// Median time spent waiting for a layer: what the overlap did not hide.
    pub load_wait_ms_median: f64,
    /// Bytes loaded by one run.
    pub loaded_bytes: u64,
    /// Tokens of the prompt that the last layer computed.
    pub computed_tokens: u32,
    /// Median time of the look-up and the plan, which come before everything else.
    pub look_up_ms_median: f64,
    /// Median time that loads took, beside the computation.
    pub load_ms_median: f64,
    /// Median time that the computation took.
    pub compute_ms_median: f64,
    /// Median of what the plan predicted from the first load to the first token; NaN (null) where it predicts nothing.
    pub predicted_ms_median: f64,
    /// The time to the first token by what was predicted for that very prompt, the median of the runs.
    pub of_predicted: f64,
}

/// One measured run.
pub(super) struct Run {
    pub(super) ttft_ms: f64,
    pub(super) load_wait_ms: f64,
    pub(super) loaded_bytes: u64,
    pub(super) computed_tokens: u32,
    pub(super) look_up_ms: f64,
    pub(super) load_ms: f64,
    pub(super) compute_ms: f64,
    pub(super) predicted_ms: f64,
}

impl ModeResult {
    /// Of its runs; `full` is the median of a full prefill.
    pub(super) fn of(mode: &'static str, prompt_tokens: usize, runs: &[Run], full: f64) -> Self {
        let times = Spread::of(runs.iter().map(|run| run.ttft_ms));
        let median = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of)).median;
        Self {
            mode,
            prompt_tokens,
            ttft_ms_median: times.median,
            ratio_to_full: times.median / full,
            runs: runs.len(),
            ttft_ms_min: times.least,
            ttft_ms_max: times.greatest,
            load_wait_ms_median: median(|run| run.load_wait_ms),
            loaded_bytes: runs.last().map_or(0, |run| run.loaded_bytes),
            computed_tokens: runs.last().map_or(0, |run| run.computed_tokens),
            look_up_ms_median: median(|run| run.look_up_ms),
            load_ms_median: median(|run| run.load_ms),
            compute_ms_median: median(|run| run.compute_ms),
            predicted_ms_median: median(|run| run.predicted_ms),
            of_predicted: median(|run| run.ttft_ms / run.predicted_ms),
        }
    }
}
