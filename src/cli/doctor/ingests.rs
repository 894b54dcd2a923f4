//! Ingests that are not finished, of each collection, and who goes on with them.

use std::collections::BTreeMap;
use std::path::Path;

use ragstone_actors::upkeep::ingests::{IngestState, UnfinishedIngest};
use ragstone_documents::shown;
use ragstone_service::data_folder::DataFolder;
use ragstone_storage::catalog::Catalog;
use ragstone_terminal::output;

use super::finding::Finding;
use crate::error::{Error, Result};

const WHAT: &str = "ingests";
/// Paths that are named of a collection.
const MAX_PATHS: usize = 3;

/// Those of a data folder that no service has open. A copy of the catalog is looked into: to open it writes.
pub fn of_folder(data: &Path) -> Vec<Finding> {
    if !DataFolder::is_used(data) {
        return Vec::new();
    }
    let kept = DataFolder::existing(data).map(|folder| folder.keep_free());
    if matches!(kept, Ok(None)) {
        return vec![Finding::ok(WHAT, "not looked at, as another command has the data folder open")];
    }
    match journaled(&data.join("catalog")) {
        Ok(unfinished) => findings(&unfinished, false),
        Err(error) => {
            let advice = "the next command that opens the data folder says more, and begins a damaged catalog anew";
            vec![Finding::warning(WHAT, format!("the journal cannot be read: {error}"), advice)]
        }
    }
}

fn journaled(catalog: &Path) -> Result<Vec<UnfinishedIngest>> {
    if !catalog.is_dir() {
        return Ok(Vec::new());
    }
    let copy =
        tempfile::tempdir().map_err(|error| Error::io("cannot make a folder in", &std::env::temp_dir(), error))?;
    copy_folder(catalog, copy.path()).map_err(|error| Error::io("cannot copy", catalog, error))?;
    let jobs = Catalog::open_copy(copy.path())?.unfinished_jobs()?;
    Ok(jobs.into_iter().map(UnfinishedIngest::from).collect())
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&to)?;
            copy_folder(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// One finding a collection. With a service, what is not parked goes on by itself.
pub fn findings(unfinished: &[UnfinishedIngest], has_service: bool) -> Vec<Finding> {
    let mut collections: BTreeMap<&str, Vec<&UnfinishedIngest>> = BTreeMap::new();
    for ingest in unfinished {
        collections.entry(&ingest.collection).or_default().push(ingest);
    }
    collections.into_iter().map(|(collection, ingests)| of_collection(collection, &ingests, has_service)).collect()
}

fn of_collection(collection: &str, ingests: &[&UnfinishedIngest], has_service: bool) -> Finding {
    let parked = ingests.iter().filter(|ingest| ingest.state == IngestState::Parked).count();
    let paths: Vec<String> = ingests.iter().flat_map(|ingest| &ingest.paths).map(|path| shown(path)).collect();
    let count = output::count(ingests.len() as u64, "unfinished ingest", "unfinished ingests");
    let mut found =
        format!("collection `{collection}` has {count}, of {}", paths[..paths.len().min(MAX_PATHS)].join(" "));
    if paths.len() > MAX_PATHS {
        found.push_str(&format!(" and {} more", paths.len() - MAX_PATHS));
    }
    let forget = format!(
        "`ragstone ingest --list` numbers them and `ragstone ingest --cancel NUMBER` ends one; `ragstone collections delete {collection}` \
         removes the collection and forgets them"
    );
    if parked > 0 {
        found.push_str(&format!("; {parked} parked, which ended ragstone again and again"));
        return Finding::warning(WHAT, found, format!("`ragstone ingest` with their paths tries again; {forget}"));
    }
    let failed = ingests.iter().find(|ingest| ingest.state == IngestState::Failed);
    if has_service && failed.is_none() {
        return Finding::ok(WHAT, format!("{found}; the service is at it"));
    }
    if let Some(failed) = failed {
        let why = failed.error.as_deref().unwrap_or("the service's log says why");
        found.push_str(&format!("; ingest {} failed: {}", failed.id, output::one_line(why, 200)));
        return Finding::warning(
            WHAT,
            found,
            format!("`ragstone ingest` with their paths, or the next start, goes on; {forget}"),
        );
    }
    Finding::warning(WHAT, found, format!("`ragstone serve`, or the next `ragstone ingest`, goes on; {forget}"))
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn ingest(collection: &str, paths: usize, is_parked: bool) -> UnfinishedIngest {
        UnfinishedIngest {
            id: 7,
            collection: collection.into(),
            paths: (0..paths).map(|number| format!("/{number}").into()).collect(),
            created_unix_ms: 0,
            state: if is_parked { IngestState::Parked } else { IngestState::Waiting },
            files_done: 1,
            files_total: None,
            progress: None,
            error: None,
        }
    }

    #[test]
    fn each_collection_is_named_with_what_to_do() {
        let unfinished = [ingest("b", 1, false), ingest("a", 4, false), ingest("b", 1, true)];
        let alone = findings(&unfinished, false);
        assert_eq!(alone.iter().map(|finding| finding.state).collect::<Vec<_>>(), [State::Warning; 2]);
        assert_eq!(alone[0].found, "collection `a` has 1 unfinished ingest, of /0 /1 /2 and 1 more");
        assert!(alone[0].advice.as_ref().unwrap().contains("ragstone collections delete a"));
        assert!(alone[1].found.contains("2 unfinished ingests") && alone[1].found.contains("1 parked"));
        let served = findings(&unfinished, true);
        assert_eq!((served[0].state, served[1].state), (State::Ok, State::Warning));
        let error = Some("the disk is full".to_owned());
        let failed = UnfinishedIngest { state: IngestState::Failed, error, ..ingest("a", 1, false) };
        let told = &findings(&[failed], true)[0];
        assert_eq!(told.state, State::Warning, "nobody is at it");
        assert!(told.found.ends_with("; ingest 7 failed: the disk is full"), "{}", told.found);
        assert!(findings(&[], false).is_empty());
    }

    #[test]
    fn the_journal_is_read_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        assert!(of_folder(folder.path()).is_empty());
        let catalog = folder.path().join("catalog");
        let env = ragstone_env::Env::seeded(1, 0);
        Catalog::open(&catalog, &env).unwrap().add_job("c", &["/a".into()], false, 0).unwrap();
        let files = || {
            let mut files: Vec<_> =
                std::fs::read_dir(&catalog).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            files.sort();
            files
        };
        let before = files();
        assert!(of_folder(folder.path())[0].found.contains("collection `c` has 1 unfinished ingest, of /a"));
        assert_eq!(files(), before);
        std::fs::write(catalog.join("conf"), "no sled").unwrap();
        assert_eq!(of_folder(folder.path())[0].state, State::Warning);
    }
}
