//! Where the language model's adapter comes from: a folder, as PEFT saves it, or the reader inside this program.

use std::path::{Path, PathBuf};

use ragstone_kernels::adapter::Adapter;

use super::ModelFolder;
use super::bundle::{Bundle, files};
use crate::error::{Error, ErrorKind, Result};

/// The word for no adapter.
const NONE: &str = "none";
/// The word for the reader, where a model is given by its own path.
const READER: &str = "reader";
/// The default model's reader: it answers from passages in a few words, and says when they do not say (docs/adapters.md).
const BUNDLED: Bundle = Bundle {
    name: "reader",
    what: "the reader",
    files: files!["reader/checkpoint": "adapter_config.json", "calibration.json", "adapter_model.safetensors"],
};

/// Finds the adapter that `setting` names; `None` for no adapter. Without a setting the default model has its reader, on the processor, where
/// adapters are computed. `models` is where a data folder has what this program carries. BLOCKS.
///
/// # Errors
/// `NotFound` where there is none; those of the file system.
pub fn find(setting: Option<&str>, model: &ModelFolder, on_cpu: bool, models: &Path) -> Result<Option<PathBuf>> {
    match setting {
        Some(NONE) => Ok(None),
        Some(READER) => BUNDLED.unpack(models).map(Some),
        Some(setting) => folder(setting).map(Some),
        None if model.has_reader && on_cpu => BUNDLED.unpack(models).map(Some),
        None => Ok(None),
    }
}

/// What [`find`] would find, in words behind the model's name, without unpacking anything: empty for no adapter.
///
/// # Errors
/// `NotFound` where there is none; those of a folder that cannot be read.
pub fn in_words(setting: Option<&str>, model: &ModelFolder, on_cpu: bool) -> Result<String> {
    match setting {
        Some(NONE) => Ok(String::new()),
        Some(READER) => Ok(" with the reader".to_owned()),
        Some(setting) => {
            let folder = folder(setting)?;
            Adapter::open(&folder)?;
            Ok(format!(" with the adapter {}", folder.display()))
        }
        None if model.has_reader && on_cpu => Ok(" with its reader".to_owned()),
        None => Ok(String::new()),
    }
}

/// Refuses a setting that names nothing.
///
/// # Errors
/// `NotFound`.
pub fn check(setting: Option<&str>) -> Result<()> {
    match setting.filter(|setting| ![NONE, READER].contains(setting)) {
        Some(setting) => folder(setting).map(drop),
        None => Ok(()),
    }
}

fn folder(setting: &str) -> Result<PathBuf> {
    let path = Path::new(setting);
    if !path.join("adapter_config.json").is_file() {
        let message = format!(
            "no adapter in {setting}; give a folder with adapter_config.json and adapter_model.safetensors, as PEFT saves it, `{READER}` for \
             the default model's own, or `{NONE}`"
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    path.canonicalize().map_err(|error| Error::io("cannot open the adapter", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(has_reader: bool) -> ModelFolder {
        ModelFolder { path: "m.gguf".into(), id: "m".into(), note: None, has_reader }
    }

    #[test]
    fn a_folder_as_peft_saves_it_the_reader_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let found = |setting, has_reader, on_cpu| find(setting, &model(has_reader), on_cpu, &dir.path().join("models"));
        let mine = dir.path().join("mine");
        let setting = mine.to_str().unwrap();
        let error = found(Some(setting), true, true).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("as PEFT saves it"), "{error}");
        assert_eq!(check(Some(setting)).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::create_dir(&mine).unwrap();
        std::fs::write(mine.join("adapter_config.json"), "{}").unwrap();
        assert_eq!(found(Some(setting), true, true).unwrap(), Some(mine.canonicalize().unwrap()));

        let reader = found(None, true, true).unwrap().expect("the default model has its reader");
        assert!(reader.join("adapter_model.safetensors").is_file());
        assert_eq!(found(Some(READER), false, false).unwrap(), Some(reader));
        let told = |setting, has_reader| in_words(setting, &model(has_reader), true).unwrap();
        assert_eq!((told(None, true), told(None, false)), (" with its reader".into(), String::new()));
        assert_eq!((told(Some(READER), false), told(Some(NONE), true)), (" with the reader".into(), String::new()));
        assert!(in_words(Some(setting), &model(true), true).is_err(), "what cannot be read");
        // Another model, no adapter, a GPU.
        assert_eq!(found(None, false, true).unwrap(), None);
        assert_eq!(found(Some(NONE), true, true).unwrap(), None);
        assert_eq!(found(None, true, false).unwrap(), None);
        assert!([None, Some(NONE), Some(READER)].into_iter().all(|setting| check(setting).is_ok()));
    }
}
