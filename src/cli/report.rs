//! Citations and the reuse report, for people.

use std::fmt::Write;

use serde_json::Value;

use crate::cli::output::one_line;
use crate::progress::mebibytes;

/// The passages that stood in the prompt, one a line; empty where there were none.
pub fn citations(citations: &Value) -> String {
    let mut out = String::new();
    for citation in citations.as_array().into_iter().flatten() {
        let title = one_line(citation["title"].as_str().unwrap_or_default(), 40);
        let source =
            citation["source"].as_str().map_or_else(String::new, |source| format!(" ({})", one_line(source, 60)));
        let text = one_line(citation["text"].as_str().unwrap_or_default(), 70);
        let _ = writeln!(out, "  [{}] {title}{source}: {text}", citation["number"]);
    }
    if out.is_empty() { out } else { format!("\nSources\n{out}") }
}

/// Where the prompt's KV came from, what was loaded, and where the time to the first token went.
pub fn reuse(report: &Value) -> String {
    let mut out = String::from("\nReuse report\n");
    let tokens = &report["tokens"];
    let count = |name: &str| tokens[name].as_u64().unwrap_or(0);
    let kinds = ["exact", "blended", "recomputed", "computed"];
    let total: u64 = kinds.iter().map(|kind| count(kind)).sum();
    let loaded = count("exact") + count("blended");
    let _ = write!(out, "  tokens       ");
    for kind in kinds {
        let _ = write!(out, "{kind} {}   ", count(kind));
    }
    let share = if total == 0 { 0.0 } else { 100.0 * loaded as f64 / total as f64 };
    let _ = writeln!(out, "of {total}: {share:.0} % not computed");
    let segments = report["segments"].as_array().into_iter().flatten();
    let on_device: u64 = segments.filter(|it| it["tier"] == "device").filter_map(|it| it["tokens"].as_u64()).sum();
    if on_device > 0 {
        let _ = writeln!(out, "  from device  {on_device} tokens, in place already");
    }
    let loads = report["loads"].as_array().map_or(&[][..], Vec::as_slice);
    for load in loads {
        let (bytes, ms) = (load["bytes"].as_u64().unwrap_or(0), load["ms"].as_f64().unwrap_or(0.0));
        let tier = load["tier"].as_str().unwrap_or("?");
        let _ = writeln!(out, "  from {tier:<8}{:.2} MiB in {ms:.1} ms", mebibytes(bytes));
    }
    if loads.is_empty() {
        let _ = writeln!(out, "  loaded       nothing");
    }
    if let Some(misses) = report["late_misses"].as_u64().filter(|misses| *misses > 0) {
        let _ = writeln!(out, "  late misses  {misses} (damaged or gone entries, computed again)");
    }
    let _ = writeln!(out, "  first token  {}", ttft(&report["ttft"]));
    rerank(&mut out, &report["rerank"]);
    speculation(&mut out, &report["speculation"]);
    rounds(&mut out, &report["rounds"]);
    out
}

/// How passages were put in order.
fn rerank(out: &mut String, rerank: &Value) {
    let by = match rerank["by"].as_str() {
        Some("cross_encoder") => "the cross-encoder",
        Some("model") => "the language model",
        _ => return,
    };
    let ms = rerank["ms"].as_f64().unwrap_or(0.0);
    let (candidates, cached, tokens) = (&rerank["candidates"], &rerank["cached_tokens"], &rerank["prompt_tokens"]);
    let _ =
        writeln!(out, "  rerank       {candidates} passages by {by}; {cached} of {tokens} tokens cached; {ms:.1} ms");
}

/// How the search and the prefill overlapped.
fn speculation(out: &mut String, speculation: &Value) {
    let (started, hidden_ms) = (&speculation["started"], speculation["hidden_ms"].as_f64().unwrap_or(0.0));
    let _ = match speculation["outcome"].as_str() {
        Some("confirmed") => {
            writeln!(out, "  speculation  confirmed, {started} begun: {hidden_ms:.1} ms of the search hidden")
        }
        Some("cancelled") => writeln!(out, "  speculation  cancelled, {started} begun"),
        Some("not_started") => writeln!(out, "  speculation  not started"),
        _ => Ok(()),
    };
}

/// What each round searched for and found.
fn rounds(out: &mut String, rounds: &Value) {
    for (index, round) in rounds.as_array().into_iter().flatten().enumerate() {
        let numbers = round["passages"].as_array().into_iter().flatten().map(Value::to_string);
        let passages = numbers.collect::<Vec<_>>().join(", ");
        let found = if passages.is_empty() { "nothing new".to_owned() } else { format!("passages {passages}") };
        let query = one_line(round["query"].as_str().unwrap_or_default(), 50);
        let _ = writeln!(
            out,
            "  round {}      {found}; {} of {} tokens cached; {:.1} ms: {query}",
            index + 1,
            round["cached_tokens"],
            round["prompt_tokens"],
            round["ms"].as_f64().unwrap_or(0.0),
        );
    }
}

fn ttft(ttft: &Value) -> String {
    let ms = |name: &str| ttft[name].as_f64().unwrap_or(0.0);
    let parts = [
        ("retrieve", "retrieve_ms"),
        ("rerank", "rerank_ms"),
        ("assemble", "assemble_ms"),
        ("look up", "look_up_ms"),
        ("plan", "plan_ms"),
        ("queue", "queue_ms"),
        ("compute", "compute_ms"),
        ("wait for loads", "load_wait_ms"),
    ];
    let parts: Vec<String> = parts.iter().map(|(name, key)| format!("{name} {:.1}", ms(key))).collect();
    format!("{:.1} ms: {}", ms("total_ms"), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_report_adds_up() {
        let text = reuse(&json!({
            "tokens": { "exact": 60, "blended": 20, "recomputed": 10, "computed": 10 },
            "loads": [{ "tier": "host", "bytes": 3_145_728, "ms": 1.25 }],
            "late_misses": 1,
            "segments": [{ "tokens": 40, "tier": "device" }, { "tokens": 20, "tier": "host" }, { "tokens": 10 }],
            "ttft": { "total_ms": 12.5, "compute_ms": 10.0 },
        }));
        assert!(text.contains("of 100: 80 % not computed"), "{text}");
        assert!(text.contains("from host    3.00 MiB in 1.2 ms"), "{text}");
        assert!(text.contains("from device  40 tokens, in place already"), "{text}");
        assert!(text.contains("late misses  1"), "{text}");
        assert!(text.contains("12.5 ms: retrieve 0.0") && text.contains("compute 10.0"), "{text}");
    }

    #[test]
    fn speculation_and_rounds_are_told_where_there_were_some() {
        let text = reuse(&json!({
            "speculation": { "outcome": "confirmed", "stages": 2, "started": 1, "hidden_ms": 12.34 },
            "rounds": [
                { "query": "who", "passages": [1, 2], "prompt_tokens": 30, "cached_tokens": 4, "ms": 2.0 },
                { "query": "he did", "passages": [], "prompt_tokens": 30, "cached_tokens": 25, "ms": 1.0 },
            ],
        }));
        assert!(text.contains("confirmed, 1 begun: 12.3 ms of the search hidden"), "{text}");
        assert!(text.contains("round 1      passages 1, 2; 4 of 30 tokens cached; 2.0 ms: who"), "{text}");
        assert!(text.contains("round 2      nothing new; 25 of 30"), "{text}");
        assert!(!reuse(&json!({})).contains("round") && !reuse(&json!({})).contains("speculation"));
    }

    #[test]
    fn nothing_loaded_and_no_passages() {
        assert!(reuse(&json!({})).contains("loaded       nothing"));
        assert_eq!(citations(&json!([])), "");
        let text = citations(&json!([{ "number": 1, "title": "T", "source": "/a", "text": "long\ntext" }]));
        assert_eq!(text, "\nSources\n  [1] T (/a): long text\n");
    }
}
