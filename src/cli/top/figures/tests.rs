use serde_json::json;

use super::*;

fn look(at_s: f64, text: &str) -> Look {
    Look { at_s, samples: Samples::read(text).unwrap(), status: Value::Null }
}

/// First tokens by a tenth of a second, by half a second, by a second, and later.
fn ttft(counts: [u64; 4]) -> String {
    let mut sum = 0;
    let mut text = String::new();
    for (bound, count) in ["0.1", "0.5", "1", "+Inf"].into_iter().zip(counts) {
        sum += count;
        text += &format!("ragstone_ttft_seconds_bucket{{le=\"{bound}\"}} {sum}\n");
    }
    text + &format!("ragstone_ttft_seconds_count {sum}\n")
}

fn tokens(counts: [u64; 4]) -> String {
    let line = |(origin, count)| format!("ragstone_prompt_tokens_total{{source=\"{origin}\"}} {count}\n");
    ORIGINS.into_iter().zip(counts).map(line).collect()
}

#[test]
fn rates_are_of_the_time_between_two_looks_and_totals_since_the_start() {
    let before =
        look(10.0, &(ttft([4, 0, 0, 0]) + &tokens([100, 0, 0, 300]) + "ragstone_shed_total{worker=\"a\"} 1\n"));
    let more = "ragstone_shed_total{worker=\"a\"} 2\nragstone_shed_total{worker=\"b\"} 3\nragstone_generated_tokens_total 50\n";
    let now = look(15.0, &(ttft([4, 10, 0, 0]) + &tokens([160, 20, 5, 315]) + more));
    let figures = figures(Some(&before), &now);
    assert_eq!(figures.window_s, 5.0);
    assert_eq!(figures.answers, Rate { per_s: 2.0, total: 14.0 });
    assert_eq!(figures.generated_tokens, Rate { per_s: 10.0, total: 50.0 });
    assert_eq!(figures.shed, Rate { per_s: 0.8, total: 5.0 }, "of all queues");
    assert_eq!(figures.prompt_tokens.all, Rate { per_s: 20.0, total: 500.0 });
    let shares: Vec<_> = figures.prompt_tokens.by_origin.iter().map(|part| (part.share, part.share_of_total)).collect();
    assert_eq!(shares, [(0.6, 0.32), (0.2, 0.04), (0.05, 0.01), (0.15, 0.63)].map(|(a, b)| (Some(a), Some(b))));
    // All ten of the window lie between 0.1 and 0.5 s.
    assert_eq!(figures.ttft.window, Quantiles { p50_s: Some(0.1 + 0.4 * 0.5), p95_s: Some(0.1 + 0.4 * 0.95) });
    assert!(figures.ttft.since_start.p50_s.unwrap() < 0.3);
}

#[test]
fn quantiles_are_linear_within_a_bucket_and_stop_at_the_last_bound() {
    let buckets = look(0.0, &ttft([2, 6, 0, 2])).samples.buckets("ragstone_ttft_seconds");
    assert_eq!(quantile(&buckets, 0.1), Some(0.05));
    assert!((quantile(&buckets, 0.5).unwrap() - 0.3).abs() < 1e-12);
    assert_eq!(quantile(&buckets, 0.8), Some(0.5), "the bucket that holds it, not the empty one behind");
    assert_eq!(quantile(&buckets, 0.95), Some(1.0), "more than a second; how much more is not known");
    assert_eq!(quantile(&[], 0.5), None);
    assert_eq!(quantile(&look(0.0, &ttft([0; 4])).samples.buckets("ragstone_ttft_seconds"), 0.5), None);
}

#[test]
fn one_look_has_totals_and_no_rates() {
    let figures = figures(None, &look(3.0, &(ttft([1, 0, 0, 0]) + &tokens([1, 0, 0, 3]))));
    assert_eq!(figures.answers, Rate { per_s: 0.0, total: 1.0 });
    assert_eq!(figures.ttft.window, Quantiles { p50_s: None, p95_s: None });
    let exact = figures.prompt_tokens.by_origin[0];
    assert_eq!((exact.share, exact.share_of_total), (None, Some(0.25)));
    assert!(figures.model.is_none() && figures.tiers.is_empty() && figures.jobs.is_empty());
}

#[test]
fn a_service_that_began_anew_has_what_it_did_since() {
    let before = look(0.0, &(ttft([50, 0, 0, 0]) + "ragstone_generated_tokens_total 900\n"));
    let now = look(2.0, &(ttft([0, 4, 0, 0]) + "ragstone_generated_tokens_total 30\n"));
    let figures = figures(Some(&before), &now);
    assert_eq!((figures.answers.per_s, figures.generated_tokens.per_s), (2.0, 15.0));
    assert_eq!(figures.ttft.window, figures.ttft.since_start);
    assert!(figures.ttft.window.p50_s.unwrap() > 0.1);
}

#[test]
fn a_request_is_somewhere_and_counted_once() {
    let states = [("waiting", 1), ("loading", 2), ("prefilling", 1), ("decoding", 3), ("background", 9)];
    let line = |(state, count)| format!("ragstone_sequences{{state=\"{state}\"}} {count}\n");
    let engine: String = states.into_iter().map(line).collect();
    let of = |admitted: u64| requests(&look(0.0, &format!("{engine}ragstone_questions_admitted {admitted}\n")).samples);
    let expected = Requests {
        in_flight: 10,
        searching: 3,
        queued: 1,
        loading: 2,
        prefilling: 1,
        decoding: 3,
        swapped: 0,
        background: 9,
    };
    assert_eq!(of(10), expected);
    assert_eq!(of(5), Requests { in_flight: 7, searching: 0, ..expected });
}

#[test]
fn tiers_that_are_there_have_their_hit_rate_in_the_window() {
    let at = |hits: u64, misses: u64, loaded: u64| {
        format!(
            "ragstone_tier_bytes{{tier=\"host\"}} 512\nragstone_tier_capacity_bytes{{tier=\"host\"}} 1024\n\
             ragstone_tier_entries{{tier=\"host\"}} 7\nragstone_tier_hits_total{{tier=\"host\"}} {hits}\n\
             ragstone_tier_misses_total{{tier=\"host\"}} {misses}\nragstone_loaded_bytes_total{{tier=\"host\"}} {loaded}\n\
             ragstone_tier_bytes{{tier=\"disk\"}} 0\nragstone_write_behind_entries{{tier=\"disk\"}} 4\n"
        )
    };
    let figures = figures(Some(&look(0.0, &at(10, 90, 0))), &look(4.0, &at(40, 100, 800)));
    let [host, disk] = figures.tiers[..] else { panic!("{:?}", figures.tiers) };
    assert_eq!((host.tier, host.bytes, host.bound_bytes, host.entries), ("host", 512.0, 1024.0, 7.0));
    assert_eq!((host.hit_rate, host.hits.per_s, host.loaded_bytes.per_s), (Some(0.75), 7.5, 200.0));
    assert_eq!((disk.tier, disk.bound_bytes, disk.hit_rate, disk.arriving), ("disk", 0.0, None, 4.0));
}

#[test]
fn jobs_and_the_model_are_what_the_status_says() {
    let status = json!({
        "model": { "id": "m" },
        "jobs": [{ "kind": "warm_up", "jobs": 2 }],
        "warm_jobs": [{
            "id": 7, "fingerprint": "00".repeat(32), "collection": "law", "document": null, "tenants": [],
            "created_unix_ms": 0, "state": "running", "progress": {},
        }],
    });
    let figures = figures(None, &Look { status, ..Look::default() });
    assert_eq!(figures.model.as_deref(), Some("m"));
    assert_eq!(figures.jobs, [Job { kind: "warm-up".into(), jobs: 2 }]);
    assert_eq!(figures.warm_jobs[0].job.id, 7);
}
