//! Damage on the disk, as the whole program meets it: told with what to do, nothing removed, and nobody else's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD, error_message};

/// A data folder with two collections, `mine` and `other`.
async fn filled() -> Folder {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("mine", &WORLD[..2]).await;
    service.add("other", &WORLD[2..]).await;
    service.stop();
    folder
}

fn table(folder: &Folder) -> PathBuf {
    folder.data().join("corpus/passages-mine.lance")
}

/// The files of a folder, the first in order first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn cut(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

/// The row of a collection in the list, which everybody gets.
async fn row(service: &Service, name: &str) -> Value {
    let (status, list) = service.get("/v1/collections").await;
    assert_eq!(status, 200, "{list}");
    let rows = list["data"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}")).clone()
}

async fn search(service: &Service, collection: &str) -> (u16, Value) {
    service.post(&format!("/v1/collections/{collection}/search"), &json!({ "query": "boats" })).await
}

/// What `doctor` says of damage, and whether it is content.
fn doctor(folder: &Folder) -> (bool, String) {
    let ran = folder.run(&["doctor", "--json", "--set", "listen=127.0.0.1:0"]);
    let said: Value = serde_json::from_str(&ran.stdout).unwrap();
    let about = |finding: &&Value| finding["what"] == "damage" || finding["what"] == "moved aside";
    let found: Vec<String> = said["findings"].as_array().unwrap().iter().filter(about).map(Value::to_string).collect();
    (said["ok"] == true, found.join("\n"))
}

/// `mine` is told to be damaged, wherever one looks, and `other` answers as before.
async fn assert_told_and_alone(folder: &Folder, service: &Service, case: &str) {
    let mine = row(service, "mine").await;
    let told = mine["damaged"].as_str().unwrap_or_else(|| panic!("{case}: {mine}")).to_owned();
    assert!(told.contains("backup") && !told.contains(folder.path().to_str().unwrap()), "{case}: {told}");
    assert_eq!(row(service, "other").await["documents"], 2, "{case}");
    assert_eq!(search(service, "other").await.0, 200, "{case}");
    let token = folder.token();
    let entries = reqwest::Client::new().get(service.url("/v1/cache/entries")).header("x-ragstone-token", token);
    assert_eq!(entries.send().await.unwrap().status(), 200, "{case}");
    let (_, status) = service.get("/v1/cache/status").await;
    assert!(status["damage"][0]["what"].as_str().unwrap().contains("`mine`"), "{case}: {status}");
    let (is_content, found) = doctor(folder);
    assert!(!is_content && found.contains("`mine`") && found.contains("backup"), "{case}: {found}");
}

#[tokio::test]
async fn a_collection_that_cannot_be_opened_is_kept_and_nobody_elses_matter() {
    for case in ["versions missing", "newest version cut", "newest version removed"] {
        let folder = filled().await;
        let (versions, aside) = (table(&folder).join("_versions"), folder.path().join("aside"));
        // LanceDB counts down.
        let newest = files(&versions)[0].clone();
        let whole = std::fs::read(&newest).unwrap();
        match case {
            "versions missing" => std::fs::rename(&versions, &aside).unwrap(),
            "newest version cut" => cut(&newest),
            _ => std::fs::remove_file(&newest).unwrap(),
        }
        let service = folder.serve(&[]).await;
        assert_told_and_alone(&folder, &service, case).await;
        for (status, answer) in [
            search(&service, "mine").await,
            service.post("/v1/collections/mine/documents", &json!({ "documents": [{ "text": "New." }] })).await,
        ] {
            assert_eq!(status, 503, "{case}: {answer}");
            let message = error_message(&answer);
            assert!(
                message.contains("damaged") && !message.contains(folder.path().to_str().unwrap()),
                "{case}: {message}"
            );
        }
        match case {
            "versions missing" => std::fs::rename(&aside, &versions).unwrap(),
            _ => std::fs::write(&newest, whole).unwrap(),
        }
        assert_eq!(search(&service, "mine").await.0, 200, "{case}: put back while the service runs");
        assert_eq!(row(&service, "mine").await["documents"], 2, "{case}");
        service.stop();
        assert!(doctor(&folder).0, "{case}");
    }
}

/// As after a restore that left something out.
#[tokio::test]
async fn a_collection_whose_folder_is_gone_is_missed() {
    let folder = filled().await;
    let aside = folder.path().join("aside");
    std::fs::rename(table(&folder), &aside).unwrap();
    let service = folder.serve(&[]).await;
    assert_told_and_alone(&folder, &service, "no folder").await;
    std::fs::rename(&aside, table(&folder)).unwrap();
    assert_eq!(search(&service, "mine").await.0, 200, "put back while the service runs");
    service.stop();
    std::fs::remove_dir_all(folder.data().join("corpus")).unwrap();
    let service = folder.serve(&[]).await;
    for name in ["mine", "other"] {
        assert!(row(&service, name).await["damaged"].as_str().unwrap().contains("gone"));
        folder.run(&["collections", "delete", name, "--yes"]).succeeded();
    }
    service.add("mine", &WORLD[..2]).await;
    service.stop();
    let service = folder.serve(&[]).await;
    let (_, list) = service.get("/v1/collections").await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(row(&service, "mine").await["damaged"], Value::Null);
    service.stop();
    assert!(doctor(&folder).0);
}

#[tokio::test]
async fn a_cut_data_file_is_shown_and_the_collection_can_be_deleted() {
    let folder = filled().await;
    files(&table(&folder).join("data")).iter().for_each(|file| cut(file));
    let service = folder.serve(&[]).await;
    let ran = folder.run(&["cache", "verify"]).failed_with(&["damaged", "doctor"]);
    assert!(ran.stdout.contains("damaged, collection mine: data/"), "{ran:?}");
    assert_told_and_alone(&folder, &service, "cut").await;
    let listed = folder.run(&["collections", "list"]).succeeded();
    assert!(listed.stderr.contains("mine") && listed.stderr.contains("backup"), "{listed:?}");
    folder.run(&["collections", "delete", "mine", "--yes"]).succeeded();
    assert!(!table(&folder).exists());
    folder.run(&["cache", "verify"]).succeeded();
    service.add("mine", &WORLD[..2]).await;
    assert_eq!(row(&service, "mine").await["damaged"], Value::Null);
    service.stop();
    assert!(doctor(&folder).0);
}

/// Waits until the list says, or does not say, that `mine` is damaged.
async fn until_told(service: &Service, is_damaged: bool) {
    let begun = Stopwatch::start();
    while row(service, "mine").await["damaged"].is_string() != is_damaged {
        assert!(begun.elapsed() < Duration::from_secs(60), "not told: {is_damaged}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_is_damaged_while_the_service_runs_is_found_by_the_next_comparison() {
    let folder = filled().await;
    let service = folder.serve(&["--set", "verify_interval_s=1"]).await;
    let file = files(&table(&folder).join("data")).remove(0);
    let whole = std::fs::read(&file).unwrap();
    for _ in 0..2 {
        cut(&file);
        until_told(&service, true).await;
        std::fs::write(&file, &whole).unwrap();
        until_told(&service, false).await;
    }
    service.stop();
}

#[tokio::test]
async fn a_damaged_catalog_loses_no_key_and_no_schema() {
    let folder = filled().await;
    folder.run(&["keys", "add", "reader", "--role", "read"]).succeeded();
    let service = folder.serve(&[]).await;
    let schema = json!({ "schema": "<schema name=\"codex\">Nine boats lay in the harbour.</schema>" });
    service.ask("/v1/pml/schemas", &schema).await;
    service.stop();
    let path = folder.data().join("catalog/db");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] ^= 0x55;
    std::fs::write(&path, bytes).unwrap();
    let keys = folder.json(&["keys", "list", "--json"]);
    assert_eq!(keys[0]["name"], "reader", "{keys}");
    let (_, found) = doctor(&folder);
    assert!(found.is_empty() || found.contains("catalog.damaged-"), "{found}");
    // And where all of it is gone.
    std::fs::write(&path, "").unwrap();
    let service = folder.serve(&[]).await;
    let (_, status) = service.get("/v1/cache/status").await;
    assert_eq!(status["damage"][0]["what"], "catalog", "{status}");
    let (_, schemas) = service.get("/v1/pml/schemas").await;
    assert_eq!(schemas["data"][0]["name"], "codex", "{schemas}");
    assert!(doctor(&folder).1.contains("second copy"), "{}", doctor(&folder).1);
    service.stop();
    assert_eq!(folder.json(&["keys", "list", "--json"])[0]["name"], "reader");
    let (is_content, found) = doctor(&folder);
    assert!(is_content && found.contains("catalog.damaged-"), "{found}");
}

/// KV can be computed again: what keeps it from being opened keeps nobody from the documents.
#[tokio::test]
async fn a_start_goes_on_without_kv_on_a_full_disk() {
    let folder = filled().await;
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", "disk.open=error:full")]).await;
    assert_eq!(search(&service, "mine").await.0, 200);
    let question = json!({ "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "max_tokens": 4,
        "ragstone": { "collection": "mine" } });
    service.ask("/v1/chat/completions", &question).await;
    let (_, status) = service.get("/v1/cache/status").await;
    assert_eq!(status["damage"][0]["what"], "stored KV", "{status}");
    let (is_content, found) = doctor(&folder);
    assert!(is_content && found.contains("goes on without"), "{found}");
    service.stop();
    let service = folder.serve(&[]).await;
    assert_eq!(service.get("/v1/cache/status").await.1["damage"], Value::Null);
}
