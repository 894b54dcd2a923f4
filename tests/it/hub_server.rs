//! A small hub: repositories with commits and hashes, ranges, redirects to where bytes are kept, and every lie that one can tell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use actix_web::http::StatusCode;
use actix_web::{App, HttpRequest, HttpResponse, HttpResponseBuilder, HttpServer, web};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::Folder;

pub const COMMIT: &str = "0123456789012345678901234567890123456789";

/// What the hub answers about a repository.
#[derive(Clone)]
pub struct Repo {
    /// `somebody/tiny`, if not another one.
    pub name: String,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Named beside the files, and not there.
    pub also: Vec<String>,
    pub commit: String,
    /// In place of a file's hash.
    pub etag: Option<String>,
    /// How requests for more than a file's first byte end.
    pub body: Body,
    /// Whether the description tells lengths and hashes, and bytes come from elsewhere, as of large files.
    pub is_large: bool,
    /// What the description says of a file's length and hash, if not the truth.
    pub described: BTreeMap<String, (u64, String)>,
    /// What is answered to every request for a description, or for a file, with `Retry-After` and an error code.
    pub refused: Option<Refused>,
    /// The ranges that were asked for, by file.
    pub ranges: Arc<Mutex<Vec<(String, String)>>>,
    /// What requests for bytes had in `If-Match`.
    pub conditions: Arc<Mutex<Vec<String>>>,
}

/// A refusal, and whether it is of the repository or of its files.
#[derive(Clone, Copy)]
pub struct Refused {
    pub status: u16,
    pub retry_after: &'static str,
    pub code: &'static str,
    pub is_of_files: bool,
}

impl Refused {
    fn answer(self) -> HttpResponse {
        let mut answer = HttpResponseBuilder::new(StatusCode::from_u16(self.status).unwrap());
        for (name, value) in [("retry-after", self.retry_after), ("x-error-code", self.code)] {
            if !value.is_empty() {
                answer.insert_header((name, value));
            }
        }
        answer.finish()
    }
}

/// What is sent of a file's bytes, once they are asked for and not only described.
#[derive(Clone, Copy, PartialEq)]
pub enum Body {
    Honest,
    /// The promised length, and then more without end.
    Endless,
    /// Breaks off after so many bytes.
    Broken(usize),
    /// Sends so many bytes of weights, and then nothing while the client waits.
    Stalled(usize),
    /// Other bytes than the hash is of.
    Changed,
    /// The bytes of another file than was promised, by their ETag.
    Renamed,
}

/// What the hub says about a repository.
async fn info(repo: web::Data<Repo>, path: web::Path<String>) -> HttpResponse {
    if let Some(refused) = repo.refused.filter(|refused| !refused.is_of_files) {
        return refused.answer();
    }
    if !path.starts_with(&repo.name) {
        return HttpResponse::NotFound().finish();
    }
    let file = |(name, bytes): (&String, &Vec<u8>)| {
        let truth = || (bytes.len() as u64, sha256(bytes));
        let (size, sha256) = repo.described.get(name).cloned().unwrap_or_else(truth);
        match repo.is_large {
            true => {
                json!({ "rfilename": name, "size": size, "lfs": { "sha256": sha256, "size": size, "pointerSize": 130 } })
            }
            false => json!({ "rfilename": name }),
        }
    };
    let also = repo.also.iter().map(|name| json!({ "rfilename": name }));
    let siblings: Vec<Value> = repo.files.iter().map(file).chain(also).collect();
    HttpResponse::Ok().json(json!({ "sha": repo.commit, "siblings": siblings }))
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file, whole or by ranges, with the headers that the hub's clients need; of large ones only where its bytes are.
async fn file(repo: web::Data<Repo>, request: HttpRequest) -> HttpResponse {
    if let Some(refused) = repo.refused.filter(|refused| refused.is_of_files) {
        return refused.answer();
    }
    let name = request.match_info().get("name").unwrap();
    let Some(bytes) = repo.files.get(name) else { return HttpResponse::NotFound().finish() };
    let range = request.headers().get("range").map(|range| range.to_str().unwrap().to_owned()).unwrap_or_default();
    repo.ranges.lock().unwrap().push((name.to_owned(), range.clone()));
    let is_first = range == "bytes=0-0";
    let etag = match (&repo.etag, repo.body) {
        (_, Body::Renamed) if !is_first => sha256(b"another file"),
        (Some(etag), _) => etag.clone(),
        (None, _) => sha256(bytes),
    };
    if repo.is_large {
        return HttpResponse::Found()
            .insert_header(("x-repo-commit", COMMIT))
            .insert_header(("x-linked-etag", format!("\"{etag}\"")))
            .insert_header(("x-linked-size", bytes.len()))
            .insert_header(("location", format!("/elsewhere/{name}")))
            .finish();
    }
    part(&repo, bytes, &range, &etag)
}

/// Where the bytes of large files are: it has ETags of its own, and hears no other.
async fn elsewhere(repo: web::Data<Repo>, request: HttpRequest) -> HttpResponse {
    let bytes = &repo.files[request.match_info().get("name").unwrap()];
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let own = format!("multipart-{}", bytes.len());
    if let Some(condition) = header("if-match") {
        repo.conditions.lock().unwrap().push(condition.clone());
        if condition != format!("\"{own}\"") {
            return HttpResponse::PreconditionFailed().finish();
        }
    }
    part(&repo, bytes, &header("range").unwrap_or_default(), &own)
}

fn part(repo: &Repo, bytes: &[u8], range: &str, etag: &str) -> HttpResponse {
    let (begin, end) = match range.trim_start_matches("bytes=").split_once('-') {
        Some((begin, end)) => (begin.parse().unwrap(), end.parse().unwrap_or(usize::MAX).min(bytes.len() - 1)),
        None => (0, bytes.len() - 1),
    };
    let mut answer = if range.is_empty() { HttpResponse::Ok() } else { HttpResponse::PartialContent() };
    answer.insert_header(("etag", format!("\"{etag}\"")));
    if !range.is_empty() {
        answer.insert_header(("content-range", format!("bytes {begin}-{end}/{}", bytes.len())));
    }
    let promised = Bytes::from(bytes[begin..=end].to_vec());
    // Ranges with an end are looks into a file.
    if !range.ends_with('-') {
        return answer.body(promised);
    }
    match repo.body {
        Body::Endless => {
            let more = futures::stream::repeat_with(|| Bytes::from(vec![b'x'; 1 << 16]));
            let pieces = futures::StreamExt::chain(futures::stream::iter([promised]), more);
            answer.streaming(futures::StreamExt::map(pieces, Ok::<_, std::io::Error>))
        }
        Body::Broken(at) => answer.body(promised.slice(..at.min(promised.len()))),
        Body::Stalled(at) if promised.len() > at => {
            let first = futures::stream::iter([promised.slice(..at)]);
            let pieces = futures::StreamExt::chain(first, futures::stream::pending());
            answer.streaming(futures::StreamExt::map(pieces, Ok::<_, std::io::Error>))
        }
        Body::Changed => answer.body(vec![b'x'; promised.len()]),
        Body::Honest | Body::Renamed | Body::Stalled(_) => answer.body(promised),
    }
}

impl Repo {
    /// The files of a folder.
    pub fn of(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())
        };
        Self::with(entries.map(read).collect())
    }

    /// Files by their names.
    pub fn with(files: BTreeMap<String, Vec<u8>>) -> Self {
        Self {
            name: "somebody/tiny".into(),
            files,
            also: Vec::new(),
            commit: COMMIT.into(),
            etag: None,
            body: Body::Honest,
            is_large: false,
            described: BTreeMap::new(),
            refused: None,
            ranges: Arc::default(),
            conditions: Arc::default(),
        }
    }

    /// Serves it by its name; the address.
    pub fn serve(self) -> String {
        let files = format!("/{}/resolve/{{commit}}/{{name}}", self.name);
        let repo = web::Data::new(self);
        let server = HttpServer::new(move || {
            App::new()
                .app_data(repo.clone())
                .route("/api/models/{repo:.*}", web::get().to(info))
                .route(&files, web::get().to(file))
                .route("/elsewhere/{name}", web::get().to(elsewhere))
        })
        .workers(1)
        .bind("127.0.0.1:0")
        .unwrap();
        let address = format!("http://{}", server.addrs()[0]);
        tokio::spawn(server.run());
        address
    }

    /// The ranges that were asked for of a file.
    pub fn ranges_of(&self, name: &str) -> Vec<String> {
        let ranges = self.ranges.lock().unwrap();
        ranges.iter().filter(|(file, _)| file == name).map(|(_, range)| range.clone()).collect()
    }
}

/// The embedded model as a repository, small enough to be fetched often.
pub fn tiny(folder: &Folder) -> Repo {
    let demo = folder.json(&["fetch", "--json"])["model"].clone();
    Repo::of(Path::new(demo.as_str().unwrap()))
}

/// Every file below a folder, but the data folder's.
pub fn files(folder: &Path) -> BTreeSet<String> {
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
