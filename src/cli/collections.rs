//! `ragstone collections` and `ragstone documents`

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use ragstone_actors::renewal::{RenewalState, RenewalStatus};
use serde_json::Value;

use crate::access;
use crate::cli::cache::{How, Subject, remove};
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Progress, Unit};

/// Between two looks at how far a collection is.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List collections with their sizes
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a collection with all its documents and their KV; wants --yes
    Delete {
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Embed a collection again that was built with another embedding model; a service begins by itself
    Reembed {
        name: String,
        /// End it, and let the collection be as it was built
        #[arg(long)]
        cancel: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Subcommand)]
pub enum DocumentsCommand {
    /// List a collection's documents
    List {
        #[arg(long, value_name = "NAME", default_value = "default")]
        collection: String,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a document with its passages and their KV
    Delete {
        #[arg(long, value_name = "NAME", default_value = "default")]
        collection: String,
        /// As `documents list` prints it
        id: String,
        #[command(flatten)]
        how: How,
    },
}

/// Runs a subcommand of `collections`.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    match command {
        Command::List { json } => {
            let list: Value =
                access::with(config, "collections", async |client: &Client| client.get(&["v1", "collections"]).await)
                    .await?;
            print_rows(&list["data"], json, &["name", "documents", "passages"])
        }
        Command::Delete { name, how } => {
            remove(config, "collections", &Subject { collection: name, document: None }, how).await
        }
        Command::Reembed { name, cancel, json } => {
            let status =
                access::with(config, "collections", async |client: &Client| reembed(client, &name, cancel).await);
            print_status(&status.await?, json)
        }
    }
}

/// Begins and waits for the end, or cancels.
async fn reembed(client: &Client, name: &str, cancel: bool) -> Result<RenewalStatus> {
    let path = ["v1", "collections", name, "renewal"];
    if cancel {
        return client.delete(&path).await;
    }
    let mut status: RenewalStatus = client.post(&path, &Value::Null).await?;
    let bar = Progress::new(format!("embedding {name} again"), Unit::Items);
    while matches!(status.state, RenewalState::Waiting | RenewalState::Running) {
        bar.set(status.passages_done as u64, status.passages_total as u64);
        tokio::time::sleep(POLL).await;
        status = client.get(&path).await?;
    }
    match status.error {
        Some(why) => Err(Error::new(ErrorKind::Unavailable, why)),
        None => Ok(status),
    }
}

fn print_status(status: &RenewalStatus, json: bool) -> Result<()> {
    if json {
        return output::json(&serde_json::json!(status));
    }
    let RenewalStatus { collection, built_with, embedder, .. } = status;
    output::text(&match (status.state, status.words_only) {
        (RenewalState::Current, _) => format!("{collection} is built with the embedding model in use ({embedder})\n"),
        (_, false) => format!("{collection} is built with {built_with} and searched with that; in use is {embedder}\n"),
        (_, true) => format!(
            "{collection} is built with {built_with}, which cannot be loaded, and is searched by words alone; in use is {embedder}\n"
        ),
    })
}

/// Runs a subcommand of `documents`.
pub async fn run_documents(config: &Config, command: DocumentsCommand) -> Result<()> {
    match command {
        DocumentsCommand::List { collection, json } => {
            let all =
                access::with(config, "documents", async |client: &Client| all_documents(client, &collection).await);
            print_rows(&Value::Array(all.await?), json, &["id", "passages", "title", "source"])
        }
        DocumentsCommand::Delete { collection, id, how } => {
            remove(config, "documents", &Subject { collection, document: Some(id) }, how).await
        }
    }
}

/// Page by page.
async fn all_documents(client: &Client, collection: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    loop {
        let query = [("offset", all.len().to_string()), ("limit", "1000".to_owned())];
        let mut page: Value = client.get_with(&["v1", "collections", collection, "documents"], &query).await?;
        match page["data"].take() {
            Value::Array(rows) if !rows.is_empty() => all.extend(rows),
            _ => return Ok(all),
        }
        if page["has_more"] != true {
            return Ok(all);
        }
    }
}

fn print_rows(rows: &Value, json: bool, columns: &[&str]) -> Result<()> {
    if json {
        return output::json(rows);
    }
    let mut out = String::new();
    if std::io::stdout().is_terminal() {
        let _ = writeln!(out, "{}", columns.join("\t"));
    }
    for row in rows.as_array().into_iter().flatten() {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| match &row[column] {
                Value::String(text) => output::one_line(text, 60),
                other => other.to_string(),
            })
            .collect();
        let _ = writeln!(out, "{}", cells.join("\t"));
    }
    output::text(&out)
}
