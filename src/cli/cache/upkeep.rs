//! `ragstone cache verify` and `gc`

use std::fmt::Write;

use futures::StreamExt;
use ragstone_actors::admission::size;
use ragstone_corpus::{CorpusCheck, DamagedFile};
use ragstone_env::mebibytes;
use ragstone_service::access;
use ragstone_service::api::cache::{CollectGarbage, CollectedGarbage, Verified, Verify, Watched};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_storage::store::{DamagedEntry, VerifyReport};
use ragstone_storage::tier::Tier;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::filter::{Age, tiers};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// Only this tier
    #[arg(long, value_parser = tiers(&["host", "disk", "object"]))]
    tier: Option<Tier>,
    /// Say what is damaged, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct GcArgs {
    /// Entries of the bucket that are older leave: 12h, 30d
    #[arg(long, value_name = "TIME")]
    ttl: Option<Age>,
    /// The oldest entries leave until the bucket holds no more than this: 500GB, 2TiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_bytes: Option<u64>,
    /// Say what would be freed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Verifies.
pub async fn verify(config: &Config, args: VerifyArgs) -> Result<()> {
    let body = Verify { tier: args.tier, dry_run: args.dry_run };
    let done: Verified = access::with(config, "cache verify", async |client: &Client| {
        watch(client, "verify", &body, "verifying entries").await
    })
    .await?;
    if args.json {
        output::json(&done)?;
    } else {
        output::text(&(verified(&done.report) + &done.corpus.as_ref().map_or_else(String::new, compared)))?;
    }
    let in_corpus = done.corpus.as_ref().map_or(0, |corpus| corpus.damaged.len());
    if in_corpus > 0 {
        let files = output::count(in_corpus as u64, "file of the corpus is", "files of the corpus are");
        let message = format!("{files} damaged and left as found; `ragstone doctor` says what to do");
        return Err(Error::new(ErrorKind::Internal, message));
    }
    let damaged = done.report.damaged.len();
    if damaged == 0 {
        return Ok(());
    }
    let done = if args.dry_run { "found and left; run without --dry-run to remove" } else { "found and removed" };
    let damaged = output::count(damaged as u64, "damaged copy", "damaged copies");
    Err(Error::new(ErrorKind::Internal, format!("{damaged} {done}; what is missing is computed again when needed")))
}

fn verified(report: &VerifyReport) -> String {
    let mut out = String::new();
    let damage = if report.damaged.is_empty() { "; none is damaged" } else { "" };
    let copies = output::count(report.entries, "copy", "copies");
    let frames = output::count(report.frames, "frame", "frames");
    let _ = writeln!(out, "{copies} of entries, {frames}, {:.1} MiB read{damage}", mebibytes(report.bytes));
    for DamagedEntry { tier, error, .. } in &report.damaged {
        let _ = writeln!(out, "damaged, {tier}: {error}");
    }
    if report.unreadable != 0 {
        let copies = output::count(report.unreadable, "copy", "copies");
        let _ = writeln!(out, "{copies} could not be read now; the service's log says why");
    }
    out
}

fn compared(CorpusCheck { files, bytes, listed, damaged }: &CorpusCheck) -> String {
    let damage = if damaged.is_empty() { "; none is damaged" } else { "" };
    let count = output::count(*files, "file", "files");
    let mut out = format!("{count} of the corpus, {:.1} MiB read{damage}\n", mebibytes(*bytes));
    if *listed > 0 {
        let _ = writeln!(out, "{} had no checksum yet and got one", output::count(*listed, "file", "files"));
    }
    for DamagedFile { collection, file, error } in damaged {
        let _ = writeln!(out, "damaged, collection {}: {file} {error}", output::one_line(collection, 60));
    }
    out
}

/// Collects garbage.
pub async fn gc(config: &Config, args: GcArgs) -> Result<()> {
    let body = CollectGarbage { ttl_s: args.ttl.map(|age| age.0), max_bytes: args.max_bytes, dry_run: args.dry_run };
    let done: CollectedGarbage = access::with(config, "cache gc", async |client: &Client| {
        let bar = Progress::new("collecting garbage", Unit::Nothing);
        bar.during(client.post(&["v1", "cache", "gc"], &body)).await
    })
    .await?;
    if args.json {
        return output::json(&done);
    }
    output::text(&collected(&done))
}

fn collected(done: &CollectedGarbage) -> String {
    let verb = if done.dry_run { "would be" } else { "were" };
    let mut out = format!("{:.1} MiB of files {verb} freed on disk\n", mebibytes(done.disk_freed_bytes));
    if let Some(object) = &done.object {
        let _ = writeln!(
            out,
            "{:.1} of {:.1} MiB {verb} freed in the bucket: {} expired, {} too many, {} orphaned, {} damaged",
            mebibytes(object.freed_bytes),
            mebibytes(object.bytes),
            output::count(object.left_expired, "entry", "entries"),
            object.left_for_size,
            object.left_orphaned,
            object.left_damaged,
        );
        for (number, what) in [
            (object.resealed, "sealed by the first key"),
            (object.unsealed, "in the bucket without a seal"),
            (object.other_keys, "in the bucket, sealed by keys that this node does not have"),
        ] {
            if number > 0 {
                let _ = writeln!(out, "{} {what}", output::count(number, "entry", "entries"));
            }
        }
    }
    out
}

/// Posts, shows how far it is, and gives what comes in the end.
pub(super) async fn watch<T: DeserializeOwned>(
    client: &Client,
    verb: &str,
    body: &impl Serialize,
    doing: &str,
) -> Result<T> {
    let mut events = std::pin::pin!(client.events(&["v1", "cache", verb], body).await?);
    let bar = Progress::new(doing, Unit::Items);
    while let Some(event) = events.next().await.transpose()? {
        match event {
            Watched::Progress { done, total } => bar.set(done, total),
            Watched::Finished(finished) => return Ok(finished),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("cache {verb} broke off; run the command again")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_was_freed_is_said() {
        let done = json!({ "disk_freed_bytes": 1_048_576, "object": null, "dry_run": true });
        assert_eq!(collected(&read(done)), "1.0 MiB of files would be freed on disk\n");
        let object = json!({ "freed_bytes": 0, "bytes": 2_097_152, "left_expired": 0, "left_for_size": 0 });
        let text = collected(&read(json!({ "disk_freed_bytes": 0, "object": object, "dry_run": false })));
        assert!(text.contains("0.0 of 2.0 MiB were freed in the bucket"), "{text}");
    }

    #[test]
    fn damage_is_named() {
        let report = json!({
            "entries": 5, "frames": 60, "bytes": 2_097_152, "unreadable": 1,
            "damaged": [{ "key": "00".repeat(32), "tier": "disk", "error": "the checksum does not match" }],
        });
        let text = verified(&read(report));
        assert!(text.contains("5 copies of entries, 60 frames, 2.0 MiB read\ndamaged, disk: the checksum"), "{text}");
        assert!(text.contains("1 copy could not"), "{text}");
    }
}
