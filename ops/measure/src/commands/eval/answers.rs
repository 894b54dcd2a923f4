//! `ragstone eval --mode`

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ragstone_actors::{Ragstone, Rule, Selection};
use ragstone_kernels::simd;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};
use sha2::{Digest, Sha256};

use super::{Args, open, plot};
use crate::error::{Error, ErrorKind, Result};
use crate::eval::answers::{Options, Step, answers};
use crate::eval::chart::{Quality, quality};
use crate::eval::dataset::{self, Item};
use crate::eval::journal::{Bound, Journal, kernels_of};
use crate::eval::report::Answered;
use crate::eval::variant::{After, Axes, Choice, Variant};

/// What blending is measured by unless something else is asked for.
const RATIOS: [f32; 1] = [0.15];
const SELECTORS: [Rule; 1] = [Rule::Cacheblend];

/// Options of --mode.
#[derive(Debug, clap::Args)]
pub struct AnswerArgs {
    /// Shares of the blended passages' tokens that blend recomputes [default: 0.15; of --figures, ten from 0 to 1]
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', value_parser = ratio, conflicts_with = "retrieval")]
    ratio: Vec<f32>,
    /// The rules by which blend chooses tokens: cacheblend, cacheblend-k, cacheblend-v, first-k, question-attention,
    /// critical-layer, two-stage, random (the control), none, all [default: cacheblend; of --figures, random, too]
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = Rule::from_name, conflicts_with = "retrieval")]
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
        default_value = "system-prompt",
        conflicts_with_all = ["retrieval", "figures"]
    )]
    after: Vec<After>,
    /// Seed of the rule random, and of the intervals
    #[arg(long, value_name = "SEED", default_value_t = 1, conflicts_with = "retrieval")]
    seed: u64,
    /// Only questions of this type
    #[arg(long = "type", value_name = "NAME", conflicts_with_all = ["retrieval", "figures"])]
    kind: Option<String>,
    /// Only the first N questions
    #[arg(long, value_name = "N", conflicts_with = "retrieval", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// The longest answer, in tokens
    #[arg(long, value_name = "N", default_value_t = 32, conflicts_with_all = ["retrieval", "figures"], value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Score only what follows this text in an answer, where it occurs (the demo model compares as "Mira Vosman 3, Lora Selholm 5, so Lora Selholm")
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["retrieval", "figures"])]
    answer_after: Option<String>,
    /// Write every answer to this file, one JSON object a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["retrieval", "figures"])]
    answers: Option<PathBuf>,
    /// Keep every answer in this file as it comes, and go on with what it has: an interrupted run, or one with fewer modes,
    /// of the same data set, model and settings
    #[arg(long, value_name = "FILE", conflicts_with_all = ["retrieval", "figures"])]
    resume: Option<PathBuf>,
    /// What map-reduce asks of each passage; {question} stands for the question
    #[arg(long, value_name = "TEXT", default_value = "{question}", conflicts_with_all = ["retrieval", "figures"])]
    map_prompt: String,
    /// What --plot shows
    #[arg(
        long,
        value_name = "MEASURE",
        value_enum,
        default_value = "f1",
        requires = "plot",
        conflicts_with_all = ["retrieval", "figures"]
    )]
    quality: Quality,
}

impl AnswerArgs {
    /// The most questions.
    pub fn most(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| limit as usize)
    }

    /// Of rules that draw.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What blending is measured by, with what is taken where nothing was said.
    pub fn axes(&self, ratios: &[f32], selectors: &[Rule]) -> Result<Axes> {
        let or = |given: &[Rule]| if given.is_empty() { selectors.to_vec() } else { given.to_vec() };
        let refuses = |rule: &Rule| self.layer.iter().any(|layer| !Selection::by(*rule).takes_layer(*layer));
        if or(&self.selector).iter().any(refuses) {
            let message = "--layer 0: cacheblend wants a layer from 1 on, as K and V of layer 0 never deviate";
            return Err(Error::invalid_input(message.to_owned()));
        }
        Ok(Axes {
            ratios: if self.ratio.is_empty() { ratios.to_vec() } else { self.ratio.clone() },
            selectors: or(&self.selector),
            choices: self.choice.clone(),
            layers: self.layer.clone(),
            after: self.after.clone(),
        })
    }
}

fn ratio(text: &str) -> Result<f32, String> {
    let ratio = text.trim().parse::<f32>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "0.0 to 1.0 is wanted, such as 0.15".to_owned())
}

/// The questions asked for, with their places in the data set.
fn choose(dataset: &Path, args: &AnswerArgs) -> Result<Vec<(usize, Item)>> {
    let items = dataset::read_answered(dataset)?;
    let mut kinds: Vec<String> = items.iter().filter_map(|item| item.kind.clone()).collect();
    let wanted = |item: &Item| args.kind.is_none() || item.kind == args.kind;
    let chosen: Vec<_> = items.into_iter().enumerate().filter(|(_, item)| wanted(item)).take(args.most()).collect();
    if chosen.is_empty() {
        kinds.sort();
        kinds.dedup();
        let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
        let kind = args.kind.as_deref().unwrap_or_default();
        return Err(Error::invalid_input(format!(
            "{} has no question of type `{kind}`; its types are: {kinds}",
            dataset.display()
        )));
    }
    Ok(chosen)
}

/// Answers on a store of its own in the system's temporary folder, which goes away with it.
pub async fn run(config: &Config, args: &Args) -> Result<()> {
    let asked = &args.answers;
    let items = choose(&args.dataset, asked)?;
    let options = Options {
        variants: Variant::of(&args.mode, &asked.axes(&RATIOS, &SELECTORS)?),
        seed: asked.seed,
        max_tokens: asked.max_tokens as usize,
        answer_after: asked.answer_after.clone(),
        map_prompt: asked.map_prompt.clone(),
    };
    let outputs = [&asked.answers, &asked.resume, &args.plot].into_iter().flatten().chain([&args.dataset]);
    let outputs: Vec<_> = outputs.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())).collect();
    if let Some(path) = outputs.iter().enumerate().find_map(|(at, path)| outputs[..at].contains(path).then_some(path)) {
        return Err(Error::invalid_input(format!(
            "{} is named twice; each file has a name of its own",
            path.display()
        )));
    }
    let begun_by = asked.resume.as_deref().and_then(kernels_of).filter(simd::Paths::can_run);
    if let (Some(kernels), None) = (begun_by, &config.settings.kernels) {
        kernels.choose()?;
    }
    let (ragstone, _folder) = open(config).await?;
    let mut journal = match &asked.resume {
        Some(path) => Journal::open(path, &bound(&args.dataset, &ragstone, &options)?)?,
        None => Journal::default(),
    };
    // Not before the journal was found to be of this run: a refusal loses nothing.
    let mut lines = asked.answers.as_deref().map(Lines::create).transpose()?;
    let progress = Progress::new("answering", Unit::Items);
    let mut each = |step: Step<'_>| match step {
        Step::Asked { done, total } => {
            progress.set(done as u64, total as u64);
            Ok(())
        }
        Step::Answered(answered) => lines.as_mut().map_or(Ok(()), |lines| lines.write(answered)),
    };
    let report = answers(&ragstone, &items, &options, &mut journal, &mut each).await?;
    // The report first: what fails behind it costs no figures.
    match args.json {
        true => output::json(&report)?,
        false => report.table().iter().try_for_each(|line| output::line(line))?,
    }
    if let Some(path) = &args.plot {
        plot(path, &[quality(&report, asked.quality)])?;
    }
    ragstone.close().await
}

/// What answers depend on beside question and variant.
fn bound(dataset: &Path, ragstone: &Ragstone, options: &Options) -> Result<Bound> {
    let bytes = std::fs::read(dataset).map_err(|error| Error::io("cannot read", dataset, error))?;
    let settings = serde_json::to_vec(ragstone.settings())
        .map_err(|error| Error::internal(format!("the settings as JSON: {error}")))?;
    Ok(Bound {
        ragstone: env!("CARGO_PKG_VERSION").into(),
        build: build()?,
        dataset: hex::encode(Sha256::digest(&bytes)),
        model: ragstone.store().fingerprint().to_string(),
        chat_template: ragstone
            .chat_template()
            .map_or_else(String::new, |it| hex::encode(Sha256::digest(it.as_bytes()))),
        settings: hex::encode(Sha256::digest(&settings)),
        kernels: Some(simd::Paths::in_use()),
        threads: rayon::current_num_threads(),
        date: ragstone.date_in_prompts().map(|today| today.format("%Y-%m-%d")),
        max_tokens: options.max_tokens,
        seed: options.seed,
        map_prompt: options.map_prompt.clone(),
    })
}

/// Digest of the program that runs.
fn build() -> Result<String> {
    // It may have been replaced since it was started; Linux has the one that was.
    let own = Path::new("/proc/self/exe");
    let path = if own.exists() { Ok(own.to_owned()) } else { std::env::current_exe() };
    let path = path.map_err(|error| Error::internal(format!("where this program is: {error}")))?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    let cannot = |error: std::io::Error| Error::io("cannot read", &path, error);
    let mut file = File::open(&path).map_err(cannot)?;
    loop {
        match file.read(&mut buffer).map_err(cannot)? {
            0 => return Ok(hex::encode(digest.finalize())),
            read => digest.update(&buffer[..read]),
        }
    }
}

/// What somebody is told who interrupted it.
pub fn told(args: &Args, interrupted: Error) -> Error {
    let told = match &args.answers.resume {
        Some(path) => format!("interrupted; the same command goes on with what {} has", path.display()),
        None => "interrupted; with --resume FILE it could go on later".to_owned(),
    };
    if interrupted.kind() == ErrorKind::Cancelled { Error::new(ErrorKind::Cancelled, told) } else { interrupted }
}

/// A file of JSON lines, whole up to the last question.
struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| Error::io("cannot write", path, error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(&mut self, answered: &[Answered]) -> Result<()> {
        let mut text = String::new();
        for answered in answered {
            let line = serde_json::to_string(answered);
            text += &line.map_err(|error| Error::new(ErrorKind::Internal, format!("an answer as JSON: {error}")))?;
            text.push('\n');
        }
        self.file.write_all(text.as_bytes()).map_err(|error| Error::io("cannot write", &self.path, error))
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
