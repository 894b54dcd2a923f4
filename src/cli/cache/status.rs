//! `ragstone cache status`

use std::fmt::Write;

use ragstone_actors::Selection;
use serde_json::Value;

use crate::access;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::Result;
use crate::progress::mebibytes;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub async fn run(config: &Config, Args { json }: Args) -> Result<()> {
    let status: Value =
        access::with(config, "cache status", async |client: &Client| client.get(&["v1", "cache", "status"]).await)
            .await?;
    if json { output::json(&status) } else { output::text(&table(&status)) }
}

fn table(status: &Value) -> String {
    let mut out = String::new();
    let (model, store) = (&status["model"], &status["store"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let fingerprint: String = text(&model["fingerprint"]).chars().take(12).collect();
    let _ = writeln!(out, "model   {} ({}, {fingerprint})", text(&model["id"]), text(&model["architecture"]));
    let _ = writeln!(out, "blends  {}", blends(&status["blend"]));
    let heads = ["entries", "MiB", "of MiB", "hits", "misses", "corrupt", "evicted", "refused", "declined", "failed"];
    let _ = write!(out, "\ntier  ");
    out.extend(heads.map(|head| format!(" {head:>9}")));
    out.push('\n');
    let device = &status["device"];
    out.push_str(&tier_row("device", &device["cache"]));
    for name in ["host", "disk", "object"] {
        out.push_str(&tier_row(name, &store[name]));
    }
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (blocks, free, cached) = (&device["blocks"], &device["free_blocks"], &device["cached_blocks"]);
    let _ = writeln!(
        out,
        "\ndevice pool: {} of {} blocks of 16 tokens free, {} given up when needed",
        number(free),
        number(blocks),
        number(cached)
    );
    for (name, queue) in [("disk", &store["to_disk"]), ("object storage", &store["to_object"])] {
        if number(&queue["entries"]) > 0 || number(&queue["dropped"]) > 0 {
            let (waiting, dropped) = (number(&queue["entries"]), number(&queue["dropped"]));
            let waiting = output::count(waiting, "entry", "entries");
            let _ = writeln!(out, "\non the way to {name}: {waiting}; {dropped} dropped as too many waited");
        }
    }
    out.push_str(&recovered(&status["recovery"]));
    let jobs = super::warm::jobs_table(&status["warm_jobs"]);
    if !jobs.is_empty() {
        let _ = write!(out, "\n{jobs}");
    }
    out
}

/// Whether passages are blended, how, and by what right.
fn blends(blend: &Value) -> String {
    let selection = serde_json::from_value::<Selection>(blend["selection"].clone());
    let how = selection.map_or_else(|_| String::new(), |selection| selection.name());
    let how = format!("{how} {:.0} %", blend["ratio"].as_f64().unwrap_or(0.0) * 100.0);
    match blend["blending"].as_str().unwrap_or_default() {
        "calibrated" => format!("{how}, as calibrated"),
        "configured" => format!("{how}, as the settings say"),
        "uncalibrated" => format!("{how}, uncalibrated"),
        "not_good_enough" => "nothing: no way of blending keeps the model's answers".to_owned(),
        "cannot_move" => "nothing: the model's KV has its positions in it, and cannot be moved".to_owned(),
        _ => "nothing: the model is not calibrated (`ragstone calibrate`)".to_owned(),
    }
}

fn tier_row(name: &str, tier: &Value) -> String {
    if tier.is_null() {
        return format!("{name:<6} {:>9}\n", "off");
    }
    let number = |key: &str| tier[key].as_u64().unwrap_or(0);
    let bound = match number("capacity_bytes") {
        0 => "-".to_owned(),
        bytes => format!("{:.1}", mebibytes(bytes)),
    };
    let counts = ["hits", "misses", "corrupt", "evicted", "refused", "declined", "failed"];
    let counts: String = counts.iter().map(|key| format!(" {:>9}", number(key))).collect();
    format!("{name:<6} {:>9} {:>9.1} {bound:>9}{counts}\n", number("entries"), mebibytes(number("bytes")))
}

fn recovered(recovery: &Value) -> String {
    if recovery.is_null() {
        return String::new();
    }
    let number = |key: &str| recovery[key].as_u64().unwrap_or(0);
    let mut out = format!(
        "\nthe start found {} ({:.1} MiB) on disk in {:.0} ms",
        output::count(number("entries"), "entry", "entries"),
        mebibytes(number("bytes")),
        recovery["ms"].as_f64().unwrap_or(0.0)
    );
    for (name, one, many) in [
        ("repaired", "index row made again", "index rows made again"),
        ("damaged", "damaged entry put into quarantine", "damaged entries put into quarantine"),
        ("evicted", "entry removed for a lower bound", "entries removed for a lower bound"),
    ] {
        if number(name) > 0 {
            let _ = write!(out, "; {}", output::count(number(name), one, many));
        }
    }
    if number("over_bound_bytes") > 0 {
        let megabytes = mebibytes(number("over_bound_bytes"));
        let _ = write!(out, "; pinned entries exceed disk_bytes by {megabytes:.1} MiB, unpin some to make room");
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_a_tier_and_what_the_start_found() {
        let text = table(&json!({
            "model": { "id": "m", "architecture": "Llama", "fingerprint": "0123456789abcdef", "kv_bytes_per_token": 65_536 },
            "blend": { "blending": "calibrated", "selection": Selection::default(), "ratio": 0.05 },
            "store": { "host": { "entries": 3, "bytes": 1_048_576 }, "disk": { "entries": 4, "declined": 2 }, "object": null },
            "device": { "blocks": 10, "free_blocks": 7, "cached_blocks": 2, "cache": { "entries": 5, "hits": 6 } },
            "recovery": { "entries": 4, "bytes": 2_097_152, "damaged": 1, "ms": 12.3 },
            "warm_jobs": [],
        }));
        assert!(text.contains("m (Llama, 0123456789ab)"));
        assert!(text.contains("blends  cacheblend @2 5 %, as calibrated"), "{text}");
        assert!(text.contains("device         5       0.0         -         6"), "{text}");
        assert!(text.contains("7 of 10 blocks of 16 tokens free, 2 given up"), "{text}");
        assert!(text.contains("host           3       1.0         -"), "{text}");
        assert!(text.contains("object       off"), "{text}");
        assert!(text.contains("found 4 entries (2.0 MiB) on disk in 12 ms; 1 damaged entry put"), "{text}");
    }
}
