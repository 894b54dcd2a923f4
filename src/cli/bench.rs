//! `ragstone bench`

mod drafts;
mod overlap;
mod serve;

use ragstone_actors::blend::Blend;
use ragstone_actors::language_model::Device;
use ragstone_kernels::model::LoadOptions;

use crate::bench::kernels::{Group, Shape};
use crate::bench::{Spread, controller, kernels, model, tiers, ttft};
use crate::cli::output;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model_source;
use crate::models::need;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Time to first token, by where the passages' KV comes from; random weights of Qwen2.5-0.5B's shape. Blended as the settings
    /// selector, selection_layer and recompute_ratio say (cacheblend on layer 2, 15 %)
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
    /// Each kernel by itself, beside what this machine could do at most
    Kernels {
        /// Measure only these
        #[arg(long, value_name = "GROUP", value_enum)]
        only: Vec<Group>,
        /// A shape of linear layers, such as 512x896x4864 (rows, inputs, outputs)
        #[arg(long = "shape", value_name = "RxIxO")]
        shapes: Vec<Shape>,
        /// Measure every instruction set that this machine has
        #[arg(long)]
        all_paths: bool,
        /// Rounds; each measures every kernel once
        #[arg(long, value_name = "N", default_value_t = 5)]
        runs: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// How fast KV leaves each tier, beside a plain copy, plain reads and plain GETs of the same bytes; the bucket is that
    /// of --set object_url=…, which ops/bench/tiers starts a server for
    Tiers {
        /// Tokens of an entry, of Qwen2.5-0.5B's shape: 12 KiB each
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
    Model {
        /// Lengths of prompts
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,2048,4096")]
        prefill: Vec<usize>,
        /// Tokens that stand before the first decoded one
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,4096")]
        context: Vec<usize>,
        /// Rounds; each measures every length once
        #[arg(long, value_name = "N", default_value_t = 3)]
        runs: usize,
        /// Also say where the time goes: products, attention and the others, in one more run of each length
        #[arg(long)]
        profile: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Tokens a second of answers that quote their prompt, and of others, with drafts by look-up and without; random weights of
    /// Qwen2.5-0.5B's shape, and answers that are prescribed
    Drafts(drafts::Args),
    /// What clients of the whole service meet, through HTTP; random weights of Qwen2.5-0.5B's shape. Takes minutes, and 1 GB of
    /// the temporary folder
    Serve(Box<serve::Args>),
    /// How much of a slow search hides behind the prefill of what it finds, and what that costs others; random weights of Qwen2.5-0.5B's
    /// shape, random documents, and 1 GB of the temporary folder
    Overlap(Box<overlap::Args>),
}

/// Runs a benchmark.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    config.settings.prepare_compute()?;
    match command {
        Command::Ttft { tokens, passages, runs, seed, json } => {
            if tokens > 32_768 {
                return Err(Error::invalid_input(format!("--tokens {tokens} is beyond the model's context of 32768")));
            }
            if passages == 0 {
                return Err(Error::invalid_input("--passages 0: there must be at least one"));
            }
            let Blend { selection, ratio, .. } = Blend::of(&config.settings, None);
            let runs = at_least_one(runs)?;
            let options = ttft::Options { prompt_tokens: tokens, passages, runs, selection, ratio, seed };
            print_ttft(&ttft::measure(options, load_options(config)?).await?, json)
        }
        Command::Controller { speeds, tokens, passages, runs, json } => {
            if let Some(speed) = speeds.iter().find(|speed| !(0.001..=1000.0).contains(*speed)) {
                return Err(Error::invalid_input(format!(
                    "--speeds {speed}: a speed lies between 0.001 and 1000 GB/s"
                )));
            }
            let Blend { selection, ratio, .. } = Blend::of(&config.settings, None);
            let runs = at_least_one(runs)?;
            let prompt = ttft::Options { prompt_tokens: tokens, passages, runs, selection, ratio, seed: 1 };
            let options = controller::Options { prompt, speeds };
            print_controller(&controller::measure(options, load_options(config)?).await?, json)
        }
        Command::Kernels { only, shapes, all_paths, runs, json } => {
            let options = kernels::Options { only, shapes, all_paths, runs: at_least_one(runs)? };
            let report = blocking(move || kernels::measure(&options)).await?;
            print_kernels(&report, json)
        }
        Command::Tiers { tokens, entries, runs, json } => {
            if tokens == 0 || entries == 0 {
                return Err(Error::invalid_input("--tokens and --entries must be at least 1"));
            }
            let object = config.settings.object();
            let options = tiers::Options { tokens, entries, runs: at_least_one(runs)?, object };
            print_tiers(&blocking(move || tiers::measure(&options)).await?, json)
        }
        Command::Model { prefill, context, runs, profile, json } => {
            if prefill.contains(&0) {
                return Err(Error::invalid_input("--prefill 0: a prompt has at least one token"));
            }
            let options = model::Options { prefill, contexts: context, runs: at_least_one(runs)?, profile };
            let surface = &config.surface;
            let folder = match &surface.model {
                Some(model) => {
                    let models = config.data()?.join("models");
                    Some(model_source::find(Some(model), surface.offline, &models).await?.path)
                }
                None => None,
            };
            let load = load_options(config)?;
            let report = blocking(move || model::measure(folder.as_deref(), load, &options)).await?;
            print_model(&report, json)
        }
        Command::Drafts(args) => drafts::run(config, args).await,
        Command::Serve(args) => serve::run(config, *args).await,
        Command::Overlap(args) => overlap::run(config, *args).await,
    }
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
    Ok(need::load_options(settings))
}

fn at_least_one(runs: usize) -> Result<usize> {
    if runs == 0 { Err(Error::invalid_input("--runs 0: there must be at least one")) } else { Ok(runs) }
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

fn print_kernels(report: &kernels::Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let (machine, ceilings) = (&report.machine, &report.ceilings);
    output::line(&format!("{} threads, {} (of {})", machine.threads, machine.path, machine.paths.join(", ")))?;
    output::line(&format!(
        "at most: {:.0} GFLOP/s f32, {:.0} GFLOP/s bf16, {:.0} GOP/s int8, reading {:.1} GB/s\n",
        ceilings.f32_gflops.median, ceilings.bf16_gflops.median, ceilings.int8_gops.median, ceilings.read_gbps.median
    ))?;
    output::line(
        "kernel            path        type  shape               ms (min .. max)             GFLOP/s    GB/s  of ceiling",
    )?;
    for result in &report.results {
        output::line(&format!(
            "{:<17} {:<11} {:<5} {:<15} {} {:>8} {:>7.1} {:>11.2}",
            result.kernel,
            result.path,
            result.precision,
            result.shape,
            milliseconds(result.seconds),
            if result.gflops.median > 0.0 { format!("{:.0}", result.gflops.median) } else { "-".into() },
            result.gbps.median,
            result.of_ceiling,
        ))?;
    }
    Ok(())
}

fn print_tiers(report: &tiers::Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    output::line(&format!("{} entries of {} tokens\n", report.entries, report.tokens))?;
    output::line(
        "path                                  GB/s (min .. max)      beside               GB/s   ratio (min .. max)",
    )?;
    for pair in &report.pairs {
        let (ours, raw, ratio) = (pair.ours_gbps, pair.raw_gbps, pair.ratio);
        output::line(&format!(
            "{:<37} {:>5.2} ({:>5.2} .. {:>5.2})  {:<18} {:>6.2}   {:.2} ({:.2} .. {:.2})",
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

fn print_model(report: &model::Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let machine = &report.machine;
    output::line(&format!(
        "{} threads, {}; weights {} ({:.0} MiB), products {}, KV {}; loaded in {:.2} s\n",
        machine.threads,
        machine.path,
        report.weights,
        report.weight_bytes as f64 / f64::from(1 << 20),
        report.compute,
        report.kv_dtype,
        report.load_seconds,
    ))?;
    output::line("                    ms (min .. max)                 tokens/s    GB/s")?;
    for prefill in &report.prefill {
        let rate = prefill.tokens_per_second.median;
        output::line(&format!("prefill {:<6} {} {rate:>12.1}", prefill.tokens, milliseconds(prefill.seconds)))?;
    }
    for decode in &report.decode {
        let (rate, gbps) = (decode.tokens_per_second.median, decode.gbps.median);
        let seconds = milliseconds(decode.seconds);
        output::line(&format!("decode@{:<6}  {seconds} {rate:>12.1} {gbps:>7.1}", decode.context))?;
    }
    let profiled = report.prefill.iter().map(|prefill| (format!("prefill {}", prefill.tokens), &prefill.parts));
    let profiled =
        profiled.chain(report.decode.iter().map(|decode| (format!("decode@{}", decode.context), &decode.parts)));
    let profiled: Vec<_> = profiled.filter(|(_, parts)| !parts.is_empty()).collect();
    let Some((_, first)) = profiled.first() else { return Ok(()) };
    let names: String = first.iter().map(|part| format!("{:>13}", part.part)).collect();
    output::line(&format!("\nshare of the time  {names}"))?;
    for (case, parts) in profiled {
        let shares: String = parts.iter().map(|part| format!("{:>11.1} %", part.share * 100.0)).collect();
        output::line(&format!("{case:<18} {shares}"))?;
    }
    Ok(())
}

fn milliseconds(seconds: Spread) -> String {
    let Spread { median, least, greatest } = seconds;
    format!("{:>9.3} ({:>9.3} .. {:>9.3})", median * 1e3, least * 1e3, greatest * 1e3)
}
