//! The demo model inside this program.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

macro_rules! checkpoint {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../ops/demo-model/checkpoint/", $name)))),*]
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

/// Writes the embedded model once. The folder's name holds its hash and it appears whole by a rename, so a folder that
/// is there is complete; the bytes are compared all the same, in case somebody or a disk changed them.
pub fn unpack(models: &Path) -> Result<PathBuf> {
    let folder = folder(models);
    let whole = |(name, bytes): &(&str, &[u8])| std::fs::read(folder.join(name)).is_ok_and(|found| found == *bytes);
    if DEMO_FILES.iter().all(whole) {
        return Ok(folder);
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
    Ok(folder)
}

/// Where the demo model of this version is, or will be.
pub fn folder(models: &Path) -> PathBuf {
    models.join(format!("demo-{}", hash()))
}

fn hash() -> String {
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

    #[test]
    fn it_is_written_once_and_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let first = unpack(dir.path()).unwrap();
        let config = first.join("config.json");
        let written = config.metadata().unwrap().modified().unwrap();
        assert_eq!(unpack(dir.path()).unwrap(), first);
        assert_eq!(config.metadata().unwrap().modified().unwrap(), written, "not written again");
        std::fs::write(&config, "{").unwrap();
        unpack(dir.path()).unwrap();
        assert!(std::fs::read(&config).unwrap().len() > 1, "repaired");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
    }
}
