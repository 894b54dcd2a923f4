//! Machines that can be hired, what they compute, and what a bucket costs. The defaults are in `machines.toml`, with their date and source.

use serde::{Deserialize, Serialize};

use crate::cost::{CostGrid, CostModel, CostProfile, Costs, ReadCost};
use crate::simulate::ServiceTiers;
use crate::{Error, Result};
use ragstone_kernels::config::{ModelConfig, WeightDtype};

const GB: f64 = 1e9;
/// Tokens that go through the layers together.
const CHUNK: u32 = 512;
/// What a pass takes whatever it computes: launches and bookkeeping.
const PASS_US: f64 = 2000.0;
/// Of a machine's memory, what the KV may have beside the weights; of a device's, what blocks may have.
const FOR_KV: f64 = 0.7;
const FOR_BLOCKS: f64 = 0.9;
/// What the program itself, its corpus's indexes and the system take of memory.
const OWN_BYTES: f64 = 3e9;

/// What a model is, as far as it takes time and room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    pub name: String,
    /// Weights that a token goes through, and all of them, as numbers.
    pub active_weights: f64,
    pub weights: f64,
    /// Bytes of a weight.
    pub weight_bytes: f64,
    pub layers: u32,
    /// Elements of a row of Q, and bytes of K and V of a token, all layers together.
    pub query_dim: u32,
    pub kv_bytes_per_token: u64,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub name: String,
    /// What an hour of it costs, its disk among it.
    pub hour: f64,
    /// Its memory and its disk, in GB.
    pub memory_gb: f64,
    #[serde(default)]
    pub disk_gb: f64,
    /// Memory of its GPU, in GB; 0: the processor computes.
    #[serde(default)]
    pub gpu_gb: f64,
    /// What it reaches in products, in TFLOP/s, and what it reads of weights and KV, in GB/s: reached, not printed on the box.
    pub tflops: f64,
    pub memory_gb_per_s: f64,
    /// What it reads from its disk and from the bucket, in GB/s.
    #[serde(default = "disk_gb_per_s")]
    pub disk_gb_per_s: f64,
    pub network_gb_per_s: f64,
    /// What was measured on it, in place of what is reckoned: a file of `bench`'s form. The model is that of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

fn disk_gb_per_s() -> f64 {
    1.0
}

/// What the bucket costs, and gives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketPrices {
    /// A GB for a month.
    pub gb_month: f64,
    /// A thousand puts or listings, and a thousand gets.
    pub puts_1000: f64,
    pub gets_1000: f64,
    /// The median latency of a read, in milliseconds, and what one connection and all together carry, in GB/s.
    pub read_ms: f64,
    pub connection_gb_per_s: f64,
    pub gb_per_s: f64,
}

/// What can be hired.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offers {
    /// From when the prices are, and where they are from.
    pub dated: String,
    pub source: String,
    pub currency: String,
    pub bucket: BucketPrices,
    #[serde(rename = "machine")]
    pub machines: Vec<Machine>,
}

impl Offers {
    /// # Errors
    /// `InvalidInput` that names what cannot be.
    pub fn check(&self) -> Result<()> {
        let is_sane = |value: f64| (0.0..=1e9).contains(&value);
        let above = |value: f64| value > 0.0 && value <= 1e9;
        let bucket = &self.bucket;
        if self.machines.is_empty() {
            return Err(Error::invalid_input("no machine is offered: add a [[machine]]"));
        }
        let prices = [bucket.gb_month, bucket.puts_1000, bucket.gets_1000, bucket.read_ms];
        if !prices.into_iter().all(is_sane) || !above(bucket.connection_gb_per_s) || !above(bucket.gb_per_s) {
            return Err(Error::invalid_input("`bucket`: prices and times must be 0 or more, GB a second above 0"));
        }
        for machine in &self.machines {
            let from_zero = [machine.hour, machine.disk_gb, machine.gpu_gb];
            let positive = [
                machine.memory_gb,
                machine.tflops,
                machine.memory_gb_per_s,
                machine.disk_gb_per_s,
                machine.network_gb_per_s,
            ];
            if !from_zero.into_iter().all(is_sane) || !positive.into_iter().all(above) {
                let message = format!(
                    "machine `{}`: hour, disk_gb and gpu_gb must be 0 or more, what it computes and reads above 0",
                    machine.name
                );
                return Err(Error::invalid_input(message));
            }
        }
        Ok(())
    }
}

impl ModelShape {
    /// The shape that a `config.json` says, its KV in 16 bits.
    pub fn of(name: &str, config: &ModelConfig) -> Self {
        let (hidden, layers) = (config.hidden_size as f64, config.layers as f64);
        let (query, kv) = (config.query_dim() as f64, config.kv_dim() as f64);
        let products = if config.feed_forward.gate().is_some() { 3.0 } else { 2.0 };
        let attention = hidden * (2.0 * query + 2.0 * kv);
        let (mut active, mut all) = (0.0, 0.0);
        for layer in 0..config.layers {
            let (of_row, of_all) = match config.experts_of(layer) {
                Some(experts) => {
                    let one = experts.intermediate_size as f64;
                    (one * experts.per_row as f64, one * experts.count as f64)
                }
                None => (config.intermediate_size as f64, config.intermediate_size as f64),
            };
            active += attention + products * hidden * of_row;
            all += attention + products * hidden * of_all;
        }
        let table = config.vocab_size as f64 * hidden;
        let weight_bytes = if config.torch_dtype == WeightDtype::F32 { 4.0 } else { 2.0 };
        Self {
            name: name.to_owned(),
            active_weights: active + table,
            weights: all + if config.tie_embeddings { table } else { 2.0 * table },
            weight_bytes,
            // Configs are validated: all of these are far below 2^32.
            layers: layers as u32,
            query_dim: query as u32,
            kv_bytes_per_token: (2.0 * kv * layers * 2.0) as u64,
        }
    }

    /// What stands in where no model is named: Qwen2.5-7B's shape.
    pub fn stand_in() -> Self {
        Self {
            name: "Qwen2.5-7B's shape".to_owned(),
            active_weights: 7.07e9,
            weights: 7.62e9,
            weight_bytes: 2.0,
            layers: 28,
            query_dim: 3584,
            kv_bytes_per_token: 57_344,
        }
    }

    fn bytes(&self) -> f64 {
        self.weights * self.weight_bytes
    }
}

impl Machine {
    /// Where KV can be on it beside a model's weights; `None`: they do not fit.
    pub fn tiers(&self, model: &ModelShape) -> Option<ServiceTiers> {
        let on_gpu = self.gpu_gb > 0.0;
        let beside = |has_gb: f64, takes: f64, share: f64| (has_gb * GB - takes) * share;
        let (weights, own) = (model.bytes(), OWN_BYTES);
        let device = if on_gpu { beside(self.gpu_gb, weights, FOR_BLOCKS) } else { 0.0 };
        let host = beside(self.memory_gb, if on_gpu { own } else { own + weights }, FOR_KV);
        // A thousand tokens at least, or no prompt fits.
        let least = 1000.0 * model.kv_bytes_per_token as f64;
        if (on_gpu && device < least) || host < least {
            return None;
        }
        // Where the processor computes, blocks are memory, too: a quarter of it.
        let (device, host) = if on_gpu { (device, host) } else { (host / 4.0, host * 0.75) };
        let disk = self.disk_gb * GB * FOR_KV;
        Some(ServiceTiers {
            device_bytes: device as u64,
            host_bytes: host as u64,
            disk_bytes: disk as u64,
            has_bucket: true,
        })
    }

    /// What prefills take: the products at what it reaches in them, or the reading of the weights, whichever is longer; attention likewise.
    ///
    /// # Errors
    /// `InvalidInput` for a shape of no model.
    pub fn grid(&self, model: &ModelShape) -> Result<CostGrid> {
        let flops_us = self.tflops * 1e6;
        let bytes_us = self.memory_gb_per_s * 1e3;
        let cached: Vec<u32> = vec![0, 1024, 4096, 16_384, 65_536];
        let new: Vec<u32> = vec![1, 8, 32, 128, CHUNK];
        let us = |cached: u32, new: u32| {
            let (before, rows) = (f64::from(cached), f64::from(new));
            // Of many experts, few rows read few.
            let read = model
                .bytes()
                .min(rows * model.active_weights * model.weight_bytes)
                .max(model.active_weights * model.weight_bytes);
            let products = (2.0 * model.active_weights * rows / flops_us).max(read / bytes_us);
            let scores = 4.0 * f64::from(model.layers) * f64::from(model.query_dim) * rows * (before + rows / 2.0);
            let seen = (before + rows) * model.kv_bytes_per_token as f64;
            PASS_US + products + (scores / flops_us).max(seen / bytes_us)
        };
        let times = cached.iter().map(|before| new.iter().map(|rows| us(*before, *rows)).collect()).collect();
        let source = format!("{} on {}, reckoned from what it reaches", model.name, self.name);
        CostGrid::new(&source, model.kv_bytes_per_token, cached, new, times)
    }

    /// All that takes time on it.
    ///
    /// # Errors
    /// As [`CostProfile::assumed`].
    pub fn costs(&self, grid: &CostGrid, layers: u32, bucket: &BucketPrices) -> Result<CostModel> {
        let mut costs = Costs::new(CostProfile::assumed()?).model();
        costs.prefill.grid = grid.in_chunks_of(CHUNK).into();
        costs.prefill.layers = grid.layers().unwrap_or(layers);
        let (place, look) = grid.place_and_look_us();
        let (bus_gb_per_s, look_us) = if self.gpu_gb > 0.0 { (20.0, 1e-4) } else { (1.0, 1e-2) };
        costs.prefill.place_us_per_byte = place.unwrap_or(1e-3 / bus_gb_per_s);
        costs.prefill.look_us_per_weight = look.unwrap_or(look_us);
        let host = ReadCost::assumed(crate::tier::Tier::Host);
        let disk = ReadCost { request_us: 100.0, us_per_byte: 1e-3 / self.disk_gb_per_s };
        let each = bucket.connection_gb_per_s.min(self.network_gb_per_s);
        let object = ReadCost { request_us: bucket.read_ms * 1e3, us_per_byte: 1e-3 / each };
        costs.reads = [(host, true), (disk, true), (object, true)];
        Ok(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stand-in is what its `config.json` says.
    #[test]
    fn a_shape_is_read_off_a_config() {
        let config = ModelConfig::from_json(
            r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
            "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#,
        )
        .unwrap();
        let (shape, stand_in) = (ModelShape::of("x", &config), ModelShape::stand_in());
        assert_eq!((shape.kv_bytes_per_token, shape.query_dim, shape.layers), (57_344, 3584, 28));
        assert!((shape.weights / stand_in.weights - 1.0).abs() < 0.01, "{shape:?}");
        assert!((shape.active_weights / stand_in.active_weights - 1.0).abs() < 0.01, "{shape:?}");
    }

    #[test]
    fn what_is_reckoned_grows_with_what_is_computed_and_reads_the_weights_at_least_once() {
        let machine = Machine {
            name: "m".into(),
            hour: 1.0,
            memory_gb: 64.0,
            disk_gb: 0.0,
            gpu_gb: 24.0,
            tflops: 50.0,
            memory_gb_per_s: 300.0,
            disk_gb_per_s: 1.0,
            network_gb_per_s: 1.0,
            profile: None,
        };
        let grid = machine.grid(&ModelShape::stand_in()).unwrap();
        // 15.2 GB at 300 GB/s; 2 · 7.07e9 · 512 operations at 50 TFLOP/s.
        assert!((grid.prefill_us(0, 1) / 49_000.0 - 1.0).abs() < 0.1, "{}", grid.prefill_us(0, 1));
        assert!((grid.prefill_us(0, 512) / 147_000.0 - 1.0).abs() < 0.1, "{}", grid.prefill_us(0, 512));
        assert!(grid.prefill_us(16_384, 512) > grid.prefill_us(0, 512));
        let tiers = machine.tiers(&ModelShape::stand_in()).unwrap();
        assert!(tiers.device_bytes > 7_000_000_000 && tiers.device_bytes < 9_000_000_000, "{tiers:?}");
        assert!(Machine { gpu_gb: 12.0, ..machine }.tiers(&ModelShape::stand_in()).is_none());
    }
}
