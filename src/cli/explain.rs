//! `ragstone explain`

use std::fmt::Write;

use ragstone_actors::report::{Blending, SegmentReport, Without};
use ragstone_actors::{Citation, OnNothingFound, ReuseReport};
use ragstone_env::mebibytes;
use ragstone_service::access;
use ragstone_service::api::chat::{AnswerExtension, ChatCompletion, ChatRequest, Extension, GenerationRequest};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_storage::prompt::plan::{InTier, SegmentPrediction, Why};
use ragstone_storage::segment::SegmentKind;
use ragstone_terminal::output;

use crate::cli::documents;
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The question; its prompt is run to the first token, as ragstone ask would
    question: String,
    /// The collection to answer from; TENANT/NAME names a tenant's [default: default, or the only one there is]
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// How many passages to read
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Take path:, folder:, file:, name:, after: and before: in the question for words, not for filters
    #[arg(long)]
    plain: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks for one token, and shows how its prompt came about: what was planned, predicted, and measured.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let answer: ChatCompletion = access::with(config, access::asking("explain"), async |client: &Client| {
        let collection = Some(documents::collection(client, args.collection.as_deref()).await?);
        // A prompt is shown, whatever is in it.
        let on_nothing_found = Some(OnNothingFound::AsUsual);
        let extension = Extension {
            collection,
            top_k: args.top_k,
            explain: true,
            on_nothing_found,
            qualifiers: !args.plain,
            ..Extension::default()
        };
        let (max_tokens, temperature) = (Some(1), Some(0.0));
        let generation =
            GenerationRequest { ragstone: Some(extension), max_tokens, temperature, ..GenerationRequest::default() };
        client.post(&["v1", "chat", "completions"], &ChatRequest::ask(&args.question, generation)).await
    })
    .await?;
    if args.json { output::json(&answer.ragstone) } else { output::text(&table(&answer.ragstone)) }
}

fn table(AnswerExtension { citations, report, .. }: &AnswerExtension) -> String {
    let heads = ["tokens", "source", "from", "MiB", "load ms", "compute ms", "instead ms"];
    let mut lines = vec![("segment".to_owned(), heads.map(str::to_owned), "why")];
    let citations_of = citations;
    let mut citations = citations.iter();
    for segment in &report.segments {
        let name = match segment.kind {
            SegmentKind::Passage => {
                let title = citations.next().map(|citation| citation.title.as_str()).unwrap_or_default();
                output::one_line(&format!("passage {title}"), 23)
            }
            SegmentKind::SystemPrompt => "system prompt".to_owned(),
            SegmentKind::Text => "text".to_owned(),
            SegmentKind::Module => "module".to_owned(),
            SegmentKind::Question => "question".to_owned(),
        };
        let ms = |of: fn(&SegmentPrediction) -> f64| {
            segment.predicted.as_ref().map_or_else(|| "-".to_owned(), |predicted| format!("{:.1}", of(predicted)))
        };
        let cells = [
            segment.tokens.to_string(),
            segment.source.name().to_owned(),
            tiers(segment),
            format!("{:.2}", mebibytes(segment.bytes)),
            ms(|predicted| predicted.load_ms),
            ms(|predicted| predicted.compute_ms),
            ms(|predicted| predicted.recompute_ms),
        ];
        lines.push((name, cells, why(segment.why)));
    }
    let widest = lines.iter().map(|(_, [_, _, from, ..], _)| from.len()).max().unwrap_or(0);
    let mut out: String = lines.iter().map(|(name, cells, why)| line(name, cells, why, widest + 2)).collect();
    out.push_str(&found(citations_of, report));
    out.push_str(blending(report.blending));
    out.push_str(&shares(report));
    out.push_str(&times(report));
    out
}

/// How similar the passages are to the question, and whether any is about it.
fn found(citations: &[Citation], report: &ReuseReport) -> String {
    let mut out = String::new();
    let similar = citations.iter().filter_map(|citation| Some((citation.number, citation.similarity?)));
    let similar: Vec<String> = similar.map(|(number, similarity)| format!("[{number}] {similarity:.2}")).collect();
    if !similar.is_empty() {
        let _ = writeln!(out, "\nsimilarity to the question: {}", similar.join(", "));
    }
    if report.nothing_found.is_some() {
        out.push_str("no passage seems to be about this question\n");
    }
    out
}

/// Which tiers have a segment may take much room, and mostly takes little: `from_width`.
fn line(name: &str, cells: &[String; 7], why: &str, from_width: usize) -> String {
    let [tokens, source, from, mib, load, compute, instead] = cells;
    format!("{name:<24}{tokens:>7}{source:>8}{from:>from_width$}{mib:>8}{load:>9}{compute:>11}{instead:>11}  {why}\n")
}

/// The tier that was taken, and in brackets those that have it, too.
fn tiers(segment: &SegmentReport) -> String {
    let Some(taken) = segment.tier else { return "-".to_owned() };
    let others = segment.tiers.iter().filter(|tier| **tier != taken);
    let others: Vec<&str> = others.map(|tier| tier.name()).collect();
    if others.is_empty() { taken.to_string() } else { format!("{taken} ({})", others.join(", ")) }
}

fn why(why: Why) -> &'static str {
    match why {
        Why::InPlace => "its blocks are on the device",
        Why::StoredExactly => "computed after these very tokens",
        Why::StoredClosely => "computed after others: blended",
        Why::NotStored => "not stored",
        Why::EndsThePrompt => "computed every time",
        Why::OtherPositions => "stored for other positions",
        Why::LateMiss => "stored, but could not be loaded",
        Why::SlowToLoad => "stored, but loading would take longer",
    }
}

/// Why passages are not blended, where none is.
fn blending(blending: Blending) -> &'static str {
    match blending {
        Blending::NotCalibrated => {
            "\npassages are reused only where they are exact: the model is not calibrated (`ragstone calibrate`)\n"
        }
        Blending::NotGoodEnough => {
            "\npassages are reused only where they are exact: no way of blending keeps the model's answers\n"
        }
        Blending::CannotMove => {
            "\npassages are reused only where they are exact: the model's KV has its positions in it, and cannot be moved\n"
        }
        Blending::Calibrated | Blending::Configured | Blending::Uncalibrated => "",
    }
}

/// How much of what is blended each layer computes.
fn shares(report: &ReuseReport) -> String {
    let Some(layer) = report.selection_layer else { return String::new() };
    let first = match layer {
        0 | 1 => "layer 0 computes all of it".to_owned(),
        layer => format!("layers 0 to {} compute all of it", layer - 1),
    };
    format!("\nof what is blended {first}, the others {:.1} %\n", report.ratio * 100.0)
}

fn times(report: &ReuseReport) -> String {
    let mut out = String::new();
    let Some(predicted) = &report.predicted else {
        return "\nnothing is predicted: what things cost is not known\n".to_owned();
    };
    let ttft = &report.ttft;
    // Tiers are read at the same time.
    let loads = report.loads.iter().map(|load| load.ms).fold(0.0, f64::max);
    let rows = [
        ("loads", predicted.load_ms, loads),
        ("computation", predicted.compute_ms, ttft.compute_ms),
        ("waiting for loads", predicted.wait_ms, ttft.load_wait_ms),
        ("together", predicted.total_ms, ttft.compute_ms + ttft.load_wait_ms),
    ];
    let _ = writeln!(out, "\n{:<20}{:>14}{:>14}", "ms", "predicted", "measured");
    for (name, predicted, measured) in rows {
        let _ = writeln!(out, "{name:<20}{predicted:>14.1}{measured:>14.1}");
    }
    for Without { tier, predicted } in &report.without {
        let _ = writeln!(out, "{:<20}{:>14.1}", format!("without {tier}"), predicted.total_ms);
    }
    out.push_str(&prices(&report.in_tiers));
    out
}

/// What the prompt would take, and cost to keep, if all that it loads were in one tier.
fn prices(tiers: &[InTier]) -> String {
    let hiding = tiers.iter().filter(|at| at.hides);
    let cheapest = hiding.min_by(|left, right| left.a_month.total_cmp(&right.a_month)).map(|at| at.tier);
    let mut out = String::new();
    if !tiers.is_empty() {
        let _ = writeln!(out, "\n{:<20}{:>14}{:>14}", "all loaded from", "predicted ms", "price a month");
    }
    for InTier { tier, a_month, total_ms, hides } in tiers {
        let note = match (hides, cheapest == Some(*tier)) {
            (true, true) => "  loads hide: the cheapest that does",
            (true, false) => "  loads hide",
            (false, _) => "",
        };
        let _ = writeln!(out, "{:<20}{total_ms:>14.1}{a_month:>14.6}{note}", tier.name());
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn table(extension: Value) -> String {
        super::table(&serde_json::from_value(extension).unwrap())
    }

    #[test]
    fn a_plan_is_a_table() {
        let predicted = json!({ "load_ms": 1.25, "compute_ms": 0.0, "recompute_ms": 40.0 });
        let segment = |kind, source, tier: Value, tiers: Value, why| {
            json!({ "kind": kind, "tokens": 120, "source": source, "tier": tier, "tiers": tiers, "bytes": 1_048_576,
                "why": why, "predicted": predicted })
        };
        let text = table(json!({
            "citations": [{ "title": "Roofs\u{1b}[2J" }],
            "report": {
                "segments": [
                    segment("system_prompt", "exact", json!("device"), json!(["device", "host", "disk"]), "in_place"),
                    segment("passage", "blend", json!("host"), json!(["host", "disk"]), "stored_closely"),
                    segment("question", "compute", Value::Null, json!([]), "ends_the_prompt"),
                ],
                "blending": "calibrated", "ratio": 0.15, "selection_layer": 2,
                "predicted": { "total_ms": 50.0, "load_ms": 2.5, "compute_ms": 48.0, "wait_ms": 1.0 },
                "without": [{ "tier": "host", "total_ms": 61.0 }],
                "in_tiers": [
                    { "tier": "host", "total_ms": 50.0, "a_month": 0.25, "hides": true },
                    { "tier": "disk", "total_ms": 50.5, "a_month": 0.008, "hides": true },
                    { "tier": "object", "total_ms": 90.0, "a_month": 0.001, "hides": false },
                ],
                "loads": [{ "tier": "host", "bytes": 0, "ms": 2.0 }],
                "ttft": { "compute_ms": 49.0, "load_wait_ms": 0.5 },
            },
        }));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("120   exact  device (host, disk)    1.00"), "{text}");
        assert!(lines[2].starts_with("passage Roofs[2J ") && lines[2].contains("host (disk)"), "{text}");
        assert!(lines[2].contains("1.00      1.2        0.0       40.0  computed after others"), "{text}");
        assert!(text.contains("layers 0 to 1 compute all of it, the others 15.0 %"), "{text}");
        assert!(text.contains("together                      50.0          49.5"), "{text}");
        assert!(text.contains("without host                  61.0"), "{text}");
        assert!(
            text.contains("disk                          50.5      0.008000  loads hide: the cheapest that does"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}') && !text.contains("calibrated"));
        let plain = table(json!({ "report": { "segments": [], "blending": "not_calibrated" } }));
        assert!(plain.contains("`ragstone calibrate`"), "{plain}");
    }
}
