//! `ragstone bench ingest`

use std::path::PathBuf;

use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::embedder;
use crate::bench::Spread;
use crate::bench::ingest::{Options, Report, measure};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Passages, about
    #[arg(long, value_name = "N", default_value_t = 512)]
    passages: usize,
    /// Files named .txt or .md instead of made texts
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Rounds; each measures the whole and embedding once
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Seed of the texts
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures in a folder that goes away with it.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { passages, folder, runs, seed, json } = args;
    if [passages, runs].iter().any(|count| !(1..=1_000_000).contains(count)) {
        return Err(Error::invalid_input("--passages and --runs must lie between 1 and 1000000"));
    }
    let settings = &config.settings;
    let (chunk_tokens, chunk_overlap_tokens) = (settings.chunk_tokens, settings.chunk_overlap_tokens);
    let options = Options { passages, folder, runs, seed, chunk_tokens, chunk_overlap_tokens };
    let report = measure(embedder(config).await?, options).await?;
    if json { output::json(&report) } else { print(&report) }
}

fn print(report: &Report) -> Result<()> {
    let machine = &report.machine;
    output::line(&format!("{}, {}", machine.threads(), machine.path))?;
    let Report { documents, passages, tokens, .. } = report;
    output::line(&format!("{documents} documents, {passages} passages, {tokens} tokens\n"))?;
    output::line("                     passages/s (least to greatest)        tokens/s (least to greatest)")?;
    for (name, rates) in [("the whole", &report.whole), ("embedding alone", &report.embedding)] {
        let shown = |spread: &Spread| format!("{:.1} ({:.1} to {:.1})", spread.median, spread.least, spread.greatest);
        output::line(&format!("{name:<18} {:>32} {:>35}", shown(&rates.passages_per_s), shown(&rates.tokens_per_s)))?;
    }
    let Spread { median, least, greatest } = report.of_embedding;
    output::line(&format!("\nthe whole is {median:.2} ({least:.2} to {greatest:.2}) of embedding alone"))
}
