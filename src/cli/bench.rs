//! `ragstone bench`

use crate::bench::ttft;
use crate::cli::output;
use crate::error::{Error, Result};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Time to first token, by where the passages' KV comes from
    Ttft {
        /// Tokens of the prompt
        #[arg(long, value_name = "N", default_value_t = 4096)]
        tokens: usize,
        /// Passages of the prompt
        #[arg(long, value_name = "N", default_value_t = 8)]
        passages: usize,
        /// Rounds; each measures every mode once
        #[arg(long, value_name = "N", default_value_t = 5)]
        runs: usize,
        /// Seed of the random weights and tokens
        #[arg(long, value_name = "SEED", default_value_t = 1)]
        seed: u64,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
}

/// Runs a benchmark.
pub async fn run(command: Command) -> Result<()> {
    let Command::Ttft { tokens, passages, runs, seed, json } = command;
    if tokens > 32_768 {
        return Err(Error::invalid(format!("--tokens {tokens} is beyond the model's context of 32768")));
    }
    let options = ttft::Options { prompt_tokens: tokens, passages, runs, ratio: 0.15, seed };
    let results = ttft::measure(options).await?;
    if json {
        return output::json(&results);
    }
    output::line("mode            TTFT ms (min .. max)            of full   waited ms   computed   loaded MiB")?;
    for result in results {
        output::line(&format!(
            "{:<13} {:>9.1} ({:>8.1} .. {:>8.1}) {:>9.3} {:>11.1} {:>10} {:>12.1}",
            result.mode,
            result.ttft_ms_median,
            result.ttft_ms_min,
            result.ttft_ms_max,
            result.ratio_to_full,
            result.load_wait_ms_median,
            result.computed_tokens,
            result.loaded_bytes as f64 / f64::from(1 << 20),
        ))?;
    }
    Ok(())
}
