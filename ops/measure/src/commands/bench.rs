//! `ragstone bench`

mod drafts;
mod ingest;
mod kernels;
mod model;
mod overlap;
mod parity;
mod search;
mod serve;

use ragstone_actors::answer::blend::Blend;
use ragstone_actors::models::kernel_choice;
use ragstone_actors::models::language_model::Device;
use ragstone_cuda::GpuList;
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_kernels::model::LoadOptions;
use ragstone_models::embedder_source;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use crate::bench::{Shape, controller, realtime, tiers, ttft};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Have other programs wait while it measures (real-time scheduling), where the system lets it: for machines that nobody else
    /// needs meanwhile
    #[arg(long, global = true)]
    realtime: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Time to first token, by where the passages' KV comes from; random weights. Blended as the settings
    /// selector, selection_layer and recompute_ratio say (cacheblend on layer 2, 15 %)
    Ttft {
        /// The random model
        #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
        shape: Shape,
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
        /// Rows of the prompt that are computed together
        #[arg(long, value_name = "N", default_value_t = ttft::CHUNK_ROWS)]
        chunk: usize,
        /// Only these modes, and full, which the others are divided by
        #[arg(long, value_name = "MODE,…", value_delimiter = ',')]
        only: Vec<String>,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// The loading controller beside fixed recompute ratios, blending from a disk that is made slow; random weights of
    /// Qwen2.5-0.5B's shape
    Controller {
        /// What the disk carries at the most, in GB/s
        #[arg(long, value_name = "GB/S,…", value_delimiter = ',', default_value = "0.005,0.015,0.05,0.2,1,20")]
        speeds: Vec<f64>,
        /// Tokens of the prompt
        #[arg(long, value_name = "N", default_value_t = 2048)]
        tokens: usize,
        /// Passages of the prompt
        #[arg(long, value_name = "N", default_value_t = 8)]
        passages: usize,
        /// Rounds; each measures every way once
        #[arg(long, value_name = "N", default_value_t = 3)]
        runs: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Each kernel by itself, beside what this machine could do at most; with --device cuda, products and attention of a GPU
    Kernels(kernels::Args),
    /// How fast KV leaves each tier (with --device cuda to and from a GPU), beside plain copies, reads and GETs of the same bytes; the bucket is that
    /// of --set object_url=…, which ops/bench/tiers starts a server for
    Tiers {
        /// The model whose entries they are
        #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
        shape: Shape,
        /// Tokens of an entry, 12 KiB each with the shape of Qwen2.5-0.5B
        #[arg(long, value_name = "N", default_value_t = 256)]
        tokens: usize,
        /// Entries read in a round
        #[arg(long, value_name = "N", default_value_t = 64)]
        entries: usize,
        /// Rounds; each measures everything once
        #[arg(long, value_name = "N", default_value_t = 7)]
        runs: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Prefill and decode of a whole model: that of --model, or one of Qwen2.5-0.5B's shape with random weights
    Model(model::Args),
    /// Whether a GPU computes what the processor does: every kernel on random inputs, and the bits of rows; needs --device cuda
    Parity(parity::Args),
    /// Tokens a second of answers that quote their prompt, and of others, with drafts by look-up and without; random weights of
    /// Qwen2.5-0.5B's shape, and answers that are prescribed
    Drafts(drafts::Args),
    /// What clients of the whole service meet, through HTTP; random weights of Qwen2.5-0.5B's shape. Takes minutes, and 1 GB of
    /// the temporary folder
    Serve(Box<serve::Args>),
    /// How much of a slow search hides behind the prefill of what it finds, and what that costs others; random weights of Qwen2.5-0.5B's
    /// shape, random documents, and 1 GB of the temporary folder
    Overlap(Box<overlap::Args>),
    /// How fast a collection is searched by meaning, by words and by both, for one client and for several, and where the time goes; made texts,
    /// or a folder's
    Search(Box<search::Args>),
    /// Documents into a collection, beside the embedding of their passages alone: what cutting, tokenizing, committing and indexing cost
    Ingest(Box<ingest::Args>),
}

/// Runs a benchmark.
pub async fn run(config: &Config, Args { realtime, command }: Args) -> Result<()> {
    if realtime {
        // Before there are compute threads: they are scheduled as who starts them.
        realtime::try_real_time();
    }
    config.settings.prepare_compute()?;
    kernel_choice::choose(None)?;
    match command {
        Command::Ttft { shape, tokens, passages, runs, seed, chunk, only, json } => {
            if tokens > 32_768 {
                return Err(Error::invalid_input(format!("--tokens {tokens} is beyond the model's context of 32768")));
            }
            if passages == 0 || chunk == 0 {
                return Err(Error::invalid_input("--passages and --chunk must be at least 1"));
            }
            let Blend { selection, ratio, .. } = Blend::of(&config.settings, None);
            let runs = at_least_one(runs)?;
            let prompt_tokens = tokens;
            let options =
                ttft::Options { shape, prompt_tokens, passages, runs, selection, ratio, seed, chunk_rows: chunk, only };
            print_ttft(&ttft::measure(options, device(config)?, config.settings.load_options()).await?, json)
        }
        Command::Controller { speeds, tokens, passages, runs, json } => {
            if let Some(speed) = speeds.iter().find(|speed| !(0.001..=1000.0).contains(*speed)) {
                return Err(Error::invalid_input(format!(
                    "--speeds {speed}: a speed lies between 0.001 and 1000 GB/s"
                )));
            }
            let Blend { selection, ratio, .. } = Blend::of(&config.settings, None);
            let runs = at_least_one(runs)?;
            let shape = Shape::Qwen05b;
            let (chunk_rows, only) = (ttft::CHUNK_ROWS, Vec::new());
            let prompt = ttft::Options {
                shape,
                prompt_tokens: tokens,
                passages,
                runs,
                selection,
                ratio,
                seed: 1,
                chunk_rows,
                only,
            };
            let options = controller::Options { prompt, speeds };
            print_controller(&controller::measure(options, load_options(config)?).await?, json)
        }
        Command::Kernels(args) => kernels::run(config, args).await,
        Command::Tiers { shape, tokens, entries, runs, json } => {
            if tokens == 0 || entries == 0 {
                return Err(Error::invalid_input("--tokens and --entries must be at least 1"));
            }
            let object = config.settings.object();
            let (device, load) = (device(config)?, config.settings.load_options());
            let options = tiers::Options { shape, tokens, entries, runs: at_least_one(runs)?, object };
            print_tiers(&blocking(move || tiers::measure(&options, device, load)).await?, json)
        }
        Command::Model(args) => model::run(config, args).await,
        Command::Parity(args) => parity::run(config, args).await,
        Command::Drafts(args) => drafts::run(config, args).await,
        Command::Serve(args) => serve::run(config, *args).await,
        Command::Overlap(args) => overlap::run(config, *args).await,
        Command::Search(args) => search::run(config, *args).await,
        Command::Ingest(args) => ingest::run(config, *args).await,
    }
}

/// The device that is measured.
///
/// # Errors
/// `InvalidInput` where the settings leave it open.
fn device(config: &Config) -> Result<Device> {
    match &config.settings.device {
        Device::Auto => {
            Err(Error::invalid_input("a benchmark measures one device; take `--device cuda` or `--device cpu`"))
        }
        device => Ok(device.clone()),
    }
}

/// The GPU of a benchmark that looks at one by itself.
///
/// # Errors
/// `InvalidInput` where the settings name several.
fn one_gpu(gpus: &GpuList) -> Result<usize> {
    gpus.only()
        .ok_or_else(|| Error::invalid_input(format!("this looks at one GPU; take one of `--device cuda:{gpus}`")))
}

/// How a benchmark of the processor loads its model.
///
/// # Errors
/// `InvalidInput` where the settings name another device: nothing would be measured there.
fn load_options(config: &Config) -> Result<LoadOptions<'static>> {
    let settings = &config.settings;
    if settings.device != Device::Cpu {
        return Err(Error::invalid_input("this benchmark measures the processor; leave `device` out"));
    }
    Ok(settings.load_options())
}

fn at_least_one(runs: usize) -> Result<usize> {
    if runs == 0 { Err(Error::invalid_input("--runs 0: there must be at least one")) } else { Ok(runs) }
}

/// The embedding model of the settings, as the service loads it.
async fn embedder(config: &Config) -> Result<SentenceEncoder> {
    let found = embedder_source::find(config.surface.embedder.as_deref(), config.surface.offline).await?;
    let settings = config.settings.clone();
    blocking(move || settings.load_embedder(&found.path)).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(format!("the benchmark failed: {error}"))),
    }
}

fn print_ttft(results: &[ttft::ModeResult], json: bool) -> Result<()> {
    if json {
        return output::json(&results);
    }
    output::line(
        "mode                   TTFT ms (min .. max)          of full   of predicted   look-up ms   load ms   compute ms   \
         waited ms   computed   loaded MiB",
    )?;
    for result in results {
        output::line(&format!(
            "{:<18} {:>10.1} ({:>8.1} .. {:>8.1}) {:>9.3} {:>14} {:>12.1} {:>9.1} {:>12.1} {:>11.1} {:>10} {:>12.1}",
            result.mode,
            result.ttft_ms_median,
            result.ttft_ms_min,
            result.ttft_ms_max,
            result.ratio_to_full,
            if result.of_predicted.is_nan() { "-".into() } else { format!("{:.3}", result.of_predicted) },
            result.look_up_ms_median,
            result.load_ms_median,
            result.compute_ms_median,
            result.load_wait_ms_median,
            result.computed_tokens,
            result.loaded_bytes as f64 / f64::from(1 << 20),
        ))?;
    }
    Ok(())
}

fn print_controller(report: &controller::Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    output::line(
        "GB/s    way            TTFT ms (min .. max)         ratio  declined  predicted wrong by  computing  loading  efficiency",
    )?;
    for result in &report.speeds {
        for way in &result.ways {
            let times = way.ttft_ms;
            output::line(&format!(
                "{:<7} {:<11} {:>9.1} ({:>8.1} .. {:>8.1}) {:>6.3} {:>9} {:>18.1}% {:>10.2} {:>8.2} {:>11.2}",
                result.gb_per_s,
                way.way,
                times.median,
                times.least,
                times.greatest,
                way.ratio,
                way.declined,
                100.0 * way.prediction_error.median,
                way.compute_predicted.median,
                way.load_predicted.median,
                way.efficiency.median,
            ))?;
        }
        output::line(&format!("{:<7} the controller takes {:.3} of the best of the others\n", "", result.of_best))?;
    }
    let errors = report.predictions;
    output::line(&format!(
        "predictions were wrong by {:.1} % in the median, {:.1} % at the 95th percentile, of {} prompts",
        100.0 * errors.error_p50,
        100.0 * errors.error_p95,
        errors.prompts
    ))
}

fn print_tiers(report: &tiers::Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let machine = &report.machine;
    output::line(&format!("{}, {}, {}", machine.threads(), machine.path, machine.scheduling.describe()))?;
    output::line(&format!("{} entries of {} tokens\n", report.entries, report.tokens))?;
    output::line(
        "path                                  GB/s (min .. max)      beside                       GB/s   ratio (min .. max)",
    )?;
    for pair in &report.pairs {
        let (ours, raw, ratio) = (pair.ours_gbps, pair.raw_gbps, pair.ratio);
        output::line(&format!(
            "{:<37} {:>5.2} ({:>5.2} .. {:>5.2})  {:<26} {:>6.2}   {:.2} ({:.2} .. {:.2})",
            pair.path,
            ours.median,
            ours.least,
            ours.greatest,
            pair.raw,
            raw.median,
            ratio.median,
            ratio.least,
            ratio.greatest,
        ))?;
    }
    Ok(())
}
