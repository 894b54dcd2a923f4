//! `ragstone eval --mode …` with the demo model.

use std::collections::BTreeMap;
use std::time::Duration;

use ragstone_env::Stopwatch;
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
        (&["--figures", "--answers", "a"], "cannot be used"),
        (&["--figures", "--mode", "full"], "cannot be used"),
        (&["--retrieval", "--plot", "a"], "cannot be used"),
        (&["--mode", "full", "--quality", "best"], "rouge-l"),
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
    let ways = [&ways[..], &["--after", "system-prompt,bos"]].concat();
    let report = folder.json(&[&["eval", set.to_str().unwrap(), "--choice", "gradual", "--json"][..], &ways].concat());
    let modes = report["modes"].as_array().unwrap();
    assert_eq!(modes.len(), 2 + 8);
    for mode in modes {
        let (exact, blended) = (mode["tokens"]["exact"].as_u64().unwrap(), mode["tokens"]["blended"].as_u64().unwrap());
        assert!(blended > 0, "{mode}");
        // After the first token alone only the system prompt is exact, after the whole one the first passage, too.
        let system = 5 * 8;
        assert_eq!(exact == system, mode["after"] == "bos", "{exact} of {mode}");
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

#[test]
fn baselines_are_measured_beside_it_and_drawn() {
    let folder = Folder::new();
    let set = folder.write("set.json", dataset().to_string());
    let (file, plot) = (folder.path().join("answers.jsonl"), folder.path().join("plot.svg"));
    let (set, file) = (set.to_str().unwrap(), file.to_str().unwrap());
    let modes = ["--mode", "none,full,exact,prefix,reuse,blend,map-reduce,map-rerank", "--ratio", "0.02,0.15"];
    let files = ["--answers", file, "--plot", plot.to_str().unwrap()];
    let report = folder.json(&[&["eval", set, "--json"][..], &modes, &files].concat());
    let modes = report["modes"].as_array().unwrap();
    assert_eq!(modes.len(), 9);
    let mode = |name: &str| modes.iter().find(|it| it["mode"] == name).unwrap();
    for mode in modes {
        let ttft = ["p10", "p50", "p90"].map(|it| mode["ttft_ms"][it].as_f64().unwrap());
        assert!(ttft[0] > 0.0 && ttft.is_sorted(), "{mode}");
        let (f1, low, high) = (&mode["f1"], &mode["f1_interval"][0], &mode["f1_interval"][1]);
        let [f1, low, high] = [f1, low, high].map(|it| it.as_f64().unwrap());
        assert!(low <= f1 + 1e-9 && f1 <= high + 1e-9, "{mode}");
        assert!(mode["against_full"]["interval"][0].is_f64() && mode["rouge_l"].is_f64(), "{mode}");
    }
    let share = |name: &str| mode(name)["recomputed_share"].as_f64().unwrap();
    assert_eq!((share("full"), share("none")), (1.0, 1.0));
    assert!(share("exact") < share("prefix") && share("prefix") < 1.0, "{report}");
    assert!(share("map-rerank") < share("map-reduce"), "{report}");
    let exact = &mode("exact")["against_full"];
    assert_eq!((&exact["f1"], &exact["interval"]), (&json!(0.0), &json!([0.0, 0.0])));
    let answers = answers(&std::fs::read_to_string(file).unwrap());
    let of = |mode: &str, item: usize| &answers[&(mode.to_owned(), "null".to_owned())][item];
    let tokens = |mode: &str, item: usize| {
        ["exact", "blended", "recomputed", "computed"].map(|it| of(mode, item)["tokens"][it].as_u64().unwrap())
    };
    for item in 0..5 {
        let [full, prefix, exact] = ["full", "prefix", "exact"].map(|it| tokens(it, item));
        assert_eq!((&of("prefix", item)["answer"], prefix[1] + prefix[2]), (&of("full", item)["answer"], 0));
        assert_eq!(prefix[0] + prefix[3], full[3], "the same prompt");
        assert!(8 < prefix[0] && prefix[0] < exact[0], "the system prompt and one passage of several: {prefix:?}");
        // Each passage after a system prompt (8 tokens) of its own, and nothing blended; the reduced prompt comes on top.
        let (passages, rerank, reduce) =
            (if item < 2 || item == 3 { 3 } else { 2 }, tokens("map-rerank", item), tokens("map-reduce", item));
        assert_eq!(rerank[0], exact[0] + 8 * (passages - 1), "{item}");
        assert_eq!((rerank[1] + rerank[2], reduce[1] + reduce[2]), (0, 0));
        assert!(reduce[3] > rerank[3] && reduce[0] >= rerank[0], "{reduce:?} {rerank:?}");
        let ttft = |mode: &str| of(mode, item)["ttft_ms"].as_f64().unwrap();
        assert!(ttft("map-rerank") > 0.0 && ttft("map-reduce") > 0.0);
    }
    let plot = std::fs::read_to_string(plot).unwrap();
    for words in [
        "<svg ",
        ">full<",
        ">map-reduce<",
        ">map-rerank<",
        ">prefix<",
        "blend 15 %",
        "F1",
        "time to first token",
        "</svg>",
    ] {
        assert!(plot.contains(words), "no {words} in {plot}");
    }
    assert_eq!(plot.matches("class=\"mark\"").count(), 9 + 8, "a mark a variant and one a name");
}

/// What every line of `--answers` says, but for its times.
fn without_times(lines: &str) -> Vec<Value> {
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().remove("ttft_ms").unwrap();
        line
    };
    lines.lines().map(line).collect()
}

#[test]
fn an_evaluation_that_was_killed_goes_on_where_it_was() {
    let folder = Folder::new();
    let set = folder.write("set.json", dataset().to_string());
    let set = set.to_str().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (journal, answers, whole) = (path("run.journal"), path("answers.jsonl"), path("whole.jsonl"));
    let ways =
        ["eval", set, "--json", "--mode", "full,reuse,blend,map-rerank", "--ratio", "0.02,0.05,0.1,0.15,0.2,0.3,0.5"];
    let resumed = [&ways[..], &["--resume", &journal, "--answers", &answers]].concat();
    let mut killed = folder.ragstone(&resumed).stdout(std::process::Stdio::null()).spawn().unwrap();
    let begun = Stopwatch::start();
    let lines = || std::fs::read_to_string(&journal).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    while lines().len() < 6 {
        assert!(begun.elapsed() < Duration::from_secs(60) && killed.try_wait().unwrap().is_none(), "{:?}", lines());
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    // As if it had been killed within a write.
    let mut torn = std::fs::read(&journal).unwrap();
    torn.truncate(torn.iter().rposition(|byte| *byte == b'\n').unwrap() + 1);
    let before = String::from_utf8(torn.clone()).unwrap();
    torn.extend(b"{\"item\": 3, \"vari");
    std::fs::write(&journal, torn).unwrap();
    let report = folder.json(&resumed);
    assert_eq!((&report["questions"], report["modes"].as_array().unwrap().len()), (&json!(5), 10));
    let after = std::fs::read_to_string(&journal).unwrap();
    assert!(after.starts_with(&before), "what was there is not asked again");
    assert_eq!(after.lines().count(), 1 + 5 * 10);
    // By the same kernels, whichever are measured to be the fastest.
    let (begun, first) = (path("begun.journal"), after.lines().next().unwrap());
    std::fs::write(&begun, format!("{first}\n")).unwrap();
    folder.json(&[&ways[..], &["--resume", &begun, "--answers", &whole]].concat());
    // Nobody measures these to be the fastest.
    let mut slow: Value = serde_json::from_str(first).unwrap();
    assert_ne!(slow["kernels"]["f32_attention"].take(), json!("portable"));
    slow["kernels"]["f32_attention"] = json!("portable");
    std::fs::write(&begun, format!("{slow}\n")).unwrap();
    folder.json(&["eval", set, "--json", "--mode", "none", "--resume", &begun]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert_eq!(without_times(&read(&answers)), without_times(&read(&whole)), "as if it had not been interrupted");
    // Nothing is left to do, and what is asked beside it is added.
    assert_eq!(folder.json(&resumed), report);
    folder.json(&["eval", set, "--json", "--mode", "full,none", "--resume", &journal]);
    assert_eq!(read(&journal).lines().count(), 1 + 5 * 11);
    let other = folder.write("other.json", json!(dataset().as_array().unwrap()[..4]).to_string());
    let other = other.to_str().unwrap();
    for (arguments, words) in [
        (vec!["eval", other, "--mode", "full", "--resume", &journal], &["another run", "the data set"][..]),
        (vec!["eval", set, "--mode", "full", "--resume", &journal, "--max-tokens", "3"], &["--max-tokens"]),
        (vec!["eval", set, "--mode", "full", "--resume", &journal, "--set", "kv_dtype=f32"], &["the settings"]),
        (vec!["eval", set, "--mode", "full", "--resume", &answers], &["answers.jsonl", "not the journal"]),
    ] {
        folder.run(&arguments).failed_with(words);
    }
    assert_eq!(read(&journal).lines().count(), 1 + 5 * 11);
}

#[test]
fn the_papers_figures_are_measured() {
    let folder = Folder::new();
    let set = folder.write("set.json", dataset().to_string());
    let plot = folder.path().join("figures.svg");
    let figures = ["eval", set.to_str().unwrap(), "--figures", "--plot", plot.to_str().unwrap()];
    let ways = ["--selector", "cacheblend,random", "--ratio", "0,0.3,1"];
    let report = folder.json(&[&figures[..], &ways, &["--json"]].concat());
    assert_eq!((&report["model"], &report["prompts"]), (&json!("ragstone-demo"), &json!(5)));
    let attention = |rule: &str| {
        let ways = report["attention"].as_array().unwrap().iter();
        let of_rule: Vec<f64> =
            ways.filter(|way| way["selection"]["rule"] == rule).map(|way| way["mean"].as_f64().unwrap()).collect();
        of_rule
    };
    for rule in ["cacheblend", "random"] {
        let [none, some, all] = attention(rule)[..] else { panic!("three ratios: {report}") };
        assert!(none > some && some > 2.0 * all && all < 0.05 * none, "{rule}: {none} {some} {all}");
    }
    assert!(attention("cacheblend")[1] < attention("random")[1], "{report}");
    let layers = report["kv_percentiles"].as_array().unwrap();
    assert!(layers[0].as_array().unwrap().iter().all(|it| it == 0.0), "K and V of the first layer never deviate");
    assert!(layers[2][100].as_f64() > layers[2][50].as_f64());
    assert_eq!(report["rank_correlation"].as_array().unwrap().len(), layers.len() - 1);
    assert!(report["rank_correlation"][0].is_null() && report["rank_correlation"][2].is_f64());
    let plot = std::fs::read_to_string(&plot).unwrap();
    for words in ["figure 6", "figure 7", "figure 8", ">random @0<", ">layer 2<"] {
        assert!(plot.contains(words), "no {words} in {plot}");
    }
    let table = folder.run(&[&figures[..3], &ways].concat()).succeeded().stdout;
    for words in ["figure 6", "figure 7", "figure 8", "cacheblend @2", "5 prompts"] {
        assert!(table.contains(words), "no {words} in {table}");
    }
    let one = json!([{ "question": "What?", "ctxs": [{ "text": "Calnix Bakery makes candles." }] }]);
    let one = folder.write("one.json", one.to_string());
    folder.run(&["eval", one.to_str().unwrap(), "--figures"]).failed_with(&["two passages"]);
}

/// What reuse costs, on the demo model's fifty held-out questions. The margins are about half of what was measured
/// (docs/results/fusion.md), and far from what leaving the choice to chance or the passages to themselves gives.
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
