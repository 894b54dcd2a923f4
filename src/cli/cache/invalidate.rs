//! `ragstone cache invalidate`

use ragstone_actors::upkeep::library::Removed;
use ragstone_corpus::DocumentInfo;
use ragstone_service::access;
use ragstone_service::api::cache::{Invalidate, InvalidatedText};
use ragstone_service::api::collections::WholeDocument;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};

use super::filter::Subject;
use crate::cli::documents::{self, Found};
use crate::error::{Error, ErrorKind, Result};

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
    /// Needed to remove a whole collection, or several documents of a file or a folder; accepted, and not needed, for one document
    #[arg(long)]
    yes: bool,
    /// Say what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until its bytes have left every file, too; else they leave within the time of the setting vacuum_within_s
    #[arg(long, conflicts_with = "dry_run")]
    now: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Removes a document or a collection from everything.
pub async fn run(config: &Config, Args { subject, how }: Args) -> Result<()> {
    let (command, Subject { collection, document }) = ("cache invalidate", subject);
    match document {
        Some(document) => remove_document(config, command, (Some(&collection), &document), how).await,
        None => remove_collection(config, command, &collection, how).await,
    }
}

/// Removes all of a collection, for `command`.
pub async fn remove_collection(config: &Config, command: &str, collection: &str, how: How) -> Result<()> {
    if !how.yes && !how.dry_run {
        return Err(Error::invalid_input(format!(
            "this would remove all documents of collection `{collection}`: say --yes to do it, --dry-run to look; `ragstone \
             documents delete ID --collection {collection}` removes one, and `ragstone cache evict --collection {collection}` \
             frees their KV and keeps them"
        )));
    }
    let done = access::with(config, command, async |client: &Client| {
        let bar = Progress::new(format!("invalidating {collection}"), Unit::Nothing);
        bar.during(invalidate(client, collection, None, (how.dry_run, how.now))).await
    });
    tell(&done.await?, how.json)
}

/// Removes the document of this id, or those of the file or below the folder of this path or source, for `command`. One is removed without
/// a question, several want a yes.
pub async fn remove_document(
    config: &Config,
    command: &str,
    (collection, given): (Option<&str>, &str),
    how: How,
) -> Result<()> {
    if given.is_empty() {
        return Err(Error::invalid_input("no document is named: give its id, or the path of its file or of a folder"));
    }
    let done = access::with(config, command, async |client: &Client| {
        let collection = documents::collection(client, collection).await?;
        let shown = output::one_line(given, 40);
        let bar = Progress::new(format!("invalidating document {shown} of {collection}"), Unit::Nothing);
        let known = bar.during(by_id(client, &collection, given)).await;
        let by_id = bar.during(invalidate(client, &collection, Some(given), (how.dry_run, how.now))).await;
        let unknown = match by_id {
            Ok(done) => return Ok((done, known.into_iter().collect())),
            Err(error) if error.kind() == ErrorKind::NotFound => error,
            Err(error) => return Err(error),
        };
        let (documents, from, is_folder) = match bar.during(documents::at_path(client, &collection, given)).await? {
            Some(Found::Folder(documents)) => (documents, "files below", true),
            Some(Found::File(documents)) => (documents, "the file", false),
            _ => return Err(unknown),
        };
        if (is_folder || documents.len() > 1) && !how.yes && !how.dry_run {
            let message = format!(
                "{} were read from {from} {shown}: say --yes to remove all of them, --dry-run to look; `ragstone documents delete ID \
                 --collection {collection}` removes one",
                output::count(documents.len() as u64, "document", "documents")
            );
            return Err(Error::invalid_input(message));
        }
        let mut sum = InvalidatedText { removed: Removed::default(), dry_run: how.dry_run };
        for (index, document) in documents.iter().enumerate() {
            // Files are rewritten once, for all of them.
            let now = how.now && index + 1 == documents.len();
            let InvalidatedText { removed, .. } =
                bar.during(invalidate(client, &collection, Some(&document.id), (how.dry_run, now))).await?;
            add(&mut sum.removed, removed);
        }
        Ok((sum, documents))
    });
    let (done, documents) = done.await?;
    tell(&done, how.json)?;
    let comes_back = (!how.json).then(|| come_back(&documents::files_there(&documents))).flatten();
    comes_back.map_or(Ok(()), |line| output::line(&line))
}

/// A document as it is listed, where it can be named in a path.
async fn by_id(client: &Client, collection: &str, id: &str) -> Option<DocumentInfo> {
    let WholeDocument { id, title, source, .. } =
        client.get(&["v1", "collections", collection, "documents", id]).await.ok()?;
    Some(DocumentInfo { id, title, source, ..DocumentInfo::default() })
}

/// What the next ingest does with files that are still there.
fn come_back(files: &[&str]) -> Option<String> {
    match files {
        [] => None,
        [file] => Some(format!("{file} is still there: the next ingest that reads it adds it again")),
        [_, _, ..] => {
            Some(format!("{} files are still there: the next ingest that reads them adds them again", files.len()))
        }
    }
}

async fn invalidate(
    client: &Client,
    collection: &str,
    document: Option<&str>,
    (dry_run, now): (bool, bool),
) -> Result<InvalidatedText> {
    let (all, document) = (document.is_none(), document.map(str::to_owned));
    let body = Invalidate { collection: collection.to_owned(), document, all, dry_run, now };
    client.post(&["v1", "cache", "invalidate"], &body).await
}

fn add(sum: &mut Removed, more: Removed) {
    sum.passages_removed += more.passages_removed;
    // Of a dry run it is the same ones each time; else the first removal cancels all.
    sum.jobs_cancelled = sum.jobs_cancelled.max(more.jobs_cancelled);
    sum.kv.entries_removed += more.kv.entries_removed;
    sum.kv.copies_removed += more.kv.copies_removed;
    sum.kv.bytes_removed += more.kv.bytes_removed;
    sum.kv.pending |= more.kv.pending;
}

fn tell(done: &InvalidatedText, json: bool) -> Result<()> {
    if json {
        return output::json(done);
    }
    output::line(&summary(done))?;
    cancelled(done).map_or(Ok(()), |line| output::line(&line))
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
    fn what_comes_back_is_said() {
        assert_eq!(come_back(&[]), None);
        assert!(come_back(&["/n/a.md"]).unwrap().starts_with("/n/a.md is still there: the next ingest"));
        assert!(come_back(&["/n/a.md", "/n/b.md"]).unwrap().starts_with("2 files are still there"));
    }

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
