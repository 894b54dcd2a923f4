//! Names that outlive a power cut: what is in a file is safe once the file is synced, and its name once its folder is.

use std::fs::File;
use std::io::{ErrorKind as Io, Result};
use std::path::Path;

/// Creates a folder, and those above it that are missing. They are on the disk on return. One that is there is left alone.
///
/// # Errors
/// As the disk says.
pub fn create_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_folder(above)?;
    }
    match std::fs::create_dir(folder) {
        // Somebody else made it just now.
        Err(error) if error.kind() == Io::AlreadyExists && folder.is_dir() => {}
        created => created?,
    }
    sync_name(folder)
}

/// Waits for the disk on what is in a folder: names, not what is in their files.
///
/// # Errors
/// As the disk says.
pub fn sync_folder(folder: &Path) -> Result<()> {
    // Elsewhere a folder cannot be opened.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Waits for the disk on the name of a file or folder.
///
/// # Errors
/// As the disk says.
pub fn sync_name(path: &Path) -> Result<()> {
    match path.parent() {
        Some(above) if above.as_os_str().is_empty() => sync_folder(Path::new(".")),
        Some(above) => sync_folder(above),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_with_those_above_them_and_left_alone_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b/c");
        for _ in 0..2 {
            create_folder(&folder).unwrap();
            assert!(folder.is_dir());
            std::fs::write(folder.join("file"), "kept").unwrap();
        }
        assert_eq!(
            create_folder(&folder.join("file/d")).unwrap_err().kind(),
            Io::AlreadyExists,
            "a file is where a folder is to be"
        );
        assert_eq!(create_folder(&folder.join("file")).unwrap_err().kind(), Io::AlreadyExists);
        sync_name(&folder.join("file")).unwrap();
        sync_folder(&folder).unwrap();
    }
}
