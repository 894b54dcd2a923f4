//! `ragstone bench search`

use std::path::PathBuf;

use ragstone_corpus::SearchMode;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::embedder;
use crate::bench::search::{ModeResult, Options, Report, measure};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Passages of the collection; of a folder's text about so many at the most
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    passages: usize,
    /// Files named .txt or .md instead of made texts
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Where the collection is kept, so that it is made once; else it goes away
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Embed the passages with the embedding model, which takes hours for 100,000; else their vectors are made of their words. Questions are
    /// embedded either way
    #[arg(long)]
    embed: bool,
    /// Ways to search: meaning, words, fused
    #[arg(long, value_enum, value_name = "MODE,…", value_delimiter = ',', default_value = "meaning,words,fused")]
    modes: Vec<Mode>,
    /// Searches at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8")]
    clients: Vec<usize>,
    /// Searches of each mode and number of clients in a round
    #[arg(long, value_name = "N", default_value_t = 100)]
    queries: usize,
    /// Rounds; each measures everything once
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Passages that a search answers with
    #[arg(long, value_name = "N", default_value_t = 5)]
    top_k: usize,
    /// Seed of texts and questions
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum Mode {
    Meaning,
    Words,
    Fused,
}

impl Mode {
    fn of(self) -> SearchMode {
        match self {
            Self::Meaning => SearchMode::Vector,
            Self::Words => SearchMode::FullText,
            Self::Fused => SearchMode::Fused,
        }
    }
}

/// Measures a collection of its own, never one of the data folder.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { passages, folder, keep, embed, modes, clients, queries, runs, top_k, seed, json } = args;
    let counts = [passages, queries, runs, top_k];
    if counts.iter().chain(&clients).any(|count| !(1..=1_000_000).contains(count)) {
        return Err(Error::invalid_input("every number of bench search must lie between 1 and 1000000"));
    }
    let options = Options {
        passages,
        folder,
        keep,
        embeds: embed,
        modes: modes.into_iter().map(Mode::of).collect(),
        clients,
        queries,
        runs,
        top_k,
        seed,
        vector_index_rows: config.settings.vector_index_rows,
        index_cache_bytes: config.settings.index_cache_bytes,
    };
    let report = measure(embedder(config).await?, options).await?;
    if json { output::json(&report) } else { print(&report) }
}

fn print(report: &Report) -> Result<()> {
    let machine = &report.machine;
    output::line(&format!("{}, {}", machine.threads(), machine.path))?;
    let Report { passages, texts, vectors, built_s, .. } = report;
    let vectors = if vectors == "words" { "made of words, not embedded" } else { "the embedding model's" };
    output::line(&format!("{passages} passages of texts: {texts}; vectors {vectors}; added in {built_s:.1} s\n"))?;
    output::line(
        "mode       clients    p50 ms    p95 ms  (medians)          searches/s (of one client)   embedding    vectors    words    reading ms",
    )?;
    report.results.iter().try_for_each(|result| output::line(&line(result)))
}

fn line(result: &ModeResult) -> String {
    let mode = match result.mode {
        SearchMode::Vector => "meaning",
        SearchMode::FullText => "words",
        SearchMode::Fused => "fused",
    };
    let parts = result.parts_ms;
    format!(
        "{mode:<10} {:>7} {:>9.1} {:>9.1}  ({:>5.1} to {:>5.1}) {:>13.1} {:>15} {:>11.1} {:>10.1} {:>8.1} {:>10.1}",
        result.clients,
        result.p50_ms,
        result.p95_ms,
        result.median_ms.least,
        result.median_ms.greatest,
        result.per_s.median,
        result.of_one_client.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        parts.embedding,
        parts.vectors,
        parts.words,
        parts.reading,
    )
}
