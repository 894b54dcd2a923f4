//! Models from the hub, against a small hub of our own: download, cache, offline use, and names that are not there.

use std::collections::BTreeMap;
use std::path::Path;

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde_json::{Value, json};

use crate::harness::{Folder, Ran};

const COMMIT: &str = "0123456789012345678901234567890123456789";

type Files = BTreeMap<String, Vec<u8>>;

/// What the hub says about a repository.
async fn info(files: web::Data<Files>, path: web::Path<String>) -> HttpResponse {
    if !path.starts_with("somebody/tiny") {
        return HttpResponse::NotFound().finish();
    }
    let siblings: Vec<Value> = files.keys().map(|name| json!({ "rfilename": name })).collect();
    HttpResponse::Ok().json(json!({ "sha": COMMIT, "siblings": siblings }))
}

/// A file, whole or by ranges, with the headers that the hub's clients need.
async fn file(files: web::Data<Files>, request: HttpRequest) -> HttpResponse {
    let name = request.match_info().get("name").unwrap();
    let Some(bytes) = files.get(name) else { return HttpResponse::NotFound().finish() };
    let range =
        request.headers().get("range").map(|range| range.to_str().unwrap().trim_start_matches("bytes=").to_owned());
    let (begin, end) = match range.as_deref().and_then(|range| range.split_once('-')) {
        Some((begin, end)) => (begin.parse().unwrap(), end.parse().unwrap_or(usize::MAX).min(bytes.len() - 1)),
        None => (0, bytes.len() - 1),
    };
    HttpResponse::PartialContent()
        .insert_header(("x-repo-commit", COMMIT))
        .insert_header(("etag", format!("\"{:x}\"", bytes.len() * 31 + name.len())))
        .insert_header(("content-range", format!("bytes {begin}-{end}/{}", bytes.len())))
        .body(bytes[begin..=end].to_vec())
}

/// Serves the files of `folder` as `somebody/tiny`; the address.
fn serve(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())
    };
    let files = web::Data::new(entries.map(read).collect::<Files>());
    let server = HttpServer::new(move || {
        App::new()
            .app_data(files.clone())
            .route("/api/models/{repo:.*}", web::get().to(info))
            .route("/somebody/tiny/resolve/main/{name}", web::get().to(file))
    })
    .workers(1)
    .bind("127.0.0.1:0")
    .unwrap();
    let address = format!("http://{}", server.addrs()[0]);
    tokio::spawn(server.run());
    address
}

#[tokio::test]
async fn a_model_comes_from_the_hub_once_and_then_from_its_cache() {
    let folder = Folder::new();
    let demo = folder.json(&["fetch", "--json"])["model"].clone();
    let endpoint = serve(Path::new(demo.as_str().unwrap()));
    let home = folder.path().join("hf");
    let fetch = async |model: &'static str, offline: bool| {
        let mut command = folder.ragstone(&["fetch", "--json", "--model", model]);
        command
            .env("HF_ENDPOINT", &endpoint)
            .env("HF_HOME", &home)
            .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" });
        tokio::task::spawn_blocking(move || Ran::of(command.output().unwrap())).await.unwrap()
    };
    fetch("somebody/tiny", true).await.failed_with(&["somebody/tiny", "switched off"]);
    fetch("somebody/else", false).await.failed_with(&["somebody/else", "check the name"]);
    let first: Value = serde_json::from_str(&fetch("somebody/tiny", false).await.succeeded().stdout).unwrap();
    let path = Path::new(first["model"].as_str().unwrap());
    assert!(path.starts_with(home.canonicalize().unwrap()) || path.starts_with(&home), "{first}");
    assert_eq!(
        std::fs::read(path.join("model.safetensors")).unwrap(),
        std::fs::read(Path::new(demo.as_str().unwrap()).join("model.safetensors")).unwrap()
    );
    let cached: Value = serde_json::from_str(&fetch("somebody/tiny", true).await.succeeded().stdout).unwrap();
    assert_eq!(cached, first);
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_named() {
    let folder = Folder::new();
    let mut command = folder.ragstone(&["fetch", "--model", "somebody/tiny"]);
    command.env("HF_ENDPOINT", "http://127.0.0.1:1").env("HF_HOME", folder.path().join("hf"));
    Ran::of(command.output().unwrap()).failed_with(&["http://127.0.0.1:1", "cannot be reached"]);
}
