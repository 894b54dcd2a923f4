//! `ragstone bench kernels`

use ragstone_actors::models::language_model::Device;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::{at_least_one, blocking, device, milliseconds, one_gpu};
use crate::bench::kernels::gpu::{self, GpuReport};
use crate::bench::kernels::{CaseResult, Group, Options, Report, Shape, measure};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure only these
    #[arg(long, value_name = "GROUP", value_enum)]
    only: Vec<Group>,
    /// A shape of linear layers, such as 512x896x4864 (rows, inputs, outputs)
    #[arg(long = "shape", value_name = "RxIxO")]
    shapes: Vec<Shape>,
    /// Tokens that attention looks at [default: 4096; of a GPU also 16384]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    tokens: Vec<usize>,
    /// Measure every instruction set that this machine has
    #[arg(long)]
    all_paths: bool,
    /// Rounds; each measures every kernel once
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { only, shapes, tokens, all_paths, runs, json } = args;
    if tokens.iter().any(|tokens| !(1..=1 << 20).contains(tokens)) {
        return Err(Error::invalid_input("--tokens: attention looks at 1 to 1048576"));
    }
    let options = Options { only, shapes, tokens, all_paths, runs: at_least_one(runs)? };
    if let Device::Cuda(gpus) = device(config)? {
        let ordinal = one_gpu(&gpus)?;
        return print_gpu(&blocking(move || gpu::measure(ordinal, &options)).await?, json);
    }
    print(&blocking(move || measure(&options)).await?, json)
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let (machine, ceilings) = (&report.machine, &report.ceilings);
    let scheduling = machine.scheduling.describe();
    output::line(&format!("{}, {} (of {}), {scheduling}", machine.threads(), machine.path, machine.paths.join(", ")))?;
    output::line(&format!(
        "at most: {:.0} GFLOP/s f32, {:.0} GFLOP/s bf16, {:.0} GOP/s int8, reading {:.1} GB/s\n",
        ceilings.f32_gflops.median, ceilings.bf16_gflops.median, ceilings.int8_gops.median, ceilings.read_gbps.median
    ))?;
    print_results(&report.results)
}

fn print_gpu(report: &GpuReport, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let peak = &report.peak;
    let of = |rate: Option<f64>| rate.map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.0}"));
    output::line(&report.gpu.to_string())?;
    output::line(&format!(
        "at most: {} GFLOP/s f32, {} GFLOP/s bf16, reading {} GB/s ({})\n",
        of(peak.f32_gflops),
        of(peak.bf16_gflops),
        of(peak.read_gbps),
        peak.by
    ))?;
    print_results(&report.results)
}

fn print_results(results: &[CaseResult]) -> Result<()> {
    output::line(
        "kernel            path        type  shape               ms (min .. max)             GFLOP/s    GB/s  of ceiling",
    )?;
    for result in results {
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
