//! A disk that takes nothing any more while the service runs (full, broken, read-only): each change is one clear error, what was answered stays,
//! reading goes on, and changes do again as soon as the disk does.

#![cfg(target_os = "linux")]

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD, error_message};
use crate::keys::{As, send};
use crate::starts::compiled;

const DOCUMENTS: &str = "/v1/collections/world/documents";
/// ENOSPC, EIO, EROFS.
const ERRORS: [i32; 3] = [28, 5, 30];

/// One of every kind of change, whose names end with `name`.
fn changes(name: &str) -> Vec<(Method, String, Value)> {
    let document =
        json!({ "documents": [{ "id": name, "title": "Boats", "text": format!("The boat {name} came to Tarn.") }] });
    let schema = json!({ "schema": format!("<schema name=\"{name}\">Nine boats lay in the harbour.</schema>") });
    let quota = json!({ "tenant": name, "quota": { "documents": 5 } });
    vec![
        (Method::POST, DOCUMENTS.into(), document),
        (Method::POST, "/v1/keys".into(), json!({ "name": name, "role": "read" })),
        (Method::POST, "/v1/pml/schemas".into(), schema),
        (Method::POST, "/v1/conversations".into(), json!({ "metadata": { "name": name } })),
        (Method::POST, "/v1/quotas".into(), quota),
        (Method::DELETE, format!("{DOCUMENTS}/gone-{name}"), Value::Null),
    ]
}

async fn owner(service: &Service, token: &str, change: &(Method, String, Value)) -> (u16, Value) {
    let (method, path, body) = change;
    let (status, text) = send(service, method.clone(), path, As::Owner(token), body).await;
    (status, serde_json::from_str(&text).unwrap_or_default())
}

async fn search(service: &Service) -> u16 {
    service.post("/v1/collections/world/search", &json!({ "query": "boats" })).await.0
}

/// The names of what there is.
async fn names(service: &Service, token: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (path, field) in [(DOCUMENTS, "id"), ("/v1/keys", "name"), ("/v1/pml/schemas", "name")] {
        let (_, text) = send(service, Method::GET, path, As::Owner(token), &Value::Null).await;
        let list: Value = serde_json::from_str(&text).unwrap();
        names.extend(
            list["data"].as_array().unwrap().iter().map(|row| format!("{path} {}", row[field].as_str().unwrap())),
        );
    }
    names.sort();
    names
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_one_clear_error_and_nothing_is_lost() {
    for error in ERRORS {
        let folder = Folder::new();
        let Some(library) = compiled(&folder) else {
            println!("there is no C compiler: a failing disk is not tried");
            return;
        };
        let when = folder.path().join("when");
        let data = folder.data();
        let variables = [("LD_PRELOAD", &library), ("FAIL_BELOW", &data), ("FAIL_WHEN", &when)]
            .map(|(name, path)| (name, path.to_str().unwrap()));
        let service = folder.serve_with(&["--set", "calibrate_when_idle=false"], &variables).await;
        let token = folder.token();
        service.add("world", WORLD).await;
        for name in ["gone-bad", "gone-good"] {
            let (status, told) = owner(&service, &token, &changes(name)[0]).await;
            assert_eq!(status, 200, "{told}");
        }
        let before = names(&service, &token).await;
        std::fs::write(&when, error.to_string()).unwrap();
        for change in changes("bad") {
            let (status, told) = owner(&service, &token, &change).await;
            let case = format!("error {error}, {} {}: {status} {told}", change.0, change.1);
            assert!((500..600).contains(&status), "{case}");
            let message = error_message(&told);
            assert!(!message.is_empty() && !message.contains(folder.path().to_str().unwrap()), "{case}");
        }
        assert_eq!(search(&service).await, 200, "error {error}: reading goes on");
        std::fs::remove_file(&when).unwrap();
        for change in changes("good") {
            let (status, told) = owner(&service, &token, &change).await;
            assert_eq!(status, 200, "error {error}, {} {}: {told}", change.0, change.1);
        }
        let after = names(&service, &token).await;
        for name in before.iter().filter(|name| !name.contains("gone-")) {
            assert!(after.contains(name), "error {error}: {name} is lost");
        }
        service.kill();
        let service = folder.serve(&[]).await;
        let again = names(&service, &folder.token()).await;
        for name in after.iter().filter(|name| !name.contains("bad")) {
            assert!(again.contains(name), "error {error}: {name} is lost with the end of the process");
        }
        assert!(!again.iter().any(|name| name.contains("gone-good")), "error {error}: {again:?}");
        assert_eq!(search(&service).await, 200);
        assert_eq!(service.stop(), 0);
    }
}
