//! A collection's documents, as commands look through them.

use std::path::Path;

use ragstone_storage::corpus::DocumentInfo;

use crate::api::Page;
use crate::api::collections::{DocumentsQuery, unnamed};
use crate::cli::output;
use crate::client::Client;
use crate::document::shown;
use crate::error::{Error, ErrorKind, Result};

/// The collection that a command means: the one that it names, or where it names none, the one that [`unnamed`] finds.
pub async fn collection(client: &Client, given: Option<&str>) -> Result<String> {
    match given {
        Some(name) => Ok(name.to_owned()),
        None => unnamed(&client.get(&["v1", "collections"]).await?),
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

/// The ids of the documents of one file, named by its path or by their source; `None` where no document was read from it.
///
/// # Errors
/// `NotFound` where `given` is a path of which there is no document, and `InvalidInput` where it means several files.
pub async fn of_file(client: &Client, collection: &str, given: &str) -> Result<Option<Vec<String>>> {
    let path = Path::new(given).canonicalize().or_else(|_| std::path::absolute(given));
    // As a document's source is written.
    let path = path.map_or_else(|_| given.to_owned(), |path| shown(&path));
    match found(&all(client, collection).await?, given, &path) {
        Found::Documents(ids) => Ok(Some(ids)),
        // Whoever gave an id hears that there is no such document.
        Found::Nothing if !given.contains(['/', '\\']) && !Path::new(given).exists() => Ok(None),
        found => Err(not_one_file(&found, collection, given)),
    }
}

/// Which documents a path or a source means.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Those of one file.
    Documents(Vec<String>),
    /// Files of a folder: so many documents.
    Folder(usize),
    /// One file has it for its path, and another, which was uploaded, for its name.
    SeveralFiles(Vec<String>),
    Nothing,
}

fn found(documents: &[DocumentInfo], given: &str, path: &str) -> Found {
    let of = |is_meant: &dyn Fn(&str) -> bool| -> Vec<String> {
        let is_meant = |document: &&DocumentInfo| document.source.as_deref().is_some_and(is_meant);
        documents.iter().filter(is_meant).map(|document| document.id.clone()).collect()
    };
    let (by_path, by_source) = (of(&|source| is_of_file(source, path)), of(&|source| is_of_file(source, given)));
    let inside = of(&|source| source.strip_prefix(path).is_some_and(|rest| rest.starts_with(['/', '\\'])));
    match (by_path.is_empty(), by_source.is_empty()) {
        (false, false) if by_path != by_source => Found::SeveralFiles([by_path, by_source].concat()),
        (false, _) => Found::Documents(by_path),
        (true, false) => Found::Documents(by_source),
        (true, true) if inside.is_empty() => Found::Nothing,
        (true, true) => Found::Folder(inside.len()),
    }
}

/// Whether a document's source is this file, or a record of it.
fn is_of_file(source: &str, file: &str) -> bool {
    source.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

fn not_one_file(found: &Found, collection: &str, given: &str) -> Error {
    let given = output::one_line(given, 200);
    let list = format!("`ragstone documents list --collection {collection}` prints ids and paths");
    match found {
        Found::SeveralFiles(ids) => Error::invalid_input(format!(
            "{given} is the path of a file and the name of another, which was uploaded: give one of their ids: {}",
            ids.join(", ")
        )),
        Found::Folder(documents) => Error::invalid_input(format!(
            "{given} is a folder, of whose files there are {}: give a file. Once the files are gone, `ragstone ingest FOLDER --prune \
             --collection {collection}` removes them all",
            output::count(*documents as u64, "document", "documents")
        )),
        Found::Documents(_) | Found::Nothing => Error::new(
            ErrorKind::NotFound,
            format!(
                "{given} is no document's id, and no document of collection `{collection}` was read from such a file; {list}"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str, source: Option<&str>) -> DocumentInfo {
        let (title, source) = (String::new(), source.map(str::to_owned));
        DocumentInfo { id: id.into(), title, source, passages: 1, metadata: serde_json::Map::new() }
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
        let ids = |ids: &[&str]| Found::Documents(ids.iter().map(|id| (*id).to_owned()).collect());
        let at = |given: &str, path: &str| found(&documents, given, path);
        assert_eq!(at("roof.md", "/n/roof.md"), ids(&["1"]));
        assert_eq!(at("/n/all.jsonl", "/n/all.jsonl"), ids(&["2", "3"]));
        assert_eq!(at("/n/all.jsonl#L2", "/n/all.jsonl#L2"), ids(&["3"]));
        assert_eq!(at("notes.md", "/x/notes.md"), ids(&["4"]));
        assert_eq!(at("https://example.org/a", "/x/https:/example.org/a"), ids(&["5"]));
        assert_eq!(at("/n", "/n"), Found::Folder(3));
        assert_eq!(at("/n/roo", "/n/roo"), Found::Nothing);
        let both = [document("1", Some("/n/notes.md")), document("4", Some("notes.md"))];
        let several = found(&both, "notes.md", "/n/notes.md");
        assert_eq!(several, Found::SeveralFiles(vec!["1".into(), "4".into()]));
        let said = not_one_file(&several, "c", "notes.md").to_string();
        assert!(said.contains("give one of their ids: 1, 4"), "{said}");
        let said = not_one_file(&Found::Folder(3), "c", "/n").to_string();
        assert!(said.contains("3 documents") && said.contains("--prune --collection c"), "{said}");
        let said = not_one_file(&Found::Nothing, "c", "/n/x").to_string();
        assert!(said.contains("ragstone documents list --collection c"), "{said}");
    }
}
