//! `ragstone cache status`

use std::fmt::Write;

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
    let _ = writeln!(out, "\ntier     entries        MiB     of MiB       hits     misses  corrupt  evicted");
    for name in ["host", "disk"] {
        let tier = &store[name];
        let number = |key: &str| tier[key].as_u64().unwrap_or(0);
        let _ = writeln!(
            out,
            "{name:<6} {:>9} {:>10.1} {:>10.1} {:>10} {:>10} {:>8} {:>8}",
            number("entries"),
            mebibytes(number("bytes")),
            mebibytes(number("capacity_bytes")),
            number("hits"),
            number("misses"),
            number("corrupt"),
            number("evicted"),
        );
    }
    let device = &status["device"];
    let _ = writeln!(out, "\ndevice  {} of {} blocks of 16 tokens free", device["free_blocks"], device["blocks"]);
    let jobs = super::warm::jobs_table(&status["warm_jobs"]);
    if !jobs.is_empty() {
        let _ = write!(out, "\n{jobs}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_a_tier() {
        let text = table(&json!({
            "model": { "id": "m", "architecture": "Llama", "fingerprint": "0123456789abcdef" },
            "store": { "host": { "entries": 3, "bytes": 1_048_576 }, "disk": { "entries": 4 } },
            "device": { "blocks": 10, "free_blocks": 9 },
        }));
        assert!(text.contains("m (Llama, 0123456789ab)"));
        assert!(text.contains("host           3        1.0"), "{text}");
        assert!(text.contains("9 of 10 blocks"));
    }
}
