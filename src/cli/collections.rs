//! `ragstone collections` and `ragstone documents`

use std::fmt::Write;

use serde_json::Value;

use crate::access;
use crate::cli::output::{self, number};
use crate::client::Client;
use crate::config::Config;
use crate::error::Result;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List collections with their sizes
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a collection with all its documents
    Delete { name: String },
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
    /// Remove a document with its passages
    Delete {
        #[arg(long, value_name = "NAME", default_value = "default")]
        collection: String,
        /// As `documents list` prints it
        id: String,
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
        Command::Delete { name } => {
            let path = ["v1", "collections", &name];
            let gone: Value =
                access::with(config, "collections", async |client: &Client| client.delete(&path).await).await?;
            output::line(&removed(&name, &gone))
        }
    }
}

/// Runs a subcommand of `documents`.
pub async fn run_documents(config: &Config, command: DocumentsCommand) -> Result<()> {
    match command {
        DocumentsCommand::List { collection, json } => {
            let all =
                access::with(config, "documents", async |client: &Client| all_documents(client, &collection).await);
            print_rows(&Value::Array(all.await?), json, &["id", "passages", "title"])
        }
        DocumentsCommand::Delete { collection, id } => {
            let path = ["v1", "collections", &collection, "documents", &id];
            let gone: Value =
                access::with(config, "documents", async |client: &Client| client.delete(&path).await).await?;
            output::line(&removed(&id, &gone))
        }
    }
}

fn removed(what: &str, gone: &Value) -> String {
    let passages = output::count(number(&gone["passages_removed"]), "passage", "passages");
    let entries = number(&gone["entries_removed"]);
    let kv = output::entries(entries, number(&gone["copies_removed"]), number(&gone["bytes_removed"]));
    format!("removed {what} with {passages}, and {kv} of stored KV")
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
