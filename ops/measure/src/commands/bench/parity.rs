//! `ragstone bench parity`

use ragstone_actors::models::language_model::Device;
use ragstone_cuda::{CheckOptions, Checked, check};
use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::{blocking, one_gpu};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seed of inputs and random shapes
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Random shapes of each kernel, beside those that are always tried
    #[arg(long, value_name = "N", default_value_t = 8)]
    shapes: usize,
    /// Only what takes seconds where kernels run on a processor: no random shapes, none of a large model
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks every kernel, and fails where one is off.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { seed, shapes, quick, json } = args;
    let Device::Cuda(gpus) = &config.settings.device else {
        return Err(Error::invalid_input("this compares a GPU with the processor; add `--device cuda`"));
    };
    let ordinal = one_gpu(gpus)?;
    if shapes > 1000 {
        return Err(Error::invalid_input(format!("--shapes {shapes}: at most 1000")));
    }
    let options = CheckOptions { seed, shapes: if quick { 0 } else { shapes }, large: !quick };
    let checked = blocking(move || check(ordinal, options)).await?;
    if json { output::json(&checked) } else { print(&checked) }?;
    let problems = checked.problems();
    match problems.first() {
        None => Ok(()),
        Some(first) => {
            let message = format!("{} of {} checks failed, first {first}", problems.len(), checked.rows());
            Err(Error::new(ErrorKind::Internal, message))
        }
    }
}

fn print(checked: &Checked) -> Result<()> {
    output::line(&format!("{}, seed {}\n", checked.gpu, checked.seed))?;
    output::line("kernel                   compared   greatest difference   relative   of what is tolerated")?;
    for row in &checked.kernels {
        output::line(&format!(
            "{:<24} {:>8} {:>21.2e} {:>10.2e} {:>23.3}   {}",
            row.kernel,
            row.compared,
            row.absolute,
            row.relative,
            row.of_tolerance,
            row.problem.as_deref().unwrap_or("ok"),
        ))?;
    }
    output::line("")?;
    for row in &checked.bits {
        output::line(&format!("{:<70}   {}", row.what, row.problem.as_deref().unwrap_or("ok")))?;
    }
    Ok(())
}
