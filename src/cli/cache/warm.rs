//! `ragstone cache warm`

use std::fmt::Write;

use futures::StreamExt;
use ragstone_actors::warm::WarmEvent;
use ragstone_storage::catalog::WarmProgress;
use serde_json::{Value, json};

use crate::access;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Progress, Unit, mebibytes};

/// The job is durable: after Ctrl-C or a kill, a running service or the next one goes on with it. What is there already is
/// skipped. Answers go first.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose passages
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// Only this document's, as `documents list` prints it
    #[arg(long, value_name = "ID")]
    document: Option<String>,
    /// For this tenant; may be given again [default: the default tenant]
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<String>,
    /// Say what would be computed, and compute nothing
    #[arg(long, conflicts_with_all = ["list", "cancel"])]
    dry_run: bool,
    /// List the warm-ups that are not finished
    #[arg(long, conflicts_with = "cancel")]
    list: bool,
    /// End a warm-up for good; what it computed stays
    #[arg(long, value_name = "JOB")]
    cancel: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Warms, lists or cancels.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.list {
        return list(config, args.json).await;
    }
    if let Some(job) = args.cancel {
        return cancel(config, job, args.json).await;
    }
    let body = json!({
        "collection": args.collection, "document": args.document, "tenants": args.tenants, "dry_run": args.dry_run,
    });
    if args.dry_run {
        let estimate: Value = access::with(config, "cache warm", async |client: &Client| {
            let bar = Progress::new("looking what is missing", Unit::Nothing);
            bar.during(client.post(&["v1", "cache", "warm"], &body)).await
        })
        .await?;
        return if args.json { output::json(&estimate) } else { output::line(&estimated(&estimate)) };
    }
    let (job, done) = watch(config, &args.collection, &body).await?;
    if args.json {
        let mut value = json!(done);
        value["id"] = job;
        return output::json(&value);
    }
    output::line(&summary(&args.collection, &done))
}

async fn watch(config: &Config, collection: &str, body: &Value) -> Result<(Value, WarmProgress)> {
    access::with(config, "cache warm", async |client: &Client| {
        let mut events = std::pin::pin!(client.events(&["v1", "cache", "warm"], body).await?);
        let bar = Progress::new(format!("warming {collection}"), Unit::Items);
        let mut job = Value::Null;
        while let Some(mut event) = events.next().await.transpose()? {
            if let Some(begun) = event.get_mut("begun") {
                job = begun["id"].take();
                continue;
            }
            let event = serde_json::from_value(event)
                .map_err(|error| Error::internal(format!("the service sent something unexpected: {error}")))?;
            match event {
                WarmEvent::Progress(progress) => bar.set(progress.passages_done, progress.passages_total),
                WarmEvent::Finished(progress) => return Ok((job, progress)),
            }
        }
        let message = "the warm-up broke off; the next start of the service goes on with it";
        Err(Error::new(ErrorKind::Unavailable, message))
    })
    .await
}

fn estimated(estimate: &Value) -> String {
    let megabytes = mebibytes(estimate["bytes_missing"].as_u64().unwrap_or(0));
    format!(
        "{} passages: {} entries are there, {} would be computed ({} tokens, {megabytes:.1} MiB)",
        estimate["passages"], estimate["entries_there"], estimate["entries_missing"], estimate["tokens_missing"]
    )
}

fn summary(collection: &str, done: &WarmProgress) -> String {
    let mut text = format!(
        "{collection}: {} passages; {} entries computed, {} were there",
        done.passages_done, done.entries_computed, done.entries_skipped
    );
    if done.entries_failed > 0 {
        let _ = write!(text, ", {} cannot be computed (the service's log says why)", done.entries_failed);
    }
    text
}

async fn list(config: &Config, json: bool) -> Result<()> {
    let mut jobs: Value =
        access::with(config, "cache warm", async |client: &Client| client.get(&["v1", "cache", "jobs"]).await).await?;
    let jobs = jobs["data"].take();
    if json {
        return output::json(&jobs);
    }
    output::text(&jobs_table(&jobs))
}

/// A line a job.
pub(super) fn jobs_table(jobs: &Value) -> String {
    let mut out = String::new();
    for job in jobs.as_array().into_iter().flatten() {
        let progress = &job["progress"];
        let _ = write!(out, "warm-up {} of {}", job["id"], job["collection"].as_str().unwrap_or_default());
        if let Some(document) = job["document"].as_str() {
            let _ = write!(out, ", document {}", output::one_line(document, 40));
        }
        let state = job["state"].as_str().unwrap_or_default().replace('_', " ");
        let _ = writeln!(out, ": {state}, {} of {} passages", progress["passages_done"], progress["passages_total"]);
    }
    out
}

async fn cancel(config: &Config, job: u64, json: bool) -> Result<()> {
    let number = job.to_string();
    let path = ["v1", "cache", "jobs", &number];
    let gone: Value = access::with(config, "cache warm", async |client: &Client| client.delete(&path).await).await?;
    if json { output::json(&gone) } else { output::line(&format!("cancelled warm-up {job}; what it computed is kept")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_job() {
        let jobs = json!([{
            "id": 7, "collection": "law", "document": "it's", "state": "other_model",
            "progress": { "passages_done": 3, "passages_total": 9 },
        }]);
        assert_eq!(jobs_table(&jobs), "warm-up 7 of law, document it's: other model, 3 of 9 passages\n");
        let done = WarmProgress { passages_done: 3, entries_computed: 2, entries_failed: 1, ..WarmProgress::default() };
        assert!(summary("law", &done).contains("1 cannot be computed"));
    }
}
