//! `ragstone bench serve`

use ragstone_service::config::Config;
use ragstone_storage::store::AdmissionRule;
use ragstone_terminal::output;

use crate::bench::serve::{Setup, engine, groups, overload, pml, rag, reorder, with_service};
use crate::bench::{Machine, Percentiles, Shape};
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What clients do
    #[arg(long, value_enum, default_value_t = Workload::Engine)]
    workload: Workload,
    /// The random model; --model serves another one
    #[arg(long, value_enum, default_value_t = Shape::Qwen05b)]
    shape: Shape,
    /// Rounds; each measures everything once [default: 3; rag: 1; groups: 4]
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
    #[command(flatten)]
    overload: OverloadArgs,
    /// Workload reorder: arrivals, in times of what can be answered
    #[arg(long, value_name = "TIMES", value_parser = factor, default_value_t = 1.2)]
    arrivals: f64,
    /// Workload pml: tokens of all modules of a prompt
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count, default_value = "1024,2048,4096,8192")]
    module_tokens: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// Running answers while long prompts arrive, many answers at once, prompts behind abandoned ones, mixed lengths
    Engine,
    /// Questions over documents of which some are wanted far more often than others, in each reuse mode, arranged and not
    Rag,
    /// Ten times the requests that can be answered, for five minutes
    Overload,
    /// Prompts with several answers, and beam searches: the share of blocks that they save
    Groups,
    /// Prompts of modules (Prompt Cache): time to first token by where these come from, beside a full prefill
    Pml,
    /// The questions of rag, a little more of them than can be answered, first come first served and reordered
    Reorder,
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
#[command(next_help_heading = "Workloads rag and reorder (lengths are in tokens)")]
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
    /// How a question's documents are drawn
    #[arg(long, value_enum, default_value_t = rag::Draws::Independent)]
    draws: rag::Draws,
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

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload overload")]
struct OverloadArgs {
    /// Clients that wait for each other, for what can be answered at best
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count, default_value = "8,32")]
    calm_clients: Vec<usize>,
    /// Seconds that each of these is measured
    #[arg(long, value_name = "S", value_parser = factor, default_value_t = 30.0)]
    calm_s: f64,
    /// Arrivals, in times of what can be answered
    #[arg(long, value_name = "TIMES", value_parser = factor, default_value_t = 10.0)]
    times: f64,
    /// Seconds of overload
    #[arg(long, value_name = "S", value_parser = factor, default_value_t = 300.0)]
    overload_s: f64,
    /// Seconds that each request allows
    #[arg(long, value_name = "S", value_parser = count, default_value_t = 10)]
    allowed_s: usize,
}

/// A positive number that somebody may mean.
fn factor(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1e6);
    number.ok_or_else(|| "a number above 0 is wanted, at most 1000000".to_owned())
}

/// At least one, and so few that nobody meant another number.
fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| (1..=1_000_000).contains(count)).ok_or_else(|| "1 to 1000000 is wanted".to_owned())
}

/// Measures a service of this process's own, on a data folder that goes away with it.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { workload, shape, runs, seed, json, engine, rag, overload, arrivals, module_tokens } = args;
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
        Workload::Groups => {
            let prompts = runs.unwrap_or(4);
            let lengths = vec![(161, 338), (512, 64), (1024, 128)];
            let options = groups::Options { prompts, lengths, tails: vec![2, 4, 8] };
            let setup = Setup { shape, seed, clients: 1 };
            let report = with_service(config, setup, async |clients| groups::measure(clients, options).await).await?;
            if json { output::json(&report) } else { print_groups(&report) }
        }
        Workload::Pml => {
            let runs = runs.unwrap_or(3);
            let options = pml::Options { runs, lengths: module_tokens, modules: 8, question: 32 };
            let setup = Setup { shape, seed, clients: 1 };
            let mut config = config.clone();
            // Every tier is to be read from, whatever pays here.
            config.settings.kv_admission = AdmissionRule::Always;
            let report = with_service(&config, setup, async |clients| pml::measure(clients, options).await).await?;
            if json { output::json(&report) } else { print_pml(&report) }
        }
        Workload::Overload => {
            let options = overload.options(rag.answer_tokens);
            let setup = Setup { shape, seed, clients: 1 };
            let report = with_service(config, setup, async |clients| overload::measure(clients, options).await).await?;
            if json { output::json(&report) } else { print_overload(&report) }
        }
        Workload::Reorder => {
            let report = reordered(config, rag.options(runs.unwrap_or(1)), (shape, seed), arrivals).await?;
            if json { output::json(&report) } else { print_reorder(&report) }
        }
    }
}

/// Every round has a service that keeps the order of arrival and one that does not, each with nothing stored.
async fn reordered(
    config: &Config,
    options: rag::Options,
    (shape, seed): (Shape, u64),
    arrivals: f64,
) -> Result<reorder::Report> {
    let setup = |seed| Setup { shape, seed, clients: options.requests };
    let once = rag::Options { runs: 1, ..options.clone() };
    let capacity = with_service(config, setup(seed), {
        let once = once.clone();
        async |clients| reorder::capacity(clients, once).await
    })
    .await?;
    let (per_s, mut sides) = (capacity * arrivals, Vec::new());
    for round in 0..options.runs as u64 {
        for window in [0, config.settings.reorder_window.max(1)] {
            let (mut config, once) = (config.clone(), once.clone());
            config.settings.reorder_window = window;
            let measured = async move |clients| reorder::measure(clients, once, per_s, window).await;
            sides.push(with_service(&config, setup(seed + round), measured).await?);
        }
    }
    Ok(reorder::Report::new(per_s, sides))
}

impl OverloadArgs {
    fn options(self, answer_tokens: usize) -> overload::Options {
        let Self { calm_clients, calm_s, times, overload_s, allowed_s } = self;
        let deadline_s = allowed_s as u64;
        overload::Options { clients: calm_clients, calm_s, times, overload_s, deadline_s, answer_tokens }
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
        let Self { clients, requests, warm_up, documents, draws, document_tokens, passages, answer_tokens } = self;
        rag::Options { runs, clients, requests, warm_up, documents, draws, document_tokens, passages, answer_tokens }
    }
}

fn print_machine(machine: &Machine) -> Result<()> {
    output::line(&format!("{}, {}\n", machine.threads(), machine.path))
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
    output::line("reuse            clients  requests/s   TTFT ms p50       p99   gap ms p50       p99   cached")?;
    for result in &report.results {
        output::line(&format!(
            "{:<16} {:>7} {:>11.2} {:>13.1} {:>9.1} {:>12.1} {:>9.1} {:>8.2}",
            result.mode,
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

fn print_groups(report: &groups::Report) -> Result<()> {
    print_machine(&report.machine)?;
    output::line("blocks that are saved")?;
    output::line("prompt   answer   answers or beams   samples   beams")?;
    for result in &report.results {
        let groups::Shares { prompt_tokens, answer_tokens, tails, samples, beams } = result;
        output::line(&format!("{prompt_tokens:>6} {answer_tokens:>8} {tails:>18} {samples:>9.2} {beams:>7.2}"))?;
    }
    Ok(())
}

fn print_pml(report: &pml::Report) -> Result<()> {
    print_machine(&report.machine)?;
    output::line("module tokens   from     TTFT ms (min .. max)          times sooner than in full")?;
    for measured in &report.results {
        for way in &measured.ways {
            let (ms, speedup) = (way.ttft_ms, way.speedup);
            output::line(&format!(
                "{:>13}   {:<6} {:>9.1} ({:.1} .. {:.1}) {:>20.1} ({:.1} .. {:.1})",
                measured.tokens,
                way.from,
                ms.median,
                ms.least,
                ms.greatest,
                speedup.median,
                speedup.least,
                speedup.greatest
            ))?;
        }
    }
    Ok(())
}

fn print_overload(report: &overload::Report) -> Result<()> {
    print_machine(&report.machine)?;
    for calm in &report.calm {
        output::line(&format!("{:>4} clients: {:.2} requests/s answered in time", calm.clients, calm.goodput_per_s))?;
    }
    output::line(&format!(
        "{:.2} requests/s arrived: {:.2} answered in time ({:.2} of the best), {} late, {} refused, {} lost",
        report.offered_per_s, report.goodput_per_s, report.of_best, report.late, report.refused, report.lost
    ))?;
    output::line(&format!(
        "refused after {:.1} ms (p50), {:.1} ms (p99), {:.1} ms at most",
        report.refused_ms.p50, report.refused_ms.p99, report.refused_most_ms
    ))?;
    match report.recovery_s {
        Some(seconds) => output::line(&format!("well again after {seconds:.1} s")),
        None => output::line("not well again while it was looked at"),
    }
}

fn print_reorder(report: &reorder::Report) -> Result<()> {
    print_machine(&report.machine)?;
    output::line(&format!("{:.2} questions/s arrive", report.arrivals_per_s))?;
    output::line("overtaken at most   answered   refused   mean TTFT ms   cached")?;
    for side in &report.sides {
        output::line(&format!(
            "{:>17} {:>10} {:>9} {:>14.1} {:>8.2}",
            side.window, side.answered, side.refused, side.ttft_ms, side.cached
        ))?;
    }
    output::line(&format!("first tokens come {:.2} times as fast in the mean", report.speedup))
}
