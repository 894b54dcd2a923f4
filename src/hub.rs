//! Files of a model repository on the Hugging Face hub, through the hub's own cache folder.
//!
//! `HF_ENDPOINT` and `HF_HOME` are honoured; with `--offline` or `HF_HUB_OFFLINE=1` only the cache is used.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hf_hub::api::tokio::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Progress, Unit};

/// How long the hub may take to accept a connection, and then to describe a repository.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const INFO_TIMEOUT: Duration = Duration::from_secs(15);

/// Files that are taken where the repository has them.
const WANTED: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "model.safetensors",
];

/// A repository on the hub, `owner/name` or `owner/name@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubId {
    /// `owner/name`
    pub name: String,
    /// A branch, tag or commit.
    pub revision: String,
}

impl HubId {
    /// Reads an id; `None` for what cannot be one (a path).
    pub fn parse(text: &str) -> Option<Self> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let word = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let (owner, model) = name.split_once('/')?;
        (word(owner) && word(model) && !revision.is_empty())
            .then(|| Self { name: name.to_owned(), revision: revision.to_owned() })
    }

    fn repo(&self) -> Repo {
        Repo::with_revision(self.name.clone(), RepoType::Model, self.revision.clone())
    }
}

impl std::fmt::Display for HubId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            "main" => f.write_str(&self.name),
            revision => write!(f, "{}@{revision}", self.name),
        }
    }
}

/// Whether the environment forbids the hub.
pub fn is_offline(offline_setting: bool) -> bool {
    let switched = |value: String| !matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off");
    offline_setting || std::env::var("HF_HUB_OFFLINE").is_ok_and(switched)
}

/// The folder of `id` in the hub's cache, if everything that a model needs is there.
pub fn cached(id: &HubId) -> Option<PathBuf> {
    let repo = Cache::from_env().repo(id.repo());
    let config = repo.get("config.json")?;
    repo.get("tokenizer.json")?;
    weights_cached(&repo)?;
    config.parent().map(Path::to_path_buf)
}

fn weights_cached(repo: &CacheRepo) -> Option<()> {
    if let Some(index) = repo.get("model.safetensors.index.json") {
        shards(&std::fs::read(index).ok()?)?.iter().try_for_each(|shard| repo.get(shard).map(drop))
    } else {
        repo.get("model.safetensors").map(drop)
    }
}

/// The shard names of an index file.
fn shards(index: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).ok()?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    Some(names)
}

/// Downloads what is missing of `id` and says in which folder it lies.
pub async fn download(id: &HubId) -> Result<PathBuf> {
    let failed = |error: String| {
        Error::new(ErrorKind::Unavailable, format!("cannot fetch {id} from the Hugging Face hub: {error}"))
    };
    probe(id).await?;
    let api = ApiBuilder::from_env().with_progress(false).build().map_err(|error| failed(error.to_string()))?;
    let repo = api.repo(id.repo());
    let info = tokio::time::timeout(INFO_TIMEOUT, repo.info())
        .await
        .map_err(|_| failed("the hub does not answer".into()))?
        .map_err(|error| failed(error.to_string()))?;
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let has = |name: &str| names.iter().any(|other| other == name);
    if !has("config.json") || !has("tokenizer.json") || !names.iter().any(|name| name.ends_with(".safetensors")) {
        return Err(Error::invalid(format!(
            "{id} on the hub lacks config.json, tokenizer.json or *.safetensors weights; take a model that has them"
        )));
    }
    let sharded = has("model.safetensors.index.json");
    let mut folder = None;
    for name in WANTED.iter().filter(|name| has(name) && !(sharded && **name == "model.safetensors")) {
        let path = fetch(id, &repo, name).await?;
        if *name == "config.json" {
            folder = path.parent().map(Path::to_path_buf);
        }
        if *name == "model.safetensors.index.json" {
            let index = std::fs::read(&path).map_err(|error| Error::io("cannot read", &path, &error))?;
            let shards = shards(&index).ok_or_else(|| failed(format!("{name} is not a safetensors index")))?;
            for shard in shards {
                fetch(id, &repo, &shard).await?;
            }
        }
    }
    folder.ok_or_else(|| failed("config.json went missing".into()))
}

/// Fails within seconds where there is no way to the hub: the hub's own client has no connect timeout.
async fn probe(id: &HubId) -> Result<()> {
    let endpoint = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".into());
    let unreachable = |why: String| {
        let message = format!("the Hugging Face hub at {endpoint} cannot be reached ({why})");
        Error::new(ErrorKind::Unavailable, message)
    };
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(INFO_TIMEOUT)
        .build()
        .map_err(|error| Error::internal(error.to_string()))?;
    let url = format!("{}/api/models/{}", endpoint.trim_end_matches('/'), id.name);
    let mut request = client.get(url);
    if let Some(token) = Cache::from_env().token() {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.map_err(|error| unreachable(root_cause(&error)))?;
    match response.status().as_u16() {
        200..=299 => Ok(()),
        401 | 403 | 404 => Err(Error::new(
            ErrorKind::NotFound,
            format!("the hub has no model {id} for you; check the name, or log in with `hf auth login` if it is gated"),
        )),
        status => Err(unreachable(format!("status {status}"))),
    }
}

/// The innermost reason of an error: `dns error: …`, `connection refused`.
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

async fn fetch(id: &HubId, repo: &ApiRepo, name: &str) -> Result<PathBuf> {
    if let Some(path) = Cache::from_env().repo(id.repo()).get(name) {
        return Ok(path);
    }
    let bar = DownloadBar::new(format!("fetching {id} {name}"));
    repo.download_with_progress(name, bar).await.map_err(|error| {
        let message = format!("cannot fetch {name} of {id} from the Hugging Face hub: {error}; run again to continue");
        Error::new(ErrorKind::Unavailable, message)
    })
}

/// Feeds the hub client's progress into ours.
#[derive(Clone)]
struct DownloadBar {
    progress: Arc<Mutex<Option<Progress>>>,
    done: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

impl DownloadBar {
    fn new(what: String) -> Self {
        let progress = Arc::new(Mutex::new(Some(Progress::new(what, Unit::Bytes))));
        Self { progress, done: Arc::default(), total: Arc::default() }
    }

    fn show(&self) {
        if let Some(progress) = &*self.progress.lock().unwrap_or_else(PoisonError::into_inner) {
            progress.set(self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        }
    }
}

impl hf_hub::api::tokio::Progress for DownloadBar {
    async fn init(&mut self, size: usize, _: &str) {
        self.total.store(size as u64, Ordering::Relaxed);
    }

    async fn update(&mut self, size: usize) {
        self.done.fetch_add(size as u64, Ordering::Relaxed);
        self.show();
    }

    async fn finish(&mut self) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        for (text, expected) in [
            ("Qwen/Qwen2.5-0.5B", Some(("Qwen/Qwen2.5-0.5B", "main"))),
            ("a/b@v1", Some(("a/b", "v1"))),
            ("./models/x", None),
            ("/models/x", None),
            ("../x", None),
            ("models", None),
            ("a/b/c", None),
            ("a/b@", None),
        ] {
            let id = HubId::parse(text);
            assert_eq!(id.as_ref().map(|id| (&*id.name, &*id.revision)), expected, "{text}");
        }
        assert_eq!(HubId::parse("a/b@v1").unwrap().to_string(), "a/b@v1");
    }

    #[test]
    fn an_index_names_each_shard_once() {
        let index = br#"{"weight_map":{"a":"x-2","b":"x-1","c":"x-2"}}"#;
        assert_eq!(shards(index).unwrap(), ["x-1", "x-2"]);
        assert!(shards(b"{}").is_none());
    }
}
