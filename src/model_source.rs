//! Where the language model comes from: a folder, a GGUF file, the hub, or the demo model inside this program.

use std::path::{Path, PathBuf};

use ragstone_kernels::gguf::Gguf;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::hub::{self, HubId};

/// A model's folder or file, and the name that clients know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// A Hugging Face folder, or a GGUF file.
    pub path: PathBuf,
    /// The hub id, the folder's or the file's name, or [`DEMO_ID`].
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
    match here(setting, offline)? {
        Place::Here(found) => Ok(found),
        Place::Hub(id) => Ok(ModelFolder { path: hub::download(&id).await?, id: id.to_string() }),
    }
}

/// Refuses a setting that names neither a model of this machine nor what the hub could have: known without asking it.
pub fn check(setting: Option<&str>, offline: bool) -> Result<()> {
    setting.map_or(Ok(()), |setting| here(setting, offline).map(drop))
}

/// The model that `setting` names, where it is on this machine.
pub fn on_this_machine(setting: &str) -> Option<ModelFolder> {
    match here(setting, true) {
        Ok(Place::Here(found)) => Some(found),
        Ok(Place::Hub(_)) | Err(_) => None,
    }
}

/// Where a model is.
enum Place {
    Here(ModelFolder),
    /// To be fetched.
    Hub(HubId),
}

/// Looks for the model that `setting` names on this machine.
fn here(setting: &str, offline: bool) -> Result<Place> {
    let path = Path::new(setting);
    if path.is_dir() {
        return local(path).map(Place::Here);
    }
    if path.is_file() {
        return local_file(path).map(Place::Here);
    }
    let Some(id) = HubId::parse(setting).filter(|_| !names_gguf(path)) else {
        return Err(Error::new(ErrorKind::NotFound, no_such_model(setting)));
    };
    match hub::cached(&id) {
        Some(path) => Ok(Place::Here(ModelFolder { path, id: id.to_string() })),
        None if hub::is_offline(offline) => {
            let message = format!(
                "model {id} is neither a folder nor in the hub's cache, and the network is switched off; run once online, or give a folder"
            );
            Err(Error::new(ErrorKind::NotFound, message))
        }
        None => Ok(Place::Hub(id)),
    }
}

/// What to give instead of a setting that is neither a folder, a file nor a hub id.
pub fn no_such_model(setting: &str) -> String {
    const GIVE: &str = "give a folder with config.json, a GGUF file such as models/qwen2.5-0.5b-instruct-q8_0.gguf, or a hub id such as \
                        Qwen/Qwen2.5-0.5B";
    let is_tagged = |(name, tag): &(&str, &str)| !name.is_empty() && !tag.is_empty() && !tag.contains(['/', '\\']);
    match setting.rsplit_once(':').filter(is_tagged) {
        Some((name, tag)) => match on_the_hub(name) {
            Some(id) => format!(
                "no model {setting}: names with a tag, as Ollama has them, are not looked up; `ragstone models fetch {id} --quant {tag}` \
                 fetches that GGUF file and prints the path to give"
            ),
            None => format!(
                "no model {setting}: names with a tag, as Ollama has them, are not looked up; {GIVE}. `ragstone models fetch OWNER/NAME` \
                 fetches one, such as Qwen/Qwen2.5-0.5B-Instruct-GGUF with --quant q4_k_m"
            ),
        },
        None if names_gguf(Path::new(setting)) => format!("no file {setting}; {GIVE}"),
        None => format!("no model folder {setting}; {GIVE}"),
    }
}

/// The hub's own name in `hf.co/owner/name` and its like.
fn on_the_hub(name: &str) -> Option<HubId> {
    let name = name.trim_start_matches("https://");
    let id = ["hf.co/", "huggingface.co/"].iter().find_map(|host| name.strip_prefix(host))?;
    HubId::parse(id)
}

fn names_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn local_file(path: &Path) -> Result<ModelFolder> {
    let path = path.canonicalize().map_err(|error| Error::io("cannot open the model", path, error))?;
    if !Gguf::is_one(&path) {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{} is no GGUF file; give one, or the folder that holds config.json and *.safetensors",
                path.display()
            ),
        ));
    }
    let id = path.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    Ok(ModelFolder { path, id })
}

fn local(path: &Path) -> Result<ModelFolder> {
    let path = path.canonicalize().map_err(|error| Error::io("cannot open the model folder", path, error))?;
    if !path.join("config.json").is_file() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{} has no config.json; give a folder in Hugging Face form (config.json, tokenizer.json, *.safetensors), or a GGUF \
                 file by its own path",
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
    let folder = demo_folder(models);
    let found = ModelFolder { path: folder.clone(), id: DEMO_ID.into() };
    let whole = |(name, bytes): &(&str, &[u8])| std::fs::read(folder.join(name)).is_ok_and(|found| found == *bytes);
    if DEMO_FILES.iter().all(whole) {
        return Ok(found);
    }
    let failed = |path: &Path, error: std::io::Error| Error::io("cannot write the demo model to", path, error);
    std::fs::create_dir_all(models).map_err(|error| failed(models, error))?;
    let fresh = tempfile::Builder::new().prefix("demo-").tempdir_in(models).map_err(|error| failed(models, error))?;
    for (name, bytes) in DEMO_FILES {
        let path = fresh.path().join(name);
        std::fs::write(&path, bytes).map_err(|error| failed(&path, error))?;
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    }
    std::fs::rename(fresh.keep(), &folder).map_err(|error| failed(&folder, error))?;
    Ok(found)
}

/// Where the demo model of this version is, or will be.
pub fn demo_folder(models: &Path) -> PathBuf {
    models.join(format!("demo-{}", demo_hash()))
}

fn demo_hash() -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in DEMO_FILES {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hex::encode(&hash.finalize()[..6])
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
        for (name, instead) in
            [("llama3.2:1b", "OWNER/NAME"), ("hf.co/owner/model:Q4_K_M", "owner/model --quant Q4_K_M")]
        {
            let tagged = find(Some(name), true, dir.path()).await.unwrap_err().to_string();
            assert!(tagged.contains("Ollama") && tagged.contains("GGUF file") && tagged.contains(instead), "{tagged}");
        }
        // Not a hub id, though it has the form of one.
        let gone = find(Some("models/gone.gguf"), true, dir.path()).await.unwrap_err().to_string();
        assert!(gone.contains("no file models/gone.gguf"), "{gone}");
        let other = dir.path().join("notes.txt");
        std::fs::write(&other, "a text").unwrap();
        let other = find(other.to_str(), true, dir.path()).await.unwrap_err().to_string();
        assert!(other.contains("is no GGUF file"), "{other}");
    }
}
