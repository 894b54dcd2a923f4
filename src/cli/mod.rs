//! The command line: one file a command.

mod ask;
mod cache;
mod calibrate;
mod collections;
mod doctor;
mod documents;
mod explain;
mod fetch;
mod hints;
mod ingest;
mod keys;
#[cfg(target_os = "linux")]
mod kv_serve;
mod man;
mod mcp;
mod metadata;
mod migrate;
mod models;
mod page;
mod pml;
mod report;
mod search;
mod serve;
mod settings;
mod top;

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use ragstone_env::Env;
use ragstone_measure::commands::{bench, eval, plan, simulate};
use ragstone_service::config::{self, Config, Flags, LogFormat, Surface};
use ragstone_service::telemetry;
use ragstone_service::telemetry::otlp::Otlp;
use ragstone_terminal::output;

use crate::error::Result;

/// Where settings come from, and how sizes are written.
const SETTINGS_HELP: &str = "\
Settings come from flags, then RAGSTONE_… variables, then --config FILE, then defaults.
Sizes are numbers of bytes, or have a unit:
  kB, MB, GB, TB                     powers of 1000
  KiB, MiB, GiB, TiB or K, M, G, T   powers of 1024";

/// Answers questions over your documents with a language model, and never computes twice what it can keep.
#[derive(Debug, Parser)]
#[command(
    name = "ragstone",
    version,
    arg_required_else_help = true,
    infer_subcommands = true,
    after_help = "Begin: ragstone ingest FOLDER, then ragstone ask QUESTION; ragstone serve, then ragstone page.\nGlobal options, such as --data, --model and --set: ragstone --help",
    after_long_help = SETTINGS_HELP
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command. Each but --config and --set is also a setting, which the table describes: `data = "…"` in the file,
/// RAGSTONE_DATA. Short help (-h) leaves them out, so that a verb's own options are seen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    #[arg(long, global = true, hide_short_help = true, value_name = "DIR")]
    data: Option<PathBuf>,
    #[arg(long, global = true, hide_short_help = true, value_name = "FOLDER|ID")]
    model: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "FOLDER")]
    adapter: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "FOLDER|ID")]
    embedder: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "FOLDER|ID")]
    reranker: Option<String>,
    #[arg(long, global = true, hide_short_help = true)]
    offline: bool,
    #[arg(long, global = true, hide_short_help = true, value_name = "URL")]
    engine: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "DEVICE")]
    device: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "N")]
    threads: Option<usize>,
    #[arg(long, global = true, hide_short_help = true, value_parser = ["auto", "off"])]
    numa: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_parser = ["stored", "f32", "bf16", "q8", "q4"])]
    weights: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_parser = ["f32", "bf16"])]
    compute: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME")]
    kernels: Option<String>,
    #[arg(long, global = true, hide_short_help = true)]
    blend_uncalibrated: bool,
    /// Settings, in TOML
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", env = "RAGSTONE_CONFIG")]
    config: Option<PathBuf>,
    /// Any setting, such as host_bytes=2GiB or prompt.system="Be brief."; sizes take kB, MB, GB, TB (powers of 1000),
    /// KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024). Not for a service that runs: it has its own
    #[arg(long, global = true, hide_short_help = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[arg(long, global = true, hide_short_help = true, value_name = "FILTER")]
    log: Option<String>,
    #[arg(long, global = true, hide_short_help = true, value_enum)]
    log_format: Option<LogFormat>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    Serve(serve::Args),
    /// Print a link to the running service's page, with the owner's token
    Page,
    /// Serve agents over the Model Context Protocol: tools that search, ask, add and look, on standard input and output
    Mcp,
    /// Read files into a collection: text, Markdown, HTML, PDF, Office, e-mail, CSV, JSON, source code
    Ingest(ingest::Args),
    /// Find passages of a collection: by meaning, by words, or both
    Search(search::Args),
    /// Ask a question over a collection
    Ask(ask::Args),
    /// Show how a question's prompt comes about: what is loaded, blended and computed, why, and what it takes
    Explain(explain::Args),
    /// Find out how passages may be blended so that the model's answers stay those of a full prefill
    Calibrate(calibrate::Args),
    /// Look at stored KV, warm it, evict it, invalidate documents
    #[command(subcommand)]
    Cache(cache::Command),
    /// List or remove collections
    #[command(subcommand)]
    Collections(collections::Command),
    /// List or remove documents of a collection
    #[command(subcommand)]
    Documents(collections::DocumentsCommand),
    /// Make, list or revoke API keys
    #[command(subcommand)]
    Keys(keys::Command),
    /// List, fetch, remove or show models: what one needs of disk and memory, before it is fetched
    #[command(subcommand)]
    Models(models::Command),
    /// Bring what is on disk up to this version's format
    #[command(subcommand)]
    Migrate(migrate::Command),
    /// Measure this machine
    Bench(bench::Args),
    /// Measure retrieval or answers on a data set of questions
    Eval(eval::Args),
    /// Check and lay out prompts made of modules (Prompt Markup Language)
    #[command(subcommand)]
    Pml(pml::Command),
    /// Store KV for other engines, such as vLLM: over restarts, with checksums and bounds
    #[cfg(target_os = "linux")]
    KvServe(kv_serve::Args),
    /// Compare replacement policies on a request trace or a generated workload, or see what many nodes do, without a model
    Simulate(simulate::Args),
    /// Say how many nodes of which machine the questions want, and what that costs a month
    Plan(plan::Args),
    /// Fetch the models that the other commands need, and print their folders
    Fetch(fetch::Args),
    /// Look whether everything is as it should be: machine, models, data folder, disk, bucket, address, the running service
    Doctor(doctor::Args),
    /// Print every setting: what it is, its value, and where that comes from
    Settings(settings::Args),
    /// Watch the running service: requests, time to first token, where tokens come from, tiers, jobs
    Top(top::Args),
    /// Print the manual page, or write those of all commands into a folder
    Man {
        /// Where to write them, such as ~/.local/share/man/man1
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print a completion script for a shell
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Which of ragstone's own log lines show by default.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Serve(_) => "info",
            #[cfg(target_os = "linux")]
            Self::KvServe(_) => "info",
            _ => "warn",
        }
    }
}

impl Cli {
    /// The command line; what its flags that are settings say of themselves is what the table of settings says.
    fn described() -> clap::Command {
        let mut command = Self::command();
        let defaults = serde_json::to_value(Surface::default()).unwrap_or_default();
        for setting in config::table::all().filter(|setting| setting.is_flag) {
            let help = config::table::help(setting, &defaults[setting.key]);
            let describe = |command: clap::Command| command.mut_arg(setting.key, |arg| arg.help(help));
            // Those that only a service has are its own.
            let is_global = command.get_arguments().any(|arg| arg.get_id() == setting.key);
            command = if is_global { describe(command) } else { command.mut_subcommand("serve", describe) };
        }
        command
    }

    /// Reads the program's arguments; ends the process where they are wrong, or help was asked for.
    pub fn from_arguments() -> Self {
        let matches = Self::described().try_get_matches().unwrap_or_else(|error| {
            let arguments: Vec<String> = std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect();
            hints::with_tip(error, &arguments, &Self::described()).exit()
        });
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    pub async fn run(self) -> Result<()> {
        let Self { global, command } = self;
        if let Command::Completions { shell } = command {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Self::described(), "ragstone", &mut script);
            return output::text(&String::from_utf8_lossy(&script));
        }
        if let Command::Man { out } = command {
            return man::write(Self::described(), out.as_deref());
        }
        let (listen, allow_anyone, keys) = match &command {
            Command::Serve(args) => (args.listen.clone(), args.allow_anyone.then_some(true), args.keys),
            _ => (None, None, None),
        };
        let flags = Flags {
            data: global.data,
            model: global.model,
            adapter: global.adapter,
            embedder: global.embedder,
            reranker: global.reranker,
            listen,
            allow_anyone,
            keys,
            offline: global.offline.then_some(true),
            engine: global.engine,
            device: global.device,
            threads: global.threads,
            numa: global.numa,
            weights: global.weights,
            compute: global.compute,
            kernels: global.kernels,
            blend_uncalibrated: global.blend_uncalibrated.then_some(true),
            log: global.log,
            log_format: global.log_format,
            set: global.set,
        };
        let config = Config::load(global.config.as_deref(), &flags)?;
        let otlp = match &command {
            Command::Serve(_) => Otlp::of(config.surface.otlp_endpoint.as_deref(), Env::from_environment()?)?,
            _ => None,
        };
        telemetry::init(&config.surface, command.log_level(), otlp.as_ref())?;
        match command {
            Command::Serve(args) => serve::run(&config, args, otlp.as_ref()).await,
            Command::Page => page::run(&config).await,
            Command::Mcp => mcp::run(&config).await,
            Command::Ingest(args) => ingest::run(&config, args).await,
            Command::Search(args) => search::run(&config, args).await,
            Command::Ask(args) => ask::run(&config, args).await,
            Command::Calibrate(args) => calibrate::run(&config, args).await,
            Command::Explain(args) => explain::run(&config, args).await,
            Command::Cache(command) => cache::run(&config, command).await,
            Command::Collections(command) => collections::run(&config, command).await,
            Command::Documents(command) => collections::run_documents(&config, command).await,
            Command::Keys(command) => keys::run(&config, command).await,
            Command::Models(command) => models::run(&config, command).await,
            Command::Migrate(command) => migrate::run(&config, command).await,
            Command::Bench(args) => bench::run(&config, args).await,
            Command::Eval(args) => eval::run(&config, args).await,
            Command::Pml(command) => pml::run(&config, command).await,
            #[cfg(target_os = "linux")]
            Command::KvServe(args) => kv_serve::run(&config, args).await,
            Command::Simulate(args) => simulate::run(args).await,
            Command::Plan(args) => plan::run(&config, args).await,
            Command::Fetch(args) => fetch::run(&config, args).await,
            Command::Doctor(args) => doctor::run(&config, args).await,
            Command::Settings(args) => settings::run(&config, args).await,
            Command::Top(args) => top::run(&config, args).await,
            Command::Completions { .. } | Command::Man { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::described().debug_assert();
    }

    /// A terminal shows the marks of Markdown as they are.
    #[test]
    fn help_has_no_marks() {
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            assert!(!help.contains('`'), "{help}");
            command.get_subcommands_mut().for_each(check);
        }
        check(&mut Cli::described());
    }
}
