//! What survives: greedy answers are the same with the cache cold, warm, after a restart, and with damaged bytes on disk.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD};

const CHAT: &str = "/v1/chat/completions";

fn asked(text: &str, reuse: Value) -> Value {
    json!({
        "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 16,
        "ragstone": { "collection": "world", "top_k": 4, "reuse": reuse, "arrange": false },
    })
}

async fn ask(service: &Service, reuse: Value) -> (Value, Value) {
    let answer = service.ask(CHAT, &asked("What does Calbet Works make?", reuse)).await;
    (answer["choices"][0]["message"]["content"].clone(), answer["ragstone"]["report"].clone())
}

fn tokens(report: &Value, kind: &str) -> u64 {
    report["tokens"][kind].as_u64().unwrap()
}

#[tokio::test]
async fn greedy_answers_are_the_same_cold_warm_and_after_a_restart() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let (full, report) = ask(&service, json!("off")).await;
    assert_eq!(tokens(&report, "exact") + tokens(&report, "blended"), 0);
    let (cold, report) = ask(&service, json!("exact")).await;
    assert_eq!((tokens(&report, "exact"), &cold), (0, &full));
    let (warm, report) = ask(&service, json!("exact")).await;
    assert!(tokens(&report, "exact") > 50, "{report}");
    assert_eq!((&report["segments"][0]["tier"], &warm), (&json!("device"), &full));
    assert_eq!(report["loads"], json!([]), "blocks are there already: nothing is loaded");
    let mut scored = asked("What does Calbet Works make?", json!("auto"));
    scored["logprobs"] = json!(true);
    let before = service.ask(CHAT, &scored).await["choices"][0]["logprobs"].clone();
    assert_eq!(service.stop(), 0);

    let service = folder.serve(&["--set", "device_cache=false"]).await;
    for tier in ["disk", "host"] {
        let (restarted, report) = ask(&service, json!("exact")).await;
        assert!(tokens(&report, "exact") > 50, "{report}");
        assert_eq!((&report["loads"][0]["tier"], &restarted), (&json!(tier), &full));
    }
    assert_eq!(service.ask(CHAT, &scored).await["choices"][0]["logprobs"], before, "to the last bit");
    // Another order of the same passages is blended, never counted as exact beyond the system prompt.
    let other = service.ask(CHAT, &asked("How many boats lay in the harbour of Tarn?", json!("auto"))).await;
    let report = &other["ragstone"]["report"];
    assert!(tokens(report, "blended") > 0, "{report}");
}

#[tokio::test]
async fn another_arithmetic_shares_nothing_and_its_own_comes_back() {
    let folder = Folder::new();
    let service = folder.serve(&["--compute", "f32"]).await;
    service.add("world", WORLD).await;
    for _ in 0..2 {
        ask(&service, json!("exact")).await;
    }
    assert_eq!(service.stop(), 0);
    for other in [["--compute", "bf16"], ["--weights", "q8"]] {
        let service = folder.serve(&other).await;
        let (_, report) = ask(&service, json!("exact")).await;
        assert_eq!(tokens(&report, "exact"), 0, "{other:?}: {report}");
        assert_eq!(service.stop(), 0);
    }
    // The weights are the same, the path of the processor is not: that does share.
    let service = folder.serve(&["--compute", "f32", "--kernels", "portable"]).await;
    let (_, report) = ask(&service, json!("exact")).await;
    assert!(tokens(&report, "exact") > 50, "{report}");
}

#[tokio::test]
async fn tenants_do_not_share() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let of = |tenant: &str| {
        let mut body = asked("What does Calbet Works make?", json!("auto"));
        body["ragstone"]["tenant"] = json!(tenant);
        body
    };
    let first = service.ask(CHAT, &of("a")).await;
    assert_eq!(tokens(&first["ragstone"]["report"], "exact"), 0);
    let other = service.ask(CHAT, &of("b")).await;
    assert_eq!(tokens(&other["ragstone"]["report"], "exact"), 0);
    assert!(tokens(&service.ask(CHAT, &of("a")).await["ragstone"]["report"], "exact") > 0);
}

#[tokio::test]
async fn flipped_bytes_on_disk_are_misses_and_never_another_answer() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let (full, _) = ask(&service, json!("exact")).await;
    assert_eq!(service.stop(), 0);
    let damaged = flip(&folder.data().join("kv"));
    assert!(damaged > 0, "nothing was on disk");

    let service = folder.serve(&[]).await;
    let (answer, report) = ask(&service, json!("exact")).await;
    assert_eq!(answer, full, "{report}");
    assert_eq!(tokens(&report, "exact"), 0, "{report}");
    // The bad entries are gone, and good ones take their place.
    let (answer, report) = ask(&service, json!("exact")).await;
    assert_eq!(answer, full);
    assert!(tokens(&report, "exact") > 50, "{report}");
    assert_eq!(service.stop(), 0);
    let service = folder.serve(&[]).await;
    assert_eq!(ask(&service, json!("exact")).await.0, full);
}

/// Flips a bit of every 512th byte of every file that holds values, away from the ends of the files, where the database
/// keeps what it needs to open them at all.
pub fn flip(folder: &Path) -> usize {
    let files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "blob" || extension == "log"))
        .collect();
    let mut flipped = 0;
    for path in files {
        let mut bytes = std::fs::read(&path).unwrap();
        let length = bytes.len();
        for at in (256..length.saturating_sub(256)).step_by(512) {
            bytes[at] ^= 0x04;
            flipped += 1;
        }
        std::fs::write(&path, bytes).unwrap();
    }
    flipped
}
