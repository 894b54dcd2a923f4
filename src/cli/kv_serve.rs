//! `ragstone kv-serve`: the store of KV for other engines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_actors::admission::size;
use ragstone_env::{Env, mebibytes};
use ragstone_kv_serve::{Blocks, BlocksOptions, Client, NamespaceStatus, Reply, Request, Server, Status};
use ragstone_service::config::Config;
use ragstone_storage::policy::PolicyKind;
use ragstone_terminal::{output, table};

use crate::cli::serve::{Stop, check_keys};
use crate::error::{Error, Result};

/// How long the daemon may take to answer a command: to evict it may have to ask the bucket for every object.
const MOST_WAIT: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    /// Where to listen: a path, in a folder of yours, that engines on this machine connect to
    #[arg(long, value_name = "PATH", required = true)]
    socket: Option<PathBuf>,
    /// Where blocks are kept [default: kv-serve in the data folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Host memory for blocks on their way to the disk; the engine has what it used last in memory of its own
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size::parse)]
    host_bytes: u64,
    /// Disk for blocks; 0 keeps none
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size::parse)]
    disk_bytes: u64,
    /// A bucket that machines share, such as s3://BUCKET/PREFIX [default: the setting object_url]; its other settings are those of object_…
    #[arg(long, value_name = "URL")]
    object_url: Option<String>,
    /// Which blocks leave first
    #[arg(long, value_name = "NAME", default_value = "lru")]
    policy: PolicyKind,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what a daemon holds: namespaces, blocks, bytes, hits
    Status {
        /// Its socket
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove every block of a namespace, from every tier
    Evict {
        /// Its socket
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// The namespace, or enough of its first digits
        #[arg(value_name = "NAMESPACE")]
        namespace: String,
        /// One tenant's blocks only
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
    },
}

/// Serves until Ctrl-C or SIGTERM, or asks the daemon that does.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    match args.command {
        None => serve(config, args).await,
        Some(Command::Status { socket, json }) => {
            let Reply::Status { status, .. } = ask(&socket, Request::Status { id: 1 }).await? else {
                return Err(unexpected());
            };
            if json { output::json(&status) } else { output::text(&status_table(&status)) }
        }
        Some(Command::Evict { socket, namespace, tenant }) => {
            let Reply::Evict { blocks, bytes, .. } = ask(&socket, Request::Evict { id: 1, namespace, tenant }).await?
            else {
                return Err(unexpected());
            };
            let blocks = output::count(blocks, "block", "blocks");
            output::line(&format!("evicted {blocks}, {:.1} MiB in all tiers", mebibytes(bytes)))
        }
    }
}

async fn serve(config: &Config, args: Args) -> Result<()> {
    let socket = args.socket.ok_or_else(|| Error::invalid_input("--socket is missing: where to listen"))?;
    let dir = match args.data_dir {
        Some(dir) => dir,
        None => config.data()?.join("kv-serve"),
    };
    let object = match args.object_url {
        Some(url) => Some(config.settings.object_at(&url)),
        None => config.settings.object(),
    };
    check_keys(config)?;
    let options = BlocksOptions {
        host_bytes: args.host_bytes,
        disk_bytes: args.disk_bytes,
        policy: args.policy,
        object,
        object_ttl: config.settings.object_ttl(),
    };
    let mut stop = Stop::new()?;
    let path = socket.clone();
    let start = move || {
        let env = Env::from_environment()?;
        Server::start(&path, Blocks::open(&dir, &options, env.clone())?, env)
    };
    let server = blocking(start).await?;
    // Programs wait for this line.
    output::line(&format!("listening at {}", socket.display()))?;
    stop.wanted().await;
    tracing::info!("stopping; what is on its way to disk and bucket is written first; once more ends at once");
    tokio::select! {
        stopped = blocking(move || { drop(server); Ok(()) }) => stopped,
        () = stop.wanted() => Ok(()),
    }
}

async fn ask(socket: &Path, request: Request) -> Result<Reply> {
    let socket = socket.to_owned();
    blocking(move || Client::connect(&socket, MOST_WAIT, Env::system())?.call(&request)).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal(format!("the command broke off: {error}")))?
}

fn unexpected() -> Error {
    Error::internal("the daemon answered something else; is it of another version?")
}

fn status_table(status: &Status) -> String {
    let cells = |of: &NamespaceStatus| {
        let described = of.description.as_ref().map(|known| format!("{} {}", known.engine, known.engine_version));
        vec![
            of.namespace.chars().take(12).collect(),
            output::printable(&of.tenant),
            of.blocks.to_string(),
            format!("{:.1}", mebibytes(of.host_bytes)),
            format!("{:.1}", mebibytes(of.disk_bytes)),
            of.hits.to_string(),
            of.misses.to_string(),
            of.loaded.to_string(),
            of.stored.to_string(),
            described.map(|text| output::printable(&text)).unwrap_or_default(),
        ]
    };
    let heads =
        ["namespace", "tenant", "blocks", "host MiB", "disk MiB", "hits", "misses", "loaded", "stored", "engine"];
    let rows: Vec<Vec<String>> = status.namespaces.iter().map(cells).collect();
    let clients = output::count(status.connections, "client", "clients");
    let left_out = match status.left_out {
        0 => String::new(),
        more => format!("and {}\n", output::count(more, "more namespace", "more namespaces")),
    };
    format!("{}\n{left_out}{clients}\n", table::table(&heads, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_table_of_namespaces() {
        let namespaces = vec![NamespaceStatus { namespace: "ab".repeat(32), blocks: 3, ..NamespaceStatus::default() }];
        let status = Status { version: 1, connections: 1, namespaces, left_out: 2, store: Default::default() };
        let text = status_table(&status);
        assert!(
            text.contains("abababababab")
                && text.contains("1 client")
                && text.contains("and 2 more namespaces")
                && text.contains("disk MiB"),
            "{text}"
        );
    }
}
