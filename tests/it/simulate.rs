//! `ragstone simulate` on files as a user writes them.

use serde_json::Value;

use crate::harness::Folder;

const TRACE: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]}
{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [0, 3]}
{"timestamp": 2, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 4]}
"#;

fn policies(report: &Value) -> Vec<(String, f64)> {
    let at = report["capacities"][0]["policies"].as_array().unwrap();
    at.iter().map(|it| (it["policy"].as_str().unwrap().to_owned(), it["token_hit_rate"].as_f64().unwrap())).collect()
}

#[test]
fn policies_stand_side_by_side() {
    let folder = Folder::new();
    let trace = folder.write("trace.jsonl", TRACE);
    let trace = trace.to_str().unwrap();
    let report = folder.json(&["simulate", trace, "--policy", "s3-fifo,pgdsf", "--capacity", "100%", "--json"]);
    // 512 of the second and 1024 of the third prompt's tokens are there again, of 2800.
    let hit_rate = 1536.0 / 2800.0;
    assert_eq!(policies(&report), [("s3-fifo".to_owned(), hit_rate), ("pgdsf".to_owned(), hit_rate)]);
    assert_eq!(report["capacities"][0]["bound"]["token_hit_rate"], hit_rate);
    assert!(report["bound_method"].as_str().unwrap().contains("knapsack"));
    let table = folder.run(&["simulate", trace, "--device-share", "50%"]).succeeded().stdout;
    for words in ["3 requests", "hit-density", "lru", "bound", "25%", "50%"] {
        assert!(table.contains(words), "no {words} in {table}");
    }
}

#[test]
fn families_stand_below_each_other() {
    let folder = Folder::new();
    let asked =
        ["simulate", "--family", "zipf,cycle", "--requests", "400", "--policy", "lru,adaptive", "--capacity", "25%"];
    let reports = folder.json(&[&asked[..], &["--json"]].concat());
    let names: Vec<&str> = reports.as_array().unwrap().iter().map(|it| it["family"].as_str().unwrap()).collect();
    assert_eq!(names, ["zipf", "cycle"]);
    let at = &reports[0]["capacities"][0];
    let rate = |name: &str| at[name]["cost_hit_rate"].as_f64().unwrap();
    // Equal here, but for how sums are rounded.
    assert!(rate("tight_bound") <= rate("bound") + 1e-9, "{at}");
    let lines = folder.run(&asked).succeeded().stdout;
    assert!(lines.lines().count() == 2 && lines.contains("zipf") && lines.contains("adaptive"), "{lines}");
    folder.run(&["simulate", "--family", "zip"]).failed_with(&["zip", "zipf"]);
}

#[test]
fn what_is_wrong_in_a_file_or_a_flag_is_named() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| folder.write(name, text).to_str().unwrap().to_owned();
    let cut = write("cut.jsonl", &TRACE[..TRACE.len() - 20]);
    folder.run(&["simulate", &cut]).failed_with(&["cut.jsonl", "line 3"]);
    let good = write("good.jsonl", TRACE);
    folder.run(&["simulate", &good, "--capacity", "0%"]).failed_with(&["capacity"]);
    for (flag, value, wanted) in [("--policy", "fifo", "s3-fifo"), ("--capacity", "200%", "0% to 100%")] {
        // The argument parser's own words.
        let refused = folder.run(&["simulate", &good, flag, value]);
        assert!(refused.code == Some(2) && refused.stderr.contains(wanted), "{refused:?}");
    }
    let profile = write("profile.json", r#"{"source": "x"}"#);
    folder.run(&["simulate", &good, "--profile", &profile]).failed_with(&["profile.json", "kv_bytes_per_token"]);
    let workload = write("workload.toml", "seed = 1\nrequests = 'many'\n");
    folder.run(&["simulate", &workload]).failed_with(&["workload.toml"]);
    folder.run(&["simulate", "none.jsonl"]).failed_with(&["none.jsonl"]);
}

#[test]
fn many_nodes_stand_below_each_other_and_say_what_limits() {
    let folder = Folder::new();
    let load = "questions = 40\nrate = 0.2\npassages = 200\ncollections = 4\n";
    let load = folder.write("load.toml", load).to_str().unwrap().to_owned();
    let asked = ["simulate", &load, "--nodes", "1,2", "--routing", "hash,random"];
    let report = folder.json(&[&asked[..], &["--json"]].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{report}");
    assert!(rows.iter().all(|row| row["questions"] == 20 && row["answered"].as_u64().unwrap() > 0), "{report}");
    let table = folder.run(&asked).succeeded().stdout;
    assert!(table.contains("random") && table.contains("limit"), "{table}");
    // The argument parser's own words.
    let refused = folder.run(&["simulate", &load, "--routing", "hash"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--nodes"), "{refused:?}");
    folder.run(&["simulate", &load, "--nodes", "0"]).failed_with(&["4096"]);
    let trace = folder.write("trace.jsonl", TRACE).to_str().unwrap().to_owned();
    folder.run(&["simulate", &trace, "--nodes", "2", "--rate", "1"]).failed_with(&["trace.jsonl", "--rate"]);
}

#[test]
fn a_plan_names_machines_and_money() {
    let folder = Folder::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/ops/demo-model/checkpoint");
    let asked = [
        "plan",
        "--documents",
        "50",
        "--questions",
        "0.1",
        "--machine",
        "g6.xlarge",
        "--ttft",
        "20000",
        "--model",
        model,
    ];
    let report = folder.json(&[&asked[..], &["--json"]].concat());
    let best = &report["machines"][0];
    assert!(best["nodes"].as_u64().unwrap() >= 2, "one is spare: {report}");
    assert!(best["money"]["total"].as_f64().unwrap() > best["money"]["nodes"].as_f64().unwrap(), "{report}");
    let table = folder.run(&asked).succeeded().stdout;
    assert!(table.contains("cheapest: ") && table.contains("on demand"), "{table}");
    folder.run(&["plan", "--machine", "abacus", "--model", model]).failed_with(&["abacus", "g6.xlarge"]);
    folder.run(&["plan", "--documents", "nowhere", "--model", model]).failed_with(&["nowhere"]);
    folder.run(&["plan", "--documents", "50"]).failed_with(&["demo", "config.json"]);
    let offers = folder.run(&["plan", "--print-offers"]).succeeded().stdout;
    let file = folder.write("own.toml", offers.replace("hour = 1.006", "hour = \"dear\"")).to_str().unwrap().to_owned();
    folder.run(&["plan", "--offers", &file, "--model", model]).failed_with(&["own.toml", "hour"]);
}
