//! `ragstone cache status`

use std::fmt::Write;

use ragstone_actors::Status;
use ragstone_actors::answer::blend::Blend;
use ragstone_actors::report::Blending;
use ragstone_env::damage::Damage;
use ragstone_env::mebibytes;
use ragstone_service::access;
use ragstone_service::api::cache::WholeStatus;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_storage::tier::disk::Recovery;
use ragstone_storage::tier::{Tier, TierStatus};
use ragstone_terminal::output;

use crate::cli::ingest::list::ingests_table;
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub async fn run(config: &Config, Args { json }: Args) -> Result<()> {
    let status: WholeStatus =
        access::with(config, "cache status", async |client: &Client| client.get(&["v1", "cache", "status"]).await)
            .await?;
    if json { output::json(&status) } else { output::text(&table(&status)) }
}

fn table(WholeStatus { status, damage, recovery, warm_jobs, ingests }: &WholeStatus) -> String {
    let mut out = String::new();
    for Damage { what, found, advice } in damage {
        let _ = writeln!(out, "DAMAGED {what}: {found}\n        -> {advice}");
    }
    let Status { model, blend, store, device, .. } = status;
    let fingerprint: String = model.fingerprint.chars().take(12).collect();
    let _ = writeln!(out, "model   {} ({}, {fingerprint})", model.id, model.architecture);
    let _ = writeln!(out, "blends  {}", blends(blend));
    let heads = ["entries", "MiB", "of MiB", "hits", "misses", "corrupt", "evicted", "refused", "declined", "failed"];
    let _ = write!(out, "\ntier  ");
    out.extend(heads.map(|head| format!(" {head:>9}")));
    out.push('\n');
    let tiers = [
        (Tier::Device, Some(&device.cache)),
        (Tier::Host, Some(&store.host)),
        (Tier::Disk, Some(&store.disk)),
        (Tier::Object, store.object.as_ref()),
    ];
    out.extend(tiers.map(|(tier, status)| tier_row(tier, status)));
    let _ = writeln!(
        out,
        "\ndevice pool: {} of {} blocks of 16 tokens free, {} given up when needed",
        device.free_blocks, device.blocks, device.cached_blocks
    );
    for (name, queue) in [("disk", &store.to_disk), ("object storage", &store.to_object)] {
        if queue.entries > 0 || queue.dropped > 0 {
            let (waiting, dropped) = (output::count(queue.entries, "entry", "entries"), queue.dropped);
            let _ = writeln!(out, "\non the way to {name}: {waiting}; {dropped} dropped as too many waited");
        }
    }
    out.push_str(&recovered(recovery));
    let jobs = super::warm::jobs_table(warm_jobs);
    if !jobs.is_empty() {
        let _ = write!(out, "\n{jobs}");
    }
    let ingests = ingests_table(ingests);
    if !ingests.is_empty() {
        let _ = write!(out, "\n{ingests}");
    }
    out
}

/// Whether passages are blended, how, and by what right.
fn blends(blend: &Blend) -> String {
    let how = format!("{} {:.0} %", blend.selection.name(), blend.ratio * 100.0);
    match blend.blending {
        Blending::Calibrated => format!("{how}, as calibrated"),
        Blending::Configured => format!("{how}, as the settings say"),
        Blending::Uncalibrated => format!("{how}, uncalibrated"),
        Blending::NotGoodEnough => "nothing: no way of blending keeps the model's answers".to_owned(),
        Blending::CannotMove => "nothing: the model's KV has its positions in it, and cannot be moved".to_owned(),
        Blending::NotCalibrated => "nothing: the model is not calibrated (`ragstone calibrate`)".to_owned(),
    }
}

fn tier_row(tier: Tier, status: Option<&TierStatus>) -> String {
    let name = tier.name();
    let Some(status) = status else { return format!("{name:<6} {:>9}\n", "off") };
    // `forged` is told by `ragstone doctor`.
    let TierStatus {
        entries,
        bytes,
        capacity_bytes,
        hits,
        misses,
        corrupt,
        evicted,
        refused,
        failed,
        declined,
        forged: _,
    } = status;
    let bound = match capacity_bytes {
        0 => "-".to_owned(),
        bytes => format!("{:.1}", mebibytes(*bytes)),
    };
    let counts = [hits, misses, corrupt, evicted, refused, declined, failed];
    let counts: String = counts.iter().map(|count| format!(" {count:>9}")).collect();
    format!("{name:<6} {entries:>9} {:>9.1} {bound:>9}{counts}\n", mebibytes(*bytes))
}

fn recovered(recovery: &Recovery) -> String {
    let Recovery { entries, bytes, repaired, damaged, evicted, over_bound_bytes, ms } = recovery;
    let found = output::count(*entries, "entry", "entries");
    let mut out = format!("\nthe start found {found} ({:.1} MiB) on disk in {ms:.0} ms", mebibytes(*bytes));
    for (number, one, many) in [
        (*repaired, "index row made again", "index rows made again"),
        (*damaged, "damaged entry put into quarantine", "damaged entries put into quarantine"),
        (*evicted, "entry removed for a lower bound", "entries removed for a lower bound"),
    ] {
        if number > 0 {
            let _ = write!(out, "; {}", output::count(number, one, many));
        }
    }
    if *over_bound_bytes > 0 {
        let megabytes = mebibytes(*over_bound_bytes);
        let _ = write!(out, "; pinned entries exceed disk_bytes by {megabytes:.1} MiB, unpin some to make room");
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use ragstone_actors::Selection;

    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_a_tier_and_what_the_start_found() {
        let status = json!({
            "model": { "id": "m", "architecture": "Llama", "fingerprint": "0123456789abcdef", "kv_bytes_per_token": 65_536 },
            "blend": { "blending": "calibrated", "selection": Selection::default(), "ratio": 0.05 },
            "store": { "host": { "entries": 3, "bytes": 1_048_576 }, "disk": { "entries": 4, "declined": 2 }, "object": null },
            "device": { "blocks": 10, "free_blocks": 7, "cached_blocks": 2, "cache": { "entries": 5, "hits": 6 } },
            "recovery": { "entries": 4, "bytes": 2_097_152, "damaged": 1, "ms": 12.3 },
            "damage": [{ "what": "catalog", "found": "cut", "advice": "look" }],
            "warm_jobs": [],
            "ingests": [{ "collection": "c", "paths": ["/a", "/b"], "files_done": 3, "state": "parked" }],
        });
        let text = table(&serde_json::from_value(status).unwrap());
        assert!(text.starts_with("DAMAGED catalog: cut\n        -> look\n"), "{text}");
        assert!(text.contains("m (Llama, 0123456789ab)"));
        assert!(text.contains("blends  cacheblend @2 5 %, as calibrated"), "{text}");
        assert!(text.contains("device         5       0.0         -         6"), "{text}");
        assert!(text.contains("7 of 10 blocks of 16 tokens free, 2 given up"), "{text}");
        assert!(text.contains("host           3       1.0         -"), "{text}");
        assert!(text.contains("object       off"), "{text}");
        assert!(text.contains("found 4 entries (2.0 MiB) on disk in 12 ms; 1 damaged entry put"), "{text}");
        assert!(text.contains("c     parked  3 files  /a /b"), "{text}");
    }
}
