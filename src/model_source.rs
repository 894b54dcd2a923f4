//! Where the language model comes from: a folder, the hub, or the demo model inside this program.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::hub::{self, HubId};

/// A model's folder and the name that clients know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// A Hugging Face folder.
    pub path: PathBuf,
    /// The hub id, the folder's name, or [`DEMO_ID`].
    pub id: String,
}

/// The name of the embedded model.
pub const DEMO_ID: &str = "ragstone-demo";

macro_rules! checkpoint {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../ops/demo-model/checkpoint/", $name)))),*]
    };
}

/// The embedded model's files. The last one is written last.
const DEMO_FILES: &[(&str, &[u8])] = checkpoint![
    "MODEL_CARD.md",
    "config.json",
    "calibration.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
];

/// Finds the model that `setting` names, fetching it if it must; `models` is where ragstone keeps its own.
pub async fn find(setting: Option<&str>, offline: bool, models: &Path) -> Result<ModelFolder> {
    let Some(setting) = setting else {
        let models = models.to_owned();
        return match tokio::task::spawn_blocking(move || unpack_demo(&models)).await {
            Ok(done) => done,
            Err(error) => Err(Error::internal(format!("the demo model could not be written: {error}"))),
        };
    };
    let path = Path::new(setting);
    if path.is_dir() {
        return local(path);
    }
    let Some(id) = HubId::parse(setting) else {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("no model folder {setting}; give a folder with config.json, or a hub id such as Qwen/Qwen2.5-0.5B"),
        ));
    };
    let path = match hub::cached(&id) {
        Some(path) => path,
        None if hub::is_offline(offline) => {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "model {id} is neither a folder nor in the hub's cache, and the network is switched off; run once online, or give a folder"
                ),
            ));
        }
        None => hub::download(&id).await?,
    };
    Ok(ModelFolder { path, id: id.to_string() })
}

fn local(path: &Path) -> Result<ModelFolder> {
    let path = path.canonicalize().map_err(|error| Error::io("cannot open the model folder", path, &error))?;
    if !path.join("config.json").is_file() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{} has no config.json; give a folder in Hugging Face form (config.json, tokenizer.json, *.safetensors)",
                path.display()
            ),
        ));
    }
    let id = path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    Ok(ModelFolder { path, id })
}

/// Writes the embedded model once. The folder's name holds its hash and it appears whole by a rename, so a folder that
/// is there is complete; the bytes are compared all the same, in case somebody or a disk changed them.
fn unpack_demo(models: &Path) -> Result<ModelFolder> {
    let folder = models.join(format!("demo-{}", demo_hash()));
    let found = ModelFolder { path: folder.clone(), id: DEMO_ID.into() };
    let whole = |(name, bytes): &(&str, &[u8])| std::fs::read(folder.join(name)).is_ok_and(|found| found == *bytes);
    if DEMO_FILES.iter().all(whole) {
        return Ok(found);
    }
    let failed = |path: &Path, error: &std::io::Error| Error::io("cannot write the demo model to", path, error);
    std::fs::create_dir_all(models).map_err(|error| failed(models, &error))?;
    let fresh = tempfile::Builder::new().prefix("demo-").tempdir_in(models).map_err(|error| failed(models, &error))?;
    for (name, bytes) in DEMO_FILES {
        let path = fresh.path().join(name);
        std::fs::write(&path, bytes).map_err(|error| failed(&path, &error))?;
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    }
    std::fs::rename(fresh.keep(), &folder).map_err(|error| failed(&folder, &error))?;
    Ok(found)
}

fn demo_hash() -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in DEMO_FILES {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hex(&hash.finalize()[..6])
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_demo_model_is_written_once_and_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let first = find(None, true, dir.path()).await.unwrap();
        assert_eq!(first.id, DEMO_ID);
        let config = first.path.join("config.json");
        let written = config.metadata().unwrap().modified().unwrap();
        assert_eq!(find(None, true, dir.path()).await.unwrap(), first);
        assert_eq!(config.metadata().unwrap().modified().unwrap(), written, "not written again");
        std::fs::write(&config, "{").unwrap();
        find(None, true, dir.path()).await.unwrap();
        assert!(std::fs::read(&config).unwrap().len() > 1, "repaired");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = find(Some("/nowhere/model"), true, dir.path()).await.unwrap_err();
        assert!(missing.to_string().contains("/nowhere/model"));
        let offline = find(Some("nobody/nothing-at-all"), true, dir.path()).await.unwrap_err();
        assert!(offline.to_string().contains("switched off"), "{offline}");
        let empty = find(dir.path().to_str(), true, dir.path()).await.unwrap_err();
        assert!(empty.to_string().contains("config.json"));
    }
}
