//! `ragstone cache invalidate`

use serde_json::{Value, json};

use crate::access;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::progress::{Progress, Unit, mebibytes};

/// Nothing of it can be found, cited or loaded any more, also after a restart. Passages that another document has, too,
/// stay. To free room and keep the documents, use `cache evict`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the document is
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// The document, as `documents list` prints it; without one the whole collection goes
    #[arg(long, value_name = "ID")]
    document: Option<String>,
    /// The whole collection is meant
    #[arg(long)]
    yes: bool,
    /// Say what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Removes a document or a collection from everything.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Args { collection, document, yes, dry_run, json } = args;
    if document.is_none() && !yes && !dry_run {
        return Err(Error::invalid(format!(
            "this would remove all documents of collection `{collection}`: name one with --document ID, or say --yes; \
             `ragstone cache evict --collection {collection}` frees their KV and keeps them"
        )));
    }
    let all = document.is_none();
    let body = json!({ "collection": collection, "document": document, "all": all, "dry_run": dry_run });
    let done: Value = access::with(config, "cache invalidate", async |client: &Client| {
        let bar = Progress::new(format!("invalidating {}", document.as_deref().unwrap_or(&collection)), Unit::Nothing);
        bar.during(client.post(&["v1", "cache", "invalidate"], &body)).await
    })
    .await?;
    if json { output::json(&done) } else { output::line(&summary(&done)) }
}

fn summary(done: &Value) -> String {
    let megabytes = mebibytes(done["bytes_removed"].as_u64().unwrap_or(0));
    let (passages, entries) = (&done["passages_removed"], &done["entries_removed"]);
    if done["dry_run"] == true {
        return format!(
            "would remove {passages} passages and up to {entries} entries ({megabytes:.1} MiB) of them, and what was \
             computed behind these"
        );
    }
    format!("removed {passages} passages from the corpus and {entries} entries ({megabytes:.1} MiB) from the tiers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_is_said() {
        let done = json!({ "passages_removed": 2, "entries_removed": 5, "bytes_removed": 1_048_576, "dry_run": false });
        let text = "removed 2 passages from the corpus and 5 entries (1.0 MiB) from the tiers";
        assert_eq!(summary(&done), text);
    }
}
