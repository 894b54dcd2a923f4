//! Citations and the reuse report, for people.

use std::fmt::Write;

use ragstone_actors::report::{TierLoad, TokenAccount, Ttft};
use ragstone_actors::speculation::{Outcome, Speculation};
use ragstone_actors::{ArrangementReport, Citation, Grounding, RerankReport, RerankedBy, ReuseReport, RoundReport};
use ragstone_corpus::Elsewhere;
use ragstone_env::mebibytes;
use ragstone_storage::tier::Tier;
use ragstone_terminal::output::one_line;

/// The passages that stood in the prompt, one a line, the best one first; empty where there were none.
pub fn citations(citations: &[Citation]) -> String {
    let (mut out, mut numbered) = (String::new(), citations.iter().collect::<Vec<_>>());
    numbered.sort_by_key(|citation| citation.number);
    for Citation { number, document_id, title, source, page, text, also_in, changed, .. } in numbered {
        let title = one_line(if title.is_empty() { document_id } else { title }, 40);
        let page = page.map_or_else(String::new, |page| format!(", page {page}"));
        let changed = changed.as_deref().map(|time| time.split('T').next().unwrap_or(time));
        let changed = changed.map_or_else(String::new, |day| format!(", {}", one_line(day, 10)));
        let source = source.as_ref();
        let source = source.map_or_else(String::new, |source| format!(" ({}{page}{changed})", one_line(source, 60)));
        let _ = writeln!(out, "  [{number}] {title}{source}: {}", one_line(&paragraphs(text), 70));
        out.push_str(&self::also_in(also_in, "      "));
    }
    if out.is_empty() { out } else { format!("\nSources\n{out}") }
}

/// A line about what the answer stands on; empty where that cannot be said.
pub fn grounding(grounding: Option<&Grounding>) -> String {
    grounding.map_or_else(String::new, |grounding| format!("  {}\n", one_line(&grounding.in_words(), 120)))
}

/// A line about the other places of a text, if it has some.
pub fn also_in(places: &[Elsewhere], indent: &str) -> String {
    let [other, rest @ ..] = places else { return String::new() };
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    format!("{indent}the same text is in {}{more}\n", one_line(place(other), 60))
}

/// On one line a heading would run into what follows it.
pub fn paragraphs(text: &str) -> String {
    text.trim().replace("\n\n", " · ")
}

/// What people know another place of a text by.
fn place(place: &Elsewhere) -> &str {
    let names = [place.source.as_deref().unwrap_or_default(), &place.title];
    names.into_iter().find(|name| !name.is_empty()).unwrap_or(&place.document_id)
}

/// Where the prompt's KV came from, what was loaded, and where the time to the first token went.
pub fn reuse(report: &ReuseReport) -> String {
    let mut out = String::from("\nReuse report\n");
    let TokenAccount { exact, blended, recomputed, computed } = report.tokens;
    let total = report.tokens.total();
    let share = if total == 0 { 0.0 } else { 100.0 * f64::from(exact + blended) / f64::from(total) };
    let _ = writeln!(
        out,
        "  tokens       exact {exact}   blended {blended}   recomputed {recomputed}   computed {computed}   of {total}: \
         {share:.0} % not computed"
    );
    let on_device = report.segments.iter().filter(|segment| segment.tier == Some(Tier::Device));
    let on_device: u32 = on_device.map(|segment| segment.tokens).sum();
    if on_device > 0 {
        let _ = writeln!(out, "  from device  {on_device} tokens, in place already");
    }
    for TierLoad { tier, bytes, ms } in &report.loads {
        let _ = writeln!(out, "  from {:<8}{:.2} MiB in {ms:.1} ms", tier.name(), mebibytes(*bytes));
    }
    if report.loads.is_empty() {
        let _ = writeln!(out, "  loaded       nothing");
    }
    if report.late_misses > 0 {
        let _ = writeln!(out, "  late misses  {} (damaged or gone entries, computed again)", report.late_misses);
    }
    let _ = writeln!(out, "  first token  {}", ttft(&report.ttft));
    if let Some(report) = &report.rerank {
        rerank(&mut out, report);
    }
    if let Some(report) = report.arrangement.filter(|report| report.stored > 0 || report.turned > 0) {
        arrangement(&mut out, report);
    }
    if let Some(report) = &report.speculation {
        speculation(&mut out, report);
    }
    rounds(&mut out, &report.rounds);
    out
}

/// How passages were put in order.
fn rerank(out: &mut String, report: &RerankReport) {
    let by = match report.by {
        RerankedBy::CrossEncoder => "the cross-encoder",
        RerankedBy::Model => "the language model",
    };
    let RerankReport { candidates, prompt_tokens: tokens, cached_tokens: cached, ms, .. } = report;
    let _ =
        writeln!(out, "  rerank       {candidates} passages by {by}; {cached} of {tokens} tokens cached; {ms:.1} ms");
}

/// What order the passages stand in, and why.
fn arrangement(out: &mut String, report: ArrangementReport) {
    let ArrangementReport { passages, stored, saved_ms, turned } = report;
    let _ = writeln!(
        out,
        "  arranged     {stored} of {passages} passages begin a stored prompt ({saved_ms:.1} ms saved); {turned} pairs not as ranked"
    );
}

/// How the search and the prefill overlapped.
fn speculation(out: &mut String, report: &Speculation) {
    let Speculation { outcome, started, hidden_ms, .. } = report;
    let _ = match outcome {
        Outcome::Confirmed => {
            writeln!(out, "  speculation  confirmed, {started} begun: {hidden_ms:.1} ms of the search hidden")
        }
        Outcome::Cancelled => writeln!(out, "  speculation  cancelled, {started} begun"),
        Outcome::NotStarted => writeln!(out, "  speculation  not started"),
    };
}

/// What each round searched for and found.
fn rounds(out: &mut String, rounds: &[RoundReport]) {
    for (index, RoundReport { query, passages, prompt_tokens, cached_tokens, ms }) in rounds.iter().enumerate() {
        let passages = passages.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let found = if passages.is_empty() { "nothing new".to_owned() } else { format!("passages {passages}") };
        let _ = writeln!(
            out,
            "  round {}      {found}; {cached_tokens} of {prompt_tokens} tokens cached; {ms:.1} ms: {}",
            index + 1,
            one_line(query, 50),
        );
    }
}

fn ttft(ttft: &Ttft) -> String {
    let parts = [
        ("retrieve", ttft.retrieve_ms),
        ("rerank", ttft.rerank_ms),
        ("assemble", ttft.assemble_ms),
        ("look up", ttft.look_up_ms),
        ("plan", ttft.plan_ms),
        ("queue", ttft.queue_ms),
        ("compute", ttft.compute_ms),
        ("wait for loads", ttft.load_wait_ms),
    ];
    let parts: Vec<String> = parts.iter().map(|(name, ms)| format!("{name} {ms:.1}")).collect();
    format!("{:.1} ms: {}", ttft.total_ms, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn reuse(report: Value) -> String {
        super::reuse(&serde_json::from_value(report).unwrap())
    }

    #[test]
    fn other_places_of_a_text_are_named_beside_it() {
        let cited = |also_in: Value| {
            let citation = json!({ "number": 1, "document_id": "a", "title": "", "text": "Dry.", "also_in": also_in });
            citations(&[serde_json::from_value(citation).unwrap()])
        };
        assert_eq!(cited(json!([])), "\nSources\n  [1] a: Dry.\n");
        let text = cited(json!([{ "document_id": "b", "source": "/copies/b.txt" }, { "document_id": "c" }]));
        assert!(text.ends_with("      the same text is in /copies/b.txt and 1 more\n"), "{text}");
        assert!(cited(json!([{ "document_id": "c" }])).ends_with("the same text is in c\n"));
    }

    #[test]
    fn the_report_adds_up() {
        let segment = |tokens: u32, tier: Option<&str>| {
            json!({
                "kind": "text", "tokens": tokens, "source": "exact", "tier": tier, "why": "in_place", "tiers": [],
                "bytes": 0, "predicted": null,
            })
        };
        let text = reuse(json!({
            "tokens": { "exact": 60, "blended": 20, "recomputed": 10, "computed": 10 },
            "loads": [{ "tier": "host", "bytes": 3_145_728, "ms": 1.25 }],
            "late_misses": 1,
            "segments": [segment(40, Some("device")), segment(20, Some("host")), segment(10, None)],
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
        let text = reuse(json!({
            "speculation": { "outcome": "confirmed", "stages": 2, "started": 1, "hidden_ms": 12.34 },
            "rounds": [
                { "query": "who", "passages": [1, 2], "prompt_tokens": 30, "cached_tokens": 4, "ms": 2.0 },
                { "query": "he did", "passages": [], "prompt_tokens": 30, "cached_tokens": 25, "ms": 1.0 },
            ],
        }));
        assert!(text.contains("confirmed, 1 begun: 12.3 ms of the search hidden"), "{text}");
        assert!(text.contains("round 1      passages 1, 2; 4 of 30 tokens cached; 2.0 ms: who"), "{text}");
        assert!(text.contains("round 2      nothing new; 25 of 30"), "{text}");
        assert!(!reuse(json!({})).contains("round") && !reuse(json!({})).contains("speculation"));
    }

    #[test]
    fn nothing_loaded_and_no_passages() {
        assert!(reuse(json!({})).contains("loaded       nothing"));
        assert_eq!(citations(&[]), "");
        let (title, text) = ("T".to_owned(), "long\ntext".to_owned());
        let text =
            citations(&[Citation { number: 1, title, source: Some("/a".to_owned()), text, ..Citation::default() }]);
        assert_eq!(text, "\nSources\n  [1] T (/a): long text\n");
        assert_eq!(paragraphs("Decision\n\nOn 12 March\nwe chose.\n\n"), "Decision · On 12 March\nwe chose.");
    }
}
