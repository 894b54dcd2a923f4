//! `ragstone bench serve`

use crate::bench::serve::{Setup, Shape, engine, rag, with_service};
use crate::bench::{Machine, Percentiles};
use crate::cli::output;
use crate::config::Config;
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What clients do
    #[arg(long, value_enum, default_value_t = Workload::Engine)]
    workload: Workload,
    /// The random model; --model serves another one
    #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
    shape: Shape,
    /// Rounds; each measures everything once [default: 3; rag: 1]
    #[arg(long, value_name = "N", value_parser = count)]
    runs: Option<usize>,
    /// Seed of weights, prompts and questions
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rag: RagArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// Running answers while long prompts arrive, many answers at once, prompts behind abandoned ones, mixed lengths
    Engine,
    /// Questions over documents of which 3 % are in 60 % of the questions, in each reuse mode
    Rag,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload engine (lengths are in tokens)")]
struct EngineArgs {
    /// Answers at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count, default_value = "1,4,16,64")]
    streams: Vec<usize>,
    /// Length of each of these answers
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 32)]
    stream_tokens: usize,
    /// Running answers whose gaps are measured
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 4)]
    answers: usize,
    /// Gaps of each before prompts arrive
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 48)]
    gaps: usize,
    /// Long prompts that arrive one after the other
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 3)]
    prompts: usize,
    /// Length of each
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 4096)]
    prompt_tokens: usize,
    /// Prompts whose clients close the connection
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 6)]
    abandoned: usize,
    /// Length of each
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 2048)]
    abandoned_tokens: usize,
    /// Requests of all lengths, 8 at a time, while KV memory is looked at
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 16)]
    mixed: usize,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload rag (lengths are in tokens)")]
struct RagArgs {
    /// Questions at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count, default_value = "1,4,16,64")]
    clients: Vec<usize>,
    /// Questions for each of these numbers and each mode; at least one a client
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 24)]
    requests: usize,
    /// Questions of each mode before anything is measured
    #[arg(long, value_name = "N", default_value_t = 16)]
    warm_up: usize,
    /// Documents of the corpus
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 200)]
    documents: usize,
    /// Length of each
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 128)]
    document_tokens: usize,
    /// Documents of a question
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 3)]
    passages: usize,
    /// Length of an answer
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 16)]
    answer_tokens: usize,
}

/// At least one, and so few that nobody meant another number.
fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| (1..=1_000_000).contains(count)).ok_or_else(|| "1 to 1000000 is wanted".to_owned())
}

/// Measures a service of this process's own, on a data folder that goes away with it.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { workload, shape, runs, seed, json, engine, rag } = args;
    match workload {
        Workload::Engine => {
            let options = engine.options(runs.unwrap_or(3));
            let most = options.streams.iter().copied().chain([options.answers, options.abandoned]).max();
            let setup = Setup { shape, seed, clients: most.unwrap_or(1) };
            let report = with_service(config, setup, async |clients| engine::measure(clients, options).await).await?;
            if json { output::json(&report) } else { print_engine(&report) }
        }
        Workload::Rag => {
            let options = rag.options(runs.unwrap_or(1));
            let setup = Setup { shape, seed, clients: options.clients.iter().copied().max().unwrap_or(1) };
            let report = with_service(config, setup, async |clients| rag::measure(clients, options).await).await?;
            if json { output::json(&report) } else { print_rag(&report) }
        }
    }
}

impl EngineArgs {
    fn options(self, runs: usize) -> engine::Options {
        let Self { streams, stream_tokens, answers, gaps, prompts, prompt_tokens, abandoned, abandoned_tokens, mixed } =
            self;
        engine::Options {
            runs,
            streams,
            stream_tokens,
            answers,
            gaps,
            prompts,
            prompt_tokens,
            abandoned,
            abandoned_tokens,
            mixed,
        }
    }
}

impl RagArgs {
    fn options(self, runs: usize) -> rag::Options {
        let Self { clients, requests, warm_up, documents, document_tokens, passages, answer_tokens } = self;
        rag::Options { runs, clients, requests, warm_up, documents, document_tokens, passages, answer_tokens }
    }
}

fn print_machine(machine: &Machine) -> Result<()> {
    output::line(&format!("{} threads, {}\n", machine.threads, machine.path))
}

fn print_engine(report: &engine::Report) -> Result<()> {
    print_machine(&report.machine)?;
    output::line("gap between tokens, ms        p50       p99")?;
    for (name, Percentiles { p50, p99 }) in
        [("quiet", report.gap_ms.quiet), ("while prompts arrive", report.gap_ms.busy)]
    {
        output::line(&format!("{name:<24} {p50:>8.1} {p99:>9.1}"))?;
    }
    output::line("\nanswers at once      tokens/s")?;
    for streams in &report.streams {
        output::line(&format!("{:<20} {:>8.1}", streams.n, streams.tokens_per_s))?;
    }
    let busy = &report.busy;
    output::line(&format!(
        "\nlong prompts beside answers: {:.1} prompt tokens/s and {:.1} answer tokens/s; alone: {:.1} prompt tokens/s",
        busy.prompt_tokens_per_s, busy.answer_tokens_per_s, busy.alone_prompt_tokens_per_s
    ))?;
    output::line(&format!("first token of a short prompt behind abandoned ones: {:.1} ms", report.abandoned_ms))?;
    let waste = report.kv_waste.map_or_else(|| "not told by the service".to_owned(), |share| format!("{share:.3}"));
    output::line(&format!("share of held KV memory without a token: {waste}"))
}

fn print_rag(report: &rag::Report) -> Result<()> {
    print_machine(&report.machine)?;
    output::line("reuse   clients  requests/s   TTFT ms p50       p99   gap ms p50       p99   cached")?;
    for result in &report.results {
        output::line(&format!(
            "{:<7} {:>7} {:>11.2} {:>13.1} {:>9.1} {:>12.1} {:>9.1} {:>8.2}",
            result.reuse,
            result.clients,
            result.requests_per_s,
            result.ttft_ms.p50,
            result.ttft_ms.p99,
            result.gap_ms.p50,
            result.gap_ms.p99,
            result.cached,
        ))?;
    }
    Ok(())
}
