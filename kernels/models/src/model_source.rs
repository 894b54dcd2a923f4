//! Where the language model comes from: a folder, a GGUF file, the hub, the demo model inside this program; where nobody names one, the
//! default model (`model_source/default_model.rs`), in whose place the demo model answers where that cannot be had.

pub mod adapter;
pub mod bundle;
pub mod default_model;
pub mod demo;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ragstone_kernels::gguf::Gguf;

pub use self::default_model::DEFAULT_ID;
use self::demo::DEMO as DEMO_MODEL;
use crate::error::{Error, ErrorKind, Result};
use crate::hub::{self, HubId};

/// A model's folder or file, and the name that clients know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// A Hugging Face folder, or a GGUF file.
    pub path: PathBuf,
    /// The hub id, the folder's or the file's name, [`DEFAULT_ID`] or [`DEMO_ID`].
    pub id: String,
    /// What whoever asks it should know: of the demo model.
    pub note: Option<String>,
    /// Whether the reader inside this program was trained for it.
    pub has_reader: bool,
}

/// The name of the embedded model.
pub const DEMO_ID: &str = "ragstone-demo";
/// The word that names it in settings, where its own name does, too.
const DEMO: &str = "demo";
/// What whoever named it should know.
const DEMO_NOTE: &str = "The embedded demo model answers, as `model` says. It knows the sentences of the sample corpus examples/world and \
                         nothing else: over your own documents its answers mean little. Without that setting a real model answers.";

/// Whether this process has told on standard error why the demo model answers.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Finds the model that `setting` names, fetching it if it must; `models` is where a data folder has the demo model. Without a setting it is
/// the default model; where that is not here and cannot be fetched, the demo model, and a warning says why: a service that starts with its
/// machine must not wait for a registry, and whoever has no network can look at everything.
///
/// # Errors
/// `NotFound` for a model that was named and is not there; those of the hub.
pub async fn find(setting: Option<&str>, offline: bool, models: &Path) -> Result<ModelFolder> {
    let Some(setting) = setting else {
        return match default_model::find(offline).await {
            Ok(path) => Ok(the_default(path)),
            Err(missing) => {
                tracing::warn!("{}", missing.note());
                TOLD.store(true, Ordering::Relaxed);
                unpacked(models, missing.note_for_clients()).await
            }
        };
    };
    if is_demo(setting) {
        return unpacked(models, DEMO_NOTE.to_owned()).await;
    }
    if setting == DEFAULT_ID {
        return default_model::find(offline).await.map(the_default).map_err(|missing| missing.error());
    }
    match here(setting, offline)? {
        Place::Here(found) => Ok(found),
        Place::Hub(id) => Ok(named(hub::download(&id).await?, id.to_string())),
    }
}

/// As [`find`]; where nobody names a model, the default one or an error.
///
/// # Errors
/// As [`find`], and `Unavailable` where the default model cannot be had.
pub async fn fetch(setting: Option<&str>, offline: bool, models: &Path) -> Result<ModelFolder> {
    find(Some(setting.unwrap_or(DEFAULT_ID)), offline, models).await
}

/// Whether a setting means the demo model.
pub fn is_demo(setting: &str) -> bool {
    [DEMO, DEMO_ID].contains(&setting)
}

/// Whether this process has said why the demo model answers, so that nobody says it again.
pub fn has_told() -> bool {
    TOLD.load(Ordering::Relaxed)
}

async fn unpacked(models: &Path, note: String) -> Result<ModelFolder> {
    let models = models.to_owned();
    match tokio::task::spawn_blocking(move || DEMO_MODEL.unpack(&models)).await {
        Ok(path) => Ok(ModelFolder { path: path?, id: DEMO_ID.into(), note: Some(note), has_reader: false }),
        Err(error) => Err(Error::internal(format!("the demo model could not be written: {error}"))),
    }
}

fn the_default(path: PathBuf) -> ModelFolder {
    ModelFolder { has_reader: true, ..named(path, DEFAULT_ID.to_owned()) }
}

fn named(path: PathBuf, id: String) -> ModelFolder {
    ModelFolder { path, id, note: None, has_reader: false }
}

/// Refuses a setting that names neither a model of this machine nor what the hub could have: known without asking it.
pub fn check(setting: Option<&str>, offline: bool) -> Result<()> {
    match setting {
        None => Ok(()),
        Some(setting) if is_demo(setting) => Ok(()),
        Some(DEFAULT_ID) => default_model::check(offline),
        Some(setting) => here(setting, offline).map(drop),
    }
}

/// The model that `setting` names, where it is on this machine; not the demo model, which is in every data folder.
pub fn on_this_machine(setting: &str) -> Option<ModelFolder> {
    if setting == DEFAULT_ID {
        return default_model::here().map(the_default);
    }
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
        Some(path) => Ok(Place::Here(named(path, id.to_string()))),
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
    const GIVE: &str = "give a folder with config.json, a GGUF file such as models/qwen2.5-0.5b-instruct-q8_0.gguf, a hub id such as \
                        Qwen/Qwen2.5-0.5B, or `demo`";
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
    Ok(named(path, id))
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
    Ok(named(path, id))
}

#[cfg(test)]
mod tests {
    use super::*;

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
