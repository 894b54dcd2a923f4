//! ragstone: answers questions over your documents, and never computes twice what it can keep.

// Commands await what awaits more: the layout of their futures is deeper than the compiler goes by itself.
#![recursion_limit = "256"]

mod cli;

use std::time::Duration;

use ragstone_env::error;
use ragstone_terminal::progress;

fn main() {
    #[cfg(unix)]
    if let Some(arguments) = ragstone_documents::child::arguments() {
        // Before anything else: this process is one of many, and short-lived.
        leave(ragstone_documents::child::run(&arguments));
    }
    let cli = cli::Cli::from_arguments();
    let code = match run(cli) {
        Ok(()) => 0,
        Err(error) => {
            progress::tell(format_args!("ragstone: {error}"));
            exit_code(error.kind())
        }
    };
    leave(code)
}

/// 2 for wrong usage (as the argument parser does), 130 after Ctrl-C, else 1.
fn exit_code(kind: error::ErrorKind) -> u8 {
    match kind {
        error::ErrorKind::InvalidInput => 2,
        error::ErrorKind::Cancelled => 130,
        _ => 1,
    }
}

/// Ends the process at once. Everything that must last is on disk by now; an ordinary exit would run RocksDB's global
/// destructors beside its background threads, which now and then aborts a command that has done its work.
fn leave(code: u8) -> ! {
    #[cfg(unix)]
    // SAFETY: the call does not return and touches no memory of ours; output was flushed as it was written.
    unsafe {
        libc::_exit(code.into())
    }
    #[cfg(not(unix))]
    std::process::exit(code.into())
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
