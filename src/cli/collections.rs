//! `ragstone collections` and `ragstone documents`

use std::time::Duration;

use ragstone_actors::upkeep::renewal::{RenewalState, RenewalStatus};
use ragstone_corpus::{CollectionInfo, DocumentInfo};
use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::progress::{Progress, Unit};
use ragstone_terminal::{output, table};
use serde_json::Value;

use crate::cli::cache::{How, remove_collection, remove_document};
use crate::cli::documents;
use crate::error::{Error, ErrorKind, Result};

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
        /// The collection; TENANT/NAME names a tenant's [default: default, or the only one there is]
        #[arg(long, value_name = "NAME")]
        collection: Option<String>,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a document, or those of a file or a folder, with their passages and KV; several want --yes
    Delete {
        /// The collection; TENANT/NAME names a tenant's [default: default, or the only one there is]
        #[arg(long, value_name = "NAME")]
        collection: Option<String>,
        /// Its id, its path or its source, as ragstone documents list prints them, or a folder of their files, which may be gone
        #[arg(value_name = "ID|PATH")]
        id: String,
        #[command(flatten)]
        how: How,
    },
}

/// Runs a subcommand of `collections`.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    match command {
        Command::List { json } => {
            let list: List<CollectionInfo> =
                access::with(config, "collections", async |client: &Client| client.get(&["v1", "collections"]).await)
                    .await?;
            let cells = |row: &CollectionInfo| {
                vec![output::one_line(&row.name, 60), row.documents.to_string(), row.passages.to_string()]
            };
            let none = "there are no collections; `ragstone ingest PATH` begins one";
            table::print(&list.data, json, &["name", "documents", "passages"], cells, none)?;
            for row in &list.data {
                if let Some(damaged) = &row.damaged {
                    tracing::warn!("{}: {}", output::one_line(&row.name, 60), output::one_line(damaged, 600));
                }
            }
            Ok(())
        }
        Command::Delete { name, how } => remove_collection(config, "collections", &name, how).await,
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
        return output::json(status);
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
            let listed = access::with(config, "documents", async |client: &Client| {
                let collection = documents::collection(client, collection.as_deref()).await?;
                Ok((documents::all(client, &collection).await?, collection))
            });
            let (all, collection) = listed.await?;
            let cells = |row: &DocumentInfo| {
                let text = |text: &str| output::one_line(text, 60);
                // Whole, as a path is copied from here.
                let source =
                    row.source.as_deref().map_or_else(|| "-".to_owned(), |source| output::one_line(source, 1000));
                vec![text(&row.id), row.passages.to_string(), text(&row.title), source]
            };
            let none = format!("there are no documents in collection {}", output::one_line(&collection, 60));
            table::print(&all, json, &["id", "passages", "title", "source"], cells, &none)
        }
        DocumentsCommand::Delete { collection, id, how } => {
            remove_document(config, "documents", (collection.as_deref(), &id), how).await
        }
    }
}
