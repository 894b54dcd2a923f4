//! The format stamp: `DATA/FORMAT` holds `{"format":N}`. It is written before anything else, so that a folder with data
//! and without it is not ours, or damaged.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ragstone_env::durable::{create_folder, sync_folder};
use ragstone_storage::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::FORMAT_VERSION;

const FILE: &str = "FORMAT";
/// What ragstone keeps in a data folder. Models may be put there before the first start.
const OWN_FOLDERS: [&str; 3] = ["kv", "catalog", "corpus"];

#[derive(Serialize, Deserialize)]
struct Stamp {
    format: u32,
}

/// The stamp's path.
pub(crate) fn path(data: &Path) -> PathBuf {
    data.join(FILE)
}

/// The format of a folder; `None` where there is nothing yet. Formats up to the newest known come back.
pub(crate) fn read(data: &Path) -> Result<Option<u32>> {
    let path = path(data);
    match std::fs::read_to_string(&path) {
        Ok(text) => parse(&path, &text).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            match OWN_FOLDERS.iter().map(|name| data.join(name)).find(|folder| folder.exists()) {
                None => Ok(None),
                Some(found) => Err(incompatible(format!(
                    "{} is there, but {} is not: choose another data folder with --data, or, if you are sure that \
                     this one is of format {FORMAT_VERSION}, write {{\"format\":{FORMAT_VERSION}}} to that file",
                    found.display(),
                    path.display()
                ))),
            }
        }
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

fn parse(path: &Path, text: &str) -> Result<u32> {
    let Ok(Stamp { format }) = serde_json::from_str(text) else {
        return Err(incompatible(format!(
            "{} cannot be read as {{\"format\":N}}: restore it, or choose another data folder with --data",
            path.display()
        )));
    };
    match format {
        1..=FORMAT_VERSION => Ok(format),
        0 => Err(incompatible(format!("{} says format 0, which never was", path.display()))),
        newer => Err(incompatible(format!(
            "{} says format {newer}, but this version of ragstone reads up to format {FORMAT_VERSION}: nothing was \
             touched; upgrade ragstone, or choose another data folder with --data",
            path.display()
        ))),
    }
}

/// Written aside, synced and renamed: a kill leaves the old stamp or the new one, whole.
pub(crate) fn write(data: &Path, format: u32) -> Result<()> {
    let (path, aside) = (path(data), data.join("FORMAT.new"));
    let write = || {
        create_folder(data)?;
        let mut file = File::create(&aside)?;
        serde_json::to_writer(&mut file, &Stamp { format })?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&aside, &path)?;
        sync_folder(data)
    };
    write().map_err(|error| Error::io("write", &path, error))
}

fn incompatible(message: String) -> Error {
    Error::new(ErrorKind::Incompatible, message)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn refusal(data: &Path) -> String {
        let error = read(data).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        error.to_string()
    }

    #[test]
    fn golden_bytes_of_the_stamps() {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("new/data");
        for format in 1..=FORMAT_VERSION {
            write(&data, format).unwrap();
            assert_eq!(std::fs::read_to_string(path(&data)).unwrap(), format!("{{\"format\":{format}}}\n"));
            assert_eq!(read(&data).unwrap(), Some(format));
        }
    }

    #[test]
    fn models_may_be_there_first_and_a_kill_while_stamping_is_fine() {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("models")).unwrap();
        std::fs::write(dir.path().join("FORMAT.new"), "{\"for").unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        write(dir.path(), 1).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(1));
    }

    #[test]
    fn other_formats_are_refused_with_advice() {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("corpus")).unwrap();
        assert!(refusal(dir.path()).contains("is not: choose another data folder"));
        let newer = format!("{{\"format\":{}}}", FORMAT_VERSION + 1);
        for (text, advice) in [(newer.as_str(), "upgrade ragstone"), ("{\"format\":0}", "never was"), ("x", "restore")]
        {
            std::fs::write(path(dir.path()), text).unwrap();
            assert!(refusal(dir.path()).contains(advice), "{text}");
            assert_eq!(std::fs::read_to_string(path(dir.path())).unwrap(), text, "nothing is touched");
        }
        // A later version may add to the stamp.
        std::fs::write(path(dir.path()), "{\"format\":1,\"more\":true}").unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(1));
    }
}
