//! `ragstone-gpu`: whether a GPU computes what the processor does, and what it takes. The kernels alone, for machines with a GPU and little else.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use clap::Parser;
use ragstone_bench::cases::LinearShape;
use ragstone_bench::{Shape, golden, gpu, model, parity};
use ragstone_cuda::{GpuList, Tried, try_out};
use ragstone_env::error::{Error, Result};
use ragstone_kernels::dtype::WeightFormat;
use ragstone_kernels::model::LoadOptions;
use ragstone_terminal::output;
use serde_json::json;

#[derive(Debug, Parser)]
#[command(version, about)]
enum Line {
    /// What GPU it is, what its kernels were loaded from and how long that took, and which of its own kernels are used
    Device {
        #[command(flatten)]
        on: On,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Every kernel beside f64 on the processor, each family in a process of its own
    Parity {
        #[command(flatten)]
        on: On,
        #[command(flatten)]
        args: parity::Args,
    },
    /// Products and attention, one by one, beside the data sheet's peak
    Kernels {
        #[command(flatten)]
        on: On,
        /// Measure linear layers only, or attention only
        #[arg(long, value_name = "GROUP", value_parser = ["linear", "attention"])]
        only: Option<String>,
        /// A shape of linear layers, such as 512x896x4864 (rows, inputs, outputs)
        #[arg(long = "shape", value_name = "RxIxO")]
        shapes: Vec<LinearShape>,
        /// Tokens that attention looks at [default: 4096,16384]
        #[arg(long, value_name = "N,…", value_delimiter = ',')]
        tokens: Vec<usize>,
        #[command(flatten)]
        how: How,
    },
    /// Prefill and decode of a whole model of random weights, beside what bytes and operations take at least
    Model {
        #[command(flatten)]
        on: On,
        /// The model
        #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
        shape: Shape,
        /// How weights are kept: bf16, f32 or q8
        #[arg(long, value_name = "FORMAT", value_parser = weight_format)]
        weights: Option<WeightFormat>,
        /// Lengths of prompts
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,4096")]
        prefill: Vec<usize>,
        /// Tokens that stand before the first decoded one
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,4096")]
        context: Vec<usize>,
        #[command(flatten)]
        how: How,
    },
    /// A trained model's answers beside those of the processor in f32
    Golden {
        #[command(flatten)]
        on: On,
        /// The model's folder
        #[arg(long, value_name = "FOLDER")]
        model: PathBuf,
        /// A file of questions with their passages
        #[arg(long, value_name = "FILE")]
        set: PathBuf,
        /// How many of them
        #[arg(long, value_name = "N", default_value_t = 16)]
        questions: usize,
        /// Tokens of each answer
        #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
        tokens: u16,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct On {
    /// The GPU: cuda, or cuda:1 for the second
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Gpu,
}

/// One GPU's number.
#[derive(Debug, Clone, Copy)]
struct Gpu(usize);

#[derive(Debug, clap::Args)]
struct How {
    /// Rounds; each measures everything once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl FromStr for Gpu {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = if text == "cuda" { Some("0") } else { text.strip_prefix("cuda:") };
        let wrong = || Error::invalid_input(format!("\"{text}\" is no GPU; take cuda, or cuda:1 for the second"));
        number.and_then(|number| number.parse().ok()).map(Self).ok_or_else(wrong)
    }
}

fn weight_format(text: &str) -> Result<WeightFormat, String> {
    let known = [WeightFormat::Bf16, WeightFormat::F32, WeightFormat::Q8];
    known.into_iter().find(|format| format.name() == text).ok_or_else(|| "take bf16, f32 or q8".to_owned())
}

fn main() -> ExitCode {
    match run(Line::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ragstone-gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: Line) -> Result<()> {
    match line {
        Line::Device { on, json } => device(&try_out(on.device.0)?, json),
        Line::Parity { on, args } => {
            let ordinal = on.device.0;
            parity::run(ordinal, &args, || {
                let program = std::env::current_exe();
                let program =
                    program.map_err(|error| Error::internal(format!("this program is not found: {error}")))?;
                let mut command = Command::new(program);
                command.args(["parity", "--device", &format!("cuda:{ordinal}")]);
                Ok(command)
            })
        }
        Line::Kernels { on, only, shapes, tokens, how } => {
            if tokens.iter().any(|tokens| !(1..=1 << 20).contains(tokens)) {
                return Err(Error::invalid_input("--tokens: attention looks at 1 to 1048576"));
            }
            let wanted = |group: &str| only.as_deref().is_none_or(|only| only == group);
            let (linear, attention) = (wanted("linear"), wanted("attention"));
            let options = gpu::Options { linear, attention, shapes, tokens, runs: how.runs.into() };
            gpu::print(&gpu::measure(on.device.0, &options)?, how.json)
        }
        Line::Model { on, shape, weights, prefill, context, how } => {
            if prefill.contains(&0) {
                return Err(Error::invalid_input("--prefill 0: a prompt has at least one token"));
            }
            let options = model::Options { shape, prefill, contexts: context, runs: how.runs.into(), profile: false };
            let load = LoadOptions { weights, ..Default::default() };
            model::print(&model::measure(None, Some(GpuList::from(on.device.0)), load, &options)?, how.json)
        }
        Line::Golden { on, model, set, questions, tokens, json } => {
            let report = golden::compare(on.device.0.into(), &model, &set, questions, tokens.into())?;
            golden::print(&report, json)
        }
    }
}

/// As a finding of `ragstone doctor`, so that a report reads both alike.
fn device(tried: &Tried, json: bool) -> Result<()> {
    let problems = tried.trial.problems();
    let found = format!("{tried}");
    if json {
        let state = if problems.is_empty() { "ok" } else { "warning" };
        let finding = json!({ "what": "gpu", "state": state, "found": found, "advice": problems.join("; ") });
        return output::json(&json!({ "findings": [finding], "tried": tried }));
    }
    output::line(&found)?;
    problems.iter().try_for_each(|problem| output::line(&format!("not used: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_a_gpu_has_a_number() {
        use clap::CommandFactory;
        Line::command().debug_assert();
        assert_eq!(["cuda", "cuda:3"].map(|text| text.parse::<Gpu>().unwrap().0), [0, 3]);
        for wrong in ["cpu", "cuda:", "cuda:x", "cuda:0,1"] {
            assert!(wrong.parse::<Gpu>().unwrap_err().to_string().contains(wrong));
        }
    }
}
