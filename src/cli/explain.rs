//! `ragstone explain`

use std::fmt::Write;

use serde_json::{Value, json};

use crate::access;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::Result;
use crate::progress::mebibytes;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The question; its prompt is run to the first token, as `ask` would
    question: String,
    /// The collection to answer from
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// How many passages to read
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks for one token, and shows how its prompt came about: what was planned, predicted, and measured.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let request = json!({
        "messages": [{ "role": "user", "content": args.question }],
        "max_tokens": 1,
        "temperature": 0,
        "ragstone": { "collection": args.collection, "top_k": args.top_k, "explain": true },
    });
    let answer: Value = access::with(config, "explain", async |client: &Client| {
        client.post(&["v1", "chat", "completions"], &request).await
    })
    .await?;
    let extension = &answer["ragstone"];
    if args.json { output::json(extension) } else { output::text(&table(extension)) }
}

fn table(extension: &Value) -> String {
    let report = &extension["report"];
    let mut out = String::new();
    let heads = ["tokens", "source", "from", "MiB", "load ms", "compute ms", "instead ms"];
    out.push_str(&line("segment", &heads.map(str::to_owned), "why"));
    let mut citations = extension["citations"].as_array().into_iter().flatten();
    for segment in report["segments"].as_array().into_iter().flatten() {
        let name = match segment["kind"].as_str().unwrap_or_default() {
            "passage" => {
                let title = citations.next().and_then(|citation| citation["title"].as_str()).unwrap_or_default();
                output::one_line(&format!("passage {title}"), 23)
            }
            kind => kind.to_owned(),
        };
        let predicted = &segment["predicted"];
        let ms = |name: &str| predicted[name].as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
        let cells = [
            output::number(&segment["tokens"]).to_string(),
            segment["source"].as_str().unwrap_or_default().to_owned(),
            tiers(segment),
            format!("{:.2}", mebibytes(output::number(&segment["bytes"]))),
            ms("load_ms"),
            ms("compute_ms"),
            ms("recompute_ms"),
        ];
        out.push_str(&line(&name, &cells, why(segment["why"].as_str().unwrap_or_default())));
    }
    out.push_str(blending(report));
    out.push_str(&shares(report));
    out.push_str(&times(report));
    out
}

fn line(name: &str, cells: &[String; 7], why: &str) -> String {
    let [tokens, source, from, mib, load, compute, instead] = cells;
    format!("{name:<24}{tokens:>7}{source:>8}{from:>16}{mib:>8}{load:>9}{compute:>11}{instead:>11}  {why}\n")
}

/// The tier that was taken, and in brackets those that have it, too.
fn tiers(segment: &Value) -> String {
    let Some(taken) = segment["tier"].as_str() else { return "-".to_owned() };
    let known = segment["tiers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let others: Vec<&str> = known.filter(|tier| *tier != taken).collect();
    if others.is_empty() { taken.to_owned() } else { format!("{taken} ({})", others.join(", ")) }
}

fn why(name: &str) -> &'static str {
    match name {
        "in_place" => "its blocks are on the device",
        "stored_exactly" => "computed behind these very tokens",
        "stored_closely" => "computed behind others: blended",
        "not_stored" => "not stored",
        "ends_the_prompt" => "computed every time",
        "other_positions" => "stored for other positions",
        "late_miss" => "stored, but could not be loaded",
        "slow_to_load" => "stored, but loading would take longer",
        _ => "",
    }
}

/// Why passages are not blended, where none is.
fn blending(report: &Value) -> &'static str {
    match report["blending"].as_str() {
        Some("not_calibrated") => {
            "\npassages are reused only where they are exact: the model is not calibrated (`ragstone calibrate`)\n"
        }
        Some("not_good_enough") => {
            "\npassages are reused only where they are exact: no way of blending keeps the model's answers\n"
        }
        Some("cannot_move") => {
            "\npassages are reused only where they are exact: the model's KV has its positions in it, and cannot be moved\n"
        }
        _ => "",
    }
}

/// How much of what is blended each layer computes.
fn shares(report: &Value) -> String {
    let Some(layer) = report["selection_layer"].as_u64() else { return String::new() };
    let ratio = report["ratio"].as_f64().unwrap_or(0.0) * 100.0;
    let first = match layer {
        0 | 1 => "layer 0 computes all of it".to_owned(),
        layer => format!("layers 0 to {} compute all of it", layer - 1),
    };
    format!("\nof what is blended {first}, the others {ratio:.1} %\n")
}

fn times(report: &Value) -> String {
    let mut out = String::new();
    let (predicted, ttft) = (&report["predicted"], &report["ttft"]);
    if predicted.is_null() {
        return "\nnothing is predicted: what things cost is not known\n".to_owned();
    }
    let loads = report["loads"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|load| load["ms"].as_f64())
        // Tiers are read at the same time.
        .fold(0.0, f64::max);
    let measured = |name: &str| ttft[name].as_f64().unwrap_or(0.0);
    let rows = [
        ("loads", "load_ms", loads),
        ("computation", "compute_ms", measured("compute_ms")),
        ("waiting for loads", "wait_ms", measured("load_wait_ms")),
        ("together", "total_ms", measured("compute_ms") + measured("load_wait_ms")),
    ];
    let _ = writeln!(out, "\n{:<20}{:>14}{:>14}", "ms", "predicted", "measured");
    for (name, key, measured) in rows {
        let predicted = predicted[key].as_f64().unwrap_or(0.0);
        let _ = writeln!(out, "{name:<20}{predicted:>14.1}{measured:>14.1}");
    }
    for without in report["without"].as_array().into_iter().flatten() {
        let tier = without["tier"].as_str().unwrap_or_default();
        let _ = writeln!(out, "{:<20}{:>14.1}", format!("without {tier}"), without["total_ms"].as_f64().unwrap_or(0.0));
    }
    out.push_str(&prices(report));
    out
}

/// What the prompt would take, and cost to keep, if all that it loads were in one tier.
fn prices(report: &Value) -> String {
    let tiers: Vec<&Value> = report["in_tiers"].as_array().into_iter().flatten().collect();
    let price = |at: &Value| at["a_month"].as_f64().unwrap_or(0.0);
    let hiding = tiers.iter().filter(|at| at["hides"].as_bool().unwrap_or(false));
    let cheapest = hiding.min_by(|left, right| price(left).total_cmp(&price(right))).map(|at| at["tier"].clone());
    let mut out = String::new();
    if !tiers.is_empty() {
        let _ = writeln!(out, "\n{:<20}{:>14}{:>14}", "all loaded from", "predicted ms", "price a month");
    }
    for at in tiers {
        let note = match (at["hides"].as_bool().unwrap_or(false), cheapest.as_ref() == Some(&at["tier"])) {
            (true, true) => "  loads hide: the cheapest that does",
            (true, false) => "  loads hide",
            (false, _) => "",
        };
        let (tier, ms) = (at["tier"].as_str().unwrap_or_default(), at["total_ms"].as_f64().unwrap_or(0.0));
        let _ = writeln!(out, "{tier:<20}{ms:>14.1}{:>14.6}{note}", price(at));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_table() {
        let predicted = json!({ "load_ms": 1.25, "compute_ms": 0.0, "recompute_ms": 40.0 });
        let segment = |kind, source, tier: Value, tiers: Value, why| {
            json!({ "kind": kind, "tokens": 120, "source": source, "tier": tier, "tiers": tiers, "bytes": 1_048_576,
                "why": why, "predicted": predicted })
        };
        let text = table(&json!({
            "citations": [{ "title": "Roofs\u{1b}[2J" }],
            "report": {
                "segments": [
                    segment("root", "exact", json!("device"), json!(["device"]), "in_place"),
                    segment("passage", "blend", json!("host"), json!(["host", "disk"]), "stored_closely"),
                    segment("question", "compute", Value::Null, json!([]), "ends_the_prompt"),
                ],
                "ratio": 0.15, "selection_layer": 2,
                "predicted": { "total_ms": 50.0, "load_ms": 2.5, "compute_ms": 48.0, "wait_ms": 1.0 },
                "without": [{ "tier": "host", "total_ms": 61.0 }],
                "in_tiers": [
                    { "tier": "host", "total_ms": 50.0, "a_month": 0.25, "hides": true },
                    { "tier": "disk", "total_ms": 50.5, "a_month": 0.008, "hides": true },
                    { "tier": "object", "total_ms": 90.0, "a_month": 0.001, "hides": false },
                ],
                "loads": [{ "tier": "host", "ms": 2.0 }],
                "ttft": { "compute_ms": 49.0, "load_wait_ms": 0.5 },
            },
        }));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("passage Roofs[2J ") && lines[2].contains("host (disk)"), "{text}");
        assert!(lines[2].contains("1.00      1.2        0.0       40.0  computed behind others"), "{text}");
        assert!(text.contains("layers 0 to 1 compute all of it, the others 15.0 %"), "{text}");
        assert!(text.contains("together                      50.0          49.5"), "{text}");
        assert!(text.contains("without host                  61.0"), "{text}");
        assert!(
            text.contains("disk                          50.5      0.008000  loads hide: the cheapest that does"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}') && !text.contains("calibrated"));
        let plain = table(&json!({ "report": { "segments": [], "blending": "not_calibrated" } }));
        assert!(plain.contains("`ragstone calibrate`"), "{plain}");
    }
}
