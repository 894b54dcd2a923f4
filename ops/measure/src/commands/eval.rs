//! `ragstone eval`

mod answers;
mod figures;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ragstone_actors::models::language_model::Device;
use ragstone_actors::{Folders, Ragstone};
use ragstone_corpus::{Corpus, CorpusOptions};
use ragstone_env::Env;
use ragstone_models::{embedder_source, model_source};
use ragstone_service::config::Config;
use ragstone_service::data_folder::DataFolder;
use ragstone_service::{access, service};
use ragstone_storage::store::AdmissionRule;
use ragstone_storage::tier::object::ConnectionOptions;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::eval::plot::{Chart, page};
use crate::eval::retrieval::{EvalProgress, Reranker, RetrievalEncoder, RetrievalReport, retrieval};
use crate::eval::variant::Mode;

/// Every data set has a collection of this one corpus, named by its content.
const FOLDER: &str = "eval";
/// Stored KV of answers that are measured goes to the system's temporary folder: at most so much.
const MOST_DISK_BYTES: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("measure").required(true)))]
pub struct Args {
    /// An array of {"question", "ctxs": [{"title"?, "text"}], "answers", "type"?}, such as MuSiQue
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Recall and nDCG of each question's own passages: by vectors, by words, and fused
    #[arg(long, group = "measure")]
    retrieval: bool,
    /// Of --retrieval: then put the first N passages of each fused search in order, by --reranker or the language model
    #[arg(long, value_name = "N", conflicts_with_all = ["mode", "figures"], value_parser = clap::value_parser!(u16).range(1..=50))]
    rerank: Option<u16>,
    /// F1, exact match, Rouge-L and time to first token of the model's answers over each question's own passages, by where their KV
    /// comes from
    #[arg(long, group = "measure", value_name = "MODES", value_enum, value_delimiter = ',')]
    mode: Vec<Mode>,
    /// What figures 6 to 8 of the CacheBlend paper show, for this model: how far attention is from a full prefill's by --selector and
    /// --ratio, how KV deviation is distributed over tokens, its rank correlation between layers
    #[arg(long, group = "measure")]
    figures: bool,
    #[command(flatten)]
    answers: answers::AnswerArgs,
    /// Draw what was measured (quality against time to first token, or the figures) into this SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "retrieval")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures retrieval, answers or deviation.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.retrieval {
        return run_retrieval(config, &args).await;
    }
    let work =
        async { if args.figures { figures::run(config, &args).await } else { answers::run(config, &args).await } };
    tokio::select! {
        done = work => done,
        interrupted = access::interrupted() => Err(answers::told(&args, interrupted)),
    }
}

/// Measures retrieval in a corpus of its own (`DATA/eval`), beside whatever the data folder's service is doing.
async fn run_retrieval(config: &Config, args: &Args) -> Result<()> {
    let folder = DataFolder::create(&config.data()?.join(FOLDER))?;
    let held = folder.try_hold("eval")?.ok_or_else(|| folder.in_use())?;
    let embedder = embedder_source::find(config.surface.embedder.as_deref(), config.surface.offline).await?;
    let settings = config.settings.clone();
    // Before anything computes.
    settings.prepare_compute()?;
    let encoder = tokio::task::spawn_blocking(move || settings.load_embedder(&embedder.path)).await;
    let encoder =
        encoder.map_err(|error| Error::internal(format!("loading the embedding model broke off: {error}")))??;
    // Another embedding model is another corpus, not an error: measuring is what this is for.
    let path = held.path().join(encoder.identity());
    let options = CorpusOptions {
        chunk_tokens: config.settings.chunk_tokens,
        chunk_overlap_tokens: config.settings.chunk_overlap_tokens,
        ..CorpusOptions::default()
    };
    let corpus = Corpus::open(&path, Arc::new(RetrievalEncoder(encoder)), options).await?;
    let bytes = std::fs::read(&args.dataset).map_err(|error| Error::io("cannot read", &args.dataset, error))?;
    let collection = format!("set-{}", &hex::encode(Sha256::digest(&bytes))[..16]);
    let (ingesting, asking) = (Progress::new("ingesting passages", Unit::Items), Progress::new("asking", Unit::Items));
    let show = move |progress| match progress {
        EvalProgress::Ingesting { done, total } => ingesting.set(done as u64, total as u64),
        EvalProgress::Asking { done, total } => asking.set(done as u64, total as u64),
    };
    let opened = if args.rerank.is_some() { Some(open(config).await?) } else { None };
    let reranker = opened.as_ref().zip(args.rerank);
    let reranker = reranker.map(|((ragstone, _), count)| Reranker { ragstone, candidates: count.into() });
    let report = retrieval(&corpus, &args.dataset, &collection, reranker, &show).await?;
    if let Some((ragstone, _)) = &opened {
        ragstone.close().await?;
    }
    if args.json { output::json(&report) } else { retrieval_table(&report) }
}

fn retrieval_table(report: &RetrievalReport) -> Result<()> {
    output::line(&format!("{} passages, {} questions", report.passages, report.questions))?;
    output::line("mode               recall@5 (95 %)      recall@10      nDCG@10 (95 %)   ms per question")?;
    for mode in &report.modes {
        let mut name = format!("{:?}", mode.mode).to_lowercase();
        if mode.rerank > 0 {
            name.push_str(&format!(", rerank {}", mode.rerank));
        }
        let between =
            |interval: Option<[f64; 2]>| interval.map_or_else(String::new, |[a, b]| format!("{a:.3}..{b:.3}"));
        output::line(&format!(
            "{name:<17} {:.4} ({:<12}) {:>8.4}   {:.4} ({:<12}) {:>9.1}",
            mode.recall_at_5,
            between(mode.recall_at_5_interval),
            mode.recall_at_10,
            mode.ndcg_at_10,
            between(mode.ndcg_at_10_interval),
            mode.query_ms_median
        ))?;
    }
    for less in &report.fused_less {
        let [from, to] = less.interval.unwrap_or_default();
        let than = format!("{:?}", less.than).to_lowercase();
        output::line(&format!("fused less {than:<10} nDCG@10 {:+.4} ({from:+.3}..{to:+.3})", less.ndcg_at_10))?;
    }
    Ok(())
}

/// The program with everything in a folder of its own in the system's temporary one, the demo model's files included; it goes away
/// with the second value.
async fn open(config: &Config) -> Result<(Ragstone, TempDir)> {
    let kept = tempfile::Builder::new().prefix("ragstone-eval-").tempdir();
    let kept = kept.map_err(|error| Error::io("cannot create a folder in", &std::env::temp_dir(), error))?;
    let (folder, surface) = (kept.path(), &config.surface);
    let models = folder.join("models");
    let model = model_source::find(surface.model.as_deref(), surface.offline, &models).await?;
    let adapter = model_source::adapter::find(
        surface.adapter.as_deref(),
        &model,
        config.settings.device == Device::Cpu,
        &models,
    )?;
    let embedder = embedder_source::find(surface.embedder.as_deref(), surface.offline).await?;
    let mut settings = config.settings.clone();
    settings.disk_bytes = settings.disk_bytes.min(MOST_DISK_BYTES);
    // What is measured neither goes to a shared bucket nor comes from there.
    (settings.object_url, settings.corpus_url) = (None, None);
    settings.object_options = ConnectionOptions::default();
    (settings.object_ttl_s, settings.object_max_bytes) = (0, 0);
    // An answer is measured only where its passages were loaded as the mode says: none is computed because that is faster.
    settings.kv_admission = AdmissionRule::Always;
    settings.calibrate_when_idle = false;
    let reranker = embedder_source::find_reranker(surface.reranker.as_deref(), surface.offline).await?;
    let folders = Folders {
        data: folder.join("data"),
        model: model.path,
        adapter,
        model_id: model.id,
        embedder: embedder.path,
        reranker: reranker.map(|reranker| reranker.path),
    };
    let bars = std::sync::Mutex::new(None);
    let show = move |progress| service::show_loading(&bars, progress);
    Ok((Ragstone::open(settings, &folders, Env::from_environment()?, show).await?, kept))
}

/// Writes charts to a file.
fn plot(path: &Path, charts: &[Chart]) -> Result<()> {
    std::fs::write(path, page(charts)).map_err(|error| Error::io("cannot write", path, error))
}
