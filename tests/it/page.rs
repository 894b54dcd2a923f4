//! The page at `/`, in a real browser, and what it alone uses: uploads, settings, the link.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, error_message};
use crate::ingest_jobs::{SLOW, corpus};
use crate::outside::from_outside;

/// Runs a script of `tests` against the page of a service of its own.
async fn in_a_browser(script: &str, flags: &[&str]) {
    in_a_browser_with(script, &Folder::new(), flags, &[], |_| {}).await;
}

/// As [`in_a_browser`], on this folder, with variables for the service; `prepare` has the script's command.
async fn in_a_browser_with(
    script: &str,
    folder: &Folder,
    flags: &[&str],
    variables: &[(&str, &str)],
    prepare: impl FnOnce(&mut Command),
) {
    let Some(modules) = from_outside("PAGE_TEST_NODE", "folder whose node_modules have playwright-core and axe-core")
    else {
        return;
    };
    let Some(browser) = from_outside("CHROMIUM", "Chromium") else { return };
    let _service = folder.serve_with(flags, variables).await;
    let link = folder.run(&["page"]).succeeded().stdout;
    let script = format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("node");
    command.arg(script).arg(link.trim()).env("PAGE_TEST_NODE", modules).env("CHROMIUM", browser);
    prepare(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn every_view_works_in_a_browser() {
    in_a_browser("page.mjs", &["--set", "chunk_tokens=64"]).await;
}

#[tokio::test]
async fn what_is_begun_in_a_view_outlives_it_in_a_browser() {
    in_a_browser("page/leaving.mjs", &[]).await;
}

#[tokio::test]
async fn files_wait_for_their_collection_and_are_named_in_a_browser() {
    in_a_browser("page/uploads.mjs", &["--set", "body_bytes=65536"]).await;
}

#[tokio::test]
async fn nothing_is_broken_or_cut_on_any_screen_in_a_browser() {
    in_a_browser("page/looks.mjs", &[]).await;
}

#[tokio::test]
async fn numbers_add_up_and_choices_are_kept_in_a_browser() {
    let (folder, files) = (Folder::new(), Folder::new());
    let prepare = |command: &mut Command| {
        command.env("FOLDER", files.path());
    };
    in_a_browser_with("page/words.mjs", &folder, &[], &[], prepare).await;
}

/// In a service whose passes are slow, and in another one after it.
#[tokio::test]
async fn conversations_are_found_again_after_a_restart_in_a_browser() {
    let folder = Folder::new();
    for (phase, variables) in [("first", &[("RAGSTONE_FAILPOINTS", "engine.device=delay:50")][..]), ("again", &[])] {
        let prepare = |command: &mut Command| {
            command.env("PHASE", phase);
        };
        in_a_browser_with("page/conversations.mjs", &folder, &[], variables, prepare).await;
    }
}

#[tokio::test]
async fn an_ingest_of_the_command_line_shows_up_and_is_cancelled_in_a_browser() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let ingest = [env!("CARGO_BIN_EXE_ragstone"), "ingest", &corpus, "--collection", "c"];
    let ingest = serde_json::to_string(&ingest).unwrap();
    let data = folder.data();
    let prepare = |command: &mut Command| {
        command.env("INGEST", ingest).env("RAGSTONE_DATA", data);
    };
    in_a_browser_with("page/ingests.mjs", &folder, &[], &[SLOW], prepare).await;
}

#[tokio::test]
async fn a_file_is_read_as_it_would_be_from_disk() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_bytes=65536"]).await;
    let at = |name: &str| format!("/v1/collections/notes/files/{name}");
    let (status, report) = service.put(&at("roof.md"), b"# Roof\n\nWe take slate.").await;
    assert_eq!((status, &report["documents_added"]), (200, &json!(1)), "{report}");
    let (_, report) = service.put(&at("roof.md"), b"# Roof\n\nWe take tiles.").await;
    assert_eq!(report["documents_replaced"], 1, "{report}");
    assert_eq!(report["passages_removed"], 1, "{report}");
    let (_, report) = service.put(&at("two.jsonl"), b"{\"text\": \"one\"}\n{\"text\": \"two\"}\n").await;
    assert_eq!(report["documents_added"], 2, "{report}");
    // A bad record does not lose the good one, and is told.
    let (status, report) = service.put(&at("mixed.jsonl"), b"{\"text\": \"good\"}\n{bad\n").await;
    assert_eq!((status, &report["documents_added"]), (200, &json!(1)), "{report}");
    assert!(report["not_read"].as_str().is_some_and(|why| why.contains("line 2")), "{report}");
    let listed = service.get("/v1/collections/notes/documents").await.1;
    let sources: Vec<&str> =
        listed["data"].as_array().unwrap().iter().filter_map(|one| one["source"].as_str()).collect();
    assert!(sources.contains(&"roof.md") && sources.contains(&"two.jsonl#L2"), "{listed}");
    for (name, body, words) in [
        ("a.exe", &b"MZ"[..], "not a format"),
        ("a.pdf", b"%PDF-1.4 nothing", ""),
        ("a.jsonl", b"{", ""),
        ("a%2fb.md", b"x", "no folder"),
        ("..%2f..%2fservice.json", b"[]", "no folder"),
        ("a%00.md", b"x", ""),
    ] {
        let (status, error) = service.put(&at(name), body).await;
        assert_eq!(status, 400, "{name} {error}");
        assert!(error_message(&error).contains(words), "{name} {error}");
    }
    assert_eq!(service.put(&at("a.md"), &vec![b'x'; 65537]).await.0, 413);
    assert_eq!(service.put("/v1/collections/no%20good%2f/files/a.md", b"x").await.0, 400);
    // Nothing of those that were refused is there.
    assert_eq!(service.get("/v1/collections/notes/documents").await.1, listed);
}

#[tokio::test]
async fn settings_tell_their_sources_and_no_secrets() {
    let folder = Folder::new();
    let text = r#"
top_k = 7
object_url = "s3://bucket/x"
[object_options]
endpoint = "http://127.0.0.1:9"
allow_http = "true"
region = "here"
access_key_id = "me"
[prompt]
system = "Hello."
"#;
    let file = folder.write("ragstone.toml", text);
    let arguments =
        ["--config", file.to_str().unwrap(), "--threads", "1", "--set", "object_options.secret_access_key=hunter2"];
    let service = folder.serve_with(&arguments, &[("RAGSTONE_CHUNK_TOKENS", "64")]).await;
    assert_eq!(service.get("/v1/settings").await.0, 403);
    let request = reqwest::Client::new().request(Method::GET, service.url("/v1/settings"));
    let answer = request.header("x-ragstone-token", folder.token()).send().await.unwrap().text().await.unwrap();
    assert!(!answer.contains("hunter2"), "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let found = |key: &str| answer["data"].as_array().unwrap().iter().find(|one| one["key"] == key).unwrap().clone();
    let file = file.to_str().unwrap();
    for (key, value, source) in [
        ("top_k", json!(7), json!(file)),
        ("prompt.system", json!("Hello."), json!(file)),
        ("threads", json!(1), json!("--threads")),
        ("chunk_tokens", json!(64), json!("RAGSTONE_CHUNK_TOKENS")),
        ("object_options.secret_access_key", json!("…"), json!("--set")),
        ("object_options.region", json!("…"), json!(file)),
        ("host_bytes", json!(1 << 30), Value::Null),
    ] {
        let setting = found(key);
        assert_eq!((&setting["value"], &setting["source"]), (&value, &source), "{key}");
    }
    let length = found("chunk_tokens");
    assert_eq!((&length["default"], &length["default_text"]), (&json!(256), &Value::Null));
    assert_eq!(found("compute")["default_text"], "bf16 where the processor is faster at it");
    // Not whose it is, but which.
    let data = found("data")["default_text"].as_str().unwrap().to_owned();
    assert!(std::path::Path::new(&data).is_absolute() && data.ends_with("ragstone"), "{data}");
}

#[test]
fn without_a_service_there_is_no_page() {
    let folder = Folder::new();
    folder.run(&["page"]).failed_with(&["no data folder", "ragstone serve"]);
    folder.run(&["collections", "list"]);
}
