//! Files as the corpus needs them: known to be on the disk, and errors that say what to do.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::{Error, ErrorKind};

/// Waits for the disk on every file below `folder` that is not in `known`, and on the folders these stand in.
pub(super) fn sync_folder(folder: &Path, known: &mut HashSet<PathBuf>) -> std::io::Result<()> {
    let mut seen = HashSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut grown = false;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path.clone());
            }
            if !known.contains(&path) {
                std::fs::File::open(&path)?.sync_all()?;
                grown = true;
            }
            seen.insert(path);
        }
        if grown {
            std::fs::File::open(&folder)?.sync_all()?;
        }
    }
    *known = seen;
    Ok(())
}

/// Waits for the disk on which names a folder holds: what was removed from it does not come back with a power cut.
pub(super) fn sync_names(folder: &Path) -> std::io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

/// Says what failed and what to do about it.
pub(super) fn failed(doing: String) -> impl FnOnce(lancedb::Error) -> Error {
    move |error| {
        if disk_is_full(&error) {
            return full(&doing).with_source(error);
        }
        Error::new(ErrorKind::Internal, format!("could not {doing}: {error}")).with_source(error)
    }
}

/// The same for plain files.
pub(super) fn io_failed(doing: &str, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return full(doing).with_source(error);
    }
    Error::new(ErrorKind::Unavailable, format!("could not {doing}: {error}")).with_source(error)
}

fn full(doing: &str) -> Error {
    let message = format!("could not {doing}: the disk is full; nothing is lost, free some space and try again");
    Error::new(ErrorKind::Full, message)
}

fn disk_is_full(error: &lancedb::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|error| error.kind() == std::io::ErrorKind::StorageFull) {
            return true;
        }
        cause = error.source();
    }
    // Some layers keep only the text of the system's error.
    error.to_string().contains("No space left on device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_written_to_disk_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::write(folder.path().join("data/a"), "a").unwrap();
        let mut known = HashSet::new();
        sync_folder(folder.path(), &mut known).unwrap();
        assert_eq!(known.len(), 2);
        std::fs::remove_file(folder.path().join("data/a")).unwrap();
        std::fs::write(folder.path().join("b"), "b").unwrap();
        sync_folder(folder.path(), &mut known).unwrap();
        assert_eq!(known, HashSet::from([folder.path().join("data"), folder.path().join("b")]));
    }

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(io_failed("write", full()).kind(), ErrorKind::Full);
        let error =
            failed("write".to_owned())(lancedb::Error::Other { message: "x".into(), source: Some(Box::new(full())) });
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.to_string().contains("free some space"));
        let error = failed("read".to_owned())(lancedb::Error::Runtime { message: "broken".into() });
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("broken"));
    }
}
