//! Documents of files that are not there any more: which they are, and which of them stay. Looks at the disk, changes nothing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ragstone_documents::file_of;

use super::KeptFolder;

/// Whether a document's source is a file in one of the folders that is not there any more. What is not known for sure is
/// not gone: a name that is not written as it is, a folder that cannot be read.
pub fn is_gone(source: &str, folders: &[PathBuf]) -> bool {
    let is_missing = |path: &str| {
        let looked = std::fs::symlink_metadata(path);
        looked.is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    };
    let file = file_of(source);
    let is_within = folders.iter().any(|folder| Path::new(file).starts_with(folder));
    is_within && !source.contains('\\') && is_missing(source) && is_missing(file)
}

/// The empty folder that a source's file was in. One that was named itself and is gone was in none.
pub fn within<'a>(source: &str, empty: &'a [PathBuf]) -> Option<&'a Path> {
    let file = Path::new(file_of(source));
    empty.iter().map(PathBuf::as_path).find(|folder| file.starts_with(folder) && file != *folder)
}

/// Counts a document of an empty folder.
pub fn keep(kept: &mut Vec<KeptFolder>, folder: String) {
    match kept.iter_mut().find(|known| known.folder == folder) {
        Some(known) => known.documents += 1,
        None => kept.push(KeptFolder { folder, documents: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_an_empty_folder_is_kept_by_its_name() {
        let empty = ["/disk".into(), "/n/gone.md".into()];
        assert_eq!(within("/disk/a/b.jsonl#L2", &empty), Some(Path::new("/disk")));
        assert_eq!(within("/n/gone.md", &empty), None, "it was named itself");
        assert_eq!(within("/disks/a.md", &empty), None);
        let mut kept = Vec::new();
        ["/disk", "/other", "/disk"].into_iter().for_each(|folder| keep(&mut kept, folder.into()));
        assert_eq!(
            kept.iter().map(|one| (one.folder.as_str(), one.documents)).collect::<Vec<_>>(),
            [("/disk", 2), ("/other", 1)]
        );
    }
}
