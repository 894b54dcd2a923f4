//! `ragstone eval --mode …` with the demo model.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::Folder;

/// A few questions about two small worlds in the demo model's own sentences.
fn dataset() -> Value {
    let bakery = [
        (
            "Calnix Bakery",
            "Calnix Bakery makes candles. Calnix Bakery employs 34 people. The founder of Calnix Bakery is Jona Wanfell.",
        ),
        ("Elka Dorman", "Elka Dorman plays harp. Elka Dorman keeps 12 doves. Elka Dorman visits Torbury."),
        ("Harbour report", "The founder of Calnix Bakery owns 7 boats. The road was closed in March."),
    ];
    let works = [
        (
            "Callux Motors",
            "Callux Motors makes ink. The director of Callux Motors is Gavin Wesden. Callux Motors employs 18 people.",
        ),
        ("Market letter", "The director of Callux Motors keeps 25 doves. The director of Callux Motors plays lute."),
    ];
    let item = |passages: &[(&str, &str)], kind: &str, question: &str, answer: &str| {
        let passages: Vec<Value> =
            passages.iter().map(|(title, text)| json!({ "title": title, "text": text })).collect();
        json!({ "ctxs": passages, "question": question, "answers": [answer], "type": kind })
    };
    json!([
        item(&bakery, "T1", "What is made by Calnix Bakery?", "candles"),
        item(&bakery, "T1", "How many doves are kept by Elka Dorman?", "12"),
        item(&works, "T1", "What is made by Callux Motors?", "ink"),
        item(&bakery, "T2", "How many boats are owned by Jona Wanfell?", "7"),
        item(&works, "T2", "Which instrument is played by Gavin Wesden?", "lute"),
    ])
}

/// The mode, but for `blend` what it chooses by.
fn name(line: &Value) -> String {
    line["selector"].as_str().or(line["mode"].as_str()).unwrap().to_owned()
}

/// Answers by mode, or what blend chooses by, and ratio, in the order of the questions.
fn answers(lines: &str) -> BTreeMap<(String, String), Vec<Value>> {
    let mut found: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let key = (name(&line), line["ratio"].to_string());
        found.entry(key).or_default().push(line);
    }
    found
}

#[test]
fn answers_are_measured_by_where_their_kv_comes_from() {
    let folder = Folder::new();
    let set = folder.write("set.json", dataset().to_string());
    let file = folder.path().join("answers.jsonl");
    let (set, file) = (set.to_str().unwrap(), file.to_str().unwrap());
    let modes = ["--mode", "none,full,exact,reuse,blend", "--selector", "cacheblend,random", "--ratio", "0.15,1.0"];
    let report = folder.json(&[&["eval", set, "--answers", file, "--json"][..], &modes].concat());
    assert!(!folder.data().exists(), "the data folder is not touched");
    assert_eq!((&report["model"], &report["questions"]), (&json!("ragstone-demo"), &json!(5)));
    let found = answers(&std::fs::read_to_string(file).unwrap());
    let of = |mode: &str, ratio: &str| &found[&(mode.to_owned(), ratio.to_owned())];
    let texts = |lines: &[Value]| lines.iter().map(|line| line["answer"].clone()).collect::<Vec<_>>();
    let full = of("full", "null");
    assert_eq!(full.len(), 5);
    assert_eq!(texts(of("exact", "null")), texts(full));
    assert_eq!(texts(of("cacheblend", "1.0")), texts(full));
    assert_eq!(texts(of("random", "1.0")), texts(full));
    for item in 0..5 {
        let tokens = |mode, ratio| &of(mode, ratio)[item]["tokens"];
        assert_eq!(tokens("cacheblend", "0.15"), tokens("random", "0.15"));
        assert!(tokens("cacheblend", "0.15")["recomputed"].as_u64() > Some(0));
        assert_eq!((&tokens("reuse", "null")["recomputed"], &tokens("full", "null")["exact"]), (&json!(0), &json!(0)));
        assert!(tokens("exact", "null")["exact"].as_u64() > tokens("reuse", "null")["exact"].as_u64());
        assert_eq!(tokens("exact", "null")["computed"], tokens("reuse", "null")["computed"]);
    }
    let modes = report["modes"].as_array().unwrap();
    assert_eq!(modes.len(), 8);
    for mode in modes {
        let lines = of(&name(mode), &mode["ratio"].to_string());
        let mean = lines.iter().map(|line| line["f1"].as_f64().unwrap()).sum::<f64>() / 5.0;
        assert!((mode["f1"].as_f64().unwrap() - mean).abs() < 1e-9, "{mode}");
        assert_eq!((&mode["types"]["T1"]["questions"], &mode["types"]["T2"]["questions"]), (&json!(3), &json!(2)));
    }
    assert_eq!(modes[2]["differ_from_full"], 0, "exact");
    assert!(modes[1]["f1"].as_f64() > modes[0]["f1"].as_f64(), "passages help: {report}");
}

#[test]
fn parts_of_a_data_set_and_wrong_ones() {
    let folder = Folder::new();
    let set = folder.write("set.json", dataset().to_string());
    let set = set.to_str().unwrap();
    let run = |arguments: &[&str]| folder.run(&[&["eval", set][..], arguments].concat());
    let table = run(&["--mode", "full", "--type", "T2", "--limit", "1"]).succeeded().stdout;
    for words in ["1 questions, ragstone-demo", "T2 F1", "full"] {
        assert!(table.contains(words), "no {words} in {table}");
    }
    run(&["--mode", "full", "--type", "T9"]).failed_with(&["T9", "T1, T2"]);
    // The argument parser's own words.
    for (arguments, wanted) in [
        (&[][..], "--mode"),
        (&["--retrieval", "--mode", "full"], "cannot be used"),
        (&["--retrieval", "--limit", "3"], "cannot be used"),
        (&["--mode", "half"], "blend"),
        (&["--mode", "blend", "--selector", "best"], "question-attention"),
        (&["--mode", "blend", "--ratio", "2"], "0.0 to 1.0"),
    ] {
        let refused = run(arguments);
        assert!(refused.code == Some(2) && refused.stderr.contains(wanted), "{refused:?}");
    }
    let mut long = dataset();
    long[1]["ctxs"][0]["text"] = json!("The road was closed in March. ".repeat(1000));
    let file = folder.write("long.json", long.to_string());
    let report = folder.json(&["eval", file.to_str().unwrap(), "--mode", "none,full", "--limit", "3", "--json"]);
    assert_eq!((&report["questions"], &report["left_out"]), (&json!(2), &json!([1])), "in no mode");
    assert_eq!(report["modes"][0]["questions"], 2);
    let only = folder.write("only.json", json!([long[1]]).to_string());
    folder.run(&["eval", only.to_str().unwrap(), "--mode", "full"]).failed_with(&["no question fits", "context"]);
    let mut broken = dataset();
    broken[3]["ctxs"][1]["text"] = json!(5);
    let broken = folder.write("broken.json", broken.to_string());
    let ran = folder.run(&["eval", broken.to_str().unwrap(), "--mode", "full"]);
    ran.failed_with(&["broken.json", "item 3", "`ctxs[1].text` is a number"]);
    assert!(!folder.data().exists());
}

#[test]
fn what_chooses_and_what_stood_before_can_be_measured() {
    let folder = Folder::new();
    let set = folder.write("set.json", dataset().to_string());
    let ways = ["--mode", "reuse,blend", "--ratio", "0.3", "--selector", "cacheblend,cacheblend-v", "--layer", "1,2"];
    let ways = [&ways[..], &["--behind", "root,bos"]].concat();
    let report = folder.json(&[&["eval", set.to_str().unwrap(), "--choice", "gradual", "--json"][..], &ways].concat());
    let modes = report["modes"].as_array().unwrap();
    assert_eq!(modes.len(), 2 + 8);
    for mode in modes {
        let (exact, blended) = (mode["tokens"]["exact"].as_u64().unwrap(), mode["tokens"]["blended"].as_u64().unwrap());
        assert!(blended > 0, "{mode}");
        // Behind the first token alone only the system prompt is exact, behind the whole one the first passage, too.
        let system = 5 * 8;
        assert_eq!(exact == system, mode["behind"] == "bos", "{exact} of {mode}");
    }
    let refused = folder.run(&["eval", set.to_str().unwrap(), "--mode", "blend", "--layer", "0"]);
    refused.failed_with(&["from 1 on"]);
    // Every rule goes the whole way, and recomputes as much.
    let rules = "first-k,question-attention,critical-layer,two-stage,random,none,all";
    let ways = ["--mode", "full,blend", "--ratio", "0.3", "--selector", rules];
    let report = folder.json(&[&["eval", set.to_str().unwrap(), "--json"][..], &ways].concat());
    let modes = report["modes"].as_array().unwrap();
    let recomputed = |rule: &str| {
        let mode = modes.iter().find(|mode| mode["selector"] == rule).unwrap();
        (mode["tokens"]["recomputed"].as_u64().unwrap(), mode["tokens"]["blended"].as_u64().unwrap())
    };
    for rule in ["question-attention", "critical-layer", "two-stage", "random"] {
        assert_eq!(recomputed(rule), recomputed("first-k"), "{rule}");
    }
    assert_eq!((recomputed("none").0, recomputed("all").1), (0, 0));
    let all = modes.iter().find(|mode| mode["selector"] == "all").unwrap();
    assert_eq!(all["differ_from_full"], 0, "all of it recomputed is a full prefill");
}

/// What reuse costs, on the demo model's fifty held-out questions. The margins are about half of what was measured
/// (docs/results.md), and far from what leaving the choice to chance or the passages to themselves gives.
#[test]
fn fifty_held_out_questions_show_what_reuse_costs() {
    let folder = Folder::new();
    let set = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/world/held-out.json");
    let modes = ["--mode", "full,reuse,blend", "--selector", "cacheblend,random", "--layer", "2", "--ratio", "0.15"];
    let modes = [&modes[..], &["--answer-after", ", so "]].concat();
    let report = folder.json(&[&["eval", set, "--json"][..], &modes].concat());
    assert_eq!((&report["questions"], &report["left_out"]), (&json!(50), &json!([])));
    let mode = |index: usize, name: &str| {
        let mode = &report["modes"][index];
        assert_eq!(self::name(mode), name);
        let of = |kind: &str| mode["types"][kind]["f1"].as_f64().unwrap();
        (of("T1"), f64::midpoint(of("T2"), of("T3")), mode["differ_from_full"].as_u64().unwrap())
    };
    let (full, reuse, blend, random) = (mode(0, "full"), mode(1, "reuse"), mode(2, "cacheblend"), mode(3, "random"));
    let all = format!("T1, T2 and T3, differ: full {full:?}, reuse {reuse:?}, blend {blend:?}, random {random:?}");
    assert!(full.0 >= 0.9 && full.1 >= 0.8, "{all}");
    assert!(reuse.1 <= full.1 - 0.15, "plain reuse costs answers that need two passages: {all}");
    assert!(blend.1 >= reuse.1 + 0.1, "blending regains: {all}");
    assert!(blend.1 >= random.1 && blend.2 <= random.2, "choosing by deviation is no worse than chance: {all}");
}
