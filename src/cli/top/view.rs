//! The figures as text, for a screen of 80 columns and 24 rows.

use std::fmt::Write;

use ragstone_env::mebibytes;
use ragstone_terminal::output;

use super::figures::{Figures, Rate, Tier};
use crate::cli::cache::jobs_table;

/// Of a bar, in characters.
const BAR: usize = 10;

/// All of it. `notes` stand at the end: what could not be looked at.
pub fn text(title: &str, figures: &Figures, notes: &[String]) -> String {
    let mut out = format!("{title}\n\n");
    requests(&mut out, figures);
    out.push('\n');
    rates(&mut out, figures);
    out.push('\n');
    tiers(&mut out, &figures.tiers);
    let mut rest: String = notes.iter().map(|note| format!("{}\n", output::one_line(note, 200))).collect();
    rest += &under_way(figures);
    if !rest.is_empty() {
        let _ = write!(out, "\n{rest}");
    }
    out
}

fn requests(out: &mut String, figures: &Figures) {
    let requests = &figures.requests;
    let columns = [
        ("in flight", requests.in_flight),
        ("searching", requests.searching),
        ("queued", requests.queued),
        ("loading", requests.loading),
        ("prefilling", requests.prefilling),
        ("decoding", requests.decoding),
        ("swapped", requests.swapped),
    ];
    out.push_str("requests");
    out.extend(columns.map(|(head, _)| format!(" {head:>9}")));
    let _ = write!(out, "\n{:8}", "");
    out.extend(columns.map(|(head, count)| format!(" {count:>width$}", width = head.len().max(9))));
    out.push('\n');
}

/// What comes of requests on the left, where prompts' KV comes from on the right.
fn rates(out: &mut String, figures: &Figures) {
    let window = format!("last {:.0} s", figures.window_s);
    let (quantiles, all) = (&figures.ttft, &figures.prompt_tokens.all);
    let rate = |name: &str, rate: &Rate| [name.to_owned(), per_s(rate), whole(rate.total)];
    let left = [
        [String::new(), window.clone(), "since start".to_owned()],
        rate("answers", &figures.answers),
        ["first token, p50".to_owned(), seconds(quantiles.window.p50_s), seconds(quantiles.since_start.p50_s)],
        ["first token, p95".to_owned(), seconds(quantiles.window.p95_s), seconds(quantiles.since_start.p95_s)],
        rate("generated tokens", &figures.generated_tokens),
        rate("shed requests", &figures.shed),
    ];
    let heads = [[String::new(), window, "since start".to_owned()], rate("prompt tokens", all)];
    let parts = figures.prompt_tokens.by_origin.iter();
    let parts = parts.map(|part| [format!("  {}", part.origin), percent(part.share), percent(part.share_of_total)]);
    for ([name, window, start], [origin, share, of_all]) in left.into_iter().zip(heads.into_iter().chain(parts)) {
        let _ = writeln!(out, "{name:16} {window:>9} {start:>11}    {origin:13} {share:>9} {of_all:>11}");
    }
}

fn tiers(out: &mut String, tiers: &[Tier]) {
    out.push_str("tier        MiB    of MiB               entries  hit rate   evicted  read MiB/s\n");
    for tier in tiers {
        let bound =
            if tier.bound_bytes > 0.0 { format!("{:.0}", mebibytes(tier.bound_bytes as u64)) } else { "-".into() };
        let _ = writeln!(
            out,
            "{:6} {:>8.1} {bound:>9}  {}  {:>7} {:>9} {:>9}  {:>10.1}",
            tier.tier,
            mebibytes(tier.bytes as u64),
            bar(tier.bytes, tier.bound_bytes),
            tier.entries,
            percent(tier.hit_rate),
            whole(tier.evicted.total),
            mebibytes(tier.loaded_bytes.per_s as u64),
        );
    }
}

/// Jobs, background work, uploads, and what went wrong, a line each where there is any.
fn under_way(figures: &Figures) -> String {
    let mut out = String::new();
    for tier in &figures.tiers {
        if tier.failed + tier.corrupt > 0.0 {
            let (name, failed, corrupt) = (tier.tier, tier.failed, tier.corrupt);
            let _ = writeln!(
                out,
                "{name}: {failed} reads or writes failed, {corrupt} frames were damaged (`ragstone doctor`)"
            );
        }
    }
    // Warm-ups are told one by one; a screen has no line for the heads.
    for row in jobs_table(&figures.warm_jobs).lines().skip(1) {
        let _ = writeln!(out, "warm-up {}", row.trim_start());
    }
    for job in figures.jobs.iter().filter(|job| job.kind != "warm-up") {
        let _ = writeln!(out, "{} running or waiting: {}", job.kind, job.jobs);
    }
    if figures.requests.background > 0 {
        let prompts = output::count(figures.requests.background, "prompt", "prompts");
        let _ = writeln!(out, "precomputing: {prompts}");
    }
    let arriving = figures.tiers.iter().filter(|tier| tier.arriving > 0.0);
    let arriving: Vec<String> = arriving.map(|tier| format!("{} to {}", tier.arriving, tier.tier)).collect();
    if !arriving.is_empty() {
        let _ = writeln!(out, "entries on their way: {}", arriving.join(", "));
    }
    out
}

fn per_s(rate: &Rate) -> String {
    let decimals = if rate.per_s < 100.0 { 1 } else { 0 };
    format!("{:.decimals$}/s", rate.per_s)
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3} s"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

/// How much of a bound is used.
fn bar(part: f64, whole: f64) -> String {
    if whole <= 0.0 {
        return " ".repeat(BAR + 2);
    }
    let filled = (part / whole * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
    format!("[{:BAR$}]", "=".repeat(filled))
}

/// What fits on a screen of `rows` and `columns`: lines are cut at the right, and the last line says how many are missing and
/// how to leave.
pub fn fitted(text: &str, (rows, columns): (u16, u16)) -> Vec<String> {
    let (rows, columns) = (usize::from(rows.max(1)), usize::from(columns));
    let lines: Vec<&str> = text.lines().collect();
    let room = rows - 1;
    let mut fitted: Vec<String> =
        lines.iter().take(room).map(|line| console::truncate_str(line, columns, "").into_owned()).collect();
    let left_out = lines.len().saturating_sub(room);
    let more = if left_out > 0 { format!("{left_out} more below; ") } else { String::new() };
    fitted.resize(room, String::new());
    fitted.push(console::truncate_str(&format!("{more}q quits"), columns, "").into_owned());
    fitted
}

#[cfg(test)]
mod tests {
    use ragstone_service::telemetry::samples::Samples;
    use serde_json::json;

    use super::super::figures::{Look, figures};
    use super::*;

    /// A service with much to do.
    fn busy() -> Figures {
        let mut text = String::new();
        for tier in ["device", "host", "disk", "object"] {
            let bound = if tier == "object" { 0 } else { 99_999_u64 << 20 };
            text += &format!(
                "ragstone_tier_bytes{{tier=\"{tier}\"}} {}\nragstone_tier_capacity_bytes{{tier=\"{tier}\"}} {bound}\n\
                 ragstone_tier_entries{{tier=\"{tier}\"}} 1234567\nragstone_tier_hits_total{{tier=\"{tier}\"}} 1\n\
                 ragstone_tier_evicted_total{{tier=\"{tier}\"}} 123456789\n\
                 ragstone_loaded_bytes_total{{tier=\"{tier}\"}} {}\nragstone_write_behind_entries{{tier=\"{tier}\"}} 4096\n",
                50_000_u64 << 20,
                12_345_u64 << 20,
            );
        }
        for (name, count) in [("waiting", 1200), ("decoding", 256), ("background", 3)] {
            text += &format!("ragstone_sequences{{state=\"{name}\"}} {count}\n");
        }
        text += "ragstone_questions_admitted 2000\nragstone_generated_tokens_total 1234567890\n";
        text += "ragstone_prompt_tokens_total{source=\"exact\"} 98765432100\n";
        text += "ragstone_ttft_seconds_bucket{le=\"120\"} 1\nragstone_ttft_seconds_bucket{le=\"+Inf\"} 4\n";
        let warm = |id| {
            json!({ "id": id, "fingerprint": "00".repeat(32), "collection": "law", "document": null, "tenants": [],
                    "created_unix_ms": 0, "state": "running",
                    "progress": { "passages_done": 3, "passages_total": 900_000 } })
        };
        let status = json!({
            "model": { "id": "m" },
            "jobs": [{ "kind": "warm_up", "jobs": 2 }, { "kind": "ingest", "jobs": 1 }],
            "warm_jobs": [warm(7), warm(8)],
        });
        let before = Look::default();
        let now = Look { at_s: 10.0, samples: Samples::read(&text).unwrap(), status };
        figures(Some(&before), &now)
    }

    #[test]
    fn a_busy_service_fits_on_a_small_screen() {
        let text = text("ragstone 0.1.0, m, http://127.0.0.1:7411, process 12345", &busy(), &[]);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{} characters: {line}", line.chars().count());
        }
        assert!(text.lines().count() <= 23, "{text}");
        for words in [
            "requests in flight searching    queued   loading prefilling  decoding   swapped",
            "              2000       544      1200         0          0       256         0",
            "first token, p95 120.000 s   120.000 s",
            "exact           100 %       100 %",
            "host    50000.0     99999  [=====     ]  1234567     100 %",
            "object  50000.0         -                1234567",
            "\nwarm-up 7  law  running  3 of 900000 passages\n",
            "ingest running or waiting: 1\n",
            "precomputing: 3 prompts\n",
            "entries on their way: 4096 to device, 4096 to host",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
        assert!(!text.contains("warm-up running or waiting"), "they are there one by one");
    }

    #[test]
    fn what_does_not_fit_is_cut_and_counted() {
        let fitted = fitted("one two\nthree\nfour\nfive\n", (3, 5));
        assert_eq!(fitted, ["one t", "three", "2 mor"]);
        assert_eq!(super::fitted("one", (3, 80)), ["one", "", "q quits"]);
        assert_eq!(super::fitted("one\ntwo", (1, 80)), ["2 more below; q quits"]);
    }

    #[test]
    fn notes_do_not_steer_the_terminal() {
        let text = text("title", &figures(None, &Look::default()), &["broken\u{1b}[2J\nline".into()]);
        assert!(text.ends_with("\nbroken[2J line\n"), "{text}");
        assert!(text.contains("first token, p50         -           -"), "{text}");
    }
}
