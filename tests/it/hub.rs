//! Models from the hub, against a small hub of our own: download, cache, offline use, names that are not there, and a hub that lies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{Folder, Ran};

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// What the hub answers about `somebody/tiny`.
#[derive(Clone)]
struct Repo {
    files: BTreeMap<String, Vec<u8>>,
    /// Named beside the files, and not there.
    also: Vec<String>,
    commit: String,
    /// In place of a file's hash.
    etag: Option<String>,
    /// How the first request for these bytes ends, and all others.
    body: Body,
    /// The ranges that were asked for, by file.
    ranges: Arc<Mutex<Vec<(String, String)>>>,
}

/// What is sent of a file's bytes, once they are asked for and not only described.
#[derive(Clone, Copy, PartialEq)]
enum Body {
    Honest,
    /// The promised length, and then more without end.
    Endless,
    /// Breaks off after so many bytes.
    Broken(usize),
    /// Other bytes than the hash is of.
    Changed,
}

/// What the hub says about a repository.
async fn info(repo: web::Data<Repo>, path: web::Path<String>) -> HttpResponse {
    if !path.starts_with("somebody/tiny") {
        return HttpResponse::NotFound().finish();
    }
    let siblings: Vec<Value> = repo.files.keys().chain(&repo.also).map(|name| json!({ "rfilename": name })).collect();
    HttpResponse::Ok().json(json!({ "sha": repo.commit, "siblings": siblings }))
}

/// A file, whole or by ranges, with the headers that the hub's clients need.
async fn file(repo: web::Data<Repo>, request: HttpRequest) -> HttpResponse {
    let name = request.match_info().get("name").unwrap();
    let Some(bytes) = repo.files.get(name) else { return HttpResponse::NotFound().finish() };
    let range = request.headers().get("range").map(|range| range.to_str().unwrap().to_owned()).unwrap_or_default();
    repo.ranges.lock().unwrap().push((name.to_owned(), range.clone()));
    let (begin, end) = match range.trim_start_matches("bytes=").split_once('-') {
        Some((begin, end)) => (begin.parse().unwrap(), end.parse().unwrap_or(usize::MAX).min(bytes.len() - 1)),
        None => (0, bytes.len() - 1),
    };
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let etag = repo.etag.clone().unwrap_or(hash);
    let mut answer = HttpResponse::PartialContent();
    answer
        .insert_header(("x-repo-commit", COMMIT))
        .insert_header(("etag", format!("\"{etag}\"")))
        .insert_header(("content-range", format!("bytes {begin}-{end}/{}", bytes.len())));
    let promised = Bytes::from(bytes[begin..=end].to_vec());
    if range == "bytes=0-0" || repo.body == Body::Honest {
        return answer.body(promised);
    }
    match repo.body {
        Body::Endless => {
            let more = futures::stream::repeat_with(|| Bytes::from(vec![b'x'; 1 << 16]));
            let pieces = futures::StreamExt::chain(futures::stream::iter([promised]), more);
            answer.streaming(futures::StreamExt::map(pieces, Ok::<_, std::io::Error>))
        }
        Body::Broken(at) => answer.body(promised.slice(..at.min(promised.len()))),
        Body::Changed => answer.body(vec![b'x'; promised.len()]),
        Body::Honest => unreachable!("answered above"),
    }
}

impl Repo {
    /// The files of a folder.
    fn of(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())
        };
        let (also, ranges) = (Vec::new(), Arc::default());
        Self { files: entries.map(read).collect(), also, commit: COMMIT.into(), etag: None, body: Body::Honest, ranges }
    }

    /// Serves it as `somebody/tiny`; the address.
    fn serve(self) -> String {
        let repo = web::Data::new(self);
        let server = HttpServer::new(move || {
            App::new()
                .app_data(repo.clone())
                .route("/api/models/{repo:.*}", web::get().to(info))
                .route("/somebody/tiny/resolve/{commit}/{name}", web::get().to(file))
        })
        .workers(1)
        .bind("127.0.0.1:0")
        .unwrap();
        let address = format!("http://{}", server.addrs()[0]);
        tokio::spawn(server.run());
        address
    }
}

/// `ragstone fetch --model somebody/…` with a cache inside the folder.
async fn fetch(folder: &Folder, endpoint: &str, model: &'static str, offline: bool) -> Ran {
    let mut command = folder.ragstone(&["fetch", "--json", "--model", model]);
    command
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", folder.path().join("a/b/c/d/hf"))
        .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" });
    tokio::task::spawn_blocking(move || Ran::of(command.output().unwrap())).await.unwrap()
}

/// The embedded model as a repository, small enough to be fetched often.
fn tiny(folder: &Folder) -> Repo {
    let demo = folder.json(&["fetch", "--json"])["model"].clone();
    Repo::of(Path::new(demo.as_str().unwrap()))
}

/// Every file below a folder, but the data folder's.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "data") {
            found.extend(files(&path));
        } else if path.is_file() {
            found.insert(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn a_model_comes_from_the_hub_once_and_then_from_its_cache() {
    let folder = Folder::new();
    let repo = tiny(&folder);
    let weights = repo.files["model.safetensors"].clone();
    let endpoint = repo.serve();
    fetch(&folder, &endpoint, "somebody/tiny", true).await.failed_with(&["somebody/tiny", "switched off"]);
    fetch(&folder, &endpoint, "somebody/else", false).await.failed_with(&["somebody/else", "check the name"]);
    let fetched = fetch(&folder, &endpoint, "somebody/tiny", false).await.succeeded();
    let first: Value = serde_json::from_str(&fetched.stdout).unwrap();
    let path = Path::new(first["model"].as_str().unwrap());
    assert!(path.ends_with(format!("models--somebody--tiny/snapshots/{COMMIT}")), "{first}");
    assert_eq!(std::fs::read(path.join("model.safetensors")).unwrap(), weights);
    let again = fetch(&folder, &endpoint, "somebody/tiny", true).await.succeeded();
    assert_eq!(serde_json::from_str::<Value>(&again.stdout).unwrap(), first);
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_named() {
    let folder = Folder::new();
    let ran = fetch(&folder, "http://127.0.0.1:1", "somebody/tiny", false).await;
    ran.failed_with(&["http://127.0.0.1:1", "cannot be reached"]);
}

/// Nothing that the hub says becomes a path outside of its cache, or a file in it.
#[tokio::test]
async fn answers_that_would_leave_the_cache_are_refused() {
    let folder = Folder::new();
    let honest = tiny(&folder);
    let above = folder.path().join("a/x");
    for etag in ["../../../../../../x", "../x", above.to_str().unwrap(), "", "..", "a/b", "x.lock"] {
        let endpoint = Repo { etag: Some(etag.into()), ..honest.clone() }.serve();
        fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&["ETag", "nothing of it was used"]);
        assert_eq!(files(folder.path()), BTreeSet::new(), "{etag}");
    }
    for commit in ["../../../x", "/tmp/x", "", "main", "..", &"a".repeat(1000)] {
        let endpoint = Repo { commit: commit.into(), ..honest.clone() }.serve();
        fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&["commit", "nothing of it was used"]);
        assert_eq!(files(folder.path()), BTreeSet::new(), "{commit}");
    }
    // Names that nobody wants are no trouble; those of an index are.
    let also = ["../../../../x.safetensors", "/tmp/x.safetensors", "a\0b.safetensors"].map(str::to_owned).to_vec();
    let mut names_all = honest.clone();
    names_all.also = also.clone();
    for name in also {
        let mut repo = names_all.clone();
        let index = json!({ "weight_map": { "a": name } }).to_string().into_bytes();
        repo.files.insert("model.safetensors.index.json".into(), index);
        fetch(&folder, &repo.serve(), "somebody/tiny", false).await.failed_with(&["model.safetensors.index.json"]);
    }
    let outside: Vec<String> =
        files(folder.path()).into_iter().filter(|path| !path.contains("/hf/hub/models--")).collect();
    assert_eq!(outside, [""; 0]);
    fetch(&folder, &names_all.serve(), "somebody/tiny", false).await.succeeded();
    fetch(&folder, "http://127.0.0.1:1", "somebody/tiny@../../x", false).await.failed_with(&["no model folder"]);
}

#[tokio::test]
async fn a_repository_of_a_million_files_is_refused() {
    let folder = Folder::new();
    let mut repo = tiny(&folder);
    repo.also = (0..1_000_000).map(|number| format!("file-{number}.safetensors")).collect();
    fetch(&folder, &repo.serve(), "somebody/tiny", false).await.failed_with(&["more files than"]);
    assert_eq!(files(folder.path()), BTreeSet::new());
}

#[tokio::test]
async fn no_more_is_taken_than_was_promised_and_nothing_that_its_hash_does_not_fit() {
    let folder = Folder::new();
    let honest = tiny(&folder);
    for (body, words) in [(Body::Endless, "promised"), (Body::Changed, "SHA-256")] {
        let endpoint = Repo { body, ..honest.clone() }.serve();
        fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&[words, "config.json"]);
        assert_eq!(files(folder.path()), BTreeSet::new(), "{words}");
    }
}

#[tokio::test]
async fn a_download_that_broke_off_goes_on_where_it_was() {
    let folder = Folder::new();
    let honest = tiny(&folder);
    let endpoint = Repo { body: Body::Broken(100), ..honest.clone() }.serve();
    fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&["config.json", "run again to continue"]);
    fetch(&folder, &honest.clone().serve(), "somebody/tiny", false).await.succeeded();
    let ranges = honest.ranges.lock().unwrap().clone();
    let of_config: Vec<&str> =
        ranges.iter().filter(|(name, _)| name == "config.json").map(|(_, range)| range.as_str()).collect();
    assert_eq!(of_config, ["bytes=0-0", "bytes=0-", "bytes=0-0", "bytes=100-"]);
}
