//! `ragstone cache list`, `evict`, `pin` and `unpin`

use std::fmt::Write;

use serde_json::Value;

use super::filter::Filter;
use crate::access;
use crate::cli::output::{self, number};
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
    let rows = found["data"].as_array().map_or(&[][..], Vec::as_slice);
    if !rows.is_empty() {
        let _ = writeln!(out, "key           tokens       MiB    uses  pin  tiers             of");
    }
    let has_one_model = rows.windows(2).all(|pair| pair[0]["fingerprint"] == pair[1]["fingerprint"]);
    for row in rows {
        let tiers: Vec<&str> = row["tiers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let _ = write!(
            out,
            "{:<13} {:>6} {:>9.2} {:>7}  {:<3}  {:<17} {}",
            short(&row["key"]),
            number(&row["tokens"]),
            mebibytes(number(&row["bytes"])),
            number(&row["uses"]),
            if row["pinned"] == true { "yes" } else { "" },
            tiers.join(","),
            of(&row["of"]),
        );
        match text(&row["tenant"]) {
            "" => {}
            tenant => drop(write!(out, ", tenant {}", output::one_line(tenant, 40))),
        }
        if !has_one_model {
            let _ = write!(out, ", model {}", short(&row["fingerprint"]));
        }
        out.push('\n');
    }
    let (entries, bytes) = (number(&found["entries"]), mebibytes(number(&found["bytes"])));
    let _ = writeln!(out, "{}, {bytes:.1} MiB", output::count(entries, "entry", "entries"));
    if found["has_more"] == true {
        let shown = output::count(rows.len() as u64, "is", "are");
        let _ = writeln!(out, "{shown} shown; more with --limit N");
    }
    if found["object_unavailable"] == true {
        out.push_str("the bucket cannot be reached: what only it has is missing here\n");
    }
    out
}

fn short(hex: &Value) -> &str {
    text(hex).get(..12).unwrap_or_default()
}

/// What an entry is of; for a passage, with the id that `--document` takes.
fn of(of: &Value) -> String {
    match text(&of["kind"]) {
        "passage" => {
            let (title, document) =
                (output::one_line(text(&of["title"]), 40), output::one_line(text(&of["document"]), 40));
            let title = if title.is_empty() { document.clone() } else { title };
            let mut out = format!("{title}, passage {}", number(&of["ordinal"]) + 1);
            let _ = write!(out, " (document {document} of {}", text(&of["collection"]));
            match number(&of["also_in"]) {
                0 => {}
                others => drop(write!(out, ", and {}", output::count(others, "other place", "other places"))),
            }
            out + ")"
        }
        "system_prompt" => "system prompt".to_owned(),
        "module" => match (text(&of["schema"]), text(&of["module"])) {
            (schema, "/") => format!("text of schema {}", output::one_line(schema, 40)),
            (schema, module) => {
                format!("module {} of schema {}", output::one_line(module, 40), output::one_line(schema, 40))
            }
        },
        "prompt_start" => "start of another prompt: a caller's own system prompt, or a conversation".to_owned(),
        _ => "unknown: no passage of this data folder".to_owned(),
    }
}

/// Evicts entries.
pub async fn evict(config: &Config, args: ChangeArgs) -> Result<()> {
    let done = change(config, &args, "evict").await?;
    if args.json {
        return output::json(&done);
    }
    output::text(&evicted(&done))
}

fn evicted(done: &Value) -> String {
    let mut out = String::new();
    let would = if done["dry_run"] == true { "would leave" } else { "left" };
    match (number(&done["entries"]), number(&done["pinned"])) {
        (0, 0) => out.push_str("no entry fits\n"),
        (0, _) => out.push_str("nothing leaves the tiers\n"),
        (entries, _) => {
            let what = output::entries(entries, number(&done["copies"]), number(&done["bytes"]));
            let _ = writeln!(out, "{what} {would} the tiers");
        }
    }
    for tier in done["tiers"].as_array().into_iter().flatten() {
        let (copies, megabytes) = (number(&tier["copies"]), mebibytes(number(&tier["bytes"])));
        let _ = writeln!(
            out,
            "  {:<7} {}, {megabytes:.1} MiB",
            text(&tier["tier"]),
            output::count(copies, "copy", "copies")
        );
    }
    match number(&done["pinned"]) {
        0 => {}
        1 => out.push_str("1 pinned entry stays; `ragstone cache unpin` lets it go\n"),
        pinned => drop(writeln!(out, "{pinned} pinned entries stay; `ragstone cache unpin` lets them go")),
    }
    out
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
    let megabytes = mebibytes(number(&done["bytes"]));
    let would = if args.dry_run { "would be " } else { "" };
    let fitting = output::count(number(&done["entries"]), "fitting entry", "fitting entries");
    output::line(&format!("{} of {fitting} {would}{verb}ned ({megabytes:.1} MiB)", done["changed"]))
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

    fn row(key: &str, fingerprint: &str, tenant: &str, of: Value) -> Value {
        json!({
            "key": key, "fingerprint": fingerprint, "tokens": 57, "bytes": 1_048_576, "uses": 3, "pinned": true,
            "tiers": ["host", "disk"], "tenant": tenant, "of": of,
        })
    }

    #[test]
    fn a_line_an_entry_says_what_it_is_of() {
        let passage = json!({
            "kind": "passage", "collection": "world", "document": "0f0f", "ordinal": 1, "title": "Calbet \u{1b}Works",
            "also_in": 1,
        });
        let first = row("0123456789abcdef", "fedcba9876543210", "a\u{1b}[2Jb", passage);
        let text = table(&json!({ "data": [first], "entries": 5, "bytes": 5_242_880, "has_more": true }));
        let line = "0123456789ab      57      1.00       3  yes  host,disk         Calbet Works, passage 2 (document 0f0f \
                    of world, and 1 other place), tenant a[2Jb\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("5 entries, 5.0 MiB\n1 is shown"), "{text}");
        assert_eq!(table(&json!({ "data": [], "entries": 0, "bytes": 0 })), "0 entries, 0.0 MiB\n");
        let unreachable = json!({ "data": [], "entries": 0, "bytes": 0, "object_unavailable": true });
        assert!(table(&unreachable).ends_with("the bucket cannot be reached: what only it has is missing here\n"));
        // Entries of several models say whose they are.
        let second = row("0123456789abcdef", "0000000000000000", "", json!({ "kind": "system_prompt" }));
        let third = row("0123456789abcdef", "1111111111111111", "", json!({ "kind": "unknown" }));
        let module = |path: &str| json!({ "kind": "module", "schema": "trip", "module": path });
        let fourth = row("0123456789abcdef", "1111111111111111", "", module("stay/long"));
        let fifth = row("0123456789abcdef", "1111111111111111", "", module("/"));
        let all = [second, third, fourth, fifth];
        let text = table(&json!({ "data": all, "entries": 4, "bytes": 0, "has_more": false }));
        assert!(text.contains("  module stay/long of schema trip, model 1111"), "{text}");
        assert!(text.contains("  text of schema trip, model 1111"), "{text}");
        assert!(text.contains("  system prompt, model 000000000000\n"), "{text}");
        assert!(text.contains("  unknown: no passage of this data folder, model 111111111111\n"), "{text}");
    }

    #[test]
    fn entries_that_left_are_counted_once_and_their_copies_by_tier() {
        let done = json!({
            "entries": 12, "copies": 19, "bytes": 35_651_584, "dry_run": false, "pinned": 1,
            "tiers": [{ "tier": "host", "copies": 12, "bytes": 0 }, { "tier": "disk", "copies": 7, "bytes": 0 }],
        });
        let text = evicted(&done);
        assert!(text.starts_with("12 entries (19 copies, 34.0 MiB) left the tiers\n  host    12 copies"), "{text}");
        assert!(text.ends_with("1 pinned entry stays; `ragstone cache unpin` lets it go\n"), "{text}");
        let nothing = json!({ "entries": 0, "copies": 0, "bytes": 0, "tiers": [], "pinned": 0, "dry_run": true });
        assert_eq!(evicted(&nothing), "no entry fits\n");
        let pinned = json!({ "entries": 0, "copies": 0, "bytes": 0, "tiers": [], "pinned": 2, "dry_run": false });
        assert!(evicted(&pinned).starts_with("nothing leaves the tiers\n2 pinned entries stay"));
    }
}
