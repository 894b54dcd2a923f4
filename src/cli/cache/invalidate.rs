//! `ragstone cache invalidate`

use ragstone_actors::library::Removed;

use super::filter::Subject;
use crate::access;
use crate::api::cache::{Invalidate, InvalidatedText};
use crate::cli::{documents, output};
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::progress::{Progress, Unit};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    how: How,
}

/// How text is removed, by whatever command.
#[derive(Debug, clap::Args)]
pub struct How {
    /// Needed to remove a whole collection; accepted, and not needed, for one document
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
    remove(config, "cache invalidate", &args.subject, args.how).await
}

/// As [`run`], for `command`.
pub async fn remove(config: &Config, command: &str, subject: &Subject, how: How) -> Result<()> {
    let How { yes, dry_run, json } = how;
    let Subject { collection, document } = subject;
    if document.is_none() && !yes && !dry_run {
        return Err(Error::invalid_input(format!(
            "this would remove all documents of collection `{collection}`: say --yes to do it, --dry-run to look; `ragstone \
             documents delete ID --collection {collection}` removes one, and `ragstone cache evict --collection {collection}` \
             frees their KV and keeps them"
        )));
    }
    let all = document.is_none();
    let body = Invalidate { collection: collection.clone(), document: document.clone(), all, dry_run };
    let done: InvalidatedText = access::with(config, command, async |client: &Client| {
        let bar = Progress::new(format!("invalidating {}", subject.shown()), Unit::Nothing);
        match (bar.during(client.post(&["v1", "cache", "invalidate"], &body)).await, document) {
            (Err(error), Some(id)) => Err(documents::instead_of_path(client, (collection, id), error).await),
            (done, _) => done,
        }
    })
    .await?;
    if json {
        return output::json(&done);
    }
    output::line(&summary(&done))?;
    cancelled(&done).map_or(Ok(()), |line| output::line(&line))
}

fn summary(done: &InvalidatedText) -> String {
    let Removed { passages_removed, kv, .. } = done.removed;
    let passages = output::count(passages_removed as u64, "passage", "passages");
    let entries = output::entries(kv.entries_removed, kv.copies_removed, kv.bytes_removed);
    if done.dry_run {
        return format!("would remove {passages} and up to {entries} of that and of what was computed after it");
    }
    format!("removed {passages} from the corpus and {entries} from the tiers")
}

/// `1 unfinished ingest was cancelled, …`
fn cancelled(done: &InvalidatedText) -> Option<String> {
    let jobs = done.removed.jobs_cancelled as u64;
    let (one, many) = match done.dry_run {
        true => ("unfinished ingest would be cancelled", "unfinished ingests would be cancelled"),
        false => ("unfinished ingest was cancelled", "unfinished ingests were cancelled"),
    };
    (jobs > 0).then(|| {
        let it = if jobs == 1 { "it" } else { "they" };
        format!("{}: {it} would have brought this back", output::count(jobs, one, many))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_is_said() {
        let done = serde_json::json!({
            "passages_removed": 1, "entries_removed": 5, "copies_removed": 8, "bytes_removed": 1_048_576, "dry_run": false,
        });
        let text = "removed 1 passage from the corpus and 5 entries (8 copies, 1.0 MiB) from the tiers";
        let mut done: InvalidatedText = serde_json::from_value(done).unwrap();
        assert_eq!((summary(&done).as_str(), cancelled(&done)), (text, None));
        done.removed.jobs_cancelled = 1;
        let text = "1 unfinished ingest was cancelled: it would have brought this back";
        assert_eq!(cancelled(&done).as_deref(), Some(text));
        done.removed.jobs_cancelled = 2;
        done.dry_run = true;
        assert!(cancelled(&done).unwrap().starts_with("2 unfinished ingests would be cancelled: they"));
    }
}
