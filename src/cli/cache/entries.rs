//! `ragstone cache list`, `evict`, `pin` and `unpin`

use std::fmt::Write;

use ragstone_actors::ragstone::entries::{EntryOf, EntryPage, Evicted, LeftTier, ListedEntry, Pinned};
use ragstone_actors::upkeep::library::PassageName;
use ragstone_actors::upkeep::schemas::ModuleName;
use ragstone_env::mebibytes;
use ragstone_service::access;
use ragstone_service::api::cache::{ChangeEntries, Entries, EntriesQuery, HowToChange};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_storage::store::EntryInfo;
use ragstone_terminal::progress::{Progress, Unit};
use ragstone_terminal::{output, table};
use serde::de::DeserializeOwned;

use super::filter::Filter;
use crate::error::Result;

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

#[derive(Debug, clap::Args)]
pub struct EvictArgs {
    #[command(flatten)]
    change: ChangeArgs,
    /// Accepted, and not needed: what is evicted is computed again
    #[arg(long)]
    yes: bool,
}

/// Lists entries.
pub async fn list(config: &Config, args: ListArgs) -> Result<()> {
    let query = EntriesQuery::of(args.filter.entries(), args.limit);
    let found: Entries = access::with(config, "cache list", async |client: &Client| {
        client.get_with(&["v1", "cache", "entries"], &query).await
    })
    .await?;
    if args.json { output::json(&found) } else { output::text(&listed(&found.page)) }
}

fn listed(found: &EntryPage) -> String {
    let fingerprint = |row: &ListedEntry| row.entry.summary.fingerprint;
    let has_one_model = found.data.windows(2).all(|pair| fingerprint(&pair[0]) == fingerprint(&pair[1]));
    let cells = |row: &ListedEntry| {
        let EntryInfo { summary, tiers, pinned, uses, .. } = &row.entry;
        let mut of = of(&row.of);
        if !summary.tenant.is_empty() {
            let _ = write!(of, ", tenant {}", output::one_line(&summary.tenant, 40));
        }
        if !has_one_model {
            let _ = write!(of, ", model {}", short(&summary.fingerprint));
        }
        let pinned = if *pinned { "yes" } else { "" };
        let tiers = tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(",");
        let (tokens, megabytes) = (summary.tokens.to_string(), format!("{:.2}", mebibytes(summary.bytes)));
        vec![short(&summary.key), tokens, megabytes, uses.to_string(), pinned.to_owned(), tiers, of]
    };
    let mut out = String::new();
    if !found.data.is_empty() {
        let heads = ["key", "tokens", "MiB", "uses", "pinned", "tiers", "of"];
        out = table::table(&heads, &found.data.iter().map(cells).collect::<Vec<_>>());
    }
    let entries = output::count(found.entries, "entry", "entries");
    let _ = writeln!(out, "{entries}, {:.1} MiB", mebibytes(found.bytes));
    if found.has_more {
        let shown = output::count(found.data.len() as u64, "is", "are");
        let _ = writeln!(out, "{shown} shown; more with --limit N");
    }
    if found.object_unavailable {
        out.push_str("the bucket cannot be reached: what only it has is missing here\n");
    }
    out
}

fn short(name: &impl ToString) -> String {
    name.to_string().chars().take(12).collect()
}

/// What an entry is of; for a passage, with the id that `--document` takes.
fn of(of: &EntryOf) -> String {
    match of {
        EntryOf::Passage(PassageName { collection, document, ordinal, title, also_in }) => {
            let (title, document) = (output::one_line(title, 40), output::one_line(document, 40));
            let title = if title.is_empty() { document.clone() } else { title };
            let others = match also_in {
                0 => String::new(),
                others => format!(", and {}", output::count(*others, "other place", "other places")),
            };
            format!("{title}, passage {} (document {document} of {collection}{others})", ordinal + 1)
        }
        EntryOf::SystemPrompt => "system prompt".to_owned(),
        EntryOf::Primer => "primer: comes with ragstone, passages are computed behind it".to_owned(),
        EntryOf::Module(ModuleName { schema, module }) => match module.as_str() {
            "/" => format!("text of schema {}", output::one_line(schema, 40)),
            module => format!("module {} of schema {}", output::one_line(module, 40), output::one_line(schema, 40)),
        },
        EntryOf::PromptStart => "start of another prompt: a caller's own system prompt, or a conversation".to_owned(),
        EntryOf::Text => "text of a conversation, a prompt or an answer, further on".to_owned(),
        EntryOf::OtherPassage => "passage that came with a request or an import".to_owned(),
    }
}

/// Evicts entries.
pub async fn evict(config: &Config, EvictArgs { change: args, .. }: EvictArgs) -> Result<()> {
    let done: Evicted = change(config, &args, "evict").await?;
    if args.json {
        return output::json(&done);
    }
    output::text(&evicted(&done))
}

fn evicted(done: &Evicted) -> String {
    let mut out = String::new();
    let would = if done.dry_run { "would leave" } else { "left" };
    match (done.entries, done.pinned) {
        (0, 0) => out.push_str("no entry fits\n"),
        (0, _) => out.push_str("nothing leaves the tiers\n"),
        (entries, _) => {
            let what = output::entries(entries, done.copies, done.bytes);
            let _ = writeln!(out, "{what} {would} the tiers");
        }
    }
    for LeftTier { tier, copies, bytes } in &done.tiers {
        let copies = output::count(*copies, "copy", "copies");
        let _ = writeln!(out, "  {:<7} {copies}, {:.1} MiB", tier.name(), mebibytes(*bytes));
    }
    match done.pinned {
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
    let done: Pinned = change(config, &args, verb).await?;
    if args.json {
        return output::json(&done);
    }
    let Pinned { entries, changed, bytes, dry_run } = done;
    let would = if dry_run { "would be " } else { "" };
    let fitting = output::count(entries, "fitting entry", "fitting entries");
    output::line(&format!("{changed} of {fitting} {would}{verb}ned ({:.1} MiB)", mebibytes(bytes)))
}

async fn change<T: DeserializeOwned>(config: &Config, args: &ChangeArgs, verb: &str) -> Result<T> {
    let how = HowToChange { all: args.all, dry_run: args.dry_run };
    let body = ChangeEntries { filter: args.filter.entries(), how };
    let path = ["v1", "cache", verb];
    access::with(config, format!("cache {verb}").as_str(), async |client: &Client| {
        let bar = Progress::new(format!("cache {verb}"), Unit::Nothing);
        bar.during(client.post(&path, &body)).await
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn row(key: &str, fingerprint: &str, tenant: &str, of: Value) -> Value {
        json!({
            "key": key.repeat(4), "fingerprint": fingerprint.repeat(4), "tokens": 57, "bytes": 1_048_576, "uses": 3,
            "pinned": true, "tiers": ["host", "disk"], "tenant": tenant, "of": of, "parent": null, "layers": 2,
            "segment": "00".repeat(16), "compute_us": 1, "created_unix_ms": 1, "last_use_unix_ms": 1,
        })
    }

    fn listed(mut found: Value) -> String {
        for flag in ["has_more", "object_unavailable"] {
            found[flag] = json!(found[flag] == true);
        }
        super::listed(&serde_json::from_value(found).unwrap())
    }

    #[test]
    fn a_line_an_entry_says_what_it_is_of() {
        let passage = json!({
            "kind": "passage", "collection": "world", "document": "0f0f", "ordinal": 1, "title": "Calbet \u{1b}Works",
            "also_in": 1,
        });
        let first = row("0123456789abcdef", "fedcba9876543210", "a\u{1b}[2Jb", passage);
        let text = listed(json!({ "data": [first], "entries": 5, "bytes": 5_242_880, "has_more": true }));
        let lines = "key           tokens   MiB  uses  pinned  tiers      of\n\
                     0123456789ab      57  1.00     3  yes     host,disk  Calbet Works, passage 2 (document 0f0f of world, and 1 \
                     other place), tenant a[2Jb\n";
        assert!(text.starts_with(lines), "{text}");
        assert!(text.contains("5 entries, 5.0 MiB\n1 is shown"), "{text}");
        assert_eq!(listed(json!({ "data": [], "entries": 0, "bytes": 0 })), "0 entries, 0.0 MiB\n");
        let unreachable = json!({ "data": [], "entries": 0, "bytes": 0, "object_unavailable": true });
        assert!(listed(unreachable).ends_with("the bucket cannot be reached: what only it has is missing here\n"));
        // Entries of several models say whose they are.
        let second = row("0123456789abcdef", "0000000000000000", "", json!({ "kind": "system_prompt" }));
        let third = row("0123456789abcdef", "1111111111111111", "", json!({ "kind": "other_passage" }));
        let module = |path: &str| json!({ "kind": "module", "schema": "trip", "module": path });
        let fourth = row("0123456789abcdef", "1111111111111111", "", module("stay/long"));
        let fifth = row("0123456789abcdef", "1111111111111111", "", module("/"));
        let all = [second, third, fourth, fifth];
        let text = listed(json!({ "data": all, "entries": 4, "bytes": 0, "has_more": false }));
        assert!(text.contains("  module stay/long of schema trip, model 1111"), "{text}");
        assert!(text.contains("  text of schema trip, model 1111"), "{text}");
        assert!(text.contains("  system prompt, model 000000000000\n"), "{text}");
        assert!(text.contains("  passage that came with a request or an import, model 111111111111\n"), "{text}");
    }

    #[test]
    fn entries_that_left_are_counted_once_and_their_copies_by_tier() {
        let done = json!({
            "entries": 12, "copies": 19, "bytes": 35_651_584, "dry_run": false, "pinned": 1,
            "tiers": [{ "tier": "host", "copies": 12, "bytes": 0 }, { "tier": "disk", "copies": 7, "bytes": 0 }],
        });
        let text = evicted(&serde_json::from_value(done).unwrap());
        assert!(text.starts_with("12 entries (19 copies, 34.0 MiB) left the tiers\n  host    12 copies"), "{text}");
        assert!(text.ends_with("1 pinned entry stays; `ragstone cache unpin` lets it go\n"), "{text}");
        let nothing = json!({ "entries": 0, "copies": 0, "bytes": 0, "tiers": [], "pinned": 0, "dry_run": true });
        assert_eq!(evicted(&serde_json::from_value(nothing).unwrap()), "no entry fits\n");
        let pinned = json!({ "entries": 0, "copies": 0, "bytes": 0, "tiers": [], "pinned": 2, "dry_run": false });
        assert!(
            evicted(&serde_json::from_value(pinned).unwrap())
                .starts_with("nothing leaves the tiers\n2 pinned entries stay")
        );
    }
}
