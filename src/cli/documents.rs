//! A collection's documents, as commands look through them.

use std::path::{Path, PathBuf};

use ragstone_corpus::DocumentInfo;
use ragstone_documents::{file_of, may_have_several, shown};
use ragstone_service::api::Page;
use ragstone_service::api::collections::{DocumentsQuery, default_collection};
use ragstone_service::client::Client;
use ragstone_terminal::output;

use crate::error::{Error, ErrorKind, Result};

/// The collection that a command means: the one that it names, or where it names none, the one that [`default_collection`] finds.
pub async fn collection(client: &Client, given: Option<&str>) -> Result<String> {
    match given {
        Some(name) => Ok(name.to_owned()),
        None => default_collection(&client.get(&["v1", "collections"]).await?),
    }
}

/// All of them, page by page.
pub async fn all(client: &Client, collection: &str) -> Result<Vec<DocumentInfo>> {
    let mut all = Vec::new();
    loop {
        let query = DocumentsQuery { offset: all.len(), limit: 1000 };
        let page: Page<DocumentInfo> = client.get_with(&["v1", "collections", collection, "documents"], &query).await?;
        let is_last = page.data.is_empty() || !page.has_more;
        all.extend(page.data);
        if is_last {
            return Ok(all);
        }
    }
}

/// What a path or a source means: the documents of one file, or those of all files below a folder, which need not be there any more;
/// `None` where no document was read from it.
///
/// # Errors
/// `NotFound` where `given` is a path of which there is no document, and `InvalidInput` where it means two files.
pub async fn at_path(client: &Client, collection: &str, given: &str) -> Result<Option<Found>> {
    let path = real(given);
    match found(&all(client, collection).await?, given, &path) {
        // Whoever gave an id hears that there is no such document.
        Found::Nothing if !given.contains(['/', '\\']) && !Path::new(given).exists() => Ok(None),
        found @ (Found::File(_) | Found::Folder(_)) => Ok(Some(found)),
        found => Err(not_found(&found, collection, given)),
    }
}

/// A path as the source of a document has it: links are followed as far as there is something still.
fn real(given: &str) -> String {
    let Ok(whole) = std::path::absolute(given) else { return given.to_owned() };
    let found = whole.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match found.and_then(|(above, real)| Some(real.join(whole.strip_prefix(above).ok()?))) {
        // Joined with nothing, a path would end in a separator.
        Some(real) => shown(&real.components().collect::<PathBuf>()),
        None => shown(&whole),
    }
}

/// Which documents a path or a source means.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// Those of one file.
    File(Vec<DocumentInfo>),
    /// Those of the files below a folder.
    Folder(Vec<DocumentInfo>),
    /// One file has it for its path, and another, which was uploaded, for its name.
    TwoFiles(Vec<String>),
    Nothing,
}

fn found(documents: &[DocumentInfo], given: &str, path: &str) -> Found {
    let of = |is_meant: &dyn Fn(&str) -> bool| -> Vec<DocumentInfo> {
        let is_meant = |document: &&DocumentInfo| document.source.as_deref().is_some_and(is_meant);
        documents.iter().filter(is_meant).cloned().collect()
    };
    let (by_path, by_source) = (of(&|source| is_of_file(source, path)), of(&|source| is_of_file(source, given)));
    let folder = path.trim_end_matches(['/', '\\']);
    let inside = of(&|source| source.strip_prefix(folder).is_some_and(|rest| rest.starts_with(['/', '\\'])));
    match (by_path.is_empty(), by_source.is_empty()) {
        (false, false) if by_path != by_source => {
            Found::TwoFiles([by_path, by_source].concat().into_iter().map(|document| document.id).collect())
        }
        (false, _) => Found::File(by_path),
        (true, false) => Found::File(by_source),
        (true, true) if inside.is_empty() => Found::Nothing,
        (true, true) => Found::Folder(inside),
    }
}

/// Whether a document's source is this file, or a record of it.
fn is_of_file(source: &str, file: &str) -> bool {
    // What follows the `#` of a mail is anything. Of other files it is a part of another file's name.
    let is_record = |rest: &str| rest.starts_with('#') && may_have_several(Path::new(file));
    source.strip_prefix(file).is_some_and(|rest| rest.is_empty() || is_record(rest))
}

/// The files, each once, that are still there of those that documents were read from: an ingest reads them again.
pub fn files_there(documents: &[DocumentInfo]) -> Vec<&str> {
    // The source of an uploaded document is a name.
    let is_there = |file: &&str| Path::new(file).is_absolute() && Path::new(file).is_file();
    let sources = documents.iter().filter_map(|document| document.source.as_deref());
    let files = sources.filter_map(|source| [source, file_of(source)].into_iter().find(is_there));
    let mut there: Vec<&str> = files.collect();
    there.sort_unstable();
    there.dedup();
    there
}

fn not_found(found: &Found, collection: &str, given: &str) -> Error {
    let given = output::one_line(given, 200);
    match found {
        Found::TwoFiles(ids) => Error::invalid_input(format!(
            "{given} is the path of a file and the name of another, which was uploaded: give one of their ids: {}",
            ids.join(", ")
        )),
        _ => Error::new(
            ErrorKind::NotFound,
            format!(
                "{given} is no document's id, and no document of collection `{collection}` was read from such a file or folder; \
                 `ragstone documents list --collection {collection}` prints ids and paths"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use ragstone_corpus::Metadata;

    use super::*;

    fn document(id: &str, source: Option<&str>) -> DocumentInfo {
        let (title, source) = (String::new(), source.map(str::to_owned));
        DocumentInfo { id: id.into(), title, source, passages: 1, metadata: Metadata::default() }
    }

    #[test]
    fn a_path_or_a_source_means_the_documents_of_one_file() {
        let documents = [
            document("1", Some("/n/roof.md")),
            document("2", Some("/n/all.jsonl#L1")),
            document("3", Some("/n/all.jsonl#L2")),
            document("4", Some("notes.md")),
            document("5", Some("https://example.org/a")),
            document("6", None),
        ];
        let ids = |found| match found {
            Found::File(documents) => documents.into_iter().map(|document| document.id).collect(),
            other => vec![format!("{other:?}")],
        };
        let at = |given: &str, path: &str| found(&documents, given, path);
        assert_eq!(ids(at("roof.md", "/n/roof.md")), ["1"]);
        assert_eq!(ids(at("/n/all.jsonl", "/n/all.jsonl")), ["2", "3"]);
        assert_eq!(ids(at("/n/all.jsonl#L2", "/n/all.jsonl#L2")), ["3"]);
        assert_eq!(ids(at("notes.md", "/x/notes.md")), ["4"]);
        assert_eq!(ids(at("https://example.org/a", "/x/https:/example.org/a")), ["5"]);
        for folder in ["/n", "/n/", "/"] {
            let Found::Folder(below) = at(folder, folder) else { panic!("{folder}") };
            assert_eq!(below.len(), 3);
        }
        assert_eq!(at("/n/roo", "/n/roo"), Found::Nothing);
        let odd =
            [document("1", Some("/n/a.md")), document("2", Some("/n/a.md#old.txt")), document("3", Some("#b.md"))];
        let at = |given: &str, path: &str| found(&odd, given, path);
        assert_eq!(ids(at("a.md", "/n/a.md")), ["1"], "and not another file's");
        assert_eq!(ids(at("/n/a.md#old.txt", "/n/a.md#old.txt")), ["2"]);
        assert_eq!(at("", "/x"), Found::Nothing);
        let both = [document("1", Some("/n/notes.md")), document("4", Some("notes.md"))];
        let two = found(&both, "notes.md", "/n/notes.md");
        assert_eq!(two, Found::TwoFiles(vec!["1".into(), "4".into()]));
        let said = not_found(&two, "c", "notes.md").to_string();
        assert!(said.contains("give one of their ids: 1, 4"), "{said}");
        let said = not_found(&Found::Nothing, "c", "/n/x").to_string();
        assert!(said.contains("ragstone documents list --collection c"), "{said}");
    }

    #[test]
    fn what_is_gone_is_called_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let real_folder = folder.path().canonicalize().unwrap();
        let gone = folder.path().join("gone/deep");
        assert_eq!(real(gone.to_str().unwrap()), shown(&real_folder.join("gone/deep")));
        let around = folder.path().join("..").join(folder.path().file_name().unwrap()).join("gone/");
        assert_eq!(real(around.to_str().unwrap()), shown(&real_folder.join("gone")));
        assert_eq!(real(folder.path().to_str().unwrap()), shown(&real_folder));
    }

    #[test]
    fn files_that_are_there_are_named_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("all.jsonl"), "").unwrap();
        let records = ["all.jsonl#L1", "all.jsonl#L2", "gone.md"].map(|name| document(name, Some(&path(name))));
        let documents = [&records[..], &[document("up", Some("all.jsonl")), document("none", None)]].concat();
        assert_eq!(files_there(&documents), [path("all.jsonl")]);
    }
}
