//! `ragstone eval`

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ragstone_actors::{FIRST_SELECTION_LAYER, Folders, Ragstone, Rule};
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_storage::corpus::{Corpus, CorpusOptions};
use ragstone_storage::env::Env;
use ragstone_storage::store::AdmissionRule;
use ragstone_storage::tier::object::ConnectionOptions;
use sha2::{Digest, Sha256};

use crate::cli::output;
use crate::config::Config;
use crate::data_folder::DataFolder;
use crate::error::{Error, ErrorKind, Result};
use crate::eval::answers::{Options, answers};
use crate::eval::dataset::{self, Item};
use crate::eval::report::{Answered, AnswersReport, Axes, Behind, Choice, Mode, Variant};
use crate::eval::retrieval::{EvalProgress, RetrievalEncoder, RetrievalReport, retrieval};
use crate::model_source::hex;
use crate::progress::{Progress, Unit};
use crate::{access, embedder_source, model_source, service};

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
    /// Recall of each question's own passages: by vectors, by words, and fused
    #[arg(long, group = "measure")]
    retrieval: bool,
    /// F1 and exact match of the model's answers over each question's own passages, by where their KV comes from
    #[arg(long, group = "measure", value_name = "MODES", value_enum, value_delimiter = ',')]
    mode: Vec<Mode>,
    #[command(flatten)]
    answers: AnswerArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of --mode.
#[derive(Debug, clap::Args)]
struct AnswerArgs {
    /// Shares of the blended passages' tokens that blend recomputes
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', default_value = "0.15", value_parser = ratio, conflicts_with = "retrieval")]
    ratio: Vec<f32>,
    /// The rules by which blend chooses tokens: cacheblend, cacheblend-k, cacheblend-v, first-k, question-attention,
    /// critical-layer, two-stage, random (the control), none, all
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "cacheblend", value_parser = Rule::from_name, conflicts_with = "retrieval")]
    selector: Vec<Rule>,
    /// When rules that can choose more than once do
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        value_delimiter = ',',
        default_value = "one-shot",
        conflicts_with = "retrieval"
    )]
    choice: Vec<Choice>,
    /// The first layer on which tokens are chosen, those before it computing all; of critical-layer, the layer that is looked
    /// at [default: each rule's own]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "retrieval")]
    layer: Vec<usize>,
    /// What stood before each passage as its KV was computed, for reuse and blend
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        value_delimiter = ',',
        default_value = "root",
        conflicts_with = "retrieval"
    )]
    behind: Vec<Behind>,
    /// Seed of the rule random
    #[arg(long, value_name = "SEED", default_value_t = 1, conflicts_with = "retrieval")]
    seed: u64,
    /// Only questions of this type
    #[arg(long = "type", value_name = "NAME", conflicts_with = "retrieval")]
    kind: Option<String>,
    /// Only the first N questions
    #[arg(long, value_name = "N", conflicts_with = "retrieval", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// The longest answer, in tokens
    #[arg(long, value_name = "N", default_value_t = 32, conflicts_with = "retrieval", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Score only what follows this text in an answer, where it occurs (the demo model compares as "Mira Vosman 3, Lora Selholm 5, so Lora Selholm")
    #[arg(long, value_name = "TEXT", conflicts_with = "retrieval")]
    answer_after: Option<String>,
    /// Write every answer to this file, one JSON object a line
    #[arg(long, value_name = "FILE", conflicts_with = "retrieval")]
    answers: Option<PathBuf>,
}

impl AnswerArgs {
    fn axes(&self) -> Result<Axes> {
        let deviates = |rule: &Rule| matches!(rule, Rule::Cacheblend | Rule::CacheblendK | Rule::CacheblendV);
        if self.layer.iter().any(|layer| *layer < FIRST_SELECTION_LAYER) && self.selector.iter().any(deviates) {
            let message = "--layer 0: cacheblend wants a layer from 1 on, as K and V of layer 0 never deviate";
            return Err(Error::invalid(message.to_owned()));
        }
        Ok(Axes {
            ratios: self.ratio.clone(),
            selectors: self.selector.clone(),
            choices: self.choice.clone(),
            layers: self.layer.clone(),
            behind: self.behind.clone(),
        })
    }
}

fn ratio(text: &str) -> Result<f32, String> {
    let ratio = text.trim().parse::<f32>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "0.0 to 1.0 is wanted, such as 0.15".to_owned())
}

/// Measures retrieval or answers.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.retrieval {
        return run_retrieval(config, &args).await;
    }
    let items = choose(&args.dataset, &args.answers)?;
    tokio::select! {
        done = run_answers(config, &args, items) => done,
        interrupted = access::interrupted() => Err(interrupted),
    }
}

/// Measures retrieval in a corpus of its own (`DATA/eval`), beside whatever the data folder's service is doing.
async fn run_retrieval(config: &Config, args: &Args) -> Result<()> {
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
    if args.json { output::json(&report) } else { retrieval_table(&report) }
}

fn retrieval_table(report: &RetrievalReport) -> Result<()> {
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

/// The questions asked for, with their places in the data set.
fn choose(dataset: &Path, args: &AnswerArgs) -> Result<Vec<(usize, Item)>> {
    let items = dataset::read_answered(dataset)?;
    let mut kinds: Vec<String> = items.iter().filter_map(|item| item.kind.clone()).collect();
    let wanted = |item: &Item| args.kind.is_none() || item.kind == args.kind;
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let chosen: Vec<_> = items.into_iter().enumerate().filter(|(_, item)| wanted(item)).take(limit).collect();
    if chosen.is_empty() {
        kinds.sort();
        kinds.dedup();
        let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
        let kind = args.kind.as_deref().unwrap_or_default();
        return Err(Error::invalid(format!(
            "{} has no question of type `{kind}`; its types are: {kinds}",
            dataset.display()
        )));
    }
    Ok(chosen)
}

/// Answers on a store of its own in the system's temporary folder, which goes away with it.
async fn run_answers(config: &Config, args: &Args, items: Vec<(usize, Item)>) -> Result<()> {
    let mut lines = args.answers.answers.as_deref().map(Lines::create).transpose()?;
    let folder = tempfile::Builder::new().prefix("ragstone-eval-").tempdir();
    let folder = folder.map_err(|error| Error::io("cannot create a folder in", &std::env::temp_dir(), &error))?;
    let ragstone = open(config, folder.path()).await?;
    let options = Options {
        variants: Variant::of(&args.mode, &args.answers.axes()?),
        seed: args.answers.seed,
        max_tokens: args.answers.max_tokens as usize,
        answer_after: args.answers.answer_after.clone(),
    };
    let progress = Progress::new("answering questions", Unit::Items);
    let (mut done, total) = (0, items.len() as u64);
    let mut each = |answered: &[Answered]| {
        done += 1;
        progress.set(done, total);
        lines.as_mut().map_or(Ok(()), |lines| lines.write(answered))
    };
    let report = answers(&ragstone, &items, &options, &mut each).await?;
    ragstone.close().await?;
    if args.json { output::json(&report) } else { answers_table(&report) }
}

fn answers_table(report: &AnswersReport) -> Result<()> {
    report.table().iter().try_for_each(|line| output::line(line))
}

/// The program with everything in `folder`, the demo model's files included.
async fn open(config: &Config, folder: &Path) -> Result<Ragstone> {
    let surface = &config.surface;
    let model = model_source::find(surface.model.as_deref(), surface.offline, &folder.join("models")).await?;
    let embedder = embedder_source::find(surface.embedder.as_deref(), surface.offline).await?;
    let mut settings = config.settings.clone();
    settings.disk_bytes = settings.disk_bytes.min(MOST_DISK_BYTES);
    // What is measured neither goes to a shared bucket nor comes from there.
    settings.object_url = None;
    settings.object_options = ConnectionOptions::default();
    (settings.object_ttl_s, settings.object_max_bytes) = (0, 0);
    // An answer is measured only where its passages were loaded as the mode says: none is computed because that is faster.
    settings.kv_admission = AdmissionRule::Always;
    settings.calibrate_when_idle = false;
    let folders = Folders { data: folder.join("data"), model: model.path, model_id: model.id, embedder: embedder.path };
    let bars = std::sync::Mutex::new(None);
    let show = move |progress| service::show_loading(&bars, progress);
    Ok(Ragstone::open(settings, &folders, Env::from_environment()?, show).await?)
}

/// A file of JSON lines, whole up to the last question.
struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| Error::io("cannot write", path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(&mut self, answered: &[Answered]) -> Result<()> {
        let mut text = String::new();
        for answered in answered {
            let line = serde_json::to_string(answered);
            text += &line.map_err(|error| Error::new(ErrorKind::Internal, format!("an answer as JSON: {error}")))?;
            text.push('\n');
        }
        self.file.write_all(text.as_bytes()).map_err(|error| Error::io("cannot write", &self.path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!((ratio("0.15"), ratio(" 1 "), ratio("0")), (Ok(0.15), Ok(1.0), Ok(0.0)));
        for bad in ["", "x", "-0.1", "1.1", "NaN", "15%"] {
            assert!(ratio(bad).is_err(), "{bad}");
        }
    }
}
