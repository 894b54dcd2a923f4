//! Files as the corpus needs them: known to be on the disk, and errors that say what to do.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use ragstone_env::durable::sync_folder;

use crate::{Error, ErrorKind, Result};

/// Waits for the disk on every file below `folder` that is not in `known`, and on the folders whose names changed since.
pub(super) fn sync_files(folder: &Path, known: &mut HashSet<PathBuf>) -> std::io::Result<()> {
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
            sync_folder(&folder)?;
        }
    }
    // What was removed must not come back.
    let left: BTreeSet<&Path> = known.difference(&seen).filter_map(|path| path.parent()).collect();
    for folder in left.into_iter().filter(|folder| folder.is_dir()) {
        sync_folder(folder)?;
    }
    *known = seen;
    Ok(())
}

/// Waits for the disk on files of a table, by their names below it, and on the folders that they stand in.
pub(super) fn sync_named<'a>(table: &Path, names: impl Iterator<Item = &'a str>) -> std::io::Result<()> {
    let mut folders = BTreeSet::new();
    for name in names {
        let path = table.join(name);
        std::fs::File::open(&path)?.sync_all()?;
        folders.extend(path.ancestors().skip(1).take_while(|folder| folder.starts_with(table)).map(Path::to_owned));
    }
    folders.iter().try_for_each(|folder| sync_folder(folder))
}

/// The files of a table, by their names below it, parted by `/`.
pub(super) fn files(table: &Path) -> std::io::Result<HashSet<String>> {
    let (mut found, mut folders) = (HashSet::new(), vec![(table.to_owned(), String::new())]);
    while let Some((folder, within)) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = format!("{within}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push((entry.path(), name + "/"));
            } else {
                found.insert(name);
            }
        }
    }
    Ok(found)
}

/// Says what failed and what to do about it.
pub(super) fn failed(doing: String) -> impl FnOnce(lancedb::Error) -> Error {
    move |error| {
        if disk_is_full(&error) {
            return full(&doing).with_source(error);
        }
        let why = without_folders(&error.to_string());
        Error::new(ErrorKind::Internal, format!("could not {doing}: {why}")).with_source(error)
    }
}

/// LanceDB panics on some files that are cut. What it was about to do fails, and nothing else.
pub(super) async fn caught<T>(doing: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.unwrap_or_else(|panic| {
        let why = without_folders(panic_text(panic.as_ref()));
        Err(Error::new(ErrorKind::Corrupt, format!("could not {doing}: its files cannot be read ({why})")))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// Paths become names of files: where somebody's folders are is not for whoever asks, and neither is where LanceDB was compiled.
fn without_folders(text: &str) -> String {
    let is_part = |c: char| !(c.is_whitespace() || "\"'`()[]{}<>,;=".contains(c));
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(begin) = rest.find(is_part) {
        let (before, word) = rest.split_at(begin);
        let (word, after) = word.split_at(word.find(|c| !is_part(c)).unwrap_or(word.len()));
        out.push_str(before);
        out.push_str(word.trim_end_matches('/').rsplit('/').next().unwrap_or(word));
        rest = after;
    }
    out + rest
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
        sync_files(folder.path(), &mut known).unwrap();
        assert_eq!(known.len(), 2);
        std::fs::remove_file(folder.path().join("data/a")).unwrap();
        std::fs::write(folder.path().join("b"), "b").unwrap();
        sync_files(folder.path(), &mut known).unwrap();
        assert_eq!(known, HashSet::from([folder.path().join("data"), folder.path().join("b")]));
    }

    #[test]
    fn messages_name_files_and_not_where_they_are() {
        for (text, shown) in [
            ("Object at location /home/me/data/x.lance not found", "Object at location x.lance not found"),
            ("open \"/a/b c/d.lance\": No such file", "open \"b d.lance\": No such file"),
            ("LanceError(IO): eof, /root/.registry/lance/src/reader.rs:12:9", "LanceError(IO): eof, reader.rs:12:9"),
            ("a/b: 3 of 4, per/", "b: 3 of 4, per"),
            ("", ""),
        ] {
            assert_eq!(without_folders(text), shown, "{text}");
        }
    }

    #[tokio::test]
    async fn a_panic_fails_what_it_was_about() {
        let work = async {
            let bytes: &[u8] = &[];
            assert!(!bytes.is_empty(), "cut at /a/b");
            Ok(())
        };
        let error = caught("read it", work).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().ends_with("(cut at b)"), "{error}");
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
