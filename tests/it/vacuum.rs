//! Deleted is gone: what was deleted, replaced or forgotten is in no byte of the data folder and the bucket within the stated time, or at
//! once where somebody waits for it.

use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::json;

use crate::cache::{cited, list, settle};
use crate::harness::{Folder, Service};
use crate::tenants::walk;

const DELETED: &str = "The quincewood lantern of Orvik burns with a copper flame, and Elka Dorman keeps it.";
const KEPT: &str = "The hazelbrook mill of Tarn grinds rye, and three boats carry the flour away.";
const SCHEMA: &str = "<schema name=\"codex\">Nine elderthicket boats lay in the harbour of Tarn this week.</schema>";

/// Files of these folders that hold the bytes, or are called so.
fn holding(folders: &[&std::path::Path], bytes: &[u8]) -> Vec<String> {
    let files = folders.iter().flat_map(|folder| walk(folder));
    let holds = |file: &String| {
        let has = |all: &[u8]| all.windows(bytes.len()).any(|window| window == bytes);
        has(file.as_bytes()) || std::fs::read(file).is_ok_and(|content| has(&content))
    };
    files.filter(holds).collect()
}

async fn gone_in_time(folders: &[&std::path::Path], bytes: &[u8]) {
    let begun = Stopwatch::start();
    loop {
        let holding = holding(folders, bytes);
        if holding.is_empty() {
            return;
        }
        let word = String::from_utf8_lossy(bytes);
        assert!(begun.elapsed() < Duration::from_secs(120), "{word} is still in {holding:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn add(service: &Service, id: &str, text: &str, note: &str) {
    let documents = json!({ "documents": [{ "id": id, "title": id, "text": text, "metadata": { "note": note } }] });
    service.ask("/v1/collections/world/documents", &documents).await;
}

#[tokio::test]
async fn deleted_text_is_in_no_byte_of_folder_and_bucket() {
    let (folder, bucket) = (Folder::new(), tempfile::tempdir().unwrap());
    let url = format!("object_url=file://{}", bucket.path().display());
    let settings = |within: &str| {
        ["--set".to_owned(), url.clone(), "--set".into(), "kv_admission=always".into(), "--set".into(), within.into()]
    };
    let serve = async |within: &str| {
        let settings = settings(within);
        folder.serve(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    let service = serve("vacuum_within_s=1000000").await;
    add(&service, "lantern", DELETED, "medlarberry").await;
    add(&service, "mill", KEPT, "bilberry").await;
    service.ask("/v1/pml/schemas", &json!({ "schema": SCHEMA })).await;
    assert_eq!(cited(&service, "world", "Who keeps the lantern of Orvik?", "").await.len(), 2);
    settle(&service).await;
    let entries = list(&folder, &["--collection", "world", "--document", "lantern"]);
    let keys: Vec<Vec<u8>> = entries.iter().filter_map(|entry| hex_bytes(entry["key"].as_str()?)).collect();
    assert!(!keys.is_empty());
    let (data, far) = (folder.data(), bucket.path().to_owned());
    let everywhere = [data.as_path(), far.as_path()];
    // Names of entries are hashes and say nothing: RocksDB's own notes and the catalog's log keep some.
    let kv = |key: &[u8]| {
        let mut files = holding(&everywhere, key);
        files.retain(|file| {
            !["MANIFEST", "/LOG", "/catalog/", "/catalog.records"].iter().any(|notes| file.contains(notes))
        });
        files
    };
    for word in ["quincewood", "medlarberry", "elderthicket"] {
        assert!(!holding(&everywhere, word.as_bytes()).is_empty(), "{word}");
    }
    assert!(keys.iter().all(|key| !kv(key).is_empty()));

    // A schema is a file.
    let client = reqwest::Client::new();
    let gone = client.delete(service.url("/v1/pml/schemas/codex")).header("x-ragstone-token", folder.token()).send();
    assert_eq!(gone.await.unwrap().status(), 200);
    assert_eq!(holding(&everywhere, b"elderthicket"), [""; 0]);

    // Whoever waits for it.
    folder.run(&["documents", "delete", "lantern", "--collection", "world", "--now"]).succeeded();
    for word in ["quincewood", "medlarberry"] {
        assert_eq!(holding(&everywhere, word.as_bytes()), [""; 0], "{word}");
    }
    for key in &keys {
        assert_eq!(kv(key), [""; 0]);
    }
    assert!(!holding(&everywhere, b"hazelbrook").is_empty());
    assert_eq!(cited(&service, "world", "What does the mill grind?", "").await.len(), 1);
    // What is replaced stays until it is due, also over a start; then it goes by itself.
    add(&service, "mill", KEPT, "cloudberry").await;
    add(&service, "mill", "The alderbrook mill of Tarn stands still.", "cloudberry").await;
    assert!(!holding(&everywhere, b"hazelbrook").is_empty());
    assert_eq!(service.stop(), 0);
    let service = serve("vacuum_within_s=1").await;
    for word in ["hazelbrook", "bilberry"] {
        gone_in_time(&everywhere, word.as_bytes()).await;
    }
    assert_eq!(cited(&service, "world", "What of the mill?", "").await.len(), 1);
    assert!(!holding(&everywhere, b"alderbrook").is_empty());

    // A collection as a whole, with the KV of what was asked about it.
    settle(&service).await;
    let entries = list(&folder, &["--collection", "world"]);
    let keys: Vec<Vec<u8>> = entries.iter().filter_map(|entry| hex_bytes(entry["key"].as_str()?)).collect();
    assert!(!keys.is_empty() && keys.iter().all(|key| !kv(key).is_empty()));
    assert_eq!(service.stop(), 0);
    let _service = serve("vacuum_within_s=1000000").await;
    folder.run(&["collections", "delete", "world", "--now", "--yes"]).succeeded();
    assert_eq!(holding(&everywhere, b"alderbrook"), [""; 0]);
    for key in &keys {
        assert_eq!(kv(key), [""; 0]);
    }
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// A key that writes may not have everybody's files rewritten.
#[tokio::test]
async fn at_once_is_for_the_owner() {
    let folder = Folder::new();
    let service = folder.serve(&["--keys", "required", "--set", "calibrate_when_idle=false"]).await;
    let owner = folder.token();
    let wanted = json!({ "name": "writer", "role": "write", "tenant": "acme" });
    let key = crate::keys::new_key(&service, &owner, wanted).await;
    let path = service.url("/v1/collections/notes/documents/none?now=true");
    let refused = reqwest::Client::new().delete(path).bearer_auth(key).send().await.unwrap();
    assert_eq!(refused.status(), 403);
    let told: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(told["error"]["param"], "now", "{told}");
}
