//! `ragstone bench overlap`

use ragstone_service::config::Config;
use ragstone_terminal::output;

use crate::bench::Shape;
use crate::bench::overlap::{Options, Report, Side, measure};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The random model
    #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
    shape: Shape,
    /// Seed of weights, documents and questions
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Questions one after the other with speculation, and as many without; then twice as many of each at once
    #[arg(long, value_name = "N", default_value_t = 24)]
    questions: usize,
    /// Questions at once of the busy engine
    #[arg(long, value_name = "N", default_value_t = 8)]
    clients: usize,
    /// Documents of the collection
    #[arg(long, value_name = "N", default_value_t = 8192)]
    documents: usize,
    /// Length of each, in tokens
    #[arg(long, value_name = "N", default_value_t = 96)]
    document_tokens: usize,
    /// Topics that they are about
    #[arg(long, value_name = "N", default_value_t = 64)]
    topics: usize,
    /// Documents of a prompt
    #[arg(long, value_name = "N", default_value_t = 5)]
    passages: usize,
    /// Length of an answer, in tokens
    #[arg(long, value_name = "N", default_value_t = 8)]
    answer_tokens: usize,
    /// What a search takes, in times of a prefill
    #[arg(long, value_name = "TIMES", default_value_t = 1.0)]
    search: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures on a data folder that goes away with it.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { shape, seed, questions, clients, documents, document_tokens, topics, passages, answer_tokens, .. } =
        args;
    let counts = [questions, clients, documents, document_tokens, topics, passages, answer_tokens];
    if counts.contains(&0) || counts.iter().any(|count| *count > 1_000_000) {
        return Err(Error::invalid_input("every number of bench overlap must lie between 1 and 1000000"));
    }
    if !(0.01..=100.0).contains(&args.search) {
        return Err(Error::invalid_input(format!("--search {}: it must lie between 0.01 and 100", args.search)));
    }
    let search = args.search;
    let options = Options {
        shape,
        seed,
        questions,
        clients,
        documents,
        document_tokens,
        topics,
        passages,
        answer_tokens,
        search,
    };
    let report = measure(config.settings.clone(), options).await?;
    if args.json { output::json(&report) } else { print(&report) }
}

fn print(report: &Report) -> Result<()> {
    let (machine, clients) = (&report.machine, report.clients);
    output::line(&format!("{}, {}", machine.threads(), machine.path))?;
    output::line(&format!(
        "a prefill takes {:.1} ms by itself, looking into a cell {:.2} ms\n",
        report.prefill_ms, report.probe_ms
    ))?;
    output::line(
        "questions    speculation   TTFT ms p50       p99   search ms   not overlapped ms (mean)   questions/s   confirmed  cancelled  not started  begun",
    )?;
    let sides = [("alone".to_owned(), &report.alone), (format!("{clients} at once"), &report.busy)];
    for (name, sides) in &sides {
        for side in sides.iter() {
            output::line(&line(name, side))?;
        }
    }
    output::line(&format!("\nnon-overlapped search time is {:.2} times lower", report.non_overlapped_ratio))
}

fn line(name: &str, side: &Side) -> String {
    format!(
        "{name:<12} {:<11} {:>13.1} {:>9.1} {:>11.1} {:>15.1} ({:>7.1}) {:>13.2} {:>11} {:>10} {:>12} {:>6}",
        if side.speculates { "on" } else { "off" },
        side.ttft_ms.p50,
        side.ttft_ms.p99,
        side.search_ms.median,
        side.non_overlapped_ms.median,
        side.non_overlapped_ms_mean,
        side.questions_per_s,
        side.confirmed,
        side.cancelled,
        side.not_started,
        side.started,
    )
}
