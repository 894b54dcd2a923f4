//! `ragstone bench model`

use ragstone_models::model_source;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::{at_least_one, blocking, device, milliseconds};
use crate::bench::Shape;
use crate::bench::model::{Options, Report, measure};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The random model, where --model names none
    #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
    shape: Shape,
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
}

pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { shape, prefill, context, runs, profile, json } = args;
    if prefill.contains(&0) {
        return Err(Error::invalid_input("--prefill 0: a prompt has at least one token"));
    }
    let options = Options { shape, prefill, contexts: context, runs: at_least_one(runs)?, profile };
    let surface = &config.surface;
    let folder = match &surface.model {
        Some(model) => {
            let models = config.data()?.join("models");
            Some(model_source::find(Some(model), surface.offline, &models).await?.path)
        }
        None => None,
    };
    let (device, load) = (device(config)?, config.settings.load_options());
    print(&blocking(move || measure(folder.as_deref(), device, load, &options)).await?, json)
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let machine = &report.machine;
    output::line(&format!(
        "{}, {}; weights {} ({:.0} MiB), products {}, KV {}; loaded in {:.2} s\n",
        machine.threads(),
        machine.gpu.as_deref().unwrap_or(&machine.path),
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
    for decode in &report.decode {
        let (Some(without), Some(launches)) = (&decode.without_graphs, decode.launches_per_token) else { continue };
        let (seconds, ratio) = (milliseconds(without.seconds), without.ratio);
        output::line(&format!(
            "without graphs@{:<6} {seconds}  {:.2} times as long ({:.2} .. {:.2}); launches a token: {} instead of {launches}",
            decode.context, ratio.median, ratio.least, ratio.greatest, without.launches_per_token,
        ))?;
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
