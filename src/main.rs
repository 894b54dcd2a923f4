//! ragstone: answers questions over your documents, and never computes twice what it can keep.

mod access;
mod bench;
mod cli;
mod client;
mod config;
mod data_folder;
mod document;
mod embedder_source;
mod error;
mod eval;
mod http;
mod hub;
mod ingest;
mod model_source;
mod progress;
mod service;
mod telemetry;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::beside_bars(|| eprintln!("ragstone: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: cli::Cli) -> error::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| error::Error::internal(format!("the runtime cannot start: {error}")))?;
    let done = runtime.block_on(cli.run());
    // A load that was interrupted need not be waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}
