//! Where the language model's adapter comes from: a folder, as PEFT saves it.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// The word for no adapter.
const NONE: &str = "none";

/// Finds the adapter that `setting` names; `None` for no adapter.
///
/// # Errors
/// `NotFound` where there is none.
pub fn find(setting: Option<&str>) -> Result<Option<PathBuf>> {
    let Some(setting) = setting.filter(|setting| *setting != NONE) else { return Ok(None) };
    let path = Path::new(setting);
    if !path.join("adapter_config.json").is_file() {
        let message = format!(
            "no adapter in {setting}; give a folder with adapter_config.json and adapter_model.safetensors, as PEFT saves it, or `{NONE}`"
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    path.canonicalize().map(Some).map_err(|error| Error::io("cannot open the adapter", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_as_peft_saves_it_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let setting = folder.path().to_str().unwrap();
        let error = find(Some(setting)).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("as PEFT saves it"), "{error}");
        std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        assert_eq!(find(Some(setting)).unwrap(), Some(folder.path().canonicalize().unwrap()));
        assert_eq!((find(None).unwrap(), find(Some(NONE)).unwrap()), (None, None));
    }
}
