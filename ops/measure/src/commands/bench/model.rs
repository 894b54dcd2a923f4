//! `ragstone bench model`

use ragstone_actors::models::language_model::Device;
use ragstone_bench::model::{Options, measure, print};
use ragstone_models::model_source;
use ragstone_service::config::Config;

use super::{at_least_one, blocking, device};
use crate::bench::Shape;
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
    let load = config.settings.load_options();
    let gpus = match device(config)? {
        Device::Cuda(gpus) => Some(gpus),
        Device::Cpu | Device::Auto => None,
    };
    print(&blocking(move || measure(folder.as_deref(), gpus, load, &options)).await?, json)
}
