//! `ragstone cache verify` and `gc`

use std::fmt::Write;

use futures::StreamExt;
use ragstone_actors::size;
use serde_json::{Value, json};

use super::filter::Age;
use crate::access;
use crate::cli::output::{self, number};
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Progress, Unit, mebibytes};

#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// Only this tier
    #[arg(long, value_parser = ["host", "disk", "object"])]
    tier: Option<String>,
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
    let body = json!({ "tier": args.tier, "dry_run": args.dry_run });
    let report = access::with(config, "cache verify", async |client: &Client| {
        watch(client, "verify", &body, "verifying entries").await
    })
    .await?;
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&verified(&report))?;
    }
    let damaged = report["damaged"].as_array().map_or(0, Vec::len);
    if damaged == 0 {
        return Ok(());
    }
    let done = if args.dry_run { "found and left; run without --dry-run to remove" } else { "found and removed" };
    let damaged = output::count(damaged as u64, "damaged copy", "damaged copies");
    Err(Error::new(ErrorKind::Internal, format!("{damaged} {done}; what is missing is computed again when needed")))
}

fn verified(report: &Value) -> String {
    let mut out = String::new();
    let megabytes = mebibytes(number(&report["bytes"]));
    let damage = if report["damaged"].as_array().is_none_or(Vec::is_empty) { "; none is damaged" } else { "" };
    let copies = output::count(number(&report["entries"]), "copy", "copies");
    let frames = output::count(number(&report["frames"]), "frame", "frames");
    let _ = writeln!(out, "{copies} of entries, {frames}, {megabytes:.1} MiB read{damage}");
    for entry in report["damaged"].as_array().into_iter().flatten() {
        let text = |name: &str| entry[name].as_str().unwrap_or_default();
        let _ = writeln!(out, "damaged, {}: {}", text("tier"), text("error"));
    }
    if report["unreadable"] != 0 {
        let copies = output::count(number(&report["unreadable"]), "copy", "copies");
        let _ = writeln!(out, "{copies} could not be read now; the service's log says why");
    }
    out
}

/// Collects garbage.
pub async fn gc(config: &Config, args: GcArgs) -> Result<()> {
    let body = json!({ "ttl_s": args.ttl.map(|age| age.0), "max_bytes": args.max_bytes, "dry_run": args.dry_run });
    let done: Value = access::with(config, "cache gc", async |client: &Client| {
        let bar = Progress::new("collecting garbage", Unit::Nothing);
        bar.during(client.post(&["v1", "cache", "gc"], &body)).await
    })
    .await?;
    if args.json {
        return output::json(&done);
    }
    output::text(&collected(&done))
}

fn collected(done: &Value) -> String {
    let megabytes = |value: &Value| mebibytes(number(value));
    let verb = if done["dry_run"] == true { "would be" } else { "were" };
    let mut out = format!("{:.1} MiB of files {verb} freed on disk\n", megabytes(&done["disk_freed_bytes"]));
    let object = &done["object"];
    if !object.is_null() {
        let _ = writeln!(
            out,
            "{:.1} of {:.1} MiB {verb} freed in the bucket: {} expired, {} too many, {} orphaned, {} damaged",
            megabytes(&object["freed_bytes"]),
            megabytes(&object["bytes"]),
            output::count(number(&object["left_expired"]), "entry", "entries"),
            object["left_for_size"],
            object["left_orphaned"],
            object["left_damaged"],
        );
    }
    out
}

/// Posts, shows how far it is, and gives what comes in the end.
pub(super) async fn watch(client: &Client, verb: &str, body: &Value, doing: &str) -> Result<Value> {
    let mut events = std::pin::pin!(client.events(&["v1", "cache", verb], body).await?);
    let bar = Progress::new(doing, Unit::Items);
    while let Some(mut event) = events.next().await.transpose()? {
        if let Some(finished) = event.get_mut("finished") {
            return Ok(finished.take());
        }
        bar.set(number(&event["progress"]["done"]), number(&event["progress"]["total"]));
    }
    Err(Error::new(ErrorKind::Unavailable, format!("cache {verb} broke off; run the command again")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_is_said() {
        let done = json!({ "disk_freed_bytes": 1_048_576, "object": null, "dry_run": true });
        assert_eq!(collected(&done), "1.0 MiB of files would be freed on disk\n");
        let object = json!({ "freed_bytes": 0, "bytes": 2_097_152, "left_expired": 0, "left_for_size": 0 });
        let text = collected(&json!({ "disk_freed_bytes": 0, "object": object, "dry_run": false }));
        assert!(text.contains("0.0 of 2.0 MiB were freed in the bucket"), "{text}");
    }

    #[test]
    fn damage_is_named() {
        let report = json!({
            "entries": 5, "frames": 60, "bytes": 2_097_152, "unreadable": 1,
            "damaged": [{ "key": "00", "tier": "disk", "error": "the checksum does not match" }],
        });
        let text = verified(&report);
        assert!(text.contains("5 copies of entries, 60 frames, 2.0 MiB read\ndamaged, disk: the checksum"), "{text}");
        assert!(text.contains("1 copy could not"), "{text}");
    }
}
