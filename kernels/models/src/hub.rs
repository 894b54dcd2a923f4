//! Files of a model repository on the Hugging Face hub, through the cache folder that the hub's own programs use.
//!
//! `HF_ENDPOINT` and `HF_HOME` are honoured; with `--offline` or `HF_HUB_OFFLINE=1` only the cache is used.
//!
//! What the hub answers is somebody else's word: names, commits and ETags are checked before they become paths
//! (`hub/cache.rs`), lengths before anything is written (`hub/fetch.rs`). Which files of a repository are a model: `hub/plan.rs`; what
//! of the cache is here already, and its removal: `hub/stored.rs`.

mod cache;
mod fetch;
mod plan;
pub mod stored;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use self::cache::{Repository, is_file_name};
pub use self::plan::{Choice, Plan, quantization};
use crate::error::{Error, ErrorKind, Result};

/// How long the hub may take to accept a connection, to describe a repository, and to send the next bytes of a file.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const INFO_TIMEOUT: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A repository's description: its files' names. One of ten thousand files has a megabyte.
const INFO_BYTES: u64 = 16 << 20;
/// A file of weights.
const WEIGHTS_BYTES: u64 = 256 << 30;
/// Any other file.
const FILE_BYTES: u64 = 256 << 20;
/// Files that an index of weights may name.
const MOST_SHARDS: usize = 4096;

/// The two files that weights begin with.
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// Files that are taken where the repository has them.
const WANTED: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    // How conversations with tools are written, where that stands by itself.
    "additional_chat_templates/tool_use.jinja",
    // Of sentence-transformers: how its models pool, how much they read, and what before a text.
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    // How its maker found that it may be blended; it counts for these weights only.
    "calibration.json",
    INDEX,
    WEIGHTS,
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
        let (owner, model) = name.split_once('/')?;
        // A revision may have parts, such as `refs/pr/1`; each part becomes a folder's name.
        let is_one = is_file_name(owner) && is_file_name(model) && revision.split('/').all(is_file_name);
        is_one.then(|| Self { name: name.to_owned(), revision: revision.to_owned() })
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
    let repository = Repository::of(id)?;
    let folder = repository.snapshot(&repository.commit(&id.revision)?);
    is_whole(&folder).then_some(folder)
}

/// A file of `id` in the hub's cache, where its bytes have this SHA-256.
pub fn cached_file(id: &HubId, name: &str, sha256: &str) -> Option<PathBuf> {
    let repository = Repository::of(id)?;
    let path = repository.file(&repository.commit(&id.revision)?, name)?;
    has_sha256(&path, sha256).then_some(path)
}

/// Whether the bytes of a file of a snapshot have this SHA-256: by the name that the cache gives to what it links to. Where there are no links,
/// because the file system has none or the cache was copied without them, they are read.
fn has_sha256(path: &Path, sha256: &str) -> bool {
    let Ok(bytes) = path.canonicalize() else { return false };
    let is_named_so = bytes.file_name().is_some_and(|blob| blob.eq_ignore_ascii_case(sha256));
    is_named_so || cache::sha256(&bytes).is_ok_and(|found| found.eq_ignore_ascii_case(sha256))
}

/// Whether a folder has everything that a model needs.
pub fn is_whole(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    let weights = match folder.join(INDEX) {
        index if index.is_file() => cache::read(&index, FILE_BYTES).ok().and_then(|index| shards(&index).ok()),
        _ => Some(vec![WEIGHTS.to_owned()]),
    };
    has("config.json") && has("tokenizer.json") && weights.is_some_and(|files| files.iter().all(|file| has(file)))
}

/// The shard names of an index file, each once; why there are none where one could not be a file beside it.
fn shards(index: &[u8]) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|_| "it is not a safetensors index".to_owned())?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    if names.len() > MOST_SHARDS {
        return Err(format!("it names {} files", names.len()));
    }
    match names.iter().find(|name| !is_file_name(name) || !name.ends_with(".safetensors")) {
        Some(other) => Err(format!("it names {other:?}, which is no file of weights beside it")),
        None => Ok(names),
    }
}

/// Downloads what is missing of a model folder and says where it lies.
pub async fn download(id: &HubId) -> Result<PathBuf> {
    let plan = Plan::of(id, &Choice::Folder).await?;
    plan.check_room()?;
    plan.fetch().await
}

/// An answer that no honest hub gives. Nothing was written for it.
fn untrusted(id: &HubId, what: &str) -> Error {
    let message =
        format!("the hub's answer for {id} {what}; nothing of it was used. Check HF_ENDPOINT, or take a folder");
    Error::new(ErrorKind::Unavailable, message)
}

/// The innermost reason of an error: `dns error: …`, `connection refused`.
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
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
            ("a/b@refs/pr/1", Some(("a/b", "refs/pr/1"))),
            ("a/b@../../../x", None),
            ("a/b@/etc/x", None),
            ("a/b@x//y", None),
            ("a/b@.hidden", None),
            ("a/..", None),
            ("a/b\0", None),
            ("a/b@x\\y", None),
        ] {
            let id = HubId::parse(text);
            assert_eq!(id.as_ref().map(|id| (&*id.name, &*id.revision)), expected, "{text}");
        }
        assert_eq!(HubId::parse("a/b@v1").unwrap().to_string(), "a/b@v1");
    }

    #[test]
    fn a_file_that_is_no_link_is_known_by_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        // Of `abc`, from FIPS 180-2.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(has_sha256(&write("copy", "abc"), sha256));
        assert!(!has_sha256(&write("other", "abd"), sha256));
        assert!(!has_sha256(&dir.path().join("none"), sha256));
        // A blob was compared when it got its name, and is not read again.
        let (blob, link) = (write(sha256, "not read"), dir.path().join("link"));
        std::os::unix::fs::symlink(blob, &link).unwrap();
        assert!(has_sha256(&link, sha256));
    }

    #[test]
    fn an_index_names_each_shard_once() {
        let index = br#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#;
        assert_eq!(shards(index).unwrap(), ["1.safetensors", "2.safetensors"]);
        assert!(shards(b"{}").is_err());
        for name in
            ["../x.safetensors", "/x.safetensors", "a/x.safetensors", ".x.safetensors", "x.bin", "", "x\0.safetensors"]
        {
            let index = serde_json::json!({ "weight_map": { "a": name } }).to_string();
            assert!(shards(index.as_bytes()).is_err(), "{name:?}");
        }
        let many: Vec<_> = (0..=MOST_SHARDS).map(|shard| (shard.to_string(), format!("{shard}.safetensors"))).collect();
        let index = serde_json::json!({ "weight_map": std::collections::BTreeMap::from_iter(many) }).to_string();
        assert!(shards(index.as_bytes()).is_err());
    }
}
