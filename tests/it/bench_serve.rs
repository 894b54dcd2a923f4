//! `ragstone bench serve` measures what it says, in the form that programs read.

use serde_json::Value;

use crate::harness::Folder;

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|value| value > 0.0)
}

fn check_percentiles(of: &Value) {
    assert!(is_positive(&of["p50"]) && of["p99"].as_f64() >= of["p50"].as_f64(), "{of}");
}

#[test]
fn the_engine_is_measured_through_the_service() {
    let folder = Folder::new();
    let small = "--shape tiny --runs 1 --streams 1,3 --stream-tokens 4 --answers 2 --gaps 4 --prompts 2 --prompt-tokens 256 \
                 --abandoned 2 --abandoned-tokens 128 --mixed 4 --json";
    let arguments: Vec<&str> = ["bench", "serve"].into_iter().chain(small.split_whitespace()).collect();
    let report = folder.json(&arguments);
    check_percentiles(&report["gap_ms"]["quiet"]);
    check_percentiles(&report["gap_ms"]["busy"]);
    let streams = report["streams"].as_array().unwrap();
    assert_eq!(streams.iter().map(|of| of["n"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    assert!(streams.iter().all(|of| is_positive(&of["tokens_per_s"])), "{report}");
    assert!(is_positive(&report["abandoned_ms"]), "{report}");
    let waste = report.get("kv_waste").unwrap();
    assert!(waste.is_null() || (0.0..1.0).contains(&waste.as_f64().unwrap()), "{report}");
    for rate in ["prompt_tokens_per_s", "alone_prompt_tokens_per_s"] {
        assert!(is_positive(&report["busy"][rate]), "{rate} in {report}");
    }
    assert!(report["machine"]["threads"].as_u64() >= Some(1));
    assert!(!folder.data().exists(), "the user's own data folder is left alone");
}

#[test]
fn questions_are_measured_in_every_reuse_mode() {
    let folder = Folder::new();
    let small = "--workload rag --shape tiny --clients 1,3 --requests 4 --warm-up 2 --documents 20 --document-tokens 24 \
                 --passages 2 --answer-tokens 3 --json";
    let arguments: Vec<&str> = ["bench", "serve"].into_iter().chain(small.split_whitespace()).collect();
    let report = folder.json(&arguments);
    let results = report["results"].as_array().unwrap();
    let cells: Vec<_> =
        results.iter().map(|of| (of["clients"].as_u64().unwrap(), of["mode"].as_str().unwrap())).collect();
    let modes = ["auto", "auto arranged", "exact", "exact arranged", "off"];
    assert_eq!(cells, [modes.map(|mode| (1, mode)), modes.map(|mode| (3, mode))].concat());
    for result in results {
        check_percentiles(&result["ttft_ms"]);
        check_percentiles(&result["gap_ms"]);
        assert!(is_positive(&result["requests_per_s"]) && result["requests"] == 4, "{result}");
        assert_eq!(result["cached"].as_f64() > Some(0.0), result["mode"] != "off", "{result}");
    }
}

#[test]
fn an_overload_is_survived_and_measured() {
    let folder = Folder::new();
    let small = "--workload overload --shape tiny --calm-clients 2 --calm-s 0.5 --overload-s 1 --allowed-s 2 \
                 --answer-tokens 3 --json";
    let arguments: Vec<&str> = ["bench", "serve"].into_iter().chain(small.split_whitespace()).collect();
    let report = folder.json(&arguments);
    let number = |key: &str| report[key].as_f64().unwrap();
    assert!(is_positive(&report["calm"][0]["goodput_per_s"]) && is_positive(&report["of_best"]), "{report}");
    assert!(number("answered") >= number("late") && number("recovery_s") < 120.0, "{report}");
    // Over one second: nobody is forgotten.
    assert_eq!(number("answered") + number("refused") + number("lost"), number("offered_per_s"), "{report}");
}

#[test]
fn the_order_of_prompts_is_measured_with_and_without_a_window() {
    let folder = Folder::new();
    let small = "--workload reorder --shape tiny --clients 3 --requests 6 --warm-up 2 --documents 20 --document-tokens 24 \
                 --passages 2 --answer-tokens 3 --runs 1 --json";
    let arguments: Vec<&str> = ["bench", "serve"].into_iter().chain(small.split_whitespace()).collect();
    let report = folder.json(&arguments);
    let sides = report["sides"].as_array().unwrap();
    assert_eq!(sides.iter().map(|side| side["window"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 32]);
    assert!(sides.iter().all(|side| side["answered"] == 6 && is_positive(&side["ttft_ms"])), "{report}");
    assert!(is_positive(&report["speedup"]) && is_positive(&report["arrivals_per_s"]), "{report}");
}

#[test]
fn what_groups_save_is_measured() {
    let folder = Folder::new();
    let report = folder.json(&["bench", "serve", "--workload", "groups", "--shape", "tiny", "--runs", "1", "--json"]);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 9, "{report}");
    for result in results {
        let number = |key: &str| result[key].as_f64().unwrap();
        // Of n copies of the prompt, n - 1 are saved; of samples no more, of beams what they have in common, too.
        let (prompt, answer, tails) = (number("prompt_tokens"), number("answer_tokens"), number("tails"));
        let of_prompt = prompt / (prompt + answer) * (1.0 - 1.0 / tails);
        assert!((of_prompt - 0.03..1.0 - 1.0 / tails).contains(&number("samples")), "{result}, {of_prompt}");
        assert!((of_prompt - 0.03..1.0).contains(&number("beams")), "{result}, {of_prompt}");
    }
}

#[test]
fn modules_are_measured_from_every_tier_beside_a_full_prefill() {
    let folder = Folder::new();
    let small = "--workload pml --shape tiny --module-tokens 256,512 --runs 1 --json";
    let arguments: Vec<&str> = ["bench", "serve"].into_iter().chain(small.split_whitespace()).collect();
    let report = folder.json(&arguments);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|it| it["tokens"].as_u64().unwrap()).collect::<Vec<_>>(), [256, 512]);
    for ways in results.iter().map(|it| it["ways"].as_array().unwrap()) {
        let names: Vec<&str> = ways.iter().map(|way| way["from"].as_str().unwrap()).collect();
        assert_eq!(names, ["full", "device", "host", "disk"]);
        assert!(ways.iter().all(|way| is_positive(&way["ttft_ms"]["median"])), "{report}");
        assert_eq!(ways[0]["speedup"]["median"], 1.0);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = Folder::new();
    for flag in ["--runs", "--streams", "--clients", "--document-tokens"] {
        // The argument parser's own words.
        let refused = folder.run(&["bench", "serve", flag, "0"]);
        assert!(refused.code == Some(2) && refused.stderr.contains("1 to 1000000"), "{refused:?}");
    }
}

#[test]
fn overlap_is_measured_with_speculation_and_without() {
    let folder = Folder::new();
    let small = "--shape tiny --questions 3 --clients 2 --documents 600 --document-tokens 24 --topics 4 --passages 2 \
                 --answer-tokens 2 --search 20 --json";
    let arguments: Vec<&str> = ["bench", "overlap"].into_iter().chain(small.split_whitespace()).collect();
    let report = folder.json(&arguments);
    assert!(is_positive(&report["prefill_ms"]) && is_positive(&report["probe_ms"]), "{report}");
    for sides in ["alone", "busy"] {
        let [off, on] = &report[sides].as_array().unwrap()[..] else { panic!("{report}") };
        assert_eq!((&off["speculates"], &on["speculates"]), (&false.into(), &true.into()));
        for side in [off, on] {
            check_percentiles(&side["ttft_ms"]);
            assert!(is_positive(&side["questions_per_s"]) && is_positive(&side["search_ms"]["median"]), "{report}");
        }
        assert_eq!(off["started"], 0, "{report}");
    }
    let alone = &report["alone"][1];
    assert!(alone["started"].as_u64() >= Some(1), "{report}");
    assert!(alone["confirmed"].as_u64() >= Some(1), "one cell is all there is: {report}");
}
