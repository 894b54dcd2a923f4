//! `ragstone calibrate`, and what a model that was not calibrated gets.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Folder, Service};

const CHAT: &str = "/v1/chat/completions";

/// The demo model without the calibration that it comes with.
fn uncalibrated(folder: &Folder) -> PathBuf {
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/demo-model/checkpoint");
    for file in std::fs::read_dir(checkpoint).unwrap().flatten() {
        if file.file_name() != "calibration.json" {
            folder.write(&format!("model/{}", file.file_name().display()), std::fs::read(file.path()).unwrap());
        }
    }
    folder.path().join("model")
}

/// The report of a question over two passages in this order; what it leaves is there when it returns.
async fn ask(service: &Service, passages: [(&str, &str); 2]) -> Value {
    let documents = passages.map(|(title, text)| json!({ "title": title, "text": text }));
    let messages = json!([{ "role": "user", "content": "What is made by Callux Motors?" }]);
    let asked =
        json!({ "messages": messages, "max_tokens": 4, "temperature": 0, "ragstone": { "documents": documents } });
    let answer = service.ask(CHAT, &asked).await;
    crate::cache::settle(service).await;
    answer["ragstone"]["report"].clone()
}

/// Asks over passages in several orders, and over one of them behind another one: its tokens that are blended, and by what right.
async fn blended(service: &Service, colour: &str) -> (u64, String) {
    let (works, harbour) = (("Callux Motors", "Callux Motors makes ink."), ("Tarn", "Nine boats lay in Tarn."));
    for order in [[works, harbour], [harbour, works]] {
        ask(service, order).await;
    }
    // Computed behind this one it would be exact the next time.
    let third = format!("The garden grows {colour} poppies.");
    let report = ask(service, [("Garden letter", &third), works]).await;
    let tokens = |name: &str| report["tokens"][name].as_u64().unwrap();
    (tokens("blended") + tokens("recomputed"), report["blending"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_model_is_blended_once_it_is_calibrated_and_before_that_only_if_its_owner_says_so() {
    let folder = Folder::new();
    let model = uncalibrated(&folder);
    // Loads are slower than computing so small a model, and blocks of the device are exact.
    let settings =
        ["--set", "kv_admission=always", "--set", "device_cache=false", "--set", "calibrate_when_idle=false"];
    let arguments = [&settings[..], &["--model", model.to_str().unwrap()]].concat();
    let service = folder.serve(&arguments).await;
    let (tokens, right) = blended(&service, "blue").await;
    assert_eq!((tokens, right.as_str()), (0, "not_calibrated"), "what is exact, and no more");
    let status = folder.run(&["cache", "status"]).succeeded().stdout;
    assert!(status.contains("the model is not calibrated"), "{status}");
    assert!(folder.run(&["calibrate", "--show"]).succeeded().stdout.contains("run `ragstone calibrate`"));
    assert_eq!(service.stop(), 0);

    let service = folder.serve(&[&arguments[..], &["--blend-uncalibrated"]].concat()).await;
    let (tokens, right) = blended(&service, "red").await;
    assert!(tokens > 0 && right == "uncalibrated", "{tokens} {right}");
    // Through the running service, which blends so from then on.
    let calibrate = |budget: &str| {
        folder.json(&["calibrate", "--prompts", "16", "--budget", budget, "--selector", "cacheblend,first-k", "--json"])
    };
    // Sixteen prompts certify nothing, unless everything is allowed; then the cheapest way is taken.
    let found = calibrate("0.03");
    let told = (&found["prompts"], &found["passages"], &found["tokens"], &found["budget"]);
    assert_eq!(told, (&json!(16), &json!("bundled"), &json!(16), &json!(0.03)));
    assert_eq!(found["chosen"], Value::Null, "{}", found["chosen"]);
    let evidence = found["evidence"].as_array().unwrap();
    for rule in ["none", "cacheblend", "first-k"] {
        assert!(evidence.iter().any(|seen| seen["selection"]["rule"] == rule && seen["prompts"] != 0), "{rule}");
    }
    let (tokens, right) = blended(&service, "black").await;
    assert_eq!((tokens, right.as_str()), (0, "not_good_enough"));
    let shown = folder.run(&["calibrate", "--show"]).succeeded().stdout;
    assert!(shown.contains("none was certified") && shown.contains("the closest was"), "{shown}");
    let found = calibrate("1");
    assert_eq!(found["chosen"]["selection"]["rule"], "none", "{}", found["chosen"]);
    let (tokens, right) = blended(&service, "white").await;
    assert!(tokens > 0 && right == "calibrated", "{tokens} {right}");
    assert_eq!(service.stop(), 0);

    // It outlives the service, and the permission is not wanted any more.
    let service = folder.serve(&arguments).await;
    let (tokens, right) = blended(&service, "yellow").await;
    assert!(tokens > 0 && right == "calibrated", "{tokens} {right}");
    let shown = folder.run(&["calibrate", "--show"]).succeeded().stdout;
    assert!(shown.contains("as the calibration found") && shown.contains("chosen: plain reuse, primer"), "{shown}");
    let known = folder.json(&["calibrate", "--show", "--json"]);
    assert_eq!(known["calibration"]["chosen"]["selection"], found["chosen"]["selection"]);
    assert_eq!(known["blend"]["blending"], "calibrated");
    assert_eq!(service.stop(), 0);
}

#[test]
fn questions_collections_and_files_of_ones_own() {
    let folder = Folder::new();
    let set = folder.write(
        "set.json",
        json!([{ "question": "What is made by Callux Motors?", "ctxs": [
            { "title": "Callux Motors", "text": "Callux Motors makes ink." }, { "text": "Nine boats lay in Tarn." }] }])
        .to_string(),
    );
    let (set, file) = (set.to_str().unwrap(), folder.path().join("found.json"));
    let few = ["--prompts", "8", "--tokens", "4", "--selector", "cacheblend"];
    let found = folder.json(&[&["calibrate", set, "--export", file.to_str().unwrap(), "--json"][..], &few].concat());
    assert_eq!((&found["prompts"], &found["passages"]), (&json!(8), &json!("questions")));
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written, found);
    let notes = folder.write("notes.md", "# Tarn\n\nNine boats lay in Tarn. The mill grinds at night.\n");
    folder.run(&["ingest", notes.to_str().unwrap(), "--collection", "notes"]).succeeded();
    let calibrate = || folder.run(&[&["calibrate", "--collection", "notes"][..], &few].concat());
    // One passage stands where it was computed: nothing is blended, and nothing would be found out.
    calibrate().failed_with(&["1 passages", "two at least"]);
    let more = folder.write("more.md", "# Orvik\n\nCopper lanterns are made in Orvik, and sold at the harbour.\n");
    folder.run(&["ingest", more.to_str().unwrap(), "--collection", "notes"]).succeeded();
    let table = calibrate().succeeded().stdout;
    assert!(table.contains("up to 8 prompts of collection notes passages"), "{table}");

    folder.run(&["calibrate", "--collection", "nothing"]).failed_with(&["nothing"]);
    folder.run(&["calibrate", "--budget", "2"]).failed_with(&["budget"]);
    // A frontier is only shown.
    let frontier = folder.run(&[&["calibrate", set, "--frontier"][..], &few].concat()).succeeded().stdout;
    assert!(frontier.contains("plain reuse") && !frontier.contains("certified"), "{frontier}");
    assert!(folder.run(&["calibrate", "--show"]).succeeded().stdout.contains("collection notes"));
    let refused = folder.run(&["calibrate", "--selector", "best"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("question-attention"), "{refused:?}");
    let bad = folder.write("bad.json", "[{\"question\": \"q\"}]");
    folder.run(&["calibrate", bad.to_str().unwrap()]).failed_with(&["bad.json", "ctxs"]);
    let long = "The road was closed in March. ".repeat(1000);
    let long = folder.write("long.json", json!([{ "question": "q", "ctxs": [{ "text": long }] }]).to_string());
    folder.run(&["calibrate", long.to_str().unwrap()]).failed_with(&["context"]);
}
