//! `ragstone bench kernels`

use ragstone_actors::models::language_model::Device;
use ragstone_bench::cases::print_results;
use ragstone_bench::gpu;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::{at_least_one, blocking, device, one_gpu};
use crate::bench::kernels::{Group, Options, Report, Shape, measure};
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
        let (ordinal, options) = (one_gpu(&gpus)?, on_gpu(options)?);
        return gpu::print(&blocking(move || gpu::measure(ordinal, &options)).await?, json);
    }
    print(&blocking(move || measure(&options)).await?, json)
}

/// The same of a GPU.
///
/// # Errors
/// `InvalidInput` for what only processors have.
fn on_gpu(options: Options) -> Result<gpu::Options> {
    let Options { only, shapes, tokens, all_paths, runs } = options;
    if all_paths || only.iter().any(|group| !matches!(group, Group::Linear | Group::Attention)) {
        return Err(Error::invalid_input(
            "on a GPU there are `--only linear` and `--only attention`, and no --all-paths",
        ));
    }
    let wanted = |group| only.is_empty() || only.contains(&group);
    Ok(gpu::Options { linear: wanted(Group::Linear), attention: wanted(Group::Attention), shapes, tokens, runs })
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
