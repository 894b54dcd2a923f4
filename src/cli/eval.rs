//! `ragstone eval`

use std::path::PathBuf;
use std::sync::Arc;

use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_storage::corpus::{Corpus, CorpusOptions};
use sha2::{Digest, Sha256};

use crate::cli::output;
use crate::config::Config;
use crate::data_folder::DataFolder;
use crate::embedder_source;
use crate::error::{Error, Result};
use crate::eval_retrieval::{EvalProgress, RetrievalEncoder, RetrievalReport, retrieval};
use crate::model_source::hex;
use crate::progress::{Progress, Unit};

/// Every data set has a collection of this one corpus, named by its content.
const FOLDER: &str = "eval";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// An array of {"question", "ctxs": [{"title"?, "text"}]}, such as MuSiQue
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Recall of each question's own passages: by vectors, by words, and fused
    #[arg(long, required = true)]
    retrieval: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures retrieval in a corpus of its own (`DATA/eval`), beside whatever the data folder's service is doing.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let folder = DataFolder::create(&config.data()?.join(FOLDER))?;
    let held = folder.try_hold("eval")?.ok_or_else(|| folder.in_use())?;
    let embedder = embedder_source::find(config.surface.embedder.as_deref(), config.surface.offline).await?;
    let encoder = tokio::task::spawn_blocking(move || SentenceEncoder::load(&embedder.path)).await;
    let encoder =
        encoder.map_err(|error| Error::internal(format!("loading the embedding model broke off: {error}")))??;
    // Another embedding model is another corpus, not an error: measuring is what this is for.
    let path = held.path().join(encoder.identity());
    let corpus = Corpus::open(&path, Arc::new(RetrievalEncoder(encoder)), CorpusOptions::default()).await?;
    let bytes = std::fs::read(&args.dataset).map_err(|error| Error::io("cannot read", &args.dataset, &error))?;
    let collection = format!("set-{}", &hex(&Sha256::digest(&bytes))[..16]);
    let (ingesting, asking) = (Progress::new("ingesting passages", Unit::Items), Progress::new("asking", Unit::Items));
    let show = move |progress| match progress {
        EvalProgress::Ingesting { done, total } => ingesting.set(done as u64, total as u64),
        EvalProgress::Asking { done, total } => asking.set(done as u64, total as u64),
    };
    let report = retrieval(&corpus, &args.dataset, &collection, &show).await?;
    if args.json { output::json(&report) } else { table(&report) }
}

fn table(report: &RetrievalReport) -> Result<()> {
    output::line(&format!("{} passages, {} questions", report.passages, report.questions))?;
    output::line("mode        recall@5   recall@10   ms per question")?;
    for mode in &report.modes {
        let name = format!("{:?}", mode.mode).to_lowercase();
        output::line(&format!(
            "{name:<11} {:>8.4} {:>11.4} {:>17.1}",
            mode.recall_at_5, mode.recall_at_10, mode.query_ms_median
        ))?;
    }
    Ok(())
}
