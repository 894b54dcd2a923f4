//! `ragstone cache list`, `evict`, `pin` and `unpin`

use std::fmt::Write;

use serde_json::Value;

use super::filter::Filter;
use crate::access;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::Result;
use crate::progress::{Progress, Unit, mebibytes};

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    filter: Filter,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    filter: Filter,
    /// All entries, where no filter is given
    #[arg(long)]
    all: bool,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists entries.
pub async fn list(config: &Config, args: ListArgs) -> Result<()> {
    let mut query = args.filter.query();
    query.push(("limit".to_owned(), args.limit.to_string()));
    let query: Vec<(&str, String)> = query.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let found: Value = access::with(config, "cache list", async |client: &Client| {
        client.get_with(&["v1", "cache", "entries"], &query).await
    })
    .await?;
    if args.json { output::json(&found) } else { output::text(&table(&found)) }
}

fn table(found: &Value) -> String {
    let mut out = String::new();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let rows = found["data"].as_array().map_or(&[][..], Vec::as_slice);
    if !rows.is_empty() {
        let _ = writeln!(out, "key           model         tokens       MiB    uses  pin  tiers             tenant");
    }
    for row in rows {
        let short = |name: &str| row[name].as_str().unwrap_or_default().chars().take(12).collect::<String>();
        let tiers: Vec<&str> = row["tiers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let _ = writeln!(
            out,
            "{:<13} {:<13} {:>6} {:>9.2} {:>7}  {:<3}  {:<17} {}",
            short("key"),
            short("fingerprint"),
            number(&row["tokens"]),
            mebibytes(number(&row["bytes"])),
            number(&row["uses"]),
            if row["pinned"] == true { "yes" } else { "" },
            tiers.join(","),
            output::one_line(row["tenant"].as_str().unwrap_or_default(), 40),
        );
    }
    let _ = writeln!(out, "{} entries, {:.1} MiB", number(&found["entries"]), mebibytes(number(&found["bytes"])));
    if found["has_more"] == true {
        let _ = writeln!(out, "{} are shown; more with --limit N", rows.len());
    }
    out
}

/// Evicts entries.
pub async fn evict(config: &Config, args: ChangeArgs) -> Result<()> {
    let done = change(config, &args, "evict").await?;
    if args.json {
        return output::json(&done);
    }
    let mut out = String::new();
    let verb = if args.dry_run { "would leave" } else { "left" };
    for tier in done["removed"].as_array().into_iter().flatten() {
        let megabytes = mebibytes(tier["bytes"].as_u64().unwrap_or(0));
        let _ =
            writeln!(out, "{} entries ({megabytes:.1} MiB) {verb} the {} tier", tier["entries"], text(&tier["tier"]));
    }
    if out.is_empty() {
        out.push_str("no entry fits\n");
    }
    if done["pinned"] != 0 {
        let _ = writeln!(out, "{} pinned entries stay; `ragstone cache unpin` lets them go", done["pinned"]);
    }
    output::text(&out)
}

/// Pins entries.
pub async fn pin(config: &Config, args: ChangeArgs) -> Result<()> {
    set_pinned(config, args, "pin").await
}

/// Unpins entries.
pub async fn unpin(config: &Config, args: ChangeArgs) -> Result<()> {
    set_pinned(config, args, "unpin").await
}

async fn set_pinned(config: &Config, args: ChangeArgs, verb: &str) -> Result<()> {
    let done = change(config, &args, verb).await?;
    if args.json {
        return output::json(&done);
    }
    let megabytes = mebibytes(done["bytes"].as_u64().unwrap_or(0));
    let would = if args.dry_run { "would be " } else { "" };
    let changed = &done["changed"];
    output::line(&format!("{changed} of {} fitting entries {would}{verb}ned ({megabytes:.1} MiB)", done["entries"]))
}

async fn change(config: &Config, args: &ChangeArgs, verb: &str) -> Result<Value> {
    let mut fields = args.filter.fields();
    fields.insert("all".to_owned(), args.all.into());
    fields.insert("dry_run".to_owned(), args.dry_run.into());
    let body = Value::Object(fields);
    let path = ["v1", "cache", verb];
    access::with(config, &format!("cache {verb}"), async |client: &Client| {
        let bar = Progress::new(format!("cache {verb}"), Unit::Nothing);
        bar.during(client.post(&path, &body)).await
    })
    .await
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_an_entry() {
        let row = json!({
            "key": "0123456789abcdef", "fingerprint": "fedcba9876543210", "tokens": 57, "bytes": 1_048_576, "uses": 3,
            "pinned": true, "tiers": ["host", "disk"], "tenant": "a\u{1b}[2Jb",
        });
        let text = table(&json!({ "data": [row], "entries": 5, "bytes": 5_242_880, "has_more": true }));
        assert!(
            text.contains("0123456789ab  fedcba987654      57      1.00       3  yes  host,disk         a[2Jb"),
            "{text}"
        );
        assert!(text.contains("5 entries, 5.0 MiB\n1 are shown"), "{text}");
        assert_eq!(table(&json!({ "data": [], "entries": 0, "bytes": 0 })), "0 entries, 0.0 MiB\n");
    }
}
