//! A collection's documents, as commands look through them.

use std::path::Path;

use ragstone_storage::corpus::DocumentInfo;

use crate::api::Page;
use crate::api::collections::DocumentsQuery;
use crate::cli::output;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};

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

/// What to say where there is no document `id`: that ids are wanted, where a path was given, and which the file's are. Any other
/// `error` stays.
pub async fn instead_of_path(client: &Client, (collection, id): (&str, &str), error: Error) -> Error {
    let is_path = id.contains(['/', '\\']) || Path::new(id).exists();
    if error.kind() != ErrorKind::NotFound || !is_path {
        return error;
    }
    let Ok(documents) = all(client, collection).await else { return error };
    let path = Path::new(id).canonicalize().or_else(|_| std::path::absolute(id));
    let path = path.map_or_else(|_| id.to_owned(), |path| path.to_string_lossy().into_owned());
    let of_it: Vec<&str> = documents
        .iter()
        .filter(|document| document.source.as_deref().is_some_and(|source| is_of(source, &path)))
        .map(|document| document.id.as_str())
        .collect();
    Error::new(ErrorKind::NotFound, by_id((collection, id), &of_it))
}

/// Whether a document's source is this file, a record of it, or a file of this folder.
fn is_of(source: &str, path: &str) -> bool {
    source.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['#', '/', '\\']))
}

fn by_id((collection, path): (&str, &str), ids: &[&str]) -> String {
    let path = output::one_line(path, 200);
    let list = format!("`ragstone documents list --collection {collection}` prints ids and paths");
    match ids {
        [] => format!(
            "{path} is no document's id, and no document of collection `{collection}` was read from such a file; {list}"
        ),
        [id] => format!(
            "{path} is a path, and documents are removed by their ids: `ragstone documents delete {id} --collection {collection}`"
        ),
        ids => format!(
            "{path} is a path, and documents are removed by their ids; {} documents were read from it; {list}. Once the files are gone, \
             `ragstone ingest FOLDER --prune --collection {collection}` removes them all",
            ids.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_its_records_and_a_folders_files() {
        for source in ["/a/b", "/a/b#3", "/a/b/c.md"] {
            assert!(is_of(source, "/a/b"), "{source}");
        }
        for source in ["/a/bc", "/a", "b"] {
            assert!(!is_of(source, "/a/b"), "{source}");
        }
    }

    #[test]
    fn who_gives_a_path_hears_which_id_is_meant() {
        let said = |ids: &[&str]| by_id(("notes", "a/roof.md"), ids);
        assert!(said(&["0f0f"]).contains("`ragstone documents delete 0f0f --collection notes`"), "{}", said(&["0f0f"]));
        assert!(said(&["1", "2"]).contains("2 documents were read from it") && said(&["1", "2"]).contains("--prune"));
        assert!(said(&[]).contains("ragstone documents list --collection notes"), "{}", said(&[]));
    }
}
