//! Measures `T(cached, new)`, the prefill time that PGDSF values entries by, and prints it as a profile for
//! `ragstone simulate --profile`. Random weights of Qwen2.5-0.5B's shape: times do not depend on what the weights are.
//!
//! ```sh
//! cargo run -p ragstone -p ragstone-storage --example prefill_profile -- "2 cores, AMD Zen 5, commit abc" > profile.json
//! ```
//! Up to [`CHUNK`] new tokens are measured as they are. A longer prefill is that of its chunks one after the other, as
//! chunked prefill runs it: the sum of `T(cached + j · CHUNK, CHUNK)`, linear between measured cached lengths (attention
//! is linear in them). Takes about ten minutes and 6 GiB of memory on two cores.

use ragstone_env::Stopwatch;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId, KvPool};

const QWEN_05B: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 262144,
    "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

const CHUNK: u32 = 512;
const MEASURED_NEW: [u32; 4] = [16, 64, 192, CHUNK];
const SUMMED_NEW: [u32; 8] = [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17];
const CACHED: [u32; 9] = [0, 1 << 9, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = std::env::args().nth(1).unwrap_or_else(|| "unnamed machine".to_owned());
    let model = Model::random(ModelConfig::from_json(QWEN_05B)?, 1, LoadOptions::default());
    let longest = CACHED[CACHED.len() - 1] + CHUNK;
    let blocks: Vec<BlockId> = (0..longest.div_ceil(BLOCK_TOKENS as u32)).map(BlockId).collect();
    let mut pool = model.new_pool(blocks.len());
    prefill_us(&model, &mut pool, &blocks, 0, CHUNK)?; // warms up
    let mut measured = Vec::new();
    for cached in CACHED {
        let mut row = Vec::new();
        for new in MEASURED_NEW {
            // The least of several: what else runs on the machine only ever adds.
            let runs = if cached <= 1 << 13 { 5 } else { 2 };
            let mut least = f64::INFINITY;
            for _ in 0..runs {
                least = least.min(prefill_us(&model, &mut pool, &blocks, cached, new)?);
            }
            row.push(least);
            eprintln!("cached {cached} new {new}: {:.1} ms", least / 1e3);
        }
        measured.push(row);
    }
    let chunk_us: Vec<f64> = measured.iter().map(|row| row[MEASURED_NEW.len() - 1]).collect();
    for (row, cached) in measured.iter_mut().zip(CACHED) {
        for new in SUMMED_NEW {
            row.push((0..new / CHUNK).map(|chunk| between(&chunk_us, cached + chunk * CHUNK)).sum());
        }
        row.iter_mut().for_each(|time| *time = time.round());
    }
    let layout = model.kv_layout();
    let new_tokens = [&MEASURED_NEW[..], &SUMMED_NEW[..]].concat();
    let profile = serde_json::json!({
        "source": format!("Qwen2.5-0.5B's shape, {source}; prefill_profile, chunks of {CHUNK}"),
        "kv_bytes_per_token": layout.token_bytes(),
        "cached_tokens": CACHED,
        "new_tokens": new_tokens,
        "time_us": measured,
    });
    println!("{}", serde_json::to_string(&profile)?);
    Ok(())
}

/// One chunk's time at `cached`, linear between the measured ones and beyond the last two.
fn between(chunk_us: &[f64], cached: u32) -> f64 {
    let above = CACHED.partition_point(|point| *point <= cached).clamp(1, CACHED.len() - 1);
    let (low, high) = (f64::from(CACHED[above - 1]), f64::from(CACHED[above]));
    chunk_us[above - 1] + (f64::from(cached) - low) / (high - low) * (chunk_us[above] - chunk_us[above - 1])
}

/// The prefill of `new` tokens behind `cached` ones whose K and V are in place, up to the next token's logits.
fn prefill_us(
    model: &Model,
    pool: &mut KvPool,
    blocks: &[BlockId],
    cached: u32,
    new: u32,
) -> Result<f64, Box<dyn std::error::Error>> {
    let key_positions: Vec<u32> = (0..cached + new).collect();
    let blocks = &blocks[..key_positions.len().div_ceil(BLOCK_TOKENS)];
    let tokens: Vec<u32> = (cached..cached + new).map(|row| row * 7919 % 150_000).collect();
    let places = Places::of(cached..cached + new, &key_positions);
    let begun = Stopwatch::start();
    let logits = Forward::new(model, pool).logits(&tokens, places, Wanted::Last, blocks, &key_positions)?;
    std::hint::black_box(logits);
    Ok(begun.elapsed_s() * 1e6)
}
