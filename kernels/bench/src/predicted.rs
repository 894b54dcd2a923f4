//! What a pass takes at least, by operations and bytes alone: what measured times are held against.

use ragstone_cuda::Gpu;
use ragstone_cuda::measure::peak_operations;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::KvDtype;

/// Seconds of a prompt's products and attention where tensor cores of bf16 are never idle; `None` for mixtures of experts, and where the GPU's
/// peak is not known.
pub fn prefill(gpu: &Gpu, config: &ModelConfig, tokens: usize) -> Option<f64> {
    if config.experts.is_some() {
        return None;
    }
    let (hidden, query, kv) = (config.hidden_size, config.query_dim(), config.kv_dim());
    let of_feed_forward = if config.feed_forward.gate().is_some() { 3 } else { 2 };
    let layer = hidden * (2 * query + 2 * kv) + of_feed_forward * hidden * config.intermediate_size;
    // The last token alone goes through the head.
    let products = 2.0 * ((config.layers * layer) as f64 * tokens as f64 + (hidden * config.vocab_size) as f64);
    let visible = tokens as f64 * (tokens + 1) as f64 / 2.0;
    let attention = 4.0 * (config.layers * query) as f64 * visible;
    Some((products + attention) / peak_operations(gpu, KvDtype::Bf16)?)
}

/// Seconds of reading so many bytes of the GPU's memory; `None` where the driver does not tell how fast it is.
pub fn reading(gpu: &Gpu, bytes: f64) -> Option<f64> {
    (gpu.memory_bytes_per_s > 0).then(|| bytes / gpu.memory_bytes_per_s as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn h100() -> Gpu {
        Gpu {
            ordinal: 0,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            compute_capability: (9, 0),
            driver: "13.0".to_owned(),
            memory_bytes: 80 << 30,
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_bytes_per_s: 3_352_000_000_000,
        }
    }

    /// 6.5 billion weights in layers, by 4,096 tokens and 989 TFLOP/s; 15.2 GB by 3,352 GB/s.
    #[test]
    fn a_model_of_seven_billion_weights_is_as_in_the_results() {
        let config = Shape::Qwen7b.config().unwrap();
        let seconds = prefill(&h100(), &config, 4096).unwrap();
        assert!((seconds - 0.057).abs() < 0.001, "{seconds}");
        let seconds = reading(&h100(), 15.2e9).unwrap();
        assert!((seconds - 0.0045).abs() < 0.0001, "{seconds}");
        let unknown = Gpu { memory_bytes_per_s: 0, compute_capability: (7, 7), ..h100() };
        assert!(prefill(&unknown, &config, 1).is_none() && reading(&unknown, 1.0).is_none());
    }
}
