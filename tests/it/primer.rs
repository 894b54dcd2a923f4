//! Passages' entries are computed behind a primer, and serve anywhere but in the first place of a prompt.

use serde_json::{Value, json};

use crate::cache::settle;
use crate::harness::{Folder, Service};

const CHAT: &str = "/v1/chat/completions";

/// How each passage of a question came by its KV, once all that follows from it is done.
async fn ask(service: &Service, passages: &[(&str, &str)]) -> Vec<String> {
    let documents: Vec<Value> = passages.iter().map(|(title, text)| json!({ "title": title, "text": text })).collect();
    let messages = json!([{ "role": "user", "content": "What is made by Callux Motors?" }]);
    let asked =
        json!({ "messages": messages, "max_tokens": 4, "temperature": 0, "ragstone": { "documents": documents } });
    let answer = service.ask(CHAT, &asked).await;
    settle(service).await;
    let segments = answer["ragstone"]["report"]["segments"].as_array().unwrap();
    let passages = segments.iter().filter(|segment| segment["kind"] == "passage");
    passages.map(|segment| segment["source"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_passage_is_stored_behind_the_primer_for_every_place_but_the_first() {
    let (works, harbour, garden) = (
        ("Callux Motors", "Callux Motors makes ink."),
        ("Tarn", "Nine boats lay in Tarn."),
        ("Garden letter", "The garden grows blue poppies."),
    );
    let folder = Folder::new();
    // Loads are slower than computing so small a model, and blocks of the device are exact.
    let settings = ["--set", "kv_admission=always", "--set", "device_cache=false"];
    let service = folder.serve(&[&settings[..], &["--set", "primer_passages=2"]].concat()).await;
    assert_eq!(ask(&service, &[works, harbour]).await, ["compute", "compute"]);
    // What was first is computed there, and was made for later places beside; what was later is not what stands first.
    assert_eq!(ask(&service, &[harbour, works]).await, ["compute", "blend"]);
    assert_eq!(
        ask(&service, &[works, garden, harbour]).await,
        ["exact", "compute", "blend"],
        "each was first, and later"
    );
    let (_, status) = service.get("/v1/cache/status").await;
    assert_eq!((&status["blend"]["primer"], &status["blend"]["blending"]), (&json!(2), &json!("configured")));
    assert_eq!(service.stop(), 0);

    // Without a primer a passage that was first serves later places, and its entry behind the primer is none.
    let service = folder.serve(&[&settings[..], &["--set", "primer_passages=0"]].concat()).await;
    assert_eq!(ask(&service, &[garden, works, harbour]).await, ["compute", "blend", "blend"], "both were first before");
    assert_eq!(service.stop(), 0);
}

#[tokio::test]
async fn a_warm_up_computes_behind_the_primer() {
    let folder = Folder::new();
    let notes = folder.write("notes.md", "# Tarn\n\nNine boats lay in Tarn. The mill grinds at night.\n");
    folder.run(&["ingest", notes.to_str().unwrap(), "--collection", "notes"]).succeeded();
    let warm = |primer: &str| {
        let set = format!("primer_passages={primer}");
        let settings = ["--set", "kv_admission=always", "--set", &set];
        let warmed = folder.run(&[&["cache", "warm", "--collection", "notes"][..], &settings].concat());
        warmed.succeeded().stdout
    };
    let computed = |text: &str| text.contains("1 entry computed");
    let (first, again) = (warm("2"), warm("2"));
    assert!(computed(&first) && !computed(&again), "{first}\n{again}");
    let listed = folder.run(&["cache", "list"]).succeeded().stdout;
    assert!(listed.contains("primer: comes with ragstone") && !listed.contains("unknown"), "{listed}");
    let other = warm("1");
    assert!(computed(&other), "another primer, another entry: {other}");
}
