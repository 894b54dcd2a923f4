//! `ragstone bench drafts`

use ragstone_service::config::Config;
use ragstone_terminal::output;

use crate::bench::drafts::{Options, Report, measure};
use crate::error::{Error, Result};

use super::{at_least_one, blocking, load_options};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 1024)]
    prompt: usize,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    answer: usize,
    /// Answers at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4")]
    streams: Vec<usize>,
    /// Rounds; each measures every case with drafts and without
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// A model that takes no time, to try the command
    #[arg(long)]
    tiny: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { prompt, answer, streams, runs, tiny, json } = args;
    if prompt < 128 || answer < 2 || streams.contains(&0) || prompt.saturating_add(answer) > 32_768 {
        return Err(Error::invalid_input(
            "--prompt has at least 128 tokens, --answer 2, both together at most 32768; --streams are at least 1",
        ));
    }
    let lookup = config.settings.lookup(None);
    let options = Options { prompt, answer, streams, runs: at_least_one(runs)?, tiny, lookup };
    let load = load_options(config)?;
    print(&blocking(move || measure(load, &options)).await?, json)
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let machine = &report.machine;
    output::line(&format!("{}, {}; tokens a second of all answers together\n", machine.threads(), machine.path))?;
    output::line(
        "answer       at once   without (min .. max)      with (min .. max)         times   drafted  accepted",
    )?;
    for case in &report.cases {
        let of = |rate: crate::bench::Spread| {
            format!("{:>8.1} ({:>6.1} .. {:>6.1})", rate.median, rate.least, rate.greatest)
        };
        output::line(&format!(
            "{:<12} {:>7} {} {} {:>7.2} {:>9} {:>9}",
            case.answer,
            case.streams,
            of(case.without),
            of(case.with),
            case.times.median,
            case.drafted,
            case.accepted,
        ))?;
    }
    Ok(())
}
